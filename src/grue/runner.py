"""The runner: builds the actors of each turn from the settings and runs them.

A `Runner` represents an episode. Between turns it keeps plain data only: the turn's number and the state of
each server. `run_turn` blocks, `run_turn_async` does not; both run the same coroutine.
"""

import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, assert_never

from msgspec.structs import replace

from grue.actors.sampling import CurrentSampler
from grue.answers import AnswerCheck, AnswerSpec, as_json
from grue.engine.episode import Episode, sessions_of
from grue.engine.tool_servers import ToolServer, hide_secrets, usable_servers
from grue.engine.turn_actors import LlmFactory, TurnActors, TurnResources, Wiring
from grue.engine.turn_errors import error_for
from grue.engine.turn_handle import ProgressSource, TurnHandle
from grue.loading import importing, load
from grue.messages import (
    Budget,
    FailurePolicy,
    LlmCommand,
    RunTurn,
    ServerName,
    SupportCheck,
    TurnCompleted,
    TurnEvent,
    TurnFailed,
    TurnLimits,
)
from grue.processes.guard import guard
from grue.processes.limits import ProcessLimits
from grue.processes.process_group import ProcessRegistry
from grue.protocol.budget import Spent
from grue.protocol.connection import Disabled, Settled, Untried
from grue.protocol.safe_text import well_formed
from grue.protocol.tool_lock import ToolLock
from grue.runtime.actor import Actor, Note
from grue.runtime.channel import Mailbox
from grue.runtime.reentry import refuse_reentry
from grue.runtime.sync_edge import run_blocking
from grue.runtime.trace import Recorder
from grue.tool_sessions.server_requests import Elicit
from grue.tool_sessions.server_specs import HttpServer, McpServer, StdioServer
from grue.turn_request import TurnOutcome, TurnRequest, outcome_of

if TYPE_CHECKING:
    from grue.engine.batch import BatchItem
    from grue.llm_transport.endpoint import LlmEndpoint, LlmSettings

__all__ = ["LlmFactory", "Runner", "TurnOutcome", "TurnRequest", "outcome_of"]
T = TypeVar("T")


class Runner:
    """Run the turns of one episode.

    Use it as a context manager, or call `close`. Thread-safe: with `lifetime="turn"` the turns of several
    threads run in parallel, each in its own event loop. With `lifetime="episode"` they run one at a time.

    Args:
        llm: The model: an endpoint, its settings, or a factory for an actor of your own. A factory can have a
            method `support_check`, which returns when the actor gets `CheckToolSupport`.
        servers: Tool servers by name; names may not contain a dot. Empty: turns without tools.
        limits: How much a turn may use.
        policy: What to do after a failure.
        recorder: Records all messages; `None`: a new one without observers.
        process_limits: How server processes are ended.
        elicit: Asks the user a server's question; `None`: always declined.
        tool_lock: The tool definitions that the user has approved. `policy.on_tool_drift` says how to treat
            any others. `None`: all tools that the servers list are accepted.
        budget: For the model, for all turns together. The budget of a single turn is `limits.budget`.
        lifetime: `turn`: one `anyio.run` per turn, and nothing stays alive after it. `episode`: one event
            loop in a background thread, from the first turn to `close`; connections to the model stay open.
        spawn_ahead: With `lifetime="episode"`: prewarm the next turn's sessions while the host does something
            else. Only that turn uses them, and they are ended in the background. At a turn's first tool call
            no older process is alive.
        keep_sessions: With `lifetime="episode"`: all turns share one session per server.

    Raises:
        MCPConfigError: A server name or `lifetime` is invalid. Or `spawn_ahead` or `keep_sessions` is set
            without `lifetime="episode"`, or both are set.
        MissingDependencyError: There is an MCP server to talk to, and `mcp` is absent or too old.
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
        lifetime: Literal["turn", "episode"] = "turn",
        spawn_ahead: bool = False,
        keep_sessions: bool = False,
    ) -> None:
        self.recorder = recorder or Recorder()
        self.limits = limits or TurnLimits()
        self.policy = policy or FailurePolicy()
        self.budget = budget or Budget()
        self.spent = Spent()
        self.turn = 0
        self._endpoint: LlmEndpoint | None = None
        if callable(llm):
            llm_actor = llm
        else:
            self._endpoint = _endpoint(llm)
            llm_actor = _llm_actor(self._endpoint)
        self._servers = usable_servers(servers or {})
        self._wiring = Wiring(
            llm=llm_actor,
            servers=self._servers,
            recorder=self.recorder,
            process_limits=process_limits or ProcessLimits(),
            elicit=elicit,
            tool_lock=tool_lock,
        )
        self._hide_secrets(llm)
        self._connections: dict[ServerName, Settled] = {}
        self._per_episode = lifetime == "episode"
        self._sessions = sessions_of(lifetime, spawn_ahead=spawn_ahead, keep_sessions=keep_sessions)
        self._episode: Episode | None = None
        self._beginning = threading.RLock()  # a signal handler may close the runner while its thread holds it
        self._batches: weakref.WeakSet[Episode] = weakref.WeakSet()

    @classmethod
    def from_toml(
        cls,
        path: str | PathLike[str] = "pyproject.toml",
        *,
        recorder: Recorder | None = None,
        lifetime: Literal["turn", "episode"] = "turn",
        spawn_ahead: bool = False,
        keep_sessions: bool = False,
    ) -> Self:
        """Make a runner from `[tool.zorkgpt.*]` of a TOML file; with MCP enabled, all its servers.

        The key comes from the environment: `GRUE_API_KEY`, `OPENROUTER_API_KEY`, `OPENAI_API_KEY`. Lifetimes
        are arguments, not settings in the file, because they depend on the program.

        Raises:
            MCPConfigError: A file is missing, or a value in it is invalid; also as for `Runner`.
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
            lifetime=lifetime,
            spawn_ahead=spawn_ahead,
            keep_sessions=keep_sessions,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the episode's sessions and event loop within seconds. A second call does nothing.

        Running turns and batches are cancelled. A later turn starts a new loop.
        """
        for batch in list(self._batches):
            batch.close()
        with self._beginning:
            episode = self._detach()
        if episode is not None:
            episode.close()

    @property
    def servers(self) -> Sequence[str]:
        """Names of the tool servers, in order."""
        return tuple(self._servers)

    @property
    def budget_spent(self) -> str:
        """The limit of the episode's budget that is reached, as a phrase; empty: none, turns can be run."""
        return self.spent.reached(self.budget)

    @property
    def disabled(self) -> Mapping[str, str]:
        """Servers that are disabled for the rest of the episode, with the reason."""
        return {
            name: state.reason for name, state in self._connections.items() if isinstance(state, Disabled)
        }

    def connection(self, server: str) -> Settled:
        """Return the episode's state of a server, as plain data that can be stored."""
        return self._connections.get(ServerName(server), Untried())

    def remember(self, server: str, connection: Settled) -> None:
        """Restore the state of a server from an earlier part of the episode."""
        self._connections[ServerName(server)] = connection

    def run_turn(self, request: TurnRequest[T]) -> TurnOutcome[T]:
        """Run a turn and return its outcome, blocking.

        With `lifetime="turn"` this is exactly one `anyio.run`. When it returns or raises, no process of this
        turn is alive. With `lifetime="episode"` the turn runs in the episode's loop. With `spawn_ahead`
        its processes are ended in the background, before the next turn's first tool call.

        It also works inside a running event loop, with a warning. If a signal handler raises, the turn is
        cancelled and the exception is raised.

        Raises:
            MCPServerStartupError: The first connect of the episode failed.
            LLMError: The model gave no completion, after all retries.
            BudgetSpent: The episode's budget is used up. Nothing was started.
            MCPError: The model cannot call tools. Or the caller is a turn of this episode, a forked process,
                or a signal handler that interrupted grue or an import. Or no descriptors or threads are left.
            TurnTimedOut: The turn's limit passed.
            AnswerError: No acceptable answer, and no fallback.
            ActorCrashed: An unexpected exception, which is its cause.
            SystemExit: A callback of the host raised it, or another BaseException that is no Exception.
            TurnCancelled: Another thread closed the runner.
            KeyboardInterrupt: Ctrl-C was pressed. Raised within seconds, after the clean-up.

        Source: R6.1, R10.1, P39
        """
        if self._per_episode or self._episode is not None:
            episode = self._enter()
            try:
                return episode.call(lambda: self._run_turn(request, episode.place))
            finally:
                self._leave(episode)
        registry = ProcessRegistry()
        place = TurnResources(registry=registry, sampling=CurrentSampler())
        return run_blocking(
            lambda: self._run_turn(request, place),
            on_exit=registry.kill_leftovers,
            force_kill=registry.kill_now,
            twin="Runner.run_turn_async",
        )

    async def run_turn_async(self, request: TurnRequest[T]) -> TurnOutcome[T]:
        """Run a turn as `run_turn` does, in the caller's event loop. Cancellation ends the turn.

        With `lifetime="episode"` the turn runs in the episode's loop, and the caller awaits it.
        """
        if self._per_episode:
            episode = self._loop()
            return await episode.call_async(lambda: self._run_turn(request, episode.place))
        registry = ProcessRegistry()
        try:
            return await self._run_turn(request, TurnResources(registry=registry, sampling=CurrentSampler()))
        finally:
            registry.kill_leftovers()

    def start_turn(self, request: TurnRequest[T]) -> TurnHandle[TurnOutcome[T]]:
        """Start a turn and return at once, for loops that must not block (of a game or a GUI).

        Turns of one runner run one after the other. With `lifetime="turn"` they run in a background thread
        that ends with the last of them. Call `warm_up` first: the imports of the first turn block all
        threads.

        Raises:
            MCPError: The runner is being closed, or belongs to the parent process.
        """
        stage, episode = ProgressSource(), self._enter()
        try:
            call = episode.submit(lambda: self._run_turn(request, episode.place, stage))
        except BaseException:
            self._leave(episode)
            raise
        # A weak reference, so that a handle that is kept for long does not keep its runner alive.
        lost = weakref.ref(self)
        call.add_done_callback(lambda _: _leave_if_there(lost, episode))
        return TurnHandle(call, stage)

    def map(
        self,
        requests: Iterable[TurnRequest[T]],
        *,
        concurrency: int = 8,
        resume_from: str | PathLike[str] | None = None,
        progress: bool = False,
    ) -> "Iterator[BatchItem[TurnOutcome[T]]]":
        """Run many turns in parallel and yield the result of each, in order.

        Each turn is a separate episode with its own sessions. Its number is its position, from 1. The turns
        share the model's endpoint, the recorder and the runner's budget; turns that are running when it is
        used up may exceed it. A failed turn yields an item with its error. At most twice `concurrency`
        requests are read ahead. An exception of `requests` ends the batch. Closing the iterator cancels the
        running turns.

        Args:
            requests: Any number. Read lazily, in the thread that iterates over the results.
            concurrency: Number of turns that run in parallel; at least 1. Each has its own server processes.
            resume_from: The trace of an earlier run of the same batch. A turn that it completed is not run
                again, unless its texts, servers or answer schema have changed.
            progress: Show a progress bar on standard error, if that is a terminal.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed while waiting for the next item.
            TraceError: `resume_from` cannot be read.
            ValueError: `concurrency` is not a whole number, or less than 1.
        """
        # Few programs need it.
        with importing():
            from grue.engine.batch import Batch, run_batch
            from grue.engine.batch_bar import with_bar
            from grue.engine.completed_turns import CompletedTurns

        if not isinstance(concurrency, int) or concurrency < 1:
            raise ValueError(f"concurrency is a whole number, at least 1, not {concurrency!r}")
        earlier = None if resume_from is None else CompletedTurns(resume_from)

        def open_episode() -> Episode:
            episode = Episode(self._endpoint, self.recorder, at_once=concurrency)
            self._batches.add(episode)
            return episode

        async def run(place: TurnResources, index: int, request: TurnRequest[T]) -> TurnOutcome[T]:
            return await self._one(replace(request, turn=index + 1), place, {}, ProgressSource())

        def recalled(index: int, request: TurnRequest[T]) -> TurnOutcome[T] | None:
            if earlier is None:
                return None
            answer: AnswerSpec[Any] = request.answer or AnswerSpec.text()
            return earlier.outcome(
                self._command(replace(request, turn=index + 1), answer, self.limits), answer
            )

        batch = Batch(open=open_episode, run=run, resume_from=recalled, concurrency=concurrency)
        items = run_batch(requests, batch)
        return with_bar(items, requests) if progress else items

    def warm_up(self) -> None:
        """Import the modules that the first turn needs, in advance.

        It blocks for about a second in a new process. No server is started, and nothing is sent.

        Raises:
            MissingDependencyError: `mcp` is absent or too old.
            MCPError: It was called by a turn of this runner, or the episode is the parent process's.
            KeyboardInterrupt: Ctrl-C.
        """
        servers = self._servers.values()
        if any(isinstance(server, McpServer) for server in servers):
            load("grue.mcp_transport.sdk")
        if any(isinstance(server, HttpServer) for server in servers):
            load("grue.mcp_transport.sdk_http")
        if any(isinstance(server, StdioServer) for server in servers):
            load("grue.mcp_transport.line_stream")
            guard.start()
        episode = self._enter()
        try:
            if self._endpoint is not None:
                episode.beside(self._endpoint.prepare)
        finally:
            self._leave(episode)

    async def _run_turn(
        self, request: TurnRequest[T], place: TurnResources, stage: ProgressSource | None = None
    ) -> TurnOutcome[T]:
        self.turn = self.turn + 1 if request.turn is None else request.turn
        numbered = replace(request, turn=self.turn)
        return await self._one(numbered, place, self._connections, stage or ProgressSource())

    async def _one(
        self,
        request: TurnRequest[T],
        place: TurnResources,
        known: dict[ServerName, Settled],
        stage: ProgressSource,
    ) -> TurnOutcome[T]:
        """Run a turn that has a number, and update `known` with the new state of its servers."""
        answer: AnswerSpec[Any] = request.answer or AnswerSpec.text()
        limits = _turn_limits(self.limits, request.turn_timeout_s)
        limits = replace(limits, budget=self.spent.left(self.budget, limits.budget))
        started = time.monotonic()
        check = AnswerCheck(answer)
        command = self._command(request, answer, limits)
        turn = TurnActors(self._wiring, place, command, check, request.on_delta)
        stage.enter(turn)
        try:
            end = await turn.run(known)
        finally:
            stage.leave()
            known |= turn.connections
        self.spent = self.spent.plus(end.requests, end.usage)
        match end:
            case TurnCompleted():
                response = answer.fallback if end.kind == "fallback" else check.accepted
                return outcome_of(end, response, time.monotonic() - started)
            case TurnFailed():
                raise error_for(self.recorder.redacted_body(end))
            case _:
                assert_never(end)

    def _command(self, request: TurnRequest[T], answer: AnswerSpec[Any], limits: TurnLimits) -> RunTurn:
        return RunTurn(
            turn=request.turn or 0,
            system=well_formed(request.system),
            user=well_formed(request.user),
            servers=tuple(self._servers) if request.tools else (),
            answer=answer.schema,
            fallback=None if answer.fallback is None else as_json(answer.fallback),
            limits=limits,
            policy=self.policy,
            support_check=self._support_check(),
            stream=request.on_delta is not None,
            attach_media=True,
        )

    def _support_check(self) -> SupportCheck:
        if all(name in self.disabled for name in self._servers):
            return "skip"  # no tools will be on offer
        check = getattr(self._endpoint or self._wiring.llm, "support_check", None)
        return "skip" if check is None else check()

    def _hide_secrets(self, llm: "LlmSettings | LlmEndpoint | LlmFactory") -> None:
        """Register the secrets of the settings and the environment with the recorder."""
        hide_secrets(self.recorder, self._servers.values())
        named_values = getattr(getattr(llm, "settings", llm), "named_values", dict)
        for name, value in named_values().items():
            self.recorder.hide(name, value)

    def _loop(self, users: int = 0) -> Episode:
        """Return the episode's loop. The first turn starts it, in whichever thread.

        If the loop has failed, a new one is started.
        """
        refuse_reentry()
        with self._beginning:
            if self._episode is not None and self._episode.is_over:
                self._detach()
            if self._episode is None:
                endpoint = self._endpoint if self._per_episode else None
                self._episode = Episode(endpoint, self.recorder, self._sessions)
                self._lost = weakref.finalize(self, self._episode.abandon)
            self._episode.users += users
            return self._episode

    def _detach(self) -> Episode | None:
        episode, self._episode = self._episode, None
        if episode is not None:
            self._lost.detach()
        return episode

    def _enter(self) -> Episode:
        """Return the loop for one more turn. Call `_leave` after the turn."""
        return self._loop(users=1)

    def _leave(self, episode: Episode) -> None:
        """Count a turn as done. With `lifetime="turn"` the last one ends the loop."""
        with self._beginning:
            episode.users -= 1
            if episode.users or self._per_episode or self._episode is not episode:
                return
            self._detach()
        episode.close()


def _leave_if_there(runner: "weakref.ref[Runner]", episode: Episode) -> None:
    # If the runner was garbage collected, its finalizer has ended the episode.
    alive = runner()
    if alive is not None:
        alive._leave(episode)  # noqa: SLF001 - the runner's own


def _endpoint(llm: "LlmSettings | LlmEndpoint") -> "LlmEndpoint":
    from grue.llm_transport.endpoint import LlmEndpoint

    return llm if isinstance(llm, LlmEndpoint) else LlmEndpoint(llm)


def _llm_actor(endpoint: "LlmEndpoint") -> LlmFactory:
    from grue.actors.llm import LlmActor

    def make(mailbox: Mailbox[LlmCommand], agent: Mailbox[TurnEvent], note: Note) -> Actor[LlmCommand]:
        return LlmActor(mailbox, agent, endpoint, note)

    return make


def _turn_limits(limits: TurnLimits, turn_timeout_s: float | None) -> TurnLimits:
    """Return the limits of one turn: its own time limit, or else the runner's."""
    return limits if turn_timeout_s is None else replace(limits, turn_timeout_s=turn_timeout_s)
