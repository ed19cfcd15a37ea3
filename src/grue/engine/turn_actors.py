"""Make the actors of one turn, connect their mailboxes, start them, and wait for the turn's end.

The turn's decisions are made in `protocol/tool_loop.py`, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.actors.agent import AgentActor
from grue.actors.approval import ApprovalActor
from grue.actors.built_in import AnswersCall, BuiltInTools
from grue.actors.llm import EndpointActors, LlmActor
from grue.actors.mcp_session import SessionActor
from grue.actors.sampling import CurrentSampler, Sampler
from grue.engine.answers import AnswerCheck
from grue.engine.conversations.kept_conversation import EarlierResults
from grue.engine.tool_servers import starts_when_called
from grue.engine.wiring import Wiring, connect_fresh
from grue.errors import MCPConfigError
from grue.field_checks import shown
from grue.protocol.tools.names import SERVER
from grue.protocol.turn.connection import Connecting, ConnectionState, Disabled, Proven, Settled, is_given_up
from grue.protocol.turn.end import kept_for_closing
from grue.protocol.turn.prices import Spent
from grue.protocol.turn.states import TurnProgress
from grue.runtime.actor import Actor, Mailbox, Note, Supervisor, raise_crash
from grue.runtime.loading import importing
from grue.runtime.loops.beside_loop import call_in_daemon_thread
from grue.runtime.loops.host_code import HostCodeFailed, host_code, single
from grue.runtime.processes.process_group import ProcessRegistry
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.tool_sessions.connection import Connect
from grue.tool_sessions.host_tools import HostTools
from grue.tool_sessions.server_specs import McpServer
from grue.transports.llm.endpoint import current_room

if TYPE_CHECKING:
    from grue.tool_sessions.session_pool import SessionPool

OnDelta: TypeAlias = Callable[[m.TextDelta], None]

_UNSENT_S = 1.0
_SAVING_S = 1.0
_STOP_GRACE_S = 0.05  # short, because nobody needs what an actor still does after the turn's end


class TurnResources(Struct, frozen=True, kw_only=True):
    """The processes and sessions that a turn may use."""

    registry: ProcessRegistry  # lets processes be killed from outside the event loop
    pool: SessionPool | None = None  # `None`: the turn opens its own sessions
    sampling: CurrentSampler  # passes the sampling requests of the pool's sessions to the running turn


@dataclass(eq=False, repr=False)
class EarlyRequest:
    """Holds back texts and imports in a turn whose first request may be sent before the servers have started.

    The texts are held back because the reply may be dropped if the servers list other tools than the request
    has offered. Imports of the MCP client, which block all threads, wait for the request to be written, but
    at most 1 s.
    """

    _on_delta: OnDelta | None
    agent: AgentActor | None = None
    _held: list[m.TextDelta] = field(default_factory=list)
    _sent: anyio.Event = field(default_factory=anyio.Event)

    def show(self, delta: m.TextDelta) -> None:
        """Pass a piece of a reply's text to the host, or hold it until the tools are verified."""
        if self._on_delta is None:
            return
        if self._held and self._held[0].request != delta.request:
            self._held.clear()
        if self._held or (self.agent is not None and self.agent.is_presuming):
            self._held.append(delta)
        else:
            self._on_delta(delta)

    def releasing(self, note: Note, fail: Callable[[str, BaseException], None]) -> Note:
        """Return a function that calls `note`, and after a `ToolsVerified` gives the host the held texts."""

        def note_and_release(body: Any, *, sender: str, cause: int | None = None) -> Envelope[Any]:
            envelope = note(body, sender=sender, cause=cause)
            if isinstance(body, m.ToolsVerified) and self._on_delta is not None:
                held, self._held = self._held, []
                try:
                    with host_code("on_delta"):
                        for delta in held:
                            self._on_delta(delta)
                except HostCodeFailed as failed:
                    # Do not raise here: the caller is the agent, which still has to end the turn.
                    fail("llm", single(failed))
            return envelope

        return note_and_release

    def sent(self) -> None:
        """Let `wait_sent` return: the request has been written, or its exchange has ended."""
        self._sent.set()

    def stepped(self) -> None:
        """Let `wait_sent` return unless an early request is under way or may follow."""
        if self.agent is not None and not (self.agent.is_presuming or self.agent.may_presume):
            self._sent.set()

    async def wait_sent(self) -> None:
        """Wait, at most 1 s, while an early request may still have to be written."""
        with anyio.move_on_after(_UNSENT_S):
            await self._sent.wait()


class TurnsPast(Struct, frozen=True, kw_only=True):
    """The recorded beginning of a turn, if the turn is a fork, or waited for a batch and now goes on."""

    noted: m.TurnForked | m.WaitEnded | None = None  # the note of the fork or wait; `None`: neither
    begun: Envelope[Any] | None = None  # the last recorded `RunTurn`; `None`: run the turn from its start
    events: tuple[m.TurnEvent, ...] = ()  # the agent gets these first; the commands for them are not sent
    copied: tuple[Envelope[Any], ...] = ()  # recorded messages that the fork's own trace repeats
    event: Envelope[Any] | None = None  # the agent gets this next; the commands for it are sent
    rewrites: tuple[m.HistoryRewritten, ...] = ()  # changes of the history that only the fork makes
    reopened: Mapping[m.ServerName, m.OpenSession] = {}  # of each session that is open at the fork


class _Mailboxes(dict[m.ServerName, Mailbox[m.SessionCommand]]):
    """The mailboxes of session actors. Looking up a server without an actor starts an actor for it."""

    def __init__(self, start: Callable[[m.ServerName], Mailbox[m.SessionCommand]]) -> None:
        super().__init__()
        self._start = start

    def __missing__(self, name: m.ServerName) -> Mailbox[m.SessionCommand]:
        self[name] = mailbox = self._start(name)
        return mailbox


@dataclass(eq=False, repr=False)
class TurnActors:
    """The actors of one turn. Call `run` once."""

    _wiring: Wiring
    _resources: TurnResources
    _command: m.RunTurn
    _check: AnswerCheck[Any]
    _on_delta: OnDelta | None = None
    _earlier: EarlierResults | None = None
    _past: TurnsPast = field(default_factory=TurnsPast)
    agent: AgentActor | None = None
    _early: EarlyRequest | None = None
    _asking: Actor[m.LlmCommand] | None = None
    _sessions: dict[m.ServerName, SessionActor] = field(default_factory=dict)
    _before: Mapping[m.ServerName, Settled] = field(default_factory=dict)
    _end_at: float = float("inf")
    _deadline: float = float("inf")

    def __post_init__(self) -> None:
        self._wiring.recorder.hold_back(m.TextDelta)
        # Turns without a pool may run in parallel, each with sessions of its own. A pool's sessions serve one
        # turn after the other, so its turns share one `CurrentSampler`.
        own = self._resources.pool is None
        self._sampling = CurrentSampler() if own else self._resources.sampling

    @property
    def connections(self) -> dict[m.ServerName, Settled]:
        """The state of each server that has a session actor, if the state is `Proven` or `Disabled`."""
        known = {name: session.connection for name, session in self._sessions.items()}
        return {name: state for name, state in known.items() if isinstance(state, Proven | Disabled)}

    @property
    def unreported(self) -> m.Usage:
        """An estimate of what a request to the model has cost that the end of the turn has cancelled."""
        return self._asking.unreported if isinstance(self._asking, LlmActor) else m.Usage()

    @property
    def progress(self) -> TurnProgress:
        """The turn's progress."""
        return TurnProgress(doing="starting") if self.agent is None else self.agent.progress

    async def run(self, connections: Mapping[m.ServerName, Settled]) -> m.TurnEnd | m.TurnWaits:
        """Run the turn; return its end, or `TurnWaits`. At the turn's time limit the actors are cancelled."""
        # In a resumed turn (not in its fork) a server's first connect counts as the first in the episode, as
        # in a new process. Unless the policy disables the server, a failed connect leaves the turn parked.
        if self._command.resumed is None or self._past.noted is not None:
            self._before = connections
        end = await self._within_limit()
        await self._save_listings()
        # Wait until all messages of the turn are in the trace, because the host acts on the result.
        await self._wiring.recorder.shown()
        return end

    async def _within_limit(self) -> m.TurnEnd | m.TurnWaits:
        limit_s = self._command.limits.turn_timeout_s
        if limit_s is not None:
            states, at_s = self._before, anyio.current_time()
            off = {name for name in states if is_given_up(states[name], self._command.policy, at_s)}
            servers = [self._wiring.servers[name] for name in self._command.servers if name not in off]
            closes = any(not isinstance(each, HostTools) or each.starts_processes for each in servers)
            kept_s = kept_for_closing(self._command.limits) if closes else 0.0
            # Unless the turn begins with a recorded `RunTurn`, the trace shows the reserved time.
            self._command = replace(self._command, limits=replace(self._command.limits, teardown_s=kept_s))
            self._end_at = at_s + limit_s
            self._deadline = self._end_at - kept_s
        with anyio.CancelScope(deadline=self._end_at):
            try:
                end = await self._supervised()
            finally:
                self._sampling.sampler = None
            self._prepare_next(self.connections)
            return end
        # The time limit has cancelled the agent. The agent usually still reports an end, but not if it was
        # waiting for a session that took too long to close.
        if self.agent is not None and self.agent.end is not None:
            return self.agent.end
        assert limit_s is not None, "only a limit ends the scope"
        failure = m.DeadlineMissed(limit_s=limit_s, doing="closing its sessions")
        spent = self.progress
        failed = m.TurnFailed(
            turn=self._command.turn, failure=failure, requests=spent.requests, usage=spent.usage
        )
        try:
            return failed if self.agent is None else self.agent.not_closed(failed)
        except Exception as error:  # noqa: BLE001 - `raise_crash` raises it
            raise_crash("agent", error)

    async def _supervised(self) -> m.TurnEnd | m.TurnWaits:
        self._command = command = self._when_called()
        recorder = self._wiring.recorder
        pool = self._resources.pool
        if pool is not None:
            pool.begin_turn()
        presumed = self._presumed()
        self._early = early = None if presumed is None else EarlyRequest(self._on_delta)
        async with Supervisor(recorder, turn=command.turn, stop_grace_s=_STOP_GRACE_S) as supervisor:
            agent = supervisor.mailbox("agent")
            llm = supervisor.mailbox("llm")
            on_delta = self._on_delta if early is None else early.show
            factory = self._wiring.llm
            if early is not None and isinstance(factory, EndpointActors):
                factory = replace(factory, on_sent=early.sent)
            asking = factory(llm, agent, partial(_note_and_show, supervisor.note, on_delta))
            if not isinstance(asking, Actor):
                raise MCPConfigError(f"An LlmFactory, as in llm=, returns an Actor, not {shown(asking)}.")
            self._asking = asking
            supervisor.start(asking)
            self._sampling.sampler = self._sampler(supervisor, agent)
            self.agent = AgentActor(
                agent,
                llm=llm,
                sessions=self._start_sessions(supervisor, agent),
                check=self._check,
                note=supervisor.note if early is None else early.releasing(supervisor.note, supervisor.fail),
                deadline=self._deadline,
            )
            if early is not None:
                early.agent, self.agent.on_step = self.agent, early.stepped
            if pool is not None and pool.sessions == "beside":
                self.agent.on_step = self._stepped
            answer = self._wiring.approval.answerer(command, recorder)
            if answer is not None:
                self.agent.approval = supervisor.mailbox("approval")
                supervisor.start(ApprovalActor(self.agent.approval, agent=agent, answer=answer))
            self.agent.presumed = presumed
            try:
                return await self._ended(supervisor, agent)
            finally:
                self._learn_listings()

    async def _ended(self, supervisor: Supervisor, agent: Mailbox[m.TurnEvent]) -> m.TurnEnd | m.TurnWaits:
        assert self.agent is not None, "it has just been made"
        past = self._past
        noted, begun = past.noted, past.begun
        numbers = repeat(past.copied, self._wiring.recorder, () if begun is None else (begun.seq,))
        if isinstance(noted, m.TurnForked):
            noted = replace(noted, first=next(iter(numbers.values()), 0))
        if begun is None:
            assert not isinstance(noted, m.WaitEnded), "a turn that has waited has begun"
            for rewrite in past.rewrites:
                supervisor.note(rewrite, sender="llm")
            self.agent.forked = noted
            supervisor.start(self.agent, whole=True)
            end: m.TurnEnd = await agent.ask(self._command, sender="host")
            return end
        expected = agent.expect_reply("host")
        begun = replace(begun, seq=numbers.get(begun.seq, begun.seq), reply_to=expected)
        # Record `noted` before the first await, so that the trace has it before the LLM actor's reply.
        assert noted is not None, "it has a past"
        supervisor.note(noted, sender="agent")
        self.agent.recall(begun, (*past.events, noted))
        for rewrite in past.rewrites:
            supervisor.note(rewrite, sender="llm")
        if past.event is not None:
            agent.put_recorded(
                _again(replace(past.event, receiver=agent.name), self._wiring.recorder, numbers, copied=True)
            )
        supervisor.start(self.agent, whole=True)
        recalled_end: Any = await expected.wait()
        return recalled_end  # type: ignore[no-any-return]  # the agent replies with a turn's end

    def _start_sessions(self, supervisor: Supervisor, agent: Mailbox[m.TurnEvent]) -> _Mailboxes:
        mailboxes = _Mailboxes(partial(self._start_session, supervisor, agent))
        waiting = {listing.server for listing in self._command.when_called}
        for name in self._command.servers:
            if name not in waiting:
                mailboxes[name]  # a look-up starts the actor
        return mailboxes

    def _start_session(
        self, supervisor: Supervisor, agent: Mailbox[m.TurnEvent], name: m.ServerName
    ) -> Mailbox[m.SessionCommand]:
        if name == SERVER:
            return self._built_in(supervisor, agent)
        session = SessionActor(
            supervisor.mailbox(name),
            agent=agent,
            connect=self._wiring.approval.connecting(self._connect(name), self._command, name),
            note=supervisor.note,
            connection=self._before.get(name),
            deadline=self._deadline,
            around_call=self._wiring.recorder.around_call,
        )
        session.reopens = self._past.reopened.get(name)
        self._sessions[name] = session
        supervisor.start(session)
        return session.mailbox

    def _built_in(self, supervisor: Supervisor, agent: Mailbox[m.TurnEvent]) -> Mailbox[m.SessionCommand]:
        command = self._command
        answers: dict[str, AnswersCall] = {}
        if command.references != "never":
            with importing():  # this actor is started only when a model calls one of its tools
                from grue.tool_sessions.result_reading import ResultReader

            most = command.limits.max_result_chars
            reader = ResultReader(self._result_of, most, unwraps=command.unwraps_texts)
            answers["read_result"] = reader.read_result
        if command.tool_search is not None:
            from grue.tool_sessions.tool_search import ToolSearcher  # few programs need it

            searcher = ToolSearcher(lambda: self.agent.tools if self.agent else (), command.tool_search.most)
            answers |= {"find_tools": searcher.find_tools, "call_tool": searcher.call_tool}
        tools = BuiltInTools(supervisor.mailbox(SERVER), agent, supervisor.note, answers)
        supervisor.start(tools)
        return tools.mailbox

    def _result_of(self, handle: str) -> m.ToolCallResult | None:
        call_id = m.CallId(handle)
        found = None if self.agent is None else self.agent.result_of(call_id)
        return found if found is not None or self._earlier is None else self._earlier.find(call_id)

    def _when_called(self) -> m.RunTurn:
        presumed, command = self._wiring.presumed, self._command
        if presumed is None:
            return command  # forks and turns whose requests wait for batches keep the recorded `when_called`
        return replace(command, when_called=presumed.when_called(command, self._before, anyio.current_time()))

    def _presumed(self) -> m.ToolsPresumed | None:
        """Return the tools to offer before the servers have started; `None`: the turn waits for them."""
        presumed = self._wiring.presumed
        # An LLM actor of the host's might not be able to drop a reply, and a turn that waits for a provider's
        # batch would not end sooner.
        if presumed is None or not isinstance(self._wiring.llm, EndpointActors) or current_room() is not None:
            return None
        registry, at_s = self._resources.registry, anyio.current_time()
        return presumed.for_turn(self._command, self._before, registry, at_s)

    def _learn_listings(self) -> None:
        if self._wiring.presumed is None:
            return
        # A server that adds tools during a session usually starts the next session without them. So learn the
        # first list, unless later turns use this session.
        kept = self._resources.pool is not None and self._resources.pool.sessions == "kept"
        for name, session in self._sessions.items():
            listed = session.listed_last if kept else session.listed
            if listed is not None:
                self._wiring.presumed.learn(name, listed)

    async def _save_listings(self) -> None:
        """Store new listings in the user's cache. Wait at most 1 s: the cache may be on a slow disk."""
        unsaved = [] if self._wiring.presumed is None else self._wiring.presumed.unsaved()
        if not unsaved:
            return
        from grue.transports.mcp.listing import ListingCache  # only a new listing needs it

        def save() -> None:
            for server, seen in unsaved:
                written = msgspec.json.encode(seen)
                # Store only a listing without secrets: a server may put a secret into a description.
                if self._wiring.recorder.redacted(written) == written:
                    ListingCache().save(server, seen)

        with anyio.move_on_after(_SAVING_S):
            await call_in_daemon_thread(save)

    def _connect(self, name: m.ServerName) -> Connect:
        connect, server = self._fresh(name), self._wiring.servers[name]
        pool = self._resources.pool
        if pool is None:
            return connect
        if isinstance(server, HostTools):
            registry = self._resources.registry
            return lambda note: server.connect(name, registry, pool.wait_closed, note)
        if not isinstance(server, McpServer):
            return connect
        return lambda _: pool.lend(name, connect, self._command.turn, self._deadline)

    def _fresh(self, name: m.ServerName, beside: Sampler | None = None) -> Connect:
        sampled = self._command.limits.max_samplings > 0
        sample = self._sampling.on_behalf_of(name, beside=beside) if sampled else None
        drift = self._command.policy.on_tool_drift
        wait = None if self._early is None else self._early.wait_sent
        return connect_fresh(self._wiring, name, self._resources.registry, drift, sample, wait)

    def _stepped(self) -> None:
        if self._early is not None:
            self._early.stepped()
        pool, agent = self._resources.pool, self.agent
        if pool is None or agent is None or not agent.awaits_model:
            return
        states = {name: session.connection for name, session in self._sessions.items()}
        for name, state in states.items():
            if name in pool.opened and isinstance(state, Connecting):
                states[name] = Proven()
        self._prepare_next(states)

    def _prepare_next(self, states: Mapping[m.ServerName, ConnectionState]) -> None:
        """Prewarm the next turn's sessions, but no server that starts when called: it may not be needed."""
        pool = self._resources.pool
        if pool is None or pool.sessions not in ("ahead", "beside"):
            return
        for name, state in states.items():
            server = self._wiring.servers[name]
            proven = isinstance(state, Proven) and isinstance(server, McpServer)
            if proven and not starts_when_called(server) and pool.lacks(name):
                limit_s = self._command.limits.startup_timeout_s(name)
                pool.prepare(name, self._fresh(name, beside=self._sampling.sampler), limit_s)

    def _sampler(self, supervisor: Supervisor, agent: Mailbox[m.TurnEvent]) -> Sampler | None:
        limits = self._command.limits
        if not self._command.servers or not limits.max_samplings:
            return None

        def start_llm() -> tuple[Actor[m.LlmCommand], anyio.CancelScope]:
            mailbox = supervisor.mailbox("llm-sampling")
            llm = self._wiring.llm(mailbox, agent, partial(_note_and_show, supervisor.note, None))
            return llm, supervisor.start(llm)

        def spent() -> Spent:
            return Spent(requests=self.progress.requests, usage=self.progress.usage)

        return Sampler(start_llm, agent, limits, spent, lambda: self.agent.sampled if self.agent else 0)


def repeat(copied: Iterable[Envelope[Any]], recorder: Recorder, own: Collection[int]) -> dict[int, int]:
    """Record messages again, as copies unless their number is in `own`. Return each new number by the old."""
    numbers: dict[int, int] = {}
    for each in copied:
        numbers[each.seq] = _again(each, recorder, numbers, copied=each.seq not in own).seq
    return numbers


def _again(
    each: Envelope[Any], recorder: Recorder, numbers: Mapping[int, int], *, copied: bool
) -> Envelope[Any]:
    cause = numbers.get(each.cause or 0)
    return recorder.record(
        each.body, sender=each.sender, receiver=each.receiver, cause=cause, turn=each.turn, copied=copied
    )


def _note_and_show(
    note: Note, on_delta: OnDelta | None, body: Any, *, sender: str, cause: int | None = None
) -> Envelope[Any]:
    # `host_code` marks exceptions of the host's observers and of `on_delta`, because the LLM actor would
    # otherwise report them as a failure of its request.
    with host_code(""):  # the recorder has added the observer's name to the exception already
        envelope = note(body, sender=sender, cause=cause)
    if on_delta is not None and isinstance(body, m.TextDelta):
        with host_code("on_delta"):
            on_delta(body)
    return envelope
