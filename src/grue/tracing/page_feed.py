"""The data of a trace's page: its messages, its turns, its spans and its story, found in one pass.

A span says how long a step (`steps.py`) took, in which actor, and whether it ended with a problem. The story
groups messages that belong together into passages.
"""

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.runtime.safe_text import printable
from grue.runtime.trace.format import TraceHeader
from grue.tracing.facts import Fact, Severity, said_by
from grue.tracing.message_words import kind_of, mark_of, severity_of, summarize
from grue.tracing.overview import Overview
from grue.tracing.page_file import ImageTable
from grue.tracing.prompt_cache import CachedPrompts, told
from grue.tracing.reading import NOTES, EpisodeEnvelope
from grue.tracing.steps import Step, StepBegan, StepEnded, StepTracker, usage_in
from grue.tracing.turn_slices import turn_of

_HEADLINE_CHARS = 300
_LEAST_SHOWN = 3  # fewest characters: a shorter text of a fact may be in a prompt by chance
_MOST_SHOWN = 20  # most facts since the last prompt whose longest texts are looked for in the next prompt


class Passage(Struct, frozen=True, kw_only=True, array_like=True):
    """A passage of the story; `viewer_page/trace.js` takes the fields in this order."""

    # A `reply` is a request with its reply, a `call` a tool call with its result. `text`: for a `fact`, its
    # headline; for a `prompt`, `resumed`, or `shown` if it contains the longest text of a fact since the
    # prompt before; for an `end`, `same` if the answer is the last reply's text.

    turn: int
    kind: Literal["fact", "prompt", "reply", "call", "note", "end"]
    seq: int  # number of the message that begins the passage
    place: int = -1  # index of a `call` in the reply that asked for it; -1: no such reply
    also: tuple[int, ...] = ()  # numbers of further messages, 0 for a missing one; of a `call`: see `_SENT`
    depth: int = 0  # 1: the request of a server to the model (sampling)
    text: str = ""

    @property
    def id(self) -> tuple[int, int]:
        """The passage's id, the same each time that `StoryTeller` yields a changed version of the passage."""
        return self.seq, self.place


class _Turn(Struct):
    requests: dict[int, Passage] = {}  # requests without a reply, by message number
    calls: dict[str, Passage] = {}  # by call id; also settled ones, because a resumed turn names them again
    said: tuple[str, int] = ("", 0)  # the last reply's text, and the number of its message


_SENT, _SETTLED, _ASKED, _DECIDED = range(4)  # indexes in `Passage.also` of a `call`


class StoryTeller:
    """Makes the page's story. Call `see` with each envelope in order."""

    def __init__(self) -> None:
        self._turns: dict[int, _Turn] = {}
        self._shown: list[str] = []

    def see(self, envelope: EpisodeEnvelope, turn: int) -> Iterator[Passage]:
        """Yield the passages that begin or change with this envelope. The page shows them under `turn`."""
        body, seq = envelope.body, envelope.seq
        match body:
            case Fact():
                values = (getattr(body, name) for name in body.__struct_fields__)
                texts = (value.strip() for value in values if isinstance(value, str))
                longest = max(texts, key=len, default="")
                if len(longest) >= _LEAST_SHOWN and len(self._shown) < _MOST_SHOWN:
                    self._shown.append(longest)
                headline = printable(said_by(body, Fact.headline), _HEADLINE_CHARS)
                yield Passage(turn=turn, kind="fact", seq=seq, text=headline)
            case m.RunTurn():
                shown = any(text in body.user for text in self._shown)
                self._shown.clear()
                if body.resumed is None:
                    self._turns[turn] = _Turn()
                text = "resumed" if body.resumed is not None else "shown" if shown else ""
                yield Passage(turn=turn, kind="prompt", seq=seq, text=text)
            case m.RequestCompletion() | m.CompletionReceived() | m.CompletionFailed():
                yield from self._completion(envelope, body, turn)
            case m.ToolCalled(call_id=call_id):
                yield self._call(turn, call_id, _SENT, seq)
            case (
                m.ToolReturned(call_id=call_id)
                | m.ToolTimedOut(call_id=call_id)
                | m.ToolSkipped(call_id=call_id)
                | m.ServerDied(call_id=call_id)
                | m.ToolRejected(call_id=call_id)
                | m.ToolDenied(call_id=call_id)
            ):
                yield self._call(turn, call_id, _SETTLED, seq)
            case m.AskApproval(questions=questions):
                yield from (self._call(turn, each.call_id, _ASKED, seq) for each in questions)
            case m.CallsDecided(decisions=decisions):
                yield from (self._call(turn, each.call_id, _DECIDED, seq) for each in decisions)
            case m.TurnCompleted() | m.TurnFailed() | m.TurnParked():
                yield self._end(body, seq, turn)
            case _ if isinstance(body, _TURNS_OF_THE_STORY) or mark_of(body):
                yield Passage(turn=turn, kind="note", seq=seq)

    def _completion(
        self,
        envelope: EpisodeEnvelope,
        body: m.RequestCompletion | m.CompletionReceived | m.CompletionFailed,
        turn: int,
    ) -> Iterator[Passage]:
        state = self._turn(turn)
        if isinstance(body, m.RequestCompletion):
            depth = 0 if envelope.sender == "agent" else 1
            asked = Passage(turn=turn, kind="reply", seq=envelope.seq, also=(0,), depth=depth)
            state.requests[envelope.seq] = asked
            yield asked
            return
        # A reply without a known cause answers the latest request.
        asked_as = (
            envelope.cause if envelope.cause in state.requests else next(reversed(state.requests), None)
        )
        unknown = Passage(turn=turn, kind="reply", seq=envelope.seq)
        request = unknown if asked_as is None else state.requests.pop(asked_as)
        yield replace(request, also=(envelope.seq,))
        if isinstance(body, m.CompletionReceived) and not request.depth:
            state.said = (body.content or "", envelope.seq)
            for place, call in enumerate(body.tool_calls):
                passage = Passage(turn=turn, kind="call", seq=envelope.seq, place=place, also=(0, 0, 0, 0))
                state.calls[call.call_id] = passage
                yield passage

    def _call(self, turn: int, call_id: str, part: int, seq: int) -> Passage:
        calls = self._turn(turn).calls
        passage = calls.get(call_id)
        if passage is None:
            passage = Passage(turn=turn, kind="call", seq=seq, also=(0, 0, 0, 0))
        also = list(passage.also)
        also[part] = seq
        calls[call_id] = passage = replace(passage, also=tuple(also))
        return passage

    def _end(self, body: m.TurnCompleted | m.TurnFailed | m.TurnParked, seq: int, turn: int) -> Passage:
        state = self._turn(turn)
        raw = body.raw_response if isinstance(body, m.TurnCompleted) else None
        text, said = state.said
        same = bool(raw) and raw == text
        if not isinstance(body, m.TurnParked):
            self._turns.pop(turn, None)
        return Passage(
            turn=turn, kind="end", seq=seq, also=(said if same else 0,), text="same" if same else ""
        )

    def _turn(self, turn: int) -> _Turn:
        return self._turns.setdefault(turn, _Turn())


_TURNS_OF_THE_STORY = (m.TurnForked, m.TurnResumed, m.RewriteHistory, m.ToolsChanged, m.ApprovalPostponed)
"""Messages that the page's story shows even if they report no problem."""


SpanKind: TypeAlias = Literal["turn", "session", "startup", "model", "wait", "tool", "teardown", "host"]
"""`wait`: the pause before a request is sent again; `host`: a host's own work, between two facts."""


class Span(Struct, frozen=True, kw_only=True, array_like=True):
    """A period in which an actor worked on one step, or paused before it tried the step again."""

    turn: int
    lane: str  # the actor
    phase: SpanKind
    label: str  # may be untrusted
    start_s: float  # since the trace began; likewise `end_s`
    end_s: float
    first: int  # number of the message that began it
    last: int  # number of the message that ended it or, if none did, of the last one before its end
    grade: Literal["fail", "warn", ""] = ""  # severity of the message that ended it; `warn` also for a pause


class SpanFinder:
    """Finds spans. Call `see` with each envelope in order, then `finish` for the spans that have no end."""

    def __init__(self) -> None:
        self._steps = StepTracker()
        self._turns: dict[tuple[Hashable, int], int] = {}
        self._at_s = 0.0
        self._seq = 0

    def see(self, envelope: EpisodeEnvelope, turn: int) -> Iterator[Span]:
        """Yield the spans whose end is known now. The page shows the envelope under `turn`."""
        changes = self._steps.take(envelope)
        for change in changes:
            if isinstance(change, StepBegan):
                self._turns[change.step.key, change.step.first] = turn
        ended = [change for change in changes if isinstance(change, StepEnded)]
        yield from (self._span(end, None) for end in ended if not end.reported)
        self._at_s, self._seq = envelope.t, envelope.seq
        for end in ended:
            if end.reported:
                span = self._span(end, envelope)
                yield span
                if end.retried and isinstance(envelope.body, m.CompletionRetried):
                    waited = replace(span, phase="wait", label="wait", start_s=self._at_s, grade="warn")
                    until_s = self._at_s + envelope.body.delay_s
                    yield replace(waited, end_s=until_s, first=self._seq, last=self._seq)

    def finish(self) -> Iterator[Span]:
        """Yield the spans whose end is not recorded, as if they ended with the trace's last message."""
        yield from (self._span(end, None) for end in self._steps.finish() if isinstance(end, StepEnded))

    def _span(self, end: StepEnded, by: EpisodeEnvelope | None) -> Span:
        step, began = end.step, end.step.began
        server = getattr(began.body, "server", "")
        return Span(
            turn=self._turns.pop((step.key, step.first)),
            lane=began.sender if step.kind == "host" else server or began.receiver,
            phase="model" if step.kind == "check" else step.kind,
            label=_label(step),
            start_s=step.start_s,
            end_s=max(self._at_s, step.start_s),
            first=step.first,
            last=self._seq,
            grade="" if by is None else _GRADES.get(severity_of(by.body), ""),
        )


_GRADES: dict[Severity, Literal["fail", "warn"]] = {"fail": "fail", "warn": "warn"}


def _label(step: Step) -> str:
    match step.began.body:
        case m.RunTurn():
            return f"turn {step.turn}"
        case m.OpenSession() if step.kind == "startup":
            return "start" if step.attempt == 1 else "start again"
        case m.ToolCalled(tool=tool):
            return tool
        case m.RequestCompletion(request=request):
            return f"request {request}" + (f", try {step.attempt}" if step.attempt > 1 else "")
        case m.CheckToolSupport():
            return "can it call tools?"
        case m.CloseSession():
            return "close"
        case Fact() as fact:
            return said_by(fact, Fact.headline) or "host"
        case _:
            return step.kind


_REASON_CHARS = 300
_SAID_CHARS = 160
_NOT_PARTS = frozenset({"turn", "session", "host"})  # spans that contain others, or show the host's own work


class MarkCount(Struct, kw_only=True):
    """How often the problem `word`, such as `died`, has occurred in a turn."""

    word: str
    grade: Severity
    count: int = 0


class PageTurn(Struct, kw_only=True):
    """A turn in the page; `viewer_page/trace.js` reads the fields by name."""

    # The texts are printable, but untrusted.

    turn: int  # 0 for messages before the first turn
    start_s: float  # since the trace began; likewise `end_s`
    end_s: float = 0.0
    outcome: str = ""  # `TurnCompleted.kind`, `failed`, `parked` or `unfinished`; empty: no `RunTurn`
    reason: str = ""  # why the outcome is not `answered`
    action: str = ""  # the latest headline of a fact, such as what the host did with the answer
    question: str = ""  # the beginning of the host's text
    answer: str = ""  # the beginning of the model's answer
    forked: bool = False
    requests: int = 0
    tool_calls: int = 0
    usage: m.Usage = m.Usage()  # sum of what `usage_in` returns
    took_s: float = 0.0
    phases: dict[str, float] = {}  # seconds by kind of span, without `_NOT_PARTS`
    marks: tuple[MarkCount, ...] = ()  # the problems that its messages report, failures first


class TurnWriter:
    """Summarises one turn in `page`."""

    def __init__(self, turn: int, start_s: float) -> None:
        self.page = PageTurn(turn=turn, start_s=start_s)
        self._has_span = False
        self._marks: dict[str, MarkCount] = {}
        self._died: set[str] = set()
        self._sampled: list[m.Usage] = []

    def add(self, envelope: EpisodeEnvelope) -> None:
        """Add a message."""
        page = self.page
        page.end_s = max(page.end_s, envelope.t)
        if not self._has_span:
            page.took_s = max(page.took_s, envelope.t - page.start_s)
        page.usage += usage_in(envelope, self._sampled)
        match envelope.body:
            case m.RunTurn(user=user):
                # A resumed episode may run this turn again: forget how it ended the first time.
                page.outcome, page.reason, page.answer = "unfinished", "", ""
                page.question = printable(user, _SAID_CHARS)
            case m.TurnCompleted(kind=kind, reason=reason, raw_response=said):
                page.outcome, page.reason = kind, printable(reason, _REASON_CHARS)
                page.answer = printable(said or "", _SAID_CHARS)
            case m.TurnForked():
                page.forked = True
            case m.TurnFailed() | m.TurnParked():
                page.outcome = "failed" if isinstance(envelope.body, m.TurnFailed) else "parked"
                page.reason = printable(summarize(envelope.body), _REASON_CHARS)
            case m.RequestCompletion() if not envelope.copied:
                page.requests += 1
            case m.CompletionReceived(tool_calls=calls) if not envelope.copied:
                page.tool_calls += len(calls)
            case Fact() as fact if headline := said_by(fact, Fact.headline):
                page.action = printable(headline, _REASON_CHARS)

    def add_mark(self, row: "Row") -> None:
        """Count the problem `row.mark`, unless the message only repeats one that was counted already."""
        if row.kind == "TurnCompleted" and row.mark in self._marks:
            return
        if row.kind in ("SessionClosed", "ServerEnded") and row.mark == "died" and row.sender in self._died:
            return
        if row.kind == "ServerDied":
            self._died.add(row.sender)
        self._marks.setdefault(row.mark, MarkCount(word=row.mark, grade=row.grade)).count += 1
        self.page.marks = tuple(sorted(self._marks.values(), key=lambda mark: mark.grade == "warn"))

    def add_span(self, span: Span) -> None:
        """Add the time of a span. A turn took as long as its spans of the kind `turn` together."""
        page, took_s = self.page, span.end_s - span.start_s
        page.end_s = max(page.end_s, span.end_s)
        if span.phase == "turn":
            page.took_s = took_s + (page.took_s if self._has_span else 0.0)
            self._has_span = True
        if span.phase not in _NOT_PARTS:
            page.phases[span.phase] = page.phases.get(span.phase, 0.0) + took_s


MAX_MESSAGE_CHARS = 200_000  # most characters of a message as JSON; what follows is cut off
_SUMMARY_CHARS = 300
_MOST_ROWS = 1000  # the most messages that one piece of a page holds
_MOST_PIECE_CHARS = 1_000_000  # a piece with more than this is due
_FIRST_ACTORS = ("host", "agent", "llm")


class Row(Struct, frozen=True, kw_only=True, array_like=True):
    """A message in the page; `viewer_page/trace.js` takes the fields in this order."""

    seq: int
    t: float
    at: float
    turn: int
    sender: str
    receiver: str
    cause: int | None
    kind: str
    summary: str
    mark: str
    grade: Severity
    batch: int | None
    redacted: bool
    chars: int
    body: str
    repeats: str = ""  # the share of a reply's prompt that repeats an earlier one: `85% repeated`
    broken: str = ""  # where and why a reply's prompt differs from that earlier prompt
    left_out: int = 0  # of a `RewriteHistory` that shortens: how many entries became one


class EpisodePage(Struct, frozen=True, kw_only=True):
    """The page's data without the messages: for the head, the list of turns and the overview."""

    title: str
    header: TraceHeader
    file: str
    cut_short: bool = False
    live: bool = False  # whether the page follows the trace, and requests new pieces
    images: int = 0  # how many different images the messages show
    actors: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    turns: tuple[PageTurn, ...] = ()
    overview: Overview = msgspec.field(default_factory=Overview)


class Piece(Struct, frozen=True, kw_only=True):
    """A part of the page's data: consecutive messages, and the spans and passages made from them."""

    messages: tuple[Row, ...]
    spans: tuple[Span, ...]
    story: tuple[Passage, ...]


class PageFeed:
    """Makes the data of a page, piece by piece: call `see` with each envelope in order, then `finish`."""

    # Call `take` when the piece is `due`, and after `finish`. `images` collects the images.

    def __init__(self, images: ImageTable) -> None:
        self.overview = Overview()
        self._images = images
        self._spans = SpanFinder()
        self._story = StoryTeller()
        self._prompts = CachedPrompts()
        self._actors = dict.fromkeys(_FIRST_ACTORS, False)
        self.kinds: set[str] = set()
        self._turns: dict[int, TurnWriter] = {}  # by turn number, in the order in which the turns began
        self._latest = 0
        self._changed: set[int] = set()
        self._rows: list[Row] = []
        self._chars = 0
        self._new_spans: list[Span] = []
        self._passages: dict[tuple[int, int], Passage] = {}

    def see(self, envelope: EpisodeEnvelope) -> int:
        """Add a message, and return its turn: the one that it names or, if it names none, the highest yet."""
        turn = turn_of(envelope) or self._latest
        self._latest = max(self._latest, turn)
        writer = self._turns.get(turn)
        if writer is None:
            writer = self._turns[turn] = TurnWriter(turn, envelope.t)
        writer.add(envelope)
        self._changed.add(turn)
        self._add_spans(self._spans.see(envelope, turn))
        self._passages |= {passage.id: passage for passage in self._story.see(envelope, turn)}
        self.overview.see(envelope)
        self._actors |= dict.fromkeys((envelope.sender, envelope.receiver), True)
        row = self._row(envelope, turn)
        self._rows.append(row)
        self._chars += len(row.body)
        self.kinds.add(row.kind)
        if row.mark:
            writer.add_mark(row)
        return turn

    def finish(self) -> None:
        """Add the spans whose end is not recorded."""
        self._add_spans(self._spans.finish())

    @property
    def due(self) -> bool:
        """`True` if the current piece is so long that `take` should be called."""
        return len(self._rows) >= _MOST_ROWS or self._chars > _MOST_PIECE_CHARS

    def take(self) -> Piece:
        """Return the current piece, and begin a new piece."""
        piece = Piece(
            messages=tuple(self._rows), spans=tuple(self._new_spans), story=tuple(self._passages.values())
        )
        self._rows, self._chars, self._new_spans, self._passages = [], 0, [], {}
        return piece

    @property
    def actors(self) -> tuple[str, ...]:
        """The actors that have sent or received a message, in the order of their lanes."""
        return tuple(actor for actor, seen in self._actors.items() if seen and actor != NOTES)

    def turns(self) -> Iterator[PageTurn]:
        """Yield the turns that have changed since the last call, in the order in which they began."""
        changed, self._changed = self._changed, set()
        yield from (writer.page for turn, writer in self._turns.items() if turn in changed)

    def _add_spans(self, spans: Iterable[Span]) -> None:
        for span in spans:
            self._new_spans.append(span)
            self._changed.add(span.turn)
            self._turns[span.turn].add_span(span)

    def _row(self, envelope: EpisodeEnvelope, turn: int) -> Row:
        body: Any = envelope.body
        written = self._images.take_out(msgspec.json.encode(body)).decode()
        mark = mark_of(body)
        prompt = self._prompts.see(envelope)
        return Row(
            seq=envelope.seq,
            t=round(envelope.t, 6),
            at=round(envelope.at, 3),
            turn=turn,
            sender=envelope.sender,
            receiver="" if envelope.receiver == NOTES else envelope.receiver,
            cause=envelope.cause,
            kind=kind_of(body),
            summary=printable(("(copied) " if envelope.copied else "") + summarize(body), _SUMMARY_CHARS),
            mark=mark,
            grade=severity_of(body) if mark else "",
            batch=getattr(body, "batch", None),
            redacted=envelope.redacted,
            chars=len(written),
            body=written[:MAX_MESSAGE_CHARS],
            repeats="" if prompt is None or prompt.compared_with is None else f"{prompt.share:.0%} repeated",
            broken="" if prompt is None else told(prompt),
            left_out=self._prompts.left_out if isinstance(body, m.RewriteHistory) else 0,
        )
