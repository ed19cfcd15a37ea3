"""The way of envelopes to an observer that talks to a network: a bounded queue, and a thread that empties it.

Recording hands an envelope over and goes on: it never waits, and nothing that happens behind the queue is
raised into a turn. What does not fit is dropped and counted; the count is told in one warning at the end.
Files are written by the trace writer, and never drop.

There is no thread before the first envelope. `close` ends it, and so does the end of the program. A process
that was forked off in the middle of an episode sends nothing: the episode goes on in its parent.
"""

import atexit
import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from grue.messages import TextDelta
from grue.runtime.trace import Envelope

BOUND = 10_000
"""Envelopes that may wait: some hundred turns, in case the thread gets no time at all."""

CLOSE_S = 5.0
"""How long `close` waits unless told otherwise, in seconds."""

Warn: TypeAlias = Callable[[str], None]
"""Takes one sentence that the user has to read."""


def warn_once(warn: Warn | None = None) -> Warn:
    """Return what passes on the first warning, from any thread, and no other: trouble repeats itself.

    Args:
        warn: Takes it; `None`: the logger `grue`.
    """
    tell = warn or logging.getLogger("grue").warning
    first = iter([tell])

    def say(text: str) -> None:
        with contextlib.suppress(Exception):
            next(first, _silent)(text)

    return say


def _silent(text: str) -> None:
    del text


class Consumer(Protocol):
    """Takes envelopes in the outbox's thread, where it may take its time; what it raises is counted."""

    def consume(self, envelope: Envelope[Any]) -> None:
        """Take the next envelope."""
        ...

    def finish(self) -> None:
        """Take notice that no envelope follows, and send what is left."""
        ...


class OutboxStatistics(Struct, frozen=True, kw_only=True):
    """What became of the envelopes so far.

    Attributes:
        taken: Handed to the thread.
        dropped: Not taken, because too many waited.
        failed: Taken, and the consumer raised.
        waiting: In the queue now.
    """

    taken: int
    dropped: int
    failed: int
    waiting: int


class Outbox:
    """An observer that hands each envelope to `consumer` in a thread of its own; made for one recorder.

    Pieces of text that is still being streamed (`TextDelta`) are left out: whole replies follow.

    Args:
        consumer: Takes them, in order.
        name: Who it is, in warnings and as the thread's name.
        bound: Envelopes that may wait.
        warn: Takes the one warning, from any thread; `None`: the logger `grue`.
    """

    def __init__(
        self, consumer: Consumer, *, name: str, bound: int = BOUND, warn: Warn | None = None
    ) -> None:
        self._consumer = consumer
        self._name = name
        self._bound = bound
        self._warn = warn_once(warn)
        # Its `put` neither waits nor takes a lock that the thread could hold.
        self._queue: queue.SimpleQueue[Envelope[Any] | threading.Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._starting = threading.Lock()
        self._closed = False
        self._taken = self._dropped = self._failed = 0

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        """Hand `envelope` over. It waits for nothing and raises nothing."""
        del line
        if self._closed or isinstance(envelope.body, TextDelta) or self._process != os.getpid():
            return
        if self._queue.qsize() >= self._bound:
            self._dropped += 1
            return
        self._taken += 1
        self._queue.put(envelope)
        if self._thread is None:
            self._start()

    def statistics(self) -> OutboxStatistics:
        """Return what became of the envelopes so far."""
        return OutboxStatistics(
            taken=self._taken, dropped=self._dropped, failed=self._failed, waiting=self._queue.qsize()
        )

    @property
    def closed(self) -> bool:
        """Whether it takes no further envelope."""
        return self._closed

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until the thread has handed over everything taken so far; return whether it has.

        It blocks, so call it where no event loop runs, or from a thread. Nothing is flushed.

        Args:
            timeout_s: How long to wait, in seconds.
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
        """Take no further envelope, send what is left, and end the thread. A second call only waits again.

        It blocks, so call it where no event loop runs, or from a thread.

        Args:
            timeout_s: How long to wait for the thread; 0: not at all. It goes on by itself, as long as the
                program does.

        Returns:
            Everything was handed over and the thread has ended.
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
            except RuntimeError as error:  # the system has no thread left to give, or is going down
                self._closed = True
                self._warn(f"{self._name}: nothing is sent: {error}.")
                return
            self._thread = thread
            # Handlers run last in, first out: this one before that of a client that was made earlier.
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
