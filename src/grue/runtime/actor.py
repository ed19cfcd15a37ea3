"""Actors, their mailboxes, and the task group that runs and ends them."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Never, Protocol, Self, TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from grue.errors import ActorCrashed, MCPError, TraceError
from grue.runtime.loops.host_code import blame, ends_the_task, in_words, raised_by, single
from grue.runtime.trace.recorder import Envelope, Recorder

M = TypeVar("M")


BOUND = 16  # how many messages a mailbox holds by default


class MailboxFull(MCPError):  # noqa: N818 - a state, named as anyio names `WouldBlock`
    """`Mailbox.send_nowait` was called while the mailbox was full."""


class MailboxClosed(MCPError):  # noqa: N818 - a state, named as anyio names `ClosedResourceError`
    """The mailbox was closed, or its actor ended before it replied."""


class AskTimedOut(MCPError):  # noqa: N818 - named as the event it reports
    """`Mailbox.ask` got no reply within its `timeout_s`."""


class Tap(Protocol):
    """Records a message as it enters a mailbox, or a reply to an `ask`, and returns its envelope."""

    def __call__(
        self, body: Any, *, sender: str, receiver: str, cause: int | None, reply_to: object = None
    ) -> Envelope[Any]:
        """Record a message, and return its envelope."""


class Mailbox(Generic[M]):
    """A named queue of envelopes with one reader.

    A send records an envelope and then queues it, without an `await` in between. So messages have the same
    order in the trace and in the mailbox.

    Args:
        name: The owner's name, which is the receiver in every envelope of this mailbox.
        tap: Records each message as it enters the mailbox, as `Recorder.record` does.
        bound: How many messages the mailbox holds before a sender has to wait; at least 1.

    Raises:
        ValueError: `bound` is less than 1.
    """

    def __init__(self, name: str, tap: Tap, *, bound: int = BOUND) -> None:
        if bound < 1:
            raise ValueError(f"the bound of the mailbox {name} is {bound}: it has to be at least 1")
        self.name = name
        self.bound = bound
        self._tap = tap
        self._held = 0
        self._closed = False
        self._asks: set[ReplyChannel] = set()
        self._room: anyio.Event | None = None
        self._entrance, self._exit = anyio.create_memory_object_stream[Envelope[M]](bound)

    def __len__(self) -> int:
        return self._held

    @property
    def is_closed(self) -> bool:
        """`True` if the mailbox takes no further message."""
        return self._closed

    async def send(
        self, body: M, *, sender: str, cause: int | None = None, reply_to: object = None
    ) -> Envelope[M]:
        """Put a message in, waiting while the mailbox is full.

        Only `ask` passes `reply_to`. A cancelled call sends and records nothing.

        Raises:
            MailboxClosed: The mailbox was closed.
        """
        while True:
            try:
                return self.send_nowait(body, sender=sender, cause=cause, reply_to=reply_to)
            except MailboxFull:
                # Make the event only now, because few mailboxes are ever full.
                self._room = self._room or anyio.Event()
                await self._room.wait()

    def send_nowait(
        self, body: M, *, sender: str, cause: int | None = None, reply_to: object = None
    ) -> Envelope[M]:
        """Put a message in without waiting.

        Raises:
            MailboxFull: The mailbox is full.
            MailboxClosed: The mailbox was closed.
        """
        if self._closed:
            raise MailboxClosed(f"{self.name} takes no further message: {type(body).__name__} from {sender}.")
        if self._held >= self.bound:
            raise MailboxFull(f"The mailbox of {self.name} holds {self.bound} messages and has no room.")
        envelope = self._tap(body, sender=sender, receiver=self.name, cause=cause, reply_to=reply_to)
        self.put_recorded(envelope)
        return envelope

    async def ask(
        self, body: M, *, sender: str, timeout_s: float | None = None, cause: int | None = None
    ) -> Any:
        """Send a message and return the body of the reply.

        `timeout_s` limits sending and waiting together; `None`: no limit. `cause`: as in `Envelope.cause`.

        Raises:
            AskTimedOut: No reply within `timeout_s`.
            MailboxClosed: The mailbox was closed, or its actor ended before it replied.
        """
        reply = self.expect_reply(sender)
        try:
            with contextlib.nullcontext() if timeout_s is None else anyio.move_on_after(timeout_s):
                await self.send(body, sender=sender, cause=cause, reply_to=reply)
                return await reply.wait()
        finally:
            self._asks.discard(reply)
        raise AskTimedOut(f"{self.name} gave no reply to {type(body).__name__} within {timeout_s:g} s.")

    def put_recorded(self, envelope: Envelope[M]) -> None:
        """Put in a message that is in the trace already. The mailbox must not be full or closed."""
        self._held += 1
        self._entrance.send_nowait(envelope)

    def expect_reply(self, sender: str) -> ReplyChannel:
        """Return a channel for a reply. The caller passes it to the actor as an envelope's `reply_to`."""
        reply = ReplyChannel(self.name, sender, self._tap)
        self._asks.add(reply)
        return reply

    async def receive(self) -> Envelope[M]:
        """Take the oldest message out. If the mailbox is empty, wait for a message.

        Raises:
            anyio.EndOfStream: The mailbox was closed and is empty.
        """
        envelope = await self._exit.receive()
        self._taken()
        return envelope

    def __aiter__(self) -> Self:
        """Yield messages until the mailbox is closed and empty."""
        return self

    async def __anext__(self) -> Envelope[M]:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    def close(self) -> None:
        """Accept no further message: waiting sends raise `MailboxClosed`. Queued messages can be received."""
        self._closed = True
        self._entrance.close()
        self._wake_senders()

    def abandon(self) -> None:
        """Close the mailbox and drop its messages. Every ask that has no reply yet raises `MailboxClosed`."""
        self.close()
        self._exit.close()
        for reply in self._asks:
            reply.abandon()

    def _taken(self) -> None:
        self._held -= 1
        self._wake_senders()

    def _wake_senders(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.set()


class ReplyChannel:
    """Carries the reply to one ask, past all mailboxes, so a full mailbox of the asker does not matter."""

    def __init__(self, answerer: str, asker: str, tap: Tap) -> None:
        self._answerer = answerer
        self._asker = asker
        self._tap = tap
        self._given = anyio.Event()
        self._body: object = None
        self._abandoned = False

    def give(self, body: object, *, cause: int | None = None) -> None:
        """Record the reply and wake the asker; raises `RuntimeError` after an earlier reply or `abandon`."""
        if self._given.is_set():
            asker = self._asker
            how = (
                f"to {asker} after {asker} was told that it had ended"
                if self._abandoned
                else f"twice to {asker}"
            )
            raise RuntimeError(f"{self._answerer} replied {how}")
        self._tap(body, sender=self._answerer, receiver=self._asker, cause=cause)
        self._body = body
        self._given.set()

    def abandon(self) -> None:
        """Wake an asker that has no reply yet; its `wait` raises `MailboxClosed`."""
        if not self._given.is_set():
            self._abandoned = True
            self._given.set()

    async def wait(self) -> object:
        """Return the reply's body once it is given; raise `MailboxClosed` if `abandon` comes first."""
        await self._given.wait()
        if self._abandoned:
            raise MailboxClosed(f"{self._answerer} ended without a reply to {self._asker}.")
        return self._body


class Note(Protocol):
    """Records a message in the trace without sending it to an actor."""

    def __call__(self, body: Any, *, sender: str, cause: int | None = None) -> Envelope[Any]:
        """Record `body`, and return its envelope."""


class Actor(Generic[M]):
    """An actor that takes messages of type `M`.

    Attributes:
        mailbox: The mailbox that only this actor reads.
        name: The mailbox's name, by which the trace names the actor as sender and as receiver.
    """

    def __init__(self, mailbox: Mailbox[M]) -> None:
        self.mailbox = mailbox
        self.name = mailbox.name

    async def run(self) -> None:
        """Receive messages until the mailbox is closed and empty.

        A cancellation ends this method at once, so a subclass cleans up in `around`.
        """
        async with self.around():
            async for envelope in self.mailbox:
                await self.receive(envelope)

    def around(self) -> AbstractAsyncContextManager[object]:
        """Return a context manager that `run` holds open while it receives messages."""
        return contextlib.nullcontext()

    async def receive(self, envelope: Envelope[M]) -> None:
        """Handle one message. The next message waits until this returns."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither receive nor run")


def reply(envelope: Envelope[Any], body: object) -> None:
    """Answer the ask that came in `envelope`; the envelope is the reply's cause.

    Raises:
        RuntimeError: The message was not an ask, or the ask was answered or abandoned already.
    """
    if not isinstance(envelope.reply_to, ReplyChannel):
        raise RuntimeError(f"{type(envelope.body).__name__} from {envelope.sender} is not an ask")
    envelope.reply_to.give(body, cause=envelope.seq)


class ActorFailed(Struct, frozen=True, kw_only=True, tag=True):
    """Trace note of an unexpected exception in an actor, a pooled session or the host."""

    actor: str  # the actor's name, the server of the pooled session, or `host`
    error: str
    where: tuple[str, ...]  # FILE:LINE FUNCTION of the innermost frames, at most 5, the innermost last


class Supervisor:
    """An async context manager that runs a group of actors. `turn`: the turn's number; 0 outside turns.

    When the block ends, all mailboxes are closed, and the actors have `stop_grace_s` to handle the messages
    in them. Then, or at once if the block raises, the actors that still run are cancelled. An actor that
    sends to a closed mailbox does not count as crashed if the block is being left, or if an actor that was
    started with `whole=True` has returned.

    The body of the `async with` must not hold anything whose clean-up awaits: if the host runs the asyncio
    loop, a Ctrl-C cancels the body's task, and a shielded scope does not protect against that.

    Leaving raises `ActorCrashed` if an actor, or the host's code in the block, raised an exception. A
    `TraceError`, or an exception such as `KeyboardInterrupt`, is raised as it is. A cancellation by an outer
    scope is raised instead of either. So is an exception of grue's own code in the block, unless it is
    `MailboxClosed`.
    """

    def __init__(self, recorder: Recorder, *, turn: int = 0, stop_grace_s: float = 5.0) -> None:
        self._recorder = recorder
        self._texts: set[tuple[str, int, int | None]] = set()  # that may be held back: `Recorder.hold_back`
        self.turn = turn
        self._stop_grace_s = stop_grace_s
        self._mailboxes: list[Mailbox[Any]] = []
        self._group: TaskGroup = anyio.create_task_group()
        self._running = 0
        self._all_done = anyio.Event()
        self._stopping = False
        self._crash: tuple[str, BaseException] | None = None

    def mailbox(self, name: str, *, bound: int = BOUND) -> Mailbox[Any]:
        """Make a mailbox whose messages are recorded. It is closed when its actor or the block ends."""
        mailbox: Mailbox[Any] = Mailbox(name, self._tap, bound=bound)
        self._mailboxes.append(mailbox)
        return mailbox

    def note(self, body: Any, *, sender: str, cause: int | None = None) -> Envelope[Any]:
        """Record a message in the trace without sending it to an actor."""
        if body.__class__ is self._recorder.piece:
            self._texts.add((sender, self.turn, cause))
        return self._recorder.record(body, sender=sender, cause=cause, turn=self.turn)

    def start(self, actor: Actor[Any], *, whole: bool = False) -> anyio.CancelScope:
        """Run an actor in a new task; return the task's cancel scope. For `whole`, see the class."""
        scope = anyio.CancelScope()
        if not self._running:
            self._all_done = anyio.Event()
        self._running += 1
        self._group.start_soon(self._run, actor, whole, scope, name=actor.name)
        return scope

    def fail(self, actor: str, error: BaseException) -> None:
        """Note `error` in the trace if possible; cancel actors and block. The first error will be raised."""
        if self._crash is None:
            self._crash = (actor, error)
        self._group.cancel_scope.cancel()
        # If the trace cannot be written, this note cannot be recorded either.
        with contextlib.suppress(Exception):
            self.note(describe_crash(actor, error), sender=actor)

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        cut_short: BaseException | None = None
        self._stopping = True
        # The block may fail in the host's code, for example in an observer of a message that the block sends.
        host_failed = exc_val is not None and bool(raised_by(exc_val)) and not ends_the_task(exc_val)
        if exc_val is None:
            try:
                await self._stop()
            except anyio.get_cancelled_exc_class() as cancelled:
                # Either an actor has crashed, and the task group cancels the block and later suppresses this
                # error (in `_end`); or a scope outside the task group was cancelled.
                cut_short = cancelled
        elif host_failed:
            self.fail("host", single(exc_val))
        left_by = exc_val or cut_short
        suppressed = await self._end(None if host_failed else left_by)
        if self._crash is not None and (
            left_by is None or suppressed or host_failed or isinstance(left_by, MailboxClosed)
        ):
            raise_crash(*self._crash)
        if cut_short is not None and not suppressed:
            raise cut_short
        return suppressed

    async def _stop(self) -> None:
        for mailbox in self._mailboxes:
            mailbox.close()
        if self._running:
            with anyio.move_on_after(self._stop_grace_s):
                await self._all_done.wait()

    async def _end(self, error: BaseException | None) -> bool | None:
        """End all actors. Return whether `error` is the cancellation by which the group ends its tasks."""
        if error is not None or self._running:
            self._group.cancel_scope.cancel()
        try:
            if not isinstance(error, anyio.get_cancelled_exc_class()):
                # Do not pass `error` on: the task group would wrap it in an exception group.
                await self._group.__aexit__(None, None, None)
                return False
            return await self._group.__aexit__(type(error), error, error.__traceback__)
        finally:
            for mailbox in self._mailboxes:
                mailbox.abandon()
            self._recorder.forget_texts(self._texts)

    async def _run(self, actor: Actor[Any], whole: bool, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await actor.run()
            # Set this before `abandon` closes the mailbox: actors that send to it do not count as crashed.
            self._stopping = self._stopping or whole
        except BaseException as raised:
            if ends_the_task(raised):
                raise
            error = single(raised)
            if not type(actor).__module__.startswith("grue."):
                blame(error, type(actor).__qualname__)
            if not (self._stopping and isinstance(error, MailboxClosed)):
                self.fail(actor.name, error)
        finally:
            actor.mailbox.abandon()
            self._running -= 1
            if not self._running:
                self._all_done.set()

    def _tap(
        self, body: Any, *, sender: str, receiver: str, cause: int | None, reply_to: object = None
    ) -> Envelope[Any]:
        return self._recorder.record(
            body, sender=sender, receiver=receiver, cause=cause, turn=self.turn, reply_to=reply_to
        )


def raise_crash(actor: str, error: BaseException) -> Never:
    """Raise `ActorCrashed`; but raise a `TraceError`, or an error such as `KeyboardInterrupt`, as it is."""
    if isinstance(error, TraceError) or not isinstance(
        error, Exception | asyncio.CancelledError | GeneratorExit
    ):
        raise error
    whose = raised_by(error)
    text = f"The actor '{actor}' crashed: {in_words(error)}\n"
    where = "The traceback of the cause shows where."
    if whose:
        text += f"Your own code raised it, in {whose}. {where}"
    else:
        text += f"{where} If that is your code, correct it; else report it."
    raise ActorCrashed(text, actor=actor) from error


def describe_crash(actor: str, error: BaseException) -> ActorFailed:
    """Return the note for the trace about an unexpected exception of `actor`."""
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    where = tuple(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames)
    whose = raised_by(error)
    in_ = f" (in {whose})" if whose else ""
    return ActorFailed(actor=actor, error=f"{in_words(error)}{in_}", where=where)
