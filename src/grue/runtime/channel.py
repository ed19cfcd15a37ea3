"""Typed, bounded mailboxes over anyio memory streams, each with a tap.

An envelope is recorded when it enters the mailbox, with no await between the two, so that the trace has the
order of the mailbox. If the mailbox is full, the sender waits, and the message is recorded only when it
enters.

An ask carries a one-shot `Reply`. The answer does not go through the asker's mailbox. Otherwise two actors
that ask each other with full mailboxes would deadlock.
"""

from collections.abc import AsyncIterator
from typing import Any, Generic, Protocol, TypeVar

import anyio

from grue.errors import MCPError
from grue.runtime.trace.recorder import Envelope

M = TypeVar("M")

BOUND = 16
"""Messages that a mailbox holds unless told otherwise."""


class MailboxFull(MCPError):  # noqa: N818 - a state, named as anyio names `WouldBlock`
    """`send_nowait` found no room."""


class MailboxClosed(MCPError):  # noqa: N818 - a state, named as anyio names `ClosedResourceError`
    """The mailbox takes no further message."""


class AskTimedOut(MCPError):  # noqa: N818 - named as the event it reports
    """No reply came in time."""


class Tap(Protocol):
    """Records a message as it enters a mailbox, or a reply as it is given."""

    def __call__(
        self, body: Any, *, sender: str, receiver: str, cause: int | None, reply_to: object = None
    ) -> Envelope[Any]:
        """Return the recorded envelope."""
        ...


class Mailbox(Generic[M]):
    """A named queue of envelopes with one reader.

    Args:
        name: The owner's name; receiver of every envelope in here.
        tap: Records each message on its way in.
        bound: Messages it holds before a sender has to wait; at least 1.

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
        self._asks: set[Reply] = set()
        self._room: anyio.Event | None = None
        self._entrance, self._exit = anyio.create_memory_object_stream[Envelope[M]](bound)

    def __len__(self) -> int:
        """Return the number of messages that wait in here."""
        return self._held

    async def send(self, body: M, *, sender: str, cause: int | None = None) -> Envelope[M]:
        """Put a message in, waiting while the mailbox is full.

        Cancelled while it waits, it has neither sent nor recorded anything.

        Raises:
            MailboxClosed: The reader is gone.
        """
        return await self._put(body, sender=sender, cause=cause, reply_to=None)

    def send_nowait(self, body: M, *, sender: str, cause: int | None = None) -> Envelope[M]:
        """Put a message in without waiting.

        Raises:
            MailboxFull: There is no room.
            MailboxClosed: The reader is gone.
        """
        return self._put_nowait(body, sender=sender, cause=cause, reply_to=None)

    async def ask(
        self, body: M, *, sender: str, timeout_s: float | None = None, cause: int | None = None
    ) -> Any:
        """Send a message and return the body of the reply.

        Args:
            body: The question.
            sender: Who asks.
            timeout_s: How long to wait for the reply; `None`: as long as it takes.
            cause: Number of the envelope that made the sender ask.

        Raises:
            AskTimedOut: No reply within `timeout_s`.
            MailboxClosed: The reader is gone, or went without a reply.
        """
        reply = self.expect_reply(sender)
        try:
            with anyio.move_on_after(timeout_s):
                await self._put(body, sender=sender, cause=cause, reply_to=reply)
                return await reply.wait()
        finally:
            self._asks.discard(reply)
        raise AskTimedOut(f"{self.name} gave no reply to {type(body).__name__} within {timeout_s:g} s.")

    def expect_reply(self, sender: str) -> "Reply":
        """Return the channel for the reply to an ask. `ask` makes its own; a recorded ask needs one."""
        reply = Reply(self.name, sender, self._tap)
        self._asks.add(reply)
        return reply

    async def receive(self) -> Envelope[M]:
        """Take the oldest message out, waiting for one.

        Raises:
            anyio.EndOfStream: The mailbox was closed and is empty.
        """
        envelope = await self._exit.receive()
        self._taken()
        return envelope

    async def __aiter__(self) -> AsyncIterator[Envelope[M]]:
        """Yield messages until the mailbox is closed and empty."""
        while True:
            try:
                envelope = await self.receive()
            except anyio.EndOfStream:
                return
            yield envelope

    def close(self) -> None:
        """Accept no further message. Those in the mailbox can still be received."""
        self._closed = True
        self._entrance.close()
        self._wake_senders()

    def abandon(self) -> None:
        """Close, drop the queued messages, and make every unanswered ask raise `MailboxClosed`."""
        self.close()
        self._exit.close()
        for reply in self._asks:
            reply.abandon()

    async def _put(self, body: M, *, sender: str, cause: int | None, reply_to: object) -> Envelope[M]:
        while True:
            try:
                return self._put_nowait(body, sender=sender, cause=cause, reply_to=reply_to)
            except MailboxFull:
                # Only made if a sender has to wait, which is rare.
                self._room = self._room or anyio.Event()
                await self._room.wait()

    def _taken(self) -> None:
        """Count a message that was taken out."""
        self._held -= 1
        if self._room is not None:
            self._wake_senders()

    def _wake_senders(self) -> None:
        """Let the senders that wait for room try again."""
        room, self._room = self._room, None
        if room is not None:
            room.set()

    def _put_nowait(self, body: M, *, sender: str, cause: int | None, reply_to: object) -> Envelope[M]:
        if self._closed:
            raise MailboxClosed(f"{self.name} takes no further message: {type(body).__name__} from {sender}.")
        if self._held >= self.bound:
            raise MailboxFull(f"The mailbox of {self.name} holds {self.bound} messages and has no room.")
        envelope = self._tap(body, sender=sender, receiver=self.name, cause=cause, reply_to=reply_to)
        self._held += 1
        self._entrance.send_nowait(envelope)
        return envelope


class Reply:
    """The one-shot reply channel of an ask."""

    def __init__(self, answerer: str, asker: str, tap: Tap) -> None:
        self._answerer = answerer
        self._asker = asker
        self._tap = tap
        self._given = anyio.Event()
        self._body: object = None
        self._abandoned = False

    def give(self, body: object, *, cause: int | None = None) -> None:
        """Record the reply and wake the asker.

        Raises:
            RuntimeError: A reply was given already.
        """
        if self._given.is_set():
            raise RuntimeError(f"{self._answerer} replied twice to {self._asker}")
        self._tap(body, sender=self._answerer, receiver=self._asker, cause=cause)
        self._body = body
        self._given.set()

    def abandon(self) -> None:
        """Wake the asker; its `wait` raises `MailboxClosed`."""
        if not self._given.is_set():
            self._abandoned = True
            self._given.set()

    async def wait(self) -> object:
        """Return the reply's body once it is given."""
        await self._given.wait()
        if self._abandoned:
            raise MailboxClosed(f"{self._answerer} ended without a reply to {self._asker}.")
        return self._body
