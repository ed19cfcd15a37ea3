"""MCP servers that are reached by URL: Streamable HTTP, and the older SSE transport.

This module has the configuration of such a server (`HttpServer`) and its wire (`HttpWire`). `sdk_http.py`
runs the SDK's transports, and `http_faults.py` has the texts of failures. No text may show a secret of the
URL or of a header.
"""

import os
import re
from base64 import b64encode
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import parse_qsl, unquote, urlsplit

import anyio
from msgspec import Struct, field

from grue.errors import MCPConfigError
from grue.mcp_transport.redaction import Redactor
from grue.mcp_transport.stdio import BackgroundTasks, ProcessLimits, leaves_no_time
from grue.tool_sessions.connection import Ending, ServerExit
from grue.tool_sessions.failures import Phase
from grue.tool_sessions.notices import Notify
from grue.tool_sessions.server_options import ServerOptions

if TYPE_CHECKING:
    from grue.mcp_transport.sdk import MessageStream
    from grue.mcp_transport.sdk_http import HttpStream

_LEAVE_S = 1.0
"""Time limit for telling the server that the session ends."""

_LEAVE_AT_LEAST_S = 0.3
"""Shortest such limit, used if the deadline that it was entered under has passed or is near."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
_OPAQUE = re.compile(r"(?=.*\d)[A-Za-z0-9_~.%-]{20,}")
"""A part of a path that looks like a key and not a word. Some hosts give each user a secret URL."""


class HttpServer(Struct, frozen=True, kw_only=True):
    """A server that is reached by URL.

    Its `repr` hides the headers and the parts of the URL that may be secret.

    Attributes:
        url: `http://` or `https://`; used as it is.
        transport: `http` is Streamable HTTP; `sse` is the older transport.
        headers: Sent with every request to that URL, and nowhere else.
        connect_timeout_s: Time limit for opening a connection, and for sending one notification.
        options: Time limits and tool choices.

    Raises:
        MCPConfigError: The URL cannot be used, or a header cannot be sent.
    """

    name: str
    url: str
    transport: Literal["http", "sse"] = "http"
    headers: Mapping[str, str] = field(default_factory=dict)
    connect_timeout_s: float = 5.0
    options: ServerOptions = ServerOptions()

    def __post_init__(self) -> None:
        fault = _url_fault(self.url)
        if fault is not None:
            raise MCPConfigError(f"MCP server {self.name!r}: its URL {fault}.")
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise MCPConfigError(f"MCP server {self.name!r}: {name!r} cannot be the name of a header.")
            if not _HEADER_VALUE.fullmatch(value):
                raise MCPConfigError(
                    f"MCP server {self.name!r}: the header {name!r} has a character that cannot be sent,"
                    " such as a line break."
                )

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Return the fields with secrets redacted; rich shows them in tracebacks."""
        return [("name", self.name), ("url", self.address), ("transport", self.transport)]

    def __repr__(self) -> str:
        return f"HttpServer({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    @property
    def address(self) -> str:
        """The URL without user, query, and parts of the path that look like keys."""
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
            if token and scheme.isalpha():  # the server may repeat the token without its "Bearer"
                found[f"{name} token"] = token
        found |= dict(parse_qsl(parts.query))
        if parts.password:
            user, password = unquote(parts.username or ""), unquote(parts.password)
            found |= {
                "URL password": password,
                "URL": f"basic {b64encode(f'{user}:{password}'.encode()).decode()}",
            }
        opaque = [part for part in parts.path.split("/") if _OPAQUE.fullmatch(part)]
        return found | {f"URL key {number}": part for number, part in enumerate(opaque, start=1)}


class HttpWire:
    """The wire to a server over HTTP. Everything about a process is `None` or empty."""

    def __init__(self, server: HttpServer, limits: ProcessLimits) -> None:
        self.redactor = Redactor({**os.environ, **server.named_values()})
        self._server = server
        self._limits = limits
        self._close_by = float("inf")
        self._tasks = BackgroundTasks()
        self._stream: HttpStream | None = None

    async def __aenter__(self) -> Self:
        self._close_by = anyio.current_effective_deadline()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if self._stream is not None and not leaves_no_time(exc_type):
                left_s = self._close_by - anyio.current_time()
                await self._stream.leave(max(_LEAVE_AT_LEAST_S, min(_LEAVE_S, left_s)))
        finally:
            await self._tasks.__aexit__(exc_type, exc, tb)

    def stream(self, notify: Notify) -> "MessageStream":
        """Connect in the background, and return the stream of messages; imports the SDK."""
        from grue.mcp_transport.sdk_http import HttpStream

        self._stream = HttpStream(self._server, self._limits, notify)
        self._tasks.start(self._stream.carry)
        return self._stream

    async def broken(self, method: str, why: str | None) -> str:
        """Return the stream's cause, or a general text if it has none."""
        return why or f"the connection broke during {method}"

    async def remedy(self, phase: Phase, *, missing: bool = False, timed_out: bool = False) -> str:
        """Return what the user can do: the advice of the fault, or else of the phase."""
        del missing
        if self._stream is not None and self._stream.remedy is not None:
            return self._stream.remedy
        if timed_out:
            return (
                "Check that the URL is that of an MCP server and that the server is well;"
                " raise the start-up timeout if it only needs longer."
            )
        if phase == "call":
            return "Check that the server is still running; its own log says more."
        return "Check the URL: it should be the address of an MCP endpoint, such as https://host/mcp."

    @property
    def address(self) -> str:
        """The URL without secrets."""
        return self._server.address

    @property
    def alive(self) -> bool:
        """Always `True`: without asking the server there is no way to know."""
        return True

    @property
    def pid(self) -> int | None:
        """`None`: there is no process."""
        return None

    @property
    def exit(self) -> ServerExit | None:
        """`None`: there is no process."""
        return None

    @property
    def ending(self) -> Ending | None:
        """`None`: there is no process."""
        return None

    @property
    def stderr_tail(self) -> str:
        """Empty: there is no process."""
        return ""


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
    return "has a space or a control character in it" if not url.isprintable() or " " in url else None
