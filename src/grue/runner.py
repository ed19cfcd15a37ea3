"""The composition root: actors, channels, configuration and observers are wired here, once a turn.

A `Runner` is an episode. Between its turns it remembers only plain data: the number of the last turn, and for
each tool server whether it has ever been connected or is given up. `run_turn` is the blocking edge,
`run_turn_async` its twin; both run the same coroutine.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar, assert_never

import anyio
from msgspec import Struct
from msgspec.structs import replace

from grue.actors.agent import AgentActor
from grue.actors.mcp_session import Connect, SessionActor
from grue.actors.sampling import Sampler
from grue.answers import AnswerCheck, AnswerSpec, as_json
from grue.mcp_transport.client import ClientOptions
from grue.mcp_transport.process_group import ProcessRegistry
from grue.mcp_transport.server_requests import Abilities, Elicit
from grue.mcp_transport.stdio import ProcessLimits
from grue.messages import (
    Budget,
    DeadlineMissed,
    FailurePolicy,
    LlmCommand,
    OutcomeKind,
    RunTurn,
    ServerName,
    TextDelta,
    ToolCallRecord,
    TurnCompleted,
    TurnEvent,
    TurnFailed,
    TurnLimits,
    Usage,
)
from grue.protocol.budget import Spent
from grue.protocol.connection import ConnectionState, Disabled, Settled, Untried
from grue.protocol.tool_lock import ToolLock
from grue.runtime.actor import Actor, Note
from grue.runtime.channel import Mailbox
from grue.runtime.supervisor import Supervisor
from grue.runtime.sync_edge import run_blocking
from grue.runtime.trace import Envelope, Recorder
from grue.tool_servers import ToolServer, connect_to, hide_secrets, pinning, usable_servers
from grue.turn_errors import error_for

if TYPE_CHECKING:
    from grue.actors.llm_endpoint import LlmEndpoint, LlmSettings

T = TypeVar("T")

LlmFactory: TypeAlias = Callable[[Mailbox[LlmCommand], Mailbox[TurnEvent], Note], Actor[LlmCommand]]
"""Makes the actor that takes `RequestCompletion`: its mailbox, the agent's, and where its notes go."""

OnDelta: TypeAlias = Callable[[TextDelta], None]


class TurnRequest(Struct, Generic[T], frozen=True, kw_only=True):
    """What a host asks of one turn.

    Attributes:
        system: Instructions.
        user: What there is to decide upon.
        answer: What a valid answer is; `None`: any text.
        turn_timeout_s: Limit for the whole turn, teardown included; `None`: the runner's.
        turn: Its number in the episode; `None`: one more than the last.
        tools: Offer the runner's tools; `False`: none this turn.
        on_delta: Takes the model's words as they come, in the thread or task of the turn; what it raises
            ends the turn. `None`: replies are not streamed.
    """

    system: str
    user: str
    answer: AnswerSpec[T] | None = None
    turn_timeout_s: float | None = None
    turn: int | None = None
    tools: bool = True
    on_delta: Callable[[TextDelta], None] | None = None


class TurnOutcome(Struct, Generic[T], frozen=True, kw_only=True):
    """What came of a turn that has an answer.

    Attributes:
        kind: `answered`; `forced` (the model was told to finish); `degraded` (without tools that were
            wanted); `fallback` (the host's own value, because the model gave no acceptable answer).
        response: The answer.
        reason: Why the kind is not `answered`; empty otherwise.
        raw_response: The text that the answer was read from, or the last one that was refused.
        tool_calls: Every tool call, in order, with what became of it.
        iterations: Replies with tool calls.
        requests: Completions that were asked for.
        duration_s: Of the whole turn.
    """

    turn: int
    kind: OutcomeKind
    response: T
    reason: str
    raw_response: str | None
    tool_calls: tuple[ToolCallRecord, ...]
    iterations: int
    requests: int
    usage: Usage
    duration_s: float


class Runner:
    """Run the turns of one episode.

    Use it as a context manager, or call `close`. Turns are run one at a time.

    Args:
        llm: The model: an endpoint, the settings for one, or a factory for an actor of your own.
        servers: Tool servers by name; names may not contain a dot. Empty: turns without tools.
        limits: How much a turn may use.
        policy: What failures lead to.
        recorder: Where everything is recorded; `None`: a new one without observers.
        process_limits: How server processes are ended.
        elicit: Asks the person behind the host what a server wants to know; `None`: always declined.
        tool_lock: The definitions that the user has approved of the MCP servers' tools; what becomes of
            others is in `policy.on_tool_drift`. `None`: whatever they list.
        budget: For the model, for all turns together; a single turn's is in `limits.budget`.

    Raises:
        MCPConfigError: A server name cannot be used.
        MissingDependencyError: There is an MCP server to talk to, and `mcp` is absent or too old (R14.4).
    """

    def __init__(
        self,
        *,
        llm: "LlmSettings | LlmEndpoint | LlmFactory",
        servers: Mapping[str, ToolServer] | None = None,
        limits: TurnLimits | None = None,
        policy: FailurePolicy | None = None,
        recorder: Recorder | None = None,
        process_limits: ProcessLimits | None = None,
        elicit: Elicit | None = None,
        tool_lock: ToolLock | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.recorder = recorder or Recorder()
        self.limits = limits or TurnLimits()
        self.policy = policy or FailurePolicy()
        self.budget = budget or Budget()
        self.spent = Spent()
        self.turn = 0
        self._endpoint: LlmEndpoint | None = None
        if callable(llm):
            self._llm = llm
        else:
            self._endpoint = _endpoint(llm)
            self._llm = _llm_actor(self._endpoint)
        self._servers = usable_servers(servers or {})
        self._process_limits = process_limits or ProcessLimits()
        self._elicit = elicit
        self._tool_lock = tool_lock
        self._hide_secrets(llm)
        self._connections: dict[ServerName, Settled] = {}

    @classmethod
    def from_toml(
        cls, path: str | PathLike[str] = "pyproject.toml", *, recorder: Recorder | None = None
    ) -> Self:
        """Make a runner from `[tool.zorkgpt.*]` of a TOML file; with MCP enabled, all its servers (R2.4).

        The key comes from the environment: `GRUE_API_KEY`, `OPENROUTER_API_KEY`, `OPENAI_API_KEY`.

        Raises:
            MCPConfigError: A file is missing or has something that cannot be used.
        """
        from grue.config.wiring import from_configuration

        configured = from_configuration(path)
        return cls(
            llm=configured.llm,
            servers=configured.servers,
            limits=configured.limits,
            policy=configured.policy,
            recorder=recorder,
            tool_lock=configured.tool_lock,
            budget=configured.budget,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the episode. With a session each turn nothing is left to end; a second call does nothing."""

    @property
    def servers(self) -> Sequence[str]:
        """Names of the tool servers, in order."""
        return tuple(self._servers)

    @property
    def budget_spent(self) -> str:
        """Which limit of the episode's budget is reached, in words; empty: none, and turns can be run."""
        return self.spent.reached(self.budget)

    @property
    def disabled(self) -> Mapping[str, str]:
        """Servers that are given up for the rest of the episode, with the reason (R6.10, P27)."""
        return {
            name: state.reason for name, state in self._connections.items() if isinstance(state, Disabled)
        }

    def connection(self, server: str) -> Settled:
        """Return what the episode remembers of a server; plain data, fit to be stored."""
        return self._connections.get(ServerName(server), Untried())

    def remember(self, server: str, connection: Settled) -> None:
        """Go on with what an earlier part of the episode remembered; a resumed turn is never the first."""
        self._connections[ServerName(server)] = connection

    def run_turn(self, request: TurnRequest[T]) -> TurnOutcome[T]:
        """Think and answer, blocking: exactly one `anyio.run` (R10.1, P39).

        When it returns or raises, no process of this turn is alive. Called where an event loop runs, it works
        all the same, in a thread of its own, and warns once (P40).

        Raises:
            MCPServerStartupError: The first connect of the episode failed (R6.1).
            LLMError: The model gave no completion, after all retries.
            BudgetSpent: The episode's budget is used up; nothing was started.
            MCPError: The model cannot be offered tools (R12.5).
            TurnTimedOut: The turn's limit passed.
            AnswerError: No acceptable answer, and no fallback.
            ActorCrashed: Something unforeseen, the exception as its cause.
            KeyboardInterrupt: Ctrl-C, within seconds, whatever the turn was doing.
        """
        registry = ProcessRegistry()
        return run_blocking(
            lambda: self._run_turn(request, registry),
            last_word=registry.kill_leftovers,
            hurry=registry.kill_now,
            twin="Runner.run_turn_async",
        )

    async def run_turn_async(self, request: TurnRequest[T]) -> TurnOutcome[T]:
        """Think and answer, as `run_turn` does, in the caller's event loop. Cancelling ends the turn."""
        registry = ProcessRegistry()
        try:
            return await self._run_turn(request, registry)
        finally:
            registry.kill_leftovers()

    async def _run_turn(self, request: TurnRequest[T], registry: ProcessRegistry) -> TurnOutcome[T]:
        self.turn = self.turn + 1 if request.turn is None else request.turn
        answer: AnswerSpec[Any] = request.answer or AnswerSpec.text()
        limits = _turn_limits(self.limits, request.turn_timeout_s)
        limits = replace(limits, budget=self.spent.left(self.budget, limits.budget))
        started = time.monotonic()
        check = AnswerCheck(answer)
        command = self._command(request, answer, limits)
        end = await self._supervised(command, check, registry, request.on_delta)
        self.spent = self.spent.plus(end.requests, end.usage)
        match end:
            case TurnCompleted():
                response = answer.fallback if end.kind == "fallback" else check.accepted
                return outcome_of(end, response, time.monotonic() - started)
            case TurnFailed():
                raise error_for(end)
            case _:
                assert_never(end)

    def _command(self, request: TurnRequest[T], answer: AnswerSpec[Any], limits: TurnLimits) -> RunTurn:
        return RunTurn(
            turn=self.turn,
            system=request.system,
            user=request.user,
            servers=tuple(self._servers) if request.tools else (),
            answer=answer.schema,
            fallback=None if answer.fallback is None else as_json(answer.fallback),
            limits=limits,
            policy=self.policy,
            support_check="skip" if self._endpoint is None else self._endpoint.support_check(),
            stream=request.on_delta is not None,
        )

    async def _supervised(
        self, command: RunTurn, check: AnswerCheck[Any], registry: ProcessRegistry, on_delta: OnDelta | None
    ) -> TurnCompleted | TurnFailed:
        """Run the turn's actors; whatever they do, it is over when its limit has passed."""
        limit_s = command.limits.turn_timeout_s
        end_at = float("inf") if limit_s is None else anyio.current_time() + limit_s
        deadline = end_at - command.limits.teardown_s
        with anyio.CancelScope(deadline=end_at):
            return await self._with_actors(command, check, registry, deadline, on_delta)
        assert limit_s is not None, "only a limit ends the scope"
        failure = DeadlineMissed(limit_s=limit_s, doing="closing its sessions")
        return TurnFailed(turn=command.turn, failure=failure)

    async def _with_actors(
        self,
        command: RunTurn,
        check: AnswerCheck[Any],
        registry: ProcessRegistry,
        deadline: float,
        on_delta: OnDelta | None,
    ) -> TurnCompleted | TurnFailed:
        sessions: dict[ServerName, SessionActor] = {}
        try:
            async with Supervisor(self.recorder, turn=command.turn, stop_grace_s=_STOP_GRACE_S) as supervisor:
                agent = supervisor.mailbox("agent")
                llm = supervisor.mailbox("llm")
                supervisor.start(self._llm(llm, agent, _shown(supervisor.note, on_delta)))
                sampler = self._sampler(command, supervisor, agent)
                for name in command.servers:
                    sessions[name] = SessionActor(
                        supervisor.mailbox(name),
                        agent=agent,
                        connect=self._connect(name, registry, command.limits, sampler),
                        note=supervisor.note,
                        connection=self._connections.get(name),
                        deadline=deadline,
                    )
                    supervisor.start(sessions[name])
                supervisor.start(
                    AgentActor(
                        agent,
                        llm=llm,
                        sessions={name: session.mailbox for name, session in sessions.items()},
                        check=check,
                        note=supervisor.note,
                        deadline=deadline,
                    )
                )
                end: TurnCompleted | TurnFailed = await agent.ask(command, sender="host")
                return end
        finally:
            for name, session in sessions.items():
                self._remember(name, session.connection)

    def _hide_secrets(self, llm: "LlmSettings | LlmEndpoint | LlmFactory") -> None:
        """Keep what must not be shown out of everything that is recorded."""
        hide_secrets(self.recorder, self._servers.values())
        settings = getattr(llm, "settings", llm)
        key = getattr(settings, "api_key", None)
        if key and len(key) >= _SHORTEST_KEY:
            self.recorder.hide("api_key", key)

    def _remember(self, name: ServerName, connection: ConnectionState) -> None:
        # A turn that was cancelled while it connected leaves what was known before.
        if isinstance(connection, Settled):
            self._connections[name] = connection

    def _connect(
        self, name: ServerName, registry: ProcessRegistry, limits: TurnLimits, sampler: Sampler | None
    ) -> Connect:
        abilities = Abilities(
            sample=None if sampler is None else sampler.on_behalf_of(name), elicit=self._elicit
        )
        options = ClientOptions(
            limits=_process_limits(self._process_limits, limits),
            abilities=abilities,
            pinning=pinning(self._tool_lock, name, self.policy.on_tool_drift),
        )
        return connect_to(name, self._servers[name], registry, options)

    def _sampler(self, command: RunTurn, supervisor: Supervisor, agent: Mailbox[TurnEvent]) -> Sampler | None:
        """Return what answers sampling, if the turn allows any, through an LLM actor of its own."""
        if not command.servers or not command.limits.max_samplings:
            return None
        llm = supervisor.mailbox("llm-sampling")
        supervisor.start(self._llm(llm, agent, supervisor.note))
        return Sampler(llm, command.limits.max_samplings)


_SHORTEST_KEY = 8
"""Shorter ones are words such as `none` or `ollama`, which are no secrets and stand in other texts."""

_STOP_GRACE_S = 0.05
"""What an actor gets to end by itself after the turn: by then only a completion nobody waits for runs."""


def _endpoint(llm: "LlmSettings | LlmEndpoint") -> "LlmEndpoint":
    from grue.actors.llm_endpoint import LlmEndpoint

    return llm if isinstance(llm, LlmEndpoint) else LlmEndpoint(llm)


def _shown(note: Note, on_delta: OnDelta | None) -> Note:
    """Return a note-taker that shows the host the model's words after they are recorded."""
    if on_delta is None:
        return note

    def note_and_show(body: Any, *, sender: str, cause: int | None = None) -> Envelope[Any]:
        envelope = note(body, sender=sender, cause=cause)
        if isinstance(body, TextDelta):
            on_delta(body)
        return envelope

    return note_and_show


def _llm_actor(endpoint: "LlmEndpoint") -> LlmFactory:
    from grue.actors.llm import LlmActor

    def make(mailbox: Mailbox[LlmCommand], agent: Mailbox[TurnEvent], note: Note) -> Actor[LlmCommand]:
        return LlmActor(mailbox, agent, endpoint, note)

    return make


def _turn_limits(limits: TurnLimits, turn_timeout_s: float | None) -> TurnLimits:
    """Return the limits of one turn; a short one keeps at most half of its time for teardown."""
    limit = limits.turn_timeout_s if turn_timeout_s is None else turn_timeout_s
    if limit is None:
        return limits
    return replace(limits, turn_timeout_s=limit, teardown_s=min(limits.teardown_s, limit / 2))


def _process_limits(process: ProcessLimits, limits: TurnLimits) -> ProcessLimits:
    """Return graces that fit into the turn's teardown, with a fifth of it to spare for the kill."""
    share = limits.teardown_s * 0.4
    return replace(
        process,
        exit_grace_s=min(process.exit_grace_s, share),
        term_grace_s=min(process.term_grace_s, share),
    )


def outcome_of(end: TurnCompleted, response: Any, duration_s: float) -> TurnOutcome[Any]:
    """Return what a host gets to see of a turn that is completed."""
    return TurnOutcome(
        turn=end.turn,
        kind=end.kind,
        response=response,
        reason=end.reason,
        raw_response=end.raw_response,
        tool_calls=end.tool_calls,
        iterations=end.iterations,
        requests=end.requests,
        usage=end.usage,
        duration_s=duration_s,
    )
