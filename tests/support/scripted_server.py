"""A tool server whose connections follow a script, and which records how they are used."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.lowlevel
from turns import failure, tool

from grue.messages import JsonObject, ToolCallResult, ToolDefinition
from grue.runtime.processes.limits import ServerExit
from grue.tool_sessions.connection import ConnectionStatus, Listing
from grue.tool_sessions.failures import ServerFailed, ToolRefusedError, ToolTimedOutError

LISTED = (tool("a.look"), tool("a.think"))


class ScriptedServer:
    """Makes connections. `log` has the method calls on all of them, in order.

    Args:
        connects: The behaviour of each connection: `ok`, `fail on entering`, `fail`, `hang`, `bug`,
            `slow to enter`, `slow to enter, hang`, `slow to leave`, `fail on leaving`.
        tools: The behaviour of a call, by tool: `refuse`, `unsent` (refuse before sending), `time out`,
            `die`, `bug`, `hang`; any other value is the result.
    """

    def __init__(self, *connects: str, tools: Mapping[str, Any] | None = None) -> None:
        self.log: list[str] = []
        self.limits_s: list[float] = []
        self.at_once = 0
        self.most_at_once = 0
        self.open = 0
        self.most_open = 0
        self._connects = iter(connects or ("ok",))
        self.tools = dict(tools or {})
        self.relisted: tuple[ToolDefinition, ...] | None = None

    def connect(self, _note: object) -> "ScriptedConnection":
        return ScriptedConnection(self, next(self._connects))

    def did(self, word: str) -> Sequence[str]:
        return [entry for entry in self.log if entry.startswith(word)]


class ScriptedConnection:
    """One connection; a `ToolConnection`. A test sets `died` to pretend that its process has died."""

    def __init__(self, server: ScriptedServer, way: str) -> None:
        self._server = server
        self._way = way
        self._left = False
        self.entered = False
        self._entering_s = 0.0
        self.died = False

    @property
    def status(self) -> ConnectionStatus:
        left = self._left
        return ConnectionStatus(
            alive=not left and not self.died,
            pid=4711,
            exit=ServerExit(status=3, signal=None) if left else None,
            ending="polite" if left else "none",
        )

    async def __aenter__(self) -> Self:
        self._server.log.append("enter")
        if self._way == "fail on entering":
            raise ServerFailed(failure())
        if self._way.startswith("slow to enter"):
            self._entering_s = 0.3
            await anyio.sleep(self._entering_s)
        self.entered = True
        self._server.open += 1
        self._server.most_open = max(self._server.most_open, self._server.open)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(5.0 if self._way == "slow to leave" else 0.005)
        self._server.open -= 1
        self._server.log.append("leave")
        self._left = True
        if self._way == "fail on leaving":
            raise LookupError("while leaving")

    async def open(self, timeout_s: float) -> Listing:
        self._server.limits_s.append(timeout_s)
        self._server.log.append("open")
        if self._way == "fail":
            raise ServerFailed(failure(phase="list"))
        if self._way == "bug":
            raise LookupError("while opening")
        if self._way.endswith("hang"):
            with anyio.move_on_after(timeout_s - self._entering_s):
                await anyio.sleep_forever()
            raise ServerFailed(failure(phase="initialize"))
        return Listing(tools=LISTED, protocol_version="2025-11-25")

    async def call(self, tool: str, arguments: JsonObject, timeout_s: float) -> ToolCallResult:
        server = self._server
        server.limits_s.append(timeout_s)
        server.log.append(f"call {tool}")
        server.at_once += 1
        server.most_at_once = max(server.most_at_once, server.at_once)
        try:
            await anyio.lowlevel.checkpoint()
            return await self._outcome(tool, arguments, timeout_s)
        finally:
            server.at_once -= 1

    async def refusal(self, tool: str, arguments: JsonObject) -> str | None:
        return "no such argument" if self._server.tools.get(tool) == "unsent" else None

    async def refresh_tools(self, timeout_s: float) -> tuple[ToolDefinition, ...] | None:
        relisted, self._server.relisted = self._server.relisted, None
        return relisted

    async def _outcome(self, tool: str, arguments: JsonObject, timeout_s: float) -> ToolCallResult:
        match self._server.tools.get(tool, "ok"):
            case "refuse":
                raise ToolRefusedError("no such thing", code=-32602)
            case "time out":
                raise ToolTimedOutError(tool, timeout_s)
            case "die":
                raise ServerFailed(failure(phase="call"))
            case "bug":
                raise LookupError("a bug")
            case Exception() as error:
                raise error
            case "hang":
                with anyio.move_on_after(timeout_s):
                    await anyio.sleep_forever()
                raise ToolTimedOutError(tool, timeout_s)
            case outcome:
                return ToolCallResult(outcome)
