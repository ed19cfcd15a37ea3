"""Which calls of a reply go to which server, and what the model is told of the others."""

import difflib
import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from turns import call, died, returned, skipped, sort_calls, timed_out, tool

from grue.messages import BatchId, CallId, ServerCall, ServerName, ToolCallResult, ToolSkipped
from grue.protocol.tools.calls import is_as_decided, record_settlement, tool_messages, unlisted_tool
from grue.protocol.tools.policy import definition_digest

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
TOOLS = (tool("a.look"), tool("a.read.file"), tool("b.look"))


def rejection(arguments: str) -> str:
    ((rejected,), runs) = sort_calls((call(1, "a.look", arguments),), TOOLS)[::-1]
    assert runs == ()
    return rejected.reason


def arguments(text: str) -> object:
    ((run,), _) = sort_calls((call(1, "a.look", text),), TOOLS)
    return run.calls[0].arguments


def test_consecutive_calls_to_one_server_are_one_run() -> None:
    runs, rejected = sort_calls(
        (call(1, "a.look"), call(2, "a.read.file"), call(3, "b.look"), call(4, "a.look")), TOOLS
    )
    assert [(run.server, [(item.call_id, item.tool) for item in run.calls]) for run in runs] == [
        ("a", [("c1", "look"), ("c2", "read.file")]),
        ("b", [("c3", "look")]),
        ("a", [("c4", "look")]),
    ]
    assert rejected == ()


def test_a_server_that_serves_unlisted_tools_gets_every_call_by_its_name() -> None:
    runs, (rejected,) = sort_calls(
        (call(1, "b.dance"), call(2, "b.look"), call(3, "a.dance")), TOOLS, (ServerName("b"),)
    )
    assert [(run.server, [item.tool for item in run.calls]) for run in runs] == [("b", ["dance", "look"])]
    assert rejected.call.call_id == "c3"


def test_a_rejected_call_does_not_split_a_run() -> None:
    runs, rejected = sort_calls((call(1, "a.look"), call(2, "a.dance"), call(3, "a.look")), TOOLS)
    assert [len(run.calls) for run in runs] == [2]
    assert [item.call.call_id for item in rejected] == ["c2"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *((name, "") for name in ("dance", "a.dance", "a", "", ".")),
        ("x.look", ". Did you mean a.look or b.look?"),
        ("look", ". Did you mean a.look or b.look?"),
        ("read.file", ". Did you mean a.read.file?"),
        ("A.Read.File", ". Did you mean a.read.file?"),
        ("a__look", ". Did you mean a.look or b.look?"),
        ("a.read_file", ". Did you mean a.read.file?"),
    ],
)
def test_p35_a_name_that_no_server_listed_is_an_error_that_names_what_there_is(name: str, meant: str) -> None:
    runs, (rejected,) = sort_calls((call(1, name),), TOOLS)
    assert runs == ()
    unknown = f"Unknown MCP tool: {name}"
    if "." not in name:
        unknown = f"Invalid tool name format: {name}. Expected format: {{server_name}}.{{tool_name}}"
    assert rejected.reason == f"{unknown}. Available tools: a.look, a.read.file, b.look{meant}"


def test_similar_names_are_looked_for_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Counter[str]()
    similar = difflib.get_close_matches
    monkeypatch.setattr(difflib, "get_close_matches", lambda *a, **k: looked.update("a") or similar(*a, **k))
    tools = tuple(tool(f"files.read_the_file_with_number_{number}") for number in range(200))
    wrong = tuple(call(number, f"files.read_file_number_{number}") for number in range(1, 2001))
    _, rejected = sort_calls(wrong, tools)
    assert rejected[0].reason.endswith("?")
    assert len(rejected) == 2000
    assert looked.total() == 20


@given(st.text(st.characters(exclude_characters="."), min_size=1), st.text())
def test_p35_any_tool_of_a_dot_free_server_reaches_it_by_its_bare_name(server: str, bare: str) -> None:
    runs, rejected = sort_calls((call(1, f"{server}.{bare}"),), (tool(f"{server}.{bare}"),))
    assert rejected == ()
    assert [(run.server, run.calls[0].tool) for run in runs] == [(server, bare)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        (" \n", {}),
        ("{}", {}),
        ('{"a": [1, null]}', {"a": [1, None]}),
        ('{"n": 1e3}', {"n": 1000.0}),
    ],
)
def test_p18_arguments_are_read(text: str, value: object) -> None:
    assert arguments(text) == value


@pytest.mark.parametrize(
    "text", ["{", "x", "1 1", "{'a': 1}", '{"n": NaN}', '{"n": -Infinity}', '{"n": 1e999}', "[" * 100_000]
)
def test_r6_4_text_that_is_not_json_is_rejected(text: str) -> None:
    assert rejection(text).startswith("Tool call failed: the arguments are not valid JSON: ")


@pytest.mark.parametrize("text", ['{"a": 1}{"b": 2}', ' {} {"a": 1}', "{}{}"])
def test_r6_4_more_than_one_object_is_rejected_with_what_to_do(text: str) -> None:
    assert rejection(text) == (
        "Tool call failed: the arguments are more than one JSON object: make one call for each"
    )


@pytest.mark.parametrize("text", ["[]", "null", '"text"', "1", "true"])
def test_r6_4_json_that_is_no_object_is_rejected(text: str) -> None:
    assert rejection(text).startswith("Tool call failed: the arguments must be a JSON object, not ")


@given(st.dictionaries(st.text(), VALUES))
def test_p18_the_text_of_any_object_becomes_that_object(value: dict[str, object]) -> None:
    assert arguments(json.dumps(value)) == value


@given(st.dictionaries(st.text(st.characters(codec=None)), st.text(st.characters(codec=None))))
def test_arguments_that_go_out_can_always_be_written(value: dict[str, str]) -> None:
    assert msgspec.json.encode(arguments(json.dumps(value)))


@pytest.mark.parametrize("innermost", ["1", '"\\ud800"'], ids=["json", "nearly json"])
@pytest.mark.parametrize("depth", [101, 500, 900, 3_000])
def test_deep_arguments_are_refused_in_the_same_words_however_full_the_stack_is(
    depth: int, innermost: str
) -> None:
    for opening, closing in (('{"a":', "}"), ('{"a":[', "]}")):
        text = opening * depth + innermost + closing * depth
        assert "nested more than 100 deep" in rejection(text)


def test_arguments_as_deep_as_is_allowed_are_read() -> None:
    text = '{"a":' * 99 + "1" + "}" * 99
    assert json.dumps(arguments(text), separators=(",", ":")) == text


@pytest.mark.parametrize(
    ("event", "settlement", "result", "duration_s"),
    [
        (returned(1), "returned", ToolCallResult("ok"), 0.1),
        (timed_out(1), "timed_out", ToolCallResult(None, True, "Tool call timed out after 30s"), 30.0),
        (died(1), "died", ToolCallResult(None, True, "Tool call failed: it ended"), 0.0),
        (skipped(1, reason="why"), "skipped", ToolCallResult(None, True, "why"), None),
    ],
)
def test_each_settlement_becomes_the_record_of_its_call(
    event: object, settlement: str, result: ToolCallResult, duration_s: float | None
) -> None:
    record = record_settlement(call(1, "a.look", '{"x": 1}'), 3, event)  # type: ignore[arg-type]
    assert (record.call_id, record.name, record.arguments) == ("c1", "a.look", '{"x": 1}')
    assert (record.iteration, record.settlement, record.duration_s) == (3, settlement, duration_s)
    assert record.result == result


def test_the_conversation_is_told_the_same_in_the_same_order() -> None:
    settlements = ((call(1), returned(1)), (call(2), timed_out(2)))
    records = tuple(record_settlement(asked, 1, event) for asked, event in settlements)
    assert [(item.call_id, json.loads(item.content)) for item in tool_messages(records, 20_000)] == [
        ("c1", {"content": "ok"}),
        ("c2", {"error": "Tool call timed out after 30s", "content": None}),
    ]


def decided(definition: str, **more: Any) -> ServerCall:
    return ServerCall(call_id=CallId("c1"), tool="look", arguments={}, definition=definition, **more)


def test_a_call_is_as_decided_if_its_server_lists_the_same_definition() -> None:
    (look,) = (each for each in TOOLS if each.name == "a.look")
    a = ServerName("a")
    assert is_as_decided(decided(definition_digest(look)), a, TOOLS)
    assert not is_as_decided(decided(definition_digest(look)), a, ())
    assert not is_as_decided(decided("another"), a, TOOLS)
    assert is_as_decided(decided(""), a, ())
    unlisted = definition_digest(unlisted_tool(a, "look"))
    assert is_as_decided(decided(unlisted), a, (), serves_unlisted=True)
    assert not is_as_decided(decided(unlisted), a, ())


def test_a_call_that_its_session_refuses_counts_as_rejected() -> None:
    refused = ToolSkipped(batch=BatchId(1), call_id=CallId("c1"), reason="it has changed", refused=True)
    settled = record_settlement(call(1, "a.look"), 1, refused)
    assert (settled.settlement, settled.result.error_message) == (
        "rejected",
        "Tool call failed: it has changed",
    )
