"""Read policies from tables of a file. The paths in an error's `problems` start at the table."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from grue.config.documents import KeyPath, choices, did_you_mean, problem_of
from grue.errors import MCPConfigError
from grue.policies import ContextPolicy, ToolPolicy, ToolRule, ToolSearch
from grue.protocol.tools.policy import check_policy

P = TypeVar("P", bound=Struct)


def read_tool_policy(table: Mapping[str, Any]) -> ToolPolicy:
    """Return the policy that a table describes."""
    rules = table.get("rules", [])
    if isinstance(rules, list):
        for number, rule in enumerate(rules):
            if isinstance(rule, dict):
                _refuse_unknown(rule, ToolRule, ("rules", number))
        rules = [_listed(rule, "tools") if isinstance(rule, dict) else rule for rule in rules]
    return check_policy(_converted({**table, "rules": rules} if "rules" in table else table, ToolPolicy))


def read_context_policy(table: Mapping[str, Any]) -> ContextPolicy | None:
    """Return the policy that a table describes; `None` if the table is empty. `read_only` may be one name."""
    return _converted(_listed(table, "read_only"), ContextPolicy) if table else None


def read_tool_search(table: Mapping[str, Any]) -> ToolSearch | None:
    """Return the settings that a table describes; `None` if the table is empty. `always` may be one name."""
    return _converted(_listed(table, "always"), ToolSearch) if table else None


def _listed(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return {**table, key: [table[key]]} if isinstance(table.get(key), str) else table


def _converted(table: Mapping[str, Any], kind: type[P]) -> P:
    _refuse_unknown(table, kind, ())
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        keys, words = problem_of(error)
        raise _error(keys, f"{_said(keys)}{words}{choices(words, kind, keys)}.") from error


def _refuse_unknown(table: Mapping[str, Any], kind: type[Struct], within: KeyPath) -> None:
    names = kind.__struct_fields__
    for key in table:
        if key not in names:
            known = f"{did_you_mean(key, names)} Known keys: {', '.join(names)}."
            raise _error((*within, key), f"{_said(within)}unknown key {key!r}.{known}")


def _error(keys: KeyPath, text: str) -> MCPConfigError:
    return MCPConfigError(text, problems=[MCPConfigError.Problem(keys, text)])


def _said(keys: KeyPath) -> str:
    # The keys `("rules", 1, "verdict")` become the text `rules, number 2, verdict: `.
    words = [f"number {key + 1}" if isinstance(key, int) else key for key in keys]
    return f"{', '.join(words)}: " if keys else ""
