"""The agent's shell: receives, steps, performs; deadline and cancellation are events too."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.to_thread
import pytest
from turns import ACCEPTED, ANSWER, REFUSED, calls, closed, opened, returned, run, text

from grue.actors.agent import AgentActor, Check
from grue.errors import ActorCrashed
from grue.messages import (
    CallTools,
    CheckAnswer,
    CloseSession,
    CompletionReceived,
    DeadlineMissed,
    DeadlinePassed,
    Interrupted,
    OpenSession,
    RequestCompletion,
    RunTurn,
    SessionClosed,
    ToolRejected,
    ToolReturned,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
)
from grue.policies import TurnLimits
from grue.protocol.tool_loop import IllegalEvent, step
from grue.runtime.actor import Actor, Mailbox, Supervisor
from grue.runtime.large_data import LONG
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.testing.actor_harness import virtual_loop

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]

HANG = object()
TEST_LIMIT_S = 60.0


class ScriptedModel(Actor[Any]):
    """Answers each request with the next events of its script."""

    def __init__(self, mailbox: Mailbox[Any], agent: Mailbox[Any], script: Sequence[Any]) -> None:
        super().__init__(mailbox)
        self._agent = agent
        self._script = iter(script)

    async def receive(self, envelope: Envelope[Any]) -> None:
        answer = next(self._script)
        if answer is HANG:
            await anyio.sleep_forever()
        await self._agent.send(answer, sender=self.name, cause=envelope.seq)


class ScriptedSession(Actor[Any]):
    """Opens, settles every call, closes, unless `hangs` says at which command it stops answering."""

    def __init__(self, mailbox: Mailbox[Any], agent: Mailbox[Any], hangs: type | None = None) -> None:
        super().__init__(mailbox)
        self._agent = agent
        self._hangs = hangs

    async def run(self) -> None:
        try:
            await super().run()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 0.2):
                if self._hangs is CloseSession:
                    await self._go_quiet()
                await self._agent.send(closed(self.name), sender=self.name)
            raise

    async def receive(self, envelope: Envelope[Any]) -> None:
        command = envelope.body
        if isinstance(command, self._hangs or ()):
            await self._go_quiet()
        match command:
            case OpenSession():
                await self._tell(opened(self.name), envelope)
            case CallTools():
                for call in command.calls:
                    settled = returned(int(call.call_id[1:]), batch=command.batch)
                    await self._tell(settled, envelope)
            case CloseSession():
                await self._tell(closed(self.name), envelope)

    async def _go_quiet(self) -> None:
        async for envelope in self.mailbox:
            if isinstance(envelope.body, CloseSession) and self._hangs is not CloseSession:
                await self._tell(closed(self.name), envelope)

    async def _tell(self, event: Any, cause: Envelope[Any]) -> None:
        await self._agent.send(event, sender=self.name, cause=cause.seq)


class Stage:
    """One turn of a real agent among scripted actors; `envelopes` is its trace."""

    def __init__(
        self,
        command: RunTurn,
        *replies: Any,
        hangs: type | None = None,
        check: Check = lambda _text: ACCEPTED,
        work_s: float = float("inf"),
    ) -> None:
        self.command = command
        self.replies = replies
        self.hangs = hangs
        self.check = check
        self.work_s = work_s
        self.envelopes: list[Envelope[Any]] = []
        self.recorder = Recorder()
        self.recorder.add(lambda envelope, _line: self.envelopes.append(envelope))

    async def play(self) -> Any:
        with anyio.fail_after(TEST_LIMIT_S):
            async with Supervisor(self.recorder, stop_grace_s=0.01) as group:
                agent = self.cast(group)
                return await agent.ask(self.command, sender="host")

    def cast(self, group: Supervisor) -> Mailbox[Any]:
        agent, llm = group.mailbox("agent"), group.mailbox("llm")
        group.start(ScriptedModel(llm, agent, self.replies))
        sessions = {name: group.mailbox(name) for name in self.command.servers}
        for mailbox in sessions.values():
            group.start(ScriptedSession(mailbox, agent, self.hangs))
        deadline = anyio.current_time() + self.work_s
        group.start(
            AgentActor(
                agent, llm=llm, sessions=sessions, check=self.check, note=group.note, deadline=deadline
            )
        )
        return agent

    def flow(self) -> list[str]:
        self.recorder.settle()  # a thread shows long messages
        return [f"{item.sender} > {item.receiver}: {type(item.body).__name__}" for item in self.envelopes]

    def of(self, *kinds: type) -> list[Envelope[Any]]:
        return [item for item in self.envelopes if isinstance(item.body, kinds)]


async def test_a_long_reply_is_read_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, str] = {}

    def noting(state: Any, event: Any) -> Any:
        threads[type(event).__name__] = threading.current_thread().name
        return step(state, event)

    monkeypatch.setattr("grue.actors.agent.step", noting)
    end = await Stage(run("a"), text("north " * LONG)).play()
    assert isinstance(end, TurnCompleted)
    here = threading.current_thread().name
    assert threads.pop("CompletionReceived") != here
    assert set(threads.values()) == {here}


async def test_a_turn_that_is_cancelled_while_it_reads_a_long_reply_keeps_what_it_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reply is in the trace, so a replay steps with it; what came of it has to be there too."""
    reading = threading.Event()
    cancelled = threading.Event()

    def slow(state: Any, event: Any) -> Any:
        if isinstance(event, CompletionReceived):
            reading.set()
            assert cancelled.wait(TEST_LIMIT_S)
        return step(state, event)

    monkeypatch.setattr("grue.actors.agent.step", slow)
    stage = Stage(run("a"), text("north " * LONG))
    async with anyio.create_task_group() as turn:
        turn.start_soon(stage.play)
        await anyio.to_thread.run_sync(reading.wait)
        turn.cancel_scope.cancel()
        cancelled.set()
    flow = stage.flow()
    assert "agent > trace: CheckAnswer" in flow[flow.index("llm > agent: CompletionReceived") :]
    assert "supervisor > trace: TurnInterrupted" in flow


async def test_the_model_actor_ends_while_the_sessions_close() -> None:
    """It closes its connections then. Here the session waits for that before it closes."""
    ended = anyio.Event()

    class Model(ScriptedModel):
        async def run(self) -> None:
            await super().run()
            ended.set()

    class Session(ScriptedSession):
        async def receive(self, envelope: Envelope[Any]) -> None:
            if isinstance(envelope.body, CloseSession):
                await ended.wait()
            await super().receive(envelope)

    with anyio.fail_after(TEST_LIMIT_S):
        async with Supervisor(Recorder(), stop_grace_s=0.01) as group:
            agent, llm, session = (group.mailbox(name) for name in ("agent", "llm", "a"))
            group.start(Model(llm, agent, [text("north")]))
            group.start(Session(session, agent))
            group.start(
                AgentActor(agent, llm=llm, sessions={"a": session}, check=lambda _: ACCEPTED, note=group.note)
            )
            assert isinstance(await agent.ask(run("a"), sender="host"), TurnCompleted)


async def test_a_turn_is_a_conversation_in_which_every_message_has_its_cause() -> None:
    stage = Stage(run("a"), calls("a.think", "a.look"), text("north"))
    end = await stage.play()
    assert isinstance(end, TurnCompleted)
    assert stage.flow() == [
        "host > agent: RunTurn",
        "agent > a: OpenSession",
        "a > agent: SessionOpened",
        "agent > trace: IterationStarted",
        "agent > llm: RequestCompletion",
        "llm > agent: CompletionReceived",
        "agent > a: CallTools",
        "a > agent: ToolReturned",
        "a > agent: ToolReturned",
        "agent > trace: IterationStarted",
        "agent > llm: RequestCompletion",
        "llm > agent: CompletionReceived",
        "agent > trace: CheckAnswer",
        "agent > agent: AnswerAccepted",
        "agent > a: CloseSession",
        "a > agent: SessionClosed",
        "agent > host: TurnCompleted",
    ]
    assert [item.cause for item in stage.envelopes] == [
        *(None, 1, 2, 3, 3, 5, 6, 7, 7, 9, 9, 11, 12, 13, 14, 15, 1)
    ]


async def test_several_sessions_are_opened_used_and_closed() -> None:
    stage = Stage(run("a", "b"), calls("a.think", "b.look", "a.look"), text("north"))
    assert (await stage.play()).kind == "answered"
    assert [item.receiver for item in stage.of(CallTools)] == ["a", "b", "a"]
    assert {item.sender for item in stage.of(SessionClosed)} == {"a", "b"}


async def test_a_batch_of_34_calls_through_bounds_of_16_does_not_deadlock() -> None:
    stage = Stage(run("a"), calls(*["a.think"] * 34), text("north"))
    end = await stage.play()
    assert [item.call_id for item in end.tool_calls] == [f"c{number}" for number in range(1, 35)]
    assert len(stage.of(ToolReturned)) == 34


async def test_the_hosts_check_decides_and_its_verdict_is_in_the_trace() -> None:
    verdicts = iter([REFUSED, ACCEPTED])
    asked: list[str] = []

    def check(content: str) -> Any:
        asked.append(content)
        return next(verdicts)

    stage = Stage(run(), text("hm"), text("north"), check=check)
    assert (await stage.play()).answer == ACCEPTED.answer
    assert asked == ["hm", "north"]
    assert [item.body for item in stage.of(CheckAnswer)] == [CheckAnswer(content=item) for item in asked]
    assert [item.body.mode.answer for item in stage.of(RequestCompletion)] == [ANSWER, ANSWER]


async def test_a_check_that_crashes_is_one_flat_error_with_its_cause() -> None:
    def check(_content: str) -> Any:
        raise ZeroDivisionError("in the host's check")

    with pytest.raises(ActorCrashed, match="in the host's check") as error:
        await Stage(run("a"), text("north"), check=check).play()
    assert isinstance(error.value.__cause__, ZeroDivisionError)


async def test_an_event_that_nobody_could_expect_is_a_crash() -> None:
    with pytest.raises(ActorCrashed, match="ToolReturned in state AwaitingCompletion") as error:
        await Stage(run("a"), returned(1)).play()
    assert isinstance(error.value.__cause__, IllegalEvent)


async def test_an_agent_that_nobody_asks_ends_with_its_group() -> None:
    stage = Stage(run("a"))
    async with Supervisor(stage.recorder) as group:
        stage.cast(group)
    assert stage.flow() == []


async def test_an_agent_cancelled_before_it_was_asked_has_nothing_to_close() -> None:
    stage = Stage(run("a"))
    with anyio.CancelScope() as scope:
        async with Supervisor(stage.recorder) as group:
            stage.cast(group)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            await anyio.sleep_forever()
    assert stage.of(TurnInterrupted, CloseSession) == []


async def test_a_turn_cancelled_before_the_agent_has_read_it_is_interrupted_in_the_trace() -> None:
    stage = Stage(run("a"))
    await cancelled(stage, lambda: bool(stage.of(RunTurn)))
    (interrupted,) = stage.of(TurnInterrupted)
    assert (interrupted.sender, interrupted.body.reason) == ("supervisor", "cancelled")
    assert stage.of(OpenSession, CloseSession) == []


async def test_a_group_that_ends_in_the_middle_of_a_turn_is_a_mistake() -> None:
    stage = Stage(run("a"), HANG)

    async def leave_early() -> None:
        async with Supervisor(stage.recorder, stop_grace_s=0.01) as group:
            await stage.cast(group).send(stage.command, sender="host")
            await anyio.wait_all_tasks_blocked()

    with pytest.raises(ActorCrashed, match="EndOfStream"):
        await leave_early()


# --- Deadline ---

LIMITS = TurnLimits(turn_timeout_s=0.06, teardown_s=0.03)
STUCK: dict[str, tuple[tuple[Any, ...], type | None]] = {
    "starting a": ((), OpenSession),
    "waiting for the model (request 1)": ((HANG,), None),
    "waiting for a.think": ((calls("a.think"),), CallTools),
}


@pytest.mark.parametrize("doing", STUCK)
async def test_the_deadline_ends_the_turn_whatever_it_waits_for(doing: str) -> None:
    replies, hangs = STUCK[doing]
    stage = Stage(run("a", limits=LIMITS), *replies, hangs=hangs, work_s=0.3)
    end = await stage.play()
    assert end.failure == DeadlineMissed(limit_s=0.06, doing=doing, kept_s=0.03)
    (passed,) = stage.of(DeadlinePassed)
    assert (passed.sender, passed.receiver) == ("clock", "trace")
    assert len(stage.of(CloseSession)) == len(stage.of(SessionClosed)) == 1


async def test_a_turn_that_is_cancelled_at_its_deadline_has_run_out_of_time() -> None:
    """Where nothing is kept for closing, the deadline and the limit of the whole turn are one instant."""
    stage = Stage(run("a", limits=LIMITS), HANG, work_s=0.05)
    await cancelled(stage, lambda: bool(stage.of(DeadlinePassed)) or _passes_the_time(stage))
    (failed,) = stage.of(TurnFailed)
    assert failed.body.failure.doing == "waiting for the model (request 1)"
    assert stage.of(SessionClosed)


def _passes_the_time(stage: Stage) -> bool:
    """Once the model is asked, put the deadline behind before any other task runs; then say so."""
    if not stage.of(RequestCompletion):
        return False
    virtual_loop().jump(0.1)
    return True


async def test_a_deadline_that_has_passed_leaves_no_work_to_begin() -> None:
    stage = Stage(run("a", limits=LIMITS), work_s=-1.0)
    assert isinstance((await stage.play()).failure, DeadlineMissed)
    assert stage.of(RequestCompletion) == []


async def test_a_turn_within_its_deadline_takes_no_notice_of_it() -> None:
    stage = Stage(run("a", limits=LIMITS), text("north"), work_s=60.0)
    assert (await stage.play()).kind == "answered"
    assert stage.of(DeadlinePassed) == []


# --- Cancellation ---


async def cancelled(stage: Stage, when: Callable[[], bool]) -> None:
    """Play a turn and cancel it from outside as soon as `when`."""
    with anyio.fail_after(TEST_LIMIT_S), anyio.CancelScope() as scope:

        def watch(_envelope: Any, _line: bytes) -> None:
            if when():
                scope.cancel()

        stage.recorder.add(watch)
        await stage.play()
    assert scope.cancelled_caught


@pytest.mark.parametrize("at", [OpenSession, RequestCompletion, CallTools, ToolReturned, CheckAnswer])
async def test_a_cancelled_turn_still_sees_its_sessions_closed(at: type) -> None:
    stage = Stage(run("a", "b"), calls("a.think", "b.look"), text("north"))
    await cancelled(stage, lambda: bool(stage.of(at)))
    (interrupted,) = stage.of(TurnInterrupted)
    assert (interrupted.sender, interrupted.receiver) == ("supervisor", "trace")
    (failed,) = stage.of(TurnFailed)
    assert failed.body.failure == Interrupted(reason="cancelled")
    before = {item.body.server for item in stage.of(SessionClosed) if item.seq < failed.seq}
    assert before == {"a", "b"}


async def test_a_turn_cancelled_between_two_commands_says_both(monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a slow machine: a pause is due before each command.
    monkeypatch.setattr("grue.runtime.loops.beside_loop.STRETCH_S", -1.0)
    stage = Stage(run("a", "b"), calls("a.think", "b.look"), text("north"))
    await cancelled(stage, lambda: bool(stage.of(OpenSession)))
    assert [item.receiver for item in stage.of(OpenSession)] == ["a", "b"]
    assert len(stage.of(TurnInterrupted)) == 1


async def test_a_turn_cancelled_among_many_notes_records_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grue.runtime.loops.beside_loop.STRETCH_S", -1.0)
    stage = Stage(run("a"), calls(*["no_such.tool"] * 60), text("north"))
    await cancelled(stage, lambda: bool(stage.of(ToolRejected)))
    assert len(stage.of(ToolRejected)) == 60


async def test_a_cancelled_turn_waits_for_its_sessions_no_longer_than_the_teardown_may_take() -> None:
    limits = TurnLimits(turn_timeout_s=None, teardown_s=0.05)
    stage = Stage(run("a", limits=limits), HANG, hangs=CloseSession)
    started = anyio.current_time()
    await cancelled(stage, lambda: bool(stage.of(RequestCompletion)))
    assert anyio.current_time() - started < 60
    assert [type(item.body) for item in stage.envelopes[-2:]] == [TurnInterrupted, CloseSession]


async def test_a_turn_cancelled_while_it_closes_goes_on_closing() -> None:
    stage = Stage(run("a"), text("north"))
    with anyio.CancelScope() as scope:
        stage.recorder.add(
            lambda item, _line: scope.cancel() if isinstance(item.body, CloseSession) else None
        )
        await stage.play()
    assert stage.flow()[-1] == "agent > host: TurnCompleted"


async def test_a_session_whose_actor_is_gone_counts_as_closed() -> None:
    stage = Stage(run("a"), text("north"))
    with anyio.fail_after(TEST_LIMIT_S):
        async with Supervisor(stage.recorder) as group:
            agent, llm, session = (group.mailbox(name) for name in ("agent", "llm", "a"))
            group.start(ScriptedModel(llm, agent, stage.replies))
            group.start(
                AgentActor(agent, llm=llm, sessions={"a": session}, check=stage.check, note=group.note)
            )
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: _open_and_leave(session, agent))
                end = await agent.ask(stage.command, sender="host")
    assert end.kind == "answered"
    assert [item.sender for item in stage.of(SessionClosed)] == ["a"]


async def test_a_session_whose_report_an_observer_refuses_is_not_waited_for() -> None:
    def observe(envelope: Envelope[Any], line: bytes) -> None:
        if isinstance(envelope.body, SessionClosed):
            raise LookupError("boom")

    stage = Stage(run("a"), text("north"))
    stage.recorder.add(observe)
    started = anyio.current_time()
    with pytest.raises(ActorCrashed, match="in the observer"):
        await stage.play()
    assert anyio.current_time() == started


async def _open_and_leave(session: Mailbox[Any], agent: Mailbox[Any]) -> None:
    await session.receive()
    session.abandon()
    await agent.send(opened("a"), sender="a")
