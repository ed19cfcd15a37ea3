"""`GameConfiguration`: grue's settings in `pyproject.toml` or another TOML file.

A setting that the tables of `[tool.grue]` lack is taken from the same table below `[tool.zorkgpt]`. There,
unknown keys in `llm`, `agent_sampling`, `retry` and `budget` are ignored: a larger project may use them.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationError,
    WrapValidator,
    model_validator,
)
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from grue.config import project_tables
from grue.config.documents import did_you_mean, is_there
from grue.config.policy_tables import read_context_policy, read_tool_policy, read_tool_search
from grue.errors import MCPConfigError
from grue.policies import DEFAULT_START, TURN_TIMEOUT_S, ContextPolicy, StartWhen, ToolPolicy, ToolSearch
from grue.protocol.chat_wire.formats import WireName
from grue.protocol.chat_wire.profile import Effort, TextToolCalls
from grue.protocol.turn.prices import Price
from grue.runtime.files import as_path
from grue.runtime.safe_text import fault_text

_MCP = "mcp_"
_STRICT = ConfigDict(strict=True, extra="forbid", validate_assignment=True, hide_input_in_errors=True)


def _as_written(value: Any, check: Callable[[Any], float]) -> Any:
    # Return the value itself, not the float that `check` returns, so that messages say "30s" and not "30.0s".
    check(value)
    return value


def _base_url(value: Any, check: Callable[[Any], str]) -> str:
    # The error never shows the value, which may be a key.
    url = check(value)
    try:
        parts = urlsplit(url)
        port_is_legal = parts.port is None or parts.port > 0
    except ValueError:
        port_is_legal = False
    if (
        not port_is_legal
        or parts.scheme not in ("http", "https")
        or not parts.hostname
        or re.search(r"\s", url)
    ):
        raise ValueError("should be an http:// or https:// URL with a host")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "should have no credentials, query or fragment; set the key in the environment instead"
        )
    return url


def _path_text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _price(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    known = Price.__struct_fields__
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in value.values())
    usable = {"input", "output"} <= value.keys() <= set(known) and numbers
    if not usable or not all(0 <= each < float("inf") for each in value.values()):
        raise ValueError("should have input and output, and perhaps cached: USD for a million tokens")
    return Price(**value)


_Text = Annotated[str, Field(min_length=1)]
_Count = Annotated[int, Field(ge=1)]


class Unwritten(int):
    """A limit for a server's start that the user has not set: commands such as `npx` have 60 s instead."""


_Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False), WrapValidator(_as_written)]
_NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), WrapValidator(_as_written)]
_Price = Annotated[InstanceOf[Price], BeforeValidator(_price)]
_Share = Annotated[float, Field(ge=0, le=1), WrapValidator(_as_written)]


@dataclass(config=_STRICT)
class _Table:
    """Turns pydantic's errors into an `MCPConfigError` without secrets, with a problem for each field."""

    @model_validator(mode="wrap")
    @classmethod
    def _translate_errors(cls, values: Any, check: Callable[[Any], Self]) -> Self:
        try:
            return check(values)
        except ValidationError as exc:
            problems = [
                MCPConfigError.Problem((str(each["loc"][0]),), _what_is_wrong(each)) for each in exc.errors()
            ]
            said = "\n".join(f"{keys[0]} {text}" for keys, text in problems)
            raise MCPConfigError(said, problems=problems) from exc


@dataclass(config=_STRICT)
class AgentSampling(_Table):
    """Sampling parameters of the agent's model; `None`, the default, is not sent.

    If `max_tokens` is `None`, a wire format that needs a limit sends one of its own.
    """

    temperature: _NotNegative | None = None
    top_p: _Share | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    min_p: _Share | None = None
    max_tokens: _Count | None = None
    reasoning_effort: Effort | None = None
    reasoning_tokens: _Count | None = None


@dataclass(config=_STRICT)
class RetrySettings(_Table):
    """Retries of failed LLM requests: see `RetryPolicy`. `timeout_seconds` limits one request."""

    max_retries: Annotated[int, Field(ge=0)] = 5
    initial_delay: _NotNegative = 1.0
    max_delay: _NotNegative = 60.0
    exponential_base: Annotated[float, Field(ge=1, allow_inf_nan=False), WrapValidator(_as_written)] = 2.0
    jitter_factor: _Share = 0.1
    timeout_seconds: _Above0 = 120.0
    max_asked_delay: _NotNegative = 600.0


@dataclass(config=_STRICT)
class BudgetSettings(_Table):
    """Limits of a turn and of an episode. `prices`: USD per million tokens, by name or pattern of models."""

    turn_requests: _Count | None = None
    turn_tokens: _Count | None = None
    turn_cost_usd: _Above0 | None = None
    episode_requests: _Count | None = None
    episode_tokens: _Count | None = None
    episode_cost_usd: _Above0 | None = None
    prices: dict[_Text, _Price] = field(default_factory=dict)


@dataclass(config=_STRICT)
class NextModel(_Table):
    """A model that is asked if those before it fail. Without a URL, it is at the first model's endpoint."""

    agent_model: _Text
    client_base_url: Annotated[str, WrapValidator(_base_url)] | None = None
    wire_format: WireName | None = None
    extra_headers: dict[_Text, str] = field(default_factory=dict)
    extra_body: dict[_Text, Any] = field(default_factory=dict)


def _next_models(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    models: list[Any] = []
    for number, each in enumerate(value, start=1):
        if not isinstance(each, Mapping):
            models.append(each)
            continue
        known = _fields(NextModel)
        unknown = next((key for key in each if key not in known), None)
        if unknown is not None:
            fault = f"should have tables with {', '.join(known)}: table {number} has {unknown!r}."
            raise ValueError(f"{fault}{did_you_mean(unknown, known)}".removesuffix("."))
        if "agent_model" not in each:
            raise ValueError(f"should have an agent_model in each table: table {number} has none")
        try:
            models.append(NextModel(**each))
        except MCPConfigError as error:
            keys, text = error.problems[0]
            said = f"{keys[0]} {text}".removesuffix(".")
            raise ValueError(f"has a table {number} that cannot be used: {said}") from error
    return models


_NextModels = Annotated[list[InstanceOf[NextModel]], BeforeValidator(_next_models)]
_NESTED: Mapping[str, type[_Table]] = {
    "agent_sampling": AgentSampling,
    "retry": RetrySettings,
    "budget": BudgetSettings,
}


@dataclass(config=_STRICT)
class GameConfiguration(_Table):
    """The settings of one host.

    Attributes:
        mcp_enabled: Offer MCP tools to the agent; off by default. If the TOML file does not set it,
            `Runner.from_toml` and most commands offer tools if `mcp_config_file` exists.
        mcp_config_file: File that names the MCP servers, relative to `project_dir`.
        mcp_max_tool_iterations: The most replies with tool calls in one turn, at least 1.
        mcp_tool_call_timeout_seconds: Time limit of one tool call, above 0; may be a fraction.
        mcp_server_startup_timeout_seconds: Time limit from spawning a server to its list of tools, in
            seconds. If it is not set, commands such as `npx` that may have to download the server have 60 s.
        mcp_force_tool_support: Offer tools even if the model's name suggests that it has no tool calling.
        mcp_tool_lock: What to do with a tool that differs from `mcp_tools.lock` (next to `mcp_config_file`):
            `report` it, `refuse` to offer it, or ignore the lock (`off`).
        mcp_start: When a server starts, if its entry has no `start`. `before`: before the first request of a
            turn. `beside`: together with that request, if grue has an earlier listing of the server's tools,
            else as `before`. `beside_if_locked`: as `beside`, if the lock's listing file has the server.
            `when_called`: at the first call of its tools, if grue has an earlier listing, else as `before`.
        mcp_registry: Base URL of the MCP registry that `grue add NAME` asks; `None`: no registry.
        client_base_url: Base URL of the LLM endpoint; OpenRouter by default.
        agent_model: The endpoint's name for the agent's model.
        wire_format: The wire format (docs/guides/endpoints.md); `None`: the URL decides.
        turn_timeout_seconds: Time limit of a whole turn, half an hour by default; `None`: no limit.
        extra_headers: HTTP headers of requests to `client_base_url`; `${VAR}` is an environment variable.
        extra_body: Fields added to the body of each request to `agent_model` unchanged.
        text_tool_calls: What happens if the model writes a tool call as text: `ask` the model for a real
            call, `run` the call, or `keep` the text.
        then: Fallback models, which are asked in this order if `agent_model` fails.
        tool_policy: Which tool calls are made, asked about or denied; by default all are made.
        context: How turns stay within the model's context window; `None`: the history is not shortened.
        tool_search: When `find_tools` and `call_tool` replace the servers' tools; `None`: never.
        project_dir: Folder that relative paths start from; `from_toml` sets the folder of the TOML file.

    Source: R1.5, R2.5, R12.4, R13.1-5, P45
    """

    mcp_enabled: bool = False
    mcp_config_file: Annotated[_Text, BeforeValidator(_path_text)] = "mcp_config.json"
    mcp_max_tool_iterations: _Count = 20
    mcp_tool_call_timeout_seconds: _Above0 = 30
    mcp_server_startup_timeout_seconds: _Above0 = Unwritten(10)
    mcp_force_tool_support: bool = False
    mcp_tool_lock: Literal["report", "refuse", "off"] = "report"
    mcp_start: StartWhen = DEFAULT_START
    mcp_registry: Annotated[str, WrapValidator(_base_url)] | None = None
    client_base_url: Annotated[str, WrapValidator(_base_url)] = "https://openrouter.ai/api/v1"
    agent_model: _Text = "anthropic/claude-haiku-5.5"
    wire_format: WireName | None = None
    turn_timeout_seconds: _Above0 | None = TURN_TIMEOUT_S
    extra_headers: dict[_Text, str] = field(default_factory=dict)
    extra_body: dict[_Text, Any] = field(default_factory=dict)
    text_tool_calls: TextToolCalls = "ask"
    then: _NextModels = field(default_factory=list)
    agent_sampling: AgentSampling = field(default_factory=AgentSampling)
    retry: RetrySettings = field(default_factory=RetrySettings)
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    tool_policy: InstanceOf[ToolPolicy] = ToolPolicy()
    context: InstanceOf[ContextPolicy] | None = None
    tool_search: InstanceOf[ToolSearch] | None = None
    project_dir: Annotated[Path, Field(strict=False)] = Path()

    @property
    def mcp_config_path(self) -> Path:
        """The path of the file that names the MCP servers: `mcp_config_file` in `project_dir`."""
        return self.project_dir / self.mcp_config_file

    def ask(self, base_url: str | None = None, model: str | None = None) -> None:
        """Change to another endpoint or model, if one is given. A change removes the fallback models.

        Raises:
            MCPConfigError: `base_url` or `model` cannot be used. The text names `--base-url` or `--model`.
        """
        before = self.client_base_url, self.agent_model
        try:
            self.client_base_url = self.client_base_url if base_url is None else base_url
            self.agent_model = self.agent_model if model is None else model
        except MCPConfigError as error:
            self.client_base_url = before[0]  # of the two, change both or none
            said = str(error).replace("client_base_url", "--base-url", 1).replace("agent_model", "--model", 1)
            raise MCPConfigError(said, problems=error.problems) from error
        if before != (self.client_base_url, self.agent_model):
            self.then = []

    @classmethod
    def of_project(cls) -> Self:
        """Load the working directory's `pyproject.toml`, as `from_toml` does; without it, use defaults."""
        return cls.from_toml() if is_there(Path("pyproject.toml")) else cls()

    @classmethod
    def from_toml(cls, config_path: str | os.PathLike[str] = "pyproject.toml") -> Self:
        """Load the settings of a TOML file, from `[tool.grue.*]` or `[tool.zorkgpt.*]`.

        A missing key keeps its default. In `llm`, `agent_sampling`, `retry` and `budget` below
        `[tool.zorkgpt]`, an unknown key is ignored.

        Args:
            config_path: The file, relative to the working directory; its folder becomes `project_dir`.

        Raises:
            MCPConfigError: The file is missing or not TOML, a value is invalid, a key is unknown, or a
                setting is in both `[tool.grue]` and `[tool.zorkgpt]`.

        Source: R2.4, P4, P45
        """
        project, problems = project_tables.gather_project_tables(as_path(config_path, "from_toml()"))
        tables = project.tables
        known = {name: _fields(settings) for name, settings in _NESTED.items()}
        known["mcp"] = tuple(name.removeprefix(_MCP) for name in _fields(cls) if name.startswith(_MCP))
        known["llm"] = tuple(
            name
            for name in _fields(cls)
            if not name.startswith(_MCP) and name not in (*project_tables.TABLES, "project_dir")
        )
        problems += _unknown_keys(project, known)
        values = {_MCP + key: value for key, value in _chosen(tables["mcp"], known["mcp"]).items()}
        values |= _chosen(tables["llm"], known["llm"])
        for name, settings in _NESTED.items():
            try:
                values[name] = settings(**_chosen(tables[name], known[name]))
            except MCPConfigError as error:
                named = [MCPConfigError.Problem(keys, f"{keys[0]} {text}") for keys, text in error.problems]
                problems += (project.placed(name, each) for each in named or _whole(error))
        for name, read in (
            ("tool_policy", read_tool_policy),
            ("context", read_context_policy),
            ("tool_search", read_tool_search),
        ):
            try:
                values[name] = read(tables[name])
            except MCPConfigError as error:
                problems += (project.placed(name, each) for each in error.problems or _whole(error))
        try:
            loaded = cls(**values, project_dir=project.document.path.absolute().parent)
        except MCPConfigError as error:
            for keys, text in error.problems:
                name = str(keys[0])
                problem = MCPConfigError.Problem((key := name.removeprefix(_MCP),), f"{key} {text}")
                problems.append(project.placed("llm" if key == name else "mcp", problem))
        if problems:
            problems.sort(key=lambda each: project.document.line(each.keys) or 0)
            raise project.document.errors(problems)
        return loaded


def _whole(error: MCPConfigError) -> list[MCPConfigError.Problem]:
    # A problem without keys means that the whole table is wrong.
    return [MCPConfigError.Problem((), str(error))]


def _fields(settings: type[_Table]) -> tuple[str, ...]:
    return tuple(each.name for each in dataclasses.fields(settings))


def _chosen(table: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: table[key] for key in keys if key in table}


def _unknown_keys(
    project: project_tables.ProjectTables, known: Mapping[str, Sequence[str]]
) -> Iterator[MCPConfigError.Problem]:
    # Below `[tool.zorkgpt]`, report unknown keys only in `mcp`: a larger project may use its own elsewhere.
    for (table, key), root in project.roots.items():
        names = known.get(table)
        if names is None or key in names or (root == project_tables.ZORKGPT and table != "mcp"):
            continue
        belongs = project_tables.where_it_belongs(key, root, table)
        meant = f" {belongs}" if belongs else did_you_mean(key, names)
        yield MCPConfigError.Problem(
            (*root.split("."), table, key),
            f"unknown key {key!r} in [{root}.{table}].{meant} Known keys: {', '.join(names)}.",
        )


def _what_is_wrong(error: ErrorDetails) -> str:
    wanted = fault_text(error["msg"]).removeprefix("Input ").removeprefix("String ")
    if error["type"] == "value_error":
        return wanted if wanted.endswith("?") else f"{wanted}."
    if error["type"] in ("unexpected_keyword_argument", "no_such_attribute"):
        return "is not a setting."
    if error["type"] == "dict_type" and isinstance(error["input"], str):
        return f"is a text; it {wanted}."  # do not show it: it may be a header with an API key
    inside = error["loc"][1:]
    if inside and inside[-1] != "[key]":
        return f"has {project_tables.toml_kind(error['input'])} under {inside[0]!r}; it {wanted}."
    return f"{'has the key' if inside else 'is'} {project_tables.toml_kind(error['input'])}; it {wanted}."
