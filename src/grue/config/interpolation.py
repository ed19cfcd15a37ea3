"""Expand `${...}` in configuration values, in the notation of the other hosts that use these files.

`${VAR}`, `${VAR:-default}` and `${env:VAR}` read the environment; `${workspaceFolder}`, `${userHome}` and
`${grueServers}` (the folder of the servers that come with grue) are folders. As in a shell, a default also
replaces an empty variable. The value of a variable is not expanded again, and never appears in an error.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from grue.errors import MCPConfigError

_EXPRESSION = re.compile(r"\$\{(?P<inside>[^}]*)(?P<end>\}?)")
_VARIABLE = re.compile(r"(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)
_SERVERS = Path(__file__).parents[1] / "hosts" / "servers"
_KNOWN = (
    "It can expand ${VAR}, ${VAR:-default}, ${env:VAR}, ${workspaceFolder}, ${userHome} and ${grueServers},"
    " and none of them inside another. An editor's ${input:...} is not supported: grue asks for no input."
)


class Scope(Struct, frozen=True, kw_only=True):
    """The values for `${...}`.

    Attributes:
        environ: The environment variables.
        workspace_folder: The value of `${workspaceFolder}`.
        source: The file that contains the expressions, for errors; `None` if there is none.
    """

    environ: Mapping[str, str]
    workspace_folder: Path
    source: str | None = None


def expand(text: str, scope: Scope, place: str) -> str:
    """Return `text` with every `${...}` replaced by its value.

    Args:
        text: A value of the configuration.
        scope: The values to insert.
        place: Where `text` stands, for errors, such as "MCP server 'github': env.TOKEN".

    Raises:
        MCPConfigError: A variable is not set and has no default, or an expression is not supported. The error
            names variables, and never shows values or defaults.
    """
    return _EXPRESSION.sub(lambda match: _value(match, scope, place), text)


def _value(match: re.Match[str], scope: Scope, place: str) -> str:
    inside = match["inside"]
    if not match["end"]:
        raise MCPConfigError(f"{place} has a '${{' that is never closed.", path=scope.source)
    if inside == "workspaceFolder":
        return str(scope.workspace_folder)
    if inside == "grueServers":
        return str(_SERVERS)
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
