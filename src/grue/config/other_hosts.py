"""Find the MCP servers that other hosts on this machine have, and copy their entries without secrets.

To support another host, add a line to `_places`.

Values that may be secret become `${NAME}` in a copied entry. Code cannot recognise every secret. So a value
of `env` or of an argument `NAME=value` is kept only if it is plainly harmless: a short number, a word such as
`true`, a path. Of a value of `headers`, only a scheme such as `Bearer` is kept. Other arguments and URLs are
kept, unless a name or the form of the value suggests a secret. These rules hold for the text beside a
`${...}`, too.
"""

import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from grue.config import mcp_servers
from grue.config.documents import read_config_text
from grue.config.server_auth import SECRETS, auth_of_other_hosts, is_of_another_host
from grue.errors import MCPConfigError
from grue.runtime.secrets.secret_forms import looks_secret

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
_SCHEME: Final = re.compile(r"(?i)(?P<scheme>bearer|basic|token) +(?P<credentials>\S.*)", re.DOTALL)
_EXPRESSION: Final = re.compile(r"\$\{(?:env:|input:)?(?P<name>[\w.-]+)(?P<default>:-[^}]*)?\}")
_FOLDERS: Final = ("workspaceFolder", "userHome")


class CopiedEntry(Struct, frozen=True):
    """An entry for `mcp_config.json`, and the environment variables in it that the user has to set."""

    name: str
    entry: dict[str, Any]
    variables: tuple[str, ...]


def copied(
    name: str, entry: Mapping[str, Any], replaced: MutableMapping[str, str] | None = None
) -> CopiedEntry:
    """Convert another host's entry for a server to grue's form, without secrets and unknown keys.

    `replaced` has the value that each variable replaces in earlier entries; this entry's variables are added.
    """
    return _Copy(name, {} if replaced is None else replaced).of(_as_ours(entry))


def _as_ours(entry: Mapping[str, Any]) -> dict[str, Any]:
    entry = dict(entry)
    command = entry.get("command")
    if isinstance(command, Mapping):
        entry |= {
            "command": command.get("path"),
            "args": command.get("args", []),
            "env": command.get("env", {}),
        }
    for theirs in mcp_servers.URL_KEYS_OF_OTHERS:
        if theirs in entry:
            entry.setdefault("url", entry.pop(theirs))
    theirs = "auth" if is_of_another_host(entry.get("auth")) else "oauth"
    if theirs in entry:
        try:
            entry["auth"], _ = auth_of_other_hosts(entry.pop(theirs))
        except ValueError as error:
            raise MCPConfigError(f"its {theirs!r} {error}.") from None
        if "url" not in entry:
            del entry["auth"]
    if entry.get("type") in ("local", "remote"):
        del entry["type"]
    return {
        key: value
        for key, value in entry.items()
        if key in mcp_servers.MCPServerConfig.model_fields and value is not None
    }


class _Copy:
    def __init__(self, name: str, replaced: MutableMapping[str, str]) -> None:
        self._name = name
        self._replaced = replaced
        self._variables: list[str] = []

    def of(self, entry: dict[str, Any]) -> CopiedEntry:
        for key, value in entry.items():
            match key, value:
                case "env" | "headers", Mapping():
                    of_one = self._variable_value if key == "env" else self._header_value
                    entry[key] = {str(name): of_one(str(name), str(each)) for name, each in value.items()}
                case "auth", Mapping():
                    entry[key] = {
                        str(name): self._auth_value(str(name), each) for name, each in value.items()
                    }
                case "args", list():
                    entry[key] = self._arguments([str(each) for each in value])
                case "command" | "cwd" | "url" | "envFile", str():
                    entry[key] = self._text(value, f"{self._name}_{key}")
                case "command" | "cwd" | "url" | "envFile" | "env" | "headers" | "args", _:
                    raise MCPConfigError(f"its {key!r} has the wrong type.")
        return CopiedEntry(self._name, entry, tuple(dict.fromkeys(self._variables)))

    def _variable(self, name: str, value: str) -> str:
        plain = re.sub(r"[\W_]+", "_", name).strip("_").upper()
        plain = plain if plain[:1].isalpha() else f"MCP_{plain}"
        names = (plain if number == 1 else f"{plain}_{number}" for number in count(1))
        variable = next(each for each in names if self._replaced.setdefault(each, value) == value)
        self._variables.append(variable)
        return f"${{{variable}}}"

    def _variable_value(self, name: str, value: str) -> str:
        if looks_secret(name):
            return self._secret(name, value)
        if "${" not in value:
            return value if _HARMLESS.fullmatch(value) else self._variable(name, value)
        # Keep harmless text beside a `${...}`, such as folders of a `PATH`; else replace the whole value.
        beside = [part for text in _beside(value) for part in re.split(r"[:;,]", text) if part]
        harmless = all(map(_HARMLESS.fullmatch, beside))
        return self._expressions(value) if harmless else self._variable(name, value)

    def _secret(self, name: str, value: str) -> str:
        whole = "${" not in value or any(_beside(value))
        return self._variable(name, value) if whole else self._expressions(value, keeps_defaults=False)

    def _header_value(self, name: str, value: str) -> str:
        scheme = _SCHEME.fullmatch(value)
        if "${" in value and not any(_beside(value[scheme.start("credentials") :] if scheme else value)):
            return self._expressions(value, keeps_defaults=False)
        shown = f"{scheme['scheme']} " if scheme else ""
        return shown + self._variable(f"{self._name}_{name}", value)

    def _auth_value(self, name: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if name in SECRETS:
            return self._secret(f"{self._name}_{name}", value)
        return self._text(value, f"{self._name}_{name}") if name != "client_id" else value

    def _arguments(self, arguments: list[str]) -> list[str]:
        written: list[str] = []
        before = ""
        for number, argument in enumerate(arguments, start=1):
            is_value = before.startswith("-") and "=" not in before and looks_secret(before)
            if is_value and not argument.startswith("-"):
                written.append(self._secret(f"{self._name}_{before}", argument))
            else:
                written.append(self._argument(argument, number))
            before = argument
        return written

    def _argument(self, argument: str, number: int) -> str:
        for form, separator in ((_OPTION, "="), (_ASSIGNMENT, "="), (_HEADER, ": ")):
            found = form.fullmatch(argument)
            if found is None:
                continue
            name, value = found["name"], found["value"]
            label = name if form is _ASSIGNMENT else f"{self._name}_{name}"
            if "${" in value and form is not _OPTION:
                kept = (self._variable_value if form is _ASSIGNMENT else self._header_value)(name, value)
            elif looks_secret(name) or (form is _ASSIGNMENT and not _HARMLESS.fullmatch(value)):
                kept = self._secret(label, value)
            else:
                kept = self._text(value, label)
            return f"{name}{separator}{kept}"
        return self._text(argument, f"{self._name}_ARG_{number}")

    def _text(self, text: str, label: str) -> str:
        if "${" in text:
            url = _URL.fullmatch(_EXPRESSION.sub("", text))
            private = url is not None and bool(
                url["host"].rpartition("@")[0].strip(":") or re.sub(r"[?&][\w.-]+=", "", url["rest"])
            )
            return self._variable(label, text) if private else self._expressions(text)
        url = _URL.fullmatch(text)
        parts = url["path"].split("/") if url else text.split("/")
        private = url is not None and ("@" in url["host"] or bool(url["rest"]))
        private = private or _KEY_PREFIX.search(text) is not None
        return self._variable(label, text) if private or any(map(_is_token, parts)) else text

    def _expressions(self, text: str, *, keeps_defaults: bool = True) -> str:
        # If the text has a secret outside of its `${...}`, one variable replaces the whole text.

        def written(found: re.Match[str]) -> str:
            default = found["default"]
            harmless = default and keeps_defaults and _HARMLESS.fullmatch(default.removeprefix(":-"))
            if harmless or (found["name"] in _FOLDERS and not default):
                return found[0]
            return self._variable(found["name"], found["name"])

        beside = _beside(text)
        if any(map(_is_token, beside)) or any(_KEY_PREFIX.search(each) for each in beside):
            return self._variable(f"{self._name}_value", text)
        return _EXPRESSION.sub(written, text)


def _beside(text: str) -> list[str]:
    """Return the texts before, between and after the `${...}` of a text; some may be empty."""
    return _EXPRESSION.split(text)[:: _EXPRESSION.groups + 1]


def _is_token(part: str) -> bool:
    # A secret looks random. A package's name does not, once a version such as `@1.2` is cut off.
    plain = part.rpartition("@")[0] or part
    return (
        _TOKEN.fullmatch(plain) is not None
        and re.fullmatch(r"[a-z]+\d{0,2}([-_.]([a-z]+\d{0,2}|\d{1,4}))*", plain) is None
    )


_KEYS: Final = (*mcp_servers.ROOT_KEYS, "mcp_servers")
# A string or comment without an end reaches to the end of the text, so that no text takes quadratic time.
_STRING_OR_COMMENT: Final = re.compile(r'"(?:\\.|[^"\\])*+"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_STRING_OR_COMMA: Final = re.compile(r'"(?:\\.|[^"\\])*+"?|,(?=\s*[}\]])', re.DOTALL)


class FoundServers(Struct, frozen=True, kw_only=True):
    """The usable servers in another MCP host's file; `unusable` says by name why a server cannot be used."""

    host: str
    path: Path
    servers: dict[str, CopiedEntry]
    unusable: dict[str, str] = {}


def _places(home: Path, project: Path) -> Iterator[tuple[str, Path]]:
    mac = sys.platform == "darwin"
    plain = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    settings = home / "Library" / "Application Support" if mac else plain
    extensions = settings / "Code" / "User" / "globalStorage"
    yield "Claude Code, this project", project / ".mcp.json"
    yield "Cursor, this project", project / ".cursor" / "mcp.json"
    yield "VS Code, this project", project / ".vscode" / "mcp.json"
    yield "Claude Desktop", settings / "Claude" / "claude_desktop_config.json"
    yield "Claude Code", home / ".claude.json"
    yield "Cursor", home / ".cursor" / "mcp.json"
    yield "VS Code", settings / "Code" / "User" / "mcp.json"
    yield "Windsurf", home / ".codeium" / "windsurf" / "mcp_config.json"
    yield "Gemini CLI", home / ".gemini" / "settings.json"
    yield "Codex", home / ".codex" / "config.toml"
    yield "Zed", home / ".config" / "zed" / "settings.json"
    yield "LM Studio", home / ".lmstudio" / "mcp.json"
    yield "Cline", extensions / "saoudrizwan.claude-dev" / "settings" / "cline_mcp_settings.json"
    yield "Roo Code", extensions / "rooveterinaryinc.roo-cline" / "settings" / "mcp_settings.json"
    yield "Amazon Q", home / ".aws" / "amazonq" / "mcp.json"


def find_hosts(home: Path, project: Path) -> list[FoundServers]:
    """Return the servers of each host whose file can be read and has servers, the project's files first."""
    found = []
    replaced: dict[str, str] = {}
    for host, path in _places(home, project):
        with suppress(MCPConfigError, OSError):  # OSError: the folder of the file cannot be searched
            if path.is_file():
                servers = read_host(path, host, replaced)
                if servers.servers or servers.unusable:
                    found.append(servers)
    return found


def read_host(
    path: Path, host: str | None = None, replaced: MutableMapping[str, str] | None = None
) -> FoundServers:
    """Return the servers in another MCP host's configuration file: JSON, JSON with comments, or TOML."""
    entries = _entries(_parsed(path))
    if entries is None:
        raise MCPConfigError(f"{path} configures no MCP servers: it has none of {', '.join(_KEYS)}.")
    servers: dict[str, CopiedEntry] = {}
    unusable: dict[str, str] = {}
    replaced = {} if replaced is None else replaced
    for name, entry in entries.items():
        try:
            if not isinstance(entry, Mapping):
                raise MCPConfigError("it is not an object.")
            copy = copied(name.replace(".", "-"), entry, replaced)
            if copy.name in servers:
                raise MCPConfigError(f"the name {copy.name} is taken.")
            mcp_servers.MCPConfig.from_mapping({copy.name: copy.entry})
        except MCPConfigError as error:
            unusable[name] = str(error)
        else:
            servers[copy.name] = copy
    return FoundServers(host=host or str(path), path=path, servers=servers, unusable=unusable)


def _parsed(path: Path) -> Any:
    text = read_config_text(path, if_missing=f"Cannot read {path}: No such file or directory.")
    try:
        if path.suffix == ".toml":
            return tomllib.loads(text)
        # Editors write JSON with comments and trailing commas.
        text = _STRING_OR_COMMENT.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)
        text = _STRING_OR_COMMA.sub(lambda found: found[0] if found[0].startswith('"') else "", text)
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        # The error's own text may quote the file, which can hold a secret.
        raise MCPConfigError(f"{path} is neither valid JSON nor TOML.") from error


def _entries(parsed: Any) -> dict[str, Any] | None:
    def inside(value: Any, key: str) -> Any:
        return value.get(key) if isinstance(value, Mapping) else None

    found: dict[str, Any] | None = None
    # Claude Code has servers for all projects and servers for each. Some files have servers under `mcp`.
    for place in (parsed, inside(parsed, "mcp"), inside(inside(parsed, "projects"), str(Path.cwd()))):
        for key in _KEYS:
            if isinstance(servers := inside(place, key), Mapping):
                servers = mcp_servers.with_box_of_file(servers, inside(place, "sandbox"))
                found = {**(found or {}), **{str(name): entry for name, entry in servers.items()}}
    return found
