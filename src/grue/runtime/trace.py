"""The trace: every envelope once, in order, and everything that reads it while it is written.

A `Recorder` numbers and times envelopes, removes secrets, and hands each one to its observers in the order of
their numbers. `TraceWriter` is the observer that writes the file: JSON Lines, a header with the format's
version first, then one envelope a line, each written whole before the next is recorded. `read_trace` reads it
back, and says whether the last line was cut short because the host was killed.

Secrets never get past the recorder: observers see, and the file holds, a placeholder instead; the envelope is
marked. The actors themselves receive what was sent.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from grue.errors import TraceError
from grue.runtime.line_file import LineFile

FORMAT = 1
"""Version of the trace file's format; readers accept this and every older one."""

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


class TraceLine(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"sender": "from", "receiver": "to"}
):
    """An envelope as it stands in the file; the body is still JSON."""

    seq: int
    t: float
    at: float
    turn: int
    sender: str
    receiver: str
    cause: int | None = None
    redacted: bool = False
    body: msgspec.Raw


class TraceHeader(Struct, frozen=True, kw_only=True, tag_field="trace", tag="grue"):
    """First line of a trace file."""

    format: int
    episode: str
    started_at: float


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
        self._forms: list[_Form] = []
        for name, value in (secrets or {}).items():
            self.hide(name, value)

    def hide(self, name: str, value: str) -> None:
        """Replace `value` by a placeholder with `name` in everything that is recorded from now on.

        An empty value is no secret, and one that is not Unicode cannot be in a message.
        """
        if not value or not _is_unicode(value):
            return
        known = {form.text for form in self._forms}
        placeholder = f"[redacted:{name}]"
        self._forms += [
            _Form(text, _in_json(text).encode(), placeholder)
            for text in _forms_in_text(value)
            if text not in known
        ]
        # A secret that contains another one has to go first, or its remainder would stay.
        self._forms.sort(key=lambda form: -len(form.text))

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
        if any(form.written in written for form in self._forms):
            shown, body = self._redact(written, type(envelope.body))
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

    def _redact(self, written: bytes, body_type: type[Any]) -> tuple[bytes, Any]:
        shown = _TEXT_OR_NUMBER.sub(self._redact_token, written)
        try:
            return shown, msgspec.json.decode(shown, type=body_type)
        except msgspec.ValidationError:
            # A number that the message needs happens to have a secret's digits.
            shown = _TEXT.sub(self._redact_token, written)
            return shown, msgspec.json.decode(shown, type=body_type)

    def _redact_token(self, token: re.Match[bytes]) -> bytes:
        written = token.group()
        text = before = msgspec.json.decode(written) if written.startswith(b'"') else written.decode()
        for form in self._forms:
            text = text.replace(form.text, form.placeholder)
        return written if text == before else self._encoder.encode(text)


class _Form(NamedTuple):
    """A way in which a secret can stand in a text, and how that is written in JSON."""

    text: str
    written: bytes
    placeholder: str


_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
_TEXT_OR_NUMBER = re.compile(_TEXT.pattern + rb"|-?[0-9][-+.eE0-9]*")
"""What of a JSON text can hold a secret; replaced token by token, so that what comes out is JSON again."""


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _forms_in_text(secret: str) -> list[str]:
    """Return how `secret` can stand in a text: as it is, in JSON, in JSON within JSON, two levels down."""
    forms = level = [secret]
    for _ in range(2):
        level = [form for text in level for form in _escaped(text)]
        forms = [*forms, *level]
    return list(dict.fromkeys(forms))


def _escaped(text: str) -> tuple[str, ...]:
    plain = _in_json(text)
    ascii_only = "".join(char if char.isascii() else _unicode_escape(char) for char in plain)
    return plain, ascii_only, plain.replace("/", "\\/")


def _in_json(text: str) -> str:
    return msgspec.json.encode(text).decode()[1:-1]


def _unicode_escape(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


class TraceWriter:
    """Write a trace file, readable by its owner only; an observer.

    Each envelope is handed to the operating system before the next one is recorded, so that a host killed at
    any instant leaves every line but perhaps the last one whole.

    Raises:
        TraceError: The file cannot be made, or holds something already: a file is one episode's.
    """

    def __init__(self, path: Path, *, episode: str, started_at: float | None = None) -> None:
        self.path = path
        self._file = LineFile(path, "trace file")
        if self._file.size:
            self.close()
            raise TraceError(f"The trace file {path} exists already: choose another name, or remove it.")
        header = TraceHeader(
            format=FORMAT, episode=episode, started_at=time.time() if started_at is None else started_at
        )
        self._file.write(msgspec.json.encode(header))

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        """Append one envelope."""
        del envelope
        self._file.write(line)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self._file.close()


class Trace(Struct, Generic[B], frozen=True):
    """A trace file, read.

    Attributes:
        header: Its first line.
        envelopes: All whole envelopes, in order.
        cut_short: The last line was incomplete: the host was killed while it was written.
    """

    header: TraceHeader
    envelopes: tuple[Envelope[B], ...]
    cut_short: bool


def read_trace(path: Path, body_type: type[B] | Any) -> Trace[B]:
    """Read a whole trace file.

    Args:
        path: The file.
        body_type: What the bodies are: a union of tagged Structs, or `dict` for plain JSON.

    Raises:
        TraceError: The file is missing, is no trace, is of a later format, or has a line that is damaged
            and is not the last one.
    """
    header, lines = _open_trace(path)
    bodies = msgspec.json.Decoder(body_type)
    envelopes: list[Envelope[B]] = []
    cut_short = False
    for number, text in lines:
        try:
            line = _LINES.decode(text)
        except msgspec.DecodeError as error:
            if not text.endswith(b"\n"):
                cut_short = True
                break
            raise TraceError(f"{path}, line {number}: not a trace line: {error}.") from error
        try:
            body = bodies.decode(line.body)
        except msgspec.ValidationError as error:
            raise TraceError(f"{path}, line {number}: not a message this version knows: {error}.") from error
        envelopes.append(_envelope(line, body))
    return Trace(header, tuple(envelopes), cut_short)


_LINES = msgspec.json.Decoder(TraceLine)


def _open_trace(path: Path) -> tuple[TraceHeader, Iterator[tuple[int, bytes]]]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TraceError(f"Cannot read the trace file {path}: {error.strerror}.") from error
    first, *rest = content.splitlines(keepends=True) or [b""]
    try:
        header = msgspec.json.decode(first, type=TraceHeader)
    except msgspec.DecodeError as error:
        raise TraceError(f"{path} is not a grue trace: its first line is no trace header.") from error
    if header.format > FORMAT:
        raise TraceError(f"{path} has trace format {header.format}; this version reads up to {FORMAT}.")
    return header, enumerate(rest, start=2)


def _envelope(line: TraceLine, body: B) -> Envelope[B]:
    return Envelope(
        seq=line.seq,
        t=line.t,
        at=line.at,
        turn=line.turn,
        sender=line.sender,
        receiver=line.receiver,
        cause=line.cause,
        body=body,
        redacted=line.redacted,
    )
