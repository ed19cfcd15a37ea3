"""What lives from turn to turn where an episode has one event loop: connections, and sessions of its own."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import wait
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from msgspec.structs import replace

from grue.actors.sampling import CurrentSampler
from grue.engine.turn_actors import TurnResources
from grue.errors import MCPConfigError, MCPError
from grue.processes.process_group import ProcessRegistry
from grue.runtime.loop_thread import Call, EpisodeLoop
from grue.runtime.sync_edge import INTERRUPT_GRACE_S, counted_interrupts, warn_if_blocking
from grue.runtime.trace import Recorder
from grue.tool_sessions.session_pool import SessionPool, Sessions

if TYPE_CHECKING:
    from grue.llm_transport.endpoint import LlmEndpoint

T = TypeVar("T")


class Episode:
    """An event loop in a thread of its own, with an endpoint whose connections stay open, and a pool.

    Turns run one at a time, whichever threads ask for them. It knows nothing of the runner that uses it, so
    that a runner that is lost can be collected, and take this with it.

    Args:
        endpoint: Held open; `None`: there is none.
        recorder: Where sessions that no turn owns note what they do.
        sessions: What becomes of sessions between turns.
        at_once: Turns that may run at the same time.

    Attributes:
        place: Where its turns keep their processes and sessions.
        users: Those who have turns in it, as its owner counts them.
    """

    def __init__(
        self,
        endpoint: "LlmEndpoint | None",
        recorder: Recorder,
        sessions: Sessions = "fresh",
        *,
        at_once: int = 1,
    ) -> None:
        self._registry = ProcessRegistry()
        self.place = TurnResources(registry=self._registry, sampling=CurrentSampler())
        self.users = 0
        self._endpoint = endpoint
        self._recorder = recorder
        self._sessions = sessions
        self._at_once = at_once
        self._places: anyio.CapacityLimiter
        self._loop = EpisodeLoop(
            self._open,
            on_exit=self._registry.kill_leftovers,
            force_kill=self._registry.kill_now,
        )

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a turn and return what came of it, blocking; Ctrl-C ends it, within seconds.

        Raises:
            KeyboardInterrupt: Ctrl-C; the second one kills every process of the episode.
            MCPError: It was called by a turn of the same episode, which it would wait for.
        """
        self._loop.home.refuse_waiting()
        warn_if_blocking("Runner.run_turn_async")
        with counted_interrupts():
            return self.submit(function).wait(force_kill=self._registry.kill_now)

    async def call_async(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a turn and return what came of it, while the caller's own loop goes on.

        Cancelled, it cancels the turn, and waits for its clean-up, at most `INTERRUPT_GRACE_S`.
        """
        self._loop.home.refuse_waiting()
        call = self.submit(function)
        try:
            await self._watch(call)
        except RuntimeError as error:
            call.interrupt()
            raise MCPError(f"The turn was cancelled: no thread could wait for it ({error}).") from error
        return call.result()

    async def _watch(self, call: Call[T]) -> None:
        # Its thread does nothing but wait: it is not one of those that the caller's loop has for work.
        thread = anyio.CapacityLimiter(1)
        try:
            await anyio.to_thread.run_sync(wait, [call], abandon_on_cancel=True, limiter=thread)
        except anyio.get_cancelled_exc_class():
            call.interrupt()
            thread = anyio.CapacityLimiter(1)
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(wait, [call], INTERRUPT_GRACE_S, limiter=thread)
            raise

    def submit(self, function: Callable[[], Awaitable[T]]) -> Call[T]:
        """Have a turn run when there is a place for it, and return at once."""
        return self._loop.submit(lambda: self._in_turn(function))

    def beside(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run what is no turn and needs no place, blocking; Ctrl-C ends it.

        Raises:
            MCPError: It was called by a turn of the same episode.
        """
        self._loop.home.refuse_waiting()
        return self._loop.submit(function).wait()

    @property
    def is_over(self) -> bool:
        """Whether it takes no further turn: it is closed, or something in it has failed."""
        return self._loop.is_over

    def close(self) -> None:
        """End everything that lives in here, within seconds. A second call does nothing."""
        self._loop.close()

    def abandon(self) -> None:
        """End everything, as `close` does, and wait for nothing: for the garbage collector."""
        self._loop.end()

    async def _in_turn(self, function: Callable[[], Awaitable[T]]) -> T:
        async with self._places:
            return await function()

    @contextlib.asynccontextmanager
    async def _open(self, group: TaskGroup) -> AsyncIterator[None]:
        if self._sessions != "fresh":
            self.place = replace(self.place, pool=SessionPool(group, self._recorder, self._sessions))
        self._places = anyio.CapacityLimiter(self._at_once)
        async with contextlib.AsyncExitStack() as stack:
            if self._endpoint is not None:
                await stack.enter_async_context(self._endpoint)
            yield


def sessions_of(lifetime: str, *, spawn_ahead: bool, keep_sessions: bool) -> Sessions:
    """Return what becomes of sessions between turns, as a runner's arguments say it.

    Raises:
        MCPConfigError: They say nothing that can be done.
    """
    if lifetime not in ("turn", "episode"):
        raise MCPConfigError(f'lifetime is "turn" or "episode", not {lifetime!r}.')
    if spawn_ahead and keep_sessions:
        raise MCPConfigError("Sessions are kept or spawned ahead: choose spawn_ahead or keep_sessions.")
    if (spawn_ahead or keep_sessions) and lifetime != "episode":
        option = "spawn_ahead" if spawn_ahead else "keep_sessions"
        raise MCPConfigError(f'{option} needs lifetime="episode": with "turn" nothing outlives a turn.')
    return "ahead" if spawn_ahead else "kept" if keep_sessions else "fresh"
