"""The recorder of the trace: numbers envelopes, replaces secrets in them, and passes them to observers.

If a message is long, a thread searches it for secrets, so that the event loop is not blocked. Until the
thread is done, it also passes on all later messages. Await `shown` before a result is given to the host.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue.errors import MCPConfigError, MCPError
from grue.runtime.forks import here_and_in_children
from grue.runtime.large_data import LONG
from grue.runtime.loops.host_code import calling
from grue.runtime.loops.interrupts import block_signals
from grue.runtime.safe_text import well_formed
from grue.runtime.secrets.redaction import Redaction, TextPieces
from grue.runtime.trace.format import TraceLine


class Backlog:
    """A queue of calls for one thread. Call `add` from one thread at a time; everything else is thread-safe.

    At its exit the interpreter waits for the thread. The thread ends when it has no more calls: a loop with a
    virtual clock (`grue.testing.actor_harness`) would wait for an idle thread as for one that works.
    """

    def __init__(self) -> None:
        self.calls: deque[Future[None]] = deque()
        self._thread: ThreadPoolExecutor | None = None
        self._left = 0
        # `add` holds this to queue a call, and the thread to end. Otherwise a call that is being queued could
        # reach the thread that ends, and the next call would run beside it in another thread.
        self._changing = threading.Lock()

    @property
    def busy(self) -> bool:
        """`True` if a call is pending or running."""
        with contextlib.suppress(IndexError):
            return not self.calls[-1].done()
        return False

    def add(self, function: Callable[[], None]) -> None:
        """Call `function` after the earlier calls; if no thread can start, in the caller's thread."""
        try:
            with self._changing:
                if self._thread is None:
                    self._thread = ThreadPoolExecutor(1, "grue trace", block_signals)
                self.calls.append(self._thread.submit(self._run, function))
                self._left += 1
        except RuntimeError:  # no thread can start, as after the main thread has ended: use this one
            self._thread = None
            wait(list(self.calls))
            function()

    def _run(self, function: Callable[[], None]) -> None:
        try:
            function()
        finally:
            with self._changing:
                self._left -= 1
                if not self._left and self._thread is not None:
                    self._thread.shutdown(wait=False)
                    self._thread = None

    def check(self) -> None:
        """Remove the finished calls. If one has failed, raise its exception, and leave the calls after it."""
        while True:
            try:
                call = self.calls[0]
                if not call.done():
                    break
                self.calls.remove(call)
            except IndexError:
                break
            except ValueError:  # another thread, which checks too, has removed it
                continue
            call.result()

    def wait(self) -> None:
        """Wait, blocking, until all calls are finished. Raise the exception of the first that has failed."""
        if self.busy:
            wait(list(self.calls))
        self.check()

    async def wait_async(self) -> None:
        """Do the same as `wait`, without blocking the event loop. A cancelled wait ends no queued call."""
        while self.busy:
            await anyio.to_thread.run_sync(wait, list(self.calls), abandon_on_cancel=True)
        self.check()


B = TypeVar("B")


class Envelope(Struct, Generic[B], frozen=True, kw_only=True):
    """A message on its way, or a note for the trace.

    Attributes:
        seq: Number in the trace, from 1, in the order in which envelopes were recorded.
        t: Seconds since the recorder was made, monotonic; a resumed trace goes on from the file's last time.
        at: Seconds since the epoch, wall clock.
        turn: One-based number of the turn; 0 outside turns.
        sender: Name of the actor that sent the message, or of another part, such as `host` or `clock`.
        receiver: Name of the mailbox that the message was put into, or of the sender of the ask that the
            message answers; `trace` for a note.
        cause: Number of the envelope that made the sender send this message; `None`: none is known.
        redacted: `True` if a secret in the body was replaced by a placeholder.
        copied: `True` if a fork has copied this message from a recorded turn. Nothing was sent or paid again.
        is_long: `True` if the body's JSON was encoded, and is so long that a thread should do the work on it.
        reply_to: The `ReplyChannel` for the answer to an ask (`Mailbox.ask`); never part of a trace.
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
    copied: bool = False
    is_long: bool = False
    reply_to: object = None


# Called with each envelope and its line of JSON, which has no newline. In both, secrets are replaced where
# the message's type allows a placeholder.
Observer = Callable[[Envelope[Any], bytes], None]


class Recorder:
    """Number, time and redact envelopes, and pass them to the observers. Thread-safe.

    Args:
        secrets: Values to hide, by name. Observers get `[redacted:NAME]` in the place of a value.
        clock: Returns a monotonic time in seconds.
        wall_clock: Returns the seconds since the epoch.

    Attributes:
        around_call: Called with the number of a `ToolCalled` message; returns a context manager in which that
            tool call runs. An observer may set this when it is added, to give the call a context.
        check: Called with an envelope and its body as JSON, before the observers. Raises to refuse a message.
            Not called for pieces of texts (`hold_back`), or without observers.
        telling: The id of the thread that is calling the observers; 0: no thread is.
        piece: The type that `hold_back` was called with.
    """

    def __init__(
        self,
        *,
        secrets: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        for argument, value in (("clock", clock), ("wall_clock", wall_clock)):
            if not callable(value):
                raise MCPConfigError(f"Recorder({argument}=...) wants a function that returns seconds.")
        if not isinstance(secrets, Mapping | None) or not all(
            isinstance(each, str) for pair in (secrets or {}).items() for each in pair
        ):
            raise MCPConfigError("Recorder(secrets=...) wants texts by name, secrets={'name': 'value'}.")
        self._clock = clock
        self._wall_clock = wall_clock
        self._started = clock()
        self._seq = 0
        self._observers: list[Observer] = []
        self._encoder = msgspec.json.Encoder()
        self._redaction = Redaction(secrets)
        here_and_in_children(self._begin_threads)
        self.piece: type[Struct] | None = None
        # By sender, turn and cause: runners that share the recorder may have turns with the same number.
        self._texts: dict[tuple[str, int, int | None], dict[Any, _Text]] = {}
        self._watched: Mapping[type, Callable[[Any], object]] = {}
        self.around_call: Callable[[int], AbstractContextManager[object]] = contextlib.nullcontext
        self.check: Callable[[Envelope[Any], bytes], None] = lambda _envelope, _body: None

    def _begin_threads(self) -> None:
        self._lock = threading.Lock()
        self.telling = 0
        self._backlog = Backlog()
        self._late = self._backlog.calls

    def for_another_trace(self) -> Recorder:
        """Return a recorder without observers that begins with number 1. Both hide all secrets of either."""
        other = Recorder(clock=self._clock, wall_clock=self._wall_clock)
        other._redaction = self._redaction
        return other

    def hide(self, name: str, value: str) -> None:
        """Replace `value` by a placeholder with `name` in everything that is recorded from now on.

        An empty value is ignored. Authorisation and API key headers, and usual bearer tokens, need no `hide`.
        """
        self._redaction.hide(name, value)

    def redacted(self, written: bytes, *, numbers: bool = False) -> bytes:
        """Return JSON with the secrets in strings replaced; `numbers`: those in numbers, too."""
        return self._redaction.redact_json(written, numbers=numbers)

    def redacted_text(self, text: str) -> str:
        """Return a text with the secrets replaced."""
        return self._redaction.redact_text(text)

    def redacted_body(self, body: B) -> B:
        """Return a message with the secrets replaced where its type allows a placeholder."""
        shown: B
        shown, written = self.encoded(body)
        if self._redaction.may_contain_secrets(written):
            shown = self._redaction.redact_message(written, shown)[1]
        return shown

    def hold_back(self, piece: type[Struct]) -> None:
        """Find secrets that are split over several messages of the type `piece`.

        Each of these messages has a piece of a longer text in its field `text`; its other fields and its
        cause identify the longer text. If the end of a piece may be the beginning of a secret, this end is
        held back. It is recorded with a later piece, or before the sender's next other message in the turn
        with the same cause (with any cause, if the pieces have none).
        """
        self.piece = piece

    def forget_texts(self, texts: Iterable[tuple[str, int, int | None]]) -> None:
        """Drop held-back texts (`hold_back`), each named by its sender, turn and cause. They have ended."""
        with self._lock:
            for key in texts:
                self._texts.pop(key, None)

    def settle(self) -> None:
        """Wait, blocking, until the observers have seen all that was recorded so far, except held-back text.

        Raises:
            TraceError: An observer could not write. Any other exception of an observer is raised, too.
        """
        self._backlog.wait()

    async def shown(self) -> None:
        """Do the same as `settle`, but without blocking the event loop."""
        await self._backlog.wait_async()

    def resume(self, *, after_seq: int, after_t: float) -> None:
        """Continue an existing trace: numbers go on after `after_seq`, times after `after_t` seconds.

        Raises:
            RuntimeError: Something was already recorded.
        """
        with self._lock:
            if self._seq:
                raise RuntimeError(f"a recorder that has recorded {self._seq} envelopes cannot resume")
            self._seq = after_seq
            self._started = self._clock() - after_t

    @property
    def observers(self) -> tuple[Observer, ...]:
        """The observers, in the order in which they were added."""
        return tuple(self._observers)

    def add(self, observer: Observer) -> None:
        """Pass every further envelope to `observer`, which must not `record`; call its `added_to` if any."""
        self._observers.append(observer)
        added_to = getattr(observer, "added_to", None)
        if added_to is not None:
            added_to(self)

    def remove(self, observers: Collection[Observer]) -> None:
        """Pass no further envelope to these observers."""
        self._observers = [each for each in self._observers if each not in observers]

    def refuse_observers(self) -> None:
        """Raise `MCPError` if this thread is calling an observer: the recorder would wait for itself."""
        if self.telling == threading.get_ident():
            raise MCPError(
                "An observer must not record a message or run a turn: its recorder waits for it. Note"
                " what it has seen, and act on that after the turn."
            )

    def watch(self, watched: Mapping[type, Callable[[Any], object]]) -> None:
        """Call `watched[TYPE]` with each later message of TYPE, unredacted. Call no function set earlier."""
        self._watched = watched

    def record(
        self,
        body: B,
        *,
        sender: str,
        receiver: str = "trace",
        cause: int | None = None,
        turn: int = 0,
        reply_to: object = None,
        copied: bool = False,
    ) -> Envelope[B]:
        """Record `body` and return its envelope, unredacted.

        Outside an event loop this waits until the observers have seen the envelope. Inside a loop, a long
        message and those after it may reach them later: await `shown`. `hold_back` delays texts, too.
        """
        self.refuse_observers()
        # A piece without text (the model's reply starts again) ends the held-back texts like other messages.
        piece = body.__class__ is self.piece and bool(body.text)  # type: ignore[attr-defined]  # a piece has it
        shown: object = body
        with self._lock:
            if self._late:
                self._backlog.check()
            if self._texts and not piece:
                self._end_texts(sender, turn, cause)
            if piece or not self._observers:
                written = b""
            else:
                shown, written = self.encoded(body)
            envelope = Envelope(
                seq=self._seq + 1,
                t=self._clock() - self._started,
                at=self._wall_clock(),
                turn=turn,
                sender=sender,
                receiver=receiver,
                cause=cause,
                body=body,
                copied=copied,
                is_long=len(written) >= LONG,
                reply_to=reply_to,
            )
            if written:
                self.check(envelope, written)
            self._seq += 1  # only now, so that a message that is refused leaves no gap in the numbers
            if piece:
                self._show_piece(envelope)
            elif written:
                self._show(envelope if shown is body else replace(envelope, body=shown), written)
        if body.__class__ in self._watched:
            self._watched[body.__class__](body)
        if self._late and self._backlog.busy:
            from grue.runtime.loops.sync_edge import loop_is_running

            if not loop_is_running():
                self._backlog.wait()
        return envelope

    def _show_piece(self, envelope: Envelope[Any]) -> None:
        """Add a piece to its text, and pass to the observers all but an end that may begin a secret."""
        texts = self._texts.setdefault((envelope.sender, envelope.turn, envelope.cause), {})
        key = replace(envelope.body, text="")
        if key not in texts:
            texts[key] = _Text(TextPieces(self._redaction), envelope)
        texts[key].last = envelope
        self._show_part(envelope, texts[key].pieces.feed(envelope.body.text))

    def _end_texts(self, sender: str, turn: int, cause: int | None) -> None:
        texts = [*self._texts.pop((sender, turn, cause), {}).values()]
        texts += self._texts.pop((sender, turn, None), {}).values()
        for text in texts:
            self._seq += 1
            again = replace(text.last, seq=self._seq, t=self._clock() - self._started, at=self._wall_clock())
            self._show_part(again, text.pieces.end())

    def _show_part(self, envelope: Envelope[Any], text: str) -> None:
        if not text:
            self._seq -= 1
        elif self._observers:
            part = replace(envelope, body=replace(envelope.body, text=text))
            valid, written = self.encoded(part.body)
            self._show(replace(part, body=valid), written)

    def encoded(self, body: Any) -> tuple[Any, bytes]:
        """Replace lone surrogates by U+FFFD; return the message for the observers, and its JSON."""
        try:
            return body, self._encoder.encode(body)
        except UnicodeEncodeError:
            plain = _valid(msgspec.to_builtins(body))
        # If the message's type does not allow U+FFFD in a text, observers get the message unchanged.
        with contextlib.suppress(msgspec.ValidationError):
            body = msgspec.convert(plain, type(body))
        return body, self._encoder.encode(plain)

    def _show(self, envelope: Envelope[Any], written: bytes) -> None:
        # `_pass_on` empties this list. A lambda with the bytes themselves would keep megabytes in memory.
        left = [written]
        if len(written) >= LONG or self._late:
            self._backlog.add(lambda: self._pass_on(envelope, left))
        else:
            self._pass_on(envelope, left)

    def _pass_on(self, envelope: Envelope[Any], left: list[bytes]) -> None:
        written = left.pop()
        if self._redaction.may_contain_secrets(written):
            shown, body = self._redaction.redact_message(written, envelope.body)
            envelope, written = replace(envelope, body=body, redacted=shown != written), shown
            del shown
        # Encode the line with `0` as its body, which is the last member, and replace this `0` by the body's
        # JSON: for megabytes, the encoder would need more memory than `join`.
        line = b"".join((self._encoder.encode(trace_line(envelope, b"0"))[:-2], written, b"}"))
        del written
        self.telling = threading.get_ident()
        try:
            for observer in self._observers:
                with calling(observer, "the observer"):
                    observer(envelope, line)
        finally:
            self.telling = 0


def _valid(value: Any) -> Any:
    match value:
        case str():
            return well_formed(value)
        case dict():
            return {_valid(key): _valid(item) for key, item in value.items()}
        case list() | tuple():
            return [_valid(item) for item in value]
        case _:
            return value


def trace_line(envelope: Envelope[Any], body: bytes) -> TraceLine:
    """Return the line of a trace for an envelope; `body` is its message as JSON."""
    return TraceLine(
        seq=envelope.seq,
        t=round(envelope.t, 6),
        at=round(envelope.at, 6),
        turn=envelope.turn,
        sender=envelope.sender,
        receiver=envelope.receiver,
        cause=envelope.cause,
        redacted=envelope.redacted,
        copied=envelope.copied,
        body=msgspec.Raw(body),
    )


class _Text(Struct):
    """A text that arrives in pieces. `pieces` holds ends back; `last` is the envelope of the latest piece."""

    pieces: TextPieces
    last: Envelope[Any]
