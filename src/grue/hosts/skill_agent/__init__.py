"""A host that gives a model a task: it carries out the actions that the model answers with, step by step.

The model reads in its prompt which tools there are. Its MCP servers stay connected for the whole run. Come
here for `Orchestrator`, which runs a task, for `load_config`, which reads `agent.yaml`, and for `McpManager`,
which can be used alone.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grue.hosts.skill_agent.actions import ActionContext, ActionRegistry
    from grue.hosts.skill_agent.configuration import AgentConfig, RunLimits, load_config
    from grue.hosts.skill_agent.mcp_manager import McpCallResult, McpManager, McpToolInfo
    from grue.hosts.skill_agent.orchestrator import Orchestrator, RunResult

_HOMES = {
    "ActionContext": "actions",
    "ActionRegistry": "actions",
    "AgentConfig": "configuration",
    "Orchestrator": "orchestrator",
    "RunLimits": "configuration",
    "RunResult": "orchestrator",
    "load_config": "configuration",
    "McpCallResult": "mcp_manager",
    "McpManager": "mcp_manager",
    "McpToolInfo": "mcp_manager",
}

__all__ = ["ActionContext", "ActionRegistry", "AgentConfig", "McpCallResult", "McpManager", "McpToolInfo"]
__all__ += ["Orchestrator", "RunLimits", "RunResult", "load_config"]


def __getattr__(name: str) -> object:
    # Names are imported on first use, so that reading the facts of a trace does not load the whole host.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
