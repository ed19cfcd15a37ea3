"""Read grue's tables of a TOML file: `[tool.grue.*]`, and for older projects `[tool.zorkgpt.*]`.

Each setting is taken from the first of the two that has it. A setting in both is an error, because one of the
two values would have no effect.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from grue.config.guessed_names import where_it_belongs
from grue.config.reading import nearest, read_config_text
from grue.config.toml_lines import line_of
from grue.config.wording import toml_kind
from grue.errors import MCPConfigError

GRUE, ZORKGPT = "tool.grue", "tool.zorkgpt"
TABLES = ("mcp", "llm", "agent_sampling", "retry", "budget", "tool_policy", "context")


class ProjectTables(Struct, frozen=True):
    """The settings of a project file.

    Attributes:
        path: The file.
        tables: Each of `TABLES` with its keys and values; a table that the file does not have is empty.
        roots: `tool.grue` or `tool.zorkgpt`, by table and key: where the setting was found.
        text: The file's text.
    """

    path: Path
    tables: dict[str, dict[str, Any]]
    roots: dict[tuple[str, str], str]
    text: str = ""

    def place(self, table: str, key: str = "") -> str:
        """Return a table's name in the file: of the table that has `key`, or has any key."""
        found = [root for (name, each), root in self.roots.items() if name == table and key in ("", each)]
        return f"{found[0] if found else GRUE}.{table}"

    def line(self, table: str, *keys: str | int) -> int | None:
        """Return the line of a setting, or else of what is around it; `None`: it cannot be found."""
        root = self.place(table, str(keys[0]) if keys else "").split(".")
        return line_of(self.text, (*root, *keys))

    def __bool__(self) -> bool:
        """Whether the file has any setting."""
        return bool(self.roots)


def read_project_tables(path: Path) -> ProjectTables:
    """Return the settings of a TOML file.

    Raises:
        MCPConfigError: The file is missing or not TOML (the error names line and column), something that
            should be a table is none, `[tool.grue]` has an unknown table, or a setting is in both places (the
            error names the key, both tables and their lines).
    """
    text = _text(path)
    document = _document(path, text)
    ours, older = (_root(document, root, path) for root in (GRUE, ZORKGPT))
    for name, value in ours.items():
        if name not in TABLES:
            line = line_of(text, (*GRUE.split("."), name))
            raise MCPConfigError(f"{at(path, line)}: {_unknown(name, value)}", path=str(path), line=line)
    found = ProjectTables(path, {name: {} for name in TABLES}, {}, text)
    for root, tables in ((GRUE, ours), (ZORKGPT, older)):
        for name in TABLES:
            for key, value in _table(tables, name, path, root).items():
                found.tables[name].setdefault(key, value)
                found.roots.setdefault((name, key), root)
    _refuse_settings_in_both(found, ours, older)
    return found


def _unknown(name: str, value: object) -> str:
    if not isinstance(value, dict):
        tables = ", ".join(f"[{GRUE}.{table}]" for table in TABLES)
        hint = where_it_belongs(name, GRUE) or f"Settings are in the tables {tables}."
        return f"[{GRUE}] has no setting {name!r} of its own. {hint}"
    hint = where_it_belongs(name, GRUE) or f"Did you mean [{GRUE}.{nearest(name, TABLES)}]?"
    return f"unknown table [{GRUE}.{name}]. {hint}"


def _refuse_settings_in_both(found: ProjectTables, ours: Mapping[str, Any], older: Mapping[str, Any]) -> None:
    twice = [(name, key) for name in TABLES for key in ours.get(name, {}) if key in older.get(name, {})]
    if not twice:
        return
    problems = []
    for name, key in twice:
        first, second = (line_of(found.text, (*root.split("."), name, key)) for root in (GRUE, ZORKGPT))
        problems.append(
            f"{at(found.path, first)}: [{GRUE}.{name}] {key} is also set in [{ZORKGPT}.{name}]"
            f"{'' if second is None else f', line {second}'}. Keep one of the two."
        )
    raise MCPConfigError("\n".join(problems), path=str(found.path), line=found.line(*twice[0]))


def at(path: Path, line: int | None) -> str:
    """Return what an error about a file begins with: `pyproject.toml, line 7`."""
    return str(path) if line is None else f"{path}, line {line}"


def _text(path: Path) -> str:
    return read_config_text(
        path,
        if_missing=f"Configuration file not found: {path}. Name an existing TOML file, or create this one.",
    )


def _document(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        line, column = _position(str(exc), text)
        raise MCPConfigError(
            f"{path} is not valid TOML: {exc}.", path=str(path), line=line, column=column
        ) from exc
    except (RecursionError, ValueError) as exc:  # nested too deeply; a number or a date out of range
        raise MCPConfigError(f"{path} is not usable TOML: {exc}.", path=str(path)) from exc


def _position(message: str, text: str) -> tuple[int, int]:
    # Before Python 3.14 the position is only in the message, and missing at the end of the document.
    if match := re.search(r"at line (\d+), column (\d+)", message):
        return int(match[1]), int(match[2])
    return text.count("\n") + 1, len(text) - text.rfind("\n")


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
