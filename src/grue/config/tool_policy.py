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
from typing import Any

import msgspec

from grue.config.reading import nearest
from grue.errors import MCPConfigError
from grue.messages import ToolPolicy, ToolRule
from grue.protocol.tool_policy import check_policy

_PLACE = re.compile(r" - at `\$\.?(?P<place>[^`]*)`$")
_INDEX = re.compile(r"\[(\d+)\]")


def tool_policy_of(table: Mapping[str, Any], path: Path, place: str) -> ToolPolicy:
    """Return the policy that a table describes.

    Args:
        table: The table, as it was read from the file. A rule's `tools` may be one pattern or a list.
        path: The file, for errors.
        place: The name of the table, for errors: `tool.grue.tool_policy`.

    Raises:
        MCPConfigError: A key is unknown or a value cannot be used; the error names the file and the key.
    """
    refuse_unknown(table, ToolPolicy.__struct_fields__, f"{path}: [{place}]", path)
    rules = table.get("rules", [])
    if isinstance(rules, list):
        rules = [
            _rule(rule, f"{path}: [{place}] rules, number {n}:", path) for n, rule in enumerate(rules, 1)
        ]
    try:
        return check_policy(msgspec.convert({**table, "rules": rules}, ToolPolicy))
    except msgspec.ValidationError as error:
        raise MCPConfigError(f"{path}: [{place}] {problem_of(str(error))}", path=str(path)) from error
    except MCPConfigError as error:
        text = str(error).removeprefix("tool_policy: ")
        raise MCPConfigError(f"{path}: [{place}] {text}", path=str(path)) from error


def _rule(rule: Any, where: str, path: Path) -> Any:
    if not isinstance(rule, dict):
        return rule
    refuse_unknown(rule, ToolRule.__struct_fields__, where, path)
    patterns = rule.get("tools")
    return {**rule, "tools": [patterns]} if isinstance(patterns, str) else rule


def refuse_unknown(table: Mapping[str, Any], known: Iterable[str], where: str, path: Path) -> None:
    """Refuse keys that a table does not have.

    Raises:
        MCPConfigError: There is one; the error begins with `where` and suggests a key.
    """
    names = tuple(known)
    for key in table:
        if key not in names:
            raise MCPConfigError(
                f"{where} unknown key {key!r}. Did you mean {nearest(key, names)!r}?"
                f" Known keys: {', '.join(names)}.",
                path=str(path),
            )


def problem_of(error: str) -> str:
    """Return msgspec's text with the key first: `rules, number 2, verdict: Expected ...`."""
    found = _PLACE.search(error)
    if found is None:
        return f"{error}."
    place = _INDEX.sub(lambda index: f", number {int(index[1]) + 1}", found["place"]).replace(".", ", ")
    return f"{place}: {error[: found.start()]}."
