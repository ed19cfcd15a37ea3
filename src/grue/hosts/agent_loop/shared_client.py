"""`list_mcp_tools` and `invoke_mcp_tool`: one MCP server for the whole program, without a client object.

```python
from grue.hosts.agent_loop import configure_mcp_client, invoke_mcp_tool, list_mcp_tools

configure_mcp_client("http://127.0.0.1:8000/mcp")
print([tool.name for tool in list_mcp_tools()])
print(invoke_mcp_tool("echo", {"text": "hello"}).content)
```

The client is made at the first call. It is closed at the interpreter's exit, and a program that forgets it
ends as it would without. For several servers, or for a lifetime of your own, use a `ToolClient`.
"""

import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from grue import HttpServer, MCPConfigError, StdioServer, ToolClient
from grue import messages as m
from grue.hosting import ToolServer
from grue.hosts.agent_loop.injected import MCP, PREFIX

VARIABLE = "GRUE_MCP_SERVER"

Server: TypeAlias = ToolServer | str | Sequence[str]
"""A tool server, a URL, or a command with its arguments, as one text or as a list."""


class _SharedClient:
    """The client, and how to make it."""

    def __init__(self) -> None:
        # Reentrant, because a signal handler may interrupt the thread that holds it.
        self._lock = threading.RLock()
        self._client: ToolClient | None = None
        self._server: Server | None = None

    def configure(self, server: Server | None) -> None:
        with self._lock:
            self._server = None if server is None else _tool_server(server)
            self.close()

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def get(self) -> ToolClient:
        with self._lock:
            if self._client is None:
                # A call that meets the server's death is not repeated; the next one starts it again.
                client = ToolClient({MCP: self._configured()}, max_reconnects=None)
                self._client = client.__enter__()
            return self._client

    def invoke(self, name: str, arguments: Mapping[str, object] | None) -> m.ToolCallResult:
        return self.get().call(f"{PREFIX}{name.removeprefix(PREFIX)}", arguments)

    def forget(self) -> None:
        """Drop what a forked process has inherited: the loop of the client is its parent's."""
        server = self._server
        self.__init__()  # type: ignore[misc]  # the lock, too, may be held by a thread that is not here
        self._server = server

    def _configured(self) -> ToolServer:
        named = os.environ.get(VARIABLE, "").strip()
        if self._server is None and not named:
            raise MCPConfigError(
                "No MCP server is configured. Call configure_mcp_client with a URL or a command, or set the"
                f" environment variable {VARIABLE} to one."
            )
        return _tool_server(named if self._server is None else self._server)


def _tool_server(server: Server) -> ToolServer:
    if not isinstance(server, str | Sequence):
        return server
    if isinstance(server, str) and "://" in server and not any(map(str.isspace, server)):
        return HttpServer(name=MCP, url=server)
    words = shlex.split(server) if isinstance(server, str) else list(server)
    if not words:
        raise MCPConfigError("The MCP server is an empty text: it is a URL, or a command with its arguments.")
    return StdioServer(name=MCP, command=words[0], args=tuple(words[1:]))


_shared = _SharedClient()
os.register_at_fork(after_in_child=_shared.forget)


def configure_mcp_client(server: Server) -> None:
    """Say which server `list_mcp_tools` and `invoke_mcp_tool` talk to. An earlier client is closed.

    Args:
        server: A URL (streamable HTTP), a command with its arguments, or any tool server that a `ToolClient`
            takes, such as `HttpServer(name="mcp", url=..., transport="sse")`. Without this call, the
            environment variable `GRUE_MCP_SERVER` holds a URL or a command.

    Raises:
        MCPConfigError: The text is empty.
    """
    _shared.configure(server)


def list_mcp_tools() -> tuple[m.ToolDefinition, ...]:
    """Return the server's tools. The first call, of any thread, starts the client; blocking.

    Pass them to an `AgentLoop` as `mcp_tools=`; their full names are `mcp.TOOL`.

    Raises:
        MCPConfigError: No server is configured.
        MCPServerStartupError: It could not be started.
        MissingDependencyError: `mcp` is absent or too old.

    Source: L12
    """
    return _shared.get().tools()


def invoke_mcp_tool(name: str, arguments: Mapping[str, object] | None = None) -> m.ToolCallResult:
    """Call a tool of the server and return its result; blocking, thread-safe.

    A call that fails returns an error result, as in a turn: the tool is unknown, reports an error or takes
    too long, or the server dies. The next call starts a server that has died again. Ctrl-C cancels the call.
    The function can be passed to an `AgentLoop` as `invoke_mcp_tool=`.

    Args:
        name: The tool's name, with or without `mcp.`.
        arguments: A JSON object; `None`: no arguments.

    Raises:
        MCPConfigError: No server is configured.
        MCPServerStartupError: It could not be started.

    Source: L12
    """
    return _shared.invoke(name, arguments)


def reset_mcp_client() -> None:
    """Close the client and forget its server, for tests. The next call needs a configuration."""
    _shared.configure(None)
