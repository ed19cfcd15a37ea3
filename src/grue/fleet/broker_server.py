"""The broker as a server in the driver's process: answers the workers.

Each worker process has a connection to a Unix socket. A message is a line of JSON. For a request to a model
the worker sends `ask` and `settle`, for a server process `ask_place` and `leave`. The server answers each
question with `reply`. When the connection ends, the worker's requests under way are charged in full, because
they may have been sent, and its places are free.

The server runs in a thread with an event loop of its own, so that the driver stays synchronous. This module
reads and writes the lines; `accounts.py` decides what is answered.
"""

import contextlib
import itertools
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import anyio.from_thread
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec import Struct

from grue.fleet.accounts import Accounts
from grue.fleet.broker import Amount, Limits, Refused
from grue.fleet.folder import FleetFolder
from grue.transports.llm.exchange import RequestOutcome, WantedRequest

MOST_LINE_BYTES = 65_536
_HERE = ""
"""All workers of a local fleet are on one machine."""


class Ask(Struct, frozen=True, tag="ask"):
    """A worker asks whether a request may start. `id` numbers the questions of the connection."""

    id: int
    wanted: WantedRequest


class Settle(Struct, frozen=True, tag="settle"):
    """A worker reports how a request ended, or that the worker no longer waits for permission to send it."""

    id: int
    outcome: RequestOutcome


class AskPlace(Struct, frozen=True, tag="ask_place"):
    """A worker asks whether it may start a server process. `id` is from the same numbers as in `Ask`."""

    id: int


class Leave(Struct, frozen=True, tag="leave"):
    """A server process has ended, or the worker no longer waits for its place."""

    id: int


class Reply(Struct, frozen=True, tag="reply"):
    """The answer: the request or the server may start, unless `refused` says why it may not."""

    id: int
    refused: str = ""


_REQUESTS = msgspec.json.Decoder(Ask | Settle | AskPlace | Leave)


class BrokerServer:
    """Answers the workers of one driver while it is entered.

    Args:
        folder: The fleet's folder. The ledger in it says what earlier runs have cost.
        limits: The limits on budget, rate and server processes.

    Raises:
        FleetError: The ledger cannot be read or written.

    Attributes:
        accounts: Decides which requests and servers may start, and charges the requests.
        address: Path of the Unix socket.
    """

    def __init__(self, folder: FleetFolder, limits: Limits) -> None:
        self.accounts = Accounts(folder, limits)
        self._folder = tempfile.TemporaryDirectory(prefix="grue-fleet-")
        self.address = str(Path(self._folder.name) / "broker")
        self._stack = contextlib.ExitStack()
        self._workers = itertools.count(1)

    def __enter__(self) -> Self:
        with self._stack as stack:
            stack.callback(self._folder.cleanup)
            stack.callback(self.accounts.close)
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
        worker = _WorkerStream(self.accounts, stream, str(next(self._workers)))
        async with stream, anyio.create_task_group() as tasks:
            try:
                async for line in _received(BufferedByteReceiveStream(stream)):
                    match _REQUESTS.decode(line):
                        case Ask() as ask:
                            tasks.start_soon(worker.answer, ask, worker.begin(ask.id))
                        case Settle() as settle:
                            worker.settle(settle)
                        case AskPlace() as ask_place:
                            tasks.start_soon(worker.place, ask_place, worker.begin(ask_place.id))
                        case Leave(id_):
                            worker.leave(id_)
            except msgspec.MsgspecError:
                pass  # the worker was killed in the middle of a line, or another program has connected
            finally:
                tasks.cancel_scope.cancel()
                worker.lost()


class _WorkerStream:
    """The connection of one worker, with the worker's requests under way and its places for servers."""

    def __init__(self, accounts: Accounts, stream: anyio.abc.ByteStream, name: str) -> None:
        self._accounts = accounts
        self._stream = stream
        self._name = name
        self._placed: set[int] = set()
        self._under_way: dict[int, tuple[str, Amount, str]] = {}
        self._waiting: dict[int, anyio.CancelScope] = {}

    def begin(self, id_: int) -> anyio.CancelScope:
        """Note a question before the task that answers it starts; return the scope that cancels the task.

        The worker's next message may already withdraw the question, and has to find it here.
        """
        scope = self._waiting[id_] = anyio.CancelScope()
        return scope

    async def answer(self, ask: Ask, scope: anyio.CancelScope) -> None:
        with scope:
            admitted = await self._accounts.admitted(ask.wanted)
        if self._waiting.pop(ask.id, None) is None or scope.cancelled_caught:
            return
        if isinstance(admitted, Refused):
            reply = Reply(ask.id, admitted.why)
        else:
            self._under_way[ask.id] = (*admitted, ask.wanted.model)
            reply = Reply(ask.id)
        await self._send(reply)

    async def place(self, ask: AskPlace, scope: anyio.CancelScope) -> None:
        with scope:
            refused = await self._accounts.placed(_HERE, self._name)
        if self._waiting.pop(ask.id, None) is None or scope.cancelled_caught:
            return
        if not refused:
            self._placed.add(ask.id)
        await self._send(Reply(ask.id, refused))

    def leave(self, id_: int) -> None:
        waiting = self._waiting.pop(id_, None)
        if waiting is not None:
            waiting.cancel()
        elif id_ in self._placed:
            self._placed.remove(id_)
            self._accounts.left(_HERE, self._name)

    def settle(self, settle: Settle) -> None:
        waiting = self._waiting.pop(settle.id, None)
        if waiting is not None:
            waiting.cancel()
        elif settle.id in self._under_way:
            number, reserved, model = self._under_way.pop(settle.id)
            self._accounts.settled(number, reserved, settle.outcome, model)

    def lost(self) -> None:
        for number, reserved, model in self._under_way.values():
            self._accounts.settled(number, reserved, RequestOutcome(), model)
        self._under_way.clear()
        self._accounts.left(_HERE, self._name, all_=True)

    async def _send(self, reply: Reply) -> None:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._stream.send(msgspec.json.encode(reply) + b"\n")


async def _received(stream: BufferedByteReceiveStream) -> AsyncIterator[bytes]:
    while True:
        try:
            yield await stream.receive_until(b"\n", MOST_LINE_BYTES)
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError, anyio.DelimiterNotFound):
            return
