"""The JSON in a final answer: alone, fenced, within prose, and what only looks like it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from case_tables import each_case
from growth import assert_linear
from hypothesis import given
from hypothesis import strategies as st

from grue.protocol.answers import MAX_CHARS, json_objects

LOOK = {"action": "look"}
NORTH = {"action": "north"}
OBJECTS: Any = st.dictionaries(
    st.text(max_size=5), st.integers() | st.text(max_size=5) | st.lists(st.booleans(), max_size=3), max_size=4
)


@each_case(
    "text, found",
    [
        ('{"action": "look"}', [LOOK]),
        ('  {"action": "look"}\n', [LOOK]),
        ('```json\n{"action": "look"}\n```', [LOOK]),
        ('```\n{"action": "look"}```', [LOOK]),
        ('```json \r\n{"action": "look"}\r\n```', [LOOK]),
        ('Here:\n```json\n{"action": "look"}\n```\nor\n```json\n{"action": "north"}\n```', [LOOK, NORTH]),
        ('I could {"action": "look"} but I will {"action": "north"}.', [NORTH, LOOK]),
        ('{"action": "north"}\n```json\n{"action": "look"}\n```', [LOOK, NORTH]),
        ('{"a": {"action": "look"}}', [{"a": LOOK}]),
        ('Go {north}, {"action": "look"}', [LOOK]),
        ('{"broken": {"action": "look"}', [LOOK]),
        ('{"action": "look"} {"action": "look"}', [LOOK]),
        ("", []),
        ("look", []),
        ('["action", "look"]', []),
        ('[{"action": "look"}]', [LOOK]),
        ("```json\n{not json}\n```", []),
        ('```json {"action": "look"}```', [LOOK]),
    ],
)
def test_r15_1_objects_are_found_the_likeliest_first(text: str, found: list[object]) -> None:
    assert list(json_objects(text)) == found


@given(OBJECTS, st.text(st.characters(exclude_characters="{}`"), max_size=20))
def test_an_object_at_the_end_of_any_prose_comes_first(value: dict[str, object], prose: str) -> None:
    assert next(json_objects(prose + json.dumps(value))) == value


@given(st.text(max_size=200))
def test_arbitrary_text_is_read_without_complaint(text: str) -> None:
    assert all(isinstance(value, dict) for value in json_objects(text))


def test_the_answer_after_many_stray_braces_is_found() -> None:
    assert next(json_objects("f{x} " * 5_000 + json.dumps(NORTH))) == NORTH


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (lambda size: '{"a":' * size, 100_000),
        (lambda size: "{" * size, 500_000),
        (lambda size: "[" * size, 500_000),
        (lambda size: '{"a": ' + "9" * size + "}", 5_000),
        (lambda size: '{"a": "' + "x" * size, 500_000),
        (lambda size: '{"a": "b", ' * size, 50_000),
        (lambda size: "```json\n" * size, 50_000),
        (lambda size: "".join(f'{{"n": {number}}} ' for number in range(size)), 50_000),
        (lambda size: "".join(f'```\n{{"n": {number}}}\n```\n' for number in range(size)), 20_000),
    ],
    ids=[
        "deep",
        "braces",
        "brackets",
        "digits",
        "open text",
        "broken",
        "fences",
        "objects",
        "fenced objects",
    ],
)
def test_huge_texts_take_linear_time(text: Callable[[int], str], size: int) -> None:
    def find(size: int) -> None:
        assert len(list(json_objects(text(size)))) <= 101

    assert_linear(find, size)


def test_objects_that_are_nested_too_deeply_are_no_candidates() -> None:
    # To compare two of them, or to read one as a model, exhausts the stack.
    deep = '{"a":' * 700 + "1" + "}" * 700
    assert list(json_objects(" ".join([deep] * 301))) == []
    assert list(json_objects(f'{deep} {{"action": "look"}} {deep}')) == [{"action": "look"}]
    assert list(json_objects(f"```json\n{deep}\n```")) == []


def test_of_a_very_long_text_the_end_is_read() -> None:
    assert list(json_objects('{"a": 1}' + " " * MAX_CHARS + '{"b": 2}')) == [{"b": 2}]
