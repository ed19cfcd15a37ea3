"""An event loop with a virtual clock, in which actors wait hours within milliseconds.

```python
@virtual_time
async def test_it_gives_up_after_an_hour() -> None:
    with pytest.raises(AskTimedOut):
        await mailbox.ask(Question(), sender="test", timeout_s=3600)
```

The clock stands still while any task can run. When all tasks wait, it jumps to the next timer: a sleep, a
time limit, a deadline. So nothing waits in real time, and the same test gives the same times in each run.
Everything that asks the event loop for the time sees the virtual clock: `anyio.current_time`, `sleep`,
`fail_after`, `move_on_after`, deadlines of cancel scopes.

When all tasks wait and there is no timer, nothing can ever happen again. The loop then raises `Deadlock`,
which says where each task waits. In real time such a test would hang.

The clock is for actors. A process, a socket or a pipe takes real time, so the loop refuses to wait for one.
Work in threads takes real time as well; the loop waits for it and its clock stands still meanwhile.
"""

import asyncio
import functools
import selectors
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import anyio

P = ParamSpec("P")
T = TypeVar("T")

_THREAD_LIMIT_S = 30.0
_LOOK_EVERY_S = 0.02
_REAL_TIME = (
    "Virtual time cannot wait for a process, a pipe or a socket, which take real time. Use a fake in their"
    " place, or run this test in real time."
)
_LIBRARIES = ("/asyncio/", "/anyio/")


class Deadlock(AssertionError):  # noqa: N818 - a state, named as the field names it
    """All tasks wait, and nothing is left that could wake one of them."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when all tasks wait.

    `virtual_time` and `run_in_virtual_time` use it. For a test runner of your own, it is a `loop_factory`:
    with anyio's pytest plugin, let the fixture `anyio_backend` return
    `("asyncio", {"loop_factory": VirtualTimeLoop})`.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._waiting_for_idle: list[asyncio.Future[None]] = []
        self._threads_before = frozenset(threading.enumerate())
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Return the virtual time in seconds; a new loop starts at 0."""
        return self._now

    async def idle(self) -> None:
        """Wait until all other tasks wait, without letting time pass."""
        waiter: asyncio.Future[None] = self.create_future()
        self._waiting_for_idle.append(waiter)
        await waiter

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse to start a process.

        Raises:
            RuntimeError: Always.
        """
        del args, kwargs
        raise RuntimeError(_REAL_TIME)

    subprocess_shell = subprocess_exec

    def jump(self, timeout_s: float | None) -> None:
        """Wake those who wait for idleness, or else let `timeout_s` seconds pass. The selector calls this.

        Raises:
            Deadlock: There is no timer.
        """
        waiting, self._waiting_for_idle = self._waiting_for_idle, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
        if waiting:
            return
        if timeout_s is None:
            raise Deadlock(_deadlock_text(self))
        self._now += timeout_s

    def threads_at_work(self) -> list[threading.Thread]:
        """Return the threads that the loop's tasks have started and that still work."""
        started = (each for each in threading.enumerate() if each not in self._threads_before)
        return [each for each in started if not _is_idle_worker(each)]


class _JumpingSelector(selectors.BaseSelector):
    """The loop's selector. Where a real one would block, it lets the loop's clock jump."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop
        self._real = selectors.DefaultSelector()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        # The first one is the pipe by which other threads wake the loop.
        if self._real.get_map():
            raise RuntimeError(_REAL_TIME)
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = self._real.select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        limit = time.monotonic() + _THREAD_LIMIT_S
        while threads := self._loop.threads_at_work():
            if found := self._real.select(_LOOK_EVERY_S):
                return found
            if time.monotonic() > limit:
                names = ", ".join(each.name for each in threads)
                raise Deadlock(f"All tasks wait, and a thread works for {_THREAD_LIMIT_S:g} s: {names}.")
        # A thread may have woken the loop just before it ended.
        if found := self._real.select(0):
            return found
        self._loop.jump(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


def run_in_virtual_time(main: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function in a new event loop with a virtual clock, and return its result.

    Raises:
        Deadlock: All tasks wait, and there is no timer.
    """
    return anyio.run(main, backend="asyncio", backend_options={"loop_factory": VirtualTimeLoop})


def virtual_time(test: Callable[P, Awaitable[T]]) -> Callable[P, T]:
    """Make a plain function of a coroutine function: a call runs it in virtual time.

    A test with this decorator needs no plugin for asynchronous tests. Fixtures work as usual.

    Raises:
        Deadlock: All tasks wait, and there is no timer.
    """

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_in_virtual_time(functools.partial(test, *args, **kwargs))

    return run


def virtual_loop() -> VirtualTimeLoop:
    """Return the running loop.

    Raises:
        RuntimeError: It has no virtual clock.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualTimeLoop):
        raise RuntimeError("This needs virtual time: decorate the test with @virtual_time.")
    return loop


def _is_idle_worker(thread: threading.Thread) -> bool:
    """Return whether a thread is one of anyio's, which stay for a while after their work."""
    queue = getattr(thread, "queue", None)
    return queue is not None and getattr(queue, "unfinished_tasks", 1) == 0


def _deadlock_text(loop: asyncio.AbstractEventLoop) -> str:
    lines = [f"  {task.get_name()}: {_place(task)}" for task in asyncio.all_tasks(loop)]
    return "\n".join(["All tasks wait, and nothing can wake them:", *sorted(lines)])


def _place(task: "asyncio.Task[Any]") -> str:
    """Return the line at which a task waits, in the code that is not part of the libraries."""
    frames = list(_frames(task.get_coro()))
    ours = [each for each in frames if not any(name in each.f_code.co_filename for name in _LIBRARIES)]
    if not (ours or frames):
        return "has not begun"
    frame = (ours or frames)[-1]
    file = frame.f_code.co_filename.rsplit("/", 1)[-1]
    return f"{frame.f_code.co_qualname} ({file}:{frame.f_lineno})"


def _frames(awaited: Any) -> Iterator[FrameType]:
    """Yield the frames of a waiting coroutine, outermost first."""
    while awaited is not None:
        for kind in ("cr", "gi", "ag"):
            frame = getattr(awaited, f"{kind}_frame", None)
            if frame is not None:
                yield frame
                awaited = getattr(awaited, f"{kind}_await" if kind != "gi" else "gi_yieldfrom", None)
                break
        else:
            return
