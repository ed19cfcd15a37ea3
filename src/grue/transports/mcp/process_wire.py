"""The wire to a server that runs as a child process, over the process's standard streams."""

import os
import shlex
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio

from grue.policies import ServerPhase
from grue.runtime.processes.child_process import ServerProcess
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.processes.process_group import ProcessRegistry, SpawnError
from grue.runtime.safe_text import plain_text
from grue.tool_sessions.connection import ConnectionStatus
from grue.tool_sessions.failures import remedy_for
from grue.tool_sessions.redaction import Redactor
from grue.tool_sessions.server_requests import Notify
from grue.tool_sessions.server_specs import StdioServer
from grue.transports.mcp import launchers

if TYPE_CHECKING:
    from grue.transports.mcp.message_stream import MessageStream

_AWAIT_EXIT_S = 0.5  # how long to wait for the exit of a process whose pipes have closed


class ProcessWire:
    """The wire to a server that runs as a child process. `__aexit__` ends the server's processes."""

    modules = ("grue.transports.mcp.line_stream",)  # imported by `stream`; it imports the SDK

    def __init__(self, server: StdioServer, registry: ProcessRegistry, limits: ProcessLimits) -> None:
        self._server = server
        self._registry = registry
        self._max_message_bytes = limits.max_message_bytes
        self._process = ServerProcess(server, registry, server.options.of_process(limits))
        self._spawned = False
        # Removes from texts the secrets in the server's settings and in the host's environment.
        self.redactor = Redactor(os.environ, server.named_values())
        # The server's command line as a person would type it.
        self.address = shlex.join(self.redactor.words(server.command, server.args))

    async def __aenter__(self) -> Self:
        package = launchers.missing_npx_package(self._server)
        if package is not None:  # npx itself takes long to fail
            raise SpawnError(
                f"the npm package {package} is not installed, and npx is not allowed to install it",
                remedy=f"Install it: npm install --global {package}. Or write -y in place of --no-install:"
                " npx then downloads it at the first start.",
            )
        await self._process.__aenter__()
        self._spawned = True
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._process.__aexit__(exc_type, exc, tb)

    def stream(self, notify: Notify) -> "MessageStream":
        """Return the process's pipes as a stream of messages; imports the SDK."""
        from grue.transports.mcp.line_stream import LineStream

        return LineStream(self._process, notify, self._max_message_bytes)

    async def broken(self, method: str, why: str | None) -> str:
        """Return why the pipes closed. The process has probably ended, so wait a moment for its exit."""
        with anyio.move_on_after(_AWAIT_EXIT_S):
            await self._process.wait_exit()
        if self._process.exited is not None:
            ended = f"the server ended during {method} ({self._process.exited})"
            # A failed start is reported with its `remedy`, a failed call with this text alone.
            tail = self._process.stderr_tail() if method == "tools/call" else None
            refused = "" if tail is None else self.refusals(tail, died=True)
            return f"{ended}. {'; '.join(refused.splitlines())}" if refused else ended
        return f"the connection broke during {method}: {why}"

    async def remedy(self, phase: ServerPhase, *, missing: bool = False, timed_out: bool = False) -> str:
        """Return advice: on refusals of the sandbox, a broken npx cache, an old Node.js, or general advice.

        Source: R14
        """
        if self._spawned:
            boxed = self.refusals(self._process.stderr_tail(), died=True)
            if boxed:
                return boxed
        slow_place, wrote = self._server.options.startup_timeout_place, bool(self.status.stderr_tail)
        slow = slow_place if timed_out else None
        advice = remedy_for(self._server.command, phase, missing=missing, slow_place=slow, wrote=wrote)
        if phase not in ("initialize", "list"):
            return advice
        broken_cache = launchers.npx_cache_broken(self._server) if self._process.exited is not None else None
        if broken_cache is not None:
            return broken_cache
        # After a timeout the server's start-up limit is used up, so `node_too_old` gets only a short time.
        limit_s = launchers.ASK_AFTER_TIMEOUT_S if timed_out else launchers.ASK_S
        found = await launchers.node_too_old(self._server, self._registry, limit_s=limit_s)
        if found is None:
            return advice
        # A server that still runs may only be slow, so give the general advice too.
        return found if self._process.exited is not None else f"{found}\n{advice}"

    def refusals(self, text: str, *, died: bool = False) -> str:
        """Return what the sandbox seems to have refused. `text`: what the server wrote.

        `died`: the server itself has failed, and not only a tool call.
        """
        if not self._server.sandbox:
            return ""
        return self.redactor.text(plain_text("\n".join(self._process.refusals(text, died=died))))

    @property
    def status(self) -> ConnectionStatus:
        """The state of the process, with secrets redacted from its standard error."""
        process = self._process
        if not self._spawned:
            return ConnectionStatus(alive=False)
        return ConnectionStatus(
            alive=not process.has_ended,
            pid=process.pid,
            exit=process.exited,
            ending=process.ending,
            stderr_tail=process.stderr_tail(self.redactor.text),
            box=self._box,
        )

    @cached_property
    def _box(self) -> str:
        if self._server.sandbox is None:
            return ""
        from grue.sandbox.launch import reach  # imported here, because most servers have no sandbox

        return self.redactor.text(plain_text(reach(self._server.sandbox)))
