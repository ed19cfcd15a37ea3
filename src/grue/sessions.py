"""Hold a session with a tool server yourself, and the state of each server from turn to turn.

A `Runner` opens and closes its sessions on its own. Come here if your host keeps a session open between
turns, as an object with its own methods, or stores the state of its servers to resume an episode.
`ToolClient` is simpler if you only want to call tools.

Come here, too, to apply a `ToolPolicy` to calls that your host makes itself: `judge_calls` says which are
denied and which are asked about, and `ask_about` asks a person, or says that the host should wait.
"""

from grue.engine.own_calls import AskedCalls, AskPerson, OwnCall, ask_about, decisions_about, judge_calls
from grue.engine.owned_session import OwnedSession, SessionWiring
from grue.engine.tool_servers import connect_to, hide_secrets, pinning, startup_timeouts
from grue.engine.turn_errors import error_for, tool_support_error
from grue.mcp_transport.client_options import ClientOptions
from grue.processes.process_group import ProcessRegistry
from grue.protocol.budget import Spent
from grue.protocol.connection import Disabled, Proven, Settled, Untried
from grue.protocol.tool_policy import ToolHints, hints_of

__all__ = [
    "AskPerson",
    "AskedCalls",
    "ClientOptions",
    "Disabled",
    "OwnCall",
    "OwnedSession",
    "ProcessRegistry",
    "Proven",
    "SessionWiring",
    "Settled",
    "Spent",
    "ToolHints",
    "Untried",
    "ask_about",
    "connect_to",
    "decisions_about",
    "error_for",
    "hide_secrets",
    "hints_of",
    "judge_calls",
    "pinning",
    "startup_timeouts",
    "tool_support_error",
]
