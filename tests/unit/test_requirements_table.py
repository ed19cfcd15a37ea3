"""docs/requirements.md: complete, and true as far as a program can tell."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from case_tables import each_case
from example_counts import LEAST, count, named_tests
from hypothesis import is_hypothesis_test

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "requirements.md"
CRITERIA = (5, 6, 7, 7, 10, 10, 5, 6, 5, 5, 5, 5, 5, 5, 5)
"""Acceptance criteria of requirements 1 to 15."""

EVENTS = [
    "mcp_manager_init",
    "mcp_init_error",
    "mcp_disabled_fallback",
    "mcp_iteration_start",
    "mcp_tool_call",
    "mcp_tool_result",
    "mcp_tool_timeout",
    "mcp_tool_error",
    "mcp_unexpected_state",
    "mcp_no_content",
    "agent_parse_error",
    "mcp_session_complete",
    "mcp_session_started",
    "mcp_connect_retry",
    "mcp_connect_retry_succeeded",
    "mcp_disabled",
    "mcp_tool_skipped",
    "mcp_forced_final",
]
LOG_LINES = """
[INFO] Turn N: MCP session started (max M iterations)
[INFO] Turn N Iteration I: Agent calling tool S.T
[DEBUG] Turn N Iteration I: Tool arguments: {json}
[INFO] Turn N Iteration I: Tool result received (0.3s)
[WARNING] Turn N Iteration I: Tool call timeout: S.T
[INFO] Turn N: Skipping remaining tools in batch after timeout
[INFO] Turn N: Forcing final action after tool timeout
[WARNING] Turn N: MCP session connect failed, retrying: {e}
[INFO] Turn N: MCP session retry successful
[WARNING] Turn N: MCP retry failed, disabling MCP for episode: {e}
[INFO] Turn N: Continuing without MCP tools
[INFO] Turn N: MCP session complete (I iterations, C tool calls)
[INFO] Turn N: Agent action: {action}
""".strip().splitlines()
TEXTS = r"""
Failed to start MCP server '{server}': {details}
Model '{model}' does not support tool calling.
MCP is enabled but config file not found: {path}
MCP initialization failed: {e}
No MCP servers configured in mcp_config.json
Invalid tool name format: {name}. Expected format: {server_name}.{tool_name}
Unknown MCP tool
Tool call timed out after {N}s
Tool call failed: {e}
Agent failed to return final action after tool calling. Last finish_reason: {r}
Please provide your final action now without calling any more tools.
{game state}\n\n{memories}
Parse error: {e}. Raw: {first 100 characters}
""".strip().splitlines()

ITEMS = [
    *(f"R{number}.{part}" for number, parts in enumerate(CRITERIA, 1) for part in range(1, parts + 1)),
    *(f"P{number}" for number in range(1, 49)),
    *(f"L{number}" for number in range(1, 29)),
    *(f"S{number}" for number in range(1, 30)),
    *(f"D{number}" for number in range(3, 13)),
    *(f"B{number}" for number in range(1, 100)),
    *(f"`{item}`" for item in (*EVENTS, *LOG_LINES, *TEXTS)),
    "names of observations",
]
OPEN = re.compile(r"\bopen: issue \d+\b")
REFERENCE = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows() -> list[tuple[str, str]]:
    """The item of each row, and its cell of tests."""
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [(row[0], row[-1]) for row in cells if row[-1] != "tests"]


@cache
def functions_of(path: str) -> frozenset[str]:
    """The names of a file's functions."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions)


def test_every_item_stands_there_once() -> None:
    counts = Counter(item for item, _ in rows())
    assert [item for item in ITEMS if counts[item] != 1] == []
    assert sorted(counts) == sorted(ITEMS)


@pytest.mark.slow
@each_case("item, tests", rows())
def test_each_item_has_tests_that_exist_or_an_issue(item: str, tests: str) -> None:
    named = REFERENCE.findall(tests)
    assert named or OPEN.search(tests), f"{item} has neither a test nor an issue"
    assert len(named) <= 3
    assert ("open" in REFERENCE.sub("", tests)) == bool(OPEN.search(tests)), "open rows name their issue"
    assert REFERENCE.sub("", tests).count("::") == 0, "a reference is not as it should be"
    missing = [f"{path}::{name}" for path, name in named if name not in functions_of(path)]
    assert missing == []


@each_case("number", range(1, 49))
def test_each_property_that_is_not_open_has_a_test_named_for_it(number: int) -> None:
    tests = dict(rows())[f"P{number}"]
    names = [name for _, name in REFERENCE.findall(tests)]
    assert any(f"_p{number}_" in name for name in names) or (not names and OPEN.search(tests))


def test_a_property_that_is_named_has_a_hundred_examples_in_every_run(request: pytest.FixtureRequest) -> None:
    properties = {
        item.nodeid: item.obj
        for item in request.session.items
        if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj)
    }
    named = {
        each: count(test) for each, test in properties.items() if each.partition("[")[0] in named_tests()
    }
    assert [each for each, number in named.items() if number < LEAST] == []
    # In a run of everything; a run of this file alone has none of them.
    assert len(named) > 30 or len(request.session.items) < 5000


def test_each_source_that_a_docstring_names_is_a_row() -> None:
    rows = re.findall(r"^\| ([A-Z][\d.]+) \|", TABLE.read_text(encoding="utf-8"), re.MULTILINE)
    known = {*rows, *(row.partition(".")[0] for row in rows)}
    named: set[str] = set()
    for module in (ROOT / "src").rglob("*.py"):
        for line in re.findall(r"^ *Source: (.*)$", module.read_text(encoding="utf-8"), re.MULTILINE):
            for first, last in re.findall(r"([A-Z]?[\w.]+)(?:-([A-Z]?[\d.]+))?", line):
                named |= {first}
                if last:  # R2.1-3 is short for R2.1-R2.3, and P31-32 for P31-P32
                    named.add(last if last[0].isalpha() else re.sub(r"\d+$", last, first))
    assert len(named) > 80
    assert sorted(named - known) == []
