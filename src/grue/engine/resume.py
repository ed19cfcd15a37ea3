"""Go on with a turn that was parked, or that was killed with its process, from its trace.

Come here to change what a later process takes over. The order matters. First the trace is locked, so that no
other process can resume the same turn. Then it is read, and the turn's machine is given the recorded events
again; its state says how far the turn had come. Then `TurnResumed` is put on file. Nothing else happens
before that. If the process dies after that, the turn can be resumed once more: what was called then is in the
trace, and is not called again.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from grue.answers import AnswerSpec, spec_of
from grue.engine.changed_arguments import check_changes
from grue.engine.kept_conversation import KeptConversation
from grue.engine.past import with_sizes
from grue.engine.recorded_turn import RecordedTurn, asks_again, chosen, read_turns
from grue.engine.resumed_conversation import conversation_of
from grue.engine.turn import TurnSettings
from grue.errors import MCPError, TraceError
from grue.messages import (
    ApprovalDecision,
    Resumption,
    RunTurn,
    TextDelta,
    ToolDefinition,
    TurnParked,
    TurnResumed,
)
from grue.protocol.history import History
from grue.runtime.trace import Recorder
from grue.runtime.trace_file import TraceWriter
from grue.tracing.reading import TRACE_FILE, open_episode

EXPIRED = "the question about it has expired"


class ResumeRequest(Struct, frozen=True, kw_only=True):
    """A request to resume a turn; the attributes are the arguments of `Runner.resume`."""

    trace: str | PathLike[str]
    decisions: tuple[ApprovalDecision, ...] = ()
    turn: int | None = None
    answer: AnswerSpec[Any] | type | None = None
    on_delta: Callable[[TextDelta], None] | None = None
    conversation: KeptConversation | None = None


class ResumedTurn(Struct, frozen=True, kw_only=True):
    """A turn as a later process goes on with it.

    Attributes:
        command: The message that starts it.
        history: What was said in it.
        tools: The tools that were offered last.
        conversation: The conversation that it continues; `None`: none.
    """

    command: RunTurn
    history: History
    tools: tuple[ToolDefinition, ...]
    conversation: KeptConversation | None = None


def parked_turns(path: str | PathLike[str]) -> list[TurnParked]:
    """Return the turns of a trace that wait for a person, with their questions.

    Args:
        path: The trace file, or its run folder.

    Raises:
        TraceError: It cannot be read.
    """
    found = (part.end for part in read_turns(path).values())
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


@contextlib.contextmanager
def resumed_turn(asked: ResumeRequest, writer: TraceWriter, settings: TurnSettings) -> Iterator[ResumedTurn]:
    """Read what a turn goes on with, and put on file that it does. It counts as running meanwhile.

    Args:
        asked: The turn.
        writer: Writes its trace, which it has locked.
        settings: Of the runner that goes on.

    Raises:
        NothingToResume: There is no such turn, or it is running.
        TraceError: The trace cannot be read or written, or a secret was removed from the turn.
        ConversationError: Its conversation cannot go on with it.
        ChangeRefused: Changed arguments are not what the tool takes.
        MCPError: The runner cannot go on with it.
    """
    under_way = settings.wiring.under_way
    with contextlib.ExitStack() as running:
        with under_way.resuming:
            settings.wiring.recorder.settle()
            writer.flush()
            part = chosen(read_turns(asked.trace), asked.turn, asked.trace)
            under_way.require_ended(part.run.turn)
            running.enter_context(under_way.running(part.run.turn))
        where = part.resumption(asked.trace)
        check_fit(part.run, spec_of(asked.answer), settings)
        check_changes(where.parked.questions, asked.decisions)
        with conversation_of(part, where, asked.conversation, asked.trace, settings.wiring) as kept:
            if settings.wiring.presumed is not None:
                settings.wiring.presumed.recall(part.listings)
            expired = _note(where, part, writer, settings)
            yield _going_on(asked, part, where, kept, settings, expired=expired)


def _note(where: Resumption, part: RecordedTurn, writer: TraceWriter, settings: TurnSettings) -> bool:
    """Put `TurnResumed` on file, and return whether the questions have expired."""
    recorder, number = settings.wiring.recorder, part.run.turn
    expires_at = where.parked.expires_at
    expired = expires_at is not None and time.time() > expires_at
    resumed = TurnResumed(turn=number, after=part.last_seq, expired=expired)
    recorder.record(resumed, sender="host", turn=number)
    recorder.settle()
    if not writer.flush():
        raise TraceError(f"{writer.path} could not be written in time, so turn {number} was not resumed.")
    return expired


def _going_on(
    asked: ResumeRequest,
    part: RecordedTurn,
    where: Resumption,
    kept: KeptConversation | None,
    settings: TurnSettings,
    *,
    expired: bool,
) -> ResumedTurn:
    decisions = asked.decisions
    if expired:
        decisions = tuple(question.deny(EXPIRED) for question in where.parked.questions)
    history = History() if kept is None else kept.history
    if kept is None:
        part.replay(history)
        if asks_again(where):
            history.forget()
    command = replace(
        part.run,
        limits=replace(part.run.limits, turn_timeout_s=part.time_left_s),
        tool_policy=settings.tool_policy,
        stream=part.run.stream and asked.on_delta is not None,
        support_check="skip",
        resumed=replace(where, decisions=decisions),
    )
    sized = with_sizes(command, history.entries)
    return ResumedTurn(command=sized, history=history, tools=part.tools, conversation=kept)


def check_fit(command: RunTurn, answer: AnswerSpec[Any], settings: TurnSettings) -> None:
    """Check that a runner can go on with a turn.

    Raises:
        MCPError: It lacks a server of the turn, its model's actors cannot continue a conversation, or
            `answer` has another schema.
    """
    missing = [name for name in command.servers if name not in settings.wiring.servers]
    if missing:
        raise MCPError(f"Turn {command.turn} uses servers that this runner lacks: {', '.join(missing)}.")
    _ = settings.wiring.lender
    if answer.schema != command.answer:
        raise MCPError(
            f"Turn {command.turn} was started with another form of answer. Resume it with the same `answer`."
        )
