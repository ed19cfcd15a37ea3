"""Draw a trace as a sequence diagram, in Mermaid or as plain text. Untrusted text cannot break a diagram."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from grue import messages as m
from grue.runtime.safe_text import printable
from grue.tracing.columns import cells, cut, pad
from grue.tracing.facts import Severity
from grue.tracing.message_words import kind_of, severity_of, summarize
from grue.tracing.reading import NOTES, EpisodeEnvelope
from grue.tracing.turn_slices import split_turns

WIDTH = 80  # default width of a plain diagram, in columns of the terminal
_TEXT_CHARS = 80
_ACTORS = ("host", "agent", "llm")
_ASKS = (m.RunTurn, m.ToLlm, m.ToSession, m.AskApproval, m.CheckAnswer)
_SIGNS: dict[Severity, str] = {"fail": "✗ ", "warn": "! "}


class Drawn(Struct, frozen=True):
    """An envelope as both kinds of diagram draw it."""

    sender: str
    receiver: str | None  # `None`: the message is drawn as a note over `sender`
    asks: bool  # whether the message is a request, which has a solid line
    failed: bool
    text: str


def drawn(envelope: EpisodeEnvelope, *, limit: int = _TEXT_CHARS) -> Drawn | None:
    """Return how to draw an envelope; `None`: a piece of a streamed reply, which is not drawn."""
    body = envelope.body
    if isinstance(body, m.TextDelta):
        return None
    sender = "agent" if isinstance(body, m.DeadlinePassed | m.TurnInterrupted) else envelope.sender
    noted = envelope.receiver in (NOTES, sender)
    severity, summary = severity_of(body), summarize(body)
    text = f"{_SIGNS.get(severity, '')}{kind_of(body)}{': ' if summary else ''}{summary}"
    return Drawn(
        sender=printable(sender, limit) or "?",
        receiver=None if noted else printable(envelope.receiver, limit) or "?",
        asks=isinstance(body, _ASKS),
        failed=severity == "fail",
        text=printable(text, limit),
    )


# --- Mermaid ---


def mermaid(envelopes: Iterable[EpisodeEnvelope]) -> Iterator[str]:
    """Yield the lines of a Mermaid `sequenceDiagram`; none if there are no envelopes."""
    ids: dict[str, str] = {}

    def declared(*names: str | None) -> Iterator[str]:
        for name in names:
            if name is not None and name not in ids:
                ids[name] = f"p{len(ids)}"
                # The colon is replaced, because Mermaid would remove `wrap:` from the beginning of a name.
                yield f"    participant {ids[name]} as {escaped(name).replace(':', '#58;')}"

    for turn_slice in split_turns(envelopes):
        if not ids:
            yield "sequenceDiagram"
            yield from declared(*_ACTORS)
        if turn_slice.turn:
            yield f"    Note over {ids['host']},{ids['llm']}: Turn {turn_slice.turn}"
        for arrow in filter(None, map(drawn, turn_slice.envelopes)):
            yield from declared(arrow.sender, arrow.receiver)
            way = f"Note over {ids[arrow.sender]}"
            if arrow.receiver is not None:
                line, head = "-" if arrow.asks else "--", "x" if arrow.failed else ">>"
                way = f"{ids[arrow.sender]}{line}{head}{ids[arrow.receiver]}"
            yield f"    {way}: {escaped(arrow.text)}"


_HARMLESS = frozenset(" ,./()=+-'!?*|~_→…✗")
_MARKERS = frozenset("ﬂ°¶ß")  # characters that Mermaid uses internally as marks for entities while it parses


def escaped(text: str) -> str:
    """Return printable text in which entities replace all characters that Mermaid could interpret."""
    # In a text with `style` or `classDef`, Mermaid removes the last semicolon after a colon, and this
    # semicolon may end an entity. So in such a text colons are replaced too.
    harmless = _HARMLESS if "style" in text or "classDef" in text else _HARMLESS | {":"}
    return "".join(
        char if (char in harmless or char.isalnum()) and char not in _MARKERS else f"#{ord(char)};"
        for char in text
    )


# --- Plain text ---


def plain(envelopes: Iterable[EpisodeEnvelope], *, width: int = WIDTH) -> Iterator[str]:
    """Yield the lines of a diagram drawn with characters, at most `max(width, 40)` columns wide."""
    first = True
    for turn_slice in split_turns(envelopes):
        arrows = [arrow for envelope in turn_slice.envelopes if (arrow := drawn(envelope, limit=width))]
        if not arrows:
            continue
        if not first:
            yield ""
        first = False
        yield f"── Turn {turn_slice.turn} ──" if turn_slice.turn else "── Outside turns ──"
        yield from _Lanes(arrows, max(width, 40)).lines()


_LEAST_LANE = 8


class _Lanes:
    def __init__(self, arrows: list[Drawn], width: int) -> None:
        self._arrows = arrows
        self._width = width
        names = [name for arrow in arrows for name in (arrow.sender, arrow.receiver) if name]
        present = dict.fromkeys(name for name in (*_ACTORS, *names) if name in names)
        most = width // _LEAST_LANE
        self._names = list(present)
        self._shown = min(len(present), most)
        # If there is no room for all actors, the last ones share the last lifeline.
        self._lane = {name: min(number, most - 1) for number, name in enumerate(present)}
        self._step = min((width - _LEAST_LANE) // max(1, self._shown - 1), 24)

    def lines(self) -> Iterator[str]:
        yield self._heading()
        for arrow in self._arrows:
            receiver = None if arrow.receiver is None else self._lane[arrow.receiver]
            sender = self._lane[arrow.sender]
            if receiver is None or receiver == sender:
                yield self._labelled(f"• {arrow.text}", sender)
            else:
                yield self._labelled(arrow.text, min(sender, receiver))
                yield self._arrow(arrow, sender, receiver)
        yield self._row({})

    def _column(self, lane: int) -> int:
        return 2 + lane * self._step

    def _heading(self) -> str:
        heading = ""
        for lane in range(self._shown):
            others = len(self._names) - self._shown
            name = self._names[lane] if lane < self._shown - 1 or not others else f"+ {others + 1}"
            room = self._step - 1 if lane < self._shown - 1 else self._width - self._column(lane)
            heading = pad(heading, self._column(lane)) + cut(name, max(1, room))
        return heading.rstrip()

    def _row(self, placed: dict[int, str]) -> str:
        chars = [" "] * (self._column(self._shown - 1) + 1)
        for lane in range(self._shown):
            chars[self._column(lane)] = "│"
        for column, char in placed.items():
            chars[column] = char
        return "".join(chars).rstrip()

    def _labelled(self, text: str, lane: int) -> str:
        row = self._row({})
        right = self._width - self._column(lane) - 2
        left = self._column(lane) - self._column(0) - 4
        if cells(text) <= right or right >= left:
            shown = cut(text, right)
            start = self._column(lane) + 2
        else:
            shown = cut(text, left)
            start = self._column(lane) - 1 - cells(shown)
        rest = start + cells(shown)
        return f"{row[:start]}{shown}{row[rest:]}".rstrip() if rest < len(row) else f"{row[:start]}{shown}"

    def _arrow(self, arrow: Drawn, sender: int, receiver: int) -> str:
        start, end = self._column(sender), self._column(receiver)
        line = "─" if arrow.asks else "╌"
        between = range(min(start, end) + 1, max(start, end))
        placed = dict.fromkeys(between, line)
        right = end > start
        placed[start] = "├" if right else "┤"
        head = "✗" if arrow.failed else "▶" if right else "◀"
        placed[end - 1 if right else end + 1] = head
        return self._row(placed)
