"""The actors of one turn: made, wired, started, and waited for."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import anyio
from msgspec import Struct
from msgspec.structs import replace

from grue.actors.agent import AgentActor
from grue.actors.mcp_session import SessionActor
from grue.actors.sampling import CurrentSampler, Sampler
from grue.answers import AnswerCheck
from grue.engine.tool_servers import ToolServer, connect_to, pinning
from grue.mcp_transport.client import ClientOptions
from grue.messages import (
    DeadlineMissed,
    LlmCommand,
    RunTurn,
    ServerName,
    TextDelta,
    TurnCompleted,
    TurnEvent,
    TurnFailed,
)
from grue.processes.limits import ProcessLimits
from grue.processes.process_group import ProcessRegistry
from grue.protocol.connection import Disabled, Proven, Settled
from grue.protocol.tool_lock import ToolLock
from grue.protocol.turn_states import TurnProgress
from grue.protocol.turn_time import kept_for_closing
from grue.runtime.actor import Actor, Note
from grue.runtime.channel import Mailbox
from grue.runtime.host_code import host_code
from grue.runtime.supervisor import Supervisor
from grue.runtime.trace import Envelope, Recorder
from grue.tool_sessions.connection import Connect
from grue.tool_sessions.function_tools import FunctionTools
from grue.tool_sessions.server_requests import Abilities, Elicit
from grue.tool_sessions.server_specs import McpServer
from grue.tool_sessions.session_pool import SessionPool

LlmFactory: TypeAlias = Callable[[Mailbox[LlmCommand], Mailbox[TurnEvent], Note], Actor[LlmCommand]]
"""Makes the actor that takes `RequestCompletion`: its mailbox, the agent's, and where its notes go."""

OnDelta: TypeAlias = Callable[[TextDelta], None]

TurnEnd: TypeAlias = TurnCompleted | TurnFailed

_STOP_GRACE_S = 0.05
"""What an actor gets to end by itself after the turn: by then only a completion nobody waits for runs."""


class Wiring(Struct, frozen=True, kw_only=True):
    """What an episode makes each of its turns from."""

    llm: LlmFactory
    servers: Mapping[ServerName, ToolServer]
    recorder: Recorder
    process_limits: ProcessLimits
    elicit: Elicit | None
    tool_lock: ToolLock | None


class TurnResources(Struct, frozen=True, kw_only=True):
    """Where a turn's processes and sessions are kept.

    Attributes:
        registry: Knows every process.
        pool: Lends sessions; `None`: the turn opens and closes its own.
        sampling: Answers what servers ask of the model, for the turn that is running.
    """

    registry: ProcessRegistry
    pool: SessionPool | None = None
    sampling: CurrentSampler


class TurnActors:
    """Run one turn.

    Args:
        wiring: What its actors are made from.
        place: Where its sessions are kept.
        command: The turn.
        check: The host's check of a final text.
        on_delta: Takes the model's words as they come.

    Attributes:
        connections: What is known of each server afterwards, as far as the turn has settled it.
    """

    def __init__(
        self,
        wiring: Wiring,
        place: TurnResources,
        command: RunTurn,
        check: AnswerCheck[Any],
        on_delta: OnDelta | None = None,
    ) -> None:
        self._wiring = wiring
        self._place = place
        self._command = command
        self._check = check
        self._on_delta = on_delta
        wiring.recorder.hold_back(TextDelta)
        self._agent: AgentActor | None = None
        self._sessions: dict[ServerName, SessionActor] = {}
        self._end_at = self._deadline = float("inf")
        # Sessions that no other turn sees ask for themselves: turns may run at the same time.
        self._sampling = CurrentSampler() if place.pool is None else place.sampling

    @property
    def connections(self) -> dict[ServerName, Settled]:
        """What is known of each server; one whose connect was cancelled is left out."""
        known = {name: session.connection for name, session in self._sessions.items()}
        return {name: state for name, state in known.items() if isinstance(state, Settled)}

    @property
    def progress(self) -> TurnProgress:
        """Where the turn stands."""
        return TurnProgress(doing="starting") if self._agent is None else self._agent.progress

    async def run(self, connections: Mapping[ServerName, Settled]) -> TurnEnd:
        """Run the actors; whatever they do, it is over when the turn's limit has passed.

        Args:
            connections: What the episode knows of each server.
        """
        end = await self._within_limit(connections)
        # Nothing is handed to the host that is not in the trace.
        await self._wiring.recorder.shown()
        return end

    async def _within_limit(self, connections: Mapping[ServerName, Settled]) -> TurnEnd:
        limit_s = self._limit_work(connections)
        with anyio.CancelScope(deadline=self._end_at):
            try:
                end = await self._supervised(connections, self._deadline)
            finally:
                self._sampling.sampler = None
            self._prepare_next()
            return end
        # The agent, cancelled, has still said how the turn ended, unless a session did not let go of it.
        if self._agent is not None and self._agent.end is not None:
            return self._agent.end
        assert limit_s is not None, "only a limit ends the scope"
        failure = DeadlineMissed(limit_s=limit_s, doing="closing its sessions")
        return TurnFailed(turn=self._command.turn, failure=failure)

    def _limit_work(self, connections: Mapping[ServerName, Settled]) -> float | None:
        """Divide the turn's time from now on between its work and its closing; return the limit."""
        limits = self._command.limits
        if limits.turn_timeout_s is None:
            return None
        kept_s = kept_for_closing(limits) if self._has_sessions_to_close(connections) else 0.0
        # The trace tells how much this turn kept.
        self._command = replace(self._command, limits=replace(limits, teardown_s=kept_s))
        self._end_at = anyio.current_time() + limits.turn_timeout_s
        self._deadline = self._end_at - kept_s
        return limits.turn_timeout_s

    def _has_sessions_to_close(self, connections: Mapping[ServerName, Settled]) -> bool:
        """Whether any server may need time to leave; functions need none, nor does what is not connected."""
        return any(
            not isinstance(self._wiring.servers[name], FunctionTools)
            and not isinstance(connections.get(name), Disabled)
            for name in self._command.servers
        )

    async def _supervised(self, connections: Mapping[ServerName, Settled], deadline: float) -> TurnEnd:
        command, recorder = self._command, self._wiring.recorder
        async with Supervisor(recorder, turn=command.turn, stop_grace_s=_STOP_GRACE_S) as supervisor:
            agent = supervisor.mailbox("agent")
            llm = supervisor.mailbox("llm")
            supervisor.start(self._wiring.llm(llm, agent, _shown(supervisor.note, self._on_delta)))
            self._sampling.sampler = self._sampler(supervisor, agent)
            for name in command.servers:
                session = SessionActor(
                    supervisor.mailbox(name),
                    agent=agent,
                    connect=self._connect(name, deadline),
                    note=supervisor.note,
                    connection=connections.get(name),
                    deadline=deadline,
                )
                self._sessions[name] = session
                supervisor.start(session)
            self._agent = AgentActor(
                agent,
                llm=llm,
                sessions={name: session.mailbox for name, session in self._sessions.items()},
                check=self._check,
                note=supervisor.note,
                deadline=deadline,
            )
            supervisor.start(self._agent, whole=True)
            end: TurnEnd = await agent.ask(command, sender="host")
            return end

    def _connect(self, name: ServerName, deadline: float) -> Connect:
        """Return what gives the turn a session: the server itself, or the pool."""
        connect, server = self._fresh(name), self._wiring.servers[name]
        pool = self._place.pool
        if pool is None:
            return connect
        if isinstance(server, FunctionTools):
            return lambda _: server.connect(name, before_calls=pool.wait_closed)
        if not isinstance(server, McpServer):
            return connect
        return lambda _: pool.lend(name, connect, self._command.turn, deadline)

    def _fresh(self, name: ServerName) -> Connect:
        sampled = self._command.limits.max_samplings > 0
        abilities = Abilities(
            sample=self._sampling.on_behalf_of(name) if sampled else None, elicit=self._wiring.elicit
        )
        options = ClientOptions(
            limits=self._wiring.process_limits,
            abilities=abilities,
            pinning=pinning(self._wiring.tool_lock, name, self._command.policy.on_tool_drift),
        )
        return connect_to(name, self._wiring.servers[name], self._place.registry, options)

    def _prepare_next(self) -> None:
        """Have the next turn's sessions opened, where they are to be ready when it begins."""
        pool = self._place.pool
        if pool is None or pool.sessions != "ahead":
            return
        for name, state in self.connections.items():
            if isinstance(state, Proven) and isinstance(self._wiring.servers[name], McpServer):
                limit_s = self._command.limits.server_startup_timeout_s
                pool.prepare(name, self._fresh(name), limit_s)

    def _sampler(self, supervisor: Supervisor, agent: Mailbox[TurnEvent]) -> Sampler | None:
        """Return what answers sampling, if the turn allows any, through an LLM actor of its own."""
        limits = self._command.limits
        if not self._command.servers or not limits.max_samplings:
            return None
        llm = supervisor.mailbox("llm-sampling")
        supervisor.start(self._wiring.llm(llm, agent, _shown(supervisor.note, None)))
        return Sampler(llm, limits.max_samplings)


def _shown(note: Note, on_delta: OnDelta | None) -> Note:
    """Return a note-taker that shows the host the model's words after they are recorded.

    What the host's observers and its callback raise is not taken for a fault of the exchange with the model.
    """

    def note_and_show(body: Any, *, sender: str, cause: int | None = None) -> Envelope[Any]:
        with host_code():
            envelope = note(body, sender=sender, cause=cause)
            if on_delta is not None and isinstance(body, TextDelta):
                on_delta(body)
        return envelope

    return note_and_show
