"""Choose the event loop for a runner's work: a new loop, the caller's, or that of the current episode."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import wait
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast, get_args

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from grue.actors.sampling import CurrentSampler
from grue.engine.turn_actors import TurnResources
from grue.errors import MCPConfigError, MCPError, TurnCancelled
from grue.field_checks import shown
from grue.policies import DEFAULT_START, Keep, Start, StartAhead, StartWhen, starts_ahead
from grue.runtime.forks import here_and_in_children
from grue.runtime.loading import importing
from grue.runtime.loops import interrupts
from grue.runtime.loops.beside_loop import call_in_daemon_thread
from grue.runtime.loops.loop_thread import Call, EpisodeLoop, ErrorTexts
from grue.runtime.loops.sync_edge import IN_A_THREAD, run_blocking, warn_if_blocking
from grue.runtime.processes.process_group import ProcessRegistry
from grue.runtime.trace.recorder import Recorder
from grue.transports.llm.endpoint import LlmEndpoint

if TYPE_CHECKING:
    from grue.tool_sessions.session_pool import SessionPool, Sessions

T = TypeVar("T")


Work: TypeAlias = Callable[[TurnResources], Awaitable[T]]
"""A turn, or other work in an event loop. Its argument has the processes and sessions that it may use."""


class Episode:
    """An event loop in a background thread, in which turns run, at most `at_once` at a time.

    An episode holds no reference to its runner, so a runner that was never closed can be garbage collected.
    """

    def __init__(
        self,
        endpoint: LlmEndpoint | None,
        recorder: Recorder,
        sessions: Sessions = "fresh",
        *,
        at_once: int = 1,
    ) -> None:
        self._registry = ProcessRegistry()
        self.resources = TurnResources(registry=self._registry, sampling=CurrentSampler())
        self.users = 0  # how many calls of `CurrentEpisode._leave` are still to come
        self.expects_turns = True  # prewarm sessions also for turns that were not submitted yet
        # Each running turn takes a slot. Unless `sessions` is `fresh`, each slot has its own session pool.
        self._slots: list[TurnResources] = []
        self._pools: list[SessionPool] = []
        self._endpoint = endpoint
        self._recorder = recorder
        self._sessions = sessions
        self._at_once = at_once
        self._free_turns: anyio.CapacityLimiter
        self.loop = EpisodeLoop(
            self._open, on_exit=self._registry.kill_leftovers, force_kill=self._registry.kill_now
        )

    def submit(self, work: Work[T], *, beside: bool = False) -> Call[T]:
        """Submit a turn, which waits for a free slot; or with `beside`, other work, which starts at once."""
        return self.loop.submit(lambda: work(self.resources) if beside else self._in_turn(work))

    def call(self, work: Work[T], *, beside: bool = False) -> T:
        """Submit work and wait for its end. Ctrl-C cancels it; a second one kills the episode's processes."""
        self.loop.loop_thread.refuse_waiting()
        if not beside:
            warn_if_blocking(IN_A_THREAD)
        with interrupts.defer_interrupts():
            return self.submit(work, beside=beside).wait(force_kill=self._registry.kill_now)

    async def call_async(self, work: Work[T], *, beside: bool = False) -> T:
        """Submit work and await its end in the caller's loop. A cancellation cancels the work."""
        self.loop.loop_thread.refuse_waiting()
        call = self.submit(work, beside=beside)
        # A separate limiter, so that the waiting thread takes no place in the default limiter of this loop.
        thread = anyio.CapacityLimiter(1)
        try:
            # A daemon: if the caller's loop is stopped, the end of the program does not wait for the call.
            await call_in_daemon_thread(lambda: wait([call]), limiter=thread)
        except RuntimeError as error:
            call.interrupt()
            raise MCPError(f"The turn was cancelled: no thread could wait for it ({error}).") from error
        except anyio.get_cancelled_exc_class():
            call.interrupt()
            thread = anyio.CapacityLimiter(1)
            with anyio.CancelScope(shield=True):
                until = interrupts.INTERRUPT_GRACE_S
                await call_in_daemon_thread(lambda: wait([call], until), limiter=thread)
            raise
        return call.result()

    async def _in_turn(self, work: Work[T]) -> T:
        async with self._free_turns:
            slot = self._slots.pop()
            try:
                return await work(slot)
            finally:
                self._slots.append(slot)

    def _expects_turn(self, pool: SessionPool) -> bool:
        """Return whether a further turn is expected to use sessions of `pool`."""
        if self.expects_turns:
            return True
        others = sum(each is not pool and each.has_spares for each in self._pools)
        return self._free_turns.statistics().tasks_waiting > others

    @contextlib.asynccontextmanager
    async def _open(self, group: TaskGroup) -> AsyncIterator[None]:
        self._slots = [self.resources] * self._at_once
        if self._sessions != "fresh":
            with importing():  # turns with fresh sessions do not need this import, which takes time
                from grue.tool_sessions.session_pool import SessionPool

            self._pools = [
                SessionPool(group, self._recorder, self._sessions, self._expects_turn) for _ in self._slots
            ]
            self._slots = [
                replace(self.resources, pool=pool, sampling=CurrentSampler()) for pool in self._pools
            ]
            self.resources = self._slots[0]
        self._free_turns = anyio.CapacityLimiter(self._at_once)
        async with contextlib.AsyncExitStack() as stack:
            if self._endpoint is not None:
                await stack.enter_async_context(self._endpoint)
            yield


def starts_of(keep: Keep, start: Start) -> tuple[Sessions, StartWhen]:
    """Return where a turn's sessions come from, and when a server without an open session is started."""
    if keep not in get_args(Keep):
        known = ", ".join(f'"{each}"' for each in get_args(Keep))
        raise MCPConfigError(f"keep= is one of {known}, not {shown(keep)}.")
    ahead, when = _moments(start)
    if ahead is None:
        return "kept" if keep == "sessions" else "fresh", when
    if when == "when_called":
        raise MCPConfigError(
            f'start=("{ahead}", "when_called"): nothing is started ahead of a server that starts when it is'
            ' called. Write start="when_called"; or write it for single servers, in their options.'
        )
    if keep == "sessions":
        raise MCPConfigError(
            f'keep="sessions" with start="{ahead}": a session that is kept needs no other one for the next'
            f' turn. Write keep="sessions", or keep="loop", start="{ahead}".'
        )
    if ahead == "after_turn" and keep == "nothing":
        raise MCPConfigError(
            'start="after_turn" needs keep="loop": with keep="nothing" no process outlives a turn.'
        )
    return "ahead" if ahead == "after_turn" else "beside", when


def _moments(start: Start) -> tuple[StartAhead | None, StartWhen]:
    pair = start if isinstance(start, tuple) else (start,)
    match pair:
        case (ahead, when) if ahead in get_args(StartAhead) and when in get_args(StartWhen):
            return ahead, when
        case (ahead,) if ahead in get_args(StartAhead):
            return cast("StartAhead", ahead), DEFAULT_START
        case (when,) if when in get_args(StartWhen):
            return None, cast("StartWhen", when)
        case _:
            known = ", ".join(f'"{each}"' for each in (*get_args(StartWhen), *get_args(StartAhead)))
            raise MCPConfigError(
                f'start= is one of {known}, or a pair such as ("after_turn", "beside"), not {shown(start)}.'
            )


def with_default(start: Start | None, when: StartWhen) -> Start:
    """Return `start`, with the configuration file's value `when` for what `start` leaves open."""
    if start is None:
        return when
    if isinstance(start, tuple) or not starts_ahead(start):
        return start
    if when == "when_called":
        raise MCPConfigError(
            f'start="{start}", and the configuration has start = "when_called" under [tool.grue.mcp]: nothing'
            " is started ahead of a server that starts when it is called. Leave one of the two out. Or pass"
            f' start=("{start}", "beside"), which replaces the value of the configuration.'
        )
    return cast("StartAhead", start), when


class CurrentEpisode:
    """Runs a runner's turns, except those of `Runner.map`, and its tool calls outside turns. Thread-safe.

    If `lasting`, all work runs in one event loop, until `close` or until this object is garbage collected.
    Otherwise the work of `submit` and `run_in_loop` shares a loop, in which a turn of `run` runs too if the
    loop is open; it ends after its last work. Other work runs in a new loop, or in its async caller's loop.
    """

    def __init__(
        self, endpoint: LlmEndpoint | None, recorder: Recorder, sessions: Sessions, *, lasting: bool
    ) -> None:
        self.lasting = lasting
        self._endpoint = endpoint if lasting else None
        self._recorder = recorder
        self._sessions: Sessions = sessions if lasting else "fresh"
        # With `ahead`, servers start in the pause between two turns, but in `Runner.map` there is no pause.
        self.batch_sessions: Sessions = "beside" if sessions == "ahead" else sessions
        self._episode: Episode | None = None
        here_and_in_children(self._make_lock)

    def _make_lock(self) -> None:
        # Reentrant: a signal handler may close the runner in a thread that holds the lock.
        self._lock = threading.RLock()
        # Work that runs outside an episode's loop. Empty in a forked child: the work is its parent's.
        self._alone: weakref.WeakSet[interrupts.Interruptible] = weakref.WeakSet()

    def run(self, work: Work[T]) -> T:
        """Run a turn and return its result, blocking."""
        if self._recorder.telling == threading.get_ident():
            self._recorder.refuse_observers()
        if not self.lasting and self._episode is None:
            return self._run_alone(work)
        return self.run_in_loop(work)

    def run_outside_turns(self, work: Work[T]) -> T:
        """Run `work`, which makes tool calls outside turns. Blocks; starts at once, even if a turn runs."""
        return self.run_in_loop(work, beside=True) if self.lasting else self._run_alone(work)

    async def run_async(self, work: Work[T], *, beside: bool = False) -> T:
        """Run a turn, or with `beside` other work, without blocking the caller's asyncio loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError as error:
            raise MCPError(
                "Awaiting grue needs asyncio. Under trio, call the method without _async in a thread."
            ) from error
        if self.lasting:
            return await self._running().call_async(work, beside=beside)
        resources = TurnResources(registry=ProcessRegistry(), sampling=CurrentSampler())
        try:
            return await self._until_closed(work, resources)
        except interrupts.WorkInterrupted:
            raise TurnCancelled(ErrorTexts().ended_early) from None
        finally:
            resources.registry.kill_leftovers()

    def submit(self, work: Work[T]) -> Call[T]:
        """Submit a turn to the episode's loop and return at once. The turn starts after the earlier turns."""
        episode = self._running(users=1)
        try:
            # The bound method `self._keep` keeps this object, and so the loop, alive until the turn's end.
            call = episode.submit(lambda resources: self._keep(work(resources)))
        except BaseException:
            self._leave(episode)
            raise
        # A weak reference: a host that keeps an ended `call` must not keep this object and its loop alive.
        lost = weakref.ref(self)

        def leave(_: object) -> None:
            current = lost()
            if current is not None:  # else its finalizer has ended the loop
                current._leave(episode)  # noqa: SLF001 - the class's own

        call.add_done_callback(leave)
        return call

    def close(self) -> None:
        """Cancel all work, and end the loop, within seconds. Later work starts a new loop."""
        with self._lock:
            episode = self._detach()
            alone = list(self._alone)
        for each in alone:
            each.interrupt()
        if episode is not None:
            episode.loop.close()
        deadline = time.monotonic() + interrupts.INTERRUPT_GRACE_S
        with interrupts.defer_interrupts():
            for each in alone:
                each.join(deadline - time.monotonic())

    def run_in_loop(self, work: Work[T], *, beside: bool = False) -> T:
        """Run a turn in the episode's loop; or with `beside`, other work, which starts at once. Blocks."""
        episode = self._running(users=1)
        try:
            return episode.call(work, beside=beside)
        finally:
            self._leave(episode)

    def _run_alone(self, work: Work[T]) -> T:
        resources = TurnResources(registry=ProcessRegistry(), sampling=CurrentSampler())
        try:
            return run_blocking(
                lambda: self._until_closed(work, resources),
                on_exit=resources.registry.kill_leftovers,
                force_kill=resources.registry.kill_now,
                twin=IN_A_THREAD,
            )
        except interrupts.WorkInterrupted:
            raise TurnCancelled(ErrorTexts().ended_early) from None

    def _until_closed(self, work: Work[T], resources: TurnResources) -> Awaitable[T]:
        """Do `work`, which `close` can cancel, in a loop that is not an episode's."""
        alone = interrupts.Interruptible()
        with self._lock:
            self._alone.add(alone)
        return alone.run(lambda: work(resources))

    async def _keep(self, working: Awaitable[T]) -> T:
        return await working

    def _running(self, users: int = 0) -> Episode:
        """Return the current episode, or start one. `users`: how often the caller will call `_leave`."""
        interrupts.refuse_reentry()
        with self._lock:
            episode = self._episode
            if episode is None or episode.loop.is_over:
                self._detach()
                episode = Episode(self._endpoint, self._recorder, self._sessions)
                self._lost = weakref.finalize(self, episode.loop.end)
                self._episode = episode
            episode.users += users
            return episode

    def _leave(self, episode: Episode) -> None:
        with self._lock:
            episode.users -= 1
            if episode.users or self.lasting or self._episode is not episode:
                return
            self._detach()
        episode.loop.close()

    def _detach(self) -> Episode | None:
        episode, self._episode = self._episode, None
        if episode is not None:
            self._lost.detach()
        return episode
