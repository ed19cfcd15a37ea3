"""Mailboxes with their own recorder, and a task group with a time limit, for tests of mailboxes."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio

from grue.runtime.actor import BOUND, Mailbox
from grue.runtime.trace.recorder import Envelope, Recorder

TEST_LIMIT_S = 60.0


class Post:
    """Makes mailboxes, and keeps all their envelopes in `envelopes`, in the order of recording."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.envelopes: list[Envelope[Any]] = []
        self.recorder.add(lambda envelope, _line: self.envelopes.append(envelope))
        self._mailboxes: list[Mailbox[Any]] = []

    def mailbox(self, name: str, *, bound: int = BOUND) -> Mailbox[Any]:
        mailbox: Mailbox[Any] = Mailbox(name, self.tap, bound=bound)
        self._mailboxes.append(mailbox)
        return mailbox

    def tap(self, body: Any, **rest: Any) -> Envelope[Any]:
        return self.recorder.record(body, **rest)

    def note(self, body: Any, *, sender: str, cause: int | None = None) -> Envelope[Any]:
        return self.recorder.record(body, sender=sender, cause=cause)

    def bodies(self, receiver: str | None = None) -> list[Any]:
        return [item.body for item in self.envelopes if receiver in (None, item.receiver)]

    def close(self) -> None:
        for mailbox in self._mailboxes:
            mailbox.abandon()


@contextlib.contextmanager
def post() -> Iterator[Post]:
    office = Post()
    try:
        yield office
    finally:
        office.close()


@contextlib.asynccontextmanager
async def tasks() -> AsyncIterator[Any]:
    """A task group that is cancelled when the `async with` block ends. It raises after `TEST_LIMIT_S`."""
    with anyio.fail_after(TEST_LIMIT_S):
        async with anyio.create_task_group() as group:
            yield group
            group.cancel_scope.cancel()
