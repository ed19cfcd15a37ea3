"""From what a tool gave back to what the model reads: always JSON, never too long, nothing lost unsaid."""

import base64
import collections
import datetime as dt
import enum
import json
import math
import re
from typing import Any

import msgspec
import pytest
from case_tables import each_case
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from grue.messages import ToolCallResult
from grue.protocol.json_text import json_value
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.results import (
    content_blocks,
    cut_middle,
    failure,
    from_mcp,
    is_small,
    success,
)

ANY_TEXT = st.text(st.characters(codec=None), max_size=30)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | ANY_TEXT
    | st.binary(max_size=20)
    | st.dates()
    | st.complex_numbers()
)
KEYS = ANY_TEXT | st.integers() | st.none() | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.tuples(inner, inner)
        | st.frozensets(st.integers(), max_size=3)
    ),
    max_leaves=20,
)


def history_text(result: ToolCallResult, most: int) -> str:
    return tool_results.told(result, most).text


class Colour(enum.IntEnum):
    RED = 1


class Celsius(float):
    pass


@each_case(
    "value, written",
    [
        (math.nan, None),
        (-math.inf, None),
        (Celsius(1.5), 1.5),
        (Colour.RED, 1),
        (True, True),
        (2**200, 2**200),
        ("a\ud800b", "a\ufffdb"),
        ("\ud83d\ude00", "😀"),
        (b"\xff\x00", "/wA="),
        (memoryview(b"hi"), "aGk="),
        ((1, [2, {3}]), [1, [2, [3]]]),
        (collections.deque([1]), [1]),
        ({1: "a", None: "b", "\udfff": "c"}, {"1": "a", "None": "b", "\ufffd": "c"}),
        (dt.date(2024, 2, 29), "2024-02-29"),
    ],
)
def test_what_json_cannot_say_is_replaced(value: object, written: object) -> None:
    assert json_value(value) == written
    assert type(json_value(value)) is type(written)
    msgspec.json.encode(json_value(value))


def test_an_integer_that_python_does_not_write_is_written_in_hexadecimal() -> None:
    assert json_value(-(16**20_000)) == "-0x1" + "0" * 20_000
    assert json_value(10**4_200) == 10**4_200
    msgspec.json.encode(json_value(10**4_200))


def test_what_is_nested_too_deeply_is_cut_off() -> None:
    value: Any = "bottom"
    for _ in range(5_000):
        value = [value]
    written = json_value(value)
    assert msgspec.json.encode(written) == b"[" * 100 + b'"[nested too deeply]"' + b"]" * 100


@given(VALUES)
def test_p41_a_success_is_a_json_value_without_an_error(value: object) -> None:
    result = success(value)
    assert (result.is_error, result.error_message) == (False, None)
    assert result.to_dict() == {"content": result.content}
    assert json.loads(msgspec.json.encode(result.to_dict())) == result.to_dict()


@example("half \ud800", None)
@given(ANY_TEXT.filter(bool), VALUES)
def test_p42_a_failure_has_its_message(message: str, value: object) -> None:
    result = failure(message, value)
    assert result.is_error
    assert isinstance(result.error_message, str)
    assert result.error_message.encode(), "half a surrogate pair has become a character"
    assert list(result.to_dict()) == ["error", "content"]


@given(ANY_TEXT, VALUES, st.booleans())
def test_p43_to_dict_survives_json_unchanged(message: str, value: object, failed: bool) -> None:
    result = failure(message, value) if failed else success(value)
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()
    assert msgspec.json.decode(msgspec.json.encode(result), type=ToolCallResult) == result


@example("half \ud800", {"\ud800": ["\udc00"], 1: {2: "x"}}, False, 200)
@given(ANY_TEXT, VALUES | st.text(max_size=2000), st.booleans(), st.integers(0, 200))
def test_p44_history_text_is_json_and_bounded(message: str, value: object, failed: bool, most: int) -> None:
    result = failure(message, value) if failed else success(value)
    text = history_text(result, most)
    shown = json.loads(text)
    assert list(shown) == list(result.to_dict())
    assert len(text) <= most + 140, "two markers and the braces around them"
    if len(msgspec.json.encode(result.to_dict()).decode()) <= most:
        assert shown == result.to_dict()


@pytest.mark.parametrize("char", ["x", '"', "\x00", "漢", "😀"])
def test_p44_a_long_result_keeps_its_beginning_and_says_how_much_was_cut(char: str) -> None:
    whole = char * 50_000
    text = history_text(success(whole), 20_000)
    content = json.loads(text)["content"]
    kept, _, marker = content.partition("… [cut: ")
    assert whole.startswith(kept)
    assert marker == f"{50_000 - len(kept)} of 50000 characters]"
    assert 19_990 <= len(json.dumps(kept, ensure_ascii=False)) <= 20_000


def test_p44_a_long_structure_is_shown_as_the_beginning_of_its_json() -> None:
    content = json.loads(history_text(success({"rooms": ["hall"] * 1000}), 200))["content"]
    assert content.startswith('{"rooms":["hall","hall"')


def test_p44_only_what_is_too_long_is_cut() -> None:
    long_error = json.loads(history_text(failure("e" * 500, None), 100))
    assert long_error["error"].startswith("eeee")
    assert "[cut: " in long_error["error"]
    both = json.loads(history_text(failure("short", "c" * 500), 100))
    assert both["error"] == "short"
    assert both["content"].startswith("ccc")


def test_a_huge_result_is_cut_without_reading_it_again_and_again() -> None:
    assert len(history_text(success('"' * 5_000_000), 20_000)) < 20_200


BLOCK = {"type": "text", "text": "hello"}
IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


@each_case(
    "answer, content",
    [
        ({"content": [BLOCK]}, "hello"),
        ({"content": [BLOCK, BLOCK]}, "hello\nhello"),
        ({"content": [BLOCK, IMAGE]}, [BLOCK, IMAGE]),
        ({"content": [IMAGE]}, [IMAGE]),
        ({"content": []}, ""),
        ({}, ""),
        ({"content": None}, ""),
        ({"content": [BLOCK, 7]}, "hello"),
        ({"content": [{"type": "text"}]}, [{"type": "text"}]),
        ({"content": [BLOCK], "structuredContent": {"n": 1}}, {"n": 1}),
        ({"content": [BLOCK], "structuredContent": {}}, {}),
        ({"content": [BLOCK], "structuredContent": None}, "hello"),
        ({"content": [{"type": "text", "text": ' {"a": [1]}'}]}, {"a": [1]}),
        ({"content": [{"type": "text", "text": "[1, NaN]"}]}, [1, None]),
        ({"content": [{"type": "text", "text": "12"}]}, "12"),
        ({"content": [{"type": "text", "text": "[draft] hello"}]}, "[draft] hello"),
        ({"content": [{"type": "text", "text": "{" * 100_000}]}, "{" * 100_000),
        ({"content": [{"type": "text", "text": '[1, "\\ud800"]'}]}, [1, "\ufffd"]),
    ],
)
def test_content_is_structured_else_json_else_text_else_blocks(answer: Any, content: object) -> None:
    assert from_mcp(answer) == ToolCallResult(content)


@pytest.mark.parametrize("content", ["hello", BLOCK, 7, False])
def test_content_that_is_not_a_list_is_an_error_that_shows_it(content: object) -> None:
    fault = "The server's answer is not usable: its content is not a list of blocks"
    assert from_mcp({"content": content}) == failure(fault, content)
    assert from_mcp({"content": content, "structuredContent": {"n": 1}}) == ToolCallResult({"n": 1})


@pytest.mark.parametrize(
    ("answer", "blocks"),
    [
        ({"content": [{"type": "text", "text": "3"}], "structuredContent": {"result": 3}}, 1),
        ({"content": [{"type": "text", "text": "\ud800"}, "no block", {"type": "x"}]}, 2),
        ({"content": "text"}, 0),
        ({}, 0),
    ],
)
def test_all_content_blocks_are_kept_beside_the_content(answer: Any, blocks: int) -> None:
    kept = content_blocks(answer)
    assert [block["type"] for block in kept] == ["text", "x"][:blocks]
    msgspec.json.encode(kept)


def test_json_text_of_any_depth_can_be_written() -> None:
    result = from_mcp({"content": [{"type": "text", "text": "[" * 500 + "]" * 500}]})
    assert json.loads(history_text(result, 20_000))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"content": [BLOCK], "isError": True}, "hello"),
        ({"content": [BLOCK, IMAGE, BLOCK], "isError": True}, "hello\nhello"),
        ({"content": [], "isError": True}, "The tool reported an error"),
        ({"content": [{"type": "text", "text": ""}], "isError": True}, "The tool reported an error"),
        ({"content": [{"type": "text", "text": 7}], "isError": True}, "7"),
    ],
)
def test_r11_4_an_error_result_says_what_the_tool_said(answer: Any, message: str) -> None:
    result = from_mcp(answer)
    assert (result.is_error, result.error_message) == (True, message)


@pytest.mark.parametrize("flag", [False, None, "true", 1])
def test_only_true_is_an_error(flag: object) -> None:
    assert not from_mcp({"content": [BLOCK], "isError": flag}).is_error


def test_p25_the_words_for_a_timeout_and_a_failure() -> None:
    assert tool_results.timed_out(30.0).error_message == "Tool call timed out after 30s"
    assert tool_results.timed_out(0.25).error_message == "Tool call timed out after 0.25s"
    assert tool_results.call_failed("no").error_message == "Tool call failed: no"


# --- Blocks that are no text ---

AUDIO = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
LINK = {
    "type": "resource_link",
    "uri": "file:///map.svg",
    "name": "map",
    "description": "The cellar.",
    "mimeType": "image/svg+xml",
    "_meta": {"x": 1},
}
NOTE = {
    "type": "resource",
    "resource": {"uri": "file:///note", "mimeType": "text/plain", "text": "Beware.", "_meta": {}},
}
BLOB = {"type": "resource", "resource": {"uri": "file:///zip", "mimeType": "application/zip", "blob": "AAA="}}


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        (BLOCK, BLOCK),
        (IMAGE, {"type": "image", "mimeType": "image/png", "bytes": 2}),
        (AUDIO, {"type": "audio", "mimeType": "audio/wav", "bytes": 3}),
        ({"type": "image", "data": ""}, {"type": "image", "bytes": 0}),
        ({"type": "image", "data": "password: hunter2"}, {"type": "image"}),
        (
            LINK,
            {"type": "resource_link", "uri": "file:///map.svg", "name": "map", "description": "The cellar."},
        ),
        (
            NOTE,
            {"type": "resource", "uri": "file:///note", "mimeType": "text/plain", "text": "Beware."},
        ),
        (BLOB, {"type": "resource", "uri": "file:///zip", "mimeType": "application/zip", "bytes": 2}),
        ({"type": "image", "url": "x"}, {"type": "image", "url": "x"}),
        ({"type": "resource", "resource": "x"}, {"type": "resource", "resource": "x"}),
        ({"type": "hologram", "data": "AAAA"}, {"type": "hologram", "data": "AAAA"}),
    ],
)
def test_blocks_are_kept_whole_and_told_of_in_the_history(block: Any, shown: Any) -> None:
    for failed in (False, True):
        result = from_mcp({"content": [BLOCK, block, IMAGE], "isError": failed})
        assert result.content == [BLOCK, block, IMAGE], "the trace has everything"
        content = json.loads(history_text(result, 20_000))["content"]
        assert content == [BLOCK, shown, {"type": "image", "mimeType": "image/png", "bytes": 2}]


@given(st.binary(max_size=50))
def test_the_size_of_an_image_is_that_of_its_bytes(image: bytes) -> None:
    block = {"type": "image", "data": base64.b64encode(image).decode(), "mimeType": "image/png"}
    (shown,) = json.loads(history_text(from_mcp({"content": [block]}), 1000))["content"]
    assert shown["bytes"] == len(image)


def test_megabytes_of_base64_never_reach_the_history() -> None:
    data = "A" * 8_000_000
    big = [
        {"type": "image", "data": data, "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "file:///zip", "blob": data}},
    ]
    text = history_text(from_mcp({"content": [BLOCK, *big]}), 20_000)
    assert len(text) < 300
    assert "hello" in text
    assert "cut" not in text
    assert "AAAA" not in text


def test_the_text_of_an_embedded_resource_is_cut_like_any_other() -> None:
    note = {"type": "resource", "resource": {"uri": "file:///note", "text": "Beware. " * 10_000}}
    text = history_text(from_mcp({"content": [note]}), 1000)
    assert "Beware. Beware." in text
    assert "[cut: " in text
    assert len(text) < 1200


@pytest.mark.parametrize(
    "content",
    [
        {"type": "image", "data": "aGk="},
        [IMAGE, {"data": "aGk="}],
        [IMAGE, {"type": 7}],
        ["image", IMAGE],
        {"images": [IMAGE]},
    ],
)
def test_only_a_list_of_typed_blocks_is_taken_for_one(content: object) -> None:
    assert json.loads(history_text(success(content), 1000)) == {"content": content}


def test_structured_content_stands_for_the_blocks_beside_it() -> None:
    answer: Any = {"content": [BLOCK, BLOCK], "structuredContent": {"n": 1}}
    assert from_mcp(answer) == ToolCallResult({"n": 1})
    answer["content"].append(IMAGE)
    assert from_mcp(answer) == ToolCallResult({"n": 1}, blocks=(IMAGE,))


# --- Cut in the middle ---


def test_a_result_that_fits_is_not_cut_in_the_middle() -> None:
    text = history_text(success("a" * 50), 1000)
    assert cut_middle(text, len(text)) is text
    assert cut_middle(text, 51) != text, "the quotes count"
    assert cut_middle(text, 52) == text


@pytest.mark.parametrize("content", ["x" * 9000, "line\n" * 1800, {"rows": list(range(3000))}, ["é" * 9000]])
def test_the_beginning_and_the_end_of_a_long_result_stay(content: object) -> None:
    text = history_text(success(content), 100_000)
    shown = json.loads(cut_middle(text, 1000))["content"]
    whole = (
        content
        if isinstance(content, str)
        else json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    )
    head, mark, tail = re.match(r"(.*)… (\[cut: \d+ of \d+ characters\]) …(.*)", shown, re.DOTALL).groups()
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert abs(len(head) - len(tail)) <= 1
    assert mark == f"[cut: {len(whole) - len(head) - len(tail)} of {len(whole)} characters]"
    assert 700 < len(cut_middle(text, 1000)) < 1100


def test_an_error_is_kept_before_the_content_of_a_result() -> None:
    text = history_text(failure("it broke", "x" * 9000), 100_000)
    shown = json.loads(cut_middle(text, 200))
    assert shown["error"] == "it broke"
    assert len(shown["content"]) < 250


def test_a_text_of_a_hosts_own_is_cut_as_content() -> None:
    assert json.loads(cut_middle(json.dumps("x" * 900), 100))["content"].startswith("xxx")
    assert "cut: 900 of 900" in cut_middle(json.dumps("x" * 900), -5)


@pytest.mark.parametrize(
    ("value", "small"),
    [
        ({"a": [1, 2, {"b": None}]}, True),
        ([[1] * 20, [2] * 20], False),
        ([0] * 29, True),
        ([0] * 30, False),
        ({"a": ["x" * 10_000_000]}, False),
        (["a", "b"], True),
    ],
)
def test_what_takes_long_to_walk_through_is_not_small(value: object, small: bool) -> None:
    assert is_small(value, 30) is small


def test_the_raw_text_of_a_result_is_that_of_its_blocks() -> None:
    blocks = ({"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"})
    assert tool_results.raw_text(ToolCallResult(content={"n": 1}, blocks=blocks)) == "a\nb"
    assert tool_results.raw_text(ToolCallResult(content={"n": 1}, blocks=({"type": "image"},))) == '{"n":1}'
    assert tool_results.raw_text(ToolCallResult(content="plain")) == "plain"
    assert tool_results.raw_text(tool_results.failure("no such file")) == "no such file"
    pictured = tool_results.failure("no such file", {"n": 1})
    assert tool_results.raw_text(replace(pictured, blocks=({"type": "image"},))) == "no such file"


def test_a_text_without_its_middle_says_how_much_was_cut() -> None:
    assert tool_results.without_middle("abc", 3) == "abc"
    assert tool_results.without_middle("abcdefgh", 3) == "ab… [cut: 5 of 8 characters] …h"


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (success('say "hi"\nand go'), 'say "hi"\nand go'),
        (success({"a": [1]}), '{"a":[1]}'),
        (success(None), "null"),
        (tool_results.failure("no such file"), "Error: no such file"),
        (ToolCallResult(content={"code": 5}, is_error=True, error_message="no"), 'Error: no\n{"code":5}'),
    ],
)
def test_a_text_is_told_plainly_as_it_is(result: ToolCallResult, told: str) -> None:
    assert tool_results.told_plainly(result, 1000) == (told, (), 0)


def test_the_blocks_of_a_result_are_told_plainly_behind_its_content() -> None:
    result = ToolCallResult(content={"n": 1}, blocks=({"type": "text", "text": "one"},))
    told, *_ = tool_results.told_plainly(result, 1000)
    assert told.startswith('{"n":1}\n[')
    assert '"text":"one"' in told


def test_a_text_that_is_no_json_is_cut_in_the_middle_as_it_is() -> None:
    assert cut_middle("line\n" * 100, 20) == tool_results.without_middle("line\n" * 100, 20)


@pytest.mark.parametrize("answer", [{}, {"content": "text"}, {"content": [5, {"text": "x"}]}])
def test_nothing_was_kept_as_text_in_a_small_result(answer: Any) -> None:
    assert not tool_results.is_kept_as_text(answer)


# --- Results that are told by reference


def test_a_long_text_is_told_by_its_beginning_its_end_and_a_handle() -> None:
    text = "".join(f"line {number}\n" for number in range(1, 1001))
    shown, *_ = tool_results.told_plainly(tool_results.success(text), 300, handle="call_7")
    head, mark, tail = re.match(r"(.*)… (\[cut: .*?\]) …(.*)", shown, re.DOTALL).groups()
    assert text.startswith(head)
    assert text.endswith(tail)
    assert (head[-1], tail[:5]) == ("\n", "line "), "lines stay whole"
    assert 200 <= len(head) + len(tail) <= 300
    cut = len(text) - len(head) - len(tail)
    first = head.count("\n") + 1
    last = 1001 - tail.count("\n")
    assert mark == (
        f"[cut: {cut} of {len(text)} characters, in lines {first} to {last} of 1001, of text; read_result"
        ' with the handle "call_7" reads all of it]'
    )
    assert tool_results.is_referred(shown, "call_7")
    assert not tool_results.is_referred(shown, "call_")


def test_short_results_are_told_whole_and_long_ones_without_a_handle_are_cut() -> None:
    short, long = tool_results.success("abc"), tool_results.success("a" * 50)
    assert tool_results.told_plainly(short, 10, handle="c")[0] == "abc"
    assert tool_results.told_plainly(long, 10)[0] == "a" * 10 + "… [cut: 40 of 50 characters]"


def test_how_long_a_cut_text_was_goes_with_it() -> None:
    long = tool_results.success("a" * 50)
    assert tool_results.told_plainly(long, 50).whole_chars == 0
    assert tool_results.told_plainly(long, 10).whole_chars == 50
    assert tool_results.told_plainly(long, 10, handle="c").whole_chars == 50
    whole = tool_results.told(long, 1000)
    assert whole.whole_chars == 0
    assert tool_results.told(long, 10).whole_chars == len(whole.text)


def test_a_text_in_an_object_stays_in_its_json_in_a_turn_of_an_older_trace() -> None:
    resource = {"type": "resource", "resource": {"uri": "file:///a", "text": "a\nb"}}
    for content in ({"text": "a\nb"}, [{"type": "text", "text": "x"}, resource]):
        result = tool_results.success(content)
        assert '"text": "a\\nb"' in tool_results.whole_text(result, unwraps=False)
        assert "a\nb" in tool_results.whole_text(result)
    wrapped = tool_results.success({"text": "x\n" * 200})
    shown, *_ = tool_results.told_plainly(wrapped, 60, handle="c", unwraps=False)
    assert "a JSON object of 1 members" in shown


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ({"rows": ["x" * 400]}, "a JSON object of 1 members"),
        ({"text": "x\n" * 200}, "the text of a JSON object of 1 member"),
        (["x" * 100] * 4, "a JSON array of 4 values"),
        ('{"rows": "' + "x" * 400, "probably JSON text"),
        ("x" * 400, "text"),
    ],
)
def test_a_reference_says_what_kind_of_result_it_is(content: object, kind: str) -> None:
    shown, *_ = tool_results.told_plainly(tool_results.success(content), 60, handle="c")
    assert f", of {kind}; read_result" in shown


def test_a_reference_keeps_the_note_the_error_and_the_blocks() -> None:
    result = tool_results.failure("broken", "x" * 500)
    shown, *_ = tool_results.told_plainly(result, 60, note="The user changed it", handle="c")
    assert shown.startswith("The user changed it\nError: broken\nxxx")
    blocks = ({"type": "text", "text": "y" * 500},)
    result = ToolCallResult("x" * 500, blocks=blocks)
    assert tool_results.whole_text(result) == "x" * 500 + "\n" + "y" * 500
    assert tool_results.whole_text(tool_results.failure("broken")) == "Error: broken"


def test_json_that_is_one_long_line_is_laid_out() -> None:
    rows = json.dumps([{"a": number} for number in range(1000)])
    assert tool_results.whole_text(tool_results.success(rows)).count("\n") > 1000
    assert tool_results.whole_text(tool_results.success("[" + "x" * 5000)) == "[" + "x" * 5000
    deep = "[" * 5000
    assert tool_results.whole_text(tool_results.success(deep)) == deep


@given(st.text(max_size=2000), st.integers(0, 300))
def test_a_reference_is_never_longer_than_the_limit_and_a_mark(text: str, limit: int) -> None:
    shown, *_ = tool_results.told_plainly(tool_results.success(text), limit, handle="c")
    assert len(shown) <= limit + 200
