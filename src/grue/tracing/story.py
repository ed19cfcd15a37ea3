"""The story of an episode: which messages belong together, in the order in which a person reads them.

The viewer's transcript shows one passage after the other: a fact of the host, what the agent was asked, a
reply of the model with its request, a tool call with its result, a problem, the end of a turn. A passage
names its messages by their numbers; the page takes the contents from the messages themselves. Messages
without content for a reader, such as the handshake of a session, are in no passage.
"""

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.runtime.safe_text import printable
from grue.tracing.facts import Fact
from grue.tracing.message_words import mark_of
from grue.tracing.reading import EpisodeEnvelope

PassageKind: TypeAlias = Literal["fact", "prompt", "reply", "call", "note", "end"]

_HEADLINE_CHARS = 300
_LEAST_SHOWN = 3
"""Shortest text of a fact that is looked for in the prompt."""
_MOST_SHOWN = 20
"""Most facts of a turn whose longest text is looked for in the prompt."""


class Passage(Struct, frozen=True, kw_only=True, array_like=True):
    """A passage of the story; `viewer_page/trace.js` takes the fields in this order.

    Attributes:
        turn: Number of its turn.
        kind: `prompt`: what the agent was asked. `note`: a problem, or a change of course.
        seq: Number of the message that begins it.
        place: Of a call: its position in the reply that asked for it; -1 if no reply asked for it.
        also: Further messages by number; 0: there is none. Of a reply: what the model answered. Of a call:
            sent, settled, asked about, decided. Of the end: the reply that holds the answer.
        depth: 1 for what a server asked of the model, otherwise 0.
        text: Of a fact: its headline. Of a prompt: `shown`, if a fact before it has its text; `resumed`, if
            the turn goes on. Of the end: `same`, if the answer is the text of the last reply. Printable.
    """

    turn: int
    kind: PassageKind
    seq: int
    place: int = -1
    also: tuple[int, ...] = ()
    depth: int = 0
    text: str = ""

    @property
    def id(self) -> tuple[int, int]:
        """Identifies the passage; a later version of it has the same."""
        return self.seq, self.place


class _Turn(Struct):
    """The turn that is being read, as far as its messages have come.

    Attributes:
        requests: Passages of requests without a reply, by the number of the request's message.
        calls: Passages of calls by id. Calls that are settled stay, because a parked turn names them again.
        said: The text of the last reply, and its message's number.
    """

    requests: dict[int, Passage] = {}
    calls: dict[str, Passage] = {}
    said: tuple[str, int] = ("", 0)


_SENT, _SETTLED, _ASKED, _DECIDED = range(4)


class StoryTeller:
    """Finds the passages: `see` each envelope in order."""

    def __init__(self) -> None:
        self._turns: dict[int, _Turn] = {}
        self._shown: list[str] = []

    def see(self, envelope: EpisodeEnvelope, turn: int) -> Iterator[Passage]:
        """Yield the passages that begin or change with this envelope; `turn` is where readers show it."""
        body, seq = envelope.body, envelope.seq
        match body:
            case Fact():
                self._remember_texts(body)
                headline = printable(body.headline(), _HEADLINE_CHARS)
                yield Passage(turn=turn, kind="fact", seq=seq, text=headline)
            case m.RunTurn():
                yield self._prompt(body, seq, turn)
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
            case _ if _tells(body):
                yield Passage(turn=turn, kind="note", seq=seq)

    def _prompt(self, run: m.RunTurn, seq: int, turn: int) -> Passage:
        shown = any(text in run.user for text in self._shown)
        self._shown.clear()
        if run.resumed is None:
            self._turns[turn] = _Turn()
        text = "resumed" if run.resumed is not None else "shown" if shown else ""
        return Passage(turn=turn, kind="prompt", seq=seq, text=text)

    def _remember_texts(self, fact: Fact) -> None:
        values = (getattr(fact, name) for name in fact.__struct_fields__)
        longest = max((value.strip() for value in values if isinstance(value, str)), key=len, default="")
        if len(longest) >= _LEAST_SHOWN and len(self._shown) < _MOST_SHOWN:
            self._shown.append(longest)

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
        request = state.requests.pop(_request_of(envelope, state), None)
        if request is None:
            request = Passage(turn=turn, kind="reply", seq=envelope.seq)
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


def _request_of(envelope: EpisodeEnvelope, state: _Turn) -> int:
    """Return the message of the request that a reply answers; 0: unknown."""
    if envelope.cause in state.requests:
        return envelope.cause or 0
    return next(reversed(state.requests), 0)


_TURNS_OF_THE_STORY = (m.TurnForked, m.TurnResumed, m.RewriteHistory, m.ToolsChanged, m.ApprovalPostponed)
"""Messages that report no problem and are part of the story nevertheless."""


def _tells(body: msgspec.Struct) -> bool:
    return isinstance(body, _TURNS_OF_THE_STORY) or bool(mark_of(body))
