"""`${...}` in configuration texts, as the hosts that share these files write it.

`${VAR}`, `${VAR:-default}` and `${env:VAR}` read the environment; `${workspaceFolder}` and `${userHome}` are
folders. A default also stands in for an empty variable, as in a shell. What a variable holds is never
expanded again, and never part of an error.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from grue.errors import MCPConfigError

_EXPRESSION = re.compile(r"\$\{(?P<inside>[^}]*)(?P<end>\}?)")
_VARIABLE = re.compile(r"(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)
_KNOWN = (
    "It knows ${VAR}, ${VAR:-default}, ${env:VAR}, ${workspaceFolder} and ${userHome}, none inside another;"
    " an editor's ${input:...} has nobody to ask here."
)


class Scope(Struct, frozen=True, kw_only=True):
    """Where the values of `${...}` come from.

    Attributes:
        environ: The environment variables.
        workspace_folder: What `${workspaceFolder}` means.
        source: The file that the texts are from, for errors; `None` if from no file.
    """

    environ: Mapping[str, str]
    workspace_folder: Path
    source: str | None = None


def expand(text: str, scope: Scope, place: str) -> str:
    """Return `text` with every `${...}` replaced by its value.

    Args:
        text: A text of the configuration.
        scope: Where the values come from.
        place: What the text is, for errors, such as "MCP server 'github': env.TOKEN".

    Raises:
        MCPConfigError: A variable is not set and has no default, or an expression is none of ours. Variables
            are named, values and defaults never shown.
    """
    return _EXPRESSION.sub(lambda match: _value(match, scope, place), text)


def _value(match: re.Match[str], scope: Scope, place: str) -> str:
    inside = match["inside"]
    if not match["end"]:
        raise MCPConfigError(f"{place} has a '${{' that is never closed.", path=scope.source)
    if inside == "workspaceFolder":
        return str(scope.workspace_folder)
    if inside == "userHome":
        return scope.environ.get("HOME") or str(Path("~").expanduser())
    variable = _VARIABLE.fullmatch(inside)
    if variable is None or "${" in inside:
        raise MCPConfigError(f"{place} has a '${{...}}' that grue cannot expand. {_KNOWN}", path=scope.source)
    name, default = variable["name"], variable["default"]
    value = scope.environ.get(name)
    if default is not None:
        return value or default
    if value is None:
        raise MCPConfigError(
            f"{place} needs the environment variable {name}, which is not set."
            f" Set it, or give a default: ${{{name}:-...}}.",
            path=scope.source,
        )
    return value
