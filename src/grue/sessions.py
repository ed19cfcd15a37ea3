"""Hold a session with a tool server yourself, and the state of each server from turn to turn.

A `Runner` opens and closes its sessions on its own. Come here if your host keeps a session open between
turns, as an object with its own methods, or stores the state of its servers to resume an episode.
`ToolClient` is simpler if you only want to call tools.

Come here, too, to hold calls that your host makes itself to a `ToolPolicy`: `judge` says what the policy says
about them, `question_about` makes the question to a person, and `is_about` matches a decision with it.
"""

from grue.engine.owned_session import OwnedSession, SessionWiring
from grue.engine.tool_servers import connect_to, hide_secrets, pinning, startup_timeouts
from grue.engine.turn_errors import error_for, tool_support_error
from grue.mcp_transport.client import ClientOptions
from grue.processes.process_group import ProcessRegistry
from grue.protocol.budget import Spent
from grue.protocol.connection import Disabled, Proven, Settled, Untried
from grue.protocol.tool_policy import CallTerms, ToolHints, hints_of, is_about, judge, question_about

__all__ = [
    "CallTerms",
    "ClientOptions",
    "Disabled",
    "OwnedSession",
    "ProcessRegistry",
    "Proven",
    "SessionWiring",
    "Settled",
    "Spent",
    "ToolHints",
    "Untried",
    "connect_to",
    "error_for",
    "hide_secrets",
    "hints_of",
    "is_about",
    "judge",
    "pinning",
    "question_about",
    "startup_timeouts",
    "tool_support_error",
]
