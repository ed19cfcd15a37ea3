"""Hold back a fleet's requests and server processes until its limits allow them, and sum up the costs.

In a run with limits on requests, the most that a request can cost is written to the ledger, an append-only
file, before the request starts, and its cost after it has ended. So a later run knows what may have been
spent, even if a process was killed.
"""

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec
from msgspec import Struct

from grue.errors import FleetError, TraceError
from grue.fleet.broker import Amount, Broker, Costs, Limits, NotYet, Refused, ServerPlaces
from grue.fleet.folder import LEDGER, FleetFolder
from grue.runtime.files import LineFile, os_errors_as
from grue.transports.llm.exchange import RequestOutcome, WantedRequest

GONE = "the fleet's broker is gone, so nothing may start"

# How long an episode that has `ServerCap.an_episode` server processes waits for one more before a refusal.
_TOO_MANY_S = 30.0


class _Line(Struct, frozen=True, omit_defaults=True):
    """A line of the ledger; `kind` is `reserved` or `settled`."""

    kind: str
    id: str  # the `number` of a `Reservation`; in a run without limits on requests, the episode's id
    requests: int = 0
    tokens: int = 0
    money_usd: float = 0.0


def _written(kind: str, id_: str, amount: Amount) -> bytes:
    line = _Line(kind, id_, amount.requests, amount.tokens, round(amount.money_usd, 9))
    return msgspec.json.encode(line)


class Reservation(Struct, frozen=True):
    """The permission to send a request to `model`; `number` is its id, `most` the reserved cost."""

    number: str
    most: Amount
    model: str


class Accounts:
    """Decides when requests and server processes may start, and charges the requests. Not thread-safe."""

    def __init__(self, folder: FleetFolder, limits: Limits) -> None:
        path = folder.path / LEDGER
        self.broker = Broker(limits, spent=read_ledger(folder))
        try:
            self._ledger = LineFile(path, "ledger")
            self._ledger.cut_half_line()  # left by a kill or a full disk; it would damage the next line
        except TraceError as error:
            raise FleetError(str(error)) from error
        self._run = f"{os.getpid()}-{time.time_ns()}"
        self._numbers = itertools.count(1)
        self._first = anyio.Lock()
        self._changed: anyio.Event | None = None
        self._failed = ""
        self._servers = limits.servers
        self.places: dict[str, ServerPlaces] = {}  # by machine
        self._left: anyio.Event | None = None

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()

    def costs(self) -> Costs:
        """Return the cost of earlier runs and of the requests that `settled` has recorded."""
        return Costs(self.broker.spent, self.broker.overloads, self.broker.refused)

    async def admitted(self, wanted: WantedRequest) -> Reservation | str:
        """Wait until a request may start. Return its reservation, or why the request is refused."""
        async with self._first:
            while not self._failed:
                changed = self._changed = self._changed or anyio.Event()
                match self.broker.ask(wanted, time.monotonic()):
                    case Amount() as reserved:
                        number = f"{self._run}-{next(self._numbers)}"
                        reservation = Reservation(number, reserved, wanted.model)
                        if self._write("reserved", reservation, reserved):
                            return reservation
                        unsent = RequestOutcome(sent=False)
                        self.broker.settle(reserved, unsent, wanted.model, time.monotonic())
                    case Refused(why):
                        return why
                    case NotYet(after_s):
                        with anyio.move_on_after(after_s):
                            await changed.wait()
            return self._failed

    def settled(self, reservation: Reservation, outcome: RequestOutcome) -> None:
        """Record that a request has ended: its cost takes the place of its reservation."""
        cost = self.broker.settle(reservation.most, outcome, reservation.model, time.monotonic())
        self._write("settled", reservation, cost)
        if self._changed is not None:
            self._changed.set()
        self._changed = None

    async def placed(self, machine: str, worker: str) -> str:
        """Wait until a worker may start a server process. Return "", or the reason for a refusal."""
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

    def left(self, machine: str, worker: str) -> None:
        """Free the place of a worker's server process that has ended or was not started."""
        self.places[machine].leave(worker)
        if self._left is not None:
            self._left.set()
        self._left = None

    def _write(self, kind: str, reservation: Reservation, amount: Amount) -> bool:
        try:
            self._ledger.write(_written(kind, reservation.number, amount))
        except TraceError as error:
            # Refuse all further requests: without the ledger, the next run would not know what they cost.
            self._failed = self._failed or f"what a request costs cannot be recorded. {error}"
            return False
        return True


class Claims:
    """The requests and servers that one worker runs or has asked for; `id_` is the number of a question."""

    def __init__(self, accounts: Accounts, worker: str, machine: str = "") -> None:
        self._accounts = accounts
        self._worker = worker
        self._machine = machine
        self._waiting: dict[int, anyio.CancelScope] = {}
        self._given: dict[int, Reservation | None] = {}  # by question id; `None` for a server process

    def begin(self, id_: int) -> anyio.CancelScope:
        """Record a worker's question. Return a scope for `answer`; `give_back` cancels the scope."""
        scope = self._waiting[id_] = anyio.CancelScope()
        return scope

    async def answer(self, id_: int, wanted: WantedRequest | None, scope: anyio.CancelScope) -> str:
        """Wait until `wanted` (`None`: a server process) may start; return "", or why it is refused."""
        given: Reservation | str | None = GONE
        with scope:
            if wanted is None:
                given = await self._accounts.placed(self._machine, self._worker) or None
            else:
                given = await self._accounts.admitted(wanted)
        withdrawn = self._waiting.pop(id_, None) is None
        if isinstance(given, str):
            return given
        self._given[id_] = given
        if withdrawn:
            self.give_back(id_, RequestOutcome(sent=False))
        return ""

    def give_back(self, id_: int, outcome: RequestOutcome) -> None:
        """Charge the granted request or free the granted place; if nothing was granted yet, end the wait."""
        waiting = self._waiting.pop(id_, None)
        if waiting is not None:
            waiting.cancel()
        elif id_ in self._given:
            reservation = self._given.pop(id_)
            if reservation is None:
                self._accounts.left(self._machine, self._worker)
            else:
                self._accounts.settled(reservation, outcome)

    def lost(self) -> None:
        """Give back all that the ended worker holds. A request under way costs its reservation."""
        for id_ in (*self._waiting, *self._given):
            self.give_back(id_, RequestOutcome())


def add_to_ledger(folder: FleetFolder, episode: str, spent: Amount) -> None:
    """Add an attempt's cost to the ledger in a run without limits on requests; may raise `TraceError`."""
    with contextlib.closing(LineFile(folder.path / LEDGER, "ledger")) as file:
        file.cut_half_line()
        file.write(_written("settled", episode, spent))


def read_ledger(folder: FleetFolder) -> Amount:
    """Sum up a ledger. A request without a `settled` line costs its reservation. May raise `FleetError`."""
    open_: dict[str, Amount] = {}
    spent = Amount()
    for line in _lines(folder.path / LEDGER):
        amount = Amount(line.requests, line.tokens, line.money_usd)
        if line.kind == "reserved":
            open_[line.id] = amount
        elif line.kind == "settled":
            open_.pop(line.id, None)
            spent += amount
    return sum(open_.values(), spent)


def _lines(path: Path) -> Iterator[_Line]:
    """Yield a ledger's lines, except a last line that a kill or a full disk has cut short."""
    if not path.exists():
        return
    with os_errors_as(FleetError, f"read {path}"):
        file = path.open("rb")
    with file:
        for number, line in enumerate(file, 1):
            try:
                yield msgspec.json.decode(line, type=_Line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                if line.endswith(b"\n"):
                    raise FleetError(f"{path}, line {number} is damaged: {error}.") from error
