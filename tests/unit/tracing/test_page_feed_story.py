"""The story of a trace: which messages belong together."""

from io import BytesIO
from pathlib import Path

import pytest
from msgspec.structs import replace
from story_traces import full_story
from viewer_traces import small_episode

from grue.messages import (
    CompletionReceived,
    NoAnswer,
    Resumption,
    RunTurn,
    TurnCompleted,
    TurnFailed,
    TurnForked,
    TurnParked,
    Usage,
)
from grue.tracing.facts import Fact
from grue.tracing.overview import Overview
from grue.tracing.page_feed import PageFeed, Passage, StoryTeller
from grue.tracing.page_file import ImageTable
from grue.tracing.reading import open_episode

pytestmark = pytest.mark.made_up_trace


def told(trace: Path) -> list[Passage]:
    teller, found = StoryTeller(), {}
    for envelope in open_episode(trace):
        found |= {each.id: each for each in teller.see(envelope, envelope.turn)}
    return list(found.values())


def kind_of(trace: Path, seq: int) -> str:
    if not seq:
        return ""
    return next(type(each.body).__name__ for each in open_episode(trace) if each.seq == seq)


def test_a_turn_is_told_in_the_order_in_which_it_happened(tmp_path: Path) -> None:
    story = told(full_story(tmp_path / "trace.jsonl"))
    assert [each.kind for each in story if each.turn == 1] == [
        "fact", "prompt", "reply", "note", "call", "reply", "end", "fact",
    ]  # fmt: skip


def test_a_call_knows_its_reply_its_result_and_its_approval(tmp_path: Path) -> None:
    trace = full_story(tmp_path / "trace.jsonl")
    call = next(each for each in told(trace) if each.kind == "call")
    assert kind_of(trace, call.seq) == "CompletionReceived"
    assert call.place == 0
    assert [kind_of(trace, seq) for seq in call.also] == [
        "ToolCalled", "ToolReturned", "AskApproval", "CallsDecided",
    ]  # fmt: skip


def test_what_a_server_asks_the_model_is_told_one_level_deeper(tmp_path: Path) -> None:
    story = told(full_story(tmp_path / "trace.jsonl"))
    assert [each.depth for each in story if each.kind == "reply" and each.turn == 2] == [0, 1, 0]


def test_a_parked_turn_goes_on_with_the_same_calls(tmp_path: Path) -> None:
    trace = full_story(tmp_path / "trace.jsonl")
    second = [each for each in told(trace) if each.turn == 2]
    assert [kind_of(trace, each.seq) for each in second if each.kind == "end"] == [
        "TurnParked", "TurnCompleted",
    ]  # fmt: skip
    [call] = [each for each in second if each.kind == "call"]
    assert kind_of(trace, call.also[1]) == "ToolReturned"


def test_the_answer_is_told_once(tmp_path: Path) -> None:
    ends = [each for each in told(full_story(tmp_path / "trace.jsonl")) if each.kind == "end"]
    assert [each.text for each in ends] == ["same", "", "same", "same"]


def test_calls_that_no_reply_asked_for_are_told_all_the_same(tmp_path: Path) -> None:
    trace = small_episode(tmp_path / "trace.jsonl")
    calls = [each for each in told(trace) if each.kind == "call"]
    alone = [each for each in calls if each.place < 0]
    settled = [kind_of(trace, each.also[1]) for each in alone]
    assert settled.count("ToolTimedOut") == settled.count("ServerDied") == settled.count("ToolSkipped") == 1


def test_the_overview_counts_what_was_spent_and_says_how_it_ended(tmp_path: Path) -> None:
    overview = Overview()
    for envelope in open_episode(full_story(tmp_path / "trace.jsonl")):
        overview.see(envelope)
    assert (overview.ending, overview.detail) == ("done", "All is said.")
    assert overview.models == {"m-1": 6}
    assert (overview.turns, overview.requests, overview.tool_calls) == (3, 6, 2)
    assert (overview.usage.input_tokens, overview.usage.output_tokens) == (7200, 204)
    assert overview.servers == ("mind",)


def test_the_overview_counts_each_run_of_a_turn_and_a_turn_that_goes_on_once(tmp_path: Path) -> None:
    run, end = RunTurn(turn=15, system="", user="a row"), TurnCompleted(turn=15, kind="answered")
    first = next(iter(open_episode(full_story(tmp_path / "trace.jsonl"))))
    overview = Overview()
    parked = TurnParked(turn=15, calls=())
    goes_on = replace(run, resumed=Resumption(parked=parked))
    for body in (run, end, run, parked, goes_on, parked, run, parked, goes_on, end, run, run, goes_on, end):
        overview.see(replace(first, body=body, copied=False))
    assert overview.turns == 4


def test_the_overview_counts_a_fork_and_not_the_turns_that_it_repeats(tmp_path: Path) -> None:
    overview = Overview()
    for envelope in open_episode(full_story(tmp_path / "trace.jsonl")):
        overview.see(envelope)
    overview.failures = 1  # of a turn before
    overview.requests = overview.tool_calls = 0
    overview.usage = Usage()
    copied = CompletionReceived(request=1, content="", usage=Usage(input_tokens=100, cost_usd=1.0))
    paid = CompletionReceived(request=2, content="", usage=Usage(input_tokens=7, cost_usd=0.5))
    for changed in ("system", "llm.model"):
        forked = TurnForked(trace="t", episode="e", turn=3, at=9, misses="fail", changed=(changed,))
        overview.see(replace(envelope, body=copied, copied=True))
        for body in (forked, paid, TurnCompleted(turn=3, kind="answered")):
            overview.see(replace(envelope, body=body))
    assert overview.forks == ("turn 3 of e: system", "turn 3 of e: llm.model")
    assert (overview.turns, overview.failures) == (2, 0)
    assert (overview.requests, overview.tool_calls, overview.usage) == (
        0, 0, Usage(input_tokens=14, cost_usd=1.0),
    )  # fmt: skip


def test_the_overview_keeps_a_resumed_fork_apart_from_a_failed_turn(tmp_path: Path) -> None:
    overview = Overview()
    (envelope, *_) = open_episode(full_story(tmp_path / "trace.jsonl"))
    failed = TurnFailed(turn=3, failure=NoAnswer(reason="no text"))
    forked = TurnForked(trace="t", episode="e", turn=3, at=9)
    parked = TurnParked(turn=3)
    resumed = RunTurn(turn=3, system="", user="", resumed=Resumption(parked=parked))
    counts = []
    for body in (failed, forked, parked, resumed, failed, forked, parked, resumed):
        overview.see(replace(envelope, body=body))
        counts.append(overview.failures)
    assert counts == [1, 0, 0, 0, 1, 1, 1, 1]


def test_the_page_says_which_turns_are_forked_and_which_messages_are_copied(tmp_path: Path) -> None:
    feed = PageFeed(ImageTable(BytesIO()))
    forked = TurnForked(trace="t", episode="e", turn=2, at=9)
    for envelope in open_episode(full_story(tmp_path / "trace.jsonl")):
        feed.see(replace(envelope, copied=envelope.turn == 2))
        if envelope.turn == 2 and isinstance(envelope.body, RunTurn):
            feed.see(replace(envelope, body=forked))
    assert [turn.turn for turn in feed.turns() if turn.forked] == [2]
    rows = [row for row in feed.take().messages if row.kind != "TurnForked"]
    assert {row.summary.startswith("(copied) ") for row in rows if row.turn == 2} == {True}
    assert not [row for row in rows if row.turn != 2 and "(copied)" in row.summary]


def test_a_fact_of_a_host_that_is_not_installed_is_a_passage(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"trace":"grue","format":2,"episode":"e","started_at":0}\n'
        '{"seq":1,"t":0,"at":0,"turn":0,"from":"host","to":"trace",'
        '"body":{"type":"desk.Sorted","turn":4,"box":"B","left":3}}\n'
    )
    [passage] = told(trace)
    assert (passage.kind, passage.text) == ("fact", "")
    assert isinstance(next(iter(open_episode(trace))).body, Fact)
