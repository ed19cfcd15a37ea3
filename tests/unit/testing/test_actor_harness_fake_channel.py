"""Fake channels keep the contract of mailboxes, and do what a test tells them."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import anyio
import pytest
from mailboxes import Post, post

from grue.runtime.actor import Actor, AskTimedOut, Mailbox, MailboxClosed, MailboxFull, reply
from grue.runtime.trace.recorder import Envelope
from grue.testing.actor_harness import FakeChannel, virtual_loop, virtual_time


class Neighbour(NamedTuple):
    """A mailbox, and what a test can make its owner do."""

    mailbox: Mailbox[Any]
    office: Post


class Doubler(Actor[Any]):
    """Doubles numbers; says nothing to texts, and ends at `None`."""

    async def receive(self, envelope: Envelope[Any]) -> None:
        if envelope.body is None:
            self.mailbox.abandon()
        elif isinstance(envelope.body, int):
            reply(envelope, envelope.body * 2)


@asynccontextmanager
async def real(bound: int | None = None) -> AsyncIterator[Neighbour]:
    """A mailbox, with an actor that reads it unless it is to fill up."""
    with post() as office:
        mailbox = office.mailbox("doubler", bound=bound or 16)
        async with anyio.create_task_group() as group:
            if bound is None:
                group.start_soon(Doubler(mailbox).run)
            yield Neighbour(mailbox, office)
            group.cancel_scope.cancel()


@asynccontextmanager
async def fake(bound: int | None = None) -> AsyncIterator[Neighbour]:
    with post() as office:
        channel: FakeChannel[Any] = FakeChannel("doubler", office.tap, bound=bound)
        channel.answers(int, lambda number: number * 2)
        channel.ends_at(type(None))
        yield Neighbour(channel, office)
        channel.abandon()


Makes = Callable[..., AbstractAsyncContextManager[Neighbour]]
both = pytest.mark.parametrize("make", [real, fake], ids=["a mailbox and its actor", "a fake channel"])


@both
@virtual_time
async def test_what_is_sent_is_recorded_with_its_cause(make: Makes) -> None:
    async with make() as doubler:
        sent = await doubler.mailbox.send("a", sender="x", cause=7)
        assert (sent.seq, sent.receiver, sent.sender, sent.cause) == (1, "doubler", "x", 7)
        assert doubler.mailbox.send_nowait("b", sender="x").seq == 2
        assert doubler.office.bodies() == ["a", "b"]


@both
@virtual_time
async def test_an_ask_is_answered_and_the_answer_has_the_question_as_its_cause(make: Makes) -> None:
    async with make() as doubler:
        assert [await doubler.mailbox.ask(number, sender="x", cause=1) for number in (4, 5)] == [8, 10]
        recorded = [(each.sender, each.receiver, each.cause, each.body) for each in doubler.office.envelopes]
    assert recorded == [
        ("x", "doubler", 1, 4),
        ("doubler", "x", 1, 8),
        ("x", "doubler", 1, 5),
        ("doubler", "x", 3, 10),
    ]


@both
@virtual_time
async def test_an_ask_without_an_answer_times_out(make: Makes) -> None:
    async with make() as doubler:
        with pytest.raises(AskTimedOut, match=r"doubler gave no reply to str within 3 s\."):
            await doubler.mailbox.ask("a word", sender="x", timeout_s=3)
        assert anyio.current_time() == 3


@both
@virtual_time
async def test_an_owner_that_ends_fails_its_asks_and_takes_nothing_more(make: Makes) -> None:
    async with make() as doubler:
        with pytest.raises(MailboxClosed, match="doubler ended without a reply to x"):
            await doubler.mailbox.ask(None, sender="x")
        with pytest.raises(MailboxClosed, match="doubler takes no further message"):
            await doubler.mailbox.send(4, sender="x")


@both
@virtual_time
async def test_a_full_one_makes_senders_wait_until_a_message_is_taken(make: Makes) -> None:
    async with make(bound=1) as doubler, anyio.create_task_group() as group:
        await doubler.mailbox.send("a", sender="x")
        with pytest.raises(MailboxFull, match="holds 1 messages and has no room"):
            doubler.mailbox.send_nowait("b", sender="x")
        group.start_soon(lambda: doubler.mailbox.send("c", sender="x"))
        await virtual_loop().idle()
        assert doubler.office.bodies() == ["a"]
        if isinstance(doubler.mailbox, FakeChannel):
            assert doubler.mailbox.take() == "a"
        else:
            assert (await doubler.mailbox.receive()).body == "a"
        await virtual_loop().idle()
        assert doubler.office.bodies() == ["a", "c"]


@both
@virtual_time
async def test_a_closed_one_takes_nothing(make: Makes) -> None:
    async with make() as doubler:
        doubler.mailbox.close()
        with pytest.raises(MailboxClosed):
            doubler.mailbox.send_nowait(1, sender="x")
        assert doubler.office.bodies() == []


# --- What only a fake has ---


@virtual_time
async def test_replies_come_in_their_order_and_the_last_is_repeated() -> None:
    with post() as office:
        channel: FakeChannel[Any] = FakeChannel("oracle", office.tap)
        channel.answers(str, "yes", "no")
        assert [await channel.ask("?", sender="x") for _ in range(3)] == ["yes", "no", "no"]
        assert channel.sent == ["?", "?", "?"]
        with pytest.raises(ValueError, match="at least one reply"):
            channel.answers(int)
        channel.abandon()


@virtual_time
async def test_the_test_can_reply_by_hand_to_the_oldest_ask() -> None:
    with post() as office:
        channel: FakeChannel[Any] = FakeChannel("oracle", office.tap)
        answers: list[Any] = []

        async def ask(question: str) -> None:
            answers.append((question, await channel.ask(question, sender="x")))

        async with anyio.create_task_group() as group:
            group.start_soon(ask, "first")
            group.start_soon(ask, "second")
            await virtual_loop().idle()
            channel.reply(1)
            channel.reply(2)
        assert answers == [("first", 1), ("second", 2)]
        with pytest.raises(AssertionError, match="Nobody waits for a reply of oracle"):
            channel.reply(3)
        channel.abandon()


@virtual_time
async def test_taking_from_an_empty_one_says_so() -> None:
    with post() as office:
        channel: FakeChannel[Any] = FakeChannel("oracle", office.tap)
        with pytest.raises(AssertionError, match="The mailbox of oracle is empty"):
            channel.take()
        channel.abandon()
