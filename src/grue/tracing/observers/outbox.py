"""A bounded queue and a thread that pass envelopes to a consumer, which may use the network.

The recorder never waits, and an exception in the thread never reaches a turn. A forked child sends nothing.
"""

import atexit
import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from grue import messages as m
from grue.runtime.trace.recorder import Envelope

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from requests import Response, Session

    from grue.tracing.observers.span_sink import SpanSink

BOUND = 10_000  # most envelopes in the queue: enough for a few hundred turns
CLOSE_S = 5.0  # how long `close` waits by default, in seconds
Warn: TypeAlias = Callable[[str], None]  # a function that shows a warning to the user


def warn_once(warn: Warn | None = None) -> Warn:
    """Return a function that passes only its first warning to `warn` (default: the logger `grue`)."""
    tell = warn or logging.getLogger("grue").warning
    first = iter([tell])

    def say(text: str) -> None:
        with contextlib.suppress(Exception):
            for show in first:
                show(text)

    return say


class OutboxStatistics(Struct, frozen=True, kw_only=True):
    """Counts of envelopes: `taken` into the queue, `dropped`, `waiting` in it. `failed` counts exceptions."""

    taken: int
    dropped: int
    failed: int
    waiting: int


class Outbox:
    """An observer that passes envelopes to `consumer`, in a thread of its own. For one recorder only."""

    def __init__(
        self, consumer: "SpanSink", *, name: str, bound: int = BOUND, warn: Warn | None = None
    ) -> None:
        self._consumer = consumer
        self._name = name
        self._bound = bound
        self._warn = warn_once(warn)
        # `Queue.put` may wait for a lock that the outbox's thread holds; `SimpleQueue.put` never waits.
        self._queue: queue.SimpleQueue[Envelope[Any] | threading.Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._starting = threading.Lock()
        self._closed = False
        self._taken = self._dropped = self._failed = 0

    def __call__(self, envelope: Envelope[Any], _line: bytes) -> None:
        """Put `envelope` into the queue, or drop it. Never waits for the consumer, and never raises."""
        if self._closed or isinstance(envelope.body, m.TextDelta):  # spans show no pieces of replies
            return
        if self._process != os.getpid():
            if self._thread is None:  # a child process, made before anything was recorded
                self._warn(
                    f"{self._name}: this process sends nothing, because it was forked after the observer was"
                    " made. Make the observer in this process."
                )
            return
        if self._queue.qsize() >= self._bound:
            self._dropped += 1
            return
        self._taken += 1
        self._queue.put(envelope)
        if self._thread is None:
            self._start()

    def statistics(self) -> OutboxStatistics:
        """Return the current counts."""
        return OutboxStatistics(
            taken=self._taken, dropped=self._dropped, failed=self._failed, waiting=self._queue.qsize()
        )

    @property
    def closed(self) -> bool:
        """`True` if the outbox takes no further envelope."""
        return self._closed

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until the consumer has handled everything queued so far.

        Blocks: do not call it in an event loop. Returns whether the consumer has handled everything. The
        backend's client may still hold data.
        """
        thread = self._thread
        if thread is None or self._process != os.getpid():
            return True
        if self._closed:
            thread.join(timeout_s)
            return not thread.is_alive()
        reached = threading.Event()
        self._queue.put(reached)
        return reached.wait(timeout_s)

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Take no more envelopes, send the queued ones, and end the thread. A second call only waits again.

        Blocks: do not call it in an event loop. After `timeout_s` seconds it returns, and the thread goes on.
        Returns whether there is no thread left to wait for. In a forked child, the call does nothing.
        """
        if self._process != os.getpid():
            return True
        with self._starting:
            closing, self._closed = not self._closed, True
            thread = self._thread
        if closing:
            atexit.unregister(self.close)
            self._queue.put(None)
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout_s)
        if thread.is_alive() and timeout_s:
            self._warn(f"{self._name}: not everything could be sent within {timeout_s:g} s.")
        return not thread.is_alive()

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None or self._closed:
                return
            thread = threading.Thread(target=self._run, name=f"grue-{self._name}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no further thread, or the interpreter shuts down
                self._closed = True
                self._warn(f"{self._name}: nothing is sent: {error}.")
                return
            self._thread = thread
            # atexit handlers run last in, first out: a client that was created earlier is still open then.
            atexit.register(self.close)

    def _run(self) -> None:
        while (taken := self._queue.get()) is not None:
            if isinstance(taken, threading.Event):
                taken.set()
            else:
                self._attempt(self._consumer.consume, taken)
        self._attempt(self._consumer.finish)
        if self._dropped:
            total = self._taken + self._dropped
            self._warn(f"{self._name}: {self._dropped} of {total} messages were dropped, too many waited.")

    def _attempt(self, do: Callable[..., None], *arguments: Envelope[Any]) -> None:
        try:
            do(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever an exporter raises, the episode goes on
            self._failed += 1
            self._warn(f"{self._name}: something was not sent: {type(error).__name__}: {error}")


_LOGGER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_CAUSE_LIMIT = 200
_exporting = threading.local()


def patient(exporter: "SpanExporter", *, backend: str, warn: Warn) -> "SpanExporter":
    """Change an exporter, so that it warns instead of logging failures, and return it."""
    # OpenTelemetry itself would log each retry and each failure.
    logging.getLogger(_LOGGER).addFilter(_hold_back)
    send = exporter.export

    def export(spans: "Sequence[ReadableSpan]") -> "SpanExportResult":
        said: list[str] = []
        _exporting.said = said
        try:
            result = send(spans)
        finally:
            del _exporting.said
        if result.name != "SUCCESS":
            cause = said[0] if said else "no reason is given"
            warn(f"{backend} does not take what it is sent ({cause[:_CAUSE_LIMIT]}).")
        return result

    exporter.export = export  # type: ignore[method-assign]
    return exporter


def session_of_exporter(provided: "Session | None" = None) -> "Session":
    """Return a session that raises on redirects: `provided`, or a new one that reads no bodies."""
    # The exporter takes a redirect for a success, so all spans would be lost without a warning. A body that
    # never ends would delay the end of the program. But a credential provider's session may need bodies.
    import requests

    session = provided or requests.Session()
    if provided is None:
        session.stream = True
        session.hooks["response"].append(_drop_body)
    session.hooks["response"].append(_refuse_redirect)
    return session


def _drop_body(response: "Response", **_: Any) -> None:
    if response.headers.get("Content-Length") == "0":
        response.raw.drain_conn()  # gives the connection back to the session, for the next spans
    response.close()


def _refuse_redirect(response: "Response", **_: Any) -> None:
    if 300 <= response.status_code < 400:
        response.close()
        raise ValueError(f"status {response.status_code}, a redirect: give the address it leads to")


def host_of(url: str) -> str:
    """Return the host and the port as written in a URL, without user and password."""
    return url.rpartition("@")[2].rpartition("://")[2].partition("/")[0]


def _hold_back(record: logging.LogRecord) -> bool:
    """Return whether to log `record`. While this thread exports spans, keep the text for a warning."""
    said: list[str] | None = getattr(_exporting, "said", None)
    if said is None:
        return True
    said.append(record.getMessage())
    return False
