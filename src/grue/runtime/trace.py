"""The trace: every envelope once, in order, and everything that reads it while it is written.

A `Recorder` numbers and times envelopes, removes secrets, and hands each one to its observers in the order of
their numbers. `trace_file` writes them into a file, `trace_reader` reads it back.

Secrets never get past the recorder: observers see, and the file holds, a placeholder instead; the envelope is
marked. The actors themselves receive what was sent.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from grue.runtime.redaction import Redaction
from grue.runtime.trace_format import TraceLine

B = TypeVar("B")


class Envelope(Struct, Generic[B], frozen=True, kw_only=True):
    """A message on its way, or a note for the trace.

    Attributes:
        seq: Number in the trace, from 1, in the order in which envelopes entered their mailboxes.
        t: Seconds since the recorder was made, monotonic.
        at: Seconds since the epoch, wall clock.
        turn: One-based number of the turn; 0 outside turns.
        sender: Name of the actor that sent it.
        receiver: Name of the mailbox it was put into; `trace` for a note.
        cause: Number of the envelope that made the sender send it; `None` for a first cause.
        body: The message.
        redacted: A secret in the body was replaced by a placeholder.
        reply_to: Where an answer to an ask goes; never part of a trace.
    """

    seq: int
    t: float
    at: float
    turn: int
    sender: str
    receiver: str
    cause: int | None
    body: B
    redacted: bool = False
    reply_to: object = None


Observer = Callable[[Envelope[Any], bytes], None]
"""Takes each envelope, secrets removed, and the same as a line of JSON without its newline."""


class Recorder:
    """Number, time, redact and distribute envelopes. Safe to call from several threads.

    Args:
        secrets: Values that must not leave the process, by the name that stands for them in a placeholder.
        clock: Monotonic seconds.
        wall_clock: Seconds since the epoch.
    """

    def __init__(
        self,
        *,
        secrets: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._started = clock()
        self._seq = 0
        self._lock = threading.Lock()
        self._observers: list[Observer] = []
        self._encoder = msgspec.json.Encoder()
        self._redaction = Redaction()
        for name, value in (secrets or {}).items():
            self.hide(name, value)

    def hide(self, name: str, value: str) -> None:
        """Replace `value` by a placeholder with `name` in everything that is recorded from now on.

        An empty value is no secret, and one that is not Unicode cannot be in a message. Authorisation headers
        and bearer tokens need not be named here: they are replaced wherever they stand.
        """
        self._redaction.hide(name, value)

    def redacted(self, written: bytes) -> bytes:
        """Return any JSON without what is kept out of the trace."""
        return self._redaction.text(written)

    def resume(self, *, after_seq: int, after_t: float) -> None:
        """Go on with a trace: number from `after_seq` on, and let `t` go on from `after_t` seconds.

        Raises:
            RuntimeError: Something was recorded already.
        """
        with self._lock:
            if self._seq:
                raise RuntimeError(f"a recorder that has recorded {self._seq} envelopes cannot resume")
            self._seq = after_seq
            self._started = self._clock() - after_t

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Everything that is shown what is recorded, in the order in which it was added."""
        return tuple(self._observers)

    def add(self, observer: Observer) -> None:
        """Show every further envelope to `observer`, in order, before `record` returns. It may not record."""
        self._observers.append(observer)

    def record(
        self,
        body: B,
        *,
        sender: str,
        receiver: str = "trace",
        cause: int | None = None,
        turn: int = 0,
        reply_to: object = None,
    ) -> Envelope[B]:
        """Record `body` and return its envelope, secrets still in it."""
        with self._lock:
            self._seq += 1
            envelope = Envelope(
                seq=self._seq,
                t=self._clock() - self._started,
                at=self._wall_clock(),
                turn=turn,
                sender=sender,
                receiver=receiver,
                cause=cause,
                body=body,
                reply_to=reply_to,
            )
            if self._observers:
                self._show(envelope)
        return envelope

    def _show(self, envelope: Envelope[Any]) -> None:
        written = shown = self._encoder.encode(envelope.body)
        if self._redaction.finds(written):
            shown, body = self._redaction.apply(written, envelope.body)
            envelope = msgspec.structs.replace(envelope, body=body, redacted=shown != written)
        line = self._encoder.encode(
            TraceLine(
                seq=envelope.seq,
                t=round(envelope.t, 6),
                at=round(envelope.at, 6),
                turn=envelope.turn,
                sender=envelope.sender,
                receiver=envelope.receiver,
                cause=envelope.cause,
                redacted=envelope.redacted,
                body=msgspec.Raw(shown),
            )
        )
        for observer in self._observers:
            observer(envelope, line)
