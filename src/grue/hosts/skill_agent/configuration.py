"""`AgentConfig`, the settings of a skill agent, and `load_config`, which reads them from `agent.yaml`."""

from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, field

from grue import LlmSettings, ShellTool, ToolPolicy
from grue.config.documents import Document
from grue.config.yaml_tables import ModelTable, ServersTable, model_of, policy_of, servers_of
from grue.errors import MCPConfigError
from grue.field_checks import check_settings, shown
from grue.hosting import LlmEndpoint, ToolServer, read_yaml
from grue.hosts.skill_agent.mcp_manager import OnConnectFailure
from grue.hosts.skill_agent.registry import AGENT

OnStepFailure: TypeAlias = Literal["continue", "stop", "retry"]

SHELL = "shell"  # the server name of the tool that runs commands: `shell.run`

_CHECKED = (
    "task", "optional_servers", "mcp_enabled", "tool_call_timeout_s", "on_connect_failure", "reconnect",
    "limits", "on_step_failure", "retries", "policy", "skill_servers", "restrict_tools", "instructions",
)  # fmt: skip
_TAKEN = "the name is taken by the agent's own actions"
_Count = Annotated[int, Meta(ge=1)]
_Above0 = Annotated[float, Meta(gt=0)]


class RunLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a run. `None`: no limit.

    Attributes:
        max_turns: How many turns the run may have. If a reply is unusable, the same turn asks once more.
        max_steps: After how many steps the run ends. Denied actions and unusable replies count.
        time_limit_seconds: Time limit of the run, not including the time for closing the servers.
        requests: How many completions may be requested from the model. Retries are not counted.
        tokens: How many tokens may be used, sent and received together.
        cost_usd: Highest cost in US dollars, as the endpoint reports it, or else by the prices set in `llm`.
        result_chars: How many characters of a step's result or error the model is shown. If the run has a
            folder, a longer result is stored in a file.
    """

    max_turns: _Count = 30
    max_steps: _Count = 100
    time_limit_seconds: _Above0 | None = None
    requests: _Count | None = None
    tokens: _Count | None = None
    cost_usd: _Above0 | None = None
    result_chars: Annotated[int, Meta(ge=200)] = 20_000

    def __post_init__(self) -> None:
        check_settings(self)


class AgentConfig(Struct, kw_only=True):
    """The settings of a skill agent.

    Attributes:
        task: The task of `grue run` and of a fleet if no other is given; `Orchestrator.run` ignores it.
        servers: MCP servers by name. A tool's bare name calls the tool of the last server that has it.
        optional_servers: Servers without which the run goes on if they cannot be connected.
        on_connect_failure: What happens if a server that is not optional cannot be connected. `skip`: the run
            goes on without it. `raise`: the run goes on without any server.
        reconnect: Whether a server that has died is connected again; once, so not after its second death.
        on_step_failure: `continue`: the model reads the error. `stop`: the run ends. `retry`: a read-only or
            idempotent step is tried again up to `retries` times before the model reads the error.
        policy: Its patterns match actions of the agent (`agent.write_file`) and MCP tools (`files.read`).
        skill_servers: Servers whose skills are used, if a person has approved them in `mcp_skills.lock`.
        restrict_tools: Whether the `allowed-tools` of the skill read last, if it has them, deny every tool
            that they do not name, except `finish`, `note`, `respond` and `use_skill`.
    """

    llm: LlmSettings | LlmEndpoint
    task: str = ""
    servers: dict[str, ToolServer] = field(default_factory=dict)
    optional_servers: frozenset[str] = frozenset()
    mcp_enabled: bool = True
    tool_call_timeout_s: float = 60.0
    on_connect_failure: OnConnectFailure = "raise"
    reconnect: bool = False
    limits: RunLimits = RunLimits()
    on_step_failure: OnStepFailure = "continue"
    retries: int = 1
    policy: ToolPolicy = ToolPolicy()
    skills: Path | None = None
    skill_servers: tuple[str, ...] = ()
    restrict_tools: bool = False
    workspace: Path = field(default_factory=Path)
    instructions: str = ""
    path: Path | None = None

    def __post_init__(self) -> None:
        check_settings(self, only=_CHECKED, above_0=("tool_call_timeout_s",))
        if isinstance(self.llm, list | tuple):
            raise MCPConfigError(
                "AgentConfig: llm= wants the settings of one model; LlmSettings.then has others."
            )
        for name in ("workspace", "skills", "path"):
            given = getattr(self, name)
            if given is None and name != "workspace":
                continue
            if not isinstance(given, str | PathLike):
                raise MCPConfigError(f"AgentConfig: {name}= wants a path, not {shown(given)}.")
            setattr(self, name, Path(given))
        if not isinstance(self.servers, Mapping):
            raise MCPConfigError(
                f"AgentConfig: servers= wants the servers by name, not {shown(self.servers)}."
            )
        if AGENT in self.servers:
            raise MCPConfigError(f"AgentConfig: servers.{AGENT}: {_TAKEN}.")
        for name in self.skill_servers:
            if name not in self.servers:
                raise MCPConfigError(f"AgentConfig: skill_servers: {_no_server(name, self.servers)}")

    @property
    def model(self) -> str:
        """The model's name."""
        return (self.llm if isinstance(self.llm, LlmSettings) else self.llm.settings).model


class _McpTable(ServersTable, kw_only=True, forbid_unknown_fields=True):
    tool_call_timeout_seconds: _Above0 = 60.0
    on_connect_failure: OnConnectFailure = "raise"
    reconnect: bool = False


class _SkillsTable(Struct, kw_only=True, forbid_unknown_fields=True):
    folder: str | None = None
    servers: list[str] = []
    restrict_tools: bool = False


class _ShellTable(Struct, kw_only=True, forbid_unknown_fields=True):
    commands: Literal["any"] | list[str | list[str]]
    timeout_seconds: _Above0 = 60.0
    sandbox: Any = None


class _AgentTable(Struct, kw_only=True, forbid_unknown_fields=True):
    model: ModelTable = field(default_factory=ModelTable)
    mcp: _McpTable = field(default_factory=_McpTable)
    limits: RunLimits = RunLimits()
    on_step_failure: OnStepFailure = "continue"
    retries: Annotated[int, Meta(ge=0)] = 1
    policy: dict[str, Any] = field(default_factory=dict)
    skills: _SkillsTable | None = None
    workspace: str = "."
    shell: _ShellTable | None = None
    instructions: str = ""
    task: str = ""


def _no_server(name: str, servers: Collection[str]) -> str:
    return f"there is no MCP server {name!r}. Known: {', '.join(servers) or 'none'}."


def load_config(path: str | PathLike[str]) -> AgentConfig:
    """Read `agent.yaml`. A relative `workspace`, `skills.folder` or `cwd` starts at the file's folder.

    The API key comes from the environment: `GRUE_API_KEY`, or the variable of the endpoint's provider, such
    as `OPENROUTER_API_KEY` or `OPENAI_API_KEY`.

    Raises:
        MCPConfigError: The file or a value in it cannot be used. For a value, the error names line and key.
        MissingDependencyError: The package `pyyaml` is absent; the text has the command that installs it.
    """
    document = read_yaml(path)
    table, path = document.convert(_AgentTable), Path(path)
    folder = path.parent
    skills = table.skills or _SkillsTable()
    if AGENT in table.mcp.servers:
        raise document.error(("mcp", "servers", AGENT), f"mcp.servers.{AGENT}: {_TAKEN}.")
    servers, optional = servers_of(document, ("mcp",), table.mcp)
    for number, name in enumerate(skills.servers):
        if name not in servers:
            problem = f"skills.servers: {_no_server(name, servers)}"
            raise document.error(("skills", "servers", number), problem)
    return AgentConfig(
        llm=model_of(document, ("model",), table.model),
        servers={**servers, **_shell(document, table, folder)},
        optional_servers=optional,
        mcp_enabled=table.mcp.enabled,
        tool_call_timeout_s=table.mcp.tool_call_timeout_seconds,
        on_connect_failure=table.mcp.on_connect_failure,
        reconnect=table.mcp.reconnect,
        limits=table.limits,
        on_step_failure=table.on_step_failure,
        retries=table.retries,
        policy=policy_of(document, ("policy",), table.policy),
        skills=None if skills.folder is None else folder / skills.folder,
        skill_servers=tuple(skills.servers),
        restrict_tools=skills.restrict_tools,
        workspace=folder / table.workspace,
        instructions=table.instructions,
        task=table.task,
        path=path,
    )


def _shell(document: Document, table: _AgentTable, folder: Path) -> dict[str, ToolServer]:
    shell = table.shell
    if shell is None:
        return {}
    if SHELL in table.mcp.servers:
        raise document.error(("mcp", "servers", SHELL), f"mcp.servers.{SHELL}: the name is taken by `shell`.")
    try:
        tool = ShellTool(
            folder=folder / table.workspace,
            commands=shell.commands,
            timeout_s=shell.timeout_seconds,
            sandbox=shell.sandbox,
        )
    except MCPConfigError as error:
        raise document.error(("shell",), f"shell: {error}") from error
    return {SHELL: tool}
