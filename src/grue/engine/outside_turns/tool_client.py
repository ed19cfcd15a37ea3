"""Use tool servers without an agent: `ToolClient` connects, calls and closes; `judge_calls` asks the policy.

`judge_calls` and `ask_about` are for hosts that carry out a model's tool calls themselves, by the same rules
as in a turn. The calls of one reply are judged together before the first of them is made.
"""

import contextlib
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

import anyio
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.engine import tool_servers
from grue.engine.outside_turns.server_sessions import ServerSessions, SessionWork
from grue.engine.outside_turns.tool_access import ToolAccess
from grue.errors import MCPConfigError, MCPError, TurnCancelled
from grue.field_checks import shown
from grue.policies import ApprovalDecision, ApprovalQuestion, ToolPolicy, TurnLimits
from grue.protocol.tools.policy import judge, judged, own_copies, question_about, read_decisions, settled
from grue.runtime.loops.interrupts import defer_interrupts
from grue.runtime.loops.loop_thread import EpisodeLoop, ErrorTexts
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.processes.process_group import ProcessRegistry
from grue.runtime.trace.recorder import Recorder
from grue.tool_sessions.host_tools import ToolServer
from grue.tool_sessions.server_requests import Abilities, Elicit
from grue.transports.mcp.client_options import ClientOptions

T = TypeVar("T")


class ToolClient(ToolAccess):
    """Keep sessions with tool servers open within the block. After the block no server process is alive.

    ```python
    with ToolClient({"files": StdioServer(command="mcp-files")}) as client:
        print(client.call("files.read", {"path": "notes.txt"}).content)
    ```

    Thread-safe: threads share one session per server. Ctrl-C cancels the current call; if it also ends the
    block, each server has only `process_limits.cancelled_grace_s` to exit before it is terminated. If the
    block is never left, the client is closed at the interpreter's exit or when it is garbage collected.

    Args:
        servers: The tool servers by name, as for a `Runner`.
        limits: Only the start-up limits and `tool_call_timeout_s` are used.
        recorder: Records the sessions' messages; `None`: they are not recorded.
        process_limits: How server processes are ended, and how large their messages may be.
        elicit: A coroutine function that asks the user a server's question; `None`: questions are declined.
        max_reconnects: How often in all a server that has died is connected again, each time before the next
            call to it. After a failure, later calls do not try again. `None`: no limit, and later calls and
            `tools()` try again. The call during which a server died is never repeated.

    Raises:
        MCPConfigError: An argument cannot be used, for example a server's name.
        MissingDependencyError: There is an MCP server to talk to, and `mcp` is absent or too old.

    Source: R14.4, P9
    """

    def __init__(
        self,
        servers: Mapping[str, ToolServer],
        *,
        limits: TurnLimits | None = None,
        recorder: Recorder | None = None,
        process_limits: ProcessLimits | None = None,
        elicit: Elicit | None = None,
        max_reconnects: int | None = 0,
    ) -> None:
        tool_servers.refuse_other_kinds(recorder=recorder, elicit=elicit, process_limits=process_limits)
        self.limits = tool_servers.settings_or_default("limits", limits, TurnLimits())
        self.recorder = recorder or Recorder()
        self._servers = tool_servers.with_settings(tool_servers.usable_servers(servers), self.limits)
        self._options = ClientOptions(
            limits=process_limits or ProcessLimits(),
            abilities=Abilities(elicit=elicit),
            on_secret=self.recorder.hide,
        )
        tool_servers.hide_secrets(self.recorder, self._servers.values())
        if not isinstance(max_reconnects, int | None) or (max_reconnects or 0) < 0:
            raise MCPConfigError(
                f"max_reconnects= wants a number, 0 or more, or None for any, not {shown(max_reconnects)}."
            )
        self._max_reconnects = max_reconnects
        self._registry = ProcessRegistry()
        self._sessions = self._new_sessions()
        self._loop: EpisodeLoop | None = None

    def __enter__(self) -> Self:
        if self._loop is not None:
            raise RuntimeError("the ToolClient is in a `with` block already: one block at a time can use it")
        self._sessions = sessions = self._new_sessions()
        self._loop = EpisodeLoop(
            lambda _: _closing_at_end(sessions),
            on_exit=self._registry.kill_leftovers,
            force_kill=self._registry.kill_now,
            error_texts=_ERROR_TEXTS,
        )
        self._lost = weakref.finalize(self, self._loop.end)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._close(hurried=exc_type is not None and not issubclass(exc_type, Exception))

    def close(self) -> None:
        """Close every session and wait until its process has ended. A second call does nothing.

        Calls of other threads that are still running raise an error.
        """
        self._close(hurried=False)

    @property
    def closed(self) -> Mapping[str, m.SessionClosed]:
        """How each server's last session ended, if it has ended, by server name."""
        return self._sessions.closed

    def connect(self, *names: str) -> Mapping[str, m.SessionOpened | m.ServerFailure]:
        """Connect to servers in parallel, with one attempt each, and return the results in order.

        An open session is kept, unless its server has died: then a new session replaces it.

        Args:
            names: Names of the servers; none: all servers.

        Raises:
            KeyError: There is no server of that name.
        """
        wanted = [m.ServerName(name) for name in names] or list(self._servers)
        for name in wanted:
            self._servers[name]
        outcomes = self._outside_turns(lambda sessions: sessions.connect(wanted))
        return {str(name): outcome for name, outcome in outcomes.items()}

    def _new_sessions(self) -> ServerSessions:
        return ServerSessions(
            servers={
                name: tool_servers.connect_to(name, server, self._registry, self._options)
                for name, server in self._servers.items()
            },
            recorder=self.recorder,
            limits=tool_servers.startup_limits(self.limits, self._servers),
            max_reconnects=self._max_reconnects,
            lasting=True,
        )

    def _outside_turns(self, work: SessionWork[T]) -> T:
        loop, sessions = self._loop, self._sessions
        if loop is None:
            raise RuntimeError("use the ToolClient in a `with` block")
        loop.loop_thread.refuse_waiting()
        with defer_interrupts():
            try:
                return loop.submit(lambda: work(sessions)).wait(force_kill=self._registry.kill_now)
            except TurnCancelled as cut:
                raise MCPError(str(cut)) from cut.__cause__

    def _close(self, *, hurried: bool) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        self._lost.detach()
        sessions = self._sessions
        with defer_interrupts():
            try:
                # A forked child must not close the sessions: they are the parent's.
                thread = loop.loop_thread
                if not (loop.is_over or thread.is_here or thread.is_forked):
                    closing = loop.submit(lambda: sessions.close(hurried=hurried))
                    closing.wait(force_kill=self._registry.kill_now)
            finally:
                loop.close()


@contextlib.asynccontextmanager
async def _closing_at_end(sessions: ServerSessions) -> AsyncIterator[None]:
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await sessions.close(hurried=True)


_ERROR_TEXTS = ErrorTexts(
    forked="The ToolClient is its parent process's: make a new one after a fork.",
    waiting="A ToolClient cannot be waited for in its own event loop, where what it asks the host runs.",
    closed="The ToolClient is closed.",
    ended_early="The ToolClient was closed before the call was over.",
)


AskPerson: TypeAlias = Callable[[tuple[ApprovalQuestion, ...]], bool | Iterable[ApprovalDecision] | None]
"""A host's function that answers questions about calls. It returns `True` or `False` for all of them, or a
decision for each, or `None` if nobody can answer now."""

_NO_ANSWER = "it needs an approval, and there was none"


class OwnCall(Struct, frozen=True, kw_only=True):
    """A call that a host is about to make, and the policy's verdict on it.

    Attributes:
        call_id: Identifies the call among those that are judged together.
        tool: The tool that is called; a host's own actions can be described as tools.
        denied: Why the call must not be made; empty: the call may be made, unless `question` is open.
        question: The question that a person has to answer first; `None`: no question is asked.
    """

    call_id: str
    tool: m.ToolDefinition
    arguments: m.JsonObject
    denied: str = ""
    question: ApprovalQuestion | None = None

    def decided(self, decision: ApprovalDecision | None) -> "OwnCall":
        """Return the call with a person's decision. If nobody has decided (`None`), the call is denied."""
        if decision is None:
            return replace(self, denied=_NO_ANSWER, question=None)
        found = judged(decision)
        arguments = self.arguments if found.changed is None else found.changed
        return replace(self, arguments=arguments, denied=found.denied, question=None)


class AskedCalls(Struct, frozen=True, kw_only=True):
    """The calls of one reply after a person was asked about them."""

    calls: tuple[OwnCall, ...]  # with the decisions about them unless `parked`
    questions: tuple[ApprovalQuestion, ...] = ()  # all; if `parked`, only those that are still open
    decisions: tuple[ApprovalDecision, ...] = ()  # the valid ones so far; see `decisions_about`
    parked: bool = False  # nobody could answer, and the policy says that the host should wait for decisions
    expires_at: float | None = None  # with `parked`: no decision is accepted after this Unix time, if any


def judge_calls(
    calls: Sequence[OwnCall],
    policy: ToolPolicy,
    *,
    approved: AbstractSet[str] = frozenset(),
    made: Sequence[m.ToolDefinition] = (),
) -> tuple[OwnCall, ...]:
    """Return the calls, each with the policy's verdict: `denied`, `question`, or neither.

    Args:
        calls: The calls, in the order in which they are to be made.
        policy: The policy that judges the calls.
        approved: Canonical names of tools that were approved in advance: the policy does not ask about them.
            A tool that the policy denies stays denied.
        made: The tool of each call that was already made for the same reply of the model, for example by a
            process that was killed. These calls count towards the policy's `max_calls`.
    """
    _, used = judge(policy, made, {})
    terms, _ = judge(policy, [call.tool for call in calls], used)
    judged = []
    for call, verdict in zip(calls, terms, strict=True):
        if verdict.verdict == "deny":
            judged.append(replace(call, denied=verdict.reason))
        elif verdict.verdict == "ask" and call.tool.name not in approved:
            question = question_about(call.call_id, call.tool, call.arguments, verdict.reason)
            judged.append(replace(call, question=question))
        else:
            judged.append(call)
    return tuple(judged)


def decisions_about(
    questions: Iterable[ApprovalQuestion], answer: bool | Iterable[ApprovalDecision]
) -> dict[str, ApprovalDecision]:
    """Return the decisions about the questions, by call id.

    `answer` is `True` (approve all), `False` (deny all), or decisions. A decision is ignored if its call id,
    tool, definition and original arguments are those of no question. Decisions that contradict each other
    deny the call.
    """
    asked = tuple(questions)
    if isinstance(answer, bool):
        return {each.call_id: each.approve() if answer else each.deny() for each in asked}
    counted, _ = settled(asked, read_decisions(answer))
    return {str(call_id): decision for call_id, decision in counted.items()}


def ask_about(
    calls: tuple[OwnCall, ...],
    policy: ToolPolicy,
    ask: AskPerson | None,
    *,
    given: Iterable[ApprovalDecision] = (),
    earlier: Iterable[ApprovalDecision] = (),
    expires_at: float | None = None,
) -> AskedCalls:
    """Ask a person about those calls of one reply that were not decided before.

    Args:
        calls: As `judge_calls` returns them.
        policy: If nobody can answer, the calls are parked if `policy.parking` is set, and otherwise denied.
        ask: Answers the questions; `None` if nobody can be asked.
        given: Decisions that were made since the calls were parked.
        earlier: `AskedCalls.decisions`, as returned when the calls were parked.
        expires_at: `AskedCalls.expires_at`, as returned when the calls were parked. After this time `given`
            is ignored, calls without a decision are denied, and nobody is asked.
    """
    questions = tuple(call.question for call in calls if call.question is not None)
    expired = expires_at is not None and expires_at < time.time()
    found = decisions_about(questions, (*earlier, *(() if expired else given)))
    rest = tuple(each for each in questions if each.call_id not in found)
    if rest and not expired:
        answer = None if ask is None else ask(own_copies(rest))
        if answer is not None:
            found |= decisions_about(rest, answer)
        elif policy.parking:
            until = None if policy.park_for_s is None else time.time() + policy.park_for_s
            return AskedCalls(
                calls=calls,
                questions=rest,
                decisions=tuple(found.values()),
                parked=True,
                expires_at=until if expires_at is None else expires_at,
            )
    decided = (call if call.question is None else call.decided(found.get(call.call_id)) for call in calls)
    return AskedCalls(calls=tuple(decided), questions=questions, decisions=tuple(found.values()))
