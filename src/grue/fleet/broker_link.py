"""A worker's connection to the broker. It ends with the driver's process, and so does the worker."""

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future

import anyio.to_thread
import msgspec
from msgspec import Struct

from grue.fleet.accounts import GONE
from grue.fleet.broker_server import Ask, GiveBack, Reply
from grue.transports.llm.exchange import RequestOutcome, WantedRequest

_REPLIES = msgspec.json.Decoder(Reply)


class BrokerLink:
    """Asks the broker whether a request or a server may start: `RequestGate` and `ServerGate`. Thread-safe.

    `on_loss` is called by the thread that reads from the connection, when the connection ends.
    """

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
        """Wait until a request, or (`None`) a server, may start; return the permission or a reason."""
        id_, answer = next(self._ids), Future[str]()
        with self._lock:
            if self._lost:
                return GONE
            self._waiting[id_] = answer
        claim = Claim(lambda outcome: self._send(GiveBack(id_, outcome)))
        try:
            self._send(Ask(id_, wanted))
            refused = await anyio.to_thread.run_sync(answer.result, abandon_on_cancel=True)
        except BaseException:
            with self._lock:
                unanswered = self._waiting.pop(id_, None)
            if unanswered is not None:
                # The thread in `answer.result` cannot be cancelled. Give it a result, so that it ends.
                unanswered.set_result("the wait was given up")
            claim.leave()
            raise
        return refused or claim

    def close(self) -> None:
        """End the connection without a call of `on_loss`."""
        self._on_loss = lambda: None
        with contextlib.suppress(OSError):
            # The reading thread uses the socket too, so `close` alone would not end the connection.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, message: Struct) -> None:
        try:
            with self._lock:
                self._socket.sendall(msgspec.json.encode(message) + b"\n")
        except OSError:
            self._lose()

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
        # Otherwise a turn could return its fallback answer after a refusal, and the work's score would be
        # committed.
        self._on_loss()
        self._lose()

    def _lose(self) -> None:
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
