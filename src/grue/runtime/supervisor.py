"""The task group that the actors of a turn run in: how they start, stop and crash.

If an actor raises an unexpected exception, the whole group ends. The other actors are cancelled and clean up
in their own tasks. The `async with` raises one `ActorCrashed` with the exception as its cause, never an
exception group, and the trace has a note. A `BaseException` such as a `SystemExit` or `KeyboardInterrupt` of
the host's own code is raised unchanged, after the same clean-up.

The body of the `async with` must only send and wait. It must not hold anything whose clean-up awaits. A
Ctrl-C cancels the task of the body itself, and a shielded scope does not protect against that, so such a
clean-up could be cut off. The actors' tasks are cancelled through their scope, where a shield works.
"""

import asyncio
import contextlib
import traceback
from types import TracebackType
from typing import Any, Never, Self, TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from grue.errors import ActorCrashed, TraceError
from grue.runtime.actor import Actor
from grue.runtime.channel import BOUND, Mailbox, MailboxClosed
from grue.runtime.loops.host_code import blame, ends_the_task, raised_by, single
from grue.runtime.trace.recorder import Envelope, Recorder

M = TypeVar("M")


class ActorFailed(Struct, frozen=True, kw_only=True, tag=True):
    """Trace note: an actor raised an unexpected exception.

    Attributes:
        actor: Its name.
        error: Type and text of the exception.
        where: File, line and function of the innermost frames, outermost first.
    """

    actor: str
    error: str
    where: tuple[str, ...]


class Supervisor:
    """An async context manager around a group of actors.

    On leaving, it closes every mailbox and waits until each actor has finished its current message. An actor
    that takes longer than `stop_grace_s` is cancelled. An actor that sends to a closed mailbox during this
    time, or after the actor that was started as `whole` has returned, ends without a crash.

    Args:
        recorder: Records every envelope.
        turn: Number of the turn that the envelopes belong to; 0 outside turns.
        stop_grace_s: Seconds an actor has to finish by itself.

    Attributes:
        turn: As the argument. A group that outlives turns may change it while it works for one.

    Raises:
        TraceError: On leaving, if the trace could not be written.
        ActorCrashed: On leaving, if an actor raised another `Exception`, which is its cause. The text says
            whether it was code of the host.
        BaseException: On leaving, if an actor raised it and it is not an `Exception`.
    """

    def __init__(self, recorder: Recorder, *, turn: int = 0, stop_grace_s: float = 5.0) -> None:
        self._recorder = recorder
        self.turn = turn
        self._stop_grace_s = stop_grace_s
        self._mailboxes: list[Mailbox[Any]] = []
        self._group: TaskGroup = anyio.create_task_group()
        self._running = 0
        self._all_done = anyio.Event()
        self._stopping = False
        self._crash: tuple[str, BaseException] | None = None

    def mailbox(self, name: str, *, bound: int = BOUND) -> Mailbox[Any]:
        """Make a mailbox whose messages are recorded, and which is closed with the group."""
        mailbox: Mailbox[Any] = Mailbox(name, self._tap, bound=bound)
        self._mailboxes.append(mailbox)
        return mailbox

    def note(self, body: Any, *, sender: str, cause: int | None = None) -> Envelope[Any]:
        """Record a fact that no actor reacts to."""
        return self._recorder.record(body, sender=sender, cause=cause, turn=self.turn)

    def start(self, actor: Actor[Any], *, whole: bool = False) -> None:
        """Run an actor in a new task until its mailbox is closed.

        Args:
            actor: The actor.
            whole: The group exists for this actor. After it has returned, messages of the others are not
                needed any more.
        """
        if not self._running:
            self._all_done = anyio.Event()
        self._running += 1
        self._group.start_soon(self._run, actor, whole, name=actor.name)

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
        if exc_val is None:
            try:
                await self._stop()
            except anyio.get_cancelled_exc_class() as cancelled:
                # Cancelled by an actor's crash or from outside. Leaving the group finds out which.
                cut_short = cancelled
        left_by = exc_val or cut_short
        suppressed = await self._end(left_by)
        if self._crash is not None and (left_by is None or suppressed or isinstance(left_by, MailboxClosed)):
            _raise_crash(*self._crash)
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
        """Cancel the running actors and wait. Return whether `error` is only this group's cancellation."""
        if error is not None or self._running:
            self._group.cancel_scope.cancel()
        try:
            if error is None or isinstance(error, Exception):
                # An ordinary exception of the body stays out of the group, which would wrap it.
                await self._group.__aexit__(None, None, None)
                return False
            return await self._group.__aexit__(type(error), error, error.__traceback__)
        finally:
            for mailbox in self._mailboxes:
                mailbox.abandon()
                self._recorder.forget_text(mailbox.name, self.turn)

    async def _run(self, actor: Actor[Any], whole: bool) -> None:
        try:
            await actor.run()
            # Set before its mailbox is closed, because another actor may be about to send to it.
            self._stopping = self._stopping or whole
        except BaseException as raised:  # unexpected exceptions are handled here
            if ends_the_task(raised):
                raise
            error = single(raised)
            if not type(actor).__module__.startswith("grue."):
                blame(error, type(actor).__qualname__)
            if not (self._stopping and isinstance(error, MailboxClosed)):
                self._crashed(actor.name, error)
        finally:
            actor.mailbox.abandon()
            self._running -= 1
            if not self._running:
                self._all_done.set()

    def _crashed(self, actor: str, error: BaseException) -> None:
        if self._crash is None:
            self._crash = (actor, error)
        self._group.cancel_scope.cancel()
        # The note may fail too, if the actor crashed because the trace cannot be written.
        with contextlib.suppress(Exception):
            self.note(describe_crash(actor, error), sender=actor)

    def _tap(
        self, body: Any, *, sender: str, receiver: str, cause: int | None, reply_to: object = None
    ) -> Envelope[Any]:
        return self._recorder.record(
            body, sender=sender, receiver=receiver, cause=cause, turn=self.turn, reply_to=reply_to
        )


def _raise_crash(actor: str, error: BaseException) -> Never:
    if isinstance(error, TraceError) or not isinstance(
        error, Exception | asyncio.CancelledError | GeneratorExit
    ):
        raise error
    whose = raised_by(error)
    text = f"The actor '{actor}' crashed: {type(error).__name__}: {error}"
    if whose:
        text += f"\nYour own code raised it, in {whose}. The traceback of the cause shows where."
    else:
        text += "\nThe traceback of the cause shows where. If that is your code, correct it; else report it."
    raise ActorCrashed(text, actor=actor) from error


def describe_crash(actor: str, error: BaseException) -> ActorFailed:
    """Return the trace note of an unexpected exception."""
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    where = tuple(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames)
    whose = raised_by(error)
    in_ = f" (in {whose})" if whose else ""
    return ActorFailed(actor=actor, error=f"{type(error).__name__}: {error}{in_}", where=where)
