"""Connect an agent to your own kind of tool server: implement `ToolConnection`.

Pass it to `Runner(servers=...)`. An MCP server, a dictionary of functions and a connection of your own look
the same to the agent. `open` returns the tools, `call` makes one call, `close` ends the connection. Raise
`ServerFailed` if the connection cannot be used or was lost, and `ToolTimedOutError` if a call took too long.
Any other exception is a bug, and ends the turn as a crash. `ConfinedFolder` gives tools files of one folder.
"""

from grue.engine.tool_servers import ToolServer
from grue.processes.server_exit import ServerExit
from grue.protocol import tool_results
from grue.protocol.tool_names import split_name
from grue.protocol.tool_routes import ToolRoutes, tool_routes
from grue.protocol.tool_schemas import openai_tool
from grue.runtime.actor import Note
from grue.tool_sessions.confined_folder import ConfinedFolder, RefusedPath
from grue.tool_sessions.connection import Connect, ConnectionStatus, Listing, ToolConnection
from grue.tool_sessions.failures import ServerFailed, ToolTimedOutError
from grue.tool_sessions.oauth_settings import OAuth
from grue.tool_sessions.server_specs import McpServer

__all__ = [
    "ConfinedFolder",
    "Connect",
    "ConnectionStatus",
    "Listing",
    "McpServer",
    "Note",
    "OAuth",
    "RefusedPath",
    "ServerExit",
    "ServerFailed",
    "ToolConnection",
    "ToolRoutes",
    "ToolServer",
    "ToolTimedOutError",
    "openai_tool",
    "split_name",
    "tool_results",
    "tool_routes",
]
