"""Arguments that a model wrote: an object, or an error for it to read, at once, whatever they are."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from turns import sort_calls

from grue.messages import CallId, ServerName, ToolCall, ToolDefinition
from grue.protocol.json_text import MAX_CHARS, MAX_VALUES, is_crowded
from grue.protocol.tools.names import CUT_MARK, read_arguments

TOOL = ToolDefinition(server=ServerName("s"), tool="t", input_schema={"type": "object"})
ODD = st.sampled_from(
    [
        '{"n": ' + "9" * 5000 + "}",
        '{"n": ' + "9" * 40 + "}",
        '{"n": -1e999}',
        '{"n": NaN}',
        '{"n": "\\ud83d"}',
        '{"\ud800": 1}',
        '{"a":' * 5000 + "1" + "}" * 5000,
        '{"a":' * 150 + "1" + "}" * 150,
        "[" * 100_000,
        '{"a": 1}{"a": 2}',
        '{"a": 1',
        "\x00",
    ]
)


@given(
    st.lists(ODD | st.text(st.characters(codec=None)) | st.text('{}[]",:\\u19 eE-.', max_size=40), max_size=4)
)
def test_any_arguments_lead_to_calls_or_to_errors_that_can_be_written(texts: list[str]) -> None:
    calls = tuple(
        ToolCall(call_id=CallId(str(number)), name="s.t", arguments=text) for number, text in enumerate(texts)
    )
    runs, rejected = sort_calls(calls, (TOOL,))
    served = [call for run in runs for call in run.calls]
    assert len(served) + len(rejected) == len(calls)
    assert msgspec.json.encode([call.arguments for call in served])
    assert msgspec.json.encode([one.reason for one in rejected])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"n": ' + "9" * 5000 + "}", "the arguments are not valid JSON: Exceeds the limit"),
        ('{"n": 1e999}', "1e999 is out of range"),
        ('{"n": 1' + "0" * 400 + ".0}", "is out of range"),
        ('{"n": Infinity}', "Infinity is not JSON"),
        ('{"a": 1}\n{"a": 2}', "more than one JSON object"),
        ("[1]", "not list"),
        ("[" * 100_000, "not valid JSON"),
        ('{"a": "x"}' + CUT_MARK, "cut at its length limit"),
        ('{"a": [' + "1," * MAX_VALUES + "1]}", f"more than {MAX_VALUES} values"),
        ('{"a": [NaN' + ", 1" * 20_000 + "]}", "it cannot be read, and is too long to say why"),
        ('{"a": "' + "x" * MAX_CHARS + '"}', f"longer than {MAX_CHARS} characters"),
    ],
)
def test_what_is_wrong_with_arguments_is_said(text: str, words: str) -> None:
    error = read_arguments(text)
    assert isinstance(error, str)
    assert words in error
    assert len(error) < 500


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        (" \n", {}),
        ('{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}),
        ('{"n": "\\ud83d"}', {"n": "\ufffd"}),
        ('{"n": -0.5}', {"n": -0.5}),
        ('{"n": -0.5, "s": "\\ud83d"}', {"n": -0.5, "s": "\ufffd"}),
        ('{"n": ' + "[" * 90 + "]" * 90 + "}", {"n": json.loads("[" * 90 + "]" * 90)}),
        ('{"n": [' + "[]," * 200 + "[]]}", {"n": [[]] * 201}),
    ],
)
def test_what_arguments_say(text: str, value: dict[str, object]) -> None:
    assert read_arguments(text) == value


def test_arguments_of_one_reply_share_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grue.protocol.tools.calls.MAX_CHARS", 25)
    calls = tuple(ToolCall(call_id=CallId(i), name="s.t", arguments='{"a": "xyz"}') for i in "abc")
    (run,), (rejected,) = sort_calls(calls, (TOOL,))
    assert [call.call_id for call in run.calls] == ["a", "b"]
    assert (rejected.call.call_id, "make fewer calls" in rejected.reason) == ("c", True)


@given(st.recursive(st.integers() | st.text(max_size=3), st.lists, max_leaves=30), st.integers(1, 60))
def test_values_are_counted_without_reading_them(value: object, most: int) -> None:
    text = json.dumps(value)
    if is_crowded(text, most):
        assert counted(value) > most
    assert is_crowded(text, most) == is_crowded(text.encode(), most)


def counted(value: object) -> int:
    """Return an upper bound of lists, texts and separators."""
    return 1 + 2 * sum(map(counted, value)) + 1 if isinstance(value, list) else 1


@pytest.mark.parametrize(
    ("text", "crowded"),
    [
        ('"' + '\\"' * 1_000_000, False),
        ('"' * 1_000_001, True),
        ("{" * 1_000_000, True),
        ('"\\' * 500_000, False),
    ],
)
def test_long_texts_are_counted_in_one_pass(text: str, crowded: bool) -> None:
    # With a second pass for each quotation mark, the first of them would take hours.
    assert is_crowded(text) is crowded


def test_arguments_that_are_nested_too_deeply_are_refused() -> None:
    said = read_arguments('{"a":' * 150 + "1" + "}" * 150)
    assert said == "the arguments are nested more than 100 deep: make a flatter call"


@pytest.mark.parametrize("innermost", ["1", "[]"])
def test_the_depth_of_arguments_counts_lists_and_objects(innermost: str) -> None:
    deepest = 98 if innermost == "[]" else 99
    text = '{"b": [], "a": %s}'
    assert isinstance(read_arguments(text % ("[" * deepest + innermost + "]" * deepest)), dict)
    assert "nested more than 100 deep" in read_arguments(text % ("[" * 100 + innermost + "]" * 100))
