"""`GameConfiguration`: the settings of `pyproject.toml` that a turn needs (R2.4, R13, P4, P45).

Five tables are read: `[tool.zorkgpt.mcp]`, `.llm`, `.agent_sampling`, `.retry` and `.budget`. The first is
ours, so an unknown key in it is an error; the others belong to a larger project, and what else they hold is
not our business. Every value is checked where it enters, from a file, a keyword or an assignment.
"""

import dataclasses
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, WrapValidator, model_validator
from pydantic.dataclasses import dataclass

from grue.config.reading import nearest, read_config_text
from grue.config.wording import setting_problem, toml_kind
from grue.errors import MCPConfigError
from grue.protocol.chat_wire.profile import Effort, WireName

_ROOT = ("tool", "zorkgpt")
_LLM_KEYS = ("client_base_url", "agent_model", "wire_format", "extra_headers", "extra_body")
_MCP = "mcp_"
_STRICT = ConfigDict(strict=True, extra="forbid", validate_assignment=True, hide_input_in_errors=True)


class _FieldError(MCPConfigError):
    """Fields that were given values they cannot have, each with what is wrong, before a file is known."""

    def __init__(self, owner: type, faults: Sequence[tuple[str, str]]) -> None:
        super().__init__("\n".join(f"{field} {problem}" for field, problem in faults))
        self.owner = owner
        self.faults = faults


def _as_written(value: Any, check: Callable[[Any], float]) -> Any:
    # 30 stays an int, so that every text says "30s" and not "30.0s".
    check(value)
    return value


def _base_url(value: Any, check: Callable[[Any], str]) -> str:
    """Refuse what is no HTTP base URL. The value is never shown: a key may have been pasted in its place."""
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
        raise ValueError("should carry no credentials, query or fragment; keys come from the environment")
    return url


def _path_text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


_Text = Annotated[str, Field(min_length=1)]
_Count = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), WrapValidator(_as_written)]
_NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), WrapValidator(_as_written)]
_Amount = Annotated[float, Field(gt=0, allow_inf_nan=False), WrapValidator(_as_written)]
_Share = Annotated[float, Field(ge=0, le=1), WrapValidator(_as_written)]


@dataclass(config=_STRICT)
class _Table:
    """Settings whose faults are told in our words, never with a value that may be a secret in them."""

    @model_validator(mode="wrap")
    @classmethod
    def _in_our_words(cls, values: Any, check: Callable[[Any], Self]) -> Self:
        try:
            return check(values)
        except ValidationError as exc:
            faults = [(str(error["loc"][0]), setting_problem(error)) for error in exc.errors()]
            raise _FieldError(cls, faults) from exc


@dataclass(config=_STRICT)
class AgentSampling(_Table):
    """Sampling parameters of the agent's model; `None`, always the default, leaves one out of the request."""

    temperature: _NotNegative | None = None
    top_p: _Share | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    min_p: _Share | None = None
    max_tokens: _Count | None = None
    reasoning_effort: Effort | None = None
    reasoning_tokens: _Count | None = None


@dataclass(config=_STRICT)
class RetrySettings(_Table):
    """When a failed LLM request is tried again; delays and the limit of one request in seconds.

    Delays start at `initial_delay`, grow by `exponential_base` up to `max_delay`, and are spread by
    `jitter_factor`, a share of each. The circuit-breaker keys of that table are accepted and have no effect.
    """

    max_retries: Annotated[int, Field(ge=0)] = 5
    initial_delay: _NotNegative = 1.0
    max_delay: _NotNegative = 60.0
    exponential_base: Annotated[float, Field(ge=1, allow_inf_nan=False), WrapValidator(_as_written)] = 2.0
    jitter_factor: _Share = 0.1
    timeout_seconds: _Seconds = 120.0


@dataclass(config=_STRICT)
class BudgetSettings(_Table):
    """What may be spent on the model, in a turn and in an episode; `None`, always the default: no limit.

    Tokens are those sent and those received together; the cost counts as far as the endpoint tells it.
    """

    turn_requests: _Count | None = None
    turn_tokens: _Count | None = None
    turn_cost_usd: _Amount | None = None
    episode_requests: _Count | None = None
    episode_tokens: _Count | None = None
    episode_cost_usd: _Amount | None = None


_NESTED: Mapping[str, type[_Table]] = {
    "agent_sampling": AgentSampling,
    "retry": RetrySettings,
    "budget": BudgetSettings,
}


@dataclass(config=_STRICT)
class GameConfiguration(_Table):
    """The settings of one host, with the seeds' names and defaults (R13.1-5, P45).

    Construct it with keywords, assign its attributes, or load it with `from_toml`; each value is checked.

    Attributes:
        mcp_enabled: Offer MCP tools to the agent; off by default (R1.5, R2.5).
        mcp_config_file: File that names the MCP servers, relative to `project_dir`.
        mcp_max_tool_iterations: Replies with tool calls in one turn, at least 1.
        mcp_tool_call_timeout_seconds: Seconds that one tool call may take, above 0; fractions are fine.
        mcp_server_startup_timeout_seconds: Seconds from spawn to the listed tools, above 0.
        mcp_force_tool_support: Offer tools whatever the model's name suggests (R12.4).
        mcp_tool_lock: What becomes of a tool that is not as `mcp_tools.lock`, next to `mcp_config_file`, has
            it: `report` it, `refuse` to offer it, or take no notice of the lock (`off`).
        client_base_url: Base URL of the endpoint; OpenRouter by default.
        agent_model: The agent's model, as that endpoint names it.
        wire_format: How to talk to it: `chat_completions`, `responses` or `messages`; `None`: as its base URL
            suggests.
        extra_headers: Sent with each request; `${VAR}` stands for a variable of the environment.
        extra_body: Further fields of each request, as they are.
        agent_sampling: Sampling parameters, all left out by default.
        retry: Retries and time limit of LLM requests.
        budget: What may be spent on the model; no limits by default.
        project_dir: Folder that relative paths start from; the TOML's folder when loaded from one.
    """

    mcp_enabled: bool = False
    mcp_config_file: Annotated[_Text, BeforeValidator(_path_text)] = "mcp_config.json"
    mcp_max_tool_iterations: _Count = 20
    mcp_tool_call_timeout_seconds: _Seconds = 30
    mcp_server_startup_timeout_seconds: _Seconds = 10
    mcp_force_tool_support: bool = False
    mcp_tool_lock: Literal["report", "refuse", "off"] = "report"
    client_base_url: Annotated[str, WrapValidator(_base_url)] = "https://openrouter.ai/api/v1"
    agent_model: _Text = "anthropic/claude-haiku-5.5"
    wire_format: WireName | None = None
    extra_headers: dict[_Text, str] = dataclasses.field(default_factory=dict)
    extra_body: dict[_Text, Any] = dataclasses.field(default_factory=dict)
    agent_sampling: AgentSampling = dataclasses.field(default_factory=AgentSampling)
    retry: RetrySettings = dataclasses.field(default_factory=RetrySettings)
    budget: BudgetSettings = dataclasses.field(default_factory=BudgetSettings)
    project_dir: Annotated[Path, Field(strict=False)] = Path()

    @property
    def mcp_config_path(self) -> Path:
        """The path of the MCP servers' file, with `project_dir` applied."""
        return self.project_dir / self.mcp_config_file

    @classmethod
    def from_toml(cls, config_path: str | os.PathLike[str] = "pyproject.toml") -> Self:
        """Load the four tables of a TOML file; what is not there keeps its default (R2.4, P4, P45).

        Args:
            config_path: The file, relative to the working directory; its folder becomes `project_dir`.

        Raises:
            MCPConfigError: The file is missing or not TOML (line and column), or a value cannot be used
                (table, key, what was found and what is wanted).
        """
        path = Path(config_path)
        tables = zorkgpt_tables_of(path)
        mcp = _table(tables, "mcp", path)
        _refuse_unknown_keys(
            mcp, (name.removeprefix(_MCP) for name in _fields(cls) if name.startswith(_MCP)), path
        )
        values = {_MCP + key: value for key, value in mcp.items()} | _chosen(
            _table(tables, "llm", path), _LLM_KEYS
        )
        try:
            for name, settings in _NESTED.items():
                values[name] = settings(**_chosen(_table(tables, name, path), _fields(settings)))
            return cls(**values, project_dir=path.absolute().parent)
        except _FieldError as faults:
            lines = (
                f"{path}: {_toml_place(faults.owner, field)} {problem}" for field, problem in faults.faults
            )
            raise MCPConfigError("\n".join(lines), path=str(path)) from faults.__cause__


def _fields(settings: type[_Table]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(settings))


def _chosen(table: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: table[key] for key in keys if key in table}


def zorkgpt_tables_of(path: Path) -> dict[str, Any]:
    """Return `[tool.zorkgpt]` of a TOML file; empty where it has none.

    Raises:
        MCPConfigError: The file is missing or is not TOML (with line and column).
    """
    text = read_config_text(
        path,
        if_missing=f"Configuration file not found: {path}. Name an existing TOML file, or create this one.",
    )
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        line, column = _toml_position(str(exc), text)
        raise MCPConfigError(
            f"{path} is not valid TOML: {exc}.", path=str(path), line=line, column=column
        ) from exc
    except (RecursionError, ValueError) as exc:  # nested too deeply; a number or a date beyond all limits
        raise MCPConfigError(f"{path} is not usable TOML: {exc}.", path=str(path)) from exc
    for depth, name in enumerate(_ROOT):
        document = _table(document, name, path, above=_ROOT[:depth])
    return document


def _toml_position(message: str, text: str) -> tuple[int, int]:
    # Python before 3.14 gives the position only in the message, and none at the end of the document.
    if match := re.search(r"at line (\d+), column (\d+)", message):
        return int(match[1]), int(match[2])
    return text.count("\n") + 1, len(text) - text.rfind("\n")


def _table(tables: Mapping[str, Any], name: str, path: Path, above: Sequence[str] = _ROOT) -> dict[str, Any]:
    table = tables.get(name, {})
    if isinstance(table, dict):
        return table
    place = ".".join((*above, name))
    raise MCPConfigError(f"{path}: [{place}] is {toml_kind(table)}; it should be a table.", path=str(path))


def _refuse_unknown_keys(table: Mapping[str, Any], known: Iterable[str], path: Path) -> None:
    names = tuple(known)
    for key in table:
        if key not in names:
            raise MCPConfigError(
                f"{path}: unknown key {key!r} in [tool.zorkgpt.mcp]. Did you mean {nearest(key, names)!r}?"
                f" Known keys: {', '.join(names)}.",
                path=str(path),
            )


def _toml_place(owner: type, field: str) -> str:
    nested = next((name for name, settings in _NESTED.items() if settings is owner), None)
    table = nested or ("mcp" if field.startswith(_MCP) else "llm")
    return f"[{'.'.join((*_ROOT, table))}] {field.removeprefix(_MCP)}"
