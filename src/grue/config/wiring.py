"""From settings as users write them to what the core takes."""

import os
from os import PathLike

from msgspec import Struct

from grue.actors.llm_endpoint import LlmSettings
from grue.config.mcp_servers import MCPConfig, to_tool_server
from grue.config.secrets import api_key
from grue.config.settings import GameConfiguration
from grue.mcp_transport.client import McpServer
from grue.messages import TurnLimits
from grue.protocol.retry import RetryPolicy


class Configured(Struct, frozen=True):
    """The parts of a runner that a configuration names."""

    llm: LlmSettings
    servers: dict[str, McpServer]
    limits: TurnLimits


def from_configuration(path: str | PathLike[str]) -> Configured:
    """Load a TOML file and, where it enables MCP, the file of servers that it names.

    Raises:
        MCPConfigError: A file is missing or has something that cannot be used.
    """
    config = GameConfiguration.from_toml(path)
    servers: dict[str, McpServer] = {}
    if config.mcp_enabled:
        file = MCPConfig.from_file(config.mcp_config_path)
        servers = {name: to_tool_server(name, file.server(name)) for name in file.mcpServers}
    return Configured(llm_settings(config), servers, turn_limits(config))


def llm_settings(config: GameConfiguration) -> LlmSettings:
    """Return the endpoint that a configuration names, with the key of the environment."""
    sampling = config.agent_sampling
    return LlmSettings(
        base_url=config.client_base_url,
        model=config.agent_model,
        api_key=api_key(config.client_base_url, os.environ),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        max_tokens=sampling.max_tokens,
        retry=retry_policy(config),
    )


def retry_policy(config: GameConfiguration) -> RetryPolicy:
    """Return the retries that a configuration sets."""
    retry = config.retry
    return RetryPolicy(
        max_retries=retry.max_retries,
        initial_delay_s=retry.initial_delay,
        max_delay_s=retry.max_delay,
        exponential_base=retry.exponential_base,
        jitter_factor=retry.jitter_factor,
        timeout_s=retry.timeout_seconds,
    )


def turn_limits(config: GameConfiguration, turn_timeout_s: float | None = None) -> TurnLimits:
    """Return the limits that a configuration sets (R13)."""
    return TurnLimits(
        max_tool_iterations=config.mcp_max_tool_iterations,
        tool_call_timeout_s=config.mcp_tool_call_timeout_seconds,
        server_startup_timeout_s=config.mcp_server_startup_timeout_seconds,
        turn_timeout_s=turn_timeout_s,
    )
