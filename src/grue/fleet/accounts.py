"""The accounts of a fleet: the broker with its waiting requests and its ledger.

The ledger is append-only. A reservation is written before its request may start, and a settlement when the
request has ended. So the next driver knows what may have been spent, even if a process was killed.
`broker.py` decides; `broker_server.py` and `ray_engine.py` pass the workers' questions on to this module.
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
from grue.fleet.server_places import ServerPlaces
from grue.transports.llm.exchange import RequestOutcome, WantedRequest

_TOO_MANY_S = 30.0
"""How long an episode that already holds `servers_an_episode` places may wait for one more."""


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
        folder: The fleet's folder. The ledger in it says what earlier runs have cost.
        limits: The limits on budget, rate and server processes.

    Raises:
        FleetError: The ledger cannot be read or written.

    Attributes:
        broker: The limits, and what has been reserved and spent.
        places: The places for server processes, by machine.
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
        self._first = anyio.Lock()
        self._changed: anyio.Event | None = None
        self._failed = ""
        self._servers = limits.servers
        self.places: dict[str, ServerPlaces] = {}
        self._left: anyio.Event | None = None

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()

    async def admitted(self, wanted: WantedRequest) -> tuple[str, Amount] | Refused:
        """Wait until a request may start. Return its number and reservation, or why it is refused.

        Requests start in the order in which this method was called, and only the first waiting request asks
        the broker. So the others take no time while they wait, and small requests cannot overtake a large one
        again and again.
        """
        async with self._first:
            return await self._admitted(wanted)

    async def _admitted(self, wanted: WantedRequest) -> tuple[str, Amount] | Refused:
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
        """Charge a request that has ended, in place of its reservation."""
        cost = self.broker.settle(reserved, outcome, model, time.monotonic())
        self._write("settled", number, cost)
        if self._changed is not None:
            self._changed.set()
        self._changed = None

    async def placed(self, machine: str, worker: str) -> str:
        """Wait until a worker may start a server process; return why it may not, or an empty text."""
        places = self.places.setdefault(machine, ServerPlaces(self._servers))
        refused_at = anyio.current_time() + _TOO_MANY_S
        while not places.take(worker):
            too_many = places.wants_too_many(worker)
            if too_many and anyio.current_time() >= refused_at:
                return (
                    f"the episode has more than servers_an_episode = {self._servers.an_episode} server"
                    f" processes at one time, and all {self._servers.at_once} places are taken; say in"
                    " servers_an_episode how many it needs"
                )
            left = self._left = self._left or anyio.Event()
            with anyio.move_on_at(refused_at) if too_many else anyio.CancelScope():
                await left.wait()
        return ""

    def left(self, machine: str, worker: str, *, all_: bool = False) -> None:
        """Give back one place of a worker, or with `all_` all its places."""
        places = self.places.get(machine)
        if places is None:
            return
        if all_:
            places.lost(worker)
        else:
            places.leave(worker)
        if self._left is not None:
            self._left.set()
        self._left = None

    def _write(self, kind: str, number: str, amount: Amount) -> None:
        line = _Line(kind, number, amount.requests, amount.tokens, round(amount.money_usd, 9))
        try:
            self._ledger.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            # Refuse all further requests: without a ledger the next driver would not know what they cost.
            self._failed = f"the fleet's ledger cannot be written ({error.strerror})"


def read_ledger(folder: FleetFolder) -> Amount:
    """Return the usage and cost of a fleet so far.

    Raises:
        FleetError: The ledger cannot be read.
    """
    return spent_so_far(_lines(folder.path / LEDGER))


def _lines(path: Path) -> Iterator[dict[str, object]]:
    """Yield the lines of a ledger, without a last line that was cut short by a kill.

    The request of such a line was never sent, because a request starts only after its line is written.
    """
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
