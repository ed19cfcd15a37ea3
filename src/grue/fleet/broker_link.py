"""A worker's connection to the broker, which is asked before each request to a model and each server start.

When the connection ends, the driver is gone. The worker then ends its process, and thereby the servers that
it has started.
"""

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import anyio.to_thread
import msgspec
from msgspec import Struct

from grue.fleet.broker_server import Ask, AskPlace, Leave, Reply, Settle
from grue.runtime.processes.server_gate import ServerPlace
from grue.transports.llm.exchange import Permit, RequestOutcome, WantedRequest

GONE = "the fleet's broker is gone, so nothing may start"

_REPLIES = msgspec.json.Decoder(Reply)


class BrokerLink:
    """Asks a broker in another process whether a request may start. Thread-safe.

    Args:
        address: Path of the broker's Unix socket.
        on_loss: Called in the reading thread when the connection ends.

    Attributes:
        servers: Asks the broker whether a server process may start.
    """

    def __init__(self, address: str, on_loss: Callable[[], None]) -> None:
        self.servers = _ServerGate(self)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(address)
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[str]] = {}
        self._lost = False
        self._on_loss = on_loss
        threading.Thread(target=self._read, name="grue fleet link", daemon=True).start()

    async def admit(self, wanted: WantedRequest) -> Permit | str:
        """Wait until the broker lets the request start; return a permit, or the reason for a refusal."""
        id_ = next(self._ids)
        refused = await self.answer(Ask(id_, wanted), Settle(id_, RequestOutcome(sent=False)))
        return refused or _Permit(self, id_)

    async def admit_server(self) -> ServerPlace | str:
        """Wait until the broker lets a server process start; return its place, or why it may not start."""
        id_ = next(self._ids)
        return await self.answer(AskPlace(id_), Leave(id_)) or _Place(self, id_)

    async def answer(self, ask: Ask | AskPlace, give_up: Settle | Leave) -> str:
        """Ask the broker; return the reason for a refusal, or an empty text. Send `give_up` if cancelled."""
        with self._asked(ask, give_up) as answer:
            return await anyio.to_thread.run_sync(answer.result, abandon_on_cancel=True)

    def send(self, message: Struct) -> None:
        """Send a message. Does not wait for anything."""
        try:
            with self._lock:
                self._socket.sendall(msgspec.json.encode(message) + b"\n")
        except OSError:
            self._lose()

    def close(self) -> None:
        """End the connection without a call of `on_loss`."""
        self._on_loss = _nothing
        with contextlib.suppress(OSError):
            # The reading thread holds the socket too. So `close` would not end the connection without this.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    @contextlib.contextmanager
    def _asked(self, ask: Ask | AskPlace, give_up: Settle | Leave) -> Iterator["Future[str]"]:
        """Send a question and yield its answer. If the block raises, send `give_up` to the broker."""
        answer: Future[str] = Future()
        with self._lock:
            if self._lost:
                answer.set_result(GONE)
            else:
                self._waiting[ask.id] = answer
        try:
            if not answer.done():
                self.send(ask)
            yield answer
        except BaseException:
            with self._lock:
                unanswered = self._waiting.pop(ask.id, None)
            if unanswered is not None:
                # Nobody will set the answer any more. Set it here, so that the thread that waits for it ends.
                unanswered.set_result("the wait was given up")
            self.send(give_up)
            raise

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
        # End the process before the waiting requests are refused. Otherwise a refused turn could end with a
        # fallback, and the result would be committed.
        self._on_loss()
        self._lose()

    def _lose(self) -> None:
        with self._lock:
            self._lost = True
            waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.set_result(GONE)


class _Permit:
    def __init__(self, link: BrokerLink, id_: int) -> None:
        self._link = link
        self._id = id_

    def settle(self, outcome: RequestOutcome) -> None:
        self._link.send(Settle(self._id, outcome))


class _ServerGate:
    """Asks the broker before each start of a server process."""

    def __init__(self, link: BrokerLink) -> None:
        self._link = link

    async def admit(self) -> ServerPlace | str:
        return await self._link.admit_server()


class _Place:
    def __init__(self, link: BrokerLink, id_: int) -> None:
        self._link = link
        self._id = id_

    def leave(self) -> None:
        self._link.send(Leave(self._id))


def _nothing() -> None:
    """Do nothing when the connection ends."""
