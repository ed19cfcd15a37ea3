"""The names of an agent loop's tools, and which of them collide."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grue import ContextPolicy, FunctionTools, LlmSettings, ShellTool, ToolPolicy, ToolRule, ToolSearch
from grue.errors import MCPConfigError
from grue.hosts.agent_loop.loop import (
    AgentLoop,
    beside,
    prefixed,
    prefixed_lock,
    prefixed_policy,
)
from grue.protocol.tools.lock import ToolLock
from grue.protocol.tools.policy import unmatched_patterns


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def test_mcp_servers_get_the_prefix() -> None:
    files = FunctionTools([add])
    assert prefixed({"files": files}) == {"mcp.files": files}


def test_functions_are_tools_and_the_shell_has_a_name_of_its_own(tmp_path: Path) -> None:
    shell = ShellTool(folder=tmp_path, commands=["ls"])
    servers = beside([add, shell])
    functions = servers["tools"]
    assert isinstance(functions, FunctionTools)
    assert list(functions.functions) == ["add"]
    assert servers["shell"] is shell
    assert list(beside({"sh": shell})) == ["sh"]
    assert beside([]) == {}


@pytest.mark.parametrize(
    "make",
    [
        lambda: prefixed({"mcp": FunctionTools([add])}),
        lambda: prefixed({"mcp.files": FunctionTools([add])}),
        lambda: prefixed({1: FunctionTools([add])}),  # type: ignore[dict-item]
        lambda: beside({1: FunctionTools([add])}),  # type: ignore[dict-item]
        lambda: beside({"mcp": FunctionTools([add])}),
        lambda: beside({"mcp.files": FunctionTools([add])}),
        lambda: beside([add, add]),
        lambda: beside([ShellTool(folder=".", commands=["ls"])] * 2),
        lambda: beside([FunctionTools([add])]),
        lambda: beside(["add"]),  # type: ignore[list-item]  # what a user might write
    ],
)
def test_names_that_collide_and_what_has_no_name_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(MCPConfigError, match="name"):
        make()


LLM = LlmSettings(base_url="http://127.0.0.1:9/v1", model="m")


@pytest.mark.parametrize("argument", ["on_event", "tool_lock", "tool_policy", "tool_search"])
def test_an_argument_of_another_kind_is_refused_by_its_name(argument: str) -> None:
    given: dict[str, Any] = {argument: 5}
    with pytest.raises(MCPConfigError, match=f"{argument}= wants"):
        AgentLoop(LLM, **given)


@pytest.mark.parametrize(
    "policy",
    [
        ToolPolicy(rules=(ToolRule(tools="files.*", verdict="deny"),)),  # type: ignore[arg-type]
        ToolPolicy(rules=("files.*",)),  # type: ignore[arg-type]
        ToolPolicy(trusted="files"),  # type: ignore[arg-type]
    ],
)
def test_a_malformed_policy_is_refused_and_not_read_letter_by_letter(policy: ToolPolicy) -> None:
    with pytest.raises(MCPConfigError, match=r"tool_policy=ToolPolicy\(\.\.\.\)"):
        AgentLoop(LLM, tool_policy=policy)


def test_patterns_given_in_python_may_name_mcp_tools_without_the_prefix(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.touch()
    given: dict[str, Any] = {
        "tool_policy": ToolPolicy(rules=(ToolRule(tools=("files.read",), verdict="deny"),)),
        "tool_search": ToolSearch(always=("files.read",)),
        "context": ContextPolicy(read_only=("files.read",)),
    }
    both = ("files.read", "mcp.files.read")
    for loop in AgentLoop(LLM, **given), AgentLoop.from_toml(path, llm=LLM, **given):
        with loop:
            runner = loop.runner
            assert [rule.tools for rule in runner.tool_policy.rules] == [both]
            assert runner.tool_search is not None
            assert runner.context is not None
            assert runner.tool_search.always == runner.context.read_only == both


def test_a_policy_and_a_lock_hold_for_the_names_with_the_prefix() -> None:
    policy = ToolPolicy(
        rules=(ToolRule(tools=("files.*", "mcp.web.get"), verdict="deny"), ToolRule(verdict="ask")),
        trusted=("files",),
    )
    changed = prefixed_policy(policy)
    assert [rule.tools for rule in changed.rules] == [
        ("files.*", "mcp.files.*", "mcp.web.get"),
        ("*", "mcp.*"),
    ]
    assert [rule.verdict for rule in changed.rules] == ["deny", "ask"]
    assert changed.trusted == ("files", "mcp.files")
    assert list(prefixed_lock(ToolLock({"files": {}})).servers) == ["mcp.files"]


def test_tools_that_are_always_offered_are_so_by_the_names_with_the_prefix() -> None:
    with AgentLoop(LLM, tool_search=ToolSearch(above=7, always=("files.*",))) as loop:
        assert loop.runner.tool_search == ToolSearch(above=7, always=("files.*", "mcp.files.*"))


@pytest.mark.parametrize(
    ("denied", "unmatched"),
    [
        ("tools.add", ()),
        ("mcp.web.get", ()),
        ("files.*", ()),
        ("tools.ad", ("tools.ad",)),
        ("mcp.x", ("mcp.x",)),
    ],
)
def test_only_a_pattern_that_matches_with_neither_name_is_reported(
    denied: str, unmatched: tuple[str]
) -> None:
    policy = prefixed_policy(ToolPolicy(rules=(ToolRule(tools=(denied,), verdict="deny"),)))
    patterns = [each for rule in policy.rules for each in rule.tools]
    assert unmatched_patterns(patterns, ("tools.add", "mcp.web.get", "mcp.files.read")) == unmatched
