"""The wire to a server that is reached by URL: Streamable HTTP, and the older SSE transport.

This module must not import from `runtime/processes/`, except `ProcessLimits`: it starts no process.
"""

import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio

from grue.policies import ServerPhase
from grue.runtime.loops.beside_loop import BackgroundTasks, leaves_no_time
from grue.runtime.processes.limits import ProcessLimits
from grue.tool_sessions.connection import ConnectionStatus
from grue.tool_sessions.failures import needs_longer
from grue.tool_sessions.redaction import Redactor
from grue.tool_sessions.server_requests import Notify
from grue.tool_sessions.server_specs import HttpServer
from grue.transports.mcp.http_faults import WRONG_ADDRESS

if TYPE_CHECKING:
    from grue.transports.mcp.message_stream import MessageStream
    from grue.transports.mcp.sdk_http import HttpStream

_LEAVE_S = 1.0  # time limit for telling the server that the session ends
_LEAVE_AT_LEAST_S = 0.3  # the least that this limit becomes if the turn's deadline is near


class HttpWire:
    """The wire to a server over HTTP."""

    modules = ("grue.transports.mcp.sdk_http",)  # imported by `stream`; it imports the SDK

    def __init__(
        self, server: HttpServer, limits: ProcessLimits, on_secret: Callable[[str, str], object]
    ) -> None:
        self._secrets: list[Mapping[str, str]] = [{**os.environ}, server.named_values()]
        self.redactor = Redactor(*self._secrets)
        self._on_secret = on_secret
        self._server = server
        self.address = server.address  # the URL without secrets
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
        from grue.transports.mcp.sdk_http import Authorization, HttpStream

        authorization = None if self._server.auth is None else Authorization(self._server, self._hide)
        self._stream = HttpStream(self._server, self._limits, notify, authorization)
        self._tasks.start(self._stream.carry)
        return self._stream

    def _hide(self, name: str, value: str) -> None:
        self._secrets.append({name: value})
        self.redactor = Redactor(*self._secrets)
        self._on_secret(name, value)

    async def broken(self, method: str, why: str | None) -> str:
        """Return why the stream broke: `why` if it is known, otherwise a text that only names `method`."""
        return why or f"the connection broke during {method}"

    async def remedy(self, phase: ServerPhase, *, missing: bool = False, timed_out: bool = False) -> str:
        """Return the advice for the user: the stream's own if it has any, otherwise general advice."""
        del missing
        if self._stream is not None and self._stream.remedy is not None:
            return self._stream.remedy
        if timed_out:
            longer = needs_longer(self._server.options.startup_timeout_place)
            return f"Check that the URL is that of an MCP server and that the server is well. {longer}"
        if phase == "call":
            return "Check that the server is still running; its own log says more."
        if self._server.transport != "auto":
            return WRONG_ADDRESS
        return "Check the URL: it should be the address of an MCP endpoint, such as https://host/mcp."

    def refusals(self, text: str) -> str:  # noqa: ARG002 - as `ProcessWire` has it
        """Return an empty text: a server that is reached by URL does not run in a sandbox."""
        return ""

    @property
    def status(self) -> ConnectionStatus:
        """The state of the connection: only the address, because grue did not start the server's process."""
        return ConnectionStatus(address=self.address)
