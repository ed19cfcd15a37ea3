"""The event loop that a runner's work runs in: a new one, the caller's, or the episode's.

What an episode's loop keeps open is in `episode.py`.
"""

import threading
import weakref
from collections.abc import Awaitable
from typing import TypeVar

from grue.actors.sampling import CurrentSampler
from grue.engine.episode import Episode, Work
from grue.engine.turn_actors import TurnResources
from grue.runtime.loops.interrupts import refuse_reentry
from grue.runtime.loops.loop_thread import Call
from grue.runtime.loops.sync_edge import run_blocking
from grue.runtime.processes.process_group import ProcessRegistry
from grue.runtime.trace.recorder import Recorder
from grue.tool_sessions.session_pool import Sessions
from grue.transports.llm.endpoint import LlmEndpoint

T = TypeVar("T")


class CurrentEpisode:
    """Runs a runner's work, in the loop of its current episode if there is one. Thread-safe.

    With a lasting episode all work runs in the episode's loop. Otherwise each turn, and each call outside
    turns, has a new loop in the calling thread, or runs in the loop of its async caller. Only turns that are
    started in the background share a loop, which ends with the last of them.

    If its owner is lost without `close`, the loop ends when this is garbage collected.

    Args:
        endpoint: A lasting loop keeps its connections open; `None`: the host has a model of its own.
        recorder: Records what happens outside turns.
        sessions: Where a turn's sessions come from. Without a lasting loop this is for batches only.
        lasting: Keep the loop until `close`. `False`: end it with its last call.

    Attributes:
        batch_sessions: Where the sessions of a batch's turns come from. A batch has a loop of its own.
    """

    def __init__(
        self, endpoint: LlmEndpoint | None, recorder: Recorder, sessions: Sessions, *, lasting: bool
    ) -> None:
        self.lasting = lasting
        self._endpoint = endpoint if lasting else None
        self._recorder = recorder
        self._sessions: Sessions = sessions if lasting else "fresh"
        # Between two turns of a batch there is no pause in which to start the next one's servers.
        self.batch_sessions: Sessions = "beside" if sessions == "ahead" else sessions
        self._episode: Episode | None = None
        # Reentrant, because a signal handler may close the runner in a thread that already holds the lock.
        self._lock = threading.RLock()

    @property
    def is_in_use(self) -> bool:
        """Whether a turn that is to run now must run in the episode's loop."""
        return self.lasting or self._episode is not None

    def run(self, work: Work[T]) -> T:
        """Run a turn and return its result, blocking. It waits for turns that run in the episode's loop."""
        if not self.is_in_use:
            return _run_alone(work, "Runner.run_turn_async")
        episode = self._enter()
        try:
            return episode.call(work)
        finally:
            self._leave(episode)

    async def run_async(self, work: Work[T]) -> T:
        """Run a turn and return its result, without blocking the caller's loop."""
        if not self.lasting:
            return await _run_alone_async(work)
        return await self._running().call_async(work)

    def run_outside_turns(self, work: Work[T]) -> T:
        """Run calls outside turns and return their result, blocking. They do not wait for turns."""
        return self.run_beside(work) if self.lasting else _run_alone(work, "the async twin of this method")

    async def run_outside_turns_async(self, work: Work[T]) -> T:
        """Run calls outside turns and return their result, without blocking the caller's loop."""
        if not self.lasting:
            return await _run_alone_async(work)
        return await self._running().beside_async(work)

    def submit(self, work: Work[T]) -> Call[T]:
        """Start a turn in the loop and return at once.

        Raises:
            MCPError: The loop is being closed, or belongs to the parent process.
        """
        episode = self._enter()
        try:
            # While the turn runs, this reference keeps its loop alive, even if the runner is lost.
            call = episode.submit(lambda resources: self._keep(work(resources)))
        except BaseException:
            self._leave(episode)
            raise
        # A weak reference, so that a call that is kept for long does not keep the loop alive.
        lost = weakref.ref(self)
        call.add_done_callback(lambda _: _leave_if_there(lost, episode))
        return call

    def run_beside(self, work: Work[T]) -> T:
        """Run something that is not a turn, and does not wait for turns, in the loop. Blocking."""
        episode = self._enter()
        try:
            return episode.beside(work)
        finally:
            self._leave(episode)

    def close(self) -> None:
        """End the loop, if there is one, within seconds. A later call starts a new one."""
        with self._lock:
            episode = self._detach()
        if episode is not None:
            episode.close()

    async def _keep(self, working: Awaitable[T]) -> T:
        return await working

    def _running(self, users: int = 0) -> Episode:
        """Return the loop. If there is none, or it has failed, a new one is started."""
        refuse_reentry()
        with self._lock:
            episode = self._episode
            if episode is None or episode.is_over:
                self._detach()
                episode = Episode(self._endpoint, self._recorder, self._sessions)
                self._lost = weakref.finalize(self, episode.abandon)
                self._episode = episode
            episode.users += users
            return episode

    def _enter(self) -> Episode:
        """Return the loop for one more call. Call `_leave` after the call."""
        return self._running(users=1)

    def _leave(self, episode: Episode) -> None:
        """Count a call as done. The last one ends the loop, unless the loop is lasting."""
        with self._lock:
            episode.users -= 1
            if episode.users or self.lasting or self._episode is not episode:
                return
            self._detach()
        episode.close()

    def _detach(self) -> Episode | None:
        episode, self._episode = self._episode, None
        if episode is not None:
            self._lost.detach()
        return episode


def _leave_if_there(lost: "weakref.ref[CurrentEpisode]", episode: Episode) -> None:
    # If it was garbage collected, its finalizer has ended the episode.
    current = lost()
    if current is not None:
        current._leave(episode)  # noqa: SLF001 - the class's own


def _run_alone(work: Work[T], twin: str) -> T:
    """Run something in an event loop of its own, which shares no process with others."""
    resources = _own_resources()
    return run_blocking(
        lambda: work(resources),
        on_exit=resources.registry.kill_leftovers,
        force_kill=resources.registry.kill_now,
        twin=twin,
    )


async def _run_alone_async(work: Work[T]) -> T:
    """As `_run_alone`, in the caller's event loop."""
    resources = _own_resources()
    try:
        return await work(resources)
    finally:
        resources.registry.kill_leftovers()


def _own_resources() -> TurnResources:
    """Return resources that nothing else shares."""
    return TurnResources(registry=ProcessRegistry(), sampling=CurrentSampler())
