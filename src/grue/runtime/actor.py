"""Base of all actors. An actor has a name, a mailbox that only it reads, and one task in which it runs.

An actor shares nothing with other actors except messages. It does not log. It catches only exceptions that it
can recover from; the supervisor handles all others. A subclass overrides `receive`, which gets one envelope
at a time, or `run`, if it has to hold a resource open between two messages.
"""

from typing import Any, Generic, Protocol, TypeVar

from grue.runtime.channel import Mailbox, Reply
from grue.runtime.trace.recorder import Envelope

M = TypeVar("M")


class Note(Protocol):
    """Records a fact that no actor reacts to."""

    def __call__(self, body: Any, *, sender: str, cause: int | None = None) -> Envelope[Any]:
        """Return the recorded envelope."""
        ...


class Actor(Generic[M]):
    """An actor that takes messages of type `M`.

    Args:
        mailbox: Where its messages come from; its name is the actor's name.
    """

    def __init__(self, mailbox: Mailbox[M]) -> None:
        self.mailbox = mailbox

    @property
    def name(self) -> str:
        """The actor's name, as sender and receiver in the trace."""
        return self.mailbox.name

    async def run(self) -> None:
        """Receive until the mailbox is closed. Cancelled, it ends at once: clean up in a `finally`."""
        async for envelope in self.mailbox:
            await self.receive(envelope)

    async def receive(self, envelope: Envelope[M]) -> None:
        """Handle one message. The next one waits until this returns."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither receive nor run")


def reply(envelope: Envelope[Any], body: object) -> None:
    """Answer the ask that came in `envelope`; the envelope is the reply's cause.

    Raises:
        RuntimeError: The message was not an ask, or was answered already.
    """
    if not isinstance(envelope.reply_to, Reply):
        raise RuntimeError(f"{type(envelope.body).__name__} from {envelope.sender} is not an ask")
    envelope.reply_to.give(body, cause=envelope.seq)
