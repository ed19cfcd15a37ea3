"""Build a conversation from a trace: from the messages that its turns have recorded.

The reader takes the same steps as the process that recorded them (`protocol/context/history.py`), and
compares its digest with the one that each turn was started with. So a conversation that the trace does not
hold completely is refused, and never resumed in part.
"""

from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from grue import messages as m
from grue.engine.conversations.conversation_file import TurnMark
from grue.engine.conversations.earlier_results import EarlierResults
from grue.engine.conversations.kept_conversation import KeptConversation, is_parked_still
from grue.engine.conversations.recorded_turn import asks_again, listing_in
from grue.errors import ConversationError
from grue.protocol.context.history import History, Ledger, SaidStep, take_step
from grue.tracing.reading import TRACE_FILE, EpisodeEnvelope, open_episode

_Place: TypeAlias = tuple[int, str]
"""How many entries a conversation has, and the digest of them."""


class Talk(Struct):
    """A conversation as far as the trace has been read.

    Attributes:
        tools: The tools that were offered last.
        flaw: Why it cannot be resumed; empty if it can.
        turns: Its turns so far.
        turn: The turn that continues it, if it has not ended.
        parked: How that turn was parked; `None`: it was not.
    """

    system: str
    history: History
    tools: tuple[m.ToolDefinition, ...] = ()
    flaw: str = ""
    turns: tuple[int, ...] = ()
    turn: m.RunTurn | None = None
    parked: m.TurnParked | None = None

    def close(self) -> None:
        """Answer the calls of a turn that nobody goes on with."""
        self.history.close(self.parked)
        self.turn = self.parked = None

    @property
    def place(self) -> _Place:
        """How many entries it has, and the digest of them."""
        ledger = self.history.ledger
        assert ledger is not None, "it was made with one"
        return ledger.length, ledger.digest


class ResumedConversation(NamedTuple):
    """A conversation that a trace holds, and what each server has listed last in that trace."""

    kept: KeptConversation
    listings: dict[m.ServerName, tuple[m.ToolDefinition, ...]]


def resume_conversation(path: str | PathLike[str], name: str | None = None) -> ResumedConversation:
    """Return a conversation that a trace holds, with the listings that its next turn may presume.

    Args:
        path: The trace, or its run folder.
        name: The conversation's id; `None`: the one that was continued last. A turn without a conversation
            has the id `turn-N`.

    Raises:
        TraceError: The trace cannot be read.
        ConversationError: It does not hold all of the conversation, or a secret in it was redacted.
    """
    reader = talk_reader(path)
    for envelope in open_episode(path):
        reader.see(envelope)
    wanted = reader.last if name is None else m.ConversationId(name)
    talk = reader.talks.get(wanted)
    if talk is None:
        known = ", ".join(reader.talks) or "none"
        missing = f"no conversation {wanted}" if wanted else "no conversation"
        raise ConversationError(f"{path} holds {missing}. It holds: {known}.", path=str(path))
    if talk.flaw:
        raise ConversationError(
            f"The conversation {wanted} cannot be resumed from {path}: {talk.flaw}. Load its saved file.",
            path=str(path),
        )
    mark = _mark_of(talk, Path(path))
    if mark is None:
        talk.close()
    file = (Path(path) / TRACE_FILE if Path(path).is_dir() else Path(path)).absolute()
    kept = KeptConversation(
        talk.system,
        name=wanted,
        history=talk.history,
        tools=talk.tools,
        open_turn=mark,
        results=EarlierResults((turn, file) for turn in talk.turns),
    )
    return ResumedConversation(kept, reader.listings)


def said_before(
    path: str | PathLike[str], envelopes: Iterable[EpisodeEnvelope], name: m.ConversationId
) -> tuple[History, tuple[m.ToolDefinition, ...]]:
    """Return what was said in a conversation up to the last of some messages, and the tools offered last.

    Args:
        path: The trace that they are from.
        envelopes: The messages of the conversation's turns, in order; the last turn may be cut short.
        name: The conversation's id.

    Raises:
        ConversationError: The trace does not hold all of it, or a secret in it was redacted.
    """
    envelopes = tuple(envelopes)
    reader = TalkReader(_branch_points(envelopes))
    for envelope in envelopes:
        reader.see(envelope)
    talk = reader.talks[name]
    if talk.flaw:
        raise ConversationError(f"The turn cannot be forked from {path}: {talk.flaw}.", path=str(path))
    return talk.history, talk.tools


def _mark_of(talk: Talk, path: Path) -> TurnMark | None:
    """Return the mark of the turn that a process can go on with."""
    run, parked = talk.turn, talk.parked
    if run is None or run.history is None or not run.tool_policy.parking:
        return None
    return TurnMark(
        turn=run.turn,
        trace=str(path.absolute()),
        began=run.history.digest,
        state="running" if parked is None else "parked",
        questions=() if parked is None else parked.questions,
        untold=() if parked is None else parked.untold,
    )


def _branch_points(envelopes: Iterable[EpisodeEnvelope]) -> set[_Place]:
    """Return where conversations begin that the trace does not hold from their first entry."""
    begun: set[m.ConversationId] = set()
    points: set[_Place] = set()
    for envelope in envelopes:
        if isinstance(envelope.body, m.RunTurn) and (past := envelope.body.history) is not None:
            if past.length and past.conversation not in begun:
                points.add((past.length, past.digest))
            begun.add(past.conversation)
    return points


def talk_reader(path: str | PathLike[str]) -> "TalkReader":
    """Return a reader for the messages of a trace, which it has to see in order.

    Raises:
        TraceError: The trace cannot be read.
    """
    return TalkReader(_branch_points(open_episode(path)))


class TalkReader:
    """Builds every conversation of a trace, message by message.

    Args:
        branch_points: Places at which another conversation may go on; copies are kept of these only.

    Attributes:
        talks: The conversations by id.
        listings: What each server has listed last.
        last: The id of the conversation whose turn began last.
    """

    def __init__(self, branch_points: set[_Place]) -> None:
        self.talks: dict[m.ConversationId, Talk] = {}
        self.listings: dict[m.ServerName, tuple[m.ToolDefinition, ...]] = {}
        self.last = m.ConversationId("")
        self._branch_points = branch_points
        self._branches: dict[_Place, tuple[History, tuple[int, ...]]] = {}
        self._turns: dict[int, m.ConversationId] = {}
        self._requests: dict[int, m.ConversationId] = {}

    def see(self, envelope: EpisodeEnvelope) -> None:
        """Take the next message. Messages that no conversation keeps are skipped."""
        body, cause = envelope.body, envelope.cause or 0
        match body:
            case m.RunTurn():
                self._begin(envelope, body)
            case m.RequestCompletion(conversation=name, aside=False) if name in self.talks:
                self._requests[envelope.seq] = name
                self._step(name, envelope)
            case m.HistoryRewritten(conversation=name) | m.RewriteHistory(conversation=name) if (
                name in self.talks
            ):
                self._step(name, envelope)
            case m.DropCompletion(conversation=name) if name in self.talks:
                self._requests[envelope.seq] = name
            case m.CompletionReceived() | m.ReplyDropped() if cause in self._requests:
                self._step(self._requests.pop(cause), envelope)
            case m.TurnCompleted() | m.TurnFailed() | m.TurnParked() if cause in self._turns:
                self._end(self._turns.pop(cause), envelope)
            case m.SessionOpened():
                self.listings |= listing_in(envelope)

    def _begin(self, envelope: EpisodeEnvelope, run: m.RunTurn) -> None:
        past = run.history
        name = m.ConversationId(f"turn-{run.turn}") if past is None else past.conversation
        if run.resumed is not None and name in self.talks:
            _resume(self.talks[name], run.resumed)
        elif past is None:
            self.talks[name] = Talk(run.system, History(Ledger()))
        else:
            self._go_on(run, past)
        take_step(self.talks[name].history, run)
        talk = self.talks[name]
        talk.turn, talk.parked, talk.turns = run, None, (*talk.turns, run.turn)
        self.last = name
        self._turns[envelope.seq] = name
        self._mark(self.talks[name], envelope)

    def _go_on(self, run: m.RunTurn, past: m.HistoryReference) -> None:
        """Find what the turn continues: its conversation so far, or another one that it branched from."""
        place = (past.length, past.digest)
        talk = self.talks.get(past.conversation)
        if talk is not None:
            talk.close()
            if talk.place == place:
                return
        if not past.length:
            talk = Talk(run.system, History(Ledger()))
        elif place in self._branches:
            history, turns = self._branches[place]
            talk = Talk(run.system, history.branch(), turns=turns)
        else:
            flaw = f"the trace does not hold what was said before turn {run.turn}"
            talk = Talk(run.system, History(Ledger()), flaw=flaw)
        self.talks[past.conversation] = talk

    def _end(self, name: m.ConversationId, envelope: EpisodeEnvelope) -> None:
        talk, end = self.talks[name], envelope.body
        resumed = talk.turn is not None and talk.turn.resumed
        if isinstance(end, m.TurnParked):
            talk.parked = end
            self._mark(talk, envelope)
        elif resumed and is_parked_still(end):
            talk.parked = resumed.parked
        else:
            self._step(name, envelope)
            talk.turn = None

    def _step(self, name: m.ConversationId, envelope: EpisodeEnvelope) -> None:
        talk = self.talks[name]
        self._mark(talk, envelope)
        if talk.flaw:
            return
        try:
            _take(talk, envelope)
        except ValueError as error:
            talk.flaw = f"message {envelope.seq} does not fit what was said before it ({error})"
        if talk.place in self._branch_points:
            self._branches[talk.place] = talk.history.branch(), talk.turns

    @staticmethod
    def _mark(talk: Talk, envelope: EpisodeEnvelope) -> None:
        ends = isinstance(envelope.body, m.TurnCompleted | m.TurnFailed) and not envelope.body.untold
        if envelope.redacted and not ends:
            kind = type(envelope.body).__name__
            talk.flaw = talk.flaw or f"a secret was redacted in turn {envelope.turn} ({kind})"


def _resume(talk: Talk, resumed: m.Resumption) -> None:
    """Go on with the turn that was continuing the conversation."""
    if asks_again(resumed):
        talk.history.forget()
    last = talk.history.entries[-1] if talk.history.entries else None
    if resumed.new and isinstance(last, m.Said) and last.items[-len(resumed.new) :] == resumed.new:
        talk.flaw = "an old version has resumed its turn, and said the same again"


def _take(talk: Talk, envelope: EpisodeEnvelope) -> None:
    body = envelope.body
    if isinstance(body, SaidStep):
        take_step(talk.history, body)
    if isinstance(body, m.RequestCompletion) and isinstance(body.mode, m.OfferTools):
        talk.tools = talk.tools if body.mode.tools is None else body.mode.tools
