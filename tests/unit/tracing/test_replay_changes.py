"""Replay with changes: where an episode would have gone another way."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from episode_scenes import place_of, scene, with_fields

from grue.messages import (
    CloseSession,
    ConnectFailed,
    DeadlinePassed,
    RequestCompletion,
    RequireAnswer,
    SessionOpened,
    ToolCalled,
    ToolReturned,
    ToolSkipped,
    UserText,
)
from grue.tracing.changes import parted
from grue.tracing.replay import Changes, TurnReplay, render, replay


def first(turns: Iterator[TurnReplay]) -> Any:
    return next((turn.divergence for turn in turns if turn.divergence is not None), None)


AnyKind = type
WHAT_IF: dict[str, tuple[str, Changes, AnyKind, AnyKind | None]] = {
    "fewer iterations": ("tools", Changes(limits={"max_tool_iterations": 1}), RequestCompletion, None),
    "goes on after a timeout": (
        "timeout",
        Changes(policy={"after_timeout": "continue"}),
        ToolSkipped,
        ToolCalled,
    ),
    "forces after a timeout": (
        "timeout",
        Changes(policy={"after_timeout": "force"}),
        RequestCompletion,
        None,
    ),
    "reconnects": ("death", Changes(policy={"after_death": "reconnect"}), RequestCompletion, CloseSession),
    "shorter results": (
        "tools",
        Changes(limits={"max_result_chars": 5}),
        RequestCompletion,
        RequestCompletion,
    ),
    "a budget": ("tools", Changes(limits={"budget": {"requests": 2}}), RequestCompletion, None),
    "other instructions": ("tools", Changes(system="You win."), RequestCompletion, RequestCompletion),
    "another question": ("tools", Changes(user="You are at sea."), RequestCompletion, RequestCompletion),
    "another final request": ("nothing", Changes(final_request="Now!"), RequestCompletion, RequestCompletion),
}


@pytest.mark.parametrize("name", WHAT_IF)
def test_a_change_says_where_the_episode_would_have_gone_another_way(name: str, tmp_path: Path) -> None:
    recorded_as, changes, recorded, changed = WHAT_IF[name]
    turns = list(replay(scene(recorded_as, tmp_path), changes))
    divergence = first(iter(turns))
    told = {type(side.body).__name__ for side in (divergence.left, divergence.right) if side is not None}
    kinds = {kind.__name__ for kind in (recorded, changed) if kind is not None}
    notes = {"IterationStarted", "FinalForced"}
    assert told & kinds or told <= notes, told
    text = "\n".join(render(turns, changes))
    assert text.startswith(f"Turn {divergence.turn} differs")
    assert len(turns) == 2, "the next turn is taken up as it was recorded"


def test_a_connection_policy_says_where(tmp_path: Path) -> None:
    retried = scene("retry", tmp_path)
    divergence = first(replay(retried, Changes(policy={"connect_retries": 0})))
    assert [difference.path for difference in divergence.differences] == ["$.then"]
    assert divergence.turn == 2
    failed = scene("never-starts", tmp_path)
    divergence = first(replay(failed, Changes(policy={"first_connect": "disable"})))
    assert divergence.right.body.then == "disable"


NO_DIFFERENCE = [
    ("tools", Changes(policy={"after_timeout": "continue", "after_death": "reconnect"})),
    ("tools", Changes(limits={"max_tool_iterations": 3, "tool_call_timeout_s": 29.0})),
    ("timeout", Changes(policy={"after_death": "reconnect", "connect_retries": 7})),
    ("retry", Changes(policy={"first_connect": "disable"})),
    ("tools", Changes(final_request="Now!")),
    ("tools", Changes(limits={"turn_timeout_s": 600.0})),
]


@pytest.mark.parametrize(("name", "changes"), NO_DIFFERENCE)
def test_a_change_that_does_not_matter_makes_no_difference(
    name: str, changes: Changes, tmp_path: Path
) -> None:
    assert first(replay(scene(name, tmp_path), changes)) is None


@pytest.mark.slow
def test_a_shorter_limit_says_what_would_have_come_too_late(tmp_path: Path) -> None:
    envelopes = scene("tools", tmp_path)
    called = first(
        replay(
            with_fields(envelopes, place_of(envelopes, ToolReturned), duration_s=4.0),
            Changes(limits={"tool_call_timeout_s": 3}),
        )
    )
    assert called.reason == "the call took 4.000 s, and would have timed out after 3 s"
    slow = with_fields(envelopes, place_of(envelopes, SessionOpened), elapsed_s=4.0)
    opened = first(replay(slow, Changes(limits={"server_startup_timeout_s": 3})))
    assert opened.reason == "the start took 4.000 s, and would have been given up after 3 s"
    timed_out = first(replay(scene("timeout", tmp_path), Changes(limits={"tool_call_timeout_s": 60})))
    assert timed_out.reason == "the call would have had 60 s"
    sooner = first(replay(scene("timeout", tmp_path / "b"), Changes(limits={"tool_call_timeout_s": 3})))
    assert sooner.reason == "the call would have timed out after 3 s"
    late = [msgspec.structs.replace(e, t=e.t + 9) if e.seq > 5 else e for e in envelopes]
    missed = first(replay(late, Changes(limits={"turn_timeout_s": 8, "teardown_s": 1})))
    assert missed.reason.endswith("the turn's work would have ended after 7 s")
    longer = first(replay(scene("deadline", tmp_path), Changes(limits={"turn_timeout_s": 60})))
    assert isinstance(longer.left.body, DeadlinePassed)


@pytest.mark.parametrize(
    ("took_s", "limit_s", "says"),
    [
        (4.0, 3.0, "the server would have been given up after 3 s"),
        (10.0, 20.0, "the server would have had 20 s to start"),
        (4.0, 20.0, None),
    ],
)
def test_another_limit_for_starts_says_whether_a_failure_hangs_on_it(
    took_s: float, limit_s: float, says: str | None, tmp_path: Path
) -> None:
    envelopes = scene("retry", tmp_path)
    failure = envelopes[place_of(envelopes, ConnectFailed)].body.failure  # type: ignore[union-attr]
    envelopes = with_fields(
        envelopes,
        place_of(envelopes, ConnectFailed),
        failure=msgspec.structs.replace(failure, elapsed_s=took_s),
    )
    divergence = first(replay(envelopes, Changes(limits={"server_startup_timeout_s": limit_s})))
    assert (divergence and divergence.reason) == says


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"policy": {"after_timeout": "sulk"}}, "Invalid enum value 'sulk'"),
        ({"policy": {"no_such": 1}}, "no field no_such; the fields are first_connect"),
        ({"limits": {"max_tool_iterations": "many"}}, "^max_tool_iterations: Expected `int`, got `str`$"),
        ({"limits": {"budget": {"gold": 1}}}, "no field gold; the fields are requests"),
        ({"policy": {"on_tool_drift": "refuse"}}, "cannot be changed"),
    ],
)
def test_a_change_that_cannot_be_is_refused(wrong: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Changes(**wrong)


def test_a_final_request_is_changed_only_where_the_machine_makes_it(tmp_path: Path) -> None:
    envelopes = scene("nothing", tmp_path)
    divergence = first(replay(envelopes, Changes(final_request="Now!")))
    (difference,) = divergence.differences
    assert difference.path == "$.new[0].text"
    assert divergence.right.body.new == (UserText("Now!"),)
    assert isinstance(divergence.right.body.mode, RequireAnswer)


def test_a_field_of_a_budget_that_is_taken_away_is_refused() -> None:
    assert parted({"budget.requests": 3, "budget.tokens": 5}) == (
        {},
        {"budget": {"requests": 3, "tokens": 5}},
    )
    with pytest.raises(ValueError, match=r"budget is None, so budget\.requests cannot be set too"):
        parted({"budget": None, "budget.requests": 3})
    with pytest.raises(ValueError, match=r"budget is \{'requests': 3\}, so budget cannot be set too"):
        parted({"budget.requests": 3, "budget": 5})
