"""The line of a setting, however its file is written."""

import json
from pathlib import Path
from typing import Any

import pytest
from case_tables import each_case
from hypothesis import given
from hypothesis import strategies as st

from grue.config.documents import KeyPath, parse_json, parse_toml

TEXT = '''# grue's settings
title = """
[tool.grue.context]
low_water = 0.1
"""

[tool.grue.context]   # the window

# how much of it
low_water = 0.5
read_only = [
    "files.*",
    "web.*",
]
high_water = 0.9
summary.model = "m"

[[tool.grue.tool_policy.rules]]
tools = ["a.*"]

[[tool.grue.tool_policy.rules]]
tools = ["b.*"]
verdict = "no"
[tool.grue]
budget = { turn_tokens = 3, prices = { m = 1 } }
"quoted key" = 1
'''
PATH = Path("settings.toml")
CONTEXT: KeyPath = ("tool", "grue", "context")
RULES: KeyPath = ("tool", "grue", "tool_policy", "rules")


def line_of(text: str, keys: KeyPath) -> int | None:
    return parse_toml(text, PATH).line(keys)


@each_case(
    "keys, line",
    [
        (("title",), 2),
        (CONTEXT, 7),
        ((*CONTEXT, "low_water"), 10),
        ((*CONTEXT, "read_only"), 11),
        ((*CONTEXT, "read_only", 1), 11),
        ((*CONTEXT, "high_water"), 15),
        ((*CONTEXT, "summary", "model"), 16),
        ((*RULES, 0), 18),
        ((*RULES, 0, "tools"), 19),
        ((*RULES, 1, "verdict"), 23),
        (("tool", "grue", "budget", "turn_tokens"), 25),
        (("tool", "grue", "budget", "prices", "m"), 25),
        (("tool", "grue", "quoted key"), 26),
    ],
)
def test_the_line_of_a_value(keys: KeyPath, line: int) -> None:
    assert line_of(TEXT, keys) == line
    assert line_of(TEXT.replace("\n", "\r\n"), keys) == line


@each_case(
    "keys, line",
    [
        ((*CONTEXT, "other"), 7),
        ((*RULES, 1, "limit"), 21),
        ((*RULES, 9), 18),
        ((*CONTEXT, "low_water", "deeper"), 10),
        (("project", "name"), None),
        ((), None),
    ],
)
def test_what_is_not_there_has_the_line_of_what_is_around_it(keys: KeyPath, line: int | None) -> None:
    assert line_of(TEXT, keys) == line


@pytest.mark.slow
def test_a_long_file_is_read_once() -> None:
    long = "a = [\n" + "1,\n" * 50_000 + "]\nb = 1\n"
    assert line_of(long, ("b",)) == 50_003


@each_case(
    "text, keys, line",
    [
        ('a = """\n\\""\\" ] = \n"""""\nb = 1', ("b",), 4),
        ("a = '''\n\\''' # '''\nb = [ # ]\n]\nc = 1", ("c",), 5),
        ('"a]=#" = 1\n[ x . "y.z" ] # [k]\nb = 1', ("x", "y.z", "b"), 3),
        ("a = { b = [ {c = 1} ] }\n'd' . e = '#'\nf = 1979-05-27", ("f",), 3),
        ("[[a]]\n[a.b]\n[[a.b.c]]\nd = 1\n[[a]]\n[[a.b.c]]\nd = 2", ("a", 1, "b", "c", 0, "d"), 7),
        ('a . b = 1\n\na."c" = 2', ("a", "c"), 3),
        ("'' = 1\nb = ''", ("b",), 2),
    ],
)
def test_the_line_of_what_is_written_in_a_rare_way(text: str, keys: KeyPath, line: int) -> None:
    assert line_of(text, keys) == line


JSON = """{ "a": [1,
  {"b, {": "\\"]",
   "c": {}}, [],
  2], "d": {
    "e": null}
}"""


@each_case(
    "keys, line",
    [
        ((), 1),
        (("a", 0), 1),
        (("a", 1, "b, {"), 2),
        (("a", 1, "c"), 3),
        (("a", 2), 3),
        (("a", 3), 4),
        (("d",), 4),
        (("d", "e"), 5),
        (("d", "other"), 4),
    ],
)
def test_the_line_of_a_value_in_json(keys: KeyPath, line: int) -> None:
    assert parse_json(JSON, PATH).line(keys) == line


def paths(value: Any, keys: KeyPath = ()) -> set[KeyPath]:
    inside: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return {keys}.union(*(paths(each, (*keys, key)) for key, each in inside))


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v))
)
@pytest.mark.slow
def test_each_value_of_json_has_a_line(value: Any) -> None:
    text = json.dumps(value, indent=1)
    lines = parse_json(text, PATH).lines
    assert lines.keys() == paths(value)
    assert max(lines.values()) <= text.count("\n") + 1


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.text()), max_size=5))
@pytest.mark.slow
def test_each_key_of_toml_has_a_line(table: dict[str, Any]) -> None:
    text = "".join(f"{json.dumps(k)} = {json.dumps(v)}\n" for k, v in table.items())
    lines = parse_toml(text, PATH).lines if "\x7f" not in text and "\\ud" not in text else None
    assert lines is None or lines == {(key,): n for n, key in enumerate(table, start=1)}
