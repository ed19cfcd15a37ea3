"""The group a turn lives in: who starts, who stops, and what a crash means."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from msgspec import Struct

from grue.errors import ActorCrashed, TraceError
from grue.runtime.actor import Actor, ActorFailed, AskTimedOut, Mailbox, MailboxClosed, Supervisor, reply
from grue.runtime.trace.recorder import Envelope, Recorder

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


Act = Callable[[], Awaitable[Any]]


class Scripted(Actor[Any]):
    """Does what its messages say; `log` is how it ended."""

    def __init__(self, mailbox: Mailbox[Any], log: list[str] | None = None, act: Act | None = None) -> None:
        super().__init__(mailbox)
        self.log = [] if log is None else log
        self.act = act

    @contextlib.asynccontextmanager
    async def around(self) -> AsyncIterator[None]:
        try:
            yield
            self.log.append(f"{self.name} ended")
        except anyio.get_cancelled_exc_class():
            self.log.append(f"{self.name} cancelled")
            raise

    async def receive(self, envelope: Envelope[Any]) -> None:
        match envelope.body:
            case "crash":
                raise LookupError("what")
            case "hang":
                await anyio.sleep_forever()
            case "echo":
                reply(envelope, f"{self.name}!")
            case "act":
                assert self.act is not None
                await self.act()


class Clumsy(Actor[Any]):
    async def run(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise LookupError("while cleaning up")


class Once(Actor[Any]):
    """Returns with the first message."""

    async def run(self) -> None:
        await self.mailbox.receive()


class Seen(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.failures: list[ActorFailed] = []
        self.envelopes: list[Envelope[Any]] = []
        self.add(self._show_me)

    def _show_me(self, envelope: Envelope[Any], _line: bytes) -> None:
        self.envelopes.append(envelope)
        if isinstance(envelope.body, ActorFailed):
            self.failures.append(envelope.body)


@pytest.fixture
def recorder() -> Seen:
    return Seen()


@pytest.fixture
def log() -> list[str]:
    return []


def start(group: Supervisor, name: str, log: list[str] | None = None, act: Act | None = None) -> Mailbox[Any]:
    mailbox = group.mailbox(name)
    group.start(Scripted(mailbox, log, act))
    return mailbox


async def supervise(
    recorder: Recorder, body: Callable[[Supervisor], Awaitable[Any]], *, stop_grace_s: float = 5.0
) -> None:
    async with Supervisor(recorder, stop_grace_s=stop_grace_s) as group:
        await body(group)


# --- Stopping ---


async def test_leaving_lets_every_actor_finish_what_it_has(recorder: Seen, log: list[str]) -> None:
    async def act() -> None:
        await anyio.lowlevel.checkpoint()
        log.append("acted")

    async with Supervisor(recorder, turn=4) as group:
        mailbox = start(group, "a", log, act)
        await mailbox.send("act", sender="host")
        await mailbox.send("act", sender="host")
    assert log == ["acted", "acted", "a ended"]
    assert {envelope.turn for envelope in recorder.envelopes} == {4}


async def test_an_actor_that_takes_too_long_is_cancelled(recorder: Seen, log: list[str]) -> None:
    async with Supervisor(recorder, stop_grace_s=0.01) as group:
        await start(group, "a", log).send("hang", sender="host")
        await anyio.wait_all_tasks_blocked()
    assert log == ["a cancelled"]


async def test_an_actor_started_after_another_has_ended_gets_its_grace_too(
    recorder: Seen, log: list[str]
) -> None:
    async with Supervisor(recorder) as group:
        start(group, "first", log).close()
        await anyio.wait_all_tasks_blocked()
        second = start(group, "second", log, lambda: anyio.sleep(0.01))
        await second.send("act", sender="host")
    assert log == ["first ended", "second ended"]


async def test_an_actor_that_finds_a_mailbox_closed_while_all_stop_just_ends(recorder: Seen) -> None:
    async with Supervisor(recorder) as group:
        full = group.mailbox("full", bound=1)
        await full.send("first", sender="host")
        a = start(group, "a", act=lambda: full.send("second", sender="a"))
        await a.send("act", sender="host")
        await anyio.wait_all_tasks_blocked()
    assert recorder.failures == []


async def test_before_that_a_closed_mailbox_is_a_crash(recorder: Seen) -> None:
    async def body(group: Supervisor) -> None:
        gone = group.mailbox("gone")
        gone.close()
        await start(group, "a", act=lambda: gone.send("hello", sender="a")).send("act", sender="host")
        await anyio.sleep_forever()

    with pytest.raises(ActorCrashed) as error:
        await supervise(recorder, body)
    assert isinstance(error.value.__cause__, MailboxClosed)


async def test_a_group_without_actors_ends_at_once(recorder: Seen) -> None:
    async with Supervisor(recorder) as group:
        group.note("fact", sender="host", cause=None)
    assert [(envelope.receiver, envelope.body) for envelope in recorder.envelopes] == [("trace", "fact")]


# --- Crashes ---


async def test_a_crash_is_one_flat_error_with_its_cause_and_cancels_the_others(
    recorder: Seen, log: list[str]
) -> None:
    async def body(group: Supervisor) -> None:
        start(group, "b", log)
        await start(group, "a").send("crash", sender="host")
        await anyio.sleep_forever()

    with pytest.raises(ActorCrashed, match="The actor 'a' crashed: LookupError: what") as error:
        await supervise(recorder, body)
    assert error.value.actor == "a"
    assert isinstance(error.value.__cause__, LookupError)
    assert log == ["b cancelled"]
    (failed,) = recorder.failures
    assert (failed.actor, failed.error) == ("a", "LookupError: what (in Scripted)")
    assert failed.where[-1].startswith("test_actor_supervisor.py:")
    assert failed.where[-1].endswith(" receive")


async def test_an_exception_whose_text_fails_is_a_crash_like_any_other(
    recorder: Seen, log: list[str]
) -> None:
    class UnreadableError(Exception):
        def __str__(self) -> str:
            raise ValueError

    async def fail() -> None:
        raise UnreadableError

    with pytest.raises(ActorCrashed, match="The actor 'a' crashed: UnreadableError\n"):
        await supervise(recorder, lambda group: start(group, "a", log, act=fail).ask("act", sender="host"))
    assert [failed.error for failed in recorder.failures] == ["UnreadableError (in Scripted)"]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("own")])
async def test_what_is_to_end_the_program_is_raised_itself_when_all_is_cleaned_up(
    recorder: Seen, log: list[str], error: BaseException
) -> None:
    async def leave() -> None:
        raise error

    async def body(group: Supervisor) -> None:
        start(group, "b", log)
        await start(group, "a", act=leave).send("act", sender="host")
        await anyio.sleep_forever()

    with pytest.raises(type(error)) as left:
        await supervise(recorder, body)
    assert left.value is error
    assert log == ["b cancelled"]
    assert [failed.error for failed in recorder.failures] == [
        f"{type(error).__name__}: {error} (in Scripted)"
    ]


@pytest.mark.parametrize(
    "raised", [asyncio.CancelledError(), GeneratorExit(), ExceptionGroup("g", [OSError(), KeyError()])]
)
async def test_what_could_pass_for_a_cancellation_or_comes_in_a_group_is_a_crash(
    recorder: Seen, log: list[str], raised: BaseException
) -> None:
    async def fail() -> None:
        raise raised

    with pytest.raises(ActorCrashed) as error:
        await supervise(recorder, lambda group: start(group, "a", log, act=fail).ask("act", sender="host"))
    assert error.value.__cause__ is raised


async def test_nobody_crashes_of_what_the_whole_group_was_there_for_having_ended(recorder: Seen) -> None:
    """Between its end and the end of the group, an actor may be about to answer it."""
    sent = anyio.Event()

    async def answer_late() -> None:
        with contextlib.suppress(MailboxClosed):
            while True:
                await main.send("late", sender="b")
                await anyio.lowlevel.checkpoint()
        try:
            await main.send("late", sender="b")
        finally:
            sent.set()

    async with Supervisor(recorder) as group:
        main = group.mailbox("main")
        group.start(Once(main), whole=True)
        await start(group, "b", act=answer_late).send("act", sender="host")
        with anyio.fail_after(60):
            await sent.wait()
    assert recorder.failures == []


async def test_a_crash_reaches_whoever_waits_for_a_reply(recorder: Seen) -> None:
    with pytest.raises(ActorCrashed):
        await supervise(recorder, lambda group: start(group, "a").ask("crash", sender="host"))


async def start_clumsy(group: Supervisor) -> None:
    group.start(Clumsy(group.mailbox("clumsy")))
    await anyio.wait_all_tasks_blocked()


async def test_of_two_crashes_the_first_is_raised_and_both_are_recorded(recorder: Seen) -> None:
    async def body(group: Supervisor) -> None:
        await start_clumsy(group)
        await start(group, "a").send("crash", sender="host")
        await anyio.sleep_forever()

    with pytest.raises(ActorCrashed) as error:
        await supervise(recorder, body)
    assert error.value.actor == "a"
    assert [failed.actor for failed in recorder.failures] == ["a", "clumsy"]


async def test_a_crash_while_all_are_cancelled_is_recorded_and_raised_flat(recorder: Seen) -> None:
    with pytest.raises(ActorCrashed, match="while cleaning up"):
        await supervise(recorder, start_clumsy, stop_grace_s=0.01)
    assert [failed.actor for failed in recorder.failures] == ["clumsy"]


async def test_a_crash_while_the_others_finish_is_raised_flat_too(recorder: Seen, log: list[str]) -> None:
    async def crash_late() -> None:
        await anyio.sleep(0.01)
        raise LookupError("at the end")

    with pytest.raises(ActorCrashed, match="at the end"):
        await supervise(recorder, lambda group: start(group, "a", act=crash_late).send("act", sender="host"))
    assert [failed.actor for failed in recorder.failures] == ["a"]


async def test_an_exception_of_the_body_comes_out_as_it_is(recorder: Seen, log: list[str]) -> None:
    async def body(group: Supervisor) -> None:
        start(group, "a", log)
        await anyio.wait_all_tasks_blocked()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await supervise(recorder, body)
    assert log == ["a cancelled"]


async def test_an_exception_of_the_body_stands_before_a_crash_that_it_brings_about(recorder: Seen) -> None:
    async def body(group: Supervisor) -> None:
        await start_clumsy(group)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await supervise(recorder, body)
    assert [failed.actor for failed in recorder.failures] == ["clumsy"]


async def test_an_ask_that_times_out_is_the_bodys_own_exception(recorder: Seen) -> None:
    with pytest.raises(AskTimedOut):
        await supervise(recorder, lambda group: start(group, "a").ask("hang", sender="host", timeout_s=0.01))


async def test_a_trace_that_cannot_be_written_is_told_in_the_disks_words(recorder: Seen) -> None:
    def full(_envelope: Any, _line: bytes) -> None:
        raise TraceError("Cannot write the trace file: No space left on device.")

    async def body(group: Supervisor) -> None:
        b = start(group, "b")

        async def fill_up() -> None:
            recorder.add(full)
            await b.send("anything", sender="a")

        await start(group, "a", act=fill_up).send("act", sender="host")
        await anyio.sleep_forever()

    with pytest.raises(TraceError, match="No space left"):
        await supervise(recorder, body)


class Piece(Struct, frozen=True):
    text: str


async def test_the_held_back_text_of_an_actor_is_dropped_when_the_group_ends(recorder: Seen) -> None:
    secret = "made-up-secret-value"
    recorder.hide("KEY", secret)
    recorder.hold_back(Piece)
    async with Supervisor(recorder, turn=3):
        async with Supervisor(recorder, turn=1, stop_grace_s=0.01) as group:
            mailbox = start(group, "llm")
            group.note(Piece(f"It is {secret[:9]}"), sender="llm")
            await mailbox.send("hang", sender="host")
            await anyio.wait_all_tasks_blocked()
        recorder.record("later", sender="llm", turn=1)
    bodies = [envelope.body for envelope in recorder.envelopes]
    assert bodies == [Piece("It is "), "hang", "later"], "what was held back is not recorded as said later"


async def test_the_end_of_a_group_leaves_the_held_back_text_of_another_that_shares_the_recorder(
    recorder: Seen,
) -> None:
    recorder.hide("KEY", "made-up-secret-value")
    recorder.hold_back(Piece)
    async with Supervisor(recorder, turn=1) as streaming:
        async with Supervisor(recorder, turn=1) as ending:
            ending.mailbox("llm")
            ending.note(Piece("made-up"), sender="llm", cause=1)
            streaming.note(Piece("made-up"), sender="llm", cause=2)
        streaming.note("whole", sender="llm", cause=2)
    assert [envelope.body for envelope in recorder.envelopes] == [Piece("[redacted]"), "whole"]


async def test_cancelling_from_outside_cancels_the_actors_and_goes_on(recorder: Seen, log: list[str]) -> None:
    with anyio.move_on_after(0.01) as scope:
        async with Supervisor(recorder) as group:
            start(group, "a", log)
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert log == ["a cancelled"]
    assert recorder.failures == []


async def test_cancelling_from_outside_while_all_stop_goes_on_too(recorder: Seen, log: list[str]) -> None:
    with anyio.move_on_after(0.01) as scope:
        await supervise(recorder, lambda group: start(group, "a", log).send("hang", sender="host"))
    assert scope.cancelled_caught
    assert log == ["a cancelled"]


async def test_mailboxes_are_closed_afterwards(recorder: Seen) -> None:
    async with Supervisor(recorder) as group:
        mailbox = group.mailbox("nobody's")
    with pytest.raises(MailboxClosed):
        mailbox.send_nowait("late", sender="host")


async def test_an_actor_that_does_nothing_with_its_messages_says_so(recorder: Seen) -> None:
    async def body(group: Supervisor) -> None:
        idle: Actor[Any] = Actor(group.mailbox("idle"))
        group.start(idle)
        await idle.mailbox.ask("anything", sender="host")

    with pytest.raises(ActorCrashed, match="Actor overrides neither receive nor run"):
        await supervise(recorder, body)


async def test_names_are_the_mailboxes(recorder: Seen) -> None:
    async with Supervisor(recorder) as group:
        assert await start(group, "a").ask("echo", sender="host") == "a!"
    assert [(item.sender, item.receiver) for item in recorder.envelopes] == [("host", "a"), ("a", "host")]
