"""What the wire formats share in reading a reply: ids, arguments, numbers, texts."""

import json

import pytest
from case_tables import each_case
from hypothesis import given
from hypothesis import strategies as st
from wire_bodies import JSON_VALUES

from grue.messages import Usage
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.wire_format import (
    CallIds,
    cost,
    read_call,
    read_object,
    text_of,
    tokens,
    usage_of,
)
from grue.protocol.tools.names import WireNames

NAMES = WireNames("encoded", ["s.t"])


def arguments(sent: object) -> str:
    return read_call("a", "s__t", sent, CallIds(1), NAMES).arguments


@each_case(
    "sent, read",
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


def test_any_number_of_objects_is_read_in_one_pass() -> None:
    # Read one after the other, with the rest copied each time, these took minutes.
    assert arguments('{"a":1}\n' * 600_000) == '{"a":1}'
    different = '{"a":1}' + '{"a":2}' * 600_000
    assert arguments(different) == different
    assert arguments('{ "a":1}' + '{"a":1}' * 600_000).startswith("{")
    assert arguments('{"a":1} {"a": 1}' * 6) == '{"a":1} {"a": 1}' * 6  # more copies than are compared


@pytest.mark.parametrize("digits", [4_300, 4_301, 100_000])
def test_an_integer_of_any_length_is_no_crash(digits: int) -> None:
    text = '{"n": ' + "9" * digits + "}"
    assert arguments(text) == text
    assert arguments(f"{text}{text}") == text * (1 if digits == 4_300 else 2)
    assert arguments(text + '{"n": 1}') == text + '{"n": 1}'


@given(st.text(st.characters(codec=None)) | st.text('{}[]",:0123456789e \\', max_size=60))
def test_any_arguments_are_read(text: str) -> None:
    assert isinstance(arguments(text), str)


@given(value=st.dictionaries(st.text(max_size=4), st.integers(), max_size=3), copies=st.integers(1, 4))
def test_any_number_of_copies_is_one_call(value: dict[str, int], copies: int) -> None:
    text = json.dumps(value)
    assert arguments(text * copies) == text


@given(JSON_VALUES, JSON_VALUES, JSON_VALUES)
@pytest.mark.slow
def test_any_parts_make_a_call(call_id: object, name: object, sent: object) -> None:
    call = read_call(call_id, name, sent, CallIds(2, {"used"}), NAMES)
    assert call.call_id
    assert call.name
    assert isinstance(call.arguments, str)


@each_case(
    "usage, cost_usd",
    [
        ({"cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.5}}, 0.5),
        ({"cost": 0.25, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.5}}, 0.75),
        ({"cost": 0.5, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.5}}, 0.5),
        ({"cost": 0.5, "is_byok": True, "cost_details": None}, 0.5),
        ({"is_byok": True, "cost_details": {"upstream_inference_cost": 0.5}}, 0.5),
        ({}, None),
    ],
)
def test_the_bill_of_a_provider_with_a_key_of_ones_own_counts(
    usage: dict[str, object], cost_usd: float | None
) -> None:
    assert usage_of(usage, input_tokens=1) == Usage(input_tokens=1, cost_usd=cost_usd)


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
