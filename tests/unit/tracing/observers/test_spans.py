"""The spans of single turns: what is in them, and how the incomplete ones end."""

from typing import Any

import anyio
import pytest
from case_tables import each_case
from eventful_episode import NOTES, record_episode
from msgspec.structs import replace
from recorded_turns import STARTED_AT, Called, Play, Tape, opened, refused_connection

from grue.engine.runner import Runner, TurnRequest
from grue.errors import ActorCrashed
from grue.hosts.zork.facts import EpisodeEnded, EpisodeStarted
from grue.messages import (
    BatchId,
    CallId,
    CallTools,
    CompletionReceived,
    CompletionRetried,
    ConnectFailed,
    DeadlineMissed,
    DropCompletion,
    Interrupted,
    LlmFailure,
    McpDisabled,
    NoAnswer,
    OpenSession,
    ReplyDropped,
    RequestCompletion,
    RequireAnswer,
    Resumption,
    RunTurn,
    ServerCall,
    ServerName,
    SessionClosed,
    StartupFailed,
    ToolCalled,
    ToolCallResult,
    ToolReturned,
    ToolsUnsupported,
    ToolSupportChecked,
    TurnCompleted,
    TurnFailed,
    TurnParked,
)
from grue.runtime.actor import Actor, ActorFailed
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.tracing.facts import EpisodeResumed
from grue.tracing.observers.spans import (
    Episode,
    EpisodeSummary,
    Generation,
    SessionSummary,
    SpanClosed,
    SpanFeed,
    SpanNoted,
    SpanOpened,
    ToolSession,
    ToolUse,
    verdict_of,
)

STARTED = EpisodeStarted(episode_id="e7", game="The House", game_hash="1", seed=7, model="m-1")
RUN = RunTurn(turn=3, system="You play.", user="A house.", servers=("thoughtbox",), fallback="look")


class Told:
    """An observer that keeps the spans of what it sees."""

    def __init__(self) -> None:
        self.feed = SpanFeed("unnamed")
        self.events: list[Any] = []

    def __call__(self, envelope: Any, line: bytes) -> None:
        self.events += self.feed.feed(envelope)

    def finish(self) -> None:
        self.events += self.feed.finish()

    def opened(self, kind: type) -> list[SpanOpened]:
        return [
            item for item in self.events if isinstance(item, SpanOpened) and isinstance(item.subject, kind)
        ]

    def closed(self, kind: type) -> list[SpanClosed]:
        return [
            item for item in self.events if isinstance(item, SpanClosed) and isinstance(item.subject, kind)
        ]

    def notes(self) -> list[SpanNoted]:
        return [item for item in self.events if isinstance(item, SpanNoted)]


class Number(int):
    """A number that counts how often a dictionary looks at numbers."""

    looks = 0

    def __hash__(self) -> int:
        Number.looks += 1
        return int(self)


def test_the_end_of_a_turn_takes_no_longer_if_many_other_turns_run() -> None:
    """A batch may have thousands of turns that run at the same time."""

    def looks_at_the_end_of_one_of(turns: int) -> int:
        feed, one = SpanFeed(), TurnFailed(turn=1, failure=NoAnswer(reason="none"))
        for turn in range(1, turns + 1):
            feed.feed(sent(Number(turn), turn, replace(RUN, turn=turn)))
        Number.looks = 0
        feed.feed(sent(Number(turns + 1), 1, one, cause=Number(1)))
        return Number.looks

    assert looks_at_the_end_of_one_of(50) == looks_at_the_end_of_one_of(2)


def sent(seq: int, turn: int, body: Any, cause: int | None = None) -> Envelope[Any]:
    return Envelope(
        seq=seq, t=0.0, at=0.0, turn=turn, sender="host", receiver="agent", cause=cause, body=body
    )


def test_an_episode_lasts_from_what_its_host_says_to_what_it_says_last() -> None:
    told = Told()
    tape = Tape(told)
    tape.say(STARTED, sender="host")
    Play(tape, RUN, ["take lamp"])
    tape.tick(2.0)
    ended = EpisodeEnded(reason="won", detail="the game is won", turns=3, score=350)
    tape.say(ended, sender="host", turn=3)
    assert told.feed.finish() == []
    (began,) = told.opened(Episode)
    assert (began.subject, began.parent, began.at) == (
        Episode(episode_id="e7", started=STARTED),
        None,
        STARTED_AT,
    )
    (end,) = told.closed(Episode)
    assert (end.outcome.ended, end.at, end.verdict.level) == (ended, STARTED_AT + 2.0, "default")
    assert (end.outcome.asked.user, end.outcome.answered.answer) == ("A house.", {"action": "take lamp"})
    assert [item.parent for item in told.opened(RunTurn)] == [began.span]
    assert [item.subject.asks.model for item in told.opened(Generation)] == ["m-1"]


def test_an_episode_that_goes_on_is_a_span_of_the_same_name() -> None:
    told = Told()
    tape = Tape(told)
    tape.say(EpisodeResumed(episode_id="e7", turns=2), sender="host")
    told.finish()
    assert [item.subject.episode_id for item in told.opened(Episode)] == ["e7"]
    (end,) = told.closed(Episode)
    assert (end.outcome, end.verdict.error_type) == (EpisodeSummary(), "cut_off")


def test_a_reply_without_a_cause_ends_the_generation_of_its_number() -> None:
    told = Told()
    tape = Tape(told)
    tape.say(RUN, turn=3, sender="host", receiver="agent")
    for request in (1, 2):
        tape.say(RequestCompletion(conversation="t", request=request, new=(), mode=RequireAnswer()), turn=3)
    tape.say(CompletionReceived(request=2, content="two"), turn=3, sender="llm")
    (closed,) = told.closed(Generation)
    assert (closed.subject.request.request, closed.outcome.content) == (2, "two")


def test_a_generation_whose_reply_is_dropped_ends_with_the_recorded_reason() -> None:
    told = Told()
    tape = Tape(told)
    tape.say(RUN, turn=3, sender="host", receiver="agent")
    tape.say(RequestCompletion(conversation="t", request=1, new=(), mode=RequireAnswer()), turn=3)
    tape.say(DropCompletion(conversation="t", request=1, reason="the server 'a' did not start"), turn=3)
    tape.say(ReplyDropped(request=1), turn=3, sender="llm")
    (closed,) = told.closed(Generation)
    verdict = closed.verdict
    assert (verdict.error_type, verdict.detail) == ("reply_dropped", "the server 'a' did not start")


def test_a_turn_without_tools_has_generations_and_no_session() -> None:
    told = Told()
    Play(Tape(told), RunTurn(turn=1, system="You play.", user="A house."), ["take lamp"])
    (turn,) = told.opened(RunTurn)
    assert [item.parent for item in told.opened(Generation)] == [turn.span]
    assert told.opened(ToolSession) == []


def test_a_tool_use_knows_its_limit_its_reply_and_its_protocol() -> None:
    told = Told()
    revised = opened()
    connects = {"thoughtbox": [type(revised)(**{**_fields(revised), "protocol_version": "2025-11-25"})]}
    Play(Tape(told), RUN, [[Called("thoughtbox.think", '{"a": 1}')], "take lamp"], connects=connects)
    (use,) = told.opened(ToolUse)
    assert use.subject == ToolUse(
        call_id="call_1",
        name="thoughtbox.think",
        server="thoughtbox",
        tool="think",
        arguments={"a": 1},
        timeout_s=30.0,
        iteration=1,
        protocol_version="2025-11-25",
        message=8,
    )
    (session,) = told.closed(ToolSession)
    assert session.outcome == SessionSummary(iterations_used=1, tools_called=1, final_action="take lamp")


def test_a_call_of_a_resumed_turn_has_the_number_of_the_reply_at_which_it_was_parked() -> None:
    told = Told()
    server = ServerName("thoughtbox")
    parked = TurnParked(turn=3, iterations=2)
    called = ToolCalled(server=server, batch=BatchId(3), call_id=CallId("c"), tool="dig", arguments={})
    Tape(told).say(replace(RUN, resumed=Resumption(parked=parked)), called, turn=3)
    (turn,), (use,) = told.opened(RunTurn), told.opened(ToolUse)
    assert (use.parent, use.subject.iteration) == (turn.span, 2)


def _fields(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def test_connects_that_fail_are_notes_of_their_turn() -> None:
    told = Told()
    failed = ConnectFailed(server="thoughtbox", attempt=2, failure=refused_connection(), then="disable")
    disabled = McpDisabled(server="thoughtbox", reason="Connection refused", newly=True)
    Play(Tape(told), RUN, ["look"], connects={"thoughtbox": [failed, disabled]})
    (turn,) = told.opened(RunTurn)
    assert [(note.name, note.span, note.verdict.level) for note in told.notes()] == [
        ("connect_failed", turn.span, "warning"),
        ("mcp_disabled", turn.span, "warning"),
    ]
    (closed,) = told.closed(RunTurn)
    assert (closed.outcome.kind, closed.verdict.level) == ("degraded", "warning")


def test_a_retry_is_a_note_of_the_generation_that_caused_it() -> None:
    told = Told()
    recorder = Recorder()
    recorder.add(told)
    run = recorder.record(RUN, sender="host", turn=3)
    request = RequestCompletion(conversation="turn-3", request=1, new=(), mode=RequireAnswer())
    asked = recorder.record(request, sender="agent", receiver="llm", cause=run.seq, turn=3)
    busy = LlmFailure(kind="unavailable", endpoint="http://x", model="m-1", message="busy", status=503)
    retried = CompletionRetried(request=1, attempt=1, delay_s=0.5, failure=busy)
    recorder.record(retried, sender="llm", cause=asked.seq, turn=3)
    (note,) = told.notes()
    assert note.span == told.opened(Generation)[0].span
    assert (note.name, note.verdict.error_type) == ("completion_retried", "unavailable")


def test_what_a_server_asks_of_the_model_is_inside_its_call() -> None:
    told = Told()
    recorder = Recorder()
    recorder.add(told)
    run = recorder.record(RUN, sender="host", turn=3)
    batch = CallTools(
        server="a", batch=1, calls=(ServerCall(call_id="c1", tool="t", arguments={}),), timeout_s=9
    )
    sent = recorder.record(batch, sender="agent", receiver="a", cause=run.seq, turn=3)
    called = ToolCalled(server="a", batch=1, call_id="c1", tool="t", arguments={})
    recorder.record(called, sender="a", cause=sent.seq, turn=3)
    request = RequestCompletion(conversation="sampling-1", request=1, new=(), mode=RequireAnswer())
    asked = recorder.record(request, sender="a", receiver="llm-sampling", turn=3)
    recorder.record(
        CompletionReceived(request=1, content="Hi."), sender="llm-sampling", cause=asked.seq, turn=3
    )
    (use,) = told.opened(ToolUse)
    (generation,) = told.opened(Generation)
    assert (generation.parent, generation.subject.asked_by) == (use.span, "a")
    assert [item.outcome.content for item in told.closed(Generation)] == ["Hi."]


def test_the_model_and_its_endpoint_are_known_once_the_trace_says_them() -> None:
    told = Told()
    tape = Tape(told)
    tape.say(RUN, turn=3, sender="host", receiver="agent")
    checked = ToolSupportChecked(model="m-2", endpoint="http://llm:80/v1", supported=True, by="endpoint")
    tape.say(checked, turn=3, sender="llm", receiver="agent")
    tape.say(RequestCompletion(conversation="t", request=1, new=(), mode=RequireAnswer()), turn=3)
    (generation,) = told.opened(Generation)
    assert (generation.subject.asks.model, generation.subject.asks.address) == ("m-2", "http://llm:80/v1")


def test_a_turn_whose_agent_crashed_ends_with_the_last_word_of_it() -> None:
    told = Told()
    tape = Tape(told)
    tape.say(RUN, turn=3, sender="host", receiver="agent")
    tape.tick(1.0)
    tape.say(RequestCompletion(conversation="t", request=1, new=(), mode=RequireAnswer()), turn=3)
    tape.tick(1.0)
    tape.say(ActorFailed(actor="agent", error="KeyError: 'x'", where=()), turn=3)
    tape.tick(60.0)
    tape.say(RunTurn(turn=4, system="You play.", user="A house."), turn=4, sender="host")
    (turn,) = told.closed(RunTurn)
    assert (turn.outcome, turn.at) == (None, STARTED_AT + 2.0)
    assert (turn.verdict.level, turn.verdict.error_type) == ("error", "actor_crashed")
    assert turn.verdict.detail == "agent: KeyError: 'x'"
    assert [(item.outcome, item.verdict.error_type) for item in told.closed(Generation)] == [
        (None, "cut_off")
    ]


def test_a_crash_of_another_actor_is_why_the_turn_failed() -> None:
    class Broken(Actor[Any]):
        async def receive(self, envelope: Any) -> None:
            await anyio.lowlevel.checkpoint()
            raise LookupError("a bug")

    told = Told()
    recorder = Recorder()
    recorder.add(told)
    runner = Runner(llm=lambda mailbox, agent, note: Broken(mailbox), recorder=recorder)
    with pytest.raises(ActorCrashed):
        runner.run_turn(TurnRequest(system="You play.", user="A house."))
    told.finish()
    (turn,) = told.closed(RunTurn)
    assert turn.verdict.error_type == "actor_crashed"
    assert turn.verdict.detail is not None
    assert turn.verdict.detail.startswith("llm: LookupError: a bug (in test_a_crash_of_another_actor")
    assert isinstance(turn.outcome, TurnFailed | None)
    assert [item.verdict.error_type for item in told.closed(Generation)] == ["cut_off"]


def test_a_session_outside_turns_stands_by_itself() -> None:
    """As `MCPManager` has them: no cause anywhere, and no turn."""
    told = Told()
    tape = Tape(told)
    for session in (1, 2):
        tape.say(
            OpenSession(server="a", turn=session, timeout_s=10), turn=session, sender="host", receiver="a"
        )
        call = ServerCall(call_id="c1", tool="t", arguments={"x": session})
        tape.say(CallTools(server="a", batch=1, calls=(call,), timeout_s=9), turn=session, sender="host")
        called = ToolCalled(server="a", batch=1, call_id="c1", tool="t", arguments={"x": session})
        tape.say(called, turn=session, sender="a")
        result = ToolReturned(batch=1, call_id="c1", result=ToolCallResult("ok"))
        tape.say(result, turn=session, sender="a")
        tape.say(SessionClosed(server="a"), turn=session, sender="a")
    told.finish()
    (episode,) = told.opened(Episode)
    sessions = told.opened(ToolSession)
    assert [item.parent for item in sessions] == [episode.span] * 2
    assert [item.parent for item in told.opened(ToolUse)] == [item.span for item in sessions]
    assert [(item.subject.name, item.subject.timeout_s) for item in told.opened(ToolUse)] == [
        ("a.t", 9.0)
    ] * 2
    assert [item.outcome.tools_called for item in told.closed(ToolSession)] == [1, 1]
    assert {item.verdict.level for item in told.closed(ToolSession)} == {"default"}


def test_time_does_not_run_backwards_with_the_wall_clock() -> None:
    wall, ticks = [1000.0], [0.0]
    told = Told()
    recorder = Recorder(clock=lambda: ticks[0], wall_clock=lambda: wall[0])
    recorder.add(told)
    recorder.record(RUN, sender="host", turn=3)
    wall[0], ticks[0] = 400.0, 2.0  # somebody sets the clock
    recorder.record(TurnFailed(turn=3, failure=refused_connection()), sender="agent", cause=1, turn=3)
    (turn,) = told.closed(RunTurn)
    assert turn.at == 1002.0


@pytest.mark.parametrize(
    ("end", "error_type"),
    [
        (StartupFailed(server="a", failure=refused_connection(server="a")), "server_failed"),
        (McpDisabled(server="a", reason="Connection refused", newly=True), "mcp_disabled"),
    ],
)
def test_a_session_outside_turns_that_was_never_opened_is_an_error(end: Any, error_type: str) -> None:
    told = Told()
    tape = Tape(told)
    tape.say(OpenSession(server="a", turn=1, timeout_s=10), turn=1, sender="host")
    tape.say(end, turn=1, sender="a")
    (session,) = told.closed(ToolSession)
    assert (session.verdict.level, session.verdict.error_type) == ("error", error_type)
    assert session.verdict.detail == "Connection refused"


BUSY = LlmFailure(kind="unavailable", endpoint="http://x", model="m", message="busy")


@each_case(
    "outcome, verdict",
    [
        (TurnFailed(turn=1, failure=refused_connection()), ("error", "server_failed", "Connection refused")),
        (TurnFailed(turn=1, failure=BUSY), ("error", "unavailable", "busy")),
        (
            TurnFailed(turn=1, failure=ToolsUnsupported(model="m", endpoint="http://x", reason="its name")),
            ("error", "tools_unsupported", "its name"),
        ),
        (
            TurnFailed(turn=1, failure=DeadlineMissed(limit_s=5.0, doing="asking")),
            ("error", "timeout", "out of time after 5s, asking"),
        ),
        (TurnFailed(turn=1, failure=Interrupted(reason="Ctrl-C")), ("error", "interrupted", "Ctrl-C")),
        (TurnFailed(turn=1, failure=NoAnswer(reason="no JSON")), ("error", "no_answer", "no JSON")),
        (TurnCompleted(turn=1, kind="answered"), ("default", "", "")),
        (TurnCompleted(turn=1, kind="forced", reason="budget"), ("default", "", "budget")),
        (TurnCompleted(turn=1, kind="fallback", reason="no JSON"), ("warning", "", "no JSON")),
        (EpisodeEnded(reason="won", detail="won", turns=1), ("default", "", "won")),
        (EpisodeEnded(reason="interrupted", detail="Ctrl-C", turns=1), ("warning", "", "Ctrl-C")),
        (EpisodeEnded(reason="failed", detail="no key", turns=1), ("error", "failed", "no key")),
    ],
)
def test_how_well_something_ended(outcome: Any, verdict: tuple[str, str, str]) -> None:
    judged = verdict_of(outcome)
    assert (judged.level, judged.error_type, judged.detail) == verdict


def test_everything_that_can_happen_is_noted_where_it_happens() -> None:
    told = Told()
    record_episode(Tape(told))
    assert [note.name for note in told.notes()] == NOTES
    (turn,), (session,) = told.opened(RunTurn), told.opened(ToolSession)
    first = told.opened(Generation)[0]
    where = {note.name: note.span for note in told.notes()}
    assert where["mcp_disabled"] == turn.span
    assert where["tool_skipped"] == where["final_forced"] == session.span
    # Their envelopes name no cause here: then they are in what is innermost.
    assert where["completion_retried"] == session.span
    assert first.subject.asks.model == "m-2"


def test_a_call_that_a_host_makes_itself_is_in_the_session_with_its_server() -> None:
    feed, tape = SpanFeed(), Tape()
    a, b = ServerName("a"), ServerName("b")
    call = ServerCall(call_id=CallId("c"), tool="dig", arguments={})
    tape.say(OpenSession(server=a, turn=0, timeout_s=5), OpenSession(server=b, turn=0, timeout_s=5))
    for server in (a, b):
        tape.say(CallTools(server=server, batch=BatchId(1), calls=(call,), timeout_s=5), turn=4)
        tape.say(
            ToolCalled(server=server, batch=BatchId(1), call_id=call.call_id, tool="dig", arguments={}),
            turn=4,
        )
    spans = [each for envelope in tape.envelopes for each in feed.feed(envelope)]
    opened = [each for each in spans if isinstance(each, SpanOpened)]
    servers = {each.span: each.subject.servers for each in opened if isinstance(each.subject, ToolSession)}
    parents = [each.parent for each in opened if isinstance(each.subject, ToolUse)]
    assert [servers.get(parent or 0) for parent in parents] == [(a,), (b,)]


def test_a_call_that_a_host_makes_itself_is_in_the_turn_that_answered_with_it() -> None:
    told = Told()
    tape, server = Tape(told), ServerName("a")
    tape.say(OpenSession(server=server, turn=0, timeout_s=5))
    for turn in (4, 5):
        tape.say(RUN, turn=turn)
        tape.say(TurnFailed(turn=turn, failure=refused_connection()), turn=turn)
        called = ToolCalled(server=server, batch=BatchId(1), call_id=CallId("c"), tool="dig", arguments={})
        tape.say(called, turn=turn)
    told.finish()
    turns, uses = told.opened(RunTurn), told.opened(ToolUse)
    assert [use.parent for use in uses] == [turn.span for turn in turns]
    # What is under way when the host is killed ends with it, once.
    assert [(use.span, use.verdict.error_type) for use in told.closed(ToolUse)] == [
        (uses[0].span, "cut_off"),
        (uses[1].span, "cut_off"),
    ]


def test_a_call_in_a_session_with_the_number_of_a_turn_stays_in_its_session() -> None:
    """`MCPManager` counts its sessions, and their numbers are no turns."""
    told = Told()
    tape, server = Tape(told), ServerName("a")
    tape.say(RUN, turn=3)
    tape.say(TurnFailed(turn=3, failure=refused_connection()), turn=3)
    tape.say(OpenSession(server=server, turn=3, timeout_s=5), turn=3)
    called = ToolCalled(server=server, batch=BatchId(1), call_id=CallId("c"), tool="dig", arguments={})
    tape.say(called, turn=3)
    (session,), (use,) = told.opened(ToolSession), told.opened(ToolUse)
    assert use.parent == session.span
