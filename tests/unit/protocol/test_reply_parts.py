"""What the wire formats share in reading a reply: ids, arguments, numbers, texts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_bodies import JSON_VALUES

from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.reply import (
    CallIds,
    cost,
    read_call,
    read_object,
    text_of,
    tokens,
)
from grue.protocol.tool_names import WireNames

NAMES = WireNames("encoded", ["s.t"])


def arguments(sent: object) -> str:
    return read_call("a", "s__t", sent, CallIds(1), NAMES).arguments


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ('{"a":1}', '{"a":1}'),
        (' {"a": 1} ', '{"a": 1}'),
        ('{"a":1}{"a":1}', '{"a":1}'),
        ('{"a":1}\n{ "a": 1 }{"a":1}', '{"a":1}'),
        ('{}{"a":1}', '{}{"a":1}'),
        ('{"a":1}{"a":2}', '{"a":1}{"a":2}'),
        ('{"a":1}{"a":1}{"b":1}', '{"a":1}{"a":1}{"b":1}'),
        ('{"a":1}{"a"', '{"a":1}{"a"'),
        ('{"a":1} and so on', '{"a":1} and so on'),
        ("1 1", "1 1"),
        ("{broken", "{broken"),
        ("[" * 100_000, "[" * 100_000),
        ("", "{}"),
        (" \n", "{}"),
        (None, "{}"),
        ({"a": [1]}, '{"a":[1]}'),
        ([1], "[1]"),
        (0, "0"),
    ],
)
def test_arguments_are_read_once_and_kept_where_they_are_more(sent: object, read: str) -> None:
    assert arguments(sent) == read


@given(value=st.dictionaries(st.text(max_size=4), st.integers(), max_size=3), copies=st.integers(1, 4))
def test_any_number_of_copies_is_one_call(value: dict[str, int], copies: int) -> None:
    text = json.dumps(value)
    assert arguments(text * copies) == text


@given(JSON_VALUES, JSON_VALUES, JSON_VALUES)
def test_any_parts_make_a_call(call_id: object, name: object, sent: object) -> None:
    call = read_call(call_id, name, sent, CallIds(2, {"used"}), NAMES)
    assert call.call_id
    assert call.name
    assert isinstance(call.arguments, str)


def test_names_come_back_canonical() -> None:
    for sent, name in (
        ("s__t", "s.t"),
        ("s.t", "s.t"),
        ("made_up", "made_up"),
        (None, "unnamed"),
        ("", "unnamed"),
    ):
        assert read_call("a", sent, {}, CallIds(1), NAMES).name == name


def test_ids_are_given_once() -> None:
    ids = CallIds(3, {"used", "call_3_1"})
    assert [ids.give(wanted) for wanted in ("a", "a", "used", None, 5)] == [
        "a",
        "call_3_2",
        "call_3_3",
        "call_3_4",
        "call_3_5",
    ]


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"5", b"null", b"[" * 1000])
def test_a_body_that_is_no_object(body: bytes) -> None:
    fault = read_object(body)
    assert isinstance(fault, Fault)
    assert (fault.kind, fault.status) == ("invalid_reply", 200)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("look", "look"),
        ({"text": "look"}, "look"),
        ([{"text": "lo"}, ["o", {"text": "k"}]], "look"),
        ({"text": 5}, ""),
        (5, ""),
        (None, ""),
    ],
)
def test_the_text_of_a_content(content: object, text: str) -> None:
    assert text_of(content) == text


@pytest.mark.parametrize(
    ("value", "count", "amount"),
    [
        (3, 3, 3.0),
        (2.5, 2, 2.5),
        (0, 0, 0.0),
        (-1, 0, None),
        ("3", 0, None),
        (None, 0, None),
        (2**60, 0, None),
    ],
)
def test_numbers_that_can_be_counts_or_amounts(value: object, count: int, amount: float | None) -> None:
    assert tokens(value) == count
    assert cost(value) == amount
