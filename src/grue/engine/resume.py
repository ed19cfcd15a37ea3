"""Go on with a turn that was parked, or that was killed with its process, from its trace.

Come here to change what a later process takes over. The order matters. First the trace is locked, so that no
other process can resume the same turn. Then it is read, and the turn's machine is given the recorded events
again; its state says how far the turn had come. Then `TurnResumed` is put on file. Only then anything
happens. If the process dies after that, the turn can be resumed once more: what was called then is in the
trace, and is not called again.
"""

import time
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from grue.actors.llm import LentConversation, LlmActor
from grue.answers import AnswerSpec, spec_of
from grue.engine.past import with_sizes
from grue.engine.turn import TurnSettings
from grue.errors import MCPError, NothingToResume, TraceError
from grue.llm_transport.endpoint import LlmEndpoint
from grue.messages import (
    ApprovalDecision,
    AssistantReply,
    CallId,
    CompletionReceived,
    ConversationId,
    ConversationItem,
    HistoryRewritten,
    LlmCommand,
    RequestCompletion,
    RequireAnswer,
    Resumption,
    RewriteHistory,
    RunTurn,
    ServerFailure,
    TextDelta,
    ToolCalled,
    ToolDefinition,
    TurnCompleted,
    TurnEnd,
    TurnEvent,
    TurnFailed,
    TurnParked,
    TurnResumed,
)
from grue.protocol.chat_wire.conversation import Conversation
from grue.protocol.history import History
from grue.protocol.tool_loop import IllegalEvent, step
from grue.protocol.turn_approval import cut_off
from grue.protocol.turn_states import AwaitingCompletion, AwaitingVerdict, Idle, TurnState
from grue.runtime.actor import Actor, Note
from grue.runtime.channel import Mailbox
from grue.runtime.trace import Recorder
from grue.runtime.trace_file import TraceWriter
from grue.tracing.reading import TRACE_FILE, EpisodeEnvelope, open_episode
from grue.tracing.replay_agent import AGENT, NOTED_EVENTS

_Said: TypeAlias = RequestCompletion | CompletionReceived | HistoryRewritten | RewriteHistory
EXPIRED = "the question about it has expired"


class ResumeRequest(Struct, frozen=True, kw_only=True):
    """What the host asks for; the attributes are the arguments of `Runner.resume`."""

    trace: str | PathLike[str]
    decisions: tuple[ApprovalDecision, ...] = ()
    turn: int | None = None
    answer: AnswerSpec[Any] | type | None = None
    on_delta: Callable[[TextDelta], None] | None = None


class ResumedTurn(Struct, frozen=True, kw_only=True):
    """A turn as a later process goes on with it.

    Attributes:
        command: The message that starts it.
        history: What was said in it.
        tools: The tools that were offered last.
    """

    command: RunTurn
    history: History
    tools: tuple[ToolDefinition, ...]


class RememberingActors:
    """The `LlmFactory` of a resumed turn: makes an LLM actor that knows what was said in it."""

    def __init__(self, endpoint: LlmEndpoint, turn: ResumedTurn) -> None:
        self._endpoint = endpoint
        self._turn = turn

    def __call__(
        self, mailbox: Mailbox[LlmCommand], agent: Mailbox[TurnEvent], note: Note
    ) -> Actor[LlmCommand]:
        """Return an LLM actor for the turn, or for what its servers ask of the model."""
        endpoint, turn = self._endpoint, self._turn
        if mailbox.name != "llm":
            return LlmActor(
                mailbox, agent, endpoint, note
            )  # for sampling, which has conversations of its own
        encoded = Conversation(endpoint.profile, model=endpoint.settings.model, history=turn.history)
        encoded.offer(turn.tools)
        name = ConversationId(f"turn-{turn.command.turn}")
        return LlmActor(mailbox, agent, endpoint, note, LentConversation(name, encoded, _save_nothing))


async def _save_nothing() -> None:
    """Do nothing: the trace holds what is said in the turn."""


def parked_turns(path: str | PathLike[str]) -> list[TurnParked]:
    """Return the turns of a trace that wait for a person, with their questions.

    Args:
        path: The trace file, or its run folder.

    Raises:
        TraceError: It cannot be read.
    """
    found = (part.end for part in _read(path).values())
    return [end for end in found if isinstance(end, TurnParked)]


def writer_for(path: str | PathLike[str], recorder: Recorder) -> TraceWriter:
    """Return what writes this trace, which keeps other processes from resuming from it.

    Raises:
        TraceError: Another process writes it, or the recorder writes another one.
    """
    place, writers = _file_of(path), _writers(recorder)
    writer = _writer_of(place, writers)
    if writer is not None:
        return writer
    if writers:
        raise TraceError(f"The runner writes {writers[0].path}. Resume {place} with a runner of its own.")
    reader = open_episode(place)
    next(iter(reader), None)
    writer = TraceWriter(place, episode=reader.header.episode, resume=True)
    try:
        recorder.resume(after_seq=writer.last_seq, after_t=writer.last_t)
    except RuntimeError as error:
        writer.close()
        raise TraceError(f"Resume {place} with a runner that has not run a turn yet: {error}.") from error
    recorder.add(writer)
    return writer


def is_recorded_by(recorder: Recorder, path: str | PathLike[str]) -> bool:
    """Return whether this recorder writes the trace, so that its runner has counted what the turns spent."""
    return _writer_of(_file_of(path), _writers(recorder)) is not None


def _file_of(path: str | PathLike[str]) -> Path:
    place = Path(path)
    return place / TRACE_FILE if place.is_dir() else place


def _writers(recorder: Recorder) -> list[TraceWriter]:
    return [each for each in recorder.observers if isinstance(each, TraceWriter)]


def _writer_of(place: Path, writers: Iterable[TraceWriter]) -> TraceWriter | None:
    return next((each for each in writers if each.path.absolute() == place.absolute()), None)


def resume_turn(asked: ResumeRequest, writer: TraceWriter, settings: TurnSettings) -> ResumedTurn:
    """Read what a turn goes on with, and put on file that it does.

    Args:
        asked: The turn.
        writer: Writes its trace, which it has locked.
        settings: Of the runner that goes on.

    Raises:
        NothingToResume: There is no such turn.
        TraceError: The trace cannot be read or written, or a secret was removed from the turn.
        MCPError: The runner cannot go on with it.
    """
    recorder = settings.wiring.recorder
    recorder.settle()
    writer.flush()
    part = _chosen(_read(asked.trace), asked.turn, asked.trace)
    where = part.resumption(asked.trace)
    check_fit(part.run, spec_of(asked.answer), settings)
    expires_at = where.parked.expires_at
    expired = expires_at is not None and time.time() > expires_at
    decisions = tuple(asked.decisions)
    if expired:
        decisions = tuple(question.deny(EXPIRED) for question in where.parked.questions)
    number = part.run.turn
    resumed = TurnResumed(turn=number, after=part.last_seq, expired=expired)
    recorder.record(resumed, sender="host", turn=number)
    recorder.settle()
    if not writer.flush():
        raise TraceError(f"{writer.path} could not be written in time, so turn {number} was not resumed.")
    history = part.history()
    command = replace(
        part.run,
        limits=replace(part.run.limits, turn_timeout_s=part.time_left_s),
        tool_policy=settings.tool_policy,
        stream=part.run.stream and asked.on_delta is not None,
        support_check="skip",
        resumed=replace(where, decisions=decisions),
    )
    return ResumedTurn(command=with_sizes(command, history.entries), history=history, tools=part.tools)


def check_fit(command: RunTurn, answer: AnswerSpec[Any], settings: TurnSettings) -> None:
    """Check that a runner can go on with a turn.

    Raises:
        MCPError: It lacks a server of the turn, or an endpoint of grue's own, or `answer` has another schema.
    """
    missing = [name for name in command.servers if name not in settings.wiring.servers]
    if missing:
        raise MCPError(f"Turn {command.turn} uses servers that this runner lacks: {', '.join(missing)}.")
    if settings.wiring.endpoint is None:
        raise MCPError("A turn can be resumed only by a runner with an endpoint of grue's own.")
    if answer.schema != command.answer:
        raise MCPError(
            f"Turn {command.turn} was started with another form of answer. Resume it with the same `answer`."
        )


class _Part:
    """The turn as the trace tells it, from its last `RunTurn` on; what was said before that too.

    Attributes:
        run: The message that started this part.
        end: How it ended; `None`: the trace does not say.
        tools: The tools that were offered last.
        last_seq: Number of its last envelope.
        redacted: A secret was removed from a message of the turn.
        said: What makes up its conversation, earlier parts included.
    """

    def __init__(self, begun: EpisodeEnvelope, run: RunTurn, before: "_Part | None") -> None:
        self.run = run
        self.end: TurnEnd | None = None
        self.tools: tuple[ToolDefinition, ...] = before.tools if before else ()
        self.last_seq = begun.seq
        self._began_s = self._last_s = begun.t
        self._events: list[TurnEvent] = [run]
        self._called: set[CallId] = set()
        self._aside: set[int] = set()
        self.redacted: bool = begun.redacted or (before is not None and before.redacted)
        self.said: list[_Said] = before.said if before else []

    def add(self, envelope: EpisodeEnvelope) -> None:
        """Take the next envelope of the turn."""
        body = envelope.body
        self.last_seq, self._last_s = envelope.seq, envelope.t
        self.redacted = self.redacted or envelope.redacted
        if envelope.receiver == AGENT or isinstance(body, NOTED_EVENTS):
            self._events.append(body)  # type: ignore[arg-type]  # what the agent gets is for the machine
        if isinstance(body, ToolCalled):
            self._called.add(body.call_id)
        elif isinstance(body, TurnEnd):
            self.end = body
        elif isinstance(body, RequestCompletion) and body.aside:
            self._aside.add(envelope.seq)
        elif isinstance(body, CompletionReceived) and envelope.cause in self._aside:
            pass  # a summary; the change that it brought about follows
        elif isinstance(body, CompletionReceived | HistoryRewritten | RewriteHistory):
            self.said.append(body)
        elif isinstance(body, RequestCompletion) and envelope.receiver == "llm":
            self.said.append(body)
            self.tools = getattr(body.mode, "tools", None) or self.tools

    @property
    def time_left_s(self) -> float | None:
        """What is left of the turn's time limit; time in which it was parked does not count."""
        limit_s = self.run.limits.turn_timeout_s
        return None if limit_s is None else max(0.001, limit_s - (self._last_s - self._began_s))

    @property
    def is_open(self) -> bool:
        """Whether the turn can go on."""
        match self.end:
            case None | TurnParked():
                return self.run.tool_policy.parking
            case TurnFailed(failure=ServerFailure()):
                # A resumed turn whose servers did not start has done nothing yet.
                return self.run.resumed is not None and not self._called
            case _:
                return False

    def resumption(self, path: str | PathLike[str]) -> Resumption:
        """Return where the turn goes on.

        Raises:
            NothingToResume: It had ended when its process was killed.
            TraceError: The trace lacks something that is needed.
        """
        if self.redacted:
            raise TraceError(
                f"Turn {self.run.turn} of {path} cannot be resumed: a secret was removed from its messages."
            )
        if self.run.history is not None:
            raise TraceError(f"Turn {self.run.turn} of {path} belongs to a conversation: continue that one.")
        if isinstance(self.end, TurnParked):
            return Resumption(parked=self.end)
        if self.end is not None and self.run.resumed is not None:
            return replace(self.run.resumed, decisions=())
        state = self._state(path)
        where = cut_off(state, self._called)
        if where is None:
            made = ", ".join(sorted(self._called)) or "none"
            raise NothingToResume(
                f"Turn {self.run.turn} of {path} had ended when its process did; only its outcome is lost."
                f" Calls that were sent: {made}."
            )
        if isinstance(state, AwaitingCompletion | AwaitingVerdict):
            return replace(where, new=self._asked_last())
        return where

    def history(self) -> History:
        """Return what was said in the turn, as far as it does not have to be said again."""
        history = History()
        for body in self.said:
            match body:
                case RequestCompletion(new=new, mode=mode):
                    history.say(new, mode.answer if isinstance(mode, RequireAnswer) else None)
                case CompletionReceived():
                    history.keep(
                        AssistantReply(content=body.content, tool_calls=body.tool_calls, echo=body.echo)
                    )
                case HistoryRewritten(rewrite=rewrite):
                    history.rewrite(rewrite)
                case RewriteHistory(change=change):
                    history.change(change)
        return history

    def _state(self, path: str | PathLike[str]) -> TurnState:
        state: TurnState = Idle()
        try:
            for event in self._events:
                state, _ = step(state, event)
        except IllegalEvent as error:
            raise TraceError(f"Turn {self.run.turn} of {path} cannot be resumed: {error}") from error
        return state

    def _asked_last(self) -> tuple[ConversationItem, ...]:
        """Take back the last request, which is sent again; return what it told the model."""
        while self.said:
            body = self.said.pop()
            if isinstance(body, RequestCompletion):
                return body.new
        return ()


def _read(path: str | PathLike[str]) -> dict[int, _Part]:
    """Return the last part of each turn that can be resumed, or whose end says that it cannot."""
    parts: dict[int, _Part] = {}
    for envelope in open_episode(path):
        body, number = envelope.body, envelope.turn
        if isinstance(body, RunTurn):
            before = parts.get(number) if body.resumed is not None else None
            parts[number] = _Part(envelope, body, before)
        elif number in parts:
            parts[number].add(envelope)
            if not parts[number].is_open and parts[number].end is not None:
                parts[number] = _forgotten(parts[number], envelope)
    return parts


def _forgotten(part: _Part, last: EpisodeEnvelope) -> _Part:
    """Keep of a turn that is over only its end: a trace may hold thousands."""
    over = _Part(last, part.run, None)
    over.end = part.end
    return over


def _chosen(parts: dict[int, _Part], turn: int | None, path: str | PathLike[str]) -> _Part:
    usable = {number: part for number, part in parts.items() if part.is_open}
    if turn is None and len(usable) == 1:
        return next(iter(usable.values()))
    if turn is not None and turn in usable:
        return usable[turn]
    if turn is None and usable:
        numbers = ", ".join(map(str, usable))
        raise NothingToResume(f"{path} holds several turns that can be resumed: {numbers}. Name one: turn=N.")
    number = turn if turn is not None else max(parts, default=0)
    if number not in parts:
        raise NothingToResume(f"{path} holds no turn that can be resumed.")
    end = parts[number].end
    how = end.kind if isinstance(end, TurnCompleted) else "failed" if end else "ran without parking"
    again = ", after it was resumed" if parts[number].run.resumed is not None else ""
    raise NothingToResume(f"Turn {number} of {path} cannot be resumed: it ended ({how}{again}).")
