"""A worker's connection to the broker: the gate that its requests pass.

The connection also tells whether the driver is alive. When it ends, the worker has nobody to work for: it
ends its process, and with it the servers that it has started.
"""

import contextlib
import itertools
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future

import anyio.to_thread
import msgspec

from grue.fleet.broker_server import Ask, Reply, Settle
from grue.llm_transport.request_gate import Permit, RequestOutcome, WantedRequest

GONE = "the fleet's broker is gone, so no request may start"

_REPLIES = msgspec.json.Decoder(Reply)


class BrokerLink:
    """Asks a broker in another process. Thread-safe.

    Args:
        address: Path of the broker's Unix socket.
        on_loss: Called in the reading thread when the connection ends.
    """

    def __init__(self, address: str, on_loss: Callable[[], None]) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(address)
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[str]] = {}
        self._lost = False
        self._on_loss = on_loss
        self._process = os.getpid()
        threading.Thread(target=self._read, name="grue fleet link", daemon=True).start()

    async def admit(self, wanted: WantedRequest) -> Permit | str:
        """Wait until the broker lets the request start."""
        id_ = next(self._ids)
        answer: Future[str] = Future()
        with self._lock:
            if self._lost:
                return GONE
            self._waiting[id_] = answer
        refused = ""
        try:
            self._send(Ask(id_, wanted))
            refused = await anyio.to_thread.run_sync(answer.result, abandon_on_cancel=True)
        except BaseException:
            self._send(Settle(id_, RequestOutcome(sent=False)))
            raise
        return refused or _Permit(self, id_)

    def settle(self, id_: int, outcome: RequestOutcome) -> None:
        """Report what became of a request."""
        self._send(Settle(id_, outcome))

    def close(self) -> None:
        """End the connection without telling `on_loss`."""
        self._on_loss = _nothing
        with contextlib.suppress(OSError):
            # The reading thread holds the socket too, so closing it alone would not end the connection.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, message: Ask | Settle) -> None:
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
        self._lose()
        self._on_loss()

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
        self._link.settle(self._id, outcome)


def _nothing() -> None:
    """Do nothing."""
