"""The pytest plugin: fixtures for testing agents against servers and models that fail.

It is there as soon as grue is installed, and imports nothing of grue until a fixture is used.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from typing import Protocol

    from grue.mcp_transport.stdio import StdioServer
    from grue.provider_rules.chat_rules import ProviderRules
    from grue.testing.fake_tools import FakeToolServer
    from grue.testing.llm_server import LlmReply, Script, ScriptedLlmServer
    from grue.tool_sessions.function_tools import FunctionTools

    class MakesFaultyServer(Protocol):
        """Takes flags of `grue.testing.faulty_server`."""

        def __call__(self, *flags: str, name: str = "faulty") -> StdioServer:
            """Return how to start it."""
            ...

    class MakesScriptedLlm(Protocol):
        """Takes a script."""

        def __call__(
            self, script: Script | LlmReply, *more: LlmReply, rules: ProviderRules | None = None
        ) -> ScriptedLlmServer:
            """Return the endpoint, running."""
            ...


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fail the test if it leaves a process, a descriptor or a thread behind (P9).

    The other fixtures of this plugin are closed before it looks; name it before fixtures of your own.
    """
    from grue.testing.leftovers import assert_nothing_left

    with assert_nothing_left():
        yield


@pytest.fixture
def faulty_mcp_server() -> "MakesFaultyServer":
    """Make MCP servers that fail as told: `faulty_mcp_server("--exit-at", "call", name="files")`.

    What comes back is a `StdioServer`, for a `Runner` or a `ToolClient`. Its flags are those of
    `python -m grue.testing.faulty_server --help`; without any it is a sound server with the tools `echo`,
    `fail` and `environ`.
    """
    from grue.mcp_transport.stdio import StdioServer
    from grue.testing import faulty_server

    def make(*flags: str, name: str = "faulty") -> StdioServer:
        command, *args = faulty_server.argv(*flags)
        return StdioServer(name=name, command=command, args=tuple(args))

    return make


@pytest.fixture
def scripted_llm(request: pytest.FixtureRequest) -> "Iterator[MakesScriptedLlm]":
    """Start LLM endpoints that say what a script says; closed with the test.

    The script is replies in order, or one function from request to reply; see `grue.testing.llm_server`.
    """
    from grue.testing.llm_server import LlmReply, ScriptedLlmServer

    if "nothing_left" in request.fixturenames:
        request.getfixturevalue("nothing_left")  # first, so that it looks when this one is closed

    with ExitStack() as running:

        def make(
            script: "Script | LlmReply", *more: LlmReply, rules: "ProviderRules | None" = None
        ) -> ScriptedLlmServer:
            replies = [script, *more] if isinstance(script, LlmReply) else script
            return running.enter_context(ScriptedLlmServer(replies, rules=rules))

        yield make


@pytest.fixture
def fake_tool_session() -> "Callable[[str], FakeToolServer]":
    """Make tool servers without a process, that answer as told: `fake_tool_session("cave")`.

    See `grue.testing.fake_tools`.
    """
    from grue.testing.fake_tools import FakeToolServer

    return FakeToolServer


@pytest.fixture
def function_tools() -> "Callable[[Mapping[str, Callable[..., Any]]], FunctionTools]":
    """Make tool servers of Python functions, by tool name: `function_tools({"add": add})`."""
    from grue.tool_sessions.function_tools import FunctionTools

    return FunctionTools
