"""A mailbox whose owner the test plays: it keeps what an actor sends, and answers asks as the test says.

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
from typing import Any, TypeVar

import anyio

from grue.runtime.actor import reply
from grue.runtime.channel import Mailbox, Tap
from grue.runtime.trace.recorder import Envelope

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
