"""The diff of two traces: what does not count, what differs, in what order it is told."""

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from episode_scenes import place_of, scene
from episode_scenes import with_fields as changed
from msgspec.structs import replace
from turns import run as turn_of

from grue import FunctionTools, Runner, ToolPolicy, ToolRule, TurnRequest
from grue.errors import ApprovalPending, LLMError
from grue.hosts.skill_agent.facts import McpToolCallCompleted, RunStarted
from grue.hosts.zork.facts import EpisodeEnded, EpisodeStarted, McpInitialized, Observed, Remembered
from grue.messages import (
    AnyMessage,
    CallTools,
    CompletionReceived,
    ConversationId,
    CostUncounted,
    HistoryReference,
    OfferTools,
    RequestCompletion,
    RunTurn,
    ServerNoted,
    SessionClosed,
    SessionOpened,
    SettingsLeftOut,
    TextDelta,
    ToolCalled,
    ToolCallResult,
    ToolReturned,
    ToolsUnseen,
    TurnCompleted,
    TurnForked,
    TurnParked,
    UserText,
)
from grue.runtime.actor import ActorFailed
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.recorder import Recorder
from grue.testing.llm_replies import error_reply
from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tracing.diff import IDS, IGNORED, diff, render
from grue.tracing.divergence import ABSENT, Comparison, Difference
from grue.tracing.facts import EpisodeResumed
from grue.tracing.reading import EpisodeEnvelope, read_episode


@pytest.mark.parametrize("name", ["tools", "timeout", "death-reconnect", "disabled"])
def test_two_runs_of_the_same_do_not_differ(name: str, tmp_path: Path) -> None:
    assert list(diff(scene(name, tmp_path, 1), scene(name, tmp_path, 2))) == []


@pytest.mark.slow
def test_two_conversations_that_were_parked_do_not_differ_in_ids_files_and_times(tmp_path: Path) -> None:
    """A provider gives each call an id of its own, so the digest of a conversation is another one, too."""
    policy = ToolPolicy(rules=(ToolRule(verdict="ask"),), parking=True, park_for_s=1000)
    for name in ("a", "b"):
        script = [tool_calls_reply(("box.look", {}), ids=[f"call-{name}"]), text_reply("Dust."), "Still."]
        with ScriptedLlmServer(script) as model:
            how: dict[str, Any] = {"llm": model.settings, "tool_policy": policy}
            how["servers"] = {"box": FunctionTools({"look": lambda: "dust"})}
            with (
                Runner(trace=tmp_path / f"{name}.jsonl", **how) as runner,
                runner.conversation("Look.", path=tmp_path / f"{name}.talk") as talk,
            ):
                with pytest.raises(ApprovalPending):
                    talk.ask("What is in it?")
                talk.resume([question.approve() for question in talk.questions])
                talk.ask("And now?")
    left, right = (list(read_episode(tmp_path / f"{name}.jsonl").envelopes) for name in ("a", "b"))
    assert list(diff(left, right)) == []
    longer = changed(left, place_of(left, TurnParked), requests=2)
    assert [each.path for each in next(diff(longer, right)).differences] == ["$.requests"]


def test_a_history_that_the_traces_do_not_hold_differs_by_its_digest(tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        trace = tmp_path / f"{name}.jsonl"
        with ScriptedLlmServer(["Yes."]) as model, Runner(llm=model.settings, trace=trace) as runner:
            runner.run_turn(TurnRequest("Still?", history=[UserText(f"I like {name}.")]))
    left, right = (list(read_episode(tmp_path / f"{name}.jsonl").envelopes) for name in ("cats", "dogs"))
    assert [each.path for each in next(diff(left, right)).differences] == ["$.history.digest"]


def test_the_address_of_a_model_that_fails_is_not_compared(tmp_path: Path) -> None:
    for name in ("one", "two"):  # each endpoint has a port of its own
        script = [error_reply(500, "Busy."), error_reply(401, "No key.")]
        trace = tmp_path / f"{name}.jsonl"
        with (
            ScriptedLlmServer(script) as model,
            Runner(llm=model.settings, trace=trace) as runner,
            pytest.raises(LLMError),
        ):
            runner.run_turn(TurnRequest("Still?"))
    left, right = (list(read_episode(tmp_path / f"{name}.jsonl").envelopes) for name in ("one", "two"))
    assert list(diff(left, right)) == []


@pytest.mark.slow
def test_branches_and_forks_do_not_differ_in_the_ids_of_calls_before_them(tmp_path: Path) -> None:
    eyes = FunctionTools({"look": lambda: "A house."})
    for take in ("one", "two"):
        script = [tool_calls_reply(("look", {}), ids=[f"call_{take}"]), "A house.", "Yes.", "Yes."]
        trace = tmp_path / f"{take}.jsonl"
        with ScriptedLlmServer(script) as model:
            with Runner(servers={"eyes": eyes}, llm=model.settings, trace=trace) as runner:
                talk = runner.conversation("Be brief.")
                talk.ask("What is there?")
                talk.branch().ask("Sure?")
            with Runner(
                servers={"eyes": eyes}, llm=model.settings, trace=tmp_path / f"fork-{take}.jsonl"
            ) as runner:
                runner.fork(trace, turn=2)
    for one, two in (("one.jsonl", "two.jsonl"), ("fork-one.jsonl", "fork-two.jsonl")):
        left, right = (list(read_episode(tmp_path / name).envelopes) for name in (one, two))
        assert list(diff(left, right)) == []


def test_a_fork_is_compared_without_what_it_has_not_the_hosts_facts_and_the_boxes(tmp_path: Path) -> None:
    eyes = {"eyes": FunctionTools({"look": lambda: "A house."})}
    script = [tool_calls_reply(("look", {}), ids=["c1"]), "A house."]
    recorder = Recorder()
    recorder.add(writer := TraceWriter(tmp_path / "recorded.jsonl", episode="a"))
    with ScriptedLlmServer(script) as model:
        recorder.record(McpInitialized(server="eyes"), sender="host")
        recorder.record(Remembered(turn=1, location="garden", text="Dark."), sender="host")
        Runner(servers=eyes, llm=model.settings, recorder=recorder).run_turn("What is there?")
        recorder.record(Observed(turn=1, text="A house."), sender="host")
    writer.close()
    with (
        ScriptedLlmServer(script) as model,
        Runner(servers=eyes, llm=model.settings, trace=tmp_path / "fork.jsonl") as runner,
    ):
        runner.fork(tmp_path / "recorded.jsonl")
    left, right = (list(read_episode(tmp_path / f"{name}.jsonl").envelopes) for name in ("recorded", "fork"))
    assert list(diff(left, right)) == list(diff(right, left)) == []
    place = place_of(left, SessionOpened)
    assert list(diff(changed(left, place, pid=7, box="reads /srv"), right)) == []
    with_process = changed(right, place_of(right, SessionOpened), pid=8)
    (found,) = diff(changed(left, place, pid=7, box="reads /srv"), with_process)
    assert [each.path for each in found.differences] == ["$.box"]


def test_of_two_runs_the_boxes_are_compared_also_if_no_server_is_a_process(tmp_path: Path) -> None:
    eyes = {"eyes": FunctionTools({"look": lambda: "A house."})}
    with (
        ScriptedLlmServer([tool_calls_reply(("look", {})), "A house."]) as model,
        Runner(servers=eyes, llm=model.settings, trace=tmp_path / "a.jsonl") as runner,
    ):
        runner.run_turn("What is there?")
    left = list(read_episode(tmp_path / "a.jsonl").envelopes)
    for changes in ({"box": "reads /srv"}, {"box": "reads /srv", "pid": 7}):
        (found,) = diff(changed(left, place_of(left, SessionOpened), **changes), left)
        assert "$.box" in [each.path for each in found.differences]


def test_a_field_that_an_older_trace_lacks_counts_as_its_default(tmp_path: Path) -> None:
    eyes = {"eyes": FunctionTools({"look": lambda: "A house."})}
    new, old = tmp_path / "new.jsonl", tmp_path / "old.jsonl"
    with ScriptedLlmServer(["A house."]) as model:
        Runner(servers=eyes, llm=model.settings, trace=new).run_turn("What is there?")
    lines = [json.loads(line) for line in new.read_text().splitlines()]
    lacking = [line["body"].pop("serves_unlisted") for line in lines if "SessionOpened" in str(line)]
    assert lacking == [False]
    old.write_text("".join(json.dumps(line) + "\n" for line in lines))
    left, right = (list(read_episode(path).envelopes) for path in (old, new))
    assert list(diff(left, right)) == []
    (found,) = diff(left, changed(right, place_of(right, SessionOpened), serves_unlisted=True))
    assert [(each.path, each.left) for each in found.differences] == [("$.serves_unlisted", False)]


def test_two_runs_that_crash_in_the_same_place_do_not_differ_up_to_there(tmp_path: Path) -> None:
    # Afterwards all actors are cancelled at once, and clean up in no fixed order.
    left, right = (scene("model-crash", tmp_path, take) for take in (1, 2))
    crashed = [place_of(trace, ActorFailed) + 1 for trace in (left, right)]
    assert crashed[0] > 10
    assert list(diff(left[: crashed[0]], right[: crashed[1]])) == []


def test_a_changed_field_is_told_with_its_path_both_sides_and_causes(tmp_path: Path) -> None:
    left = scene("tools", tmp_path)
    place = place_of(left, CallTools)
    calls = left[place].body.calls  # type: ignore[union-attr]
    right = changed(left, place, calls=(replace(calls[0], arguments={"a key": 1}), *calls[1:]))
    (divergence,) = diff(left, right)
    assert divergence.differences == (Difference('$.calls[0].arguments["a key"]', ABSENT, 1),)
    assert [type(cause.body) for cause in divergence.because[-2:]][-1] is CompletionReceived
    lines = list(render([divergence]))
    assert lines[0] == "The traces differ from turn 1 on."
    assert lines[3:6] == ['  $.calls[0].arguments["a key"]', "    A  absent", "    B  1"]
    assert lines[6] == "  because of"
    assert "RunTurn" in lines[7]


def test_what_came_of_a_missing_message_is_counted_not_told(tmp_path: Path) -> None:
    left = scene("tools", tmp_path)
    place = place_of(left, ToolReturned, 2)  # the one that the next request comes of
    (divergence,) = diff(left, [e for e in left if not _comes_of(e, left[place], left)])
    assert divergence.left is left[place]
    assert divergence.descendants > 5
    assert f"  and {divergence.descendants} messages that it caused" in list(render([divergence]))
    alone = replace(divergence, descendants=1)
    assert "  and 1 message that it caused" in list(render([alone]))
    assert ", and 1 message that it caused: " in alone.line("A", "B")


def _comes_of(envelope: EpisodeEnvelope, root: EpisodeEnvelope, trace: list[EpisodeEnvelope]) -> bool:
    by_seq = {other.seq: other for other in trace}
    at: EpisodeEnvelope | None = envelope
    while at is not None and at is not root:
        at = by_seq.get(at.cause) if at.cause is not None else None
    return at is root


def test_differences_are_in_the_order_of_the_first_trace(tmp_path: Path) -> None:
    left = scene("tools", tmp_path)
    right = list(left)
    places = [place_of(left, TurnCompleted), place_of(left, ToolReturned), place_of(left, SessionOpened)]
    fields = [{"reason": "x"}, {"result": ToolCallResult("x")}, {"attempt": 9}]
    for place, field in zip(places, fields, strict=True):
        right = changed(right, place, **field)
    told = list(diff(left, right))
    assert [divergence.left.seq for divergence in told if divergence.left] == sorted(
        left[place].seq for place in places
    )
    assert list(render(told))[-1] == "2 more differences. --all describes each."
    every = list(render(told, every=True))
    assert every.count("And in turn 1:") == 2
    assert {"  $.attempt", "  $.result.content", "  $.reason"} <= set(every)


def test_ids_may_differ_but_not_change_places(tmp_path: Path) -> None:
    left = scene("tools", tmp_path)
    one, other = place_of(left, ToolReturned, 0), place_of(left, ToolReturned, 1)
    ids = [left[place].body.call_id for place in (one, other)]  # type: ignore[union-attr]
    swapped = changed(changed(left, one, call_id=ids[1]), other, call_id=ids[0])
    paths = [[difference.path for difference in each.differences] for each in diff(left, swapped)]
    assert paths == [["$.call_id"], ["$.call_id"]]


def test_what_was_caused_outside_its_turn_is_compared_too(tmp_path: Path) -> None:
    left = scene("tools", tmp_path)
    place = place_of(left, ToolReturned)
    tail = left[place:]
    (divergence,) = diff(tail, changed(tail, 0, duration_s=9.0, batch=7, result=ToolCallResult("x")))
    assert [difference.path for difference in divergence.differences] == ["$.result.content"]


NOT_COMPARED: list[Any] = [
    CostUncounted(model="m", endpoint="e", limit_usd=1.0),  # once per runner, maybe in an earlier turn
    ToolsUnseen(request=1, tools=1, prompt_tokens=9, endpoint="e", model="m"),  # once per endpoint
    SettingsLeftOut(request=1, settings=("top_k",), endpoint="e", model="m"),  # once per endpoint
    TextDelta(request=1, text="Hm"),  # a reply arrives in any pieces
    ServerNoted(server="mind", kind="log", text="hm"),  # a server may send notices at any time
    TurnForked(trace="t", episode="e", turn=1, at=1),  # a fork is compared with the turn that it repeats
]
"""A message of each kind with `compared = False`, and why it may differ from run to run."""


@pytest.mark.parametrize("body", NOT_COMPARED, ids=lambda body: type(body).__name__)
def test_messages_that_differ_from_run_to_run_do_not_count(body: Any, tmp_path: Path) -> None:
    left = scene("tools", tmp_path)
    place = place_of(left, CompletionReceived)
    more = replace(left[place], seq=9000, body=body, receiver="trace")
    assert list(diff(left, [*left[:place], more, *left[place:]])) == []


def test_no_other_kind_is_left_out() -> None:
    kinds = {kind for kind in get_args(AnyMessage) if not kind.compared}
    assert kinds == set(map(type, NOT_COMPARED))


def test_a_turn_that_only_one_has_is_told_as_such(tmp_path: Path) -> None:
    left = scene("tools", tmp_path)
    second = place_of(left, RunTurn, 1)
    (divergence,) = diff(left, left[:second])
    assert divergence.left is left[second]
    assert divergence.right is None
    assert list(render([divergence]))[2] == "  B  nothing"
    (extra,) = diff(left[:second], left)
    assert extra.line("A", "B").startswith("turn 2: only in B, and ")


def test_a_turn_that_was_run_again_after_a_resume_does_not_shift_the_others(tmp_path: Path) -> None:
    left = scene("tools", tmp_path)
    cut = left[: place_of(left, CallTools)]
    fact = EpisodeResumed(episode_id="e", turns=0)
    resumed = replace(left[0], seq=900, sender="host", receiver="trace", body=fact, turn=0)
    whole = [replace(e, seq=e.seq + 1000, cause=e.cause and e.cause + 1000) for e in left]
    told = list(diff(left, [*cut, resumed, *whole]))
    assert {divergence.turn for divergence in told} == {1}, "the second turns are alike"


def test_turns_of_batches_that_began_in_another_order_do_not_differ() -> None:
    def begun(*turns: int, runs: int = 1) -> list[EpisodeEnvelope]:
        told = [replace(turn_of("a"), turn=turn, user=f"row {turn}") for turn in turns]
        ends = [
            TurnCompleted(turn=turn, kind="answered", answer="", raw_response="", reason="") for turn in turns
        ]
        return [
            EpisodeEnvelope(
                seq=seq, t=0.0, at=0.0, turn=body.turn, sender="host", receiver="agent", cause=None, body=body
            )
            for seq, body in enumerate((*told, *ends) * runs, start=1)
        ]

    assert list(diff(begun(1, 2, 3, 4), begun(2, 4, 1, 3))) == []
    assert list(diff(begun(1, 2, 3, 4, runs=2), begun(2, 4, 1, 3, runs=2))) == []
    assert {each.turn for each in diff(begun(1, 3, 4), begun(2, 4, 1, 3))} == {2}


def test_facts_of_the_host_are_compared_and_its_name_for_the_episode_is_not() -> None:
    def facts(name: str, seed: int, *more: Any) -> list[EpisodeEnvelope]:
        started = EpisodeStarted(episode_id=name, game="g", game_hash="h", seed=seed, model="m")
        return [
            EpisodeEnvelope(
                seq=seq, t=0.0, at=0.0, turn=0, sender="host", receiver="trace", cause=None, body=body
            )
            for seq, body in enumerate((started, *more), start=1)
        ]

    assert list(diff(facts("a", 7), facts("b", 7))) == []
    (divergence,) = diff(facts("a", 7), facts("b", 8))
    assert divergence.differences == (Difference("$.seed", 7, 8),)
    ended = EpisodeEnded(reason="won", detail="", turns=0)
    (divergence,) = diff(facts("a", 7), facts("a", 7, ended))
    assert divergence.left is None


def test_the_time_that_a_run_has_left_for_a_turn_is_not_compared_and_its_limit_is(tmp_path: Path) -> None:
    trace = scene("tools", tmp_path)
    place = place_of(trace, RunTurn)
    run: Any = trace[place].body

    def ran(limit_s: float | None, left_s: float) -> list[EpisodeEnvelope]:
        whole = changed(trace, place, limits=replace(run.limits, turn_timeout_s=left_s))
        fact = RunStarted(episode_id="r", task="t", time_limit_s=limit_s)
        return [
            replace(trace[0], seq=900, sender="host", receiver="trace", turn=0, cause=None, body=fact),
            *whole,
        ]

    assert list(diff(ran(300.0, 299.393), ran(300.0, 299.459))) == []
    assert [each.path for one in diff(ran(300.0, 299.4), ran(200.0, 199.4)) for each in one.differences] == [
        "$.time_limit_s"
    ]
    for limit_s, one, other in ((None, 30.0, 20.0), (300.0, 299.4, 599.4)):
        (divergence,) = diff(ran(limit_s, one), ran(limit_s, other))
        assert divergence.differences == (Difference("$.limits.turn_timeout_s", one, other),)


def test_how_long_a_call_of_the_host_took_is_not_compared() -> None:
    def calls(duration_ms: float) -> list[EpisodeEnvelope]:
        body = McpToolCallCompleted(
            turn=1, number=1, tool_name="read", status="completed", duration_ms=duration_ms
        )
        return [
            EpisodeEnvelope(
                seq=1, t=0.0, at=0.0, turn=1, sender="host", receiver="trace", cause=None, body=body
            )
        ]

    assert list(diff(calls(1.5), calls(2.5))) == []


def test_tools_that_are_the_same_as_before_are_not_told_as_nothing(tmp_path: Path) -> None:
    trace = scene("tools", tmp_path)
    place = [at for at, each in enumerate(trace) if isinstance(each.body, RequestCompletion)][1]
    other = changed(trace, place, mode=OfferTools(tools=()))
    lines = [line.split(None, 1) for line in render(diff(trace, other), every=True)]
    at = lines.index(["$.mode.tools"])
    assert lines[at + 1 : at + 3] == [["A", "null (the same tools as before)"], ["B", "[]"]]


def test_how_a_process_ended_when_it_was_closed_does_not_count_unless_it_died(tmp_path: Path) -> None:
    trace = scene("tools", tmp_path)
    place = place_of(trace, SessionClosed)
    polite, killed, none, died = (
        changed(trace, place, ending=each, exit_status=status, stderr_tail=each)
        for each, status in (("polite", 0), ("killed", -9), ("none", None), ("died", 1))
    )
    for left, right in ((polite, killed), (polite, none), (died, none), (none, killed)):
        assert list(diff(left, right)) == []
    assert len(list(diff(polite, died))) == 1


def test_identical_traces_are_said_to_be_so(tmp_path: Path) -> None:
    left = scene("tools", tmp_path)
    assert list(render(diff(left, left))) == ["The traces are identical, except for numbers, times and ids."]


def test_what_is_told_is_printable_and_short(tmp_path: Path) -> None:
    left = scene("tools", tmp_path)
    text = "\x1b[31m" + "x" * 5000
    right = changed(left, 0, user=text + "A")
    (divergence,) = diff(changed(left, 0, user=text + "B"), right)
    for line in render([divergence], every=True):
        assert line.isprintable()
        assert len(line) < 200
    excerpts = list(render([divergence]))[4:6]
    assert [line.rstrip('"')[-1] for line in excerpts] == ["B", "A"], "the place where they part is shown"


@pytest.mark.parametrize(
    ("left", "right", "path"),
    [
        (1, 2.0, "$"),
        (True, 1, "$"),
        ({"a": [1, {"b": None}]}, {"a": [1, {"b": 0}]}, "$.a[1].b"),
        ([1], [1, 2], "$[1]"),
        ("1", 1, "$"),
        (None, False, "$"),
    ],
)
def test_values_differ_as_json(left: object, right: object, path: str) -> None:
    assert [each.path for each in Comparison().differences(left, right)] == [path]


@pytest.mark.parametrize(("left", "right"), [(1, 1.0), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ((1,), [1])])
def test_values_are_alike_as_json(left: object, right: object) -> None:
    assert list(Comparison().differences(left, right)) == []


def test_the_id_of_a_conversation_is_an_id_and_its_length_is_not() -> None:
    """A conversation that nobody has named gets a random id."""
    comparison = Comparison(ignored=IGNORED, ids=IDS)
    one = HistoryReference(conversation=ConversationId("c-1a2b"), length=2, digest="d")
    assert not list(comparison.differences(one, replace(one, conversation=ConversationId("c-3c4d"))))
    other = replace(one, conversation=ConversationId("c-3c4d"), length=3)
    assert [each.path for each in comparison.differences(one, other)] == ["$.length"]


def test_only_fields_of_messages_are_left_out_not_keys_of_arguments() -> None:
    called = ToolCalled(server="a", batch=1, call_id="c", tool="t", arguments={"pid": 1, "call_id": "x"})
    other = replace(called, arguments={"pid": 2, "call_id": "y"})
    comparison = Comparison(ignored=frozenset({"pid"}), ids=frozenset({"call_id", "batch"}))
    found = [each.path for each in comparison.differences(called, other)]
    assert found == ["$.arguments.pid", "$.arguments.call_id"]
    assert msgspec.json.encode(called)
