"""Mailboxes: order, bounds, closing, and asks with their answers."""

import random

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st
from mailboxes import Post, post, tasks

from grue.runtime.actor import AskTimedOut, Mailbox, MailboxClosed, MailboxFull, reply

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


async def drain(mailbox: Mailbox[str], count: int) -> list[str]:
    return [(await mailbox.receive()).body for _ in range(count)]


# --- Order and bounds ---


@given(
    st.integers(1, 5), st.lists(st.integers(1, 8), min_size=1, max_size=12), st.randoms(use_true_random=False)
)
def test_mailbox_order_is_sequence_order_under_many_senders(
    bound: int, amounts: list[int], chance: random.Random
) -> None:
    async def main(office: Post) -> list[int]:
        mailbox = office.mailbox("sink", bound=bound)

        async def send(sender: int, amount: int) -> None:
            for number in range(amount):
                for _ in range(chance.randrange(3)):
                    await checkpoint()
                await mailbox.send(f"{sender}.{number}", sender=str(sender))

        async with tasks() as group:
            for sender, amount in enumerate(amounts):
                group.start_soon(send, sender, amount)
            return [(await mailbox.receive()).seq for _ in range(sum(amounts))]

    with post() as office:
        received = anyio.run(main, office)
    assert received == list(range(1, sum(amounts) + 1))
    for sender, amount in enumerate(amounts):
        mine = [item.body for item in office.envelopes if item.sender == str(sender)]
        assert mine == [f"{sender}.{number}" for number in range(amount)]


async def test_a_sender_waits_while_the_mailbox_is_full_and_is_recorded_only_on_entry() -> None:
    with post() as office:
        mailbox = office.mailbox("sink", bound=2)
        async with tasks() as group:
            await mailbox.send("1", sender="x")
            await mailbox.send("2", sender="x")
            group.start_soon(lambda: mailbox.send("3", sender="y"))
            await anyio.wait_all_tasks_blocked()
            assert (office.bodies(), len(mailbox)) == (["1", "2"], 2)
            assert (await mailbox.receive()).body == "1"
            await anyio.wait_all_tasks_blocked()
            assert (office.bodies(), len(mailbox)) == (["1", "2", "3"], 2)


async def test_send_nowait_says_that_there_is_no_room() -> None:
    with post() as office:
        mailbox = office.mailbox("sink", bound=1)
        assert mailbox.send_nowait("1", sender="x").seq == 1
        with pytest.raises(MailboxFull, match="sink holds 1 messages"):
            mailbox.send_nowait("2", sender="x")
        assert office.bodies() == ["1"]


async def test_a_cancelled_sender_has_recorded_nothing() -> None:
    with post() as office:
        mailbox = office.mailbox("sink", bound=1)
        await mailbox.send("1", sender="x")
        async with tasks() as group:
            group.start_soon(lambda: mailbox.send("never", sender="y"))
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        assert (await mailbox.receive()).body == "1"
        await mailbox.send("2", sender="x")
        assert office.bodies() == ["1", "2"]


async def test_a_reader_cancelled_while_it_waits_loses_no_message() -> None:
    with post() as office:
        mailbox = office.mailbox("sink", bound=1)
        async with tasks() as group:
            group.start_soon(mailbox.receive)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        await mailbox.send("1", sender="x")
        assert len(mailbox) == 1
        assert (await mailbox.receive()).body == "1"


async def test_a_batch_of_34_single_messages_through_a_bound_of_16_does_not_deadlock() -> None:
    """One command that asks for a batch leaves its sender free to receive what comes of it."""
    with post() as office:
        agent, session = office.mailbox("agent"), office.mailbox("session")

        async def serve() -> None:
            async for envelope in session:
                for number in range(envelope.body):
                    await agent.send(f"settled {number}", sender="session", cause=envelope.seq)

        async with tasks() as group:
            group.start_soon(serve)
            await session.send(34, sender="agent")
            assert await drain(agent, 34) == [f"settled {number}" for number in range(34)]


async def test_a_bound_is_at_least_one() -> None:
    with post() as office, pytest.raises(ValueError, match="bound"):
        office.mailbox("sink", bound=0)


# --- Closing ---


async def test_a_closed_mailbox_takes_nothing_and_gives_what_it_has() -> None:
    with post() as office:
        mailbox = office.mailbox("sink")
        await mailbox.send("1", sender="x")
        mailbox.close()
        with pytest.raises(MailboxClosed, match="sink takes no further message: str from x"):
            await mailbox.send("2", sender="x")
        assert [envelope.body async for envelope in mailbox] == ["1"]
        assert office.bodies() == ["1"]


async def test_a_sender_waiting_for_room_learns_that_the_mailbox_closed() -> None:
    with post() as office:
        mailbox = office.mailbox("sink", bound=1)
        await mailbox.send("1", sender="x")
        async with tasks() as group:
            group.start_soon(_close_when_blocked, mailbox)
            with pytest.raises(MailboxClosed):
                await mailbox.send("2", sender="x")


async def _close_when_blocked(mailbox: Mailbox[str]) -> None:
    await anyio.wait_all_tasks_blocked()
    mailbox.close()


# --- Asks ---


async def test_an_ask_returns_the_reply_and_both_are_recorded_with_their_cause() -> None:
    with post() as office:
        adder = office.mailbox("adder")

        async def answer() -> None:
            async for envelope in adder:
                reply(envelope, sum(envelope.body))

        async with tasks() as group:
            group.start_soon(answer)
            assert await adder.ask([1, 2, 3], sender="pupil", timeout_s=5.0, cause=None) == 6
        asked, answered = office.envelopes
        assert (asked.sender, asked.receiver, asked.cause) == ("pupil", "adder", None)
        assert (answered.sender, answered.receiver, answered.cause) == ("adder", "pupil", asked.seq)


async def test_an_ask_that_gets_no_reply_in_time_says_so() -> None:
    with post() as office:
        deaf = office.mailbox("deaf")
        with pytest.raises(AskTimedOut, match=r"deaf gave no reply to str within 0\.01 s"):
            await deaf.ask("hello?", sender="x", timeout_s=0.01)


async def test_an_ask_that_finds_no_room_in_time_is_not_recorded() -> None:
    with post() as office:
        full = office.mailbox("full", bound=1)
        await full.send("1", sender="x")
        with pytest.raises(AskTimedOut):
            await full.ask("2", sender="x", timeout_s=0.01)
        assert office.bodies() == ["1"]


async def test_a_second_reply_is_a_mistake() -> None:
    with post() as office:
        adder = office.mailbox("adder")
        async with tasks() as group:
            group.start_soon(lambda: adder.ask("?", sender="x"))
            envelope = await adder.receive()
            reply(envelope, 1)
            with pytest.raises(RuntimeError, match="adder replied twice to x"):
                reply(envelope, 2)


async def test_a_reply_after_the_asker_was_told_of_the_end_is_a_mistake_of_another_kind() -> None:
    with post() as office:
        adder = office.mailbox("adder")
        async with tasks() as group:

            async def answer_late() -> None:
                envelope = await adder.receive()
                adder.abandon()
                with pytest.raises(
                    RuntimeError, match="adder replied to x after x was told that it had ended"
                ):
                    reply(envelope, 1)

            group.start_soon(answer_late)
            with pytest.raises(MailboxClosed):
                await adder.ask("?", sender="x")


async def test_what_was_not_asked_cannot_be_answered() -> None:
    with post() as office:
        mailbox = office.mailbox("sink")
        envelope = await mailbox.send("told", sender="x")
        with pytest.raises(RuntimeError, match="str from x is not an ask"):
            reply(envelope, 1)


async def test_a_reply_to_an_asker_that_is_gone_is_recorded_and_harms_nobody() -> None:
    with post() as office:
        slow = office.mailbox("slow")
        with pytest.raises(AskTimedOut):
            await slow.ask("?", sender="x", timeout_s=0.01)
        reply(await slow.receive(), "late")
        assert office.bodies() == ["?", "late"]


@pytest.mark.parametrize("taken", [False, True], ids=["unread", "taken out"])
async def test_an_asker_learns_that_its_answerer_is_gone(taken: bool) -> None:
    with post() as office:
        mailbox = office.mailbox("mortal")

        async def die() -> None:
            await anyio.wait_all_tasks_blocked()
            if taken:
                await mailbox.receive()
            mailbox.abandon()

        async with tasks() as group:
            group.start_soon(die)
            with pytest.raises(MailboxClosed, match="mortal ended without a reply to x"):
                await mailbox.ask("?", sender="x")


async def test_two_actors_that_ask_each_other_do_not_wait_for_each_others_mailbox() -> None:
    with post() as office:
        left, right = office.mailbox("left", bound=1), office.mailbox("right", bound=1)

        async def serve(mine: Mailbox[str]) -> None:
            async for envelope in mine:
                reply(envelope, envelope.body.upper())

        async with tasks() as group:
            group.start_soon(serve, left)
            group.start_soon(serve, right)
            for number in range(50):
                assert await right.ask(f"l{number}", sender="left") == f"L{number}"
                assert await left.ask(f"r{number}", sender="right") == f"R{number}"
