"""The base class by which the engine recognises `FunctionTools` and `ShellTool` without importing either."""

import contextlib
import copy
from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar, Protocol, TypeAlias

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


BeforeCalls: TypeAlias = Callable[[], Awaitable[object]] | None


class HostTools:
    """Base of `FunctionTools` and `ShellTool`: tools that the program itself provides."""

    __slots__ = ()
    starts_processes: ClassVar[bool] = False  # `True`: a turn reserves time for ending the processes

    def connect(
        self,
        server: m.ServerName,
        registry: ProcessRegistry,
        before_calls: BeforeCalls = None,
        note: Note | None = None,
    ) -> HostConnection:
        """Make the connection for one session. Its `refresh_tools` awaits `before_calls`.

        Through `registry`, the runner can kill the processes of the tools without the turn's event loop.
        """
        raise NotImplementedError

    def named_values(self) -> Mapping[str, str]:
        """Return the configured values that may be secret, by name, for redaction."""
        return {}


ToolServer: TypeAlias = McpServer | HostTools | Connect
"""A server process, a server at a URL, tools of the program, or a factory of the host's own connections."""


class InvalidArgumentsError(Exception):
    """The arguments of a call do not match the parameters; the text is for the model."""


def is_mutable(default: object) -> bool:
    """Return whether each call needs its own copy of a default: it is unhashable, as a list is.

    If it cannot be copied, as a list of locks cannot, the calls share it.
    """
    try:
        hash(default)
    except TypeError:
        with contextlib.suppress(Exception):
            copy.deepcopy(default)
            return True
    return False
