"""Expand `${...}` in configuration values, and read the variables of an `envFile`.

`${VAR}`, `${VAR:-default}` and `${env:VAR}` read the environment; `${workspaceFolder}`, `${userHome}` and
`${grueServers}` are folders. As in a shell, a default also replaces an empty variable. A variable's value is
not expanded again, and never appears in an error.

An `envFile` has one `NAME=value` a line, in the part of the dotenv format on which parsers agree: `#`
comments, `export`, single quotes (literal), double quotes with escapes, values of several lines in quotes.
Variables inside a value are not expanded, because parsers disagree about that.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from grue.config.documents import read_config_text
from grue.errors import MCPConfigError
from grue.runtime.files import expanded

_EXPRESSION = re.compile(r"\$\{(?P<inside>[^}]*)(?P<end>\}?)")
_VARIABLE = re.compile(r"(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)
_SERVERS = Path(__file__).parents[1] / "hosts" / "servers"
_KNOWN = (
    "It can expand ${VAR}, ${VAR:-default}, ${env:VAR}, ${workspaceFolder}, ${userHome} and ${grueServers},"
    " and none of them inside another. An editor's ${input:...} is not supported: grue asks for no input."
)


class Scope(Struct, frozen=True, kw_only=True):
    """The values for `${...}`; `source` is the file with the expressions, if they come from a file."""

    environ: Mapping[str, str]
    workspace_folder: Path
    source: str | None = None


def expand(text: str, scope: Scope, place: str) -> str:
    """Return `text` with every `${...}` replaced by its value; errors begin with `place`."""
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
        return scope.environ.get("HOME") or str(expanded("~"))
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


_NAME = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=[ \t]*")
_SKIPPED = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_PLAIN = re.compile(r"(?P<value>[^\n]*?)[ \t]*(?:(?:(?<=[ \t])|(?<==))#[^\n]*)?(?:\n|\Z)")
_QUOTED = {
    "'": re.compile(r"'(?P<value>[^']*)'"),
    '"': re.compile(r'"(?P<value>(?:[^"\\]|\\.)*)"', re.DOTALL),
}
_ESCAPE = re.compile(r'\\([nrt"\\])')
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}


def read_env_file(path: Path, *, wanted_by: str) -> dict[str, str]:
    """Return the variables of a dotenv file. Errors show no line's text, which may be secret."""
    missing = f"{wanted_by}: envFile not found: {path}\nCreate it, or remove envFile from the configuration."
    text = read_config_text(path, if_missing=missing, pipes=True).replace("\r\n", "\n")
    found: dict[str, str] = {}
    position = 0
    while position < len(text):
        skipped = _SKIPPED.match(text, position)
        if skipped is None:
            name, value, position = _variable(text, position, path)
            found[name] = value
        else:
            position = skipped.end()
    return found


def _variable(text: str, start: int, path: Path) -> tuple[str, str, int]:
    """Parse the variable at `start`. Return its name, its value, and the position of the next line."""
    name = _NAME.match(text, start)
    if name is None:
        raise _wrong(text, start, path, "should be NAME=value, with a name of letters, digits and _")
    quote = text[name.end() : name.end() + 1]
    found = _QUOTED.get(quote, _PLAIN).match(text, name.end())
    if found is None:
        raise _wrong(text, start, path, f"has an opening {quote} without a closing one")
    rest = _SKIPPED.match(text, found.end()) if quote in _QUOTED else found
    if rest is None:
        raise _wrong(text, start, path, f"has text after the closing {quote}")
    value = found["value"]
    if quote == '"':
        value = _ESCAPE.sub(lambda escape: _ESCAPED[escape[1]], value)
    if "\0" in value:
        raise _wrong(text, start, path, "has a NUL character, which an environment variable cannot contain")
    return name[1], value, rest.end()


def _wrong(text: str, position: int, path: Path, problem: str) -> MCPConfigError:
    line = text.count("\n", 0, position) + 1
    return MCPConfigError(f"{path}: line {line} {problem}.", path=str(path), line=line)
