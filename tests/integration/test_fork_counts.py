"""Nothing that counts a trace counts what a fork repeats of the recorded turn."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_turns import Box, model, runner

from grue.fleet.broker import Amount
from grue.fleet.course import read_course, read_spent
from grue.fleet.export import EpisodeRow, Samples, trajectory
from grue.messages import CompletionReceived, TurnCompleted
from grue.testing.llm_server import ScriptedLlmServer
from grue.tracing.counts import count_episode
from grue.tracing.observers.events import EventFeed
from grue.tracing.observers.spans import SpanClosed, SpanFeed, ToolUse
from grue.tracing.overview import Overview
from grue.tracing.page_feed import TurnWriter
from grue.tracing.prompt_cache import cached_prompts
from grue.tracing.reading import open_episode
from grue.tracing.show import render
from grue.tracing.tables import CallRow, RequestRow, TurnRow, trace_rows

WIRE = "chat_completions"


@pytest.fixture
def server() -> Iterator[ScriptedLlmServer]:
    with ScriptedLlmServer(model) as server:
        yield server


@pytest.fixture(
    params=[("RunTurn", 0, 3, 3), ("RequestCompletion", 1, 2, 1), ("ToolCalled", 2, 1, 1)], ids=str
)
def fork(
    request: pytest.FixtureRequest, tmp_path: Path, server: ScriptedLlmServer
) -> tuple[Path, int, int, int]:
    """The trace of a fork, and how many requests, tokens of prompts and calls the fork itself has made.

    The recorded turn is the second one of a conversation, and has three requests and three calls.
    """
    kind, number, requests, calls = request.param
    recorded = tmp_path / "a.jsonl"
    with runner(server, WIRE, recorded, servers=Box().servers()) as each:
        talk = each.conversation("Be brief.", name="talk")
        for question in ("Tidy up.", "Tidy up again."):
            talk.ask(question)
    second = [line for line in open_episode(recorded).lines() if line.line.turn == 2]
    at = [line.line.seq for line in second if line.tag == kind][number]
    with runner(server, WIRE, tmp_path / "b.jsonl") as each:
        each.fork(recorded, turn=2, at=at)
    return tmp_path / "b.jsonl", requests, 10 * requests, calls


def test_what_a_fork_repeats_is_counted_nowhere(fork: tuple[Path, int, int, int]) -> None:
    trace, requests, tokens, calls = fork
    stats = count_episode(open_episode(trace))
    tools = sum(tool.calls for tool in stats.tools)
    (slow,) = stats.slowest_turns
    assert (stats.model.requests, stats.model.usage.input_tokens, tools) == (requests, tokens, calls)
    assert (stats.turns.started, slow.requests, slow.tool_calls) == (1, requests, calls)
    course = read_course(trace)
    assert course is not None
    assert (course.turns, course.requests, course.tool_calls) == (1, requests, calls)
    assert read_spent(trace, {}) == Amount(requests, tokens + 5 * requests, 0.0)


@pytest.mark.slow
def test_what_a_fork_repeats_has_no_rows_and_no_samples(fork: tuple[Path, int, int, int]) -> None:
    trace, requests, tokens, calls = fork
    rows = [*trace_rows(trace, "b")]
    (turn,) = [row for row in rows if isinstance(row, TurnRow)]
    assert (turn.requests, turn.input_tokens, turn.tool_calls) == (requests, tokens, calls)
    asked = [row for row in rows if isinstance(row, RequestRow)]
    assert sum(row.input_tokens or 0 for row in asked) == tokens
    assert (len(asked), sum(isinstance(row, CallRow) for row in rows)) == (requests, calls)
    assert len([*Samples(trace, EpisodeRow(episode="b"))]) == requests
    found = trajectory(trace, EpisodeRow(episode="b"))
    assert found["final_metrics"]["total_prompt_tokens"] == tokens
    assert sum("metrics" in step for step in found["steps"]) == requests
    assert len([*cached_prompts(open_episode(trace))]) == requests


@pytest.mark.slow
def test_observers_report_only_what_a_fork_does_itself(fork: tuple[Path, int, int, int]) -> None:
    trace, requests, tokens, calls = fork
    feed, log = SpanFeed(), EventFeed()
    envelopes = [*open_episode(trace)]
    events = [event for each in envelopes for event in feed.feed(each)]
    ends = [event for event in (*events, *feed.finish()) if isinstance(event, SpanClosed)]
    replies = [end.outcome for end in ends if isinstance(end.outcome, CompletionReceived)]
    assert (len(replies), sum(reply.usage.input_tokens for reply in replies)) == (requests, tokens)
    uses = [end.subject for end in ends if isinstance(end.subject, ToolUse)]
    assert {use.name for use in uses} <= {"box.look", "shed.look", "box.delete"}
    assert len(uses) == calls
    (end,) = [end.outcome for end in ends if isinstance(end.outcome, TurnCompleted)]
    assert (end.requests, end.usage.input_tokens, len(end.tool_calls)) == (requests, tokens, calls)
    logged = [event.event_type for each in envelopes for event in log.feed(each)]
    assert logged.count("mcp_tool_call") == calls


@pytest.mark.slow
def test_what_a_fork_repeats_is_shown_as_copied(fork: tuple[Path, int, int, int]) -> None:
    trace, requests, tokens, _ = fork
    overview, page = Overview(), TurnWriter(2, 0.0)
    for each in open_episode(trace):
        overview.see(each)
        if each.turn == 2:
            page.add(each)
    assert (overview.requests, overview.usage.input_tokens, overview.turns) == (requests, tokens, 1)
    assert (page.page.requests, page.page.usage.input_tokens) == (requests, tokens)
    shown = [line for line in render(open_episode(trace)) if "CompletionReceived" in line]
    assert ["(copied)" in line for line in shown] == [True] * (6 - requests) + [False] * requests
