"""What the turn's machine does with a reply under a policy: each call gets one answer, allowed or not."""

from typing import Any

from msgspec.structs import replace
from turns import Walk, calls, opened, returned, run

from grue.messages import CallTools, RequestCompletion, RunTurn, ToolDenied, ToolMessage
from grue.policies import ToolPolicy, ToolRule


def under(*rows: dict[str, Any], servers: tuple[str, ...] = ("a", "b"), **more: Any) -> RunTurn:
    policy = ToolPolicy(rules=tuple(ToolRule(**row) for row in rows), **more)
    return replace(run(*servers), tool_policy=policy)


def told(walk: Walk) -> list[tuple[str, str]]:
    """The tool messages of the last request, by call."""
    request = walk.of(RequestCompletion)[-1]
    return [(item.call_id, item.content) for item in request.new if isinstance(item, ToolMessage)]


def test_a_denied_call_is_told_to_the_model_and_the_others_are_made() -> None:
    begun = under({"tools": ("a.look",), "verdict": "deny", "reason": "no looking"})
    walk = Walk(begun, opened("a"), opened("b"), calls("a.look", "a.think", "a.look"))
    (denied, again, batch) = walk.last
    assert denied == ToolDenied(batch=1, call_id="c1", name="a.look", reason="no looking")
    assert again.call_id == "c3"
    assert isinstance(batch, CallTools)
    assert [call.call_id for call in batch.calls] == ["c2"]
    walk.send(returned(2))
    assert told(walk) == [
        ("c1", '{"error":"Tool call denied: no looking","content":null}'),
        ("c2", '{"content":"ok"}'),
        ("c3", '{"error":"Tool call denied: no looking","content":null}'),
    ]


def test_a_reply_of_denied_calls_only_is_answered_at_once() -> None:
    walk = Walk(under({"verdict": "deny"}), opened("a"), opened("b"), calls("a.look", "b.think"))
    assert [type(command).__name__ for command in walk.last] == [
        "ToolDenied",
        "ToolDenied",
        "IterationStarted",
        "RequestCompletion",
    ]
    assert walk.of(CallTools) == []
    # The next reply's notes have a batch number of their own.
    walk.send(calls("a.look", first=3))
    assert [note.batch for note in walk.of(ToolDenied)] == [1, 1, 2]


def test_a_limit_holds_over_all_replies_of_the_turn() -> None:
    walk = Walk(under({"tools": ("a.look",), "max_calls": 2}), opened("a"), opened("b"))
    walk.send(calls("a.look"), returned(1), calls("a.look", "a.look", first=2))
    assert [note.call_id for note in walk.of(ToolDenied)] == ["c3"]
    walk.send(returned(2, batch=2), calls("a.look", first=4))
    assert [note.call_id for note in walk.of(ToolDenied)] == ["c3", "c4"]
    assert len(walk.of(CallTools)) == 2


def test_a_denied_call_is_in_the_turns_records() -> None:
    walk = Walk(under({"verdict": "deny", "reason": "no"}), opened("a"), opened("b"), calls("a.look"))
    (record,) = walk.state.turn.records  # type: ignore[union-attr]  # it awaits the model again
    assert (record.settlement, record.result.error_message) == ("denied", "Tool call denied: no")
    assert record.duration_s is None


def test_without_rules_nothing_is_judged() -> None:
    walk = Walk(run("a", "b"), opened("a"), opened("b"), calls("a.look", "b.think"))
    assert walk.of(ToolDenied) == []
    assert walk.state.turn.used == {}  # type: ignore[union-attr]  # it awaits its tools
