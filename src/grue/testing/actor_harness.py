"""Test one actor alone: fake channels around it, a virtual clock, and assertions about its messages.

```python
from grue.testing.actor_harness import ActorHarness, virtual_time

@virtual_time
async def test_it_heats_until_the_room_is_warm() -> None:
    async with ActorHarness() as harness:
        thermostat = harness.channel("thermostat")
        thermostat.answers(Measured, Heat(degrees=2.0))
        harness.start(Thermometer(harness.mailbox("thermometer"), thermostat))
        asked = await harness.ask(Measure(times=2))
        assert asked.answer == 19.0
        harness.watch.caused_by(Measured, Measure)
```

The actor runs under a real supervisor. `tell`, `ask` and `idle` return when the actor waits for its next
message, a reply or a timer, or has ended, so a test needs no sleeps. `TraceWatch` has assertions about the
recorded messages, also for whole turns: `Runner(..., recorder=watch.recorder)`.

`virtual_time` runs a test in an event loop with a virtual clock, which jumps to the next timer when all tasks
wait, and stands still while a thread works. The loop refuses processes, sockets and pipes.
"""

import asyncio
import functools
import math
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from os import PathLike
from types import FrameType, TracebackType
from typing import Any, ParamSpec, Self, TypeVar, TypeVarTuple, Unpack

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from grue.errors import ActorCrashed
from grue.runtime.actor import BOUND, Actor, AskTimedOut, Mailbox, MailboxClosed, Supervisor, Tap, reply
from grue.runtime.safe_text import printable
from grue.runtime.trace.file import writes_lines
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.tracing.message_words import summarize
from grue.tracing.reading import read_episode

M = TypeVar("M")

_UNLIMITED = sys.maxsize


class FakeChannel(Mailbox[M]):
    """The mailbox of an actor whose part the test plays. It holds `bound` messages (`None`: any number)."""

    # An ask gets a reply only if the test calls `answers` before it, or `reply` after it. `close` makes later
    # sends fail with `MailboxClosed`; `abandon` also fails the asks that wait for a reply.

    def __init__(self, name: str, tap: Tap, *, bound: int | None = None) -> None:
        super().__init__(name, tap, bound=_UNLIMITED if bound is None else bound)
        self.envelopes: list[Envelope[M]] = []
        self._asked: deque[Envelope[M]] = deque()
        self._answers: dict[type, deque[Any]] = {}
        self._ends_at: type | None = None

    @property
    def sent(self) -> list[M]:
        """All messages that were sent to this mailbox, in order, including those that were taken out."""
        return [each.body for each in self.envelopes]

    def answers(self, kind: type, *replies: Any) -> None:
        """Answer later asks of the class `kind` at once, with these replies (or functions) in order."""
        # The last reply is repeated. A function gets the message and returns the reply.
        if not replies:
            raise ValueError("answers needs at least one reply")
        self._answers[kind] = deque(replies)

    def ends_at(self, kind: type) -> None:
        """Abandon the mailbox at a message of this kind, as if the actor had crashed while handling it."""
        self._ends_at = kind

    def reply(self, body: Any) -> None:
        """Answer the oldest ask that has no reply yet.

        Raises:
            AssertionError: Every ask has a reply already.
            RuntimeError: The ask has failed, because the mailbox was abandoned.
        """
        if not self._asked:
            raise AssertionError(f"Nobody waits for a reply of {self.name}.")
        reply(self._asked.popleft(), body)

    def take(self) -> M:
        """Take the oldest message out, which makes room for another one.

        Raises:
            AssertionError: The mailbox is empty or abandoned.
        """
        try:
            envelope = self._exit.receive_nowait()
        except (anyio.WouldBlock, anyio.EndOfStream, anyio.ClosedResourceError):
            raise AssertionError(f"The mailbox of {self.name} is empty.") from None
        self._taken()
        return envelope.body

    def send_nowait(
        self, body: M, *, sender: str, cause: int | None = None, reply_to: object = None
    ) -> Envelope[M]:
        """Put a message in, and do what `answers` and `ends_at` have set for its kind."""
        envelope = super().send_nowait(body, sender=sender, cause=cause, reply_to=reply_to)
        self.envelopes.append(envelope)
        if reply_to is not None:
            self._asked.append(envelope)
            replies = next((each for kind, each in self._answers.items() if isinstance(body, kind)), None)
            if replies is not None:
                answer = replies.popleft() if len(replies) > 1 else replies[0]
                reply(self._asked.pop(), answer(body) if callable(answer) else answer)
        if self._ends_at is not None and isinstance(body, self._ends_at):
            self.abandon()
        return envelope


SENDER = "test"


class Asked:
    """A question that the test asks the actor, and the actor's reply once it has arrived."""

    def __init__(self, question: object) -> None:
        self._question = question
        self._reply: Future[Any] = Future()

    @property
    def is_answered(self) -> bool:
        """`True` if the actor has replied, or the ask has failed."""
        return self._reply.done()

    @property
    def answer(self) -> Any:
        """The body of the reply.

        Raises:
            AssertionError: There is no reply yet.
            AskTimedOut, MailboxClosed: The ask has failed.
        """
        if not self._reply.done():
            raise AssertionError(f"{self._question!r} has no reply yet.")
        return self._reply.result()

    async def put_to(self, mailbox: Mailbox[Any], timeout_s: float | None) -> None:
        """Ask the mailbox, and keep the reply or the exception."""
        try:
            reply = await mailbox.ask(self._question, sender=SENDER, timeout_s=timeout_s)
        except (AskTimedOut, MailboxClosed) as error:
            self._reply.set_exception(error)
        else:
            self._reply.set_result(reply)


class ActorHarness:
    """Runs one actor. Use it as an async context manager inside a test with `@virtual_time`.

    The end of the `async with` block stops the actor, which first handles the messages in its mailbox. If the
    block raises an exception, the actor is cancelled instead.

    Args:
        turn: The turn's number in the recorded messages; 0: outside turns.
        stop_grace_s: How many seconds of virtual time a stopped actor may take to end before it is cancelled.

    Attributes:
        watch: Has every message so far, and assertions about them.
        note: A function that records a message without a receiver, for actors that take such a function.

    Raises:
        RuntimeError: The event loop has no virtual clock.
        ActorCrashed: The actor has crashed. Raised once, by the next method that lets it run, or at the end.
    """

    def __init__(self, *, turn: int = 0, stop_grace_s: float = 5.0) -> None:
        self._loop = virtual_loop()
        self.watch = TraceWatch(clock=self._loop.time)
        self._group = Supervisor(self.watch.recorder, turn=turn, stop_grace_s=stop_grace_s)
        self.note = self._group.note
        self._turn = turn
        self._channels: list[Mailbox[Any]] = []
        self._tasks: TaskGroup = anyio.create_task_group()
        self._scope = anyio.CancelScope()
        self._leaving = anyio.Event()
        self._ended = anyio.Event()
        self._actor: Actor[Any] | None = None
        self._crash: ActorCrashed | None = None
        self._seen = 0

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if self._actor is not None:
                await (self.stop() if exc is None else self.cancel())
        finally:
            for channel in self._channels:
                channel.abandon()
            self._tasks.cancel_scope.cancel()
            await self._tasks.__aexit__(None, None, None)

    @property
    def is_running(self) -> bool:
        """`True` if the actor was started and has not ended."""
        return self._actor is not None and not self._ended.is_set()

    def mailbox(self, name: str, *, bound: int = BOUND) -> Mailbox[Any]:
        """Make the mailbox of the actor; `name` becomes the actor's name."""
        mailbox = self._group.mailbox(name, bound=bound)
        self._channels.append(mailbox)
        return mailbox

    def channel(self, name: str, *, bound: int | None = None) -> FakeChannel[Any]:
        """Make the mailbox of an actor that the test plays. If it is full, the actor's `send` waits."""
        tap = functools.partial(self.watch.recorder.record, turn=self._turn)
        channel: FakeChannel[Any] = FakeChannel(name, tap, bound=bound)
        self._channels.append(channel)
        return channel

    def start(self, actor: Actor[Any]) -> None:
        """Run the actor in a new task.

        Raises:
            RuntimeError: An actor was started before.
        """
        if self._actor is not None:
            raise RuntimeError(f"This harness drives {self._actor.name}: use another one for {actor.name}.")
        self._actor = actor
        self._tasks.start_soon(self._run, actor, name="the harness of " + actor.name)

    async def tell(self, body: object, *, sender: str = SENDER, cause: int | None = None) -> list[Any]:
        """Send a message to the actor, and let the actor run. Returns what `idle` returns.

        Raises:
            MailboxClosed: The actor has ended.
            RuntimeError: No actor was started.
        """
        await self._mailbox().send(body, sender=sender, cause=cause)
        return await self.idle()

    async def ask(self, body: object, *, timeout_s: float | None = None) -> Asked:
        """Ask the actor, and let it run until it waits. The reply may come later.

        `timeout_s` is the time limit for the reply, in virtual seconds; `None`: no limit.
        """
        asked = Asked(body)
        self._tasks.start_soon(asked.put_to, self._mailbox(), timeout_s)
        await self.idle()
        return asked

    async def idle(self) -> list[Any]:
        """Let the actor run until it waits. Return what it sent and noted since a method last let it run."""
        await self._loop.idle()
        return self._new()

    async def pass_time(self, seconds: float) -> list[Any]:
        """Let `seconds` of virtual time pass. Returns what `idle` returns."""
        await anyio.sleep(seconds)
        return await self.idle()

    async def stop(self) -> list[Any]:
        """Close the actor's mailbox and wait until the actor has ended, for at most `stop_grace_s`.

        Then cancel the actor if it still runs. Returns what `idle` returns.

        Raises:
            RuntimeError: No actor was started.
        """
        self._mailbox()
        self._leaving.set()
        return await self._end()

    async def cancel(self) -> list[Any]:
        """Cancel the actor, and wait until it has ended. Returns and raises what `stop` does."""
        self._mailbox()
        self._scope.cancel()
        return await self._end()

    async def _end(self) -> list[Any]:
        await self._ended.wait()
        return self._new()

    async def _run(self, actor: Actor[Any]) -> None:
        try:
            with self._scope:
                async with self._group as group:
                    group.start(actor)
                    await self._leaving.wait()
        except ActorCrashed as crash:
            self._crash = crash
        finally:
            self._ended.set()

    def _mailbox(self) -> Mailbox[Any]:
        if self._actor is None:
            raise RuntimeError("No actor was started: call start first.")
        return self._actor.mailbox

    def _new(self) -> list[Any]:
        crash, self._crash = self._crash, None
        if crash is not None:
            raise crash
        name = "" if self._actor is None else self._actor.name
        new, self._seen = self.watch.envelopes[self._seen :], len(self.watch.envelopes)
        return [each.body for each in new if each.sender == name]


P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_THREAD_LIMIT_S = 30.0
_LOOK_EVERY_S = 0.02
_REAL_TIME = (
    "Virtual time cannot wait for a process, a pipe or a socket, which take real time. Use a fake in their"
    " place, or run this test in real time."
)
_LIBRARIES = ("/asyncio/", "/anyio/")


class Deadlock(AssertionError):  # noqa: N818 - a state, named as the field names it
    """All tasks wait, and either nothing is left that could wake them, or a thread has worked for 30 s."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when all tasks wait.

    To use it without `virtual_time`, pass the class as the `loop_factory`: with anyio's pytest plugin, let
    the fixture `anyio_backend` return `("asyncio", {"loop_factory": VirtualTimeLoop})`.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._waiting_for_idle: list[asyncio.Future[None]] = []
        self._threads_before = frozenset(threading.enumerate())
        self._executing: set[asyncio.Future[Any]] = set()
        self._workers: set[threading.Thread] = set()
        self._working: set[threading.Thread] = set()
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Return the virtual time in seconds; a new loop starts at 0."""
        return self._now

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Any = None
    ) -> asyncio.TimerHandle:
        """Schedule a call. A call at infinity, as `anyio.sleep_forever` schedules it, never runs."""
        if math.isinf(when):
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)

    async def idle(self) -> None:
        """Wait until all other tasks wait and no thread is at work. The virtual clock does not move."""
        waiter: asyncio.Future[None] = self.create_future()
        self._waiting_for_idle.append(waiter)
        await waiter

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> Any:
        """Raise `RuntimeError`, because a process takes real time."""
        del args, kwargs
        raise RuntimeError(_REAL_TIME)

    subprocess_shell = subprocess_exec

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run a call in a thread. The clock stands still meanwhile, unless the thread is older than it."""

        def work() -> T:
            thread = threading.current_thread()
            self._working.add(thread)
            try:
                return func(*args)
            finally:
                self._working.discard(thread)

        # Remember the threads that this call starts. The executor keeps them after the work, and while they
        # are idle, `threads_at_work` must not count them.
        before = set(threading.enumerate())
        call = super().run_in_executor(executor, work)
        self._workers |= set(threading.enumerate()) - before
        self._executing.add(call)
        call.add_done_callback(self._executing.discard)
        return call

    def jump(self, timeout_s: float | None) -> None:
        """Wake the callers of `idle`. If there are none, advance the clock by `timeout_s` (`None`: no timer).

        Raises `Deadlock` if there are neither callers of `idle` nor a timer.
        """
        waiting, self._waiting_for_idle = self._waiting_for_idle, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
        if waiting:
            return
        if timeout_s is None:
            lines = sorted(f"  {task.get_name()}: {_place(task)}" for task in asyncio.all_tasks(self))
            raise Deadlock("\n".join(["All tasks wait, and nothing can wake them:", *lines]))
        self._now += timeout_s

    def threads_at_work(self) -> list[threading.Thread]:
        """Return the threads that were started after the loop was made, and that may have work to do."""
        idle = set() if self._executing else self._workers - self._working
        started = set(threading.enumerate()) - self._threads_before - idle
        return [each for each in started if not _is_idle_worker(each)]


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        # Allow one registration, that of the loop's own pipe, by which threads wake the loop.
        if self.get_map():
            raise RuntimeError(_REAL_TIME)
        return super().register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        limit = time.monotonic() + _THREAD_LIMIT_S
        while threads := self._loop.threads_at_work():
            if found := super().select(_LOOK_EVERY_S):
                return found
            if time.monotonic() > limit:
                names = ", ".join(each.name for each in threads)
                raise Deadlock(f"All tasks wait, and a thread works for {_THREAD_LIMIT_S:g} s: {names}.")
        # A thread may have woken the loop since the last `select`.
        if found := super().select(0):
            return found
        self._loop.jump(timeout)
        return []


def run_in_virtual_time(main: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function in a new event loop with a virtual clock, and return its result.

    Raises:
        Deadlock: All tasks wait, and either there is no timer or a thread has worked for 30 s of real time.
    """
    return anyio.run(main, backend="asyncio", backend_options={"loop_factory": VirtualTimeLoop})


def virtual_time(test: Callable[P, Awaitable[T]]) -> Callable[P, T]:
    """Turn a coroutine function into a plain function, which runs it in virtual time.

    A test with this decorator needs no plugin for asynchronous tests. Fixtures work as usual. The function
    raises `Deadlock` as `run_in_virtual_time` does.
    """

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_in_virtual_time(functools.partial(test, *args, **kwargs))

    return run


def virtual_loop() -> VirtualTimeLoop:
    """Return the running loop; raises `RuntimeError` if no loop runs, or the loop has no virtual clock."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualTimeLoop):
        raise RuntimeError("This needs virtual time: decorate the test with @virtual_time.")
    return loop


def _is_idle_worker(thread: threading.Thread) -> bool:
    # anyio keeps a worker thread for a while after its work; the thread then has no unfinished tasks.
    queue = getattr(thread, "queue", None)
    return writes_lines(thread) or (queue is not None and getattr(queue, "unfinished_tasks", 1) == 0)


def _place(task: "asyncio.Task[Any]") -> str:
    awaited: Any = task.get_coro()
    frames: list[FrameType] = []
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        frames.append(frame)
        awaited = awaited.cr_await
    ours = [each for each in frames if not any(name in each.f_code.co_filename for name in _LIBRARIES)]
    if not frames:
        return "has not begun"
    frame = (ours or frames)[-1]
    file = frame.f_code.co_filename.rsplit("/", 1)[-1]
    return f"{frame.f_code.co_qualname} ({file}:{frame.f_lineno})"


_MOST_SHOWN = 60
_MOST_CHARS = 100


class TraceWatch:
    """Keeps recorded messages, and has assertions about them.

    Args:
        clock: Returns the time in seconds that the messages are recorded with; `None`: the system's clocks.

    Attributes:
        recorder: Pass it to a `Runner` to keep the runner's messages.

    Source: L18
    """

    def __init__(self, *, clock: Callable[[], float] | None = None) -> None:
        self.envelopes: list[Envelope[Any]] = []
        self.recorder = Recorder() if clock is None else Recorder(clock=clock, wall_clock=clock)
        self.recorder.add(lambda envelope, _line: self.envelopes.append(envelope))

    @classmethod
    def of(cls, path: str | PathLike[str]) -> Self:
        """Return a `TraceWatch` with the messages of a trace file.

        Raises:
            TraceError: The file is missing, damaged, not a trace, or of a later format.
        """
        watch = cls()
        watch.envelopes.extend(read_episode(path).envelopes)
        return watch

    def bodies(self, *kinds: type) -> list[Any]:
        """Return the messages of these kinds, in order; without `kinds`, all messages."""
        return [each.body for each in self.envelopes if not kinds or isinstance(each.body, kinds)]

    def happened(self, kind: type, /, *, times: int | None = None, **fields: Any) -> Any:
        """Assert that a message of this kind was recorded, and return the first one.

        `kind` is a class of `grue.messages`, or that of a fact. `times` is how many such messages there must
        be; `None`: at least one. `fields` are values that the message's fields must have. With `times=0`, the
        result is `None`.

        Raises:
            AssertionError: The message was recorded too rarely or too often.
            TypeError: `kind` is a Struct that lacks one of the fields.
        """
        found = self._found(kind, fields)
        if (times is None and not found) or (times is not None and len(found) != times):
            wanted = "at least once" if times is None else f"{times} times"
            raise self._failure(f"{_described(kind, fields)} happened {len(found)} times, not {wanted}", kind)
        return found[0] if found else None

    def never(self, kind: type, /, **fields: Any) -> None:
        """Assert that no message of this kind, with these fields, was recorded.

        Raises:
            AssertionError: Such a message was recorded.
            TypeError: `kind` is a Struct that lacks one of the fields.
        """
        found = self._found(kind, fields)
        if found:
            raise self._failure(f"{_described(kind, fields)} happened {len(found)} times, not never", kind)

    def in_order(self, *wanted: object) -> None:
        """Assert that these messages were recorded in this order; there may be others between them.

        Args:
            wanted: Kinds of messages, or whole messages.

        Raises:
            AssertionError: A message is missing, or came too early.
        """
        position = 0
        for index, each in enumerate(wanted):
            while position < len(self.envelopes) and not _is(self.envelopes[position].body, each):
                position += 1
            if position == len(self.envelopes):
                earlier = ", ".join(map(_name, wanted[:index])) or "the beginning"
                raise self._failure(f"no {_name(each)} after {earlier}")
            position += 1

    def caused_by(self, kind: type, cause: type) -> None:
        """Assert that each message of class `kind` has a direct or indirect cause of class `cause`.

        Raises:
            AssertionError: A message of `kind` has no such cause, or there is no message of `kind`.
        """
        by_number = {each.seq: each for each in self.envelopes}
        found = [each for each in self.envelopes if isinstance(each.body, kind)]
        if not found:
            raise self._failure(f"{kind.__name__} did not happen")
        for envelope in found:
            chain = [envelope]
            while chain[-1].cause in by_number:
                chain.append(by_number[chain[-1].cause])
            if not any(isinstance(each.body, cause) for each in chain[1:]):
                causes = " <- ".join(f"{each.seq} {type(each.body).__name__}" for each in chain)
                raise self._failure(f"{kind.__name__} was not caused by {cause.__name__}, but {causes}")

    def _found(self, kind: type, fields: dict[str, Any]) -> list[Any]:
        known = getattr(kind, "__struct_fields__", tuple(fields))
        for name in fields:
            if name not in known:  # `never` would pass for a field that is misspelt
                raise TypeError(f"{kind.__name__} has no field {name!r}; it has {', '.join(known) or 'none'}")
        return [body for body in self.bodies(kind) if _has(body, fields)]

    def _failure(self, text: str, kind: type | None = None) -> AssertionError:
        shown = [each for each in self.envelopes if kind and isinstance(each.body, kind)] or self.envelopes
        lines = [_line(each) for each in shown[:_MOST_SHOWN]]
        if len(shown) > _MOST_SHOWN:
            lines.append(f"... and {len(shown) - _MOST_SHOWN} more")
        return AssertionError("\n".join([f"{text}. The trace:", *(lines or ["(no messages)"])]))


def _is(body: object, wanted: object) -> bool:
    return isinstance(body, wanted) if isinstance(wanted, type) else body == wanted


def _name(wanted: object) -> str:
    return wanted.__name__ if isinstance(wanted, type) else printable(repr(wanted), _MOST_CHARS)


def _has(body: object, fields: dict[str, Any]) -> bool:
    return all(getattr(body, name, _has) == value for name, value in fields.items())


def _described(kind: type, fields: dict[str, Any]) -> str:
    given = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    return f"{kind.__name__}({given})" if given else kind.__name__


def _line(envelope: Envelope[Any]) -> str:
    body = envelope.body
    # Messages are Structs, but a reply to an ask may be any value.
    words = ascii(summarize(body))[1:-1] if isinstance(body, Struct) else ascii(body)
    words, name = words[:_MOST_CHARS], type(body).__name__
    return (
        f"{envelope.seq:>5}  turn {envelope.turn}  {envelope.sender} -> {envelope.receiver}  {name}  {words}"
    )
