"""Read the settings that users write: `pyproject.toml`, `mcp_config.json`, the tool lock.

`Runner.from_toml` does all of this at once. Come here if your host changes settings before it uses them.
"""

from grue.config.mcp_servers import MCPConfig, to_tool_server
from grue.config.settings import AgentSampling, BudgetSettings, GameConfiguration, RetrySettings
from grue.config.wiring import episode_budget, llm_settings, on_tool_drift, tool_lock, turn_limits

__all__ = [
    "AgentSampling",
    "BudgetSettings",
    "GameConfiguration",
    "MCPConfig",
    "RetrySettings",
    "episode_budget",
    "llm_settings",
    "on_tool_drift",
    "to_tool_server",
    "tool_lock",
    "turn_limits",
]
