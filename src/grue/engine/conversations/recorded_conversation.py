"""Read from a trace what a later process goes on with: a conversation, or a turn that has not ended.

The messages are applied to a conversation in the order in which they were recorded. The entries built so far
are compared with the digest in each `RunTurn`, so a conversation that the trace does not hold completely is
refused. When a turn is resumed, the trace gets another `RunTurn` with the same number.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.engine.conversations.conversation_file import TurnMark, TurnRecorded
from grue.engine.conversations.kept_conversation import (
    EarlierResults,
    KeptConversation,
    asks_again,
    is_parked_still,
)
from grue.errors import ConversationError, NothingToResume, TraceError
from grue.policies import ApprovalDecision
from grue.protocol.context.history import History, Ledger, SaidStep, take_step
from grue.protocol.tool_loop import AGENT, NOTED_EVENTS, IllegalEvent, step
from grue.protocol.turn import states as s
from grue.protocol.turn.resuming import cut_off, tasks_of
from grue.runtime.trace.format import trace_in
from grue.runtime.trace.reader import RecordedLine
from grue.tracing.reading import EpisodeBody, EpisodeEnvelope, open_episode

_Place: TypeAlias = tuple[int, str]  # how many entries a conversation has, and the digest of them


class Talk(Struct):
    """A conversation, as far as the trace has been read."""

    system: str
    history: History
    tools: tuple[m.ToolDefinition, ...] = ()  # those that were offered last
    flaw: str = ""  # why the conversation cannot be resumed; empty: it can be
    turns: tuple[tuple[int, m.ConversationId], ...] = ()  # each with the conversation's id at the time
    turn: m.RunTurn | None = None  # the turn that is running or parked; `None`: the last turn has ended
    parked: m.TurnParked | None = None

    def close(self) -> None:
        """Give up `turn`: add an answer for each of its unanswered calls."""
        self.history.close(self.parked)
        self.turn = self.parked = None

    def results(self, file: Path) -> EarlierResults:
        """Return an object that finds the turns' tool results in the trace `file`."""
        return EarlierResults(TurnRecorded(turn, str(file), name) for turn, name in self.turns)

    @property
    def place(self) -> _Place:
        """Number and digest of the entries so far."""
        ledger = self.history.ledger
        assert ledger is not None, "it was made with one"
        return ledger.length, ledger.digest


def resume_conversation(
    path: str | PathLike[str], name: str | None = None
) -> tuple[KeptConversation, dict[m.ServerName, tuple[m.ToolDefinition, ...]]]:
    """Return a conversation that a trace holds, and the tools that each server last listed on opening.

    `name`: the conversation's id (`turn-N` for a turn in no conversation); `None`: that of the last turn.
    Forks count only for what the other turns lack. Raises `ConversationError` if the trace lacks the
    conversation or a part of it, or a secret was redacted in it.
    """
    points = _branch_points(open_episode(path))
    reader, forks = TalkReader(points), TalkReader(points)
    for line, fork in with_forks(path, forks_of(path)):
        (reader if fork is None else forks).see(line.envelope())
    wanted = (reader.last or forks.last) if name is None else m.ConversationId(name)
    talks = {**forks.talks, **reader.talks}
    talk = talks.get(wanted)
    if talk is None:
        known = ", ".join(talks) or "none"
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
    kept = KeptConversation(
        talk.system,
        name=wanted,
        history=talk.history,
        tools=talk.tools,
        open_turn=mark,
        results=talk.results(trace_in(path).absolute()),
    )
    return kept, {**forks.listings, **reader.listings}


def said_before(
    path: str | PathLike[str], envelopes: Iterable[EpisodeEnvelope], name: m.ConversationId
) -> Talk:
    """Return the conversation `name` as it is after `envelopes`, the messages of its turns in order."""
    envelopes = tuple(envelopes)
    reader = TalkReader(_branch_points(envelopes))
    for envelope in envelopes:
        reader.see(envelope)
    talk = reader.talks[name]
    if talk.flaw:
        raise ConversationError(f"The turn of {path} cannot be run again: {talk.flaw}.", path=str(path))
    return talk


class ForkPlace(Struct, frozen=True):
    """A fork in a trace: the numbers of its first message, of its `TurnForked` message, and of its turn."""

    first: int
    forked: int
    turn: int


def forks_of(path: str | PathLike[str]) -> tuple[ForkPlace, ...]:
    """Return the forks of a trace, in order."""
    begun: dict[int, int] = {}
    found: list[ForkPlace] = []
    for line in open_episode(path).lines():
        turn, seq = line.line.turn, line.line.seq
        if line.tag == m.RunTurn.__name__:
            begun[turn] = seq
        elif line.tag == m.TurnForked.__name__:
            body = line.envelope().body
            assert isinstance(body, m.TurnForked), "its tag says so"
            found.append(ForkPlace(min(body.first or seq, begun.get(turn, seq)), seq, turn))
    forks: deque[ForkPlace] = deque()
    for fork in reversed(found):
        # Leave out copies: a fork of a fork repeats the `TurnForked` of the first fork.
        if not forks or fork.forked < forks[0].first:
            forks.appendleft(fork)
    return tuple(forks)


def with_forks(
    path: str | PathLike[str], forks: Iterable[ForkPlace]
) -> Iterator[tuple[RecordedLine[EpisodeBody], ForkPlace | None]]:
    """Yield each line of a trace, with the one of `forks` that recorded the line; `None`: no fork did."""
    left = deque(forks)
    now: ForkPlace | None = None
    for line in open_episode(path).lines():
        turn, seq = line.line.turn, line.line.seq
        if left and seq >= left[0].first:
            now = left.popleft()
        elif now is not None and seq > now.forked and line.tag == m.RunTurn.__name__ and turn == now.turn:
            now = None
        yield line, now if now is not None and (seq <= now.forked or turn == now.turn) else None


def _mark_of(talk: Talk, path: Path) -> TurnMark | None:
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
    """Return the places at which conversations may branch off.

    A conversation with entries before its first turn in the trace may be a branch of another conversation,
    made after these entries.
    """
    begun: set[m.ConversationId] = set()
    points: set[_Place] = set()
    for envelope in envelopes:
        if isinstance(envelope.body, m.RunTurn) and (past := envelope.body.history) is not None:
            if past.length and past.conversation not in begun:
                points.add((past.length, past.digest))
            begun.add(past.conversation)
    return points


def talk_reader(path: str | PathLike[str]) -> "TalkReader":
    """Return a new `TalkReader` for a trace."""
    return TalkReader(_branch_points(open_episode(path)))


class TalkReader(Struct, eq=False):
    """Builds every conversation of a trace, message by message."""

    _branch_points: set[_Place]
    talks: dict[m.ConversationId, Talk] = {}
    listings: dict[m.ServerName, tuple[m.ToolDefinition, ...]] = {}
    last: m.ConversationId = m.ConversationId("")
    # The history and the turns at each branch point that has been read.
    _branches: dict[_Place, tuple[History, tuple[tuple[int, m.ConversationId], ...]]] = {}
    _turns: dict[int, m.ConversationId] = {}
    _requests: dict[int, m.ConversationId] = {}

    def see(self, envelope: EpisodeEnvelope) -> None:
        """Read the next message."""
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
        past, name = run.history, run.conversation
        if run.resumed is not None and name in self.talks:
            _resume(self.talks[name], run.resumed)
        elif past is None:
            self.talks[name] = Talk(run.system, History(Ledger()))
        else:
            self._go_on(run, past)
        take_step(self.talks[name].history, run)
        talk = self.talks[name]
        talk.turn, talk.parked, talk.turns = run, None, (*talk.turns, (run.turn, name))
        self.last = name
        self._turns[envelope.seq] = name
        self._mark(self.talks[name], envelope)

    def _go_on(self, run: m.RunTurn, past: m.HistoryReference) -> None:
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
            flaw = talk.flaw if talk is not None else ""
            flaw = flaw or f"the trace does not hold what was said before turn {run.turn}"
            talk = Talk(run.system, History(Ledger()), flaw=flaw)
        self.talks[past.conversation] = talk

    def _end(self, name: m.ConversationId, envelope: EpisodeEnvelope) -> None:
        talk, end = self.talks[name], envelope.body
        resumed = talk.turn is not None and talk.turn.resumed
        if isinstance(end, m.TurnParked):
            talk.parked = end
            self._mark(talk, envelope)
        elif resumed and is_parked_still(end, resumed.parked):
            talk.parked = resumed.parked
        else:
            self._step(name, envelope)
            talk.turn = None

    def _step(self, name: m.ConversationId, envelope: EpisodeEnvelope) -> None:
        talk = self.talks[name]
        self._mark(talk, envelope)
        if talk.flaw:
            return
        body = envelope.body
        try:
            if isinstance(body, SaidStep):
                take_step(talk.history, body)
        except ValueError as error:
            talk.flaw = f"message {envelope.seq} does not fit what was said before it ({error})"
        if isinstance(body, m.RequestCompletion) and isinstance(body.mode, m.OfferTools):
            talk.tools = talk.tools if body.mode.tools is None else body.mode.tools
        if talk.place in self._branch_points:
            self._branches[talk.place] = talk.history.branch(), talk.turns

    @staticmethod
    def _mark(talk: Talk, envelope: EpisodeEnvelope) -> None:
        ends = isinstance(envelope.body, m.TurnCompleted | m.TurnFailed) and not envelope.body.untold
        if envelope.redacted and not ends:
            kind = type(envelope.body).__name__
            talk.flaw = talk.flaw or f"a secret was redacted in turn {envelope.turn} ({kind})"


def _resume(talk: Talk, resumed: m.Resumption) -> None:
    if asks_again(resumed):
        talk.history.forget()
    last = talk.history.entries[-1] if talk.history.entries else None
    if resumed.new and isinstance(last, m.Said) and last.items[-len(resumed.new) :] == resumed.new:
        talk.flaw = "an old version has resumed its turn, and said the same again"


def parked_at(end: m.TurnEnd | None, resumed: m.Resumption | None) -> m.TurnParked | None:
    """Return the message that parked a turn; `None`: the turn is not parked after `end`.

    A resumption (`resumed`) may have left the turn parked (`is_parked_still`), unless it has sent a call.
    """
    if isinstance(end, m.TurnParked):
        return end
    if resumed is None or not is_parked_still(end, resumed.parked):
        return None
    # In a turn that continues no conversation, `TurnFailed.untold` does not show that the model has
    # replied again. So compare the numbers of requests.
    asked = end.requests if isinstance(end, m.TurnFailed) else 0
    return None if resumed.parked.calls and asked > resumed.parked.requests else resumed.parked


class RecordedTurn:
    """The last part of a turn, as the trace has it, and what was said in its earlier parts.

    A new part begins each time the turn is resumed. `said` has the requests, replies and rewrites of all
    parts; a `ReplyDropped(request=0)` among them drops a recorded reply whose request is sent again.
    """

    def __init__(self, begun: EpisodeEnvelope, run: m.RunTurn, before: "RecordedTurn | None") -> None:
        self.run = run
        self.begun = begun
        self.asked: EpisodeEnvelope | None = None  # the last request of the last part
        self.last_event = begun.seq
        self.end: m.TurnEnd | None = None
        self.tools: tuple[m.ToolDefinition, ...] = before.tools if before else ()
        self.last_seq = begun.seq
        self.listings: dict[m.ServerName, tuple[m.ToolDefinition, ...]] = {}
        self._began_s = self._last_s = begun.t
        self.events: list[m.TurnEvent] = [run]  # what the agent got in the last part
        self.called: dict[m.CallId, m.ToolCalled] = {}
        self._tasks: dict[m.CallId, m.OpenTask] = {}
        self._aside: set[int] = set()
        self._cancelled = False
        self._agent_spoke = False
        self._requests = 0
        self.forked: bool = before is not None and before.forked
        self.redacted: bool = begun.redacted or (before is not None and before.redacted)
        self.said: list[SaidStep] = before.said if before else []
        if run.resumed is not None:
            self._go_on(run.resumed)
        kinds = m.RequestCompletion | m.CompletionReceived | m.ReplyDropped
        self.said_before = tuple(each for each in self.said if isinstance(each, kinds))

    def add(self, envelope: EpisodeEnvelope) -> None:
        """Read the next envelope of the turn."""
        body = envelope.body
        self.last_seq, self._last_s = envelope.seq, envelope.t
        self.redacted = self.redacted or envelope.redacted
        self._agent_spoke = self._agent_spoke or envelope.sender == AGENT
        if envelope.receiver == AGENT or isinstance(body, NOTED_EVENTS):
            self.events.append(body)  # type: ignore[arg-type]  # the agent gets events of its state machine only
            self.last_event = envelope.seq
        if isinstance(body, m.TurnForked):
            self.forked = True
        if isinstance(body, m.WaitEnded):
            self._take_back_rewrites()
        if isinstance(body, m.RequestCompletion) and envelope.receiver == "llm":
            self.asked = envelope
        if isinstance(body, m.ToolCalled):
            self.called[body.call_id] = body
            if body.task is not None:
                self._became_task(body, body.task)
        elif isinstance(body, m.TaskCreated):
            # `TaskCreated` names no call. It is about the server's last call, because a session makes one
            # call at a time.
            of_server = [each for each in self.called.values() if each.server == body.server]
            if of_server:
                self._became_task(of_server[-1], body.task)
        elif isinstance(body, m.TurnEnd):
            self.end = body
        elif isinstance(body, m.RequestCompletion) and body.aside:
            self._aside.add(envelope.seq)
        elif isinstance(body, m.CompletionReceived) and (
            envelope.cause in self._aside or envelope.receiver != AGENT
        ):
            # Skip this reply. It is a summary, which the next `RewriteHistory` (in old traces the next
            # `HistoryRewritten`) has too, or the answer to a server that asked the model (sampling).
            pass
        elif isinstance(body, m.CompletionReceived | m.ReplyDropped | m.HistoryRewritten | m.RewriteHistory):
            self.said.append(body)
        elif isinstance(body, m.RequestCompletion) and envelope.receiver == "llm":
            self._requests = body.request
            self.said.append(body)
            self.tools = getattr(body.mode, "tools", None) or self.tools

    @property
    def time_left_s(self) -> float | None:
        """Seconds left of the turn's time limit, in which parked time does not count; `None`: no limit."""
        limit_s = self.run.limits.turn_timeout_s
        return None if limit_s is None else max(0.001, limit_s - (self._last_s - self._began_s))

    @property
    def decided(self) -> tuple[ApprovalDecision, ...]:
        """The decisions of the last resumption, if the turn was parked again before it made a call."""
        resumed, end = self.run.resumed, self.end
        if resumed is None or not isinstance(end, m.TurnParked):
            return ()
        same_reply = (resumed.parked.batches, resumed.parked.calls) == (end.batches, end.calls)
        return resumed.decisions if same_reply else ()

    @property
    def is_open(self) -> bool:
        """`True` if the turn may be resumed; `resumption` checks further conditions."""
        match self.end:
            case None | m.TurnParked():
                return self.run.tool_policy.parking or self.run.waits
            case m.TurnFailed(failure=m.Interrupted()):
                return self.run.waits
            case _:
                return self.parked is not None

    @property
    def parked(self) -> m.TurnParked | None:
        """The message that parked the turn; `None`: the turn is not parked."""
        return parked_at(self.end, None if self.called else self.run.resumed)

    def resumption(self, path: str | PathLike[str]) -> m.Resumption:
        """Return how far the turn has come.

        Raises `NothingToResume` if the turn is a fork, or had ended when its process was killed. Raises
        `TraceError` if a secret was removed from the turn, or its messages contradict each other.
        """
        if self.forked:
            raise NothingToResume(
                f"Turn {self.run.turn} of {path} is a fork: its tools were answered from a record, and would"
                " be called now. Fork the recorded turn again."
            )
        if self.redacted:
            raise TraceError(
                f"Turn {self.run.turn} of {path} cannot be resumed: a secret was removed from its messages."
            )
        if isinstance(self.end, m.TurnParked):
            return m.Resumption(parked=self.end, tasks=tasks_of(self.run, self.end))
        interrupted = isinstance(self.end, m.TurnFailed) and isinstance(self.end.failure, m.Interrupted)
        if not interrupted and self.end is not None and self.run.resumed is not None:
            return replace(self.run.resumed, decisions=())
        state, commands = self._state(path)
        parked = next((each for each in commands if isinstance(each, m.TurnParked)), None)
        where = m.Resumption(parked=parked) if parked else cut_off(state, self.called, self._tasks)
        if where is None and self.run.waits and m.AnswerAccepted in (kinds := [type(e) for e in self.events]):
            # The end was not recorded. Read the last reply again, which is in the batch's folder.
            del self.events[kinds.index(m.AnswerAccepted) :]
            state, commands = self._state(path)
            where = cut_off(state, self.called, self._tasks)
        if where is None:
            made = ", ".join(sorted(self.called)) or "none"
            raise NothingToResume(
                f"Turn {self.run.turn} of {path} had ended when its process did; only its outcome is lost."
                f" Calls that were sent: {made}."
            )
        asked = next((each for each in commands if isinstance(each, m.RequestCompletion)), None)
        if (
            isinstance(state, s.AwaitingCompletion | s.Presuming)
            and asked is not None
            and asked.request > self._requests
        ):
            # The process was killed before it sent `asked`, so the resumed turn sends this request's texts.
            return replace(where, new=asked.new)
        return where

    def waiting(self, path: str | PathLike[str]) -> tuple[History, m.RequestCompletion | None] | None:
        """Return the history before the request whose reply the turn waits for, and this request.

        The request is `None` if it was recorded: it is in `asked`. The result is `None` if the turn waits for
        no reply, or a secret was redacted.
        """
        if self.end is not None or self.redacted:
            return None
        state, commands = self._state(path)
        last = next((each for each in commands if isinstance(each, m.RequestCompletion)), None)
        if self._cancelled or not isinstance(state, s.AwaitingCompletion | s.AwaitingSummary | s.Waiting):
            return None
        asked = None if self.asked is None else self.asked.body
        before = asked.request if isinstance(asked, m.RequestCompletion) else 0
        unrecorded = last if last is not None and last.request > before else None
        said = list(self.said)
        if unrecorded is None:
            if asked is None:
                return None
            at = next((at for at, each in enumerate(said) if each is asked), None)
            said = said[:at]
        return self.replay(History(), said), unrecorded

    def _take_back_rewrites(self) -> None:
        # When the turn goes on after its wait, it changes the history again.
        asked = None if self.asked is None else self.asked.body
        at = next((at for at, each in enumerate(self.said) if each is asked), None)
        if at is not None:
            del self.said[at + 1 :]

    def retold(self, history: History, where: m.Resumption) -> History:
        """Replay `self.said` into `history` and return it. Drop the last reply if its request is repeated."""
        self.replay(history, self.said)
        if asks_again(where):
            history.forget()
        return history

    def replay(self, history: History, said: Iterable[SaidStep]) -> History:
        """Add to `history` the texts of the turn's `RunTurn`, and what was `said` after it. Return `history`.

        Raises `ValueError` if the entries do not fit those in `history`.
        """
        for each in (self.run, *said):
            take_step(history, each)
        return history

    def said_alone(self) -> History:
        """Return a history of this turn's entries. Skip rewrites, which may be of entries before the turn."""
        rewrites = m.HistoryRewritten | m.RewriteHistory
        return self.replay(History(), [each for each in self.said if not isinstance(each, rewrites)])

    def _became_task(self, called: m.ToolCalled, task: m.ToolTask) -> None:
        call = m.ServerCall(call_id=called.call_id, tool=called.tool, arguments=called.arguments, task=task)
        self._tasks[called.call_id] = m.OpenTask(server=called.server, call=call)

    def _state(self, path: str | PathLike[str]) -> s.Transition:
        """Return the state after the recorded events, and the last commands; if `_cancelled`, before that."""
        state: s.TurnState = s.Idle()
        commands: s.Commands = ()
        for event in self.events:
            # A turn with `waits` can go on from here. An agent that has said nothing has not read `RunTurn`.
            if isinstance(event, m.TurnInterrupted) and (self.run.waits or not self._agent_spoke):
                self._cancelled = True
                break
            try:
                state, commands = step(state, event)
            except IllegalEvent as error:
                # A session that is cancelled reports its close. The agent, which is cancelled at the same
                # time, reads this report late, or not at all.
                if isinstance(event, m.SessionClosed):
                    self._cancelled = True
                    break
                raise TraceError(f"Turn {self.run.turn} of {path} cannot be resumed: {error}") from error
        return state, commands

    def _go_on(self, resumed: m.Resumption) -> None:
        if asks_again(resumed):
            self.said.append(m.ReplyDropped(request=0))
        elif resumed.new:
            # Old versions of grue recorded the texts of a repeated request twice. Remove the first copy.
            asked = ((at, each) for at, each in enumerate(self.said) if isinstance(each, m.RequestCompletion))
            for at, request in [*asked][-1:]:
                if request.new == resumed.new:
                    del self.said[at:]


def listing_in(envelope: EpisodeEnvelope) -> dict[m.ServerName, tuple[m.ToolDefinition, ...]]:
    """Return `{server: tools}` for a `SessionOpened` that lists all tools, unredacted; otherwise `{}`."""
    body = envelope.body
    if not isinstance(body, m.SessionOpened) or envelope.redacted or body.serves_unlisted:
        return {}
    return {body.server: body.tools}


def read_turns(path: str | PathLike[str]) -> dict[int, RecordedTurn]:
    """Return the last part of each turn, by the turn's number.

    Several turns may have the same number, as in two calls of `Runner.map`. Then the last of them counts,
    or if it has ended, the last parked one. A fork counts only if the trace does not hold the turn it forks.
    """
    turns: dict[int, RecordedTurn] = {}
    forks: dict[int, RecordedTurn] = {}
    parked: dict[int, list[RecordedTurn]] = {}
    listings: dict[m.ServerName, tuple[m.ToolDefinition, ...]] = {}
    for line, fork in with_forks(path, forks_of(path)):
        envelope, parts = line.envelope(), turns if fork is None else forks
        body, number = envelope.body, envelope.turn
        listings |= listing_in(envelope)
        if isinstance(body, m.RunTurn):
            before = parts.get(number)
            if body.resumed is None:
                if fork is None and before is not None and isinstance(before.end, m.TurnParked):
                    parked.setdefault(number, []).append(before)
                before = None
            elif fork is None and before is not None and not before.is_open and parked.get(number):
                before = parked[number].pop()
            parts[number] = RecordedTurn(envelope, body, before)
            parts[number].listings = listings
        elif number in parts:
            part = parts[number]
            part.add(envelope)
            if not part.is_open and part.end is not None:
                # Keep little of an ended turn: a trace may hold thousands of turns.
                parts[number] = kept = RecordedTurn(envelope, part.run, None)
                kept.end, kept.called = part.end, part.called if part.run.resumed else {}
    for number, left in parked.items():
        if left and not turns[number].is_open:
            turns[number] = left[-1]
    return {**forks, **turns}


def chosen(parts: dict[int, RecordedTurn], turn: int | None, path: str | PathLike[str]) -> RecordedTurn:
    """Return the turn `turn`, or with `turn=None` the only turn that can be resumed.

    Raises `NothingToResume` if `turn` cannot be resumed, or no turn or several turns can.
    """
    usable = {number: part for number, part in parts.items() if part.is_open and turn in (None, number)}
    if len(usable) == 1:
        return next(iter(usable.values()))
    if usable:
        numbers = ", ".join(map(str, usable))
        raise NothingToResume(f"{path} holds several turns that can be resumed: {numbers}. Name one: turn=N.")
    number = turn if turn is not None else max(parts, default=0)
    if number not in parts:
        raise NothingToResume(f"{path} holds no turn that can be resumed.")
    end = parts[number].end
    how = end.kind if isinstance(end, m.TurnCompleted) else "failed" if end else "ran without parking"
    again = ", after it was resumed" if parts[number].run.resumed is not None else ""
    raise NothingToResume(f"Turn {number} of {path} cannot be resumed: it ended ({how}{again}).")
