"""Run one actor alone, with fake channels in place of the actors around it.

```python
from grue.testing.actor_harness import ActorHarness
from grue.testing.virtual_time import virtual_time

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

The actor runs under a real supervisor with a real mailbox. `tell`, `ask` and `idle` return when the actor
waits for its next message, a reply or a timer, so a test needs no sleeps. Time passes only in `pass_time`.

A `FakeChannel` is a mailbox whose owner the test plays: it keeps what an actor sends, and answers asks as the
test says.

```python
thermostat = harness.channel("thermostat")
thermostat.answers(Measured, Heat(degrees=2.0))
...
assert thermostat.sent == [Measured(celsius=16.0)]
```

`ActorHarness.channel` makes one. It is a real `Mailbox` without a reader, so it records, fills up and closes
as one does.
"""

import sys
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
from anyio.abc import TaskGroup

from grue.errors import ActorCrashed
from grue.runtime.actor import BOUND, Actor, AskTimedOut, Mailbox, MailboxClosed, Supervisor, Tap, reply
from grue.runtime.trace.recorder import Envelope
from grue.testing.trace_watch import TraceWatch
from grue.testing.virtual_time import virtual_loop

M = TypeVar("M")

_UNLIMITED = sys.maxsize


class FakeChannel(Mailbox[M]):
    """A mailbox without an actor behind it.

    It gives no reply unless `answers` says so or the test calls `reply`. `close` makes senders fail with
    `MailboxClosed`; `abandon` does the same to those that wait for a reply.

    Args:
        name: The name of the actor that it stands for.
        tap: Records each message on its way in.
        bound: Messages it holds until `take` makes room; `None`: it is never full.
    """

    def __init__(self, name: str, tap: Tap, *, bound: int | None = None) -> None:
        super().__init__(name, tap, bound=_UNLIMITED if bound is None else bound)
        self.envelopes: list[Envelope[M]] = []
        self._asked: deque[Envelope[M]] = deque()
        self._answers: dict[type, deque[Any]] = {}
        self._ends_at: type | None = None

    @property
    def sent(self) -> list[M]:
        """The messages that were ever sent to it, in order."""
        return [each.body for each in self.envelopes]

    def answers(self, kind: type, *replies: Any) -> None:
        """Answer asks of a kind at once, with these replies in order; the last one is repeated.

        A reply that is a function gets the question and returns the reply.
        """
        if not replies:
            raise ValueError("answers needs at least one reply")
        self._answers[kind] = deque(replies)

    def ends_at(self, kind: type) -> None:
        """End when a message of this kind arrives, as an actor that crashes on it would."""
        self._ends_at = kind

    def reply(self, body: Any) -> None:
        """Answer the oldest ask that has no reply yet.

        Raises:
            AssertionError: There is none.
        """
        if not self._asked:
            raise AssertionError(f"Nobody waits for a reply of {self.name}.")
        reply(self._asked.popleft(), body)

    def take(self) -> M:
        """Take the oldest message out, which makes room for another one.

        Raises:
            AssertionError: It is empty.
        """
        try:
            envelope = self._exit.receive_nowait()
        except (anyio.WouldBlock, anyio.EndOfStream, anyio.ClosedResourceError):
            raise AssertionError(f"The mailbox of {self.name} is empty.") from None
        self._taken()
        return envelope.body

    def _put_nowait(self, body: M, *, sender: str, cause: int | None, reply_to: object) -> Envelope[M]:
        envelope = super()._put_nowait(body, sender=sender, cause=cause, reply_to=reply_to)
        self.envelopes.append(envelope)
        if reply_to is not None:
            self._asked.append(envelope)
            self._answer(body)
        if self._ends_at is not None and isinstance(body, self._ends_at):
            self.abandon()
        return envelope

    def _answer(self, body: M) -> None:
        replies = next((each for kind, each in self._answers.items() if isinstance(body, kind)), None)
        if replies is None:
            return
        answer = replies.popleft() if len(replies) > 1 else replies[0]
        reply(self._asked.pop(), answer(body) if callable(answer) else answer)


SENDER = "test"


class Asked:
    """An ask that the test has sent to the actor."""

    def __init__(self, question: object) -> None:
        self._question = question
        self._outcome: Callable[[], Any] | None = None

    @property
    def is_answered(self) -> bool:
        """Whether the actor has replied, or the ask has failed."""
        return self._outcome is not None

    @property
    def answer(self) -> Any:
        """The body of the reply.

        Raises:
            AssertionError: There is no reply yet.
            AskTimedOut, MailboxClosed: The ask has failed.
        """
        if self._outcome is None:
            raise AssertionError(f"{self._question!r} has no reply yet.")
        return self._outcome()

    async def put_to(self, mailbox: Mailbox[Any], timeout_s: float | None) -> None:
        """Ask, and keep the reply or the exception."""
        try:
            reply = await mailbox.ask(self._question, sender=SENDER, timeout_s=timeout_s)
        except (AskTimedOut, MailboxClosed) as error:
            self._outcome = _raising(error)
        else:
            self._outcome = lambda: reply


def _raising(error: Exception) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


class ActorHarness:
    """Runs one actor. Use it as an async context manager inside a test with `@virtual_time`.

    On leaving, it closes the actor's mailbox and waits until the actor has handled what it has, as a
    supervisor does. If the test has failed, it cancels the actor.

    Args:
        turn: Number of the turn that the messages belong to.
        stop_grace_s: Seconds, in virtual time, that the actor has to end by itself.

    Attributes:
        watch: Every message, with assertions: what happened, in which order, never, and why.
        note: Records a fact without a receiver, for actors whose constructor takes a `Note`.

    Raises:
        RuntimeError: The event loop has no virtual clock.
        ActorCrashed: From any method, and on leaving, if the actor has crashed. It is raised once.
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
        """Whether the actor was started and has not ended."""
        return self._actor is not None and not self._ended.is_set()

    def mailbox(self, name: str, *, bound: int = BOUND) -> Mailbox[Any]:
        """Make the mailbox of the actor; `name` becomes the actor's name."""
        mailbox = self._group.mailbox(name, bound=bound)
        self._channels.append(mailbox)
        return mailbox

    def channel(self, name: str, *, bound: int | None = None) -> FakeChannel[Any]:
        """Make the mailbox of a neighbour, which the test plays.

        Args:
            name: The neighbour's name.
            bound: Messages it holds until the test takes one; `None`: it is never full.
        """
        channel: FakeChannel[Any] = FakeChannel(name, self._record, bound=bound)
        self._channels.append(channel)
        return channel

    def start(self, actor: Actor[Any]) -> None:
        """Run the actor in a new task.

        Raises:
            RuntimeError: Another one was started. A harness drives one actor.
        """
        if self._actor is not None:
            raise RuntimeError(f"This harness drives {self._actor.name}: use another one for {actor.name}.")
        self._actor = actor
        self._tasks.start_soon(self._run, actor, name="the harness of " + actor.name)

    async def tell(self, body: object, *, sender: str = SENDER, cause: int | None = None) -> list[Any]:
        """Send a message to the actor, and return what the actor has sent and noted until it waits again.

        Raises:
            MailboxClosed: The actor has ended.
        """
        await self._mailbox().send(body, sender=sender, cause=cause)
        return await self.idle()

    async def ask(self, body: object, *, timeout_s: float | None = None) -> Asked:
        """Send an ask to the actor, and return it when the actor waits again, answered or not.

        Args:
            body: The question.
            timeout_s: How long the ask waits, in virtual time; `None`: without a limit.
        """
        asked = Asked(body)
        self._tasks.start_soon(asked.put_to, self._mailbox(), timeout_s)
        await self.idle()
        return asked

    async def idle(self) -> list[Any]:
        """Wait until the actor waits, and return what it has sent and noted since the last call.

        No time passes.
        """
        await self._loop.idle()
        self._raise_crash()
        return self._new()

    async def pass_time(self, seconds: float) -> list[Any]:
        """Let virtual time pass, and return what the actor has sent and noted."""
        await anyio.sleep(seconds)
        return await self.idle()

    async def stop(self) -> list[Any]:
        """End the actor as its supervisor does, and return what it has sent and noted.

        It handles the messages that are in its mailbox. After `stop_grace_s` it is cancelled.
        """
        self._leaving.set()
        return await self._end()

    async def cancel(self) -> list[Any]:
        """Cancel the actor, and return what it has sent and noted while it cleaned up."""
        self._scope.cancel()
        return await self._end()

    async def _end(self) -> list[Any]:
        await self._ended.wait()
        self._raise_crash()
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
        name = "" if self._actor is None else self._actor.name
        new, self._seen = self.watch.envelopes[self._seen :], len(self.watch.envelopes)
        return [each.body for each in new if each.sender == name]

    def _record(self, body: Any, **rest: Any) -> Envelope[Any]:
        return self.watch.recorder.record(body, turn=self._turn, **rest)

    def _raise_crash(self) -> None:
        crash, self._crash = self._crash, None
        if crash is not None:
            raise crash
