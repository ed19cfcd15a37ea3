"""Answer the questions of a tool policy: ask the host's callback, park the turn, or deny the calls."""

from __future__ import annotations

import contextlib
import inspect
import sys
import termios
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.actors.approval import Answer
from grue.errors import ChangeRefused, MCPConfigError, TraceError
from grue.policies import ApprovalDecision, ApprovalQuestion, ToolPolicy
from grue.protocol.json_text import strict_text
from grue.protocol.tools.names import read_arguments
from grue.protocol.tools.policy import own_copies, read_decisions, settled, terms_of
from grue.runtime.files import is_terminal
from grue.runtime.loops.beside_loop import call_in_daemon_thread
from grue.runtime.loops.host_code import HostCodeFailed, host_code
from grue.runtime.safe_text import printable, shown_whole
from grue.runtime.trace.file import TraceWriter, writers_of
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.tool_sessions.connection import Connect, Listing, ToolConnection, WrappedConnection
from grue.tool_sessions.failures import ToolRefusedError

NOBODY_TO_ASK = "it needs an approval, and there is nobody to ask"
REFUSED = "the changed arguments cannot be used: {fault}"
_TRIES = 3  # how often at most the callback is asked about a call whose changed arguments cannot be used
NOT_ANSWERED = "the question about it was not answered"
REDACTED = "it needs an approval, and the turn cannot wait for one: a secret was removed from its trace"

ApprovalAnswer: TypeAlias = bool | Iterable[ApprovalDecision] | None
"""The answer of an `approve` callback. `True` approves all calls, and `False` denies them. A callback may
also return decisions; a call without one is denied. `None` parks the turn if the tool policy allows parking
and no secret was removed from the turn's messages. Otherwise `None` denies the calls; it also denies them in
a fork, and if the question was asked again because changed arguments could not be used."""

Approve: TypeAlias = Callable[[tuple[ApprovalQuestion, ...]], ApprovalAnswer | Awaitable[ApprovalAnswer]]
"""The host's callback; a plain function runs in a thread of its own."""


_NO_PARKING = ", or set parking = false in the tool policy"

Questions: TypeAlias = tuple[ApprovalQuestion, ...]


class Parking:
    """Checks whether turns can be parked: their trace file must hold all messages, unredacted."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._redacted: set[int] = set()
        recorder.add(self._watch)

    @property
    def writer(self) -> TraceWriter | None:
        """The writer of the trace file from which turns are resumed; `None`: no file is written."""
        return next(iter(writers_of(self._recorder)), None)

    def require(self, command: m.RunTurn, *, given_history: bool) -> None:
        """Raise `MCPConfigError` if a turn that starts now could not be parked, or wait for a batch."""
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
            what, how = ("wait for a batch", "") if command.waits else ("be parked", _NO_PARKING)
            raise MCPConfigError(
                f"This turn cannot {what}: its texts contain a secret, which the trace file may not hold."
                f" Remove it from the texts{how}."
            )
        self._redacted.discard(command.turn)

    async def is_redacted(self, turn: int) -> bool:
        """Return whether a secret was removed from a message of the turn."""
        await self._recorder.shown()
        return turn in self._redacted

    async def written(self) -> bool:
        """Flush the trace to its file, in a thread; return whether that succeeded."""
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
    """Gets answers to the approval questions of a runner's turns."""

    approve: Approve | None = None  # the host's callback, if somebody can be asked
    parking: Parking | None = None  # `None`: no turn can be parked, or wait for a provider's batch

    def answerer(self, command: m.RunTurn, recorder: Recorder) -> Answer | None:
        """Return the function that answers a turn's questions; `None`: the policy never asks."""
        if all(rule.verdict != "ask" for rule in command.tool_policy.rules):
            return None
        return _Answerer(self, command, recorder)

    def connecting(self, connect: Connect, command: m.RunTurn, server: m.ServerName) -> Connect:
        """Return `connect`; with `parking`, wrap each connection in a `_DurableConnection`."""
        del server
        parking = self.parking
        if parking is None:
            return connect
        return lambda note: _DurableConnection(connect(note), command.tool_policy, parking.written)


class _Answerer(Struct, frozen=True):
    approval: Approval
    command: m.RunTurn
    recorder: Recorder

    async def __call__(self, questions: Questions) -> m.CallsDecided | m.ApprovalPostponed:
        approve, parking = self.approval.approve, self.approval.parking
        answer = None if approve is None else await self._ask(approve, questions)
        if approve is not None and answer is not None:
            return m.CallsDecided(decisions=await self._usable(approve, questions, answer))
        can_park = parking is not None and self.command.tool_policy.parking
        if parking is None or not can_park or await parking.is_redacted(self.command.turn):
            reason = REDACTED if can_park else NOBODY_TO_ASK
            return m.CallsDecided(decisions=tuple(question.deny(reason) for question in questions))
        park_for_s = self.command.tool_policy.park_for_s
        return m.ApprovalPostponed(expires_at=None if park_for_s is None else time.time() + park_for_s)

    async def _usable(
        self, approve: Approve, questions: Questions, answer: bool | Iterable[ApprovalDecision]
    ) -> tuple[ApprovalDecision, ...]:
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

    async def _ask(self, approve: Approve, questions: Questions) -> ApprovalAnswer:
        answer: ApprovalAnswer
        if inspect.iscoroutinefunction(approve):
            with host_code("approve"):
                answer = await approve(own_copies(questions))
            return answer
        late = False

        def ask() -> Any:
            try:
                given = approve(own_copies(questions))
            except BaseException as error:
                raise HostCodeFailed(error, "approve") from error
            for question in questions if late else ():
                ignored = m.DecisionIgnored(call_id=m.CallId(question.call_id), reason="the turn was over")
                self.recorder.record(ignored, sender="approval", turn=self.command.turn)
            return given

        try:
            # A person may take long to answer, so do not block one of the few worker threads of anyio.
            given = await call_in_daemon_thread(ask, limiter=anyio.CapacityLimiter(1))
        except anyio.get_cancelled_exc_class():
            late = True
            raise
        with host_code("approve"):
            answer = await given if inspect.isawaitable(given) else given
        return answer


def _decisions(
    questions: Questions, answer: bool | Iterable[ApprovalDecision]
) -> tuple[ApprovalDecision, ...]:
    if isinstance(answer, bool):
        return tuple(question.approve() if answer else question.deny() for question in questions)
    with host_code("approve"):
        decisions = read_decisions(answer)
        # Return also decisions that answer none of the questions: the turn records them as ignored.
    answered, _ = settled(questions, decisions)
    rest = (question.deny(NOT_ANSWERED) for question in questions if question.call_id not in answered)
    return (*decisions, *rest)


async def _refused(
    questions: Questions, decisions: Iterable[ApprovalDecision]
) -> list[tuple[ApprovalQuestion, str]]:
    changes = [decision for decision in decisions if decision.verdict == "change"]
    if not changes:
        return []
    return await anyio.to_thread.run_sync(refused_changes, questions, changes)


_INTERNAL_ERROR = -32603  # JSON-RPC's code for an internal error
NOT_WRITTEN = "the call was not sent, because the trace file could not be written before it"


class _DurableConnection(WrappedConnection):
    """A `ToolConnection` that flushes the trace before each call of a tool that is not read-only.

    If the host is killed, the resumed turn does not repeat a call that the trace holds without a result.
    """

    def __init__(
        self, connection: ToolConnection, policy: ToolPolicy, written: Callable[[], Awaitable[bool]]
    ) -> None:
        super().__init__(connection)
        self._policy = policy
        self._written = written
        self._read_only: set[str] = set()

    async def open(self, timeout_s: float) -> Listing:
        listing = await self._connection.open(timeout_s)
        self._learn(listing.tools)
        return listing

    async def refresh_tools(self, timeout_s: float) -> tuple[m.ToolDefinition, ...] | None:
        tools = await self._connection.refresh_tools(timeout_s)
        if tools is not None:
            self._learn(tools)
        return tools

    async def call(self, tool: str, arguments: m.JsonObject, timeout_s: float) -> m.ToolCallResult:
        """Call a tool. Raises `ToolRefusedError`, and sends nothing, if the flush before the call failed."""
        if tool not in self._read_only and not await self._written():
            raise ToolRefusedError(NOT_WRITTEN, code=_INTERNAL_ERROR)
        return await self._connection.call(tool, arguments, timeout_s)

    def _learn(self, tools: tuple[m.ToolDefinition, ...]) -> None:
        self._read_only = {tool.tool for tool in tools if terms_of(self._policy, tool).read_only}


def check_changes(questions: Iterable[ApprovalQuestion], decisions: Iterable[ApprovalDecision]) -> None:
    """Raise `ChangeRefused` if JSON cannot express changed arguments, or the tool's schema refuses them."""
    for question, fault in refused_changes(questions, decisions):
        raise ChangeRefused(
            f"The changed arguments of {question.name} (call {question.call_id}) cannot be used: {fault}."
            " Decide again, with arguments that its input schema takes.",
            call_id=question.call_id,
            name=question.name,
        )


def refused_changes(
    questions: Iterable[ApprovalQuestion], decisions: Iterable[ApprovalDecision]
) -> list[tuple[ApprovalQuestion, str]]:
    """Return each question whose decision has new arguments that cannot be used, with the reason."""
    asked = {question.call_id: question for question in questions}
    changes = [each for each in decisions if each.verdict == "change" and each.call_id in asked]
    faults = ((asked[each.call_id], _fault(asked[each.call_id], each)) for each in changes)
    return [(question, fault) for question, fault in faults if fault is not None]


def _fault(question: ApprovalQuestion, decision: ApprovalDecision) -> str | None:
    try:
        arguments = read_arguments(strict_text(decision.arguments))
    except (TypeError, ValueError, RecursionError) as error:
        return f"JSON cannot express them ({error})"
    if isinstance(arguments, str):
        return arguments
    if question.input_schema is None:
        return None
    from grue.protocol.tools.json_schema import fault_of  # imports a validator that few programs need

    return fault_of(question.input_schema, arguments)


_REASON_CHARS = 500
NOT_SHOWN = "its arguments are too long to be shown whole, so nobody can approve them here"


def ask_at_terminal(questions: tuple[ApprovalQuestion, ...]) -> list[ApprovalDecision]:
    """Ask about each call on standard error. The line `y` or `yes` from standard input approves the call.

    Pass this function to a runner: `Runner(approve=ask_at_terminal)`. Any other line denies the call, and so
    does the end of the input. A call is also denied if standard input or standard error is not a terminal, or
    if its arguments are too long to be shown whole. What was typed before the question is discarded.
    """
    return [_ask(question) for question in questions]


def _ask(question: ApprovalQuestion) -> ApprovalDecision:
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        return question.deny("it needs an approval, and there is no terminal to ask at")
    rows = shown_whole(question.arguments)
    if rows is None:
        return question.deny(NOT_SHOWN)
    why = f" ({printable(question.reason, _REASON_CHARS)})" if question.reason else ""
    # End with a newline: a program that redraws the terminal may hold back an unfinished line.
    asked = [f"Allow {printable(question.name)}", *(f"  {row}" for row in rows), f"?{why} [y/N]"]
    sys.stderr.write("\n".join(asked) + "\n")
    sys.stderr.flush()
    forget_typed(sys.stdin)
    with contextlib.suppress(UnicodeDecodeError):  # a line in another encoding is no approval
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return question.approve()
    return question.deny()


def forget_typed(terminal: object) -> None:
    """Discard what was typed before now: it cannot be the answer to a question that is asked now."""
    fileno = getattr(terminal, "fileno", None)
    with contextlib.suppress(OSError, ValueError, termios.error):
        if fileno is not None:
            termios.tcflush(fileno(), termios.TCIFLUSH)
