"""Which tools a server's entry offers, in our words and in those of other hosts; and its policy."""

from typing import Any

import pytest
from pydantic import ValidationError

from grue.config.mcp_servers import MCPServerConfig, to_tool_server
from grue.tool_sessions.server_specs import ServerOptions


def options(**entry: Any) -> ServerOptions:
    config = MCPServerConfig.model_validate({"command": "x", **entry})
    assert config.warnings == ()
    return to_tool_server("s", config).options


@pytest.mark.parametrize(
    "key", ["allow_tools", "allowed_tools", "enabled_tools", "enabledTools", "includeTools"]
)
def test_a_list_of_tools_to_offer_has_many_names(key: str) -> None:
    assert options(**{key: ["read_*"]}) == ServerOptions(include=("read_*",))


@pytest.mark.parametrize("key", ["disabled_tools", "disabledTools", "excludeTools"])
def test_so_has_a_list_of_tools_to_leave_out(key: str) -> None:
    assert options(allow_tools=["a", "b"], **{key: ["b"]}) == ServerOptions(
        include=("a", "b"), exclude=("b",)
    )


@pytest.mark.parametrize(
    "entry",
    [
        {"allow_tools": ["a"], "enabledTools": ["b"]},
        {"disabledTools": ["a"], "excludeTools": ["b"]},
        {"tools": {"include": ["a"]}, "allow_tools": ["b"]},
        {"tools": ["a"], "disabledTools": ["b"]},
    ],
)
def test_two_lists_for_one_thing_are_an_error(entry: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r" and .*: keep only one"):
        MCPServerConfig.model_validate({"command": "x", **entry})


def test_a_list_of_something_else_is_an_error() -> None:
    with pytest.raises(ValidationError, match=r"tools\.include"):
        MCPServerConfig.model_validate({"command": "x", "allow_tools": "a"})


def test_a_servers_policy() -> None:
    assert options() == ServerOptions()
    assert options(required=False, check_arguments=False) == ServerOptions(
        required=False, check_arguments=False
    )
    assert options(required=True).required is True
