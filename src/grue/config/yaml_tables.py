"""Tables that the YAML files of several hosts contain: the model, the MCP servers, the policy for tools."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from grue.config.documents import Document, KeyPath, dotted
from grue.config.mcp_servers import MCPConfig, tool_servers
from grue.config.policy_tables import read_tool_policy
from grue.config.settings import AgentSampling, GameConfiguration
from grue.config.wiring import llm_settings
from grue.errors import MCPConfigError
from grue.policies import ToolPolicy
from grue.protocol.chat_wire.formats import WireName
from grue.tool_sessions.host_tools import ToolServer
from grue.tool_sessions.server_specs import McpServer
from grue.transports.llm.endpoint import LlmSettings

_MODEL_KEYS = {"name": "agent_model", "base_url": "client_base_url"}


class ModelTable(Struct, kw_only=True, forbid_unknown_fields=True):
    """The table `model`. A key that is left out has the same default as in `pyproject.toml`."""

    name: str = ""
    base_url: str = ""
    wire_format: WireName | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    reasoning_effort: str | None = None
    extra_headers: dict[str, str] = field(default_factory=dict)
    extra_body: dict[str, Any] = field(default_factory=dict)


class ServersTable(Struct, kw_only=True, forbid_unknown_fields=True):
    """The table `mcp`: entries of servers by name, or the path of an `mcp_config.json` to read instead.

    In an entry, `timeout_seconds` is the time limit for connecting, and `required: false` allows the agent to
    run without the server.
    """

    enabled: bool = True
    servers: dict[str, Any] = field(default_factory=dict)
    config_file: str | None = None


def model_of(document: Document, keys: KeyPath, table: ModelTable) -> LlmSettings:
    """Return a model's settings, with the API key from the environment; `keys` leads to `table`."""
    sampling = {"temperature": table.temperature, "top_p": table.top_p, "max_tokens": table.max_tokens}
    chosen = {"agent_model": table.name, "client_base_url": table.base_url}
    try:
        config = GameConfiguration(
            **{name: value for name, value in chosen.items() if value},  # type: ignore[arg-type]
            wire_format=table.wire_format,
            agent_sampling=AgentSampling(**sampling, reasoning_effort=table.reasoning_effort),  # type: ignore[arg-type]
            extra_headers=table.extra_headers,
            extra_body=table.extra_body,
            project_dir=document.path.parent,
        )
    except MCPConfigError as error:
        (name, *_), problem = error.problems[0]
        where = (*keys, next((ours for ours, theirs in _MODEL_KEYS.items() if theirs == name), name))
        raise document.error(where, f"{dotted(where)} {problem}") from error
    return llm_settings(config)


def servers_of(
    document: Document, keys: KeyPath, table: ServersTable
) -> tuple[dict[str, McpServer], frozenset[str]]:
    """Return the servers in the order of the file, and the names of the servers that may fail to connect."""
    if table.config_file is not None:
        if table.servers:
            name = dotted(keys)
            both = f"{name}.config_file: keep this or {name}.servers, not both."
            raise document.error((*keys, "config_file"), both)
        if table.enabled:
            servers = tool_servers(MCPConfig.from_file(document.path.parent / table.config_file, named=True))
            optional = [name for name, each in servers.items() if each.options.required is False]
            return servers, frozenset(optional)
    if not table.enabled or not table.servers:
        return {}, frozenset()
    entries = {
        name: {key: value for key, value in entry.items() if key != "required"}
        if isinstance(entry, dict)
        else entry
        for name, entry in table.servers.items()
    }
    servers = _read_entries(entries, document.path, lambda inner: document.place((*keys, "servers", *inner)))
    optional = [name for name in servers if not _is_required(document, keys, name, table.servers[name])]
    return servers, frozenset(optional)


def servers_of_entries(entries: Mapping[str, ToolServer | Mapping[str, Any]]) -> dict[str, ToolServer]:
    """Return servers by name, without disabled ones; an entry may be a mapping as in `agent.yaml`."""
    written = {name: each for name, each in entries.items() if isinstance(each, Mapping)}
    read = _read_entries(written) if written else {}
    known = {name: each for name, each in entries.items() if not isinstance(each, Mapping)} | read
    return {name: known[name] for name in entries if name in known}


def _read_entries(
    entries: Mapping[str, Any], source: Path | None = None, place: Callable[[KeyPath], str] = lambda _: ""
) -> dict[str, McpServer]:
    config = MCPConfig.from_mapping(entries, source=source, place=place, startup_key="timeout_seconds")
    return tool_servers(config, place)


def policy_of(document: Document, keys: KeyPath, table: Mapping[str, Any]) -> ToolPolicy:
    """Return the policy that a table describes; `keys` leads to it in the document."""
    try:
        return read_tool_policy(table)
    except MCPConfigError as error:
        inner, text = error.problems[0]
        raise document.error((*keys, *inner), f"{dotted(keys)}: {text}") from error


def _is_required(document: Document, keys: KeyPath, name: str, entry: dict[str, Any]) -> bool:
    required = entry.get("required", True)
    if not isinstance(required, bool):
        where = (*keys, "servers", name, "required")
        raise document.error(where, f"{dotted(where)}: it should be true or false.")
    return required
