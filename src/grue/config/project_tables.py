"""Read grue's tables of a TOML file: `[tool.grue.*]`, and for older projects `[tool.zorkgpt.*]`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from grue.config.documents import SECRETS_ELSEWHERE, Document, nearest, parse_toml, read_config_text
from grue.errors import MCPConfigError

GRUE, ZORKGPT = "tool.grue", "tool.zorkgpt"
_SHOWN_CHARS = 40
TABLES = ("mcp", "llm", "agent_sampling", "retry", "budget", "tool_policy", "context", "tool_search")


class ProjectTables(Struct, frozen=True):
    """A project file's settings by table and key. `roots` says of each if it is in `GRUE` or `ZORKGPT`."""

    document: Document
    tables: dict[str, dict[str, Any]]
    roots: dict[tuple[str, str], str]

    def place(self, table: str, key: str = "") -> str:
        """Return a table's full name, such as `tool.zorkgpt.mcp`; with `key`, of the one with this key."""
        found = [root for (name, each), root in self.roots.items() if name == table and key in ("", each)]
        return f"{found[0] if found else GRUE}.{table}"

    def placed(self, table: str, problem: MCPConfigError.Problem) -> MCPConfigError.Problem:
        """Return `problem` with the table's path before its own path, and `[TABLE]` before its text."""
        place = self.place(table, str(problem.keys[0]) if problem.keys else "")
        return MCPConfigError.Problem((*place.split("."), *problem.keys), f"[{place}] {problem.text}")

    def __bool__(self) -> bool:
        return bool(self.roots)


def read_project_tables(path: Path) -> ProjectTables:
    """Return the settings of a TOML file, or raise an error for all its problems."""
    found, problems = gather_project_tables(path)
    if problems:
        raise found.document.errors(problems)
    return found


def gather_project_tables(path: Path) -> tuple[ProjectTables, list[MCPConfigError.Problem]]:
    """Return a file's settings, and problems: unknown names directly in `tool.grue`, settings in both roots.

    Raises `MCPConfigError` if the file cannot be read, is not TOML, or has another value in place of a table.
    """
    missing = f"Configuration file not found: {path}. Name an existing TOML file, or create this one."
    document = parse_toml(read_config_text(path, if_missing=missing), path)
    ours, older = (_root(document.value, root, path) for root in (GRUE, ZORKGPT))
    problems = [
        MCPConfigError.Problem((*GRUE.split("."), name), _unknown(name, value))
        for name, value in ours.items()
        if name not in TABLES
    ]
    found = ProjectTables(document, {name: {} for name in TABLES}, {})
    for root, tables in ((GRUE, ours), (ZORKGPT, older)):
        for name in TABLES:
            for key, value in _table(tables, name, path, root).items():
                if (name, key) in found.roots:
                    line = document.line((*root.split("."), name, key))
                    also = f"[{GRUE}.{name}] {key} is also set in [{root}.{name}], line {line}."
                    problem = MCPConfigError.Problem(
                        (*GRUE.split("."), name, key), f"{also} Keep one of the two."
                    )
                    problems.append(problem)
                found.tables[name].setdefault(key, value)
                found.roots.setdefault((name, key), root)
    return found, problems


def _unknown(name: str, value: object) -> str:
    tables = f"Settings are in the tables {', '.join(f'[{GRUE}.{table}]' for table in TABLES)}."
    if not isinstance(value, dict):
        hint = where_it_belongs(name, GRUE) or tables
        return f"[{GRUE}] has no setting {name!r} of its own. {hint}"
    near = nearest(name, TABLES)
    meant = f"Did you mean [{GRUE}.{near}]?" if near is not None else tables
    return f"unknown table [{GRUE}.{name}]. {where_it_belongs(name, GRUE) or meant}"


def _root(document: dict[str, Any], root: str, path: Path) -> dict[str, Any]:
    above = ""
    for name in root.split("."):
        document = _table(document, name, path, above)
        above = f"{above}.{name}" if above else name
    return document


def _table(tables: Mapping[str, Any], name: str, path: Path, above: str) -> dict[str, Any]:
    table = tables.get(name, {})
    if isinstance(table, dict):
        return table
    place = f"{above}.{name}" if above else name
    raise MCPConfigError(f"{path}: [{place}] is {toml_kind(table)}; it should be a table.", path=str(path))


def toml_kind(value: Any) -> str:
    """Describe a value in terms of TOML: numbers, booleans and texts by their value, others by their kind."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            shown = value if len(value) <= _SHOWN_CHARS else value[:_SHOWN_CHARS] + "..."
            return f"the text {shown!r}"
        case int() | float():
            return repr(value)
        case dict():
            return "a table"
        case list():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


_LLM, _SAMPLING, _RETRY, _MCP = "llm", "agent_sampling", "retry", "mcp"

_OTHER_NAMES = {
    (_LLM, "agent_model"): "model model_name",
    (_LLM, "client_base_url"): "base_url api_base url endpoint",
    (_LLM, "wire_format"): "wire format",
    (_LLM, "extra_headers"): "headers",
    (_LLM, "extra_body"): "",
    **{
        (_SAMPLING, name): ""
        for name in ("temperature", "top_p", "top_k", "min_p", "reasoning_effort", "reasoning_tokens")
    },
    (_SAMPLING, "max_tokens"): "max_output_tokens",
    (_RETRY, "max_retries"): "retries",
    (_RETRY, "timeout_seconds"): "timeout timeout_s",
    (_MCP, "enabled"): "mcp_enabled",
    (_MCP, "config_file"): "mcp_config mcp_config_file",
    (_MCP, "max_tool_iterations"): "max_iterations",
    (_MCP, "tool_call_timeout_seconds"): "tool_call_timeout_s tool_timeout",
    (_MCP, "server_startup_timeout_seconds"): "server_startup_timeout_s startup_timeout",
    (_MCP, "tool_lock"): "",
}
"""The other names, separated by spaces, that people and programs use for a setting, by its table and key."""

PLACES = {name: place for place, names in _OTHER_NAMES.items() for name in (place[1], *names.split())}
"""grue's table and key of a setting, by each of its names."""

_ELSEWHERE = {
    **SECRETS_ELSEWHERE,
    **dict.fromkeys(
        ("servers", "mcp_servers", "mcpServers"),
        "MCP servers are configured in mcp_config.json: `grue init` writes one.",
    ),
}


def where_it_belongs(name: str, root: str, here: str = "") -> str:
    """Say where the setting `name`, found in the table `here`, belongs; empty if that is not known."""
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    table, key = PLACES.get(name, ("", ""))
    if not table:
        return ""
    return f"Did you mean {key!r}?" if table == here else f"Write it as {key} in [{root}.{table}]."
