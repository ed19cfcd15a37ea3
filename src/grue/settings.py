"""Read the settings that users write: `pyproject.toml`, `mcp_config.json`, the tool lock, YAML of your own.

`Runner.from_toml` does all of this at once. Come here if your host changes settings before it uses them.
"""

from grue.config.mcp_servers import MCPConfig, to_tool_server, tool_servers
from grue.config.settings import AgentSampling, BudgetSettings, GameConfiguration, RetrySettings
from grue.config.tool_policy import tool_policy_of
from grue.config.wiring import (
    Configured,
    episode_budget,
    from_configuration,
    llm_settings,
    on_tool_drift,
    read_servers,
    tool_lock,
    turn_limits,
)
from grue.config.yaml_file import YamlDocument, parse_yaml, read_yaml
from grue.config.yaml_tables import (
    ModelTable,
    ServersTable,
    model_of,
    policy_of,
    servers_of,
    servers_of_entries,
)
from grue.protocol.tool_lock import ToolLock

__all__ = [
    "AgentSampling",
    "BudgetSettings",
    "Configured",
    "GameConfiguration",
    "MCPConfig",
    "ModelTable",
    "RetrySettings",
    "ServersTable",
    "ToolLock",
    "YamlDocument",
    "episode_budget",
    "from_configuration",
    "llm_settings",
    "model_of",
    "on_tool_drift",
    "parse_yaml",
    "policy_of",
    "read_servers",
    "read_yaml",
    "servers_of",
    "servers_of_entries",
    "to_tool_server",
    "tool_lock",
    "tool_policy_of",
    "tool_servers",
    "turn_limits",
]
