"""The accounts of a fleet: the broker with its waiting requests and its ledger.

The ledger is append-only. A reservation is written before its request may start, and a settlement when the
request has ended; so whatever is killed, the next driver knows what may have been spent. `broker.py` decides,
`broker_server.py` and `ray_engine.py` bring the workers' questions here.
"""

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec
from msgspec import Struct

from grue.errors import FleetError
from grue.fleet.broker import Amount, Broker, Granted, Limits, NotYet, Refused, spent_so_far
from grue.fleet.folder import LEDGER, FleetFolder
from grue.llm_transport.request_gate import RequestOutcome, WantedRequest


class _Line(Struct, frozen=True, omit_defaults=True):
    """A line of the ledger."""

    kind: str
    id: str
    requests: int = 0
    tokens: int = 0
    money_usd: float = 0.0


class Accounts:
    """Lets requests start and charges them. Used from one event loop.

    Args:
        folder: The fleet's folder. Its ledger says what earlier runs have cost.
        limits: The limits.

    Raises:
        FleetError: The ledger cannot be read or written.

    Attributes:
        broker: The limits, and what has been reserved and spent.
    """

    def __init__(self, folder: FleetFolder, limits: Limits) -> None:
        path = folder.path / LEDGER
        self.broker = Broker(limits, spent=read_ledger(folder))
        try:
            self._ledger = path.open("ab", buffering=0)
        except OSError as error:
            raise FleetError(f"Cannot write {path}: {error.strerror}.") from error
        self._run = f"{os.getpid()}-{time.time_ns()}"
        self._numbers = itertools.count(1)
        self._changed: anyio.Event | None = None
        self._failed = ""

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()

    async def admitted(self, wanted: WantedRequest) -> tuple[str, Amount] | Refused:
        """Wait until a request may start. Return its number and reservation, or why it never may."""
        while True:
            if self._failed:
                return Refused(self._failed)
            changed = self._changed = self._changed or anyio.Event()
            match self.broker.ask(wanted, time.monotonic()):
                case Granted(reserved):
                    number = f"{self._run}-{next(self._numbers)}"
                    self._write("reserved", number, reserved)
                    return number, reserved
                case Refused() as refused:
                    return refused
                case NotYet(after_s):
                    with anyio.move_on_after(after_s):
                        await changed.wait()

    def settled(self, number: str, reserved: Amount, outcome: RequestOutcome, model: str) -> None:
        """Charge a request."""
        cost = self.broker.settle(reserved, outcome, model, time.monotonic())
        self._write("settled", number, cost)
        if self._changed is not None:
            self._changed.set()
        self._changed = None

    def _write(self, kind: str, number: str, amount: Amount) -> None:
        line = _Line(kind, number, amount.requests, amount.tokens, round(amount.money_usd, 9))
        try:
            self._ledger.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            # Without a ledger nobody may spend: the next driver would not know of it.
            self._failed = f"the fleet's ledger cannot be written ({error.strerror})"


def read_ledger(folder: FleetFolder) -> Amount:
    """Return what a fleet has spent so far.

    Raises:
        FleetError: The ledger cannot be read.
    """
    return spent_so_far(_lines(folder.path / LEDGER))


def _lines(path: Path) -> Iterator[dict[str, object]]:
    """Yield the lines of a ledger. The last one may be cut short: its request was not granted yet."""
    if not path.exists():
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise FleetError(f"Cannot read {path}: {error.strerror}.") from error
    with file:
        for number, line in enumerate(file, 1):
            try:
                yield msgspec.json.decode(line, type=dict[str, object])
            except msgspec.MsgspecError as error:
                if line.endswith(b"\n"):
                    raise FleetError(f"{path}, line {number} is damaged: {error}.") from error
