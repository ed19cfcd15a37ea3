"""Answer the questions of a policy: by the host's callback, in a later process, or not at all.

Come here to change how the `approve` callback is called, or when a turn can be parked. The turn's machine
(`protocol/turn_approval.py`) decides what follows from an answer.
"""

import inspect
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue.actors.approval import Answer
from grue.engine.durable_calls import DurableConnection
from grue.errors import MCPConfigError, TraceError
from grue.messages import (
    ApprovalDecision,
    ApprovalPostponed,
    ApprovalQuestion,
    CallId,
    CallsDecided,
    DecisionIgnored,
    RunTurn,
)
from grue.runtime.daemon_thread import call_in_daemon_thread
from grue.runtime.host_code import HostCodeFailed, host_code
from grue.runtime.trace import Envelope, Recorder
from grue.runtime.trace_file import TraceWriter
from grue.tool_sessions.connection import Connect

NOBODY_TO_ASK = "it needs an approval, and there is nobody to ask"
REFUSED = "the changed arguments cannot be used: {fault}"
_TRIES = 3
"""How often the callback is asked about a call, if it changes the arguments to unusable ones."""

NOT_ANSWERED = "the question about it was not answered"
REDACTED = "it needs an approval, and the turn cannot wait for one: a secret was removed from its trace"

ApprovalAnswer: TypeAlias = bool | Iterable[ApprovalDecision] | None
"""`True` approves all calls, `False` denies them; or one decision for each question. `None` parks the turn if
parking is configured, and denies the calls otherwise."""

Approve: TypeAlias = Callable[[tuple[ApprovalQuestion, ...]], ApprovalAnswer | Awaitable[ApprovalAnswer]]
"""The host's callback; a plain function runs in a thread of its own."""


Questions: TypeAlias = tuple[ApprovalQuestion, ...]


class Parking:
    """Checks whether a recorder's turns can be parked. They need a trace file from which nothing was removed.

    Args:
        recorder: Records the turns.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._redacted: set[int] = set()
        recorder.add(self._watch)

    @property
    def writer(self) -> TraceWriter | None:
        """The writer of the trace file; `None`: there is none."""
        writers = (each for each in self._recorder.observers if isinstance(each, TraceWriter))
        return next(writers, None)

    def require(self, command: RunTurn, *, given_history: bool) -> None:
        """Check that a turn that starts now could be parked.

        Args:
            command: Starts the turn.
            given_history: What was said before it was given as plain data.

        Raises:
            MCPConfigError: There is no trace file, or it would lack a secret that the turn's texts contain.
                Or the turn has a history as plain data, which the trace does not hold.
        """
        if self.writer is None:
            raise MCPConfigError(
                "Parking needs a trace file, because a later process goes on from there."
                ' Add one with Runner(trace="turn.jsonl"), or set parking = false in the tool policy.'
            )
        if given_history:
            raise MCPConfigError(
                "A turn with TurnRequest(history=...) cannot be parked, because its trace holds only a digest"
                " of the history. Use Runner.conversation, or set parking = false in the tool policy."
            )
        written = msgspec.json.encode(command)
        if self._recorder.redacted(written) != written:
            raise MCPConfigError(
                "This turn cannot be parked: its texts contain a secret, which the trace file may not hold."
                " Remove it from the texts, or set parking = false in the tool policy."
            )
        self._redacted.discard(command.turn)

    async def is_redacted(self, turn: int) -> bool:
        """Return whether a secret was removed from a message of the turn."""
        await self._recorder.shown()
        return turn in self._redacted

    async def written(self) -> bool:
        """Flush everything recorded so far, and return whether it is on file. The event loop goes on."""
        writer = self.writer
        if writer is None:
            return False
        try:
            await self._recorder.shown()
            return await anyio.to_thread.run_sync(writer.flush)
        except TraceError:
            return False

    def _watch(self, envelope: Envelope[Any], line: bytes) -> None:
        del line
        if envelope.redacted:
            self._redacted.add(envelope.turn)


class Approval(Struct, frozen=True):
    """Gets the questions of a runner's turns answered.

    Attributes:
        approve: The host's callback; `None`: there is none.
        parking: Set if turns are parked.
    """

    approve: Approve | None = None
    parking: Parking | None = None

    @property
    def trace(self) -> Path | None:
        """The trace that a later process resumes turns from; `None`: turns are not parked."""
        writer = None if self.parking is None else self.parking.writer
        return None if writer is None else writer.path.absolute()

    def require_parking(self, command: RunTurn, *, given_history: bool = False) -> None:
        """Check that a turn that may be parked can be; raises `MCPConfigError`."""
        if self.parking is not None:
            self.parking.require(command, given_history=given_history)

    def answerer(self, command: RunTurn, recorder: Recorder) -> Answer | None:
        """Return what answers the questions of a turn; `None`: its policy never asks."""
        if all(rule.verdict != "ask" for rule in command.tool_policy.rules):
            return None
        return _Answerer(self, command, recorder)

    def durable(self, connect: Connect, command: RunTurn) -> Connect:
        """Return connections whose calls are on file before they are sent, if the turn can be parked."""
        parking = self.parking
        if parking is None:
            return connect
        return lambda note: DurableConnection(connect(note), command.tool_policy, parking.written)


class _Answerer:
    """Answers the questions of one turn."""

    def __init__(self, approval: Approval, command: RunTurn, recorder: Recorder) -> None:
        self._approval = approval
        self._command = command
        self._recorder = recorder

    async def __call__(self, questions: tuple[ApprovalQuestion, ...]) -> CallsDecided | ApprovalPostponed:
        approve, parking = self._approval.approve, self._approval.parking
        answer = None if approve is None else await self._ask(approve, questions)
        if approve is not None and answer is not None:
            return CallsDecided(decisions=await self._usable(approve, questions, answer))
        if parking is None:
            return _denied(questions, NOBODY_TO_ASK)
        if await parking.is_redacted(self._command.turn):
            return _denied(questions, REDACTED)
        park_for_s = self._command.tool_policy.park_for_s
        return ApprovalPostponed(expires_at=None if park_for_s is None else time.time() + park_for_s)

    async def _usable(
        self, approve: Approve, questions: Questions, answer: bool | Iterable[ApprovalDecision]
    ) -> tuple[ApprovalDecision, ...]:
        """Return the decisions; ask again about a call whose changed arguments cannot be used."""
        decisions = _decisions(questions, answer)
        for _ in range(_TRIES - 1):
            refused = await _refused(questions, decisions)
            if not refused:
                return decisions
            again = tuple(replace(each, reason=REFUSED.format(fault=fault)) for each, fault in refused)
            names = {each.call_id for each in again}
            decisions = tuple(each for each in decisions if each.call_id not in names)
            answer = await self._ask(approve, again) or False
            decisions = (*decisions, *_decisions(again, answer))
        unusable = {each.call_id: fault for each, fault in await _refused(questions, decisions)}
        decided = (each for each in decisions if each.call_id not in unusable)
        denied = (each for each in questions if each.call_id in unusable)
        return (*decided, *(each.deny(REFUSED.format(fault=unusable[each.call_id])) for each in denied))

    async def _ask(self, approve: Approve, questions: tuple[ApprovalQuestion, ...]) -> ApprovalAnswer:
        answer: ApprovalAnswer
        if inspect.iscoroutinefunction(approve):
            with host_code():
                answer = await approve(questions)
            return answer
        late = False

        def ask() -> Any:
            try:
                given = approve(questions)
            except BaseException as error:
                raise HostCodeFailed(error) from error
            if late:
                self._note_late(questions)
            return given

        try:
            # A thread of its own: a person may take long, and other threads are there for work.
            given = await call_in_daemon_thread(ask, limiter=anyio.CapacityLimiter(1))
        except anyio.get_cancelled_exc_class():
            late = True
            raise
        with host_code():
            answer = await given if inspect.isawaitable(given) else given
        return answer

    def _note_late(self, questions: tuple[ApprovalQuestion, ...]) -> None:
        for question in questions:
            ignored = DecisionIgnored(call_id=CallId(question.call_id), reason="the turn was over")
            self._recorder.record(ignored, sender="approval", turn=self._command.turn)


def _decisions(
    questions: tuple[ApprovalQuestion, ...], answer: bool | Iterable[ApprovalDecision]
) -> tuple[ApprovalDecision, ...]:
    if isinstance(answer, bool):
        return tuple(question.approve() if answer else question.deny() for question in questions)
    with host_code():
        decisions = tuple(answer)
        wrong = next((each for each in decisions if not isinstance(each, ApprovalDecision)), None)
        if wrong is not None:
            raise TypeError(f"approve returned {wrong!r}; it should return decisions, True or False")
    answered = {decision.call_id for decision in decisions}
    rest = (question.deny(NOT_ANSWERED) for question in questions if question.call_id not in answered)
    return (*decisions, *rest)


async def _refused(
    questions: Questions, decisions: Iterable[ApprovalDecision]
) -> list[tuple[ApprovalQuestion, str]]:
    """Return the questions whose changed arguments cannot be used, and why."""
    changes = [decision for decision in decisions if decision.verdict == "change"]
    if not changes:
        return []
    # Few programs need it.
    from grue.engine.changed_arguments import refused_changes

    return await anyio.to_thread.run_sync(refused_changes, questions, changes)


def _denied(questions: tuple[ApprovalQuestion, ...], reason: str) -> CallsDecided:
    return CallsDecided(decisions=tuple(question.deny(reason) for question in questions))
