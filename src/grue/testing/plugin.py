"""The pytest plugin: fixtures with MCP servers and LLM endpoints, correct and faulty, to test agents with."""
# pytest loads this module wherever grue is installed, so it imports grue's modules only in its fixtures.

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from grue.testing.fake_tools import FakeToolServer
    from grue.testing.llm_server import LlmReply, Script, ScriptedLlmServer
    from grue.testing.mock_server import MockServer
    from grue.testing.providers.chat_rules import ProviderRules
    from grue.tool_sessions.function_tools import FunctionTools
    from grue.tool_sessions.server_specs import HttpServer, StdioServer


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fail the test if it leaves a process, a descriptor or a thread behind.

    Request `nothing_left` before your own fixtures, so that these are closed before the check.

    Source: P9
    """
    from grue.testing.leftovers import assert_nothing_left

    with assert_nothing_left():
        yield


@pytest.fixture
def _grue_running(request: pytest.FixtureRequest) -> Iterator[ExitStack]:
    if "nothing_left" in request.fixturenames:
        request.getfixturevalue("nothing_left")  # set up first, so that its check runs last
    with ExitStack() as running:
        yield running


@pytest.fixture
def faulty_mcp_server() -> "Callable[..., StdioServer]":
    """Configure faulty servers: `faulty_mcp_server("--exit-at", "call", name="files")` is a `StdioServer`."""
    from grue.testing import faulty_server
    from grue.tool_sessions.server_specs import StdioServer

    def make(*flags: str, name: str = "faulty") -> StdioServer:
        command, *args = faulty_server.argv(*flags)
        return StdioServer(name=name, command=command, args=tuple(args))

    return make


@pytest.fixture
def mock_mcp_server(_grue_running: ExitStack) -> "Callable[..., HttpServer]":
    """Run correct MCP servers in threads during a test: `mock_mcp_server(name="shop")` is an `HttpServer`."""
    from grue.testing.mock_server import MockServer
    from grue.tool_sessions.server_specs import HttpServer

    def make(
        server: "MockServer | None" = None, *, transport: Literal["http", "sse"] = "http", **options: Any
    ) -> "HttpServer":
        if server is None:
            from grue.testing.mock_features import reference_server

            server = reference_server(**options)
        elif options:
            raise TypeError(f"mock_mcp_server: give {', '.join(options)} to the MockServer itself.")
        assert isinstance(server, MockServer), "mock_mcp_server takes a MockServer"
        url = _grue_running.enter_context(server.serve_http(transport=transport))
        return HttpServer(name=server.name, url=url, transport=transport)

    return make


@pytest.fixture
def mock_mcp_process() -> "Callable[..., StdioServer]":
    """Configure a correct MCP server as a process: a `StdioServer`. Arguments as for `grue mock-server`."""
    from grue.tool_sessions.server_specs import StdioServer

    def make(*arguments: str, name: str = "reference") -> StdioServer:
        command = ("-m", "grue", "mock-server", "--stdio", *arguments)
        return StdioServer(name=name, command=sys.executable, args=command)

    return make


@pytest.fixture
def scripted_llm(_grue_running: ExitStack) -> "Callable[..., ScriptedLlmServer]":
    """Start LLM endpoints with scripted replies (`grue.testing.llm_server`), closed after the test."""
    # Errors without `Retry-After` get `Retry-After: 0`, so that the client retries without a wait.
    from grue.testing.llm_server import LlmReply, ScriptedLlmServer

    def make(
        script: "Script | LlmReply", *more: "LlmReply | str", rules: "ProviderRules | None" = None
    ) -> ScriptedLlmServer:
        replies: Any = [script, *more] if more or isinstance(script, LlmReply | str) else script
        return _grue_running.enter_context(ScriptedLlmServer(replies, rules=rules, retry_after="0"))

    return make


@pytest.fixture
def fake_tool_session() -> "Callable[[str], FakeToolServer]":
    """Return a function that makes a tool server without a process: `fake_tool_session("cave")`."""
    from grue.testing.fake_tools import FakeToolServer

    return FakeToolServer


@pytest.fixture
def function_tools() -> "Callable[[Mapping[str, Callable[..., Any]]], FunctionTools]":
    """Return a function that makes a tool server from functions: `function_tools({"add": add})`."""
    from grue.tool_sessions.function_tools import FunctionTools

    return FunctionTools
