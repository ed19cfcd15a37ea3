"""Which events the messages of an episode make, each with its exact text and fields."""

from itertools import zip_longest
from typing import Any

import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from recorded_turns import Called, Play, Tape, opened, refused_connection

from grue.hosts.zork.facts import Decided, EpisodeEnded, EpisodeStarted, McpInitFailed, McpInitialized
from grue.messages import (
    BatchId,
    CallId,
    CompletionReceived,
    CompletionRetried,
    ConnectFailed,
    DeadlineMissed,
    FinalForced,
    Interrupted,
    IterationStarted,
    LlmFailure,
    McpDisabled,
    Resumption,
    RunTurn,
    ServerName,
    ServerNoted,
    StartupFailed,
    ToolCall,
    ToolCalled,
    ToolCallResult,
    ToolReturned,
    TurnFailed,
    TurnParked,
)
from grue.policies import UNLISTED, FailurePolicy, TurnLimits
from grue.protocol.tools.results import SKIPPED_TOO_LATE
from grue.runtime.actor import ActorFailed
from grue.tracing.observers.events import Event, EventFeed

FAILURE_EVENTS = {"mcp_tool_error", "mcp_tool_timeout", "mcp_tool_skipped"}


def run_turn(turn: int = 1, *servers: str, **changes: Any) -> RunTurn:
    given = {"system": "You play.", "user": "A door.", "fallback": {"action": "look"}, **changes}
    return RunTurn(turn=turn, servers=servers or ("thoughtbox",), **given)


def events_of(tape: Tape) -> list[Event]:
    feed = EventFeed("ep-1")
    return [event for envelope in tape.envelopes for event in feed.feed(envelope)]


def played(*replies: Any, run: RunTurn | None = None, **changes: Any) -> list[Event]:
    tape = Tape()
    Play(tape, run or run_turn(), replies, **changes)
    return events_of(tape)


def noted(*bodies: Any, turn: int = 0) -> list[Event]:
    tape = Tape()
    tape.say(*bodies, turn=turn)
    return events_of(tape)


def told(events: list[Event]) -> list[tuple[str, str, str, dict[str, Any]]]:
    return [(event.level, event.event_type, event.message, event.fields) for event in events]


def test_a_call_of_a_resumed_turn_has_the_number_of_the_reply_at_which_it_was_parked() -> None:
    parked = TurnParked(turn=3, iterations=2)
    called = ToolCalled(
        server=ServerName("a"), batch=BatchId(3), call_id=CallId("c"), tool="dig", arguments={}
    )
    offered = IterationStarted(iteration=3, max_iterations=5)
    events = noted(run_turn(3, resumed=Resumption(parked=parked)), called, offered, turn=3)
    assert [(event.event_type, event.fields.get("iteration")) for event in events] == [
        ("mcp_tool_call", 2),
        ("mcp_session_started", None),
        ("mcp_iteration_start", 3),
    ]


def test_a_call_keeps_its_name_if_its_server_asks_the_model_meanwhile() -> None:
    call = ToolCall(call_id=CallId("c1"), name="a.look", arguments="{}")
    batch, server = BatchId(1), ServerName("a")
    events = noted(
        CompletionReceived(request=1, tool_calls=(call,)),
        ToolCalled(server=server, batch=batch, call_id=call.call_id, tool="look", arguments={}),
        CompletionReceived(request=1, content="the answer to a sampling request"),
        ToolReturned(batch=batch, call_id=call.call_id, result=ToolCallResult(content="a cave")),
        turn=1,
    )
    assert [(event.message, event.fields["server_name"]) for event in events] == [
        ("MCP tool call: a.look", "a"),
        ("MCP tool result: a.look", "a"),
    ]


def named(events: list[Event], name: str) -> list[Event]:
    return [event for event in events if event.event_type == name]


def only(events: list[Event], name: str) -> tuple[str, str, dict[str, Any]]:
    (event,) = named(events, name)
    return event.level, event.message, event.fields


def test_a_turn_with_one_call_tells_the_required_events_in_order() -> None:
    think = Called("thoughtbox.think", '{"thought": "a key"}', content={"next": False}, took_s=0.3)
    name = "thoughtbox.think"
    assert told(played([think], "unlock door", run=run_turn(15))) == [
        ("info", "mcp_session_started", "MCP session started (max 20 iterations)", {"max_iterations": 20}),
        (
            "info",
            "mcp_iteration_start",
            "Agent tool-calling iteration 1/20",
            {"iteration": 1, "max_iterations": 20},
        ),
        (
            "info",
            "mcp_tool_call",
            f"MCP tool call: {name}",
            {
                "tool_name": name,
                "server_name": "thoughtbox",
                "arguments": {"thought": "a key"},
                "iteration": 1,
            },
        ),
        (
            "info",
            "mcp_tool_result",
            f"MCP tool result: {name}",
            {
                "tool_name": name,
                "server_name": "thoughtbox",
                "result_type": "dict",
                "result_length": len("{'next': False}"),
                "is_error": False,
                "duration_ms": 300.0,
                "iteration": 1,
            },
        ),
        (
            "info",
            "mcp_iteration_start",
            "Agent tool-calling iteration 2/20",
            {"iteration": 2, "max_iterations": 20},
        ),
        (
            "info",
            "mcp_session_complete",
            "MCP session complete: 1 iterations, 1 tool calls",
            {
                "iterations": 1,
                "tool_calls_count": 1,
                "tools_used": [name],
                "final_action": "unlock door",
            },
        ),
    ]


def test_every_event_carries_episode_and_turn() -> None:
    events = played([Called("thoughtbox.think")], "look", run=run_turn(7))
    assert {(event.episode_id, event.turn) for event in events} == {("ep-1", 7)}
    assert events[0].labels() == {
        "event_type": "mcp_session_started",
        "episode_id": "ep-1",
        "turn": 7,
        "max_iterations": 20,
    }


def test_the_host_names_the_episode_and_the_turn_of_its_decision() -> None:
    started = EpisodeStarted(episode_id="ep-9", game="house", game_hash="1", seed=7, model="m", scripted=True)
    decided = Decided(turn=3, action="take lamp", reasoning="dark", new_objective=None, kind="answered")
    first, second = noted(started, decided)
    assert (first.episode_id, first.turn, first.level) == ("ep-9", 0, "info")
    assert first.message == "Episode started: house, played by m (scripted)"
    assert first.fields == {
        "game": "house",
        "game_hash": "1",
        "seed": 7,
        "model": "m",
        "servers": (),
        "scripted": True,
        "max_turns": 0,
        "version": "",
    }
    assert (second.episode_id, second.turn, second.message) == ("ep-9", 3, "Agent action: take lamp")
    assert second.fields["reasoning"] == "dark"


def test_p28_p29_each_call_and_each_settlement_has_its_event() -> None:
    batch = [Called("thoughtbox.think"), Called("thoughtbox.think", outcome="error", content="half")]
    events = played(batch, "look")
    assert len(named(events, "mcp_tool_call")) == 2
    good, bad = named(events, "mcp_tool_result")
    assert (good.fields["is_error"], good.fields["result_type"], good.fields["result_length"]) == (
        False,
        "NoneType",
        4,
    )
    assert (bad.fields["is_error"], bad.fields["result_type"], bad.fields["result_length"]) == (
        True,
        "str",
        4,
    )
    assert bad.level == "info"


def test_p21_a_returned_error_is_a_result_and_one_failure() -> None:
    events = played([Called("thoughtbox.think", outcome="error")], "look")
    assert only(events, "mcp_tool_error") == (
        "warning",
        "Tool call failed: thoughtbox.think - no such thought",
        {"tool_name": "thoughtbox.think", "error": "no such thought", "iteration": 1},
    )


def test_p21_a_rejected_call_is_one_failure_and_no_call() -> None:
    events = played([Called("thoughtbox.think", "{not json"), Called("nowhere.go")], "look")
    assert not named(events, "mcp_tool_call")
    unreadable, unknown = named(events, "mcp_tool_error")
    assert unreadable.fields["tool_name"] == "thoughtbox.think"
    assert not str(unreadable.fields["error"]).startswith("Tool call failed")
    assert unreadable.message == f"Tool call failed: thoughtbox.think - {unreadable.fields['error']}"
    assert unknown.fields["tool_name"] == "nowhere.go"
    assert (unreadable.fields["arguments"], unknown.fields["arguments"]) == ("{not json", "{}")
    complete = only(events, "mcp_session_complete")[2]
    assert (complete["iterations"], complete["tool_calls_count"], complete["tools_used"]) == (1, 0, [])


def test_p24_a_timeout_and_what_it_skips() -> None:
    batch = [Called("thoughtbox.think", outcome="timeout", took_s=30.0), Called("thoughtbox.think")]
    events = played(batch, "look")
    assert only(events, "mcp_tool_timeout") == (
        "warning",
        "Tool call timeout: thoughtbox.think",
        {"tool_name": "thoughtbox.think", "iteration": 1},
    )
    level, _, fields = only(events, "mcp_tool_skipped")
    assert level == "warning"
    assert fields["after"] == "timeout"
    assert fields["tool_name"] == "thoughtbox.think"
    assert not named(events, "mcp_tool_error")
    assert not named(events, "mcp_forced_final")


def test_a_server_that_dies_fails_its_call_skips_the_rest_and_forces_the_answer() -> None:
    batch = [Called("thoughtbox.think", outcome="died"), Called("thoughtbox.think")]
    events = played(batch, "look")
    assert only(events, "mcp_tool_error")[1] == "Tool call failed: thoughtbox.think - killed by SIGKILL"
    assert only(events, "mcp_tool_skipped")[2]["after"] == "server death"
    assert only(events, "mcp_forced_final") == (
        "info",
        "Forcing final action after the server's death",
        {"reason": "server_died", "iterations": 1},
    )


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("max_iterations", "Forcing final action after the last tool iteration"),
        ("no_content", "Forcing final action after a reply without content"),
        ("tool_timeout", "Forcing final action after tool timeout"),
        ("server_died", "Forcing final action after the server's death"),
    ],
)
def test_a_forced_final_says_why(reason: Any, words: str) -> None:
    empty, forced = noted(FinalForced(reason=reason, iterations=4), turn=1)
    assert told([empty]) == [
        (
            "warning",
            "mcp_no_content",
            "Agent exited tool loop without content after 4 iterations",
            {"iterations": 4},
        )
    ]
    assert forced.message == words


def test_a_reply_without_anything_is_an_unexpected_state() -> None:
    events = played(None, "look")
    assert only(events, "mcp_unexpected_state") == (
        "warning",
        "LLM returned no content and no tool_calls, finish_reason=stop",
        {"finish_reason": "stop", "iteration": 1},
    )


def test_a_call_after_the_last_iteration_is_skipped_on_its_own_account() -> None:
    limits = TurnLimits(max_tool_iterations=1)
    timeout = [Called("thoughtbox.think", outcome="timeout")]
    events = played(timeout, [Called("thoughtbox.think")], "look", run=run_turn(limits=limits))
    _, message, fields = only(events, "mcp_tool_skipped")
    assert fields["after"] is None
    assert message.startswith("Tool call skipped: thoughtbox.think - no more tools may be called")
    assert fields["reason"] == SKIPPED_TOO_LATE


def test_a_refused_answer_is_repaired_then_falls_back() -> None:
    events = played("north?", "NORTH!", refusals=2)
    assert only(events, "agent_repair_requested") == (
        "warning",
        "Agent response refused, asking once more: no JSON",
        {"reason": "no JSON"},
    )
    assert only(events, "agent_parse_error") == (
        "error",
        "Failed to parse agent response: no JSON",
        {"raw_response": "NORTH!"},
    )
    assert only(events, "mcp_session_complete")[2]["final_action"] == "look"


def test_p30_a_turn_that_fails_completes_its_session_too() -> None:
    events = played("a", "b", run=run_turn(fallback=None), refusals=2)
    assert [event.event_type for event in events[-3:]] == [
        "agent_parse_error",
        "turn_failed",
        "mcp_session_complete",
    ]
    assert only(events, "turn_failed") == (
        "error",
        "Turn failed: no acceptable answer: no JSON",
        {"failure": "NoAnswer", "error": "no acceptable answer: no JSON"},
    )
    assert only(events, "mcp_session_complete")[2]["final_action"] is None


def test_p30_a_turn_without_tools_has_no_session() -> None:
    run = RunTurn(turn=1, system="s", user="u")
    assert played("look", run=run) == []


def test_p30_one_session_a_turn_however_many_servers() -> None:
    tape, calls = Tape(), [Called("b.think"), Called("a.think"), Called("b.think")]
    for turn in (1, 2):
        Play(tape, run_turn(turn, "a", "b"), [calls, "look"])
    events = events_of(tape)
    assert [event.turn for event in named(events, "mcp_session_started")] == [1, 2]
    completed = named(events, "mcp_session_complete")
    assert [event.turn for event in completed] == [1, 2]
    assert completed[1].fields["tools_used"] == ["a.think", "b.think"]
    assert completed[1].fields["tool_calls_count"] == 3, "calls are counted, tools are named once"


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (refused_connection("exited at once"), "Failed to start MCP server 'thoughtbox': exited at once"),
        (
            LlmFailure(kind="refused", endpoint="e", model="m", message="no credit"),
            "no completion from model 'm': no credit",
        ),
        (DeadlineMissed(limit_s=2.5, doing="waiting for a.b"), "out of time after 2.5s, waiting for a.b"),
        (Interrupted(reason="Ctrl-C"), "interrupted: Ctrl-C"),
    ],
)
def test_a_failed_turn_says_why(failure: Any, words: str) -> None:
    (event,) = noted(TurnFailed(turn=4, failure=failure), turn=4)
    assert (event.level, event.message) == ("error", f"Turn failed: {words}")


def test_a_retry_that_succeeds() -> None:
    failed = ConnectFailed(server="thoughtbox", attempt=1, failure=refused_connection(), then="retry")
    connects = {"thoughtbox": [failed, opened(attempt=2)]}
    events = played("look", connects=connects)
    assert only(events, "mcp_connect_retry") == (
        "warning",
        "MCP session connect failed, retrying: Connection refused",
        {"server_name": "thoughtbox", "error": "Connection refused"},
    )
    assert only(events, "mcp_connect_retry_succeeded") == (
        "info",
        "MCP session retry successful",
        {"server_name": "thoughtbox", "attempt": 2},
    )
    assert not named(events, "mcp_disabled_fallback")


def test_p27_a_retry_that_fails_disables_once_for_all() -> None:
    failure = refused_connection()
    connects = {
        "thoughtbox": [
            ConnectFailed(server="thoughtbox", attempt=1, failure=failure, then="retry"),
            ConnectFailed(server="thoughtbox", attempt=2, failure=failure, then="disable"),
            McpDisabled(server="thoughtbox", reason="gone", newly=True),
        ]
    }
    tape = Tape()
    Play(tape, run_turn(16), ["look"], connects=connects)
    Play(
        tape, run_turn(17), ["look"], connects={"thoughtbox": [McpDisabled(server="thoughtbox", reason="r")]}
    )
    events = events_of(tape)
    assert only(events, "mcp_disabled") == (
        "warning",
        "MCP retry failed, disabling MCP for episode: Connection refused",
        {"server_name": "thoughtbox", "error": "Connection refused"},
    )
    assert only(events, "mcp_disabled_fallback") == (
        "warning",
        "MCP disabled, continuing without tools",
        {},
    )
    assert {event.turn for event in events} == {16}


def test_a_server_may_be_disabled_at_its_first_failure_or_without_one() -> None:
    failed = ConnectFailed(server="thoughtbox", attempt=1, failure=refused_connection(), then="disable")
    disabled = McpDisabled(server="thoughtbox", reason="switched off", newly=True)
    by_policy = played("look", connects={"thoughtbox": [failed, disabled]})
    unasked = played("look", connects={"thoughtbox": [disabled]})
    retry = ConnectFailed(server="thoughtbox", attempt=1, failure=refused_connection(), then="retry")
    after_success = noted(retry, opened(attempt=2), disabled)
    assert only(by_policy, "mcp_disabled")[1] == (
        "MCP session connect failed, disabling MCP for episode: Connection refused"
    )
    assert only(unasked, "mcp_disabled")[1] == "MCP disabled for episode: switched off"
    assert only(after_success, "mcp_disabled")[1] == "MCP disabled for episode: switched off"
    for_a_time = played("look", connects={"thoughtbox": [replace(disabled, retry_s=30.0)]})
    assert only(for_a_time, "mcp_disabled")[1] == "MCP disabled for 30 s: switched off"


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_the_turn_goes_on_without_tools_only_when_no_server_is_left(order: tuple[str, str]) -> None:
    gone = {server: [McpDisabled(server=server, reason="r", newly=True)] for server in ("a", "b")}
    one_left = {**gone, "b": [opened("b")]}
    assert not named(played("look", run=run_turn(1, *order), connects=one_left), "mcp_disabled_fallback")
    assert len(named(played("look", run=run_turn(1, *order), connects=gone), "mcp_disabled_fallback")) == 1


def test_a_reconnect_that_fails_goes_on_without_tools_in_the_same_turn() -> None:
    policy = FailurePolicy(after_death="reconnect")
    tape = Tape()
    tape.say(run_turn(2, policy=policy), opened(), turn=2)
    tape.say(McpDisabled(server="thoughtbox", reason="r", newly=True), turn=2)
    assert [event.event_type for event in events_of(tape)] == ["mcp_disabled", "mcp_disabled_fallback"]


def test_a_failed_start_is_told_once() -> None:
    failure = refused_connection("no such command")
    connects = {
        "thoughtbox": [
            ConnectFailed(server="thoughtbox", attempt=1, failure=failure, then="raise"),
            StartupFailed(server="thoughtbox", failure=failure),
        ]
    }
    assert [event.event_type for event in played(connects=connects)] == ["turn_failed"]


def test_what_the_host_and_the_runtime_tell_outside_turns() -> None:
    failure = LlmFailure(kind="unavailable", endpoint="e", model="m", message="busy")
    events = noted(
        McpInitialized(server="a", ignored=("b", "c"), warnings=("grue does not use the key 'x'.",)),
        McpInitFailed(error="no file"),
        ServerNoted(server="a", kind="bad_tool", text="no name"),
        ServerNoted(server="a", kind="bad_tool", text=f"tools.include has 'x'{UNLISTED}"),
        ServerNoted(server="a", kind="noise", text="starting"),
        CompletionRetried(request=1, attempt=1, delay_s=1.25, failure=failure),
        ActorFailed(actor="llm", error="KeyError: 'x'", where=("llm.py:1 run",)),
        EpisodeEnded(reason="won", detail="the grue sleeps", turns=9, score=100, max_score=100),
        EpisodeEnded(reason="failed", detail="no credit", turns=2),
    )
    assert [(event.level, event.turn, event.message) for event in events] == [
        ("info", 0, "MCP Manager initialized"),
        ("warning", 0, "Only the first MCP server is used, 'a'; ignored: b, c"),
        ("warning", 0, "grue does not use the key 'x'."),
        ("error", 0, "Failed to initialize MCP Manager: no file"),
        ("warning", 0, "MCP server 'a' lists a tool that cannot be used: no name"),
        ("warning", 0, "MCP server 'a': tools.include has 'x', and the server lists no such tool"),
        ("warning", 0, "LLM request failed, trying again in 1.2s: busy"),
        ("error", 0, "Actor 'llm' crashed: KeyError: 'x'"),
        ("info", 9, "Episode ended (won, score 100 of 100): the grue sleeps"),
        ("error", 2, "Episode ended (failed): no credit"),
    ]
    assert events[0].event_type == "mcp_manager_init"
    assert events[3].fields == {"error": "no file"}


def test_untrusted_text_cannot_forge_a_second_line() -> None:
    (event,) = noted(McpInitFailed(error="x\n[INFO] Turn 9: all is well\x1b[2J"))
    assert event.message.isprintable()
    assert event.fields["error"] == "x\n[INFO] Turn 9: all is well\x1b[2J"


def test_a_settlement_of_an_unknown_call_is_named_by_its_id() -> None:
    (event,) = noted(ToolReturned(batch=1, call_id="call_x", result=ToolCallResult("ok")), turn=1)
    assert event.fields["tool_name"] == "call_x"


CALLS = st.lists(
    st.builds(
        Called,
        st.sampled_from(["a.think", "b.think", "c.think", "bare"]),
        st.sampled_from(["{}", "[]", ""]),
        st.sampled_from(["ok", "ok", "error", "timeout", "died"]),
        content=st.sampled_from([None, "text", {"a": 1}]),
        took_s=st.just(0.25),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=examples(200))
@given(
    st.lists(CALLS, max_size=4),
    st.sampled_from(["skip", "continue", "force"]),
    st.integers(1, 4),
)
def test_p21_one_failure_event_for_each_error_in_the_conversation(
    rounds: list[list[Called]], after_timeout: Any, most: int
) -> None:
    run = run_turn(
        1,
        "a",
        "b",
        policy=FailurePolicy(after_timeout=after_timeout),
        limits=TurnLimits(max_tool_iterations=most),
    )
    tape = Tape()
    # Enough final texts for every way in which the rounds can be cut off; the last ones are never asked for.
    end = Play(tape, run, [*rounds, "look", "look"]).end
    events = events_of(tape)
    failures = [event for event in events if event.event_type in FAILURE_EVENTS]
    failed = [record for record in end.tool_calls if record.result.is_error]
    assert sorted(event.fields["tool_name"] for event in failures) == sorted(record.name for record in failed)
    sent = [record for record in end.tool_calls if record.settlement in {"returned", "timed_out", "died"}]
    assert len(named(events, "mcp_tool_call")) == len(sent)
    returned = [record for record in sent if record.settlement == "returned"]
    assert len(named(events, "mcp_tool_result")) == len(returned)
    complete = only(events, "mcp_session_complete")[2]
    assert (complete["iterations"], complete["tool_calls_count"]) == (end.iterations, len(sent))


def test_turns_that_overlap_have_the_events_that_each_has_alone() -> None:
    one, other = Tape(), Tape()
    Play(one, run_turn(1), [[Called("thoughtbox.think")], [Called("thoughtbox.think")], "look"])
    batch = [Called("clear.think", outcome="timeout", took_s=30.0), Called("clear.think")]
    Play(other, run_turn(2, "clear"), [batch, "wait"])
    feed = EventFeed("ep-1")
    pairs = zip_longest(one.envelopes, other.envelopes)
    mixed = [event for pair in pairs for envelope in pair if envelope for event in feed.feed(envelope)]
    assert [event for event in mixed if event.turn == 1] == events_of(one)
    assert [event for event in mixed if event.turn == 2] == events_of(other)
