"""Read a `ToolPolicy` from a table of a TOML file.

```toml
[tool.grue.tool_policy]
trusted = ["files"]

[[tool.grue.tool_policy.rules]]
tools = ["files.delete_*"]
verdict = "ask"
```
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from grue.config.project_tables import at
from grue.config.reading import nearest
from grue.config.toml_lines import Keys
from grue.errors import MCPConfigError
from grue.messages import ToolPolicy, ToolRule
from grue.protocol.tool_policy import check_policy

_PLACE = re.compile(r" - at `\$\.?(?P<place>[^`]*)`$")
_INDEX = re.compile(r"\[(\d+)\]")
_RULE = re.compile(r"rule (\d+):")


class LineOf(Protocol):
    """Finds the line of what keys lead to, within a table."""

    def __call__(self, *keys: str | int) -> int | None:
        """Return the line; `None`: it is not known."""
        ...


def no_line(*keys: str | int) -> None:
    """Return that the line is not known."""


class TablePlace(Struct, frozen=True):
    """The place of a table, for errors: its file, its name, and how to find the lines of its keys."""

    path: Path
    name: str
    line: LineOf

    def error(self, keys: Keys, problem: str) -> MCPConfigError:
        """Return an error about what `keys` lead to."""
        line = self.line(*keys)
        return MCPConfigError(
            f"{at(self.path, line)}: [{self.name}] {problem}", path=str(self.path), line=line
        )


def tool_policy_of(table: Mapping[str, Any], path: Path, place: str, *, line: LineOf = no_line) -> ToolPolicy:
    """Return the policy that a table describes.

    Args:
        table: The table, as it was read from the file. A rule's `tools` may be one pattern or a list.
        path: The file, for errors.
        place: The name of the table, for errors: `tool.grue.tool_policy`.
        line: Returns the line of a key, for errors.

    Raises:
        MCPConfigError: A key is unknown or a value cannot be used; the error names file, line and key.
    """
    place_of = TablePlace(path, place, line)
    refuse_unknown(table, ToolPolicy.__struct_fields__, place_of)
    rules = table.get("rules", [])
    if isinstance(rules, list):
        rules = [_rule(rule, place_of, n) for n, rule in enumerate(rules)]
    try:
        return check_policy(msgspec.convert({**table, "rules": rules}, ToolPolicy))
    except msgspec.ValidationError as error:
        raise place_of.error(keys_of(str(error)), problem_of(str(error))) from error
    except MCPConfigError as error:
        text = str(error).removeprefix("tool_policy: ")
        rule = _RULE.match(text)
        keys: Keys = ("rules", int(rule[1]) - 1) if rule else (text.partition(" ")[0],)
        raise place_of.error(keys, text) from error


def _rule(rule: Any, place: TablePlace, number: int) -> Any:
    if not isinstance(rule, dict):
        return rule
    refuse_unknown(rule, ToolRule.__struct_fields__, place, ("rules", number))
    patterns = rule.get("tools")
    return {**rule, "tools": [patterns]} if isinstance(patterns, str) else rule


def refuse_unknown(
    table: Mapping[str, Any], known: Iterable[str], place: TablePlace, within: Keys = ()
) -> None:
    """Refuse keys that a table, or a rule within it, does not have.

    Raises:
        MCPConfigError: There is one; the error names the place and suggests a key.
    """
    names = tuple(known)
    for key in table:
        if key not in names:
            rule = f"{within[0]}, number {int(within[1]) + 1}: " if within else ""
            raise place.error(
                (*within, key),
                f"{rule}unknown key {key!r}. Did you mean {nearest(key, names)!r}?"
                f" Known keys: {', '.join(names)}.",
            )


def keys_of(error: str) -> Keys:
    """Return what leads to the value that msgspec's text is about."""
    found = _PLACE.search(error)
    words = re.findall(r"[^.\[\]]+", found["place"]) if found else []
    return tuple(int(word) if word.isdecimal() else word for word in words)


def problem_of(error: str) -> str:
    """Return msgspec's text with the key first: `rules, number 2, verdict: Expected ...`."""
    found = _PLACE.search(error)
    if found is None:
        return f"{error}."
    place = _INDEX.sub(lambda index: f", number {int(index[1]) + 1}", found["place"]).replace(".", ", ")
    return f"{place}: {error[: found.start()]}."
