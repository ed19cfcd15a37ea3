"""Convert the settings that users write into the values that `Runner` and the actors take."""

import dataclasses
import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue import policies
from grue.config import tool_lock_file
from grue.config.documents import is_there
from grue.config.interpolation import Scope, expand
from grue.config.mcp_servers import MCPConfig, tool_servers
from grue.config.project_tables import ProjectTables, read_project_tables
from grue.config.settings import GameConfiguration, NextModel, Unwritten
from grue.errors import MCPConfigError
from grue.field_checks import fault_of
from grue.protocol.retry import RetryPolicy
from grue.protocol.tools.lock import ToolLock
from grue.tool_sessions.server_specs import McpServer
from grue.transports.llm.endpoint import LlmSettings, api_key, require_key


def runner_options(config: GameConfiguration, lock: ToolLock | None) -> dict[str, Any]:
    """Return a `Runner`'s arguments from a project's settings, without `llm` and `servers`."""
    return {
        "limits": turn_limits(config),
        "policy": policies.FailurePolicy(on_tool_drift=on_tool_drift(config)),
        "tool_lock": lock,
        "budget": _budget(config, "episode"),
        "tool_policy": config.tool_policy,
        "context": config.context,
        "tool_search": config.tool_search,
        "start": config.mcp_start,
    }


class Configured(Struct, frozen=True):
    """A configuration with its servers and their tool lock."""

    config: GameConfiguration
    servers: dict[str, McpServer]
    tool_lock: ToolLock | None

    @property
    def llm(self) -> LlmSettings:
        """The settings of the configured endpoint; may raise `MCPConfigError`."""
        return llm_settings(self.config)


def from_configuration(path: str | PathLike[str], *, servers: bool = True) -> Configured:
    """Load a TOML file; if `servers` and `takes_servers(...)` are true, also the servers and tool lock."""
    config = GameConfiguration.from_toml(path)
    found: dict[str, McpServer] = {}
    lock: ToolLock | None = None
    if servers and takes_servers(config, read_project_tables(Path(path))):
        lock = tool_lock(config)
        found = tool_servers(MCPConfig.from_file(config.mcp_config_path))
    return Configured(config, found, lock)


def takes_servers(config: GameConfiguration, project: ProjectTables | None) -> bool:
    """Return whether to use the file of servers: MCP is on, or not switched off and the file exists."""
    declined = project is not None and project.tables["mcp"].get("enabled") is False
    return config.mcp_enabled or (not declined and is_there(config.mcp_config_path))


def read_servers(path: str | PathLike[str] = "mcp_config.json") -> dict[str, McpServer]:
    """Return the servers of a file such as `mcp_config.json`, by name, for `Runner(servers=...)`.

    Servers marked as disabled are left out.

    Raises:
        MCPConfigError: The file is missing or invalid, or a variable of a `${...}` is not set.
    """
    return tool_servers(MCPConfig.from_file(path, named=True))


def tool_lock(config: GameConfiguration) -> ToolLock | None:
    """Return the tool lock of the configured servers; `None`: every tool may be offered."""
    if config.mcp_tool_lock == "off":
        return None
    path = tool_lock_file.lock_path(config.mcp_config_path)
    lock = tool_lock_file.read_tool_lock(path)
    if lock is None and config.mcp_tool_lock == "refuse":
        raise MCPConfigError(
            f'There is no tool lock {path}, and the setting mcp.tool_lock = "refuse" requires one. '
            "Review the servers' tools, and approve them with: grue tools --lock",
            path=str(path),
        )
    return lock


def on_tool_drift(config: GameConfiguration) -> policies.OnToolDrift:
    """Return the policy for tools that differ from the tool lock."""
    return "ignore" if config.mcp_tool_lock == "off" else config.mcp_tool_lock


def llm_settings(config: GameConfiguration) -> LlmSettings:
    """Return the settings of the configured endpoint, with the API key from the environment."""
    scope, retry = Scope(environ=os.environ, workspace_folder=config.project_dir), config.retry
    headers = {
        name: expand(value, scope, f"The setting llm.extra_headers.{name}")
        for name, value in config.extra_headers.items()
    }
    return LlmSettings(
        base_url=config.client_base_url,
        model=config.agent_model,
        api_key=api_key(config.client_base_url, os.environ),
        wire=config.wire_format,
        extra_headers=headers,
        extra_body=config.extra_body,
        text_tool_calls=config.text_tool_calls,
        prices=config.budget.prices,
        force_tool_support=config.mcp_force_tool_support,
        retry=RetryPolicy(
            max_retries=retry.max_retries,
            initial_delay_s=retry.initial_delay,
            max_delay_s=retry.max_delay,
            max_asked_delay_s=retry.max_asked_delay,
            exponential_base=retry.exponential_base,
            jitter_factor=retry.jitter_factor,
            timeout_s=retry.timeout_seconds,
        ),
        then=tuple(
            llm_settings(dataclasses.replace(config, **_differing(model), then=[])) for model in config.then
        ),
        **dataclasses.asdict(config.agent_sampling),
    )


def _differing(model: NextModel) -> dict[str, Any]:
    # A fallback model without a URL uses the first model's URL. Then it also uses the first model's wire
    # format and headers, unless it sets its own.
    found = dataclasses.asdict(model)
    if model.client_base_url is not None:
        return found
    return {name: value for name, value in found.items() if value or name in ("agent_model", "extra_body")}


def recorded_llm(asked: m.ModelAsked, base_url: str | None = None) -> LlmSettings:
    """Return the settings of a recorded model, without an API key; `base_url` replaces the recorded URL."""
    known: dict[str, Any] = {
        name: value for name, value in asked.sampling.items() if name in LlmSettings.__struct_fields__
    }
    extra = {name: value for name, value in asked.sampling.items() if name not in known}
    wire: Any = asked.wire or None
    return LlmSettings(
        base_url=asked.address if base_url is None else base_url,
        model=asked.model,
        wire=wire,
        extra_body=extra,
        **known,
    )


def model_for(
    asked: m.ModelAsked | None, changed: Mapping[str, Any], model: str | None, base_url: str | None
) -> LlmSettings:
    """Return the settings of `asked` (`None`: of `pyproject.toml`), with changes from the other arguments."""
    if asked is None:
        config = GameConfiguration.of_project()
        config.ask(base_url, model)
        settings = llm_settings(config)
    else:
        settings = recorded_llm(asked, base_url)
    given = {**changed, **({} if model is None else {"model": model})}
    names = [name for name in settings.__struct_fields__ if name not in ("api_key", "profile")]
    unknown = [name for name in given if name not in names]
    if unknown:
        raise MCPConfigError(f"There is no setting llm.{unknown[0]}. The settings are: {', '.join(names)}.")
    # Make a class with which `msgspec.convert` checks the types of the given values.
    types = {each.name: each.type for each in msgspec.structs.fields(LlmSettings)}
    kind: Any = msgspec.defstruct("Given", [(name, types[name]) for name in given])
    try:
        checked = msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise MCPConfigError(f"--set llm.{fault_of(error)}.") from error
    settings = replace(settings, **{name: getattr(checked, name) for name in given})
    settings = replace(settings, api_key=settings.api_key or api_key(settings.base_url, os.environ))
    require_key(settings.base_url, settings.api_key, ", or name another endpoint with --base-url")
    return settings


def turn_limits(config: GameConfiguration, turn_timeout_s: float | None = None) -> policies.TurnLimits:
    """Return the configured limits of a turn; `turn_timeout_s`, if given, replaces a turn's time limit."""
    startup_s = config.mcp_server_startup_timeout_seconds
    return policies.TurnLimits(
        max_tool_iterations=config.mcp_max_tool_iterations,
        tool_call_timeout_s=config.mcp_tool_call_timeout_seconds,
        server_startup_timeout_s=None if isinstance(startup_s, Unwritten) else startup_s,
        turn_timeout_s=config.turn_timeout_seconds if turn_timeout_s is None else turn_timeout_s,
        budget=_budget(config, "turn"),
    )


def _budget(config: GameConfiguration, of: str) -> policies.Budget:
    limits = ("requests", "tokens", "cost_usd")
    return policies.Budget(**{name: getattr(config.budget, f"{of}_{name}") for name in limits})
