"""The options of an MCP client (`client.py`)."""

from collections.abc import Awaitable, Callable

from msgspec import Struct

from grue import messages as m
from grue.policies import OnToolDrift
from grue.protocol.tools.lock import ServerPins
from grue.runtime.processes.limits import ProcessLimits
from grue.tool_sessions.connection import SeenListing
from grue.tool_sessions.server_requests import Abilities, Notify


class ClientOptions(Struct, frozen=True, kw_only=True):
    """Options of a client. The callbacks must not block, and may raise only `TraceError`."""

    limits: ProcessLimits = ProcessLimits()
    abilities: Abilities = Abilities()
    max_pages: int = 100
    on_notice: Notify | None = None
    pins: ServerPins | None = None  # the approved tool definitions (the tool lock); `None`: all are accepted
    on_tool_drift: OnToolDrift = "refuse"  # what is done about a tool that `pins` does not approve
    on_drift: Callable[[m.ToolDrifted], object] = lambda _drifted: None
    # Called with the name and the value of OAuth secrets of 8 or more characters; with an access token,
    # before it is sent to the MCP server.
    on_secret: Callable[[str, str], object] = lambda _name, _value: None
    # Awaited before the SDK is imported in a worker thread; `None`: the SDK is imported at once, in the event
    # loop's thread. Has no effect if the SDK is imported already.
    before_import: Callable[[], Awaitable[None]] | None = None
    # Called with a session's first listing, before options and tool lock leave out any tool.
    on_listed: Callable[[SeenListing], None] | None = None
    # Called before the first request; returns the MCP revision of the server's last session, or an empty text
    # if that is not known. A wrong revision costs one request, of 5 s at most.
    spoken: Callable[[], str] = str
    # Called with the tool's name and the task when the server makes an MCP task of a call.
    on_task: Callable[[str, m.ToolTask], object] = lambda _tool, _task: None
