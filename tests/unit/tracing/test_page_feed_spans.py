"""Messages paired to spans: what took how long, and how it ended."""

from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from viewer_traces import EpisodeTape, TurnTape, begin, small_episode

from grue.hosts.zork.facts import Decided, Observed
from grue.messages import (
    CheckToolSupport,
    ConnectFailed,
    McpDisabled,
    OpenSession,
    RequestCompletion,
    RequireAnswer,
    Resumption,
    RunTurn,
    ServerFailure,
    SessionClosed,
    SessionOpened,
    ToolSupportChecked,
    TurnCompleted,
    TurnParked,
)
from grue.tracing.facts import EpisodeResumed
from grue.tracing.page_feed import PageFeed, PageTurn, Span, SpanFinder
from grue.tracing.page_file import ImageTable
from grue.tracing.reading import open_episode

pytestmark = pytest.mark.made_up_trace

REFUSED = ServerFailure(server="mind", phase="spawn", command="mind", cause="no such file")


def spans(trace: Path, turn: int | None = None) -> list[Span]:
    finder = SpanFinder()
    found = [span for envelope in open_episode(trace) for span in finder.see(envelope, envelope.turn)]
    return [span for span in [*found, *finder.finish()] if turn in (None, span.turn)]


def turns(trace: Path) -> dict[int, PageTurn]:
    feed = PageFeed(ImageTable(BytesIO()))
    for envelope in open_episode(trace):
        feed.see(envelope)
    feed.finish()
    return {turn.turn: turn for turn in feed.turns()}


def told(found: list[Span]) -> list[tuple[Any, ...]]:
    """Phase, label, length and grade of spans, in the order of their beginnings."""
    ordered = sorted(found, key=lambda span: (span.start_s, -span.end_s))
    return [
        (span.phase, span.label, round(span.end_s - span.start_s, 3), span.grade)
        for span in ordered
        if span.phase not in ("turn", "session", "host")
    ]


def test_a_troubled_turn_in_spans(tmp_path: Path) -> None:
    found = spans(small_episode(tmp_path / "trace.jsonl"), turn=2)
    assert told(found) == [
        ("startup", "start", 0.05, ""),
        ("model", "request 1", 0.1, "warn"),
        ("wait", "wait", 0.3, "warn"),
        ("model", "request 1, try 2", 0.2, ""),
        ("tool", "think", 0.1, ""),
        ("tool", "think", 1.0, "fail"),
        ("model", "request 2", 0.2, ""),
        ("teardown", "close", 0.01, ""),
    ]
    lanes = {span.phase: span.lane for span in found}
    assert (lanes["turn"], lanes["model"], lanes["tool"], lanes["host"]) == ("agent", "llm", "mind", "host")


def test_a_span_knows_the_messages_that_began_and_ended_it(tmp_path: Path) -> None:
    trace = small_episode(tmp_path / "trace.jsonl")
    bodies = {envelope.seq: type(envelope.body).__name__ for envelope in open_episode(trace)}
    ends = {(span.phase, bodies[span.first], bodies[span.last]) for span in spans(trace, turn=3)}
    assert ends >= {
        ("turn", "RunTurn", "TurnCompleted"),
        ("session", "OpenSession", "SessionClosed"),
        ("startup", "OpenSession", "SessionOpened"),
        ("model", "RequestCompletion", "CompletionReceived"),
        ("tool", "ToolCalled", "ServerDied"),
        ("teardown", "CloseSession", "SessionClosed"),
        ("host", "Decided", "Observed"),
    }


@pytest.mark.parametrize("servers", [("mind",), ("mind", "maps")])
def test_a_connect_that_is_tried_again_is_two_spans(tmp_path: Path, servers: tuple[str, ...]) -> None:
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        for server in servers:
            tape.say(OpenSession(server=server, turn=1, timeout_s=1.0), f"agent {server}")
        failed = ConnectFailed(server="mind", attempt=1, failure=REFUSED, then="retry")
        tape.say(failed, "mind trace", after_s=0.4)
        tape.say(
            ConnectFailed(server="mind", attempt=2, failure=REFUSED, then="disable"),
            "mind trace",
            after_s=0.2,
        )
        tape.say(McpDisabled(server="mind", reason="no such file", newly=True), "mind agent")
        for server in servers[1:]:
            tape.say(SessionOpened(server=server, tools=()), f"{server} agent", after_s=0.1)
    found = [span for span in spans(tmp_path / "trace.jsonl") if span.lane == "mind"]
    assert told(found) == [("startup", "start", 0.4, "warn"), ("startup", "start again", 0.2, "fail")]
    others = [span for span in spans(tmp_path / "trace.jsonl") if span.lane == "maps"]
    assert told(others) == ([("startup", "start", 0.7, "")] if len(servers) > 1 else [])


def test_a_turn_that_was_parked_took_as_long_as_its_parts(tmp_path: Path) -> None:
    run = RunTurn(turn=1, system="", user="")
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        tape.say(run, "host agent")
        tape.say(TurnParked(turn=1), "agent host", after_s=0.5)
        tape.say(replace(run, resumed=Resumption(parked=TurnParked(turn=1))), "host agent", after_s=60.0)
        tape.say(TurnCompleted(turn=1, kind="answered"), "agent host", after_s=2.0)
    assert round(turns(tmp_path / "trace.jsonl")[1].took_s, 3) == 2.5


def test_a_model_that_a_server_asks_has_spans_of_its_own(tmp_path: Path) -> None:
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        turn = TurnTape(tape)
        turn.open()
        sampling = RequestCompletion(conversation="sampling-1", request=1, new=(), mode=RequireAnswer())
        tape.say(sampling, "mind llm", after_s=0.01)
        turn.ask("north")  # answered before the server's request is
        turn.close()
    answered, unanswered = told([span for span in spans(tmp_path / "trace.jsonl") if span.phase == "model"])[
        ::-1
    ]
    assert answered == ("model", "request 1", 0.2, "")
    assert unanswered[2] > 0.2


def test_what_the_trace_does_not_tell_the_end_of_ends_with_it(tmp_path: Path) -> None:
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        tape.say(OpenSession(server="mind", turn=1, timeout_s=1.0), "agent mind")
        tape.say(Observed(turn=1, text="later"), after_s=0.5)
    assert told(spans(tmp_path / "trace.jsonl")) == [("startup", "start", 0.5, "")]


def test_what_was_under_way_when_the_host_was_killed_ends_there(tmp_path: Path) -> None:
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        tape.say(OpenSession(server="mind", turn=1, timeout_s=1.0), "agent mind")
        tape.say(Observed(turn=1, text=""), after_s=0.5)
        tape.say(EpisodeResumed(episode_id="e", turns=0), after_s=100)
        tape.say(OpenSession(server="mind", turn=1, timeout_s=1.0), "agent mind")
        tape.say(SessionOpened(server="mind", tools=()), "mind agent", after_s=0.25)
    found = told(spans(tmp_path / "trace.jsonl"))
    assert found == [("startup", "start", 0.5, ""), ("startup", "start", 0.25, "")]


def test_asking_whether_the_model_can_call_tools_is_the_models_time(tmp_path: Path) -> None:
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        asked = tape.say(CheckToolSupport(), "agent llm")
        checked = ToolSupportChecked(model="m", endpoint="e", supported=True, by="endpoint")
        tape.say(checked, "llm agent", cause=asked, after_s=0.3)
    assert told(spans(tmp_path / "trace.jsonl")) == [("model", "can it call tools?", 0.3, "")]


def test_ends_without_a_beginning_are_no_spans(tmp_path: Path) -> None:
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        tape.say(SessionClosed(server="mind"), "mind agent")
        tape.say(Observed(turn=1, text=""))
    assert spans(tmp_path / "trace.jsonl") == []


def test_the_game_has_the_time_between_a_decision_and_what_comes_of_it(tmp_path: Path) -> None:
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        tape.say(Decided(turn=1, action="north", reasoning="", new_objective=None, kind="answered"))
        tape.say(Observed(turn=2, text=""), after_s=0.25)
    [game] = spans(tmp_path / "trace.jsonl")
    assert (game.phase, game.label, game.end_s - game.start_s) == ("host", "north", 0.25)


def test_a_turn_in_figures(tmp_path: Path) -> None:
    found = turns(small_episode(tmp_path / "trace.jsonl"))
    second = found[2]
    assert (second.outcome, second.reason, second.action) == ("forced", "for the test", "wait")
    assert (second.requests, second.tool_calls, second.usage.input_tokens) == (2, 3, 20)
    assert round(second.end_s - second.start_s, 3) == 1.975
    assert [*found] == [0, 1, 2, 3, 4]


def test_a_turn_that_the_trace_ends_in_is_unfinished(tmp_path: Path) -> None:
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        begin(tape)
        TurnTape(tape).open()
    assert turns(tmp_path / "trace.jsonl")[1].outcome == "unfinished"
