"""Base classes that let the engine recognise `FunctionTools` and `ShellTool` without importing either."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeAlias

from grue import messages as m
from grue.runtime.actor import Note
from grue.runtime.processes.process_group import ProcessRegistry
from grue.tool_sessions.connection import Connect, Listing, ToolConnection
from grue.tool_sessions.server_specs import McpServer


class HostConnection(ToolConnection, Protocol):
    """A connection to the program's own tools, whose listing is known before the connection is opened."""

    @property
    def listing(self) -> Listing:
        """The tools, as `open` returns them."""
        ...


BeforeCalls: TypeAlias = Callable[[], Awaitable[object]] | None


class HostFunctions:
    """Base of `FunctionTools`: tools that are functions of the program."""

    __slots__ = ()

    def connect(
        self, server: m.ServerName, before_calls: BeforeCalls = None, note: Note | None = None
    ) -> HostConnection:
        """Make the connection for one session."""
        raise NotImplementedError


class HostCommands:
    """Base of `ShellTool`: a tool that runs commands."""

    __slots__ = ()

    def connect(
        self, server: m.ServerName, registry: ProcessRegistry, before_calls: BeforeCalls = None
    ) -> HostConnection:
        """Make the connection for one session."""
        raise NotImplementedError

    def named_values(self) -> Mapping[str, str]:
        """Return the configured values that may be secret, by name, for redaction."""
        raise NotImplementedError


ToolServer: TypeAlias = McpServer | HostFunctions | HostCommands | Connect
"""A server process, a server at a URL, functions of the host, or a factory of the host's own connections."""


class InvalidArgumentsError(Exception):
    """The arguments of a call do not match the parameters; the text is for the model."""


def is_mutable(default: object) -> bool:
    """Return whether each call needs its own copy of a default. A sentinel must not be copied."""
    try:
        hash(default)
    except TypeError:
        return True
    return False
