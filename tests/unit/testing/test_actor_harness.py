"""The harness: it drives one actor alone, and shows what the actor does in a real turn."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import Struct
from turns import settlement

from grue.actors.mcp_session import SessionActor
from grue.errors import ActorCrashed
from grue.messages import CallTools, CloseSession, OpenSession, ServerCall, SessionOpened, ToolReturned
from grue.runtime.actor import Actor, AskTimedOut, Mailbox, MailboxClosed, Supervisor, reply
from grue.runtime.trace.recorder import Envelope
from grue.testing.actor_harness import ActorHarness, Deadlock, TraceWatch, run_in_virtual_time, virtual_time
from grue.testing.fake_tools import FakeToolServer

DOCS = Path(__file__).resolve().parents[3] / "docs"


class Measure(Struct, frozen=True, tag=True):
    times: int


class Measured(Struct, frozen=True, tag=True):
    celsius: float


class Heat(Struct, frozen=True, tag=True):
    degrees: float


class Broken(Struct, frozen=True, tag=True):
    pass


class CleanedUp(Struct, frozen=True, tag=True):
    pass


class Thermometer(Actor[Any]):
    """Takes a reading each minute, and asks the thermostat how much to heat."""

    def __init__(self, mailbox: Mailbox[Any], thermostat: Mailbox[Any]) -> None:
        super().__init__(mailbox)
        self._thermostat = thermostat
        self._celsius = 16.0

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            self._thermostat.send_nowait(CleanedUp(), sender=self.name)

    async def receive(self, envelope: Envelope[Any]) -> None:
        if isinstance(envelope.body, Broken):
            raise ValueError("the glass is broken")
        for _ in range(envelope.body.times):
            measured = Measured(celsius=self._celsius)
            heat = await self._thermostat.ask(measured, sender=self.name, timeout_s=30, cause=envelope.seq)
            self._celsius += heat.degrees
            await anyio.sleep(60)
        if envelope.reply_to is not None:
            reply(envelope, self._celsius)


def thermometer(harness: ActorHarness) -> Any:
    thermostat = harness.channel("thermostat")
    harness.start(Thermometer(harness.mailbox("thermometer"), thermostat))
    return thermostat


@virtual_time
async def test_time_passes_only_when_the_test_says_so() -> None:
    async with ActorHarness() as harness:
        thermostat = thermometer(harness)
        thermostat.answers(Measured, Heat(degrees=2.0), Heat(degrees=0.5))
        asked = await harness.ask(Measure(times=2))
        assert thermostat.sent == [Measured(celsius=16.0)]
        with pytest.raises(AssertionError, match=r"Measure\(times=2\) has no reply yet"):
            _ = asked.answer
        assert await harness.pass_time(59) == []
        assert await harness.pass_time(1) == [Measured(celsius=18.0)]
        await harness.pass_time(60)
        assert (asked.is_answered, asked.answer) == (True, 18.5)
    harness.watch.in_order(Measure(times=2), Measured(celsius=16.0), Heat, Measured, float, CleanedUp)
    harness.watch.caused_by(Measured, Measure)
    assert [each.t for each in harness.watch.envelopes] == [0, 0, 0, 60, 60, 120, 120]


@virtual_time
async def test_what_the_actor_did_is_returned_and_replies_can_be_given_by_hand() -> None:
    async with ActorHarness() as harness:
        thermostat = thermometer(harness)
        assert await harness.tell(Measure(times=1)) == [Measured(celsius=16.0)]
        assert await harness.idle() == []
        thermostat.reply(Heat(degrees=1.0))
        assert await harness.pass_time(60) == []
        assert await harness.stop() == [CleanedUp()]
        assert not harness.is_running
        with pytest.raises(MailboxClosed):
            await harness.tell(Measure(times=1))


@virtual_time
async def test_a_crash_is_raised_where_it_is_noticed_and_only_once() -> None:
    async with ActorHarness() as harness:
        thermometer(harness)
        with pytest.raises(ActorCrashed, match="'thermometer' crashed: ValueError: the glass is broken"):
            await harness.tell(Broken())
        assert not harness.is_running


@virtual_time
async def test_a_crash_that_nobody_noticed_fails_the_test() -> None:
    async def scene() -> None:
        async with ActorHarness() as harness:
            thermometer(harness)
            await harness.tell(Measure(times=1))
            await anyio.sleep(31)

    with pytest.raises(ActorCrashed, match=r"AskTimedOut: thermostat gave no reply to Measured"):
        await scene()


@virtual_time
async def test_a_neighbour_that_ends_is_met_as_in_a_turn() -> None:
    async with ActorHarness() as harness:
        thermometer(harness).ends_at(Measured)
        with pytest.raises(ActorCrashed, match="MailboxClosed: thermostat"):
            await harness.tell(Measure(times=1))


@virtual_time
async def test_a_cancelled_actor_cleans_up() -> None:
    async with ActorHarness() as harness:
        thermometer(harness)
        await harness.tell(Measure(times=1))
        assert await harness.cancel() == [CleanedUp()]


@virtual_time
async def test_an_actor_that_does_not_stop_is_cancelled_after_its_grace() -> None:
    async with ActorHarness(stop_grace_s=7) as harness:
        thermometer(harness).answers(Measured, Heat(degrees=0.0))
        await harness.tell(Measure(times=1))
        assert await harness.stop() == [CleanedUp()]
    assert anyio.current_time() == 7


@virtual_time
async def test_an_ask_of_the_test_can_time_out() -> None:
    async with ActorHarness() as harness:
        thermometer(harness).answers(Measured, Heat(degrees=0.0))
        asked = await harness.ask(Measure(times=1), timeout_s=5)
        await harness.pass_time(6)
        with pytest.raises(AskTimedOut, match="within 5 s"):
            _ = asked.answer
        await harness.cancel()


@virtual_time
async def test_it_drives_one_actor_which_has_to_be_started() -> None:
    async with ActorHarness() as harness:
        for method in (lambda: harness.tell(Measure(times=1)), harness.stop, harness.cancel):
            with pytest.raises(RuntimeError, match="call start first"):
                await method()
        thermometer(harness)
        with pytest.raises(RuntimeError, match=r"drives thermometer: use another one for spare"):
            harness.start(Actor(harness.mailbox("spare")))


def test_a_test_that_waits_for_what_never_comes_says_where() -> None:
    async def scene() -> None:
        async with ActorHarness() as harness:
            thermometer(harness)
            await harness.tell(Measure(times=0))
            await anyio.Event().wait()

    with pytest.raises(Deadlock, match=r"\n  thermometer: Mailbox\.receive \(actor\.py:") as caught:
        run_in_virtual_time(scene)
    assert "test_actor_harness.py" in str(caught.value)


def test_the_guide_s_tests_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "examples")
    blocks = (DOCS / "guides" / "testing.md").read_text().split("```python\n")[1:]
    (code,) = (each.split("```")[0] for each in blocks if "ActorHarness()" in each)
    names: dict[str, Any] = {}
    exec(code, names)
    tests = [each for name, each in names.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


# --- The harness against a real group ---

CALLS = CallTools(
    server="cave", batch=1, calls=(ServerCall(call_id="c1", tool="look", arguments={}),), timeout_s=9.0
)
COMMANDS = (OpenSession(server="cave", turn=1, timeout_s=9.0), CALLS, CloseSession(server="cave"))


def cave() -> FakeToolServer:
    server = FakeToolServer("cave")
    server.answers("look", {"room": "a dark cave"})
    return server


async def in_a_group() -> list[tuple[Any, ...]]:
    watch = TraceWatch(clock=anyio.current_time)
    async with Supervisor(watch.recorder) as group:
        agent = group.mailbox("agent")
        group.start(SessionActor(group.mailbox("cave"), agent=agent, connect=cave(), note=group.note))
        for command in COMMANDS:
            await group._mailboxes[1].send(command, sender="agent")
            await settlement(agent)
    return shape(watch)


async def in_the_harness() -> list[tuple[Any, ...]]:
    async with ActorHarness() as harness:
        agent = harness.channel("agent")
        harness.start(SessionActor(harness.mailbox("cave"), agent=agent, connect=cave(), note=harness.note))
        opened = await harness.tell(COMMANDS[0], sender="agent")
        assert isinstance(opened[0], SessionOpened)
        for command in COMMANDS[1:]:
            await harness.tell(command, sender="agent")
        harness.watch.happened(ToolReturned, times=1)
    return shape(harness.watch)


def shape(watch: TraceWatch) -> list[tuple[Any, ...]]:
    return [(each.seq, each.t, each.sender, each.receiver, each.cause, each.body) for each in watch.envelopes]


def test_an_actor_of_a_turn_leaves_the_same_trace_as_in_a_group() -> None:
    assert run_in_virtual_time(in_the_harness) == run_in_virtual_time(in_a_group)
