"""The broker as a server in the driver's process: answers the workers and keeps the ledger.

Each worker process has a connection to a Unix socket. A message is a line of JSON: the worker sends `ask` and
`settle`, the server answers `ask` with `reply`. When the connection ends, the worker's requests under way are
charged in full, because they may have been sent.

The server runs in a thread with an event loop of its own, so that the driver stays synchronous. Come here for
what is on the wire and in the ledger; `broker.py` decides.
"""

import contextlib
import itertools
import os
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import anyio.from_thread
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec import Struct

from grue.errors import FleetError
from grue.fleet.broker import Amount, Broker, Granted, Limits, NotYet, Refused, spent_so_far
from grue.fleet.folder import LEDGER, FleetFolder
from grue.llm_transport.request_gate import RequestOutcome, WantedRequest

MOST_LINE_BYTES = 65_536


class Ask(Struct, frozen=True, tag="ask"):
    """A worker asks whether a request may start. `id` counts within the connection."""

    id: int
    wanted: WantedRequest


class Settle(Struct, frozen=True, tag="settle"):
    """A worker reports what became of a request; also of one that it no longer waits for."""

    id: int
    outcome: RequestOutcome


class Reply(Struct, frozen=True, tag="reply"):
    """The answer to `Ask`: the request may start, unless `refused` says why it never may."""

    id: int
    refused: str = ""


class _Line(Struct, frozen=True, omit_defaults=True):
    """A line of the ledger."""

    kind: str
    id: str
    requests: int = 0
    tokens: int = 0
    money_usd: float = 0.0


_REQUESTS = msgspec.json.Decoder(Ask | Settle)


class BrokerServer:
    """Answers the workers of one driver while it is entered.

    Args:
        folder: The fleet's folder. Its ledger says what earlier runs have cost.
        limits: The limits.

    Raises:
        FleetError: The ledger cannot be read or written.

    Attributes:
        address: Path of the Unix socket.
    """

    def __init__(self, folder: FleetFolder, limits: Limits) -> None:
        self._ledger_path = folder.path / LEDGER
        self.broker = Broker(limits, spent=read_ledger(folder))
        self._folder = tempfile.TemporaryDirectory(prefix="grue-fleet-")
        self.address = str(Path(self._folder.name) / "broker")
        self._run = f"{os.getpid()}-{time.time_ns()}"
        self._numbers = itertools.count(1)
        self._changed: anyio.Event = anyio.Event()
        self._ready = threading.Event()
        self._stack = contextlib.ExitStack()
        self._failed: str = ""

    def __enter__(self) -> Self:
        with self._stack as stack:
            stack.callback(self._folder.cleanup)
            try:
                self._ledger = stack.enter_context(self._ledger_path.open("ab", buffering=0))
            except OSError as error:
                raise FleetError(f"Cannot write {self._ledger_path}: {error.strerror}.") from error
            portal = stack.enter_context(anyio.from_thread.start_blocking_portal())
            future, scope = portal.start_task(self._serve)
            stack.callback(future.result)
            stack.callback(portal.call, scope.cancel)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._stack.close()

    async def _serve(self, *, task_status: anyio.abc.TaskStatus[anyio.CancelScope]) -> None:
        listener = await anyio.create_unix_listener(self.address, mode=0o600)
        with anyio.CancelScope() as scope:
            async with listener:
                task_status.started(scope)
                await listener.serve(self._worker)

    async def _worker(self, stream: anyio.abc.ByteStream) -> None:
        worker = _Worker(self, stream)
        async with stream, anyio.create_task_group() as tasks:
            try:
                async for line in _received(BufferedByteReceiveStream(stream)):
                    match _REQUESTS.decode(line):
                        case Ask() as ask:
                            tasks.start_soon(worker.answer, ask)
                        case Settle() as settle:
                            worker.settle(settle)
            except msgspec.MsgspecError:
                pass  # a worker that was killed in the middle of a line, or no worker at all
            finally:
                tasks.cancel_scope.cancel()
                worker.lost()

    async def admitted(self, wanted: WantedRequest) -> tuple[str, Amount] | Refused:
        """Wait until a request may start. Return its number and reservation, or why it never may."""
        while True:
            if self._failed:
                return Refused(self._failed)
            changed = self._changed
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
        self._changed.set()
        self._changed = anyio.Event()

    def _write(self, kind: str, number: str, amount: Amount) -> None:
        line = _Line(kind, number, amount.requests, amount.tokens, round(amount.money_usd, 9))
        try:
            self._ledger.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            # Without a ledger nobody may spend: the next driver would not know of it.
            self._failed = f"the fleet's ledger cannot be written ({error.strerror})"


class _Worker:
    """A connection, with its requests under way."""

    def __init__(self, server: BrokerServer, stream: anyio.abc.ByteStream) -> None:
        self._server = server
        self._stream = stream
        self._under_way: dict[int, tuple[str, Amount, str]] = {}
        self._waiting: dict[int, anyio.CancelScope] = {}

    async def answer(self, ask: Ask) -> None:
        with anyio.CancelScope() as scope:
            self._waiting[ask.id] = scope
            admitted = await self._server.admitted(ask.wanted)
        if self._waiting.pop(ask.id, None) is None or scope.cancelled_caught:
            return
        if isinstance(admitted, Refused):
            reply = Reply(ask.id, admitted.why)
        else:
            self._under_way[ask.id] = (*admitted, ask.wanted.model)
            reply = Reply(ask.id)
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._stream.send(msgspec.json.encode(reply) + b"\n")

    def settle(self, settle: Settle) -> None:
        waiting = self._waiting.pop(settle.id, None)
        if waiting is not None:
            waiting.cancel()
        elif settle.id in self._under_way:
            number, reserved, model = self._under_way.pop(settle.id)
            self._server.settled(number, reserved, settle.outcome, model)

    def lost(self) -> None:
        for number, reserved, model in self._under_way.values():
            self._server.settled(number, reserved, RequestOutcome(), model)
        self._under_way.clear()


async def _received(stream: BufferedByteReceiveStream) -> AsyncIterator[bytes]:
    while True:
        try:
            yield await stream.receive_until(b"\n", MOST_LINE_BYTES)
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError, anyio.DelimiterNotFound):
            return


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
