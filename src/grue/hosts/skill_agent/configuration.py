"""`AgentConfig`: what a skill agent needs, and `load_config`, which reads it from `agent.yaml`.

Come here to add a setting: a field of `AgentConfig` or `RunLimits`, and its key in one of the tables below.
"""

import re
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, field

from grue import LlmSettings, MCPConfigError, ToolPolicy
from grue.connections import McpServer, ToolServer
from grue.hosts.skill_agent.mcp_manager import OnConnectFailure
from grue.models import LlmEndpoint
from grue.settings import (
    AgentSampling,
    GameConfiguration,
    MCPConfig,
    YamlDocument,
    llm_settings,
    read_yaml,
    tool_policy_of,
    tool_servers,
)

OnStepFailure: TypeAlias = Literal["continue", "stop", "retry"]

_Count = Annotated[int, Meta(ge=1)]
_Above0 = Annotated[float, Meta(gt=0)]
_MODEL_KEYS = {"name": "agent_model", "base_url": "client_base_url"}


class RunLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a run. `None`: no limit. The end of the run names the limit that was reached.

    Attributes:
        max_turns: Replies of the model that are acted upon.
        max_steps: Actions that are carried out.
        time_limit_seconds: For the whole run, the time for closing the servers not included.
        requests: To the model.
        tokens: Sent and received together.
        cost_usd: As the endpoint reports it.
        result_chars: Longest result of a step that the model is shown. The artifact has all of it.
    """

    max_turns: _Count = 30
    max_steps: _Count = 100
    time_limit_seconds: _Above0 | None = None
    requests: _Count | None = None
    tokens: _Count | None = None
    cost_usd: _Above0 | None = None
    result_chars: Annotated[int, Meta(ge=200)] = 20_000


class AgentConfig(Struct, kw_only=True):
    """The settings of a skill agent.

    Attributes:
        llm: The model: an endpoint, or its settings.
        task: The task of a run that names none.
        servers: MCP servers by name, in the order in which they get shared tool names.
        mcp_enabled: Whether the servers are connected.
        tool_call_timeout_s: Time limit of a tool call.
        on_connect_failure: `raise`: without one of the servers the run goes on without MCP. `skip`: without
            that server.
        reconnect: Connect a server that has died once more.
        limits: What a run may use.
        on_step_failure: After a step failed. `continue`: the model reads the error. `stop`: the run ends.
            `retry`: it is tried again, `retries` times, unless it may have had an effect; then as `continue`.
        retries: Further attempts, for `retry`.
        policy: Which actions are carried out, asked about or denied. The agent's own are `agent.write_file`
            and so on, those of MCP servers `server.tool`.
        skills: The folder of skills; `None`: there are none.
        restrict_tools: Whether a skill's `allowed-tools` are the only ones while it is in use.
        workspace: The folder in which files are read and written.
        instructions: Added to the prompt.
        path: The file that the settings come from; `None`: none.
    """

    llm: LlmSettings | LlmEndpoint
    task: str = ""
    servers: dict[str, ToolServer] = field(default_factory=dict)
    mcp_enabled: bool = True
    tool_call_timeout_s: float = 60.0
    on_connect_failure: OnConnectFailure = "raise"
    reconnect: bool = False
    limits: RunLimits = RunLimits()
    on_step_failure: OnStepFailure = "continue"
    retries: int = 1
    policy: ToolPolicy = ToolPolicy()
    skills: Path | None = None
    restrict_tools: bool = False
    workspace: Path = field(default_factory=Path)
    instructions: str = ""
    path: Path | None = None

    @property
    def model(self) -> str:
        """The model's name."""
        return (self.llm if isinstance(self.llm, LlmSettings) else self.llm.settings).model


class _McpTable(Struct, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = True
    tool_call_timeout_seconds: _Above0 = 60.0
    on_connect_failure: OnConnectFailure = "raise"
    reconnect: bool = False
    servers: dict[str, Any] = field(default_factory=dict)
    config_file: str | None = None


class _SkillsTable(Struct, kw_only=True, forbid_unknown_fields=True):
    folder: str
    restrict_tools: bool = False


class _ModelTable(Struct, kw_only=True, forbid_unknown_fields=True):
    name: str = ""
    base_url: str = ""
    wire_format: Literal["chat_completions", "responses", "messages"] | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    reasoning_effort: str | None = None
    extra_headers: dict[str, str] = field(default_factory=dict)
    extra_body: dict[str, Any] = field(default_factory=dict)


class _AgentTable(Struct, kw_only=True, forbid_unknown_fields=True):
    model: _ModelTable = field(default_factory=_ModelTable)
    mcp: _McpTable = field(default_factory=_McpTable)
    limits: RunLimits = RunLimits()
    on_step_failure: OnStepFailure = "continue"
    retries: Annotated[int, Meta(ge=0)] = 1
    policy: dict[str, Any] = field(default_factory=dict)
    skills: _SkillsTable | None = None
    workspace: str = "."
    instructions: str = ""
    task: str = ""


def load_config(path: str | PathLike[str]) -> AgentConfig:
    """Read `agent.yaml`. Relative paths in it start from its folder.

    The key of the model's endpoint comes from the environment: `GRUE_API_KEY`, `OPENROUTER_API_KEY`,
    `OPENAI_API_KEY`.

    Raises:
        MCPConfigError: The file or a value in it cannot be used. The error names the line and the key.
        MissingDependencyError: The package `pyyaml` is absent; the text has the command that installs it.
    """
    path = Path(path)
    document = read_yaml(path)
    table = document.convert(_AgentTable)
    folder = path.parent
    skills = table.skills
    return AgentConfig(
        llm=_llm(document, table.model, folder),
        servers=_servers(document, table.mcp, folder),
        mcp_enabled=table.mcp.enabled,
        tool_call_timeout_s=table.mcp.tool_call_timeout_seconds,
        on_connect_failure=table.mcp.on_connect_failure,
        reconnect=table.mcp.reconnect,
        limits=table.limits,
        on_step_failure=table.on_step_failure,
        retries=table.retries,
        policy=_policy(document, table.policy),
        skills=None if skills is None else folder / skills.folder,
        restrict_tools=skills is not None and skills.restrict_tools,
        workspace=folder / table.workspace,
        instructions=table.instructions,
        task=table.task,
        path=path,
    )


def _servers(document: YamlDocument, mcp: _McpTable, folder: Path) -> dict[str, ToolServer]:
    if "agent" in mcp.servers:
        raise document.error(
            ("mcp", "servers", "agent"), "mcp.servers.agent: the name is taken by the agent's own actions."
        )
    if mcp.config_file is not None:
        if mcp.servers:
            both = "mcp.config_file: keep this or mcp.servers, not both."
            raise document.error(("mcp", "config_file"), both)
        return _of_file(folder / mcp.config_file) if mcp.enabled else {}
    if not mcp.enabled or not mcp.servers:  # variables of servers that are not used need not be set
        return {}
    return dict(
        read_servers(mcp.servers, document.path, lambda keys: document.place(("mcp", "servers", *keys)))
    )


def read_servers(
    entries: Mapping[str, Any],
    source: Path | None = None,
    place: Callable[[tuple[int | str, ...]], str] = lambda _: "",
) -> dict[str, McpServer]:
    """Return servers, with every `${VAR}` replaced by the variable of the environment.

    Their `timeout_seconds` is the limit for connecting. Tool calls have `mcp.tool_call_timeout_seconds`.

    Args:
        entries: The servers by name.
        source: The file that has them; `None`: none.
        place: Returns what an error about an entry begins with, given the keys that lead to it.

    Raises:
        MCPConfigError: An entry cannot be used, or a variable is not set. The error names server and key.
    """
    renamed = {"timeout_seconds": "startup_timeout_seconds"}
    config = MCPConfig.from_mapping(entries, source=source, place=place, renamed=renamed)
    return tool_servers(config, place)


def _of_file(path: Path) -> dict[str, ToolServer]:
    return dict(tool_servers(MCPConfig.from_file(path)))


def _policy(document: YamlDocument, table: dict[str, Any]) -> ToolPolicy:
    try:
        return tool_policy_of(table, document.path, "policy")
    except MCPConfigError as error:
        problem = str(error).removeprefix(f"{document.path}: [policy] ")
        rule = re.match(r"rules?,? (?:number )?(\d+)", problem)
        keys: tuple[int | str, ...] = ("policy", "rules", int(rule[1]) - 1) if rule else ("policy",)
        raise document.error(keys, f"policy: {problem}") from error


def _llm(document: YamlDocument, model: _ModelTable, folder: Path) -> LlmSettings:
    sampling = {"temperature": model.temperature, "top_p": model.top_p, "max_tokens": model.max_tokens}
    chosen = {"agent_model": model.name, "client_base_url": model.base_url}
    try:
        config = GameConfiguration(
            **{name: value for name, value in chosen.items() if value},  # type: ignore[arg-type]
            wire_format=model.wire_format,
            agent_sampling=AgentSampling(**sampling, reasoning_effort=model.reasoning_effort),  # type: ignore[arg-type]
            extra_headers=model.extra_headers,
            extra_body=model.extra_body,
            project_dir=folder,
        )
    except MCPConfigError as error:
        name, _, problem = str(error).partition("\n")[0].partition(" ")
        key = next((ours for ours, theirs in _MODEL_KEYS.items() if theirs == name), name)
        raise document.error(("model", key), f"model.{key} {problem}") from error
    return llm_settings(config)
