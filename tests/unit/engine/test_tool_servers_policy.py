"""What a runner makes of a policy and of the tools that a request names."""

import pytest

from grue import FunctionTools, StdioServer, ToolPolicy, ToolRule
from grue.engine.tool_servers import servers_for, usable_policy
from grue.errors import MCPConfigError
from grue.messages import ServerName

NAMES = ("web", "weather", "box")
SERVERS = {ServerName(name): StdioServer(name=name, command="x") for name in NAMES}


@pytest.mark.parametrize(
    ("tools", "opened"),
    [
        (True, NAMES),
        (False, ()),
        ((), ()),
        (("web.read",), ("web",)),
        (("web.*", "box.put"), ("web", "box")),
        (("we*",), ("web", "weather")),
        (("we?.read",), ("web", "weather")),
        (("*read",), NAMES),
        (("x.y",), ()),
    ],
)
def test_only_servers_whose_tools_can_match_are_opened(
    tools: bool | tuple[str, ...], opened: tuple[str, ...]
) -> None:
    assert servers_for(tools, SERVERS) == opened


def test_a_server_that_may_name_its_tools_otherwise_is_always_opened() -> None:
    servers = {**SERVERS, ServerName("mine"): FunctionTools({"f": lambda: 1})}
    assert servers_for(("web.read",), servers) == ("web", "mine")


def test_the_hosts_own_functions_are_trusted() -> None:
    servers = {**SERVERS, ServerName("mine"): FunctionTools({"f": lambda: 1})}
    policy = ToolPolicy(rules=(ToolRule(),), trusted=("web",))
    assert usable_policy(policy, servers).trusted == ("web", "mine")


def test_without_a_policy_everything_is_allowed() -> None:
    assert usable_policy(None, SERVERS) == usable_policy(ToolPolicy(), SERVERS) == ToolPolicy()


def test_a_policy_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(MCPConfigError, match="rule 1"):
        usable_policy(ToolPolicy(rules=(ToolRule(tools=()),)), SERVERS)
