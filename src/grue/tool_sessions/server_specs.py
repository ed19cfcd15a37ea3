"""The address of a tool server, as data: a program to start (`StdioServer`) or a URL (`HttpServer`).

No text that this module makes, such as a `repr` or an error, may show a secret.
"""

import contextlib
import os
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from grue import messages as m
from grue.errors import MCPConfigError
from grue.field_checks import OwnKeywords, check_settings, repr_by_fields, shown
from grue.policies import UNLISTED, StartAhead, StartWhen
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.secrets.secret_forms import MIN_CHARS, add_value, looks_secret
from grue.sandbox.box import Sandbox, in_words, sandbox_of
from grue.tool_sessions.oauth_settings import OAuth
from grue.tool_sessions.redaction import Redactor, secrets_of_arguments
from grue.tool_sessions.server_requests import Notify

InheritEnv: TypeAlias = Literal["all", "no_keys", "safe", "none"]
"""Which of the host's environment variables a server inherits: see `StdioServer`, and decision record 013.

Source: R3.2
"""

OWN_KEYS = frozenset((
    "GRUE_API_KEY", "ANTHROPIC_API_KEY", "DEEPSEEK_API_KEY", "GEMINI_API_KEY", "GROQ_API_KEY",
    "MISTRAL_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY", "XAI_API_KEY", "LANGFUSE_PUBLIC_KEY",
    "LANGFUSE_SECRET_KEY", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
))  # fmt: skip
"""The variables from which grue itself takes keys: for the providers in `protocol/chat_wire/profiles.py`, for
other endpoints, and for observers."""

_SAFE = frozenset(("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"))
_SHELL_FUNCTION = "()"


def inherited(environ: Mapping[str, str], how: InheritEnv) -> dict[str, str]:
    """Return the part of `environ` that a server gets. Raises `MCPConfigError` for an unknown `how`."""
    match how:
        case "all":
            return dict(environ)
        case "no_keys":
            left_out = own_keys(environ, environ)
            return {name: value for name, value in environ.items() if name not in left_out}
        case "safe":
            # An exported shell function is left out: a shell that the server starts would run its code.
            return {
                name: value
                for name, value in environ.items()
                if (name in _SAFE or name.startswith("LC_")) and not value.startswith(_SHELL_FUNCTION)
            }
        case "none":
            return {}
        case _:
            raise MCPConfigError(f"inherit_env is one of {', '.join(get_args(InheritEnv))}, not {how!r}.")


def visible_keys(environment: Mapping[str, str], host: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of non-blank variables that seem to hold a secret, or that `own_keys` returns."""
    ours = own_keys(environment, host)
    names = (name for name in environment if name in ours or looks_secret(name))
    return tuple(sorted(name for name in names if environment[name].strip()))


def own_keys(environment: Mapping[str, str], host: Mapping[str, str]) -> set[str]:
    """Return the names of variables that are in `OWN_KEYS`, or have the value of an own key in `host`.

    A value of fewer than 12 characters does not count: other variables may have it by chance.
    """
    values = {host[name].strip() for name in OWN_KEYS if len(host.get(name, "").strip()) >= MIN_CHARS}
    return {name for name, value in environment.items() if name in OWN_KEYS or value.strip() in values}


class ServerOptions(Struct, metaclass=OwnKeywords, frozen=True, kw_only=True):
    """One server's time limits, the tools to offer, and further settings.

    Attributes:
        call_timeout_s: Time limit of one tool call, unless the turn's is smaller; `None`: the turn's limit.
        startup_timeout_s: Time limit from the start of the connection to the listing; `None`: the turn's
            `TurnLimits.server_startup_timeout_s`. An entry in `TurnLimits.startup_timeouts_s` has precedence.
        startup_timeout_place: Where the user can set `startup_timeout_s`, in words, for the advice in the
            error after a slow start.
        exit_grace_s: How long a server process may take to exit after its input was closed, before it gets
            SIGTERM; `None`: as the runner's `ProcessLimits` say. Under a turn's time limit, at most half of
            the time left, or 50 ms if that is more; after a cancellation, at most
            `ProcessLimits.cancelled_grace_s`.
        include: Bare names of the tools to offer, or patterns with `*`, `?` and `[...]`; `None`: all.
        exclude: Names or patterns of the tools not to offer, even if `include` names them.
        required: What happens if the first connect of an episode fails. `True`: the turn ends with an error.
            `False`: the turn goes on without the server. `None`: as `FailurePolicy.first_connect` says, or as
            `False` with `start="when_called"`. An entry in `FailurePolicy.first_connects` has precedence.
        check_arguments: Whether a call that the tool's input schema refuses is answered with an error instead
            of being sent. Switch it off for a server whose schemas are wrong.
        start: When the server starts, one of `StartWhen`; `None`: as the runner's `start` says.
        roots: `file://` URIs of the folders that the server may work in; `None`: it is told of no folder.
    """

    call_timeout_s: float | None = None
    startup_timeout_s: float | None = None
    startup_timeout_place: str = "startup_timeout_s in the ServerOptions of this server"
    exit_grace_s: float | None = None
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    roots: tuple[str, ...] | None = None
    required: bool | None = None
    check_arguments: bool = True
    start: StartWhen | None = None

    def of_process(self, usual: ProcessLimits) -> ProcessLimits:
        """Return the limits `usual`, with this server's own `exit_grace_s` if it has one."""
        return usual if self.exit_grace_s is None else replace(usual, exit_grace_s=self.exit_grace_s)

    def __post_init__(self) -> None:
        check_settings(
            self,
            only=[name for name in self.__struct_fields__ if name != "start"],
            above_0=("call_timeout_s", "startup_timeout_s"),
        )
        for number, root in enumerate(self.roots or ()):
            if not root.startswith("file:///"):
                raise MCPConfigError(
                    f"ServerOptions: roots[{number}] is {shown(root)}; it must be a URI that begins with file:///."
                    ' For a folder: Path("docs").resolve().as_uri()'
                )
        if self.start is None or self.start in get_args(StartWhen):
            return
        if self.start in get_args(StartAhead):
            raise MCPConfigError(
                f'start="{self.start}" is for all servers of a runner: write Runner(start="{self.start}").'
            )
        known = ", ".join(f'"{each}"' for each in get_args(StartWhen))
        raise MCPConfigError(f"The start of a server is one of {known}, not {shown(self.start)}.")

    def __eq__(self, other: object) -> bool:
        """Compare all fields except `startup_timeout_place`, which has no effect on the server."""
        return isinstance(other, ServerOptions) and self._effective() == other._effective()

    def __hash__(self) -> int:
        return hash(self._effective())

    def _effective(self) -> tuple[object, ...]:
        return tuple(
            getattr(self, name) for name in self.__struct_fields__ if name != "startup_timeout_place"
        )

    def call_limit(self, timeout_s: float) -> float:
        """Return the smaller of the caller's `timeout_s` and the server's limit for a call."""
        return timeout_s if self.call_timeout_s is None else min(timeout_s, self.call_timeout_s)

    def select(self, tools: tuple[m.ToolDefinition, ...], notify: Notify) -> tuple[m.ToolDefinition, ...]:
        """Return the tools to offer. Report names and patterns that match no tool, as `bad_tool` notices."""
        names = [tool.tool for tool in tools]
        entries = [("include", each) for each in self.include or ()]
        entries += [("exclude", each) for each in self.exclude]
        for key, pattern in entries:
            if not any(fnmatchcase(name, pattern) for name in names):
                notify("bad_tool", f"tools.{key} has {pattern!r}{UNLISTED}")
        return tuple(tool for tool in tools if self.offers(tool.tool))

    def offers(self, tool: str) -> bool:
        """Return whether to offer the tool with this bare name."""
        wanted = self.include is None or any(fnmatchcase(tool, pattern) for pattern in self.include)
        return wanted and not any(fnmatchcase(tool, pattern) for pattern in self.exclude)


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
# What looks like a key in a URL: 20 or more characters with a digit. With `+` or `/` in it, a key has 40 or
# more characters, with a small and a capital letter too.
_OPAQUE = re.compile(r"(?=.*\d)(?:[A-Za-z0-9_~.%-]{20,}|(?=.*[a-z])(?=.*[A-Z])[A-Za-z0-9+/]{40,})")


HttpTransport: TypeAlias = Literal["auto", "http", "sse"]  # how to speak to a server with a URL


def _as_text(value: object) -> object:
    """Convert paths to text, also inside a list or dictionary. A list becomes a tuple."""
    if isinstance(value, PathLike):
        return os.fsdecode(value)
    if isinstance(value, list | tuple):
        return tuple(map(_as_text, value))
    return {name: _as_text(each) for name, each in value.items()} if isinstance(value, Mapping) else value


class _CommandLine(Struct, frozen=True):
    """The fields of `StdioServer` that may be positional arguments."""

    command: str
    args: Sequence[str] = ()


class StdioServer(_CommandLine, metaclass=OwnKeywords, frozen=True, kw_only=True):
    """A local program that speaks MCP over its standard streams.

    Of `env`, its `repr` shows only the names. It redacts arguments that look like secrets.

    Attributes:
        command: A path, relative to `cwd` or absolute, or a name on the PATH. A `Path` as `command` or `cwd`,
            or in `args` or `env`, becomes its text.
        args: The command's arguments, one text each. A list becomes a tuple.
        name: By default the program's name. In a dictionary of servers, the key is the name.
        env: Variables added to the inherited environment. They replace inherited ones of the same name.
        inherit_env: Which part of the host's environment is inherited. `all`: everything. `no_keys`:
            everything except the keys that grue uses for models and observers. `safe`: what programs
            commonly need. `none`: nothing. Without a PATH, the command is looked up on the host's.
        cwd: Working directory; `None`: the host's working directory when the server starts. A relative path
            becomes absolute.
        sandbox: What the program may read, write, start and connect to: a `Sandbox`, or a preset's name
            (`pure`, `files`, `web`). `None`: no sandbox; the program may do whatever the host may do.

    Source: R3.2, P7
    """

    name: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    options: ServerOptions = ServerOptions()
    inherit_env: InheritEnv = "all"
    sandbox: Sandbox | None = None

    if TYPE_CHECKING:  # The constructor also accepts other types, which `__post_init__` converts.

        def __init__(
            self,
            command: str | PathLike[str],
            args: Sequence[str | PathLike[str]] = (),
            *,
            name: str = "",
            env: Mapping[str, str | PathLike[str]] = ...,
            cwd: str | PathLike[str] | None = None,
            options: ServerOptions = ...,
            inherit_env: InheritEnv = "all",
            sandbox: Sandbox | str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        given: dict[str, Any] = {name: _as_text(getattr(self, name)) for name in self.__struct_fields__}
        args = given["args"]
        if not isinstance(given["command"], str) or not given["command"].strip():
            form = "command='python', args=('server.py',): the program, and one text for each argument"
        elif not isinstance(args, list | tuple) or not all(isinstance(word, str) for word in args):
            form = "args=('server.py',), one text for each argument"
        elif not isinstance(given["env"], Mapping):
            form = "env={'NAME': 'value'}"
        elif not isinstance(given["options"], ServerOptions):
            form = "options=ServerOptions(...)"
        elif not isinstance(given["cwd"], str | None):
            form = "cwd='folder'"
        else:
            for name in ("command", "args", "env", "cwd"):
                msgspec.structs.force_setattr(self, name, given[name])
            if self.cwd:
                with contextlib.suppress(OSError):  # the host's working directory was deleted
                    msgspec.structs.force_setattr(self, "cwd", str(Path(self.cwd).absolute()))
            check_settings(self, only=("name", "env", "inherit_env"))
            msgspec.structs.force_setattr(self, "name", self.name or PurePath(self.command).name)
            try:
                msgspec.structs.force_setattr(self, "sandbox", sandbox_of(self.sandbox))
            except ValueError as error:
                raise MCPConfigError(f"StdioServer(name={self.name!r}): sandbox {error}.") from None
            return
        # The error does not show the values, because an argument may be a secret.
        raise MCPConfigError(f"StdioServer(name={self.name!r}): write {form}.")

    def __rich_repr__(self) -> list[tuple[str, object]]:
        command, *args = Redactor(os.environ, self.named_values()).words(self.command, self.args)
        hidden = dict.fromkeys(self.env, "[redacted]")
        return [
            ("name", self.name),
            ("command", command),
            ("args", tuple(args)),
            ("env", hidden),
            ("cwd", self.cwd),
            *([("sandbox", in_words(self.sandbox))] if self.sandbox else []),
        ]

    __repr__ = repr_by_fields

    def environment(self) -> dict[str, str]:
        """Return the process's environment: the inherited part of the host's, updated with `env`."""
        return {**inherited(os.environ, self.inherit_env), **self.env}

    def named_values(self) -> Mapping[str, str]:
        """Return the configured values that may be secret, by name, for redaction."""
        found = dict(self.env)
        for name, value in secrets_of_arguments(self.args).items():
            add_value(found, name, value)
        return found


class _Address(Struct, frozen=True):
    """Holds `url`, the only field of `HttpServer` that may be passed by position."""

    url: str


class HttpServer(_Address, metaclass=OwnKeywords, frozen=True, kw_only=True):
    """A server that is reached by URL. Its `repr` hides the headers, and what may be secret in the URL.

    Attributes:
        url: A URL that begins with `http://` or `https://`. grue uses it as it is written.
        name: By default the host in the URL. In a dictionary of servers, the key is the name.
        transport: `http` is Streamable HTTP; `sse` is the older transport. `auto` tries Streamable HTTP
            first, and then, if the address refuses it, SSE.
        headers: Sent with every request to this server, and to no other host.
        connect_timeout_s: Time limit for opening an HTTP connection. Also for sending a notification or a
            reply, and for ending the session.
        auth: How grue authorises itself by OAuth; `None`: by `headers` or the user in the URL, or not at all.

    Raises:
        MCPConfigError: The URL cannot be used, or a header cannot be sent.
    """

    name: str = ""
    transport: HttpTransport = "auto"
    headers: Mapping[str, str] = field(default_factory=dict)
    connect_timeout_s: float = 5.0
    auth: OAuth | None = None
    options: ServerOptions = ServerOptions()

    def __post_init__(self) -> None:
        given: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        if not isinstance(given["url"], str) or not isinstance(given["headers"], Mapping):
            raise MCPConfigError(
                f"HttpServer(name={self.name!r}): write url='https://...', headers={{'Name': 'value'}}."
            )
        if not isinstance(given["options"], ServerOptions):
            raise MCPConfigError(f"HttpServer(name={self.name!r}): write options=ServerOptions(...).")
        check_settings(self, above_0=("connect_timeout_s",))
        fault = _url_fault(self.url)
        if fault is not None:
            raise MCPConfigError(f"MCP server {self.name!r}: its URL {fault}.")
        msgspec.structs.force_setattr(self, "name", self.name or urlsplit(self.url).hostname or "")
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise MCPConfigError(f"MCP server {self.name!r}: {name!r} cannot be the name of a header.")
            if not _HEADER_VALUE.fullmatch(value):
                raise MCPConfigError(
                    f"MCP server {self.name!r}: the header {name!r} has a character that cannot be sent,"
                    " such as a line break."
                )
        # Space around a value, as after a key that was pasted, cannot be sent.
        stripped = {name: value.strip() for name, value in self.headers.items()}
        msgspec.structs.force_setattr(self, "headers", stripped)

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("name", self.name), ("url", self.address), ("transport", self.transport)]

    __repr__ = repr_by_fields

    @property
    def address(self) -> str:
        """The URL without user, query, fragment, and parts of the path that look like keys."""
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        port = f":{parts.port}" if parts.port is not None else ""
        path = "/".join("[...]" if _OPAQUE.fullmatch(part) else part for part in parts.path.split("/"))
        return f"{parts.scheme}://{host}{port}{path}"

    def named_values(self) -> Mapping[str, str]:
        """Return the configured values that may be secret, by name, for redaction."""
        parts = urlsplit(self.url)
        found = dict(self.headers)
        for name, value in self.headers.items():
            scheme, _, token = value.strip().partition(" ")
            if token and scheme.isalpha():  # for "Bearer abc", redact "abc" alone too
                found[f"{name} token"] = token
        for name, value in parse_qsl(parts.query):
            add_value(found, name, value)
        if parts.password:
            user, password = unquote(parts.username or ""), unquote(parts.password)
            found |= {
                "URL password": password,
                "URL": f"basic {b64encode(f'{user}:{password}'.encode()).decode()}",
            }
        found |= {} if self.auth is None else self.auth.secrets()
        # Azure, for example, has a key in the parameter `code` or `sig`.
        unnamed = [value for name, value in parse_qsl(parts.query) if not looks_secret(name)]
        opaque = [part for part in (*parts.path.split("/"), *unnamed) if _OPAQUE.fullmatch(part.rstrip("="))]
        return found | {f"URL key {number}": part for number, part in enumerate(opaque, start=1)}


McpServer: TypeAlias = StdioServer | HttpServer  # a server that speaks MCP, however it is reached


def in_its_box(server: McpServer, tools: tuple[m.ToolDefinition, ...]) -> tuple[m.ToolDefinition, ...]:
    """Return `tools` with `boxed` set: `True` if the server has a box that this machine enforces."""
    boxed = isinstance(server, StdioServer) and is_boxed(server.sandbox)
    return tuple(tool if tool.boxed is boxed else replace(tool, boxed=boxed) for tool in tools)


def is_boxed(box: Sandbox | None) -> bool:
    """Return whether there is a box, other than a `Watching`, and this machine enforces all of it."""
    if box is None:
        return False
    from grue.sandbox.launch import is_enforced  # imported here, because most programs have no boxes

    return is_enforced(box)


def _may_be_a_host(name: str) -> bool:
    import httpx  # imported here, because it is slow to load and few names need it

    try:
        return bool(httpx.URL(f"http://{name}").host)
    except (httpx.InvalidURL, ValueError):
        return False


def _url_fault(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises if it is not a number
    except ValueError:
        return "cannot be read"
    if parts.scheme not in ("http", "https"):
        return "should begin with http:// or https://"
    if not parts.hostname:
        return "names no host"
    if not (parts.hostname.isascii() or _may_be_a_host(parts.hostname)):
        return "has a character in its host that no host has"
    return "has a space or a control character in it" if not url.isprintable() or " " in url else None
