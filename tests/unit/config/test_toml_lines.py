"""The line of a setting, however its file is written."""

import pytest
from case_tables import each_case

from grue.config import toml_lines
from grue.config.toml_lines import Keys, line_of

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
CONTEXT: Keys = ("tool", "grue", "context")
RULES: Keys = ("tool", "grue", "tool_policy", "rules")


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
def test_the_line_of_a_value(keys: Keys, line: int) -> None:
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
def test_what_is_not_there_has_the_line_of_what_is_around_it(keys: Keys, line: int | None) -> None:
    assert line_of(TEXT, keys) == line


def test_a_file_that_takes_too_long_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    long = "a = [\n" + "1,\n" * 2000 + "]\nb = 1\n"
    assert line_of(long, ("b",)) is None
    monkeypatch.setattr(toml_lines, "_MAX_CHARS", 100)
    assert line_of(long, ("a",)) is None
