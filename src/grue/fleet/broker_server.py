"""The socket by which workers ask the broker (`broker.py`) before they send LLM requests or start servers.

Each worker process has a connection; a message is a line of JSON. The server runs in a thread with an event
loop of its own, so that the driver stays synchronous.
"""

import asyncio
import contextlib
import itertools
import os
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Self

import anyio
import anyio.abc
import anyio.from_thread
import msgspec
from msgspec import Struct

from grue.fleet.accounts import GONE, Accounts, Claims
from grue.fleet.broker import Limits
from grue.fleet.folder import FleetFolder
from grue.runtime.processes.guard import guard
from grue.transports.llm.exchange import RequestOutcome, WantedRequest

MOST_LINE_BYTES = 65_536

_BACKLOG = 100
_ACCEPT_AGAIN_S = 0.1
# The most bytes in the path of the folder for temporary files. A Unix socket's path may have about 100.
_LONGEST_FOLDER = 75


class Ask(Struct, frozen=True, tag="ask"):
    """A worker asks whether the request `wanted` may start; `None`: whether a server process may start."""

    id: int
    wanted: WantedRequest | None = None


class GiveBack(Struct, frozen=True, tag="give_back"):
    """The request or server process of the `Ask` with this id has ended, or is no longer wanted."""

    id: int
    outcome: RequestOutcome


class Reply(Struct, frozen=True, tag="reply"):
    """The answer: the request or server process may start, unless `refused` says why it may not."""

    id: int
    refused: str = ""


_REQUESTS = msgspec.json.Decoder(Ask | GiveBack)


def folder_for_sockets() -> str:
    """Return the folder for temporary files, or `/tmp` if that folder's path is too long for a socket."""
    folder = tempfile.gettempdir()
    return "/tmp" if len(os.fsencode(folder)) > _LONGEST_FOLDER else folder  # noqa: S108


class BrokerServer:
    """Serves the broker to workers, in a `with` block. Raises `FleetError` if the ledger is unusable."""

    def __init__(self, folder: FleetFolder, limits: Limits) -> None:
        self.accounts = Accounts(folder, limits)
        self._folder = tempfile.TemporaryDirectory(prefix="grue-fleet-", dir=folder_for_sockets())
        guard.watch(self._folder.name)  # the guard removes the folder if this process is killed
        self.address = str(Path(self._folder.name) / "broker")
        self._stack = contextlib.ExitStack()
        self._workers = itertools.count(1)

    def __enter__(self) -> Self:
        with self._stack as stack:
            stack.callback(guard.release, self._folder.name)
            stack.callback(self._folder.cleanup)
            stack.callback(self.accounts.close)
            portal = stack.enter_context(anyio.from_thread.start_blocking_portal())
            future, scope = portal.start_task(self._serve)
            stack.callback(future.result)
            stack.callback(portal.call, scope.cancel)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def _serve(self, *, task_status: anyio.abc.TaskStatus[anyio.CancelScope]) -> None:
        # Do not let asyncio accept connections: its server, if closed, and its `sock_accept`, if cancelled,
        # may forget a connection that was just accepted.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.setblocking(False)
            listener.bind(self.address)
            listener.listen(_BACKLOG)
            async with anyio.create_task_group() as workers:
                task_status.started(workers.cancel_scope)
                while True:
                    await anyio.wait_readable(listener)
                    try:
                        connection, _ = listener.accept()
                    except OSError:  # such as too many open files: the worker waits
                        await anyio.sleep(_ACCEPT_AGAIN_S)
                    else:
                        workers.start_soon(self._worker, connection)

    async def _worker(self, connection: socket.socket) -> None:
        # Use asyncio's streams, not anyio's: if an anyio stream is cancelled just when its peer closes, anyio
        # sets the result of a cancelled future, and asyncio writes a traceback to standard error.
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=MOST_LINE_BYTES)
        claims = Claims(self.accounts, str(next(self._workers)))

        async def answer(ask: Ask, scope: anyio.CancelScope) -> None:
            reply = Reply(ask.id, await claims.answer(ask.id, ask.wanted, scope))
            with contextlib.suppress(ConnectionError):
                writer.write(msgspec.json.encode(reply) + b"\n")
                await writer.drain()

        async with anyio.create_task_group() as tasks:
            try:
                async for line in _received(reader):
                    match _REQUESTS.decode(line):
                        case Ask() as ask:
                            tasks.start_soon(answer, ask, claims.begin(ask.id))
                        case GiveBack(id_, outcome):
                            claims.give_back(id_, outcome)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                pass  # the connection is not from a worker, but from some other program
            finally:
                tasks.cancel_scope.cancel()
                claims.lost()
                writer.close()


async def _received(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        try:
            yield await reader.readuntil(b"\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            return


# --- The worker's side ---


_REPLIES = msgspec.json.Decoder(Reply)


class BrokerLink:
    """A `RequestGate` and `ServerGate` that asks the broker over its socket. Thread-safe."""

    def __init__(self, address: str, on_loss: Callable[[], None]) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(address)
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[str]] = {}
        self._lost = False
        self._on_loss = on_loss
        threading.Thread(target=self._read, name="grue fleet link", daemon=True).start()

    async def admit(self, wanted: WantedRequest | None = None) -> "Claim | str":
        """Wait until `wanted` (`None`: a server process) may start; return a `Claim`, or why it may not."""
        id_, answer = next(self._ids), Future[str]()
        with self._lock:
            if self._lost:
                return GONE
            self._waiting[id_] = answer
        claim = Claim(lambda outcome: self._send(GiveBack(id_, outcome)))
        try:
            self._send(Ask(id_, wanted))
            # Do not wait in one of anyio's 40 threads: tools need them, too, while other requests wait here.
            # `shield`: a cancellation must not cancel `answer`, to which `_read` may be giving its result.
            refused = await asyncio.shield(asyncio.wrap_future(answer))
        except BaseException:
            with self._lock:
                self._waiting.pop(id_, None)
            claim.leave()
            raise
        return refused or claim

    def close(self) -> None:
        """End the connection without a call of `on_loss`."""
        self._on_loss = lambda: None
        self._end()
        self._socket.close()

    def _send(self, message: Struct) -> None:
        try:
            with self._lock:
                self._socket.sendall(msgspec.json.encode(message) + b"\n")
        except OSError:
            self._end()

    def _end(self) -> None:
        """End the connection. Then the reading thread calls `on_loss`, and refuses everything that waits."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # `close` alone would not wake the reading thread

    def _read(self) -> None:
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    reply = _REPLIES.decode(line)
                    with self._lock:
                        answer = self._waiting.pop(reply.id, None)
                    if answer is not None:
                        answer.set_result(reply.refused)
        except (OSError, ValueError, msgspec.MsgspecError):
            pass
        # Call `on_loss`, with which a worker ends its process, before the waiting requests are refused.
        # Otherwise a refused turn could return its fallback answer, and the work's score would be committed.
        self._on_loss()
        with self._lock:
            self._lost = True
            waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.set_result(GONE)


class Claim(Struct, frozen=True):
    """The permission to start a request or a server process. Implements `Permit` and `ServerPlace`."""

    give_back: Callable[[RequestOutcome], object]

    def settle(self, outcome: RequestOutcome) -> None:
        """Report how the request ended."""
        self.give_back(outcome)

    def leave(self) -> None:
        """Report that the server process has ended, or that nothing was started."""
        self.give_back(RequestOutcome(sent=False))
