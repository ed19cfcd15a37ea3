"""Read `mcp_config.json`, which names the MCP servers and says how each is started or reached.

The format is that of other hosts: servers under `mcpServers`, VS Code's `servers` or Zed's `context_servers`.
`${...}` is expanded when a server is used, not when the file is read. So a server that is never used may
refer to variables that are not set, and `mcpServers` holds no secret that comes from a variable.
"""

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

import pydantic
from msgspec.structs import replace
from pydantic_core import ErrorDetails

from grue.config import server_auth
from grue.config.documents import (
    Document,
    KeyPath,
    did_you_mean,
    file_error,
    nearest,
    parse_json,
    read_config_text,
    replace_file,
)
from grue.config.interpolation import Scope, expand, read_env_file
from grue.errors import MCPConfigError
from grue.policies import StartAhead, StartWhen
from grue.protocol.tools.names import MCP_PREFIX
from grue.runtime.files import as_path, os_errors_as
from grue.runtime.safe_text import fault_text
from grue.sandbox.box import Sandbox, sandbox_of
from grue.tool_sessions.server_specs import HttpServer, InheritEnv, McpServer, ServerOptions, StdioServer

T = TypeVar("T")

DEFAULT_FILE_NAME = "mcp_config.json"
URL_KEYS_OF_OTHERS = ("serverUrl", "httpUrl")
"""The names that Windsurf (`serverUrl`) and Gemini CLI (`httpUrl`) use for the key `url`."""
ROOT_KEYS = ("mcpServers", "servers", "context_servers")

# Keys of other MCP hosts that cause no warning. grue ignores them, except `enabled`: `_disabled` reads it.
_HARMLESS_KEYS = frozenset(
    ("alwaysAllow", "autoApprove", "description", "dev", "enabled", "gallery", "icon", "source", "trust")
)
# Keys of other hosts that resemble grue's keys, but are not misspelt. Beside a `url`, `oauth` is used.
_UNUSED_KEYS = frozenset(("oauth", "startup"))
_MISSPELT_FROM = 0.75

_ONLY_STARTED = ("args", "env", "envFile", "inherit_env", "cwd", "exit_grace_seconds", "sandbox")
_ONLY_BY_URL = ("headers", "auth")
_MILLISECONDS_FROM = 1000
"""Hosts disagree on the unit of `timeout`. A value of 1000 or more is taken as milliseconds."""

INCLUDING = ("allow_tools", "allowed_tools", "enabled_tools", "enabledTools", "includeTools")
"""Keys that list the tools to offer. `allow_tools` is grue's own; other hosts use the other keys."""

EXCLUDING = ("disabled_tools", "disabledTools", "excludeTools")
"""Keys of other hosts that list the tools to leave out."""

_WANTED = {
    "string_type": "a string",
    "dict_type": "an object",
    "model_type": "an object",
    "list_type": "a list",
    "bool_type": "true or false",
    "float_type": "a number",
    "int_type": "a whole number",
    "union_tag_not_found": "an object, or true or false",
}
_KEY, _TABLE, _SWITCH = "[key]", "[table]", "[switch]"
"""Words that pydantic puts into the path of an error although they are not keys of the file."""


def _for_a_process(text: str) -> str:
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise ValueError("has a character that cannot be passed to a program")
    return text


def _variable_name(name: str) -> str:
    if not name or "=" in name:
        raise ValueError("is not a valid name of an environment variable")
    return _for_a_process(name)


def _server_name(name: str) -> str:
    if not name or name != name.strip() or not name.isprintable():
        raise ValueError("is not a usable name: use letters, digits, '-' and '_'")
    if "." in name:
        raise ValueError("has a dot, which separates the server's name from the tool's: use '-' or '_'")
    if name == "mcp":
        raise ValueError("is reserved, because agent loops put 'mcp.' before tool names: use another name")
    return name


def _seconds(value: float) -> float:
    if not 0 < value < float("inf"):
        raise ValueError("should be a number of seconds above zero")
    return value


def _sandbox(value: Any) -> Any:
    sandbox_of(value)  # raises if the value is invalid; `${...}` is expanded later
    return value


def _auth_form(value: object) -> str | None:
    if isinstance(value, bool):
        return _SWITCH
    return _TABLE if isinstance(value, Mapping | server_auth.AuthConfig) else None


_Seconds = Annotated[float, pydantic.AfterValidator(_seconds)]
_ProcessText = Annotated[str, pydantic.AfterValidator(_for_a_process)]
_VariableName = Annotated[str, pydantic.AfterValidator(_variable_name)]
_Auth = Annotated[
    Annotated[server_auth.AuthConfig, pydantic.Tag(_TABLE)] | Annotated[bool, pydantic.Tag(_SWITCH)],
    pydantic.Discriminator(_auth_form),
]
_STARTUP = "startup_timeout_seconds"
_Transport = Literal["stdio", "http", "streamable-http", "streamableHttp", "sse"]


class ToolsConfig(pydantic.BaseModel):
    """Which of a server's tools are offered: bare names, or patterns with `*`, `?` and `[...]`."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)

    include: list[str] | None = None
    exclude: list[str] = pydantic.Field(default_factory=list)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _look_at_keys(cls, values: Any) -> Any:
        if isinstance(values, list):  # some hosts write the list of tools in place of the table
            return {"include": values}
        for key in values if isinstance(values, Mapping) else ():
            if key not in cls.model_fields:
                meant = did_you_mean(key, cls.model_fields) or " Known keys: include, exclude"
                raise ValueError(f"has the unknown key {key!r}.{meant}")
        return values


def _with_auth(entry: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Replace another host's `oauth` or `auth` beside a `url` by grue's `auth`; also return ignored keys."""
    key = "auth" if server_auth.is_of_another_host(entry.get("auth")) else "oauth"
    if key not in entry or "url" not in entry:
        return entry, ()
    if key == "oauth" and "auth" in entry:
        raise ValueError("has an 'auth' and an 'oauth': keep only one")
    try:
        auth, ignored = server_auth.auth_of_other_hosts(entry[key])
    except ValueError as error:
        raise ValueError(f"has an {key!r} that {error}") from None
    ours = {name: value for name, value in entry.items() if name != key}
    return {**ours, "auth": auth}, tuple(f"{key}.{each}" for each in ignored)


def _with_tools(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace the keys of `INCLUDING` and `EXCLUDING`, such as `enabledTools`, by the key `tools`."""
    found = {"include": INCLUDING, "exclude": EXCLUDING}
    present = {kind: [key for key in keys if key in entry] for kind, keys in found.items()}
    both = [key for keys in present.values() for key in keys]
    if not both:
        return entry
    for keys in (*present.values(), ["tools", *both] if "tools" in entry else []):
        if len(keys) > 1:
            raise ValueError(f"has {' and '.join(repr(key) for key in keys)}: keep only one")
    tools = {kind: entry[keys[0]] for kind, keys in present.items() if keys}
    return {**{key: value for key, value in entry.items() if key not in both}, "tools": tools}


class MCPServerConfig(pydantic.BaseModel):
    """How one MCP server is reached: a program, or a URL. `docs/guides/servers.md` explains the keys."""

    model_config = pydantic.ConfigDict(strict=True, extra="ignore", hide_input_in_errors=True)

    command: _ProcessText | None = None
    args: list[_ProcessText] = pydantic.Field(default_factory=list, repr=False)
    env: dict[_VariableName, _ProcessText] | None = pydantic.Field(default=None, repr=False)
    envFile: _ProcessText | None = None  # noqa: N815 the file's key
    inherit_env: InheritEnv | None = None  # `None`: `all`
    cwd: _ProcessText | None = None
    url: str | None = pydantic.Field(default=None, repr=False)
    headers: dict[str, str] | None = pydantic.Field(default=None, repr=False)
    type: _Transport | None = None
    transport: _Transport | None = None  # another name for `type`, which some hosts use
    disabled: bool = False
    timeout: _Seconds | None = None  # time limit of a tool call; 1000 or more: in milliseconds
    timeout_seconds: _Seconds | None = None
    startup_timeout_seconds: _Seconds | None = None
    exit_grace_seconds: _Seconds | None = None
    tools: ToolsConfig | None = None
    auth: _Auth | None = None
    required: bool | None = None
    check_arguments: bool = True
    sandbox: Annotated[Any, pydantic.AfterValidator(_sandbox)] = None
    sandboxEnabled: bool | None = None  # noqa: N815 the file's key; VS Code's switch
    start: StartWhen | None = None

    _unused_keys: tuple[str, ...] = pydantic.PrivateAttr(default=())
    _startup_place: str = pydantic.PrivateAttr(default=f"{_STARTUP} of this server")

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings about keys of the entry that have no effect, or perhaps an unintended effect."""
        kind, without_effect = ("url", _ONLY_STARTED) if self.url is not None else ("command", _ONLY_BY_URL)
        known = type(self).model_fields
        found = [
            f"grue does not use the key {key!r}.{'' if key in _UNUSED_KEYS else did_you_mean(key, known)}"
            for key in self._unused_keys
        ]
        found += [
            f"{key!r} has no effect on a server with a {kind!r}."
            for key in without_effect
            if getattr(self, key)
        ]
        if self.timeout is not None and self.timeout >= _MILLISECONDS_FROM:
            found.append(
                f"timeout {self.timeout:g} is taken as milliseconds; to make the unit explicit, write"
                f' "timeout_seconds": {self.timeout / 1000:g}.'
            )
        return tuple(found)

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _look_at_unknown_keys(cls, values: Any, check: Callable[[Any], Self]) -> Self:
        if not isinstance(values, Mapping):
            return check(values)
        values, ignored = _with_auth(_with_tools(values))
        unknown = [key for key in values if key not in cls.model_fields]
        for key in unknown:
            if key in URL_KEYS_OF_OTHERS and not {"url", "command"} & values.keys():
                copies = "`grue init --from FILE` copies its servers"
                raise ValueError(f"has {key!r} for its 'url', as another host's file: {copies}")
            swapped = (each for each in cls.model_fields if sorted(each) == sorted(key))
            likely = next(swapped, nearest(key, cls.model_fields, similarity=_MISSPELT_FROM))
            if likely is not None and key not in _HARMLESS_KEYS | _UNUSED_KEYS:
                raise ValueError(f"has the unknown key {key!r}. Did you mean {likely!r}?")
        config = check(values)
        unused = (*(key for key in unknown if key not in _HARMLESS_KEYS), *ignored)
        config._unused_keys += unused  # noqa: SLF001 an object of this very class
        return config

    @pydantic.model_validator(mode="after")
    def _one_way_to_reach_it(self) -> Self:
        if self.command is None and self.url is None:
            raise ValueError("needs a 'command' (a program to start) or a 'url' (a server to connect to)")
        if self.command is not None and self.url is not None:
            raise ValueError("has both a 'command' and a 'url': keep only one")
        for blank in (key for key in ("command", "url") if getattr(self, key) is not None):
            if not getattr(self, blank).strip():
                raise ValueError(f"has an empty {blank!r}")
        if self.timeout is not None and self.timeout_seconds is not None:
            raise ValueError("has both a 'timeout' and a 'timeout_seconds': keep only one")
        if self.type and self.transport and self.type != self.transport:
            raise ValueError("has a 'type' and a 'transport' that disagree: keep only one")
        declared = self.type or self.transport
        if declared and (declared == "stdio") != (self.command is not None):
            way = (
                "a 'command', which is started over stdio" if self.command else "a 'url', which is not stdio"
            )
            raise ValueError(f"has the type {declared!r} and {way}")
        return self


class _NoServersError(MCPConfigError, ValueError):
    """No server is configured. Existing host programs catch this error as a `ValueError`."""


class MCPConfig(pydantic.BaseModel):
    """The configured MCP servers that are not disabled, in the file's order; `${...}` is not expanded."""

    model_config = pydantic.ConfigDict(strict=True, extra="ignore", hide_input_in_errors=True)

    mcpServers: dict[Annotated[str, pydantic.AfterValidator(_server_name)], MCPServerConfig]  # noqa: N815 the file's key

    _scope: Scope = pydantic.PrivateAttr(
        default_factory=lambda: Scope(environ=os.environ, workspace_folder=Path.cwd())
    )
    _startup_key: str = pydantic.PrivateAttr(default=_STARTUP)
    _box_of_file: bool = pydantic.PrivateAttr(default=False)

    @pydantic.field_validator("mcpServers", mode="before")
    @classmethod
    def _leave_out_disabled(cls, servers: Any) -> Any:
        if not isinstance(servers, Mapping):
            return servers
        return {name: entry for name, entry in servers.items() if not _disabled(entry)}

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None, named: bool = False
    ) -> Self:
        """Load the servers of a JSON file. The file's folder is `${workspaceFolder}`.

        Relative paths in `cwd`, `envFile` and `auth` start there. `environ` (default: `os.environ`) has the
        variables for `${VAR}`, which are looked up when a server is used. `named`: the user has named the
        file, so the error about a missing file says to correct the name.

        Source: R2.1-3
        """
        source = as_path(path, "The file of servers")
        text = read_config_text(source, if_missing=missing_servers(source, named=named))
        scope = Scope(
            environ=os.environ if environ is None else environ,
            workspace_folder=source.parent.absolute(),
            source=str(source),
        )
        if source.suffix in (".toml", ".yaml", ".yml"):
            copies = f"`grue init --from {source}` copies its servers."
            raise file_error(source, f"is not JSON. If it is another host's file: {copies}")
        document = parse_json(text, source)
        root = _root_key(document)
        box = document.value.get("sandbox")
        config = cls._checked(
            with_box_of_file(document.value[root] if root else {}, box),
            scope,
            place=lambda _: f"{source}: ",
            line=lambda keys: document.line((root, *keys)),
        )
        config._box_of_file = box is not None  # noqa: SLF001 an object of this very class
        return config

    @classmethod
    def from_mapping(
        cls,
        servers: Mapping[str, Any],
        *,
        source: Path | None = None,
        place: Callable[[KeyPath], str] = lambda _: "",
        startup_key: str = _STARTUP,
    ) -> Self:
        """Return the configuration of servers with these entries; `source` is their file, if they have one.

        `place` gets the path of a wrong value, from the server's name on, and returns the error's prefix.
        `startup_key` is the entries' key for the time limit of a start: in `agent.yaml`, `timeout_seconds`.
        """
        folder = Path() if source is None else source.parent
        scope = Scope(
            environ=os.environ,
            workspace_folder=folder.absolute(),
            source=None if source is None else str(source),
        )
        entries = {name: _in_our_words(name, entry, startup_key, place) for name, entry in servers.items()}
        config = cls._checked(entries, scope, place)
        config._startup_key = startup_key  # noqa: SLF001 an object of this very class
        return config

    @classmethod
    def _checked(
        cls,
        servers: Any,
        scope: Scope,
        place: Callable[[KeyPath], str],
        line: Callable[[KeyPath], int | None] = lambda _: None,
    ) -> Self:
        try:
            config = cls.model_validate({"mcpServers": servers})
        except pydantic.ValidationError as exc:
            problems = [_entry_problem(each) for each in exc.errors()]
            said = "\n".join(
                f"{place(keys)}{text}{'' if text.endswith('?') else '.'}" for keys, text in problems
            )
            raise MCPConfigError(
                said, path=scope.source, line=line(problems[0].keys), problems=problems
            ) from exc
        config._scope = scope  # noqa: SLF001 an object of this very class
        return config

    @property
    def ignored_servers(self) -> tuple[str, ...]:
        """The servers that `get_server_config` ignores: all but the first."""
        return tuple(self.mcpServers)[1:]

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings about keys of the file that have no effect, or perhaps an unintended effect."""
        found = [
            f"MCP server {name!r}: {warning}"
            for name, server in self.mcpServers.items()
            for warning in server.warnings
        ]
        if self._box_of_file and not any(server.sandboxEnabled for server in self.mcpServers.values()):
            found.append('"sandbox" of the file applies only to servers with "sandboxEnabled": true.')
        return tuple(found)

    def get_server_config(self) -> tuple[str, MCPServerConfig]:
        """Return the first server's name and expanded configuration."""
        if not self.mcpServers:
            source = self._scope.source
            raise _NoServersError(
                f"No MCP servers configured in {Path(source).name if source else DEFAULT_FILE_NAME}."
                " Add one under 'mcpServers'; servers marked as disabled do not count.",
                path=source,
            )
        name = next(iter(self.mcpServers))
        return name, self.server(name)

    def server(self, name: str) -> MCPServerConfig:
        """Return one server's configuration with every `${...}` expanded and `cwd` absolute."""
        expanded = _expanded(name, self.mcpServers[name], self._scope)
        file = f" in {Path(self._scope.source).name}" if self._scope.source else ""
        expanded._startup_place = f"{self._startup_key} of this server{file}"  # noqa: SLF001 our copy
        return expanded


def with_box_of_file(servers: Any, box: Any) -> Any:
    """Add the file's own sandbox `box` to entries with `"sandboxEnabled": true` and no `sandbox`."""
    if box is None or not isinstance(servers, Mapping):
        return servers
    return {
        name: {"sandbox": box, **entry}
        if isinstance(entry, Mapping) and entry.get("sandboxEnabled") is True
        else entry
        for name, entry in servers.items()
    }


def edit_servers(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Let `edit` change a file's servers in place; other values stay. If it raises, nothing is written."""
    path = Path(os.path.realpath(path))  # change the file that a symbolic link points to
    with os_errors_as(MCPConfigError, f"write {path}", path=str(path)), one_at_a_time(path.parent):
        there = path.exists()
        text = read_config_text(path, if_missing=f"{path} has just been removed.") if there else "{}"
        document = parse_json(text, path)
        root = _root_key(document) or ROOT_KEYS[0]
        servers = document.value.setdefault(root, {})
        if not isinstance(servers, dict):
            raise MCPConfigError(f"{path}: {root!r} should be an object.", path=str(path))
        edit(servers)
        indent = re.search(r"\n([ \t]+)\"", text)
        new = json.dumps(document.value, indent=indent[1] if indent else 2, ensure_ascii=False)
        replace_file(path, f"{new}\n")


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Lock a folder within the block; first wait until it is unlocked. A nested block waits for ever."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _in_our_words(name: str, entry: Any, startup_key: str, place: Callable[..., str]) -> Any:
    if startup_key == _STARTUP or not isinstance(entry, Mapping) or startup_key not in entry:
        return entry
    if _STARTUP in entry:
        both = f"MCP server {name!r} has both {startup_key!r} and {_STARTUP!r}, which mean the same."
        raise MCPConfigError(f"{place((name, _STARTUP))}{both}")
    return {(_STARTUP if key == startup_key else key): value for key, value in entry.items()}


def tool_servers(config: MCPConfig, place: Callable[[KeyPath], str] = lambda _: "") -> dict[str, McpServer]:
    """Return all servers of a configuration by name, expanded; `place(path)` is the prefix of an error."""
    found: dict[str, McpServer] = {}
    for name in config.mcpServers:
        try:
            found[name] = to_tool_server(name, config.server(name))
        except MCPConfigError as error:
            if not (before := place((name,))):
                raise
            raise MCPConfigError(f"{before}{error}", path=error.path) from error
    return found


def configured_names(used: Iterable[str], configured: Container[str]) -> dict[str, str]:
    """Map each server's name in a trace to its name in a configuration; leave out those not configured."""
    # The names differ in an agent loop, such as `grue chat`: it puts `mcp.` before the configured name.
    names = ((name, name if name in configured else name.removeprefix(MCP_PREFIX)) for name in used)
    return {name: own for name, own in names if own in configured}


def to_tool_server(name: str, config: MCPServerConfig) -> McpServer:
    """Convert a server's expanded configuration to a tool server."""
    options = _options(config)
    if config.url is not None:
        declared = config.type or config.transport
        return HttpServer(
            name=name,
            url=config.url,
            transport="auto" if declared is None else "sse" if declared == "sse" else "http",
            headers=dict(config.headers or {}),
            auth=server_auth.to_oauth(name, config.auth, config.headers or {}),
            options=options,
        )
    assert config.command is not None, "a server has either a command or a URL"
    env = dict(config.env or {})
    if config.envFile is not None:
        env = read_env_file(Path(config.envFile), wanted_by=f"MCP server {name!r}") | env
    return StdioServer(
        name=name,
        command=config.command,
        args=tuple(config.args),
        env=env,
        cwd=config.cwd,
        options=options,
        inherit_env=config.inherit_env or "all",
        sandbox=_box(config),
    )


def without_network(server: T) -> T:
    """Return the server; if npx starts it, a copy whose environment tells npx to download nothing."""
    if not isinstance(server, StdioServer) or Path(server.command).name != "npx":
        return server
    return replace(server, env={**server.env, "npm_config_offline": "true"})


def _box(config: MCPServerConfig) -> Sandbox | None:
    if config.sandboxEnabled is False:
        return None
    if config.sandboxEnabled and config.sandbox is None:
        return sandbox_of({"filesystem": {}})
    return sandbox_of(config.sandbox)


def _options(config: MCPServerConfig) -> ServerOptions:
    timeout_s = config.timeout_seconds or config.timeout
    if config.timeout is not None and config.timeout >= _MILLISECONDS_FROM:
        timeout_s = config.timeout / 1000
    tools = config.tools or ToolsConfig()
    return ServerOptions(
        call_timeout_s=timeout_s,
        startup_timeout_s=config.startup_timeout_seconds,
        startup_timeout_place=config._startup_place,  # noqa: SLF001 of this module
        exit_grace_s=config.exit_grace_seconds,
        include=None if tools.include is None else tuple(tools.include),
        exclude=tuple(tools.exclude),
        required=config.required,
        check_arguments=config.check_arguments,
        start=config.start,
    )


def _root_key(document: Document) -> str:
    """Return the one of `ROOT_KEYS` that the file has; "" if none. Raises for two, or for a misspelt key."""
    source, value = document.path, document.value
    if not isinstance(value, dict):
        raise file_error(source, "should contain a JSON object with the key 'mcpServers'.")
    present = [key for key in ROOT_KEYS if key in value]
    if len(present) > 1:
        both = " and ".join(repr(key) for key in present)
        raise file_error(source, f"has {both}: keep only one.", line=document.line((present[1],)))
    if present:
        return present[0]
    likely = next((key for key in value if nearest(key, ROOT_KEYS, similarity=_MISSPELT_FROM)), None)
    if likely is not None:
        fault = f"has the unknown key {likely!r}.{did_you_mean(likely, ROOT_KEYS)}"
        raise file_error(source, fault, line=document.line((likely,)))
    return ""


def _disabled(entry: object) -> bool:
    if isinstance(entry, MCPServerConfig):
        return entry.disabled
    # Zed and other hosts write `"enabled": false` instead of `"disabled": true`.
    return isinstance(entry, Mapping) and (entry.get("disabled") is True or entry.get("enabled") is False)


_WITH_VARIABLES = ("command", "cwd", "envFile", "args", "env", "sandbox", "url", "headers")


def _expanded(name: str, config: MCPServerConfig, scope: Scope) -> MCPServerConfig:
    def at(key: str, value: Any) -> Any:
        # Errors name the value by `key`, such as `env.TOKEN`.
        match value:
            case str():
                return expand(value, scope, f"MCP server {name!r}: {key}")
            case list() | tuple():
                return [at(f"{key}[{index}]", each) for index, each in enumerate(value)]
            case Mapping():
                return {inner: at(f"{key}.{inner}", each) for inner, each in value.items()}
        return value

    values = {key: at(key, getattr(config, key)) for key in _WITH_VARIABLES}
    if config.command is not None and not values["command"].strip():
        raise MCPConfigError(f"MCP server {name!r}: command is empty after expansion.", path=scope.source)
    if config.envFile is not None:
        values["envFile"] = str(scope.workspace_folder / values["envFile"])
    if config.cwd is not None:
        values["cwd"] = str(scope.workspace_folder / values["cwd"])
    auth = server_auth.expanded_auth(config.auth, at, scope.workspace_folder)
    return config.model_copy(update={**values, "auth": auth})


def _entry_problem(error: ErrorDetails) -> MCPConfigError.Problem:
    keys = tuple(part for part in error["loc"][1:] if part not in (_KEY, _TABLE, _SWITCH))
    match error["type"]:
        case "value_error":
            problem = fault_text(error["msg"])
        case "literal_error" if error["input"] in get_args(StartAhead):
            ahead = error["input"]
            problem = f'is "{ahead}", which is for all servers of a runner: write Runner(start="{ahead}")'
        case "literal_error":
            problem = f"should be {error['ctx']['expected']}"
        case "extra_forbidden":
            problem = "is not a known key"
        case kind if kind in _WANTED:
            # Name the type of the wrong value and not the value, which may be a secret.
            problem = f"should be {_WANTED[kind]}, not {_JSON_KINDS.get(type(error['input']), 'an object')}"
        case _:
            problem = error["msg"].removeprefix("Input ")
    return MCPConfigError.Problem(keys, f"{_entry(keys)} {problem}")


def _entry(place: KeyPath) -> str:
    if not place:
        return "the list of servers"
    server, *keys = place
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")
    return f"MCP server {server!r}" + (f": {path}" if path else "")


_JSON_KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
}


def missing_servers(path: Path, *, named: bool) -> str:
    """Return the error text for a missing file of servers. `named`: the user has given the file's name."""
    if os.path.islink(path):  # noqa: PTH114 - unlike `Path.is_symlink`, it never raises
        return f"{path} is a link to a file that does not exist: {path.readlink()}."
    if named:
        return f"The file of MCP servers {path} was not found. Correct the name; or `grue init` writes one."
    return (
        f"MCP is enabled but config file not found: {path}\n"
        "Please either:\n"
        f"  1. Create {path.name} in project root, or\n"
        "  2. Set mcp.enabled = false in pyproject.toml"
    )
