"""What can stand behind a session, and under which name."""

import pytest

from grue.engine.tool_servers import hide_secrets, usable_servers
from grue.errors import MCPConfigError
from grue.runtime.trace.recorder import Recorder
from grue.tool_sessions.function_tools import FunctionTools
from grue.tool_sessions.server_specs import StdioServer


def test_a_server_goes_by_the_name_that_it_is_given_here() -> None:
    servers = usable_servers({"a": StdioServer(name="b", command="x"), "f": FunctionTools({})})
    assert [getattr(server, "name", None) for server in servers.values()] == ["a", None]


def test_a_name_may_have_the_prefix_of_mcp_tools() -> None:
    assert list(usable_servers({"mcp.a": FunctionTools({}), "b": FunctionTools({})})) == ["mcp.a", "b"]


def test_two_servers_that_could_have_tools_of_one_name_are_refused() -> None:
    with pytest.raises(MCPConfigError, match=r"'mcp' and 'mcp\.a' could have the same names"):
        usable_servers({"mcp": FunctionTools({}), "mcp.a": FunctionTools({})})


@pytest.mark.parametrize("name", ["", "a.b", "mcp.", "mcp.a.b"])
def test_a_name_that_no_tool_could_have_is_refused(name: str) -> None:
    with pytest.raises(MCPConfigError, match=r"SERVER\.TOOL"):
        usable_servers({name: FunctionTools({})})


def test_secrets_of_two_servers_with_one_name_are_both_hidden() -> None:
    recorder = Recorder()
    values = ("planted-0123456789", "sown-9876543210")
    hide_secrets(recorder, [StdioServer(name="a", command="x", env={"A_TOKEN": value}) for value in values])
    assert not set(recorder.redacted_text(" ".join(values)).split()) & set(values)


def test_secrets_of_servers_are_hidden_from_the_trace() -> None:
    recorder, shown = Recorder(), []
    recorder.add(lambda envelope, line: shown.append(line))
    hide_secrets(recorder, [StdioServer(name="a", command="x", env={"A_TOKEN": "planted-0123456789"})])
    recorder.record({"text": "it is planted-0123456789"}, sender="a")
    assert b"planted" not in shown[0]
    assert b"[redacted:A_TOKEN]" in shown[0]
