"""Copy a server's entry from another host's file. Values that may be secret become `${NAME}`.

Values of `env` and `headers` are kept only if they are plainly harmless: a number, a switch, a path. A secret
cannot be distinguished from other text with certainty, and a variable can be set again. Arguments and
addresses are kept unless a name or their form says that they may be secret.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from grue.config.mcp_servers import MCPServerConfig
from grue.errors import MCPConfigError
from grue.runtime.secrets.secret_names import looks_secret

_HARMLESS: Final = re.compile(
    r"(?i)true|false|on|off|yes|no|debug|info|warn(ing)?|error|\d{1,6}|[~.]?/[\w./~ -]*|\."
)
_TOKEN: Final = re.compile(r"(?=[^/@]*\d)(?=[^/@]*[A-Za-z])[\w+=.:~-]{16,}")
_KEY_PREFIX: Final = re.compile(
    r"(?i)(sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[a-z]|akia|aiza|hf|npm)[-_]?[\w-]{8,}"
)
_URL: Final = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://(?P<host>[^/?#]*)(?P<path>[^?#]*)(?P<rest>.*)", re.DOTALL
)
_OPTION: Final = re.compile(r"(?P<name>--?[A-Za-z][\w-]*)=(?P<value>.*)", re.DOTALL)
_ASSIGNMENT: Final = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL)
_HEADER: Final = re.compile(r"(?P<name>[A-Za-z][A-Za-z-]*): *(?P<value>[^\s/].*)", re.DOTALL)
_SCHEME: Final = re.compile(r"(?i)(?P<scheme>bearer|basic|token) +\S.*", re.DOTALL)
_EXPRESSION: Final = re.compile(r"\$\{(?:env:|input:)?(?P<name>[\w.-]+)(?P<default>:-[^}]*)?\}")
_FOLDERS: Final = ("workspaceFolder", "userHome")


class CopiedEntry(Struct, frozen=True):
    """An entry for `mcp_config.json`.

    Attributes:
        name: The server's name.
        entry: What stands under that name.
        variables: Environment variables that hold what was left out, to be set before the server is used.
    """

    name: str
    entry: dict[str, Any]
    variables: tuple[str, ...]


def copied(name: str, entry: Mapping[str, Any]) -> CopiedEntry:
    """Return a server's entry without secrets, with the keys that grue knows.

    Args:
        name: The server's name.
        entry: The entry as another host has it. Windsurf's `serverUrl` and a `command` that is an object will
            do too.

    Raises:
        MCPConfigError: A value has the wrong type.
    """
    return _Copy(name).of(_as_ours(entry))


def _as_ours(entry: Mapping[str, Any]) -> dict[str, Any]:
    entry = dict(entry)
    command = entry.get("command")
    if isinstance(command, Mapping):
        entry |= {
            "command": command.get("path"),
            "args": command.get("args", []),
            "env": command.get("env", {}),
        }
    for theirs in ("serverUrl", "httpUrl"):
        if theirs in entry:
            entry.setdefault("url", entry.pop(theirs))
    if entry.get("type") in ("local", "remote"):
        del entry["type"]
    return {
        key: value
        for key, value in entry.items()
        if key in MCPServerConfig.model_fields and value is not None
    }


class _Copy:
    def __init__(self, name: str) -> None:
        self._name = name
        self._variables: list[str] = []

    def of(self, entry: dict[str, Any]) -> CopiedEntry:
        for key, value in entry.items():
            match key, value:
                case "env" | "headers", Mapping():
                    of_one = self._variable_value if key == "env" else self._header_value
                    entry[key] = {str(name): of_one(str(name), str(each)) for name, each in value.items()}
                case "args", list():
                    entry[key] = self._arguments([str(each) for each in value])
                case "command" | "cwd" | "url" | "envFile", str():
                    entry[key] = self._text(value, f"{self._name}_{key}")
                case "command" | "cwd" | "url" | "envFile" | "env" | "headers" | "args", _:
                    raise MCPConfigError(f"its {key!r} has the wrong type.")
        return CopiedEntry(self._name, entry, tuple(dict.fromkeys(self._variables)))

    def _variable(self, name: str) -> str:
        variable = re.sub(r"[\W_]+", "_", name).strip("_").upper()
        variable = variable if variable[:1].isalpha() else f"MCP_{variable}"
        self._variables.append(variable)
        return f"${{{variable}}}"

    def _variable_value(self, name: str, value: str) -> str:
        if "${" in value:
            return self._expressions(value)
        return value if _HARMLESS.fullmatch(value) and not looks_secret(name) else self._variable(name)

    def _header_value(self, name: str, value: str) -> str:
        if "${" in value:
            return self._expressions(value)
        scheme = _SCHEME.fullmatch(value)
        return (f"{scheme['scheme']} " if scheme else "") + self._variable(f"{self._name}_{name}")

    def _arguments(self, arguments: list[str]) -> list[str]:
        written: list[str] = []
        before = ""
        for number, argument in enumerate(arguments, start=1):
            is_value = before.startswith("-") and "=" not in before and looks_secret(before)
            if is_value and not argument.startswith("-") and "${" not in argument:
                written.append(self._variable(f"{self._name}_{before}"))
            else:
                written.append(self._argument(argument, number))
            before = argument
        return written

    def _argument(self, argument: str, number: int) -> str:
        for form, separator in ((_OPTION, "="), (_ASSIGNMENT, "="), (_HEADER, ": ")):
            found = form.fullmatch(argument)
            if found is None or "${" in argument:
                continue
            label = found["name"] if form is _ASSIGNMENT else f"{self._name}_{found['name']}"
            value = found["value"]
            if looks_secret(found["name"]) or (form is _ASSIGNMENT and not _HARMLESS.fullmatch(value)):
                return f"{found['name']}{separator}{self._variable(label)}"
            return f"{found['name']}{separator}{self._text(value, label)}"
        return self._text(argument, f"{self._name}_ARG_{number}")

    def _text(self, text: str, label: str) -> str:
        if "${" in text:
            return self._expressions(text)
        url = _URL.fullmatch(text)
        parts = url["path"].split("/") if url else text.split("/")
        private = url is not None and ("@" in url["host"] or bool(url["rest"]))
        private = private or _KEY_PREFIX.search(text) is not None
        return self._variable(label) if private or any(map(_is_token, parts)) else text

    def _expressions(self, text: str) -> str:
        """Keep `${NAME}`, but no default that may be secret. `${input:...}` becomes a variable."""

        def written(found: re.Match[str]) -> str:
            default = found["default"]
            if found["name"] in _FOLDERS or (default and _HARMLESS.fullmatch(default.removeprefix(":-"))):
                return found[0]
            return self._variable(found["name"])

        around = _EXPRESSION.split(text)[:: _EXPRESSION.groups + 1]
        if any(map(_is_token, around)) or any(_KEY_PREFIX.search(each) for each in around):
            return self._variable(f"{self._name}_value")
        return _EXPRESSION.sub(written, text)


def _is_token(part: str) -> bool:
    """Return whether a part of a path or an argument looks random. A package with its version does not."""
    plain = part.rpartition("@")[0] or part
    return (
        _TOKEN.fullmatch(plain) is not None
        and re.fullmatch(r"[a-z]+\d{0,2}([-_.]([a-z]+\d{0,2}|\d{1,4}))*", plain) is None
    )
