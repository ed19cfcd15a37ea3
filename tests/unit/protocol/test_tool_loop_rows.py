"""One test for each row of the requirements' tables that the turn machine decides."""

import json
from typing import Any

import pytest
from case_tables import each_case
from msgspec.structs import replace
from turns import (
    ACCEPTED,
    ANSWER,
    DEADLINE,
    FALLBACK,
    INTERRUPT,
    REFUSED,
    Walk,
    call,
    calls,
    changed,
    closed,
    died,
    disabled,
    empty,
    llm_failed,
    names,
    opened,
    returned,
    run,
    skipped,
    startup_failed,
    text,
    timed_out,
    tool,
)

from grue.messages import (
    FINAL_REQUEST,
    CallTools,
    CheckAnswer,
    CloseSession,
    CompletionReceived,
    DeadlineMissed,
    FinalForced,
    Interrupted,
    IterationStarted,
    NoAnswer,
    OfferTools,
    OpenSession,
    RequestCompletion,
    RequireAnswer,
    ServerName,
    ServerNoted,
    SessionOpened,
    SystemText,
    ToolCallResult,
    ToolDefinition,
    ToolMessage,
    ToolRejected,
    ToolSkipped,
    TurnCompleted,
    TurnFailed,
    Usage,
    UserText,
)
from grue.policies import TurnLimits
from grue.protocol.tools.results import SKIPPED_AFTER_DEATH, SKIPPED_AFTER_TIMEOUT, SKIPPED_TOO_LATE

ONE_ROUND = TurnLimits(max_tool_iterations=1)
OPEN = (run("a"), opened("a"))


def told(request: RequestCompletion) -> dict[str, Any]:
    """What a request says of each tool call, in order."""
    return {item.call_id: json.loads(item.content) for item in request.new if isinstance(item, ToolMessage)}


def last_request(walk: Walk) -> RequestCompletion:
    return walk.of(RequestCompletion)[-1]


def listing(server: str, *tools: ToolDefinition) -> SessionOpened:
    return SessionOpened(server=ServerName(server), tools=tools)


def is_final(request: RequestCompletion) -> bool:
    return request.mode == RequireAnswer(ANSWER)


# --- Sessions ---


def test_of_two_tools_with_one_name_the_first_servers_counts_and_the_other_is_told() -> None:
    """A manager may list a tool under another server's name."""
    double = replace(tool("b.anything"), full_name="a.look")
    for events in ((opened("a"), listing("b", double)), (listing("b", double), opened("a"))):
        walk = Walk(run("a", "b"), *events)
        (mode,) = [request.mode for request in walk.of(RequestCompletion)]
        assert mode == OfferTools((tool("a.look"), tool("a.think")))
        (note,) = walk.of(ServerNoted)
        assert (note.server, note.kind) == ("b", "bad_tool")
        assert note.text == "a.look: left out, because the server 'a' lists that name too"
        walk.send(calls("a.look"))
        assert [batch.server for batch in walk.of(CallTools)] == ["a"]


def test_a_turn_opens_each_server_and_then_offers_what_they_listed() -> None:
    walk = Walk(run("a", "b"), opened("b", "go"), opened("a", "look"))
    assert walk.of(OpenSession) == [
        OpenSession(server="a", turn=7, timeout_s=10.0),
        OpenSession(server="b", turn=7, timeout_s=10.0),
    ]
    request = last_request(walk)
    assert request.mode == OfferTools((tool("a.look"), tool("b.go")))
    assert request.new == (SystemText("You play."), UserText("You are in a house."))


def test_the_first_connect_failing_ends_the_turn_with_its_cause_r6_1() -> None:
    walk = Walk(run("a", "b"), opened("b"), startup_failed("a"))
    assert walk.last == (CloseSession(server="b"),)
    walk.send(closed("b"))
    assert walk.end == TurnFailed(turn=7, failure=startup_failed("a").failure)


def test_a_startup_failure_closes_what_may_still_open() -> None:
    walk = Walk(run("a", "b"), startup_failed("a"))
    assert walk.last == (CloseSession(server="b"),)
    assert walk.send(opened("b")).last == (), "it opens too late"
    assert isinstance(walk.send(closed("b")).end, TurnFailed)


def test_a_disabled_server_leaves_one_request_without_tools_p48() -> None:
    walk = Walk(run("a"), disabled("a"), text("north"), ACCEPTED)
    assert [is_final(request) for request in walk.of(RequestCompletion)] == [True]
    assert walk.of(IterationStarted, FinalForced, CloseSession) == []
    assert walk.end.kind == "degraded"
    assert walk.end.reason == "no tools from 'a': it ended"


def test_a_disabled_server_among_others_degrades_the_turn_but_not_its_tools() -> None:
    walk = Walk(run("a", "b"), disabled("a"), opened("b", "go"))
    assert last_request(walk).mode == OfferTools((tool("b.go"),))
    walk.send(text("north"), ACCEPTED, closed("b"))
    assert walk.end.kind == "degraded"


@pytest.mark.parametrize("events", [(run(),), (run("a"), empty("a"))], ids=["MCP off", "empty listing"])
def test_no_tools_offered_means_one_request_with_response_format_r15_5(events: tuple[Any, ...]) -> None:
    walk = Walk(*events, text("north"), ACCEPTED)
    assert [is_final(request) for request in walk.of(RequestCompletion)] == [True]
    assert walk.of(IterationStarted) == []
    assert names(walk.last)[-1] == ("TurnCompleted" if len(events) == 1 else "CloseSession")


def test_an_empty_listing_is_not_degraded() -> None:
    assert Walk(run("a"), empty("a"), text("north"), ACCEPTED, closed("a")).end.kind == "answered"


def test_no_iterations_allowed_means_no_session_either() -> None:
    walk = Walk(run("a", limits=TurnLimits(max_tool_iterations=0)))
    assert walk.of(OpenSession) == []
    assert is_final(last_request(walk))


# --- Tool calls ---


def test_p17_p19_a_batch_is_one_command_and_one_request_with_all_results_in_call_order() -> None:
    walk = Walk(*OPEN, calls("a.think", "a.look", "a.think"))
    (batch,) = walk.of(CallTools)
    assert [item.call_id for item in batch.calls] == ["c1", "c2", "c3"]
    assert (batch.timeout_s, batch.after_timeout) == (30.0, "skip")
    walk.send(returned(1, content=1), returned(2, content=2))
    assert len(walk.of(RequestCompletion)) == 1
    walk.send(returned(3, content=3))
    assert told(last_request(walk)) == {f"c{number}": {"content": number} for number in (1, 2, 3)}
    assert last_request(walk).mode == OfferTools(None), "the listing is not repeated"


def test_runs_of_several_servers_go_out_one_after_the_other() -> None:
    walk = Walk(run("a", "b"), opened("a"), opened("b"), calls("a.look", "a.think", "b.look", "a.look"))
    walk.send(returned(1), returned(2), returned(3, batch=2), returned(4, batch=3))
    sent = [(item.server, [call.call_id for call in item.calls]) for item in walk.of(CallTools)]
    assert sent == [("a", ["c1", "c2"]), ("b", ["c3"]), ("a", ["c4"])]
    assert list(told(last_request(walk))) == ["c1", "c2", "c3", "c4"]


def test_r6_4_a_tool_error_is_told_to_the_model_and_the_batch_goes_on() -> None:
    error = returned(1)
    error = type(error)(batch=1, call_id="c1", result=ToolCallResult(None, True, "no such door"))
    walk = Walk(*OPEN, calls("a.think", "a.look"), error, returned(2))
    assert told(last_request(walk)) == {
        "c1": {"error": "no such door", "content": None},
        "c2": {"content": "ok"},
    }
    assert isinstance(last_request(walk).mode, OfferTools)


def test_r6_4_unknown_tools_and_unreadable_arguments_are_answered_without_a_server() -> None:
    reply = CompletionReceived(
        request=1,
        tool_calls=(
            call(1, "a.dance"),
            call(2, "a.look", "{broken"),
            call(3, "a.look", "[1]"),
            call(4, "a.look", ""),
        ),
    )
    walk = Walk(*OPEN, reply)
    assert [note.call_id for note in walk.of(ToolRejected)] == ["c1", "c2", "c3"]
    (batch,) = walk.of(CallTools)
    assert [(item.call_id, item.arguments) for item in batch.calls] == [("c4", {})]
    results = told(last_request(walk.send(returned(4))))
    assert list(results) == ["c1", "c2", "c3", "c4"]
    assert results["c1"]["error"].startswith("Unknown MCP tool: a.dance")
    assert results["c2"]["error"].startswith("Tool call failed: the arguments are not valid JSON")
    assert "must be a JSON object" in results["c3"]["error"]


def test_a_reply_of_nothing_but_rejected_calls_goes_straight_back_and_uses_up_its_batch_number() -> None:
    walk = Walk(*OPEN, calls("a.dance"), calls("a.dance", first=2), calls("a.look", first=3))
    assert [note.batch for note in walk.of(ToolRejected)] == [1, 2]
    assert [batch.batch for batch in walk.of(CallTools)] == [3]
    assert len(walk.of(RequestCompletion)) == 3


@pytest.mark.parametrize("policy", ["skip", "force"])
def test_p24_p25_a_timeout_skips_the_rest_of_its_batch_in_all_runs(policy: str) -> None:
    walk = Walk(run("a", "b", after_timeout=policy), opened("a"), opened("b"))
    walk.send(calls("a.think", "a.look", "b.look"), timed_out(1), skipped(2, reason=SKIPPED_AFTER_TIMEOUT))
    assert [batch.after_timeout for batch in walk.of(CallTools)] == ["skip"]
    assert walk.of(ToolSkipped) == [ToolSkipped(batch=1, call_id="c3", reason=SKIPPED_AFTER_TIMEOUT)]
    results = told(last_request(walk))
    assert results["c1"] == {"error": "Tool call timed out after 30s", "content": None}
    assert results["c2"]["error"] == results["c3"]["error"] == SKIPPED_AFTER_TIMEOUT


def test_r6_6_after_a_timeout_the_model_decides_what_next() -> None:
    walk = Walk(*OPEN, calls("a.think"), timed_out(1))
    assert last_request(walk).mode == OfferTools(None)
    assert walk.of(FinalForced) == []
    walk.send(calls("a.look", first=2), returned(2, batch=2), text("north"), ACCEPTED, closed("a"))
    assert walk.end.kind == "answered"


def test_after_a_timeout_the_policy_may_force_the_final_answer() -> None:
    walk = Walk(run("a", after_timeout="force"), opened("a"), calls("a.think"), timed_out(1))
    assert walk.of(FinalForced) == [FinalForced(reason="tool_timeout", iterations=1)]
    assert is_final(last_request(walk))
    assert walk.send(text("north"), ACCEPTED, closed("a")).end.kind == "forced"


def test_after_a_timeout_the_policy_may_go_on_with_the_batch() -> None:
    walk = Walk(run("a", "b", after_timeout="continue"), opened("a"), opened("b"))
    walk.send(calls("a.think", "a.look", "b.look"), timed_out(1), returned(2), returned(3, batch=2))
    assert [batch.after_timeout for batch in walk.of(CallTools)] == ["continue", "continue"]
    assert walk.of(ToolSkipped) == []
    assert told(last_request(walk))["c3"] == {"content": "ok"}
    assert isinstance(last_request(walk).mode, OfferTools)


def test_a_death_skips_the_rest_and_forces_the_final_answer() -> None:
    walk = Walk(run("a", "b"), opened("a"), opened("b"), calls("a.think", "a.look", "b.look"))
    walk.send(died(1), skipped(2, reason=SKIPPED_AFTER_DEATH))
    assert walk.of(FinalForced) == [FinalForced(reason="server_died", iterations=1)]
    results = told(last_request(walk))
    assert results["c1"]["error"] == "Tool call failed: it ended"
    assert results["c2"]["error"] == results["c3"]["error"] == SKIPPED_AFTER_DEATH
    # Another text would make replays of older traces differ.
    assert SKIPPED_AFTER_DEATH == "Skipped: the tool server is no longer running"
    assert is_final(last_request(walk))
    assert last_request(walk).new[-1] == UserText(FINAL_REQUEST)
    assert walk.send(text("north"), ACCEPTED, closed("a"), closed("b")).end.kind == "forced"


def test_the_hosts_own_words_ask_for_the_final_answer_and_for_a_repair() -> None:
    own = {"final_request": "Decide.", "repair_request": "Bad {0}: {reason}. {reason}!"}
    walk = Walk(replace(run("a"), **own), opened("a"), calls("a.think"))
    walk.send(died(1))
    assert last_request(walk).new[-1] == UserText("Decide.")
    walk.send(text("???"), replace(REFUSED, reason="no {reason}"))
    assert last_request(walk).new[-1] == UserText("Bad {0}: no {reason}. no {reason}!")


def test_a_death_after_a_timeout_that_the_policy_passes_over_is_a_death() -> None:
    walk = Walk(run("a", after_timeout="continue"), opened("a"), calls("a.think", "a.look"))
    walk.send(timed_out(1), died(2))
    assert walk.of(FinalForced) == [FinalForced(reason="server_died", iterations=1)]


# --- Reconnecting ---

DEATH = (run("a", "b", after_death="reconnect"), opened("a"), opened("b"), calls("a.think"), died(1))


def test_a_reconnect_closes_opens_and_goes_on_with_the_new_listing() -> None:
    walk = Walk(*DEATH)
    assert walk.last == (CloseSession(server="a"),)
    assert names(walk.send(closed("a")).last) == ("OpenSession",)
    walk.send(opened("a", "sit"))
    assert last_request(walk).mode == OfferTools((tool("a.sit"), tool("b.look"), tool("b.think")))
    assert list(told(last_request(walk))) == ["c1"]
    walk.send(text("north"), ACCEPTED)
    assert sorted(item.server for item in walk.last) == ["a", "b"]
    assert walk.send(closed("a"), closed("b")).end.kind == "answered"


def test_a_reconnect_that_fails_goes_on_with_the_other_servers() -> None:
    walk = Walk(*DEATH, closed("a"), disabled("a"))
    assert last_request(walk).mode == OfferTools((tool("b.look"), tool("b.think")))
    walk.send(text("north"), ACCEPTED)
    assert walk.last == (CloseSession(server="b"),)
    assert walk.send(closed("b")).end.kind == "degraded"


@pytest.mark.parametrize("outcome", [disabled("a"), empty("a")], ids=["fails", "lists nothing"])
def test_a_reconnect_that_leaves_no_tools_forces_the_final_answer(outcome: Any) -> None:
    walk = Walk(
        run("a", after_death="reconnect"), opened("a"), calls("a.think"), died(1), closed("a"), outcome
    )
    assert walk.of(FinalForced) == [FinalForced(reason="server_died", iterations=1)]
    assert is_final(last_request(walk))
    walk.send(text("north"), ACCEPTED, *([closed("a")] if outcome == empty("a") else []))
    assert walk.end.kind == "forced"


def test_a_second_death_in_a_turn_is_not_reconnected() -> None:
    walk = Walk(*DEATH, closed("a"), opened("a"), calls("a.think", first=2), died(2, batch=2))
    assert walk.of(FinalForced) == [FinalForced(reason="server_died", iterations=2)]


def test_a_death_in_the_last_iteration_is_not_reconnected() -> None:
    walk = Walk(run("a", after_death="reconnect", limits=ONE_ROUND), opened("a"), calls("a.think"), died(1))
    assert walk.of(CloseSession) == []
    assert walk.of(FinalForced) == [FinalForced(reason="server_died", iterations=1)]


# --- The final answer ---


def test_r5_7_the_last_iteration_forces_the_final_answer() -> None:
    walk = Walk(run("a", limits=TurnLimits(max_tool_iterations=2)), opened("a"))
    walk.send(calls("a.think"), returned(1), calls("a.think", first=2), returned(2, batch=2))
    assert walk.of(IterationStarted) == [
        IterationStarted(iteration=1, max_iterations=2),
        IterationStarted(iteration=2, max_iterations=2),
    ]
    assert walk.of(FinalForced) == [FinalForced(reason="max_iterations", iterations=2)]
    words = "Please provide your final action now without calling any more tools."
    assert last_request(walk).new[-1] == UserText(words) == UserText(FINAL_REQUEST)
    assert is_final(last_request(walk))
    walk.send(text("north"), ACCEPTED, closed("a"))
    assert (walk.end.kind, walk.end.reason, walk.end.iterations) == ("forced", "max_iterations", 2)


@pytest.mark.parametrize("nothing", [None, "", " \n"])
def test_r5_10_neither_content_nor_calls_warns_and_forces(nothing: str | None) -> None:
    walk = Walk(*OPEN, text(nothing))
    assert names(walk.last) == ("ReplyUnusable", "FinalForced", "RequestCompletion")
    assert is_final(last_request(walk))


def test_p20_content_without_calls_is_the_final_answer() -> None:
    walk = Walk(*OPEN, text("north"))
    assert walk.last == (CheckAnswer(content="north"),)
    walk.send(ACCEPTED, closed("a"))
    assert walk.end == TurnCompleted(
        turn=7,
        kind="answered",
        answer={"action": "go north"},
        raw_response="north",
        requests=1,
        usage=Usage(input_tokens=3, output_tokens=2),
    )


def test_content_beside_calls_is_not_an_answer() -> None:
    walk = Walk(*OPEN, calls("a.think", content="I think"))
    assert walk.of(CheckAnswer) == []


FORCED = (run("a", limits=ONE_ROUND), opened("a"), calls("a.think"), returned(1))


def test_an_empty_forced_final_is_repaired_once_then_falls_back() -> None:
    walk = Walk(*FORCED, text(""))
    assert names(walk.last) == ("RepairRequested", "RequestCompletion")
    assert is_final(last_request(walk))
    walk.send(text(None))
    assert names(walk.last) == ("FellBack", "CloseSession")
    walk.send(closed("a"))
    assert (walk.end.kind, walk.end.answer, walk.end.requests) == ("fallback", FALLBACK, 3)
    assert walk.end.reason == "the reply was empty"


def test_a_forced_final_that_calls_tools_is_answered_but_never_executed() -> None:
    walk = Walk(*FORCED, calls("a.think", first=2), calls("a.think", first=3, content="let me"))
    assert len(walk.of(CallTools)) == 1
    assert told(last_request(walk)) == {"c2": {"error": SKIPPED_TOO_LATE, "content": None}}
    walk.send(closed("a"))
    assert walk.end.kind == "fallback"
    assert [item.settlement for item in walk.end.tool_calls] == ["returned", "skipped", "skipped"]
    assert len({note.batch for note in walk.of(ToolSkipped)}) == 2


def test_r15_3_a_refused_answer_is_repaired_once() -> None:
    walk = Walk(*OPEN, text("I go north"), REFUSED)
    assert is_final(last_request(walk))
    (told_why,) = last_request(walk).new
    assert REFUSED.reason in told_why.text
    walk.send(text('{"action": "north"}'), ACCEPTED, closed("a"))
    assert (walk.end.kind, walk.end.raw_response) == ("answered", '{"action": "north"}')


def test_r15_3_a_refused_repair_falls_back_and_says_so() -> None:
    walk = Walk(*OPEN, text("I go north"), REFUSED, text("north!"), REFUSED, closed("a"))
    assert (walk.end.kind, walk.end.answer, walk.end.raw_response) == ("fallback", FALLBACK, "north!")
    assert walk.end.reason == REFUSED.reason


def test_without_a_fallback_a_refused_repair_fails_the_turn() -> None:
    walk = Walk(
        run("a", fallback=None), opened("a"), text("north"), REFUSED, text("north!"), REFUSED, closed("a")
    )
    assert walk.end.failure == NoAnswer(reason=REFUSED.reason, raw="north!")


def test_the_llm_failing_for_good_fails_the_turn_with_its_cause() -> None:
    walk = Walk(*OPEN, calls("a.think"), returned(1), llm_failed(), closed("a"))
    assert walk.end.failure == llm_failed().failure
    assert [item.call_id for item in walk.end.tool_calls] == ["c1"]


def test_kinds_take_precedence_fallback_forced_degraded_answered() -> None:
    both = (run("a", "b", limits=ONE_ROUND), disabled("a"), opened("b"), calls("b.look"), returned(1))
    forced = Walk(*both, text("north"), ACCEPTED, closed("b")).end
    assert (forced.kind, forced.reason) == ("forced", "max_iterations")
    fallback = Walk(*both, text("north"), REFUSED, text("north"), REFUSED, closed("b")).end
    assert fallback.kind == "fallback"


def test_usage_is_summed_over_the_requests() -> None:
    walk = Walk(*OPEN, calls("a.think"), returned(1), text("north"), ACCEPTED, closed("a"))
    assert walk.end.usage == Usage(input_tokens=6, output_tokens=4)


# --- Deadline and interruption ---

LIVE = {
    "starting a": (run("a"),),
    "asking whether the model takes tools": (run("a", support_check="beside"), opened("a")),
    "waiting for the model (request 1)": OPEN,
    "waiting for a.look": (*OPEN, calls("a.think", "a.look"), returned(1)),
    "restarting a": (run("a", after_death="reconnect"), opened("a"), calls("a.think"), died(1)),
    "checking the answer": (*OPEN, text("north")),
}


@each_case("doing", LIVE)
@each_case("event", [DEADLINE, INTERRUPT])
def test_a_deadline_or_an_interruption_ends_the_turn_in_every_live_state(doing: str, event: Any) -> None:
    walk = Walk(*LIVE[doing], event)
    assert walk.of(CloseSession) == [CloseSession(server="a")], "asked once, also where it was asked before"
    walk.send(closed("a"))
    assert isinstance(walk.end, TurnFailed)
    if event == DEADLINE:
        assert walk.end.failure == DeadlineMissed(limit_s=5.0, doing=doing)
    else:
        assert walk.end.failure == Interrupted(reason="cancelled")


def test_an_interrupted_batch_keeps_what_was_settled() -> None:
    walk = Walk(*OPEN, calls("a.think", "a.look"), returned(1), DEADLINE, closed("a"))
    assert [item.call_id for item in walk.end.tool_calls] == ["c1"]


def test_what_comes_after_the_end_is_decided_is_ignored() -> None:
    walk = Walk(*OPEN, calls("a.think", "a.look"), returned(1), DEADLINE)
    walk.send(returned(2), text("north"), INTERRUPT, closed("a"))
    assert walk.end.failure == DeadlineMissed(limit_s=5.0, doing="waiting for a.look")


def test_a_session_may_say_twice_that_it_is_closed() -> None:
    walk = Walk(run("a", "b"), opened("a"), opened("b"), INTERRUPT, closed("a"), closed("a"))
    assert walk.of(TurnFailed) == []
    assert isinstance(walk.send(closed("b")).end, TurnFailed)


def test_tools_that_changed_during_a_batch_are_offered_with_the_next_request() -> None:
    walk = Walk(*OPEN, calls("a.think"), changed("a", "think", "added"), returned(1))
    mode = last_request(walk).mode
    assert isinstance(mode, OfferTools)
    assert mode.tools is not None
    assert [tool.name for tool in mode.tools] == ["a.think", "a.added"]
    walk.send(calls("a.added", first=2), returned(2, batch=2))
    assert last_request(walk).mode == OfferTools(None), "only once"


def test_a_server_that_took_its_last_tool_away_gets_no_empty_offer() -> None:
    walk = Walk(*OPEN, calls("a.think"), changed("a"), returned(1))
    assert isinstance(last_request(walk).mode, RequireAnswer)
