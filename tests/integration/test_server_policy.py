"""The policy of one server in a turn: whether it has to start, and calls that its own schemas refuse."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from lifetimes import DONE, ECHO, answering
from msgspec.structs import replace
from transport_servers import faulty

from grue import (
    FailurePolicy,
    FunctionTools,
    LlmSettings,
    Runner,
    ServerOptions,
    StdioServer,
    ToolClient,
    TurnRequest,
)
from grue.messages import McpDisabled, RunTurn, SessionClosed, SessionOpened
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import ScriptedLlmServer
from grue.tracing.message_words import summarize
from grue.tracing.observers.events import EventFeed
from grue.tracing.observers.spans import SpanFeed, SpanOpened, ToolUse
from grue.tracing.reading import open_episode
from grue.tracing.replay import replay

OPTIONAL = ServerOptions(required=False)


@pytest.mark.slow
def test_a_server_that_is_not_required_does_not_end_the_first_turn_for_the_others() -> None:
    servers = {
        "faulty": faulty(),
        "gone": StdioServer(name="gone", command="false", options=OPTIONAL),
        "missing": StdioServer(name="missing", command="no-such-program", options=OPTIONAL),
    }
    told: list[object] = []
    with ScriptedLlmServer(answering(ECHO, DONE, ECHO, DONE)) as llm, assert_nothing_left():
        settings = LlmSettings(base_url=llm.base_url, model="scripted")
        with Runner(llm=settings, servers=servers) as runner:
            runner.recorder.add(lambda envelope, _line: told.append(envelope.body))
            outcomes = [runner.run_turn(TurnRequest(system="s", user="u")) for _ in range(2)]
    assert [outcome.response for outcome in outcomes] == ["done", "done"]
    assert [call.settlement for outcome in outcomes for call in outcome.tool_calls] == ["returned"] * 2
    for outcome in outcomes:
        assert outcome.kind == "degraded"
        assert "no tools from 'gone': " in outcome.reason
        assert "no tools from 'missing': " in outcome.reason
    disabled = [body for body in told if isinstance(body, McpDisabled)]
    assert {(body.server, body.newly) for body in disabled} == {
        (server, newly) for server in ("gone", "missing") for newly in (True, False)
    }
    opened = [body.server for body in told if isinstance(body, SessionOpened)]
    assert opened == ["faulty"] * 2
    assert sum(isinstance(body, SessionClosed) for body in told) >= len(opened)


def test_the_outcome_has_the_last_words_of_a_server_that_did_not_start(tmp_path: Path) -> None:
    secret = "sk-" + "a1b2c3d4e5f6" * 3
    server = faulty("--exit-at", "initialize", "--stderr", f"reading rates\nno rates for {secret}")
    server = replace(server, env={"RATES_KEY": secret})
    policy = FailurePolicy(first_connect="disable", retry_disabled_s=0.5)
    trace = tmp_path / "turn.jsonl"
    with ScriptedLlmServer(answering(DONE)) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="scripted")
        with Runner(llm=settings, servers={"rates": server}, policy=policy, trace=trace) as runner:
            outcome = runner.run_turn(TurnRequest(system="s", user="u"))
    assert outcome.reason.startswith("no tools from 'rates': the server ended during initialize")
    assert "Its last line on stderr: no rates for [redacted" in outcome.reason
    assert secret not in outcome.reason + trace.read_text()
    (line,) = [summarize(each.body) for each in open_episode(trace) if isinstance(each.body, McpDisabled)]
    assert line.startswith("rates is disabled until it is tried again after 0.5 s: the server ended")


@pytest.mark.parametrize(
    ("retry_s", "kinds"),
    [
        (0.0, ["degraded", "degraded", "answered"]),
        (3600.0, ["degraded"] * 3),
        (None, ["degraded"] * 3),
    ],
)
@pytest.mark.slow
def test_a_server_that_was_down_is_used_again_when_the_policy_tries_again(
    tmp_path: Path, retry_s: float | None, kinds: list[str]
) -> None:
    server = faulty("--exit-at", "initialize", "--only-in", "1,2", str(tmp_path / "starts"))
    policy = FailurePolicy(first_connect="disable", retry_disabled_s=retry_s)
    trace = tmp_path / "turns.jsonl"
    with ScriptedLlmServer(answering(DONE, DONE, DONE)) as llm, assert_nothing_left():
        settings = LlmSettings(base_url=llm.base_url, model="scripted")
        with Runner(llm=settings, servers={"faulty": server}, policy=policy, trace=trace) as runner:
            outcomes = [runner.run_turn(TurnRequest(system="s", user="u")) for _ in kinds]
            assert bool(runner.disabled) is (kinds[-1] == "degraded")
    assert [outcome.kind for outcome in outcomes] == kinds
    newly = [each.body.newly for each in open_episode(trace) if isinstance(each.body, McpDisabled)]
    assert newly == [True, *[False] * (kinds.count("degraded") - 1)]
    begun = [each.body.limits for each in open_episode(trace) if isinstance(each.body, RunTurn)]
    kept_for_closing = [bool(limits.teardown_s) for limits in begun]
    assert kept_for_closing == [True, *[retry_s == 0.0] * 2]
    assert all(turn.divergence is None for turn in replay(open_episode(trace)))


@pytest.mark.slow
def test_the_model_repairs_a_call_that_the_servers_schema_refuses(tmp_path: Path) -> None:
    said = tmp_path / "said"
    wrong = [("faulty.echo", {"text": 5})]
    with ScriptedLlmServer(answering(wrong, ECHO, DONE)) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="scripted")
        with Runner(llm=settings, servers={"faulty": faulty("--record", str(said))}) as runner:
            outcome = runner.run_turn(TurnRequest(system="s", user="u"))
    assert [call.result.is_error for call in outcome.tool_calls] == [True, False]
    assert '$.text: 5 is not of type "string"' in (outcome.tool_calls[0].result.error_message or "")
    assert said.read_text().count("tools/call") == 1


def echo(text: str) -> str:
    """Return the text."""
    return text


@pytest.mark.parametrize("lifetime", [{}, {"keep": "sessions"}], ids=str)
@pytest.mark.parametrize("server", [faulty(), FunctionTools([echo])], ids=["process", "functions"])
def test_p28_p31_a_call_that_its_own_schema_refuses_is_no_call_in_log_and_spans(
    server: Any, lifetime: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    wrong = [("faulty.echo", {"text": 5})]
    with ScriptedLlmServer(answering(wrong, ECHO, DONE)) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="scripted")
        with Runner(llm=settings, servers={"faulty": server}, trace=path, **lifetime) as runner:
            outcome = runner.run_turn(TurnRequest(system="s", user="u"))
    assert [call.settlement for call in outcome.tool_calls] == ["rejected", "returned"]
    feed, spans = EventFeed(), SpanFeed("e")
    trace = list(open_episode(path))
    events = [event for envelope in trace for event in feed.feed(envelope)]
    names = Counter(event.event_type for event in events)
    assert (names["mcp_tool_call"], names["mcp_tool_result"], names["mcp_tool_error"]) == (1, 1, 1)
    (complete,) = (event for event in events if event.event_type == "mcp_session_complete")
    assert complete.fields["tool_calls_count"] == 1
    opened = [each for envelope in trace for each in spans.feed(envelope) if isinstance(each, SpanOpened)]
    assert sum(isinstance(each.subject, ToolUse) for each in opened) == 1
    assert all(turn.divergence is None for turn in replay(open_episode(path)))


def test_p28_outside_turns_too_a_call_that_its_schema_refuses_is_an_error_and_no_call() -> None:
    feed = EventFeed()
    events: list[str] = []
    with ToolClient({"faulty": faulty()}) as tools:
        tools.recorder.add(lambda envelope, _line: events.extend(e.event_type for e in feed.feed(envelope)))
        refused = tools.call("faulty.echo", {"text": 5})
        assert refused.is_error
        assert 'not of type "string"' in (refused.error_message or "")
        assert tools.call("faulty.echo", {"text": "5"}).content == "5"
    assert events.count("mcp_tool_call") == 1
