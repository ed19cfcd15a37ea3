"""Resume a turn from its trace: a turn that was parked, or whose process was killed.

The order matters. First the trace is locked, so that no other process can resume the same turn. Then it is
read. Then `TurnResumed` is flushed to the file; no tool is called and no request is sent before that. If the
process dies later, the turn can be resumed again: the calls made until then are in the trace.

If the turn belongs to a conversation, the conversation first gets the entries that the trace records, so that
its file and the trace agree.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.engine.answers import AnswerSpec, recorded_fallback, spec_of
from grue.engine.approval import check_changes
from grue.engine.conversations import recorded_conversation as recorded
from grue.engine.conversations.kept_conversation import KeptConversation, asks_again, with_sizes
from grue.engine.turn import EpisodeMemory, HostTurn, RestOfTurn, TurnRequest, TurnSettings
from grue.engine.wiring import Wiring
from grue.errors import ConversationError, MCPConfigError, MCPError, TraceError
from grue.field_checks import shown
from grue.policies import ApprovalDecision, Budget
from grue.protocol.context.history import History
from grue.protocol.tools.policy import read_decisions
from grue.protocol.turn.prices import Spent
from grue.runtime.actor import raise_crash
from grue.runtime.trace.file import TraceWriter, writers_of
from grue.runtime.trace.format import trace_in
from grue.runtime.trace.recorder import Recorder
from grue.tracing.reading import open_episode

EXPIRED = "the question about it has expired"


class ResumeRequest(Struct, frozen=True):
    """A request to resume a turn; the attributes are the arguments of `Runner.resume`."""

    trace: str | PathLike[str]
    decisions: tuple[ApprovalDecision, ...] = ()
    answer: AnswerSpec[Any] | type | None = None
    turn: int | None = None
    on_delta: Callable[[m.TextDelta], None] | None = None
    conversation: KeptConversation | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.turn, int | None) or isinstance(self.turn, bool):
            raise MCPConfigError(f"turn= wants a number, not {shown(self.turn)}.")
        if not isinstance(self.conversation, KeptConversation | None):
            raise MCPConfigError("conversation= is set by Conversation.resume: write talk.resume([...]).")
        for each in self.decisions:
            if not isinstance(each, ApprovalDecision):
                raise MCPConfigError(
                    f"resume() wants decisions, [question.approve(), ...], not {shown(each)}."
                )


def parked_turns(path: str | PathLike[str]) -> list[m.TurnParked]:
    """Return the turns of a trace that wait for a person, with their questions.

    Args:
        path: The trace file, or its run folder.

    Raises:
        TraceError: The trace cannot be read.
    """
    found = (part.parked for part in recorded.read_turns(path).values())
    return [parked for parked in found if parked is not None and parked.questions]


def _opened_writer(place: Path, recorder: Recorder) -> TraceWriter:
    for other in writers_of(recorder):
        raise TraceError(f"The runner writes {other.path}. Resume {place} with a runner of its own.")
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


@contextlib.contextmanager
def resumed_turn(
    asked: ResumeRequest,
    writer: TraceWriter,
    settings: TurnSettings,
    memory: EpisodeMemory,
    *,
    counted: bool = False,
) -> Iterator[HostTurn[Any]]:
    """Record `TurnResumed`, and yield the resumed turn. The turn counts as running within the `with` block.

    `counted`: the runner's spending already includes what the turn had spent, if `writer` has written the
    turn's last message. Raises as `Runner.resume` does.
    """
    under_way = settings.wiring.under_way
    with contextlib.ExitStack() as running:
        with under_way.resuming:
            settings.wiring.recorder.settle()
            writer.flush()
            parts = recorded.read_turns(asked.trace)
            part = recorded.chosen(parts, asked.turn, asked.trace)
            memory.skip(max(parts))
            under_way.require_ended(part.run.turn)
            running.enter_context(under_way.running(part.run.turn))
        where = part.resumption(asked.trace)
        missing = [name for name in part.run.servers if name not in settings.wiring.servers]
        if missing:
            raise MCPError(f"Turn {part.run.turn} uses servers that this runner lacks: {', '.join(missing)}.")
        _ = settings.wiring.lender  # raises an error if the runner's `llm` cannot continue the turn
        if spec_of(asked.answer).schema != part.run.answer:
            raise MCPError(
                f"Turn {part.run.turn} was started with another form of answer. Resume it with the same"
                " `answer`."
            )
        check_changes(where.parked.questions, asked.decisions)
        before = Spent(requests=where.parked.requests, usage=where.parked.usage)
        counted = counted and part.last_seq > writer.last_seq
        rest = RestOfTurn(settings.spending, before, counted=before if counted else Spent())
        budget = rest.left_for(part.run, settings.budget, f"Turn {part.run.turn} cannot be resumed")
        settings = replace(settings, spending=rest)
        with conversation_of(part, where, asked.conversation, asked.trace, settings.wiring) as kept:
            if settings.wiring.presumed is not None:
                settings.wiring.presumed.recall(part.listings)
            expired = _note(where, part, writer, settings)
            yield _going_on(asked, part, where, kept, settings, memory, budget, expired=expired)


def _note(
    where: m.Resumption, part: recorded.RecordedTurn, writer: TraceWriter, settings: TurnSettings
) -> bool:
    """Write `TurnResumed` to the trace file. Return whether the turn's questions have expired."""
    recorder, number = settings.wiring.recorder, part.run.turn
    expires_at = where.parked.expires_at
    expired = expires_at is not None and time.time() > expires_at
    resumed = m.TurnResumed(turn=number, after=part.last_seq, expired=expired)
    try:
        recorder.record(resumed, sender="host", turn=number)
        recorder.settle()
    except Exception as error:  # noqa: BLE001 - `raise_crash` raises it
        raise_crash("host", error)
    if not writer.flush():
        raise TraceError(f"{writer.path} could not be written in time, so turn {number} was not resumed.")
    return expired


def _going_on(
    asked: ResumeRequest,
    part: recorded.RecordedTurn,
    where: m.Resumption,
    kept: KeptConversation | None,
    settings: TurnSettings,
    memory: EpisodeMemory,
    budget: Budget,
    *,
    expired: bool,
) -> HostTurn[Any]:
    decisions = read_decisions(asked.decisions)
    answered = {each.call_id for each in decisions}
    decisions = (*decisions, *(each for each in part.decided if each.call_id not in answered))
    if expired:
        decisions = tuple(question.deny(EXPIRED) for question in where.parked.questions)
    begun = part.said_alone()
    if asks_again(where):
        begun.forget()
    history = part.retold(History(), where) if kept is None else kept.history
    command = replace(
        part.run,
        fallback=part.run.fallback if asked.answer is None else recorded_fallback(spec_of(asked.answer)),
        limits=replace(part.run.limits, turn_timeout_s=part.time_left_s, budget=budget),
        tool_policy=settings.tool_policy,
        stream=asked.on_delta is not None,
        support_check="skip",
        binds_calls=True,
        binds_parked=True,
        resumed=replace(where, decisions=decisions),
    )
    request: TurnRequest[Any] = TurnRequest(
        system=command.system,
        user=command.user,
        answer=asked.answer,
        turn=command.turn,
        on_delta=asked.on_delta,
        json_results=not command.plain_results,
        conversation=kept,
    )
    if kept is None:
        # The turn belongs to no conversation, so only the trace gets its entries.
        wiring = settings.wiring.lending(command.conversation, history, part.tools)
        settings = replace(settings, wiring=wiring)
    turn: HostTurn[Any] = HostTurn(request, settings, memory)
    turn.is_resumed = True
    turn.begun = begun
    turn.started_by = with_sizes(command, history.entries)
    return turn


@contextlib.contextmanager
def resumed_run(
    asked: ResumeRequest, settings: TurnSettings, memory: EpisodeMemory, writers: list[TraceWriter]
) -> Iterator[HostTurn[Any]]:
    """Yield the resumed turn. If its trace is not open yet, open it and append the writer to `writers`."""
    recorder, place = settings.wiring.recorder, trace_in(asked.trace)
    with settings.wiring.under_way.resuming:  # several threads may resume turns of one trace at once
        ours = next((each for each in writers_of(recorder) if each.place == place.absolute()), None)
        if ours is None:
            writers.append(ours := _opened_writer(place, recorder))
    with resumed_turn(asked, ours, settings, memory, counted=True) as turn:
        yield turn


@contextlib.contextmanager
def conversation_of(
    part: recorded.RecordedTurn,
    where: m.Resumption,
    given: KeptConversation | None,
    trace: str | PathLike[str],
    wiring: Wiring,
) -> Iterator[KeptConversation | None]:
    """Yield the conversation of a turn, ready to resume the turn; `None`: the turn is in no conversation.

    If this function has to load the conversation, it closes it after the block, so that the host can load it.
    Raises `ConversationError` if the conversation is missing, in use or damaged, or does not fit the turn.
    """
    began, number = part.run.history, part.run.turn
    if began is None:
        if given is not None:
            raise ConversationError(
                f"Turn {number} of {trace} belongs to no conversation. Use Runner.resume."
            )
        yield None
        return
    if given is not None and given.id != began.conversation:
        raise ConversationError(
            f"Turn {number} of {trace} belongs to the conversation {began.conversation}, not to {given.id}."
        )
    held = given or _of_runner(began, wiring)
    kept = held or _found(began, number, trace)
    try:
        mark = kept.require_open(number, began)
        if mark.state == "running":
            retell = partial(part.retold, where=where)
            kept.catch_up(began, retell, where.parked, asks_again=asks_again(where))
        yield kept
    finally:
        if held is None:
            kept.close()


def _of_runner(began: m.HistoryReference, wiring: Wiring) -> KeptConversation | None:
    """Return the runner's conversation; `None`: it has none, or has closed it, and its file is there."""
    kept = wiring.under_way.conversations.get(began.conversation)
    closed = kept is not None and kept.path is None and began.file
    return None if closed and Path(began.file).is_file() else kept


def _found(began: m.HistoryReference, number: int, trace: str | PathLike[str]) -> KeptConversation:
    if not began.file:
        return recorded.resume_conversation(trace, began.conversation)[0]
    try:
        return KeptConversation.load(Path(began.file))
    except ConversationError as error:
        raise ConversationError(
            f"Turn {number} of {trace} cannot be resumed: {error} If the file is elsewhere or in use by this"
            f" program, pass the conversation: Conversation.load(...).resume(trace=...).",
            path=error.path,
            line=error.line,
        ) from error
