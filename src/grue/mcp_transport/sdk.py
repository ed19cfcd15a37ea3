"""The official MCP SDK over a server process. The only module that imports `mcp`, which takes a while.

The SDK's dispatcher reads from and writes to the process directly: no tasks and no queues in between. Sending
never blocks, so the SDK's own timeouts and cancellations hold against a server that has stopped reading.
"""

import json
from collections.abc import Callable
from typing import Any, Self

import anyio
import mcp_types as types
import msgspec
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError as SdkError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage

from grue import __version__
from grue.mcp_transport.notices import Notify
from grue.mcp_transport.stdio import LineTooLongError, ServerProcess

__all__ = ["LineStream", "Link", "SdkError", "is_closed", "read_message"]


class LineStream:
    """Both streams of the SDK's contract: one JSON-RPC message a line, in and out.

    A line that is no message is reported and skipped. An answer that is not usable (`result: null`) becomes
    an error for the request that it belongs to, which would otherwise wait for its timeout.
    """

    def __init__(self, process: ServerProcess, on_noise: Callable[[str], None]) -> None:
        self._process = process
        self._on_noise = on_noise
        self.broken: str | None = None
        """Why nothing more can be exchanged, or `None` while it can."""

    async def receive(self) -> SessionMessage | Exception:
        """Return the server's next message."""
        while True:
            try:
                line = await self._process.receive_line()
            except anyio.EndOfStream:
                self.broken = self.broken or "it closed its output"
                raise
            except LineTooLongError as error:
                self.broken = f"it wrote {error}"
                raise anyio.EndOfStream from error
            message = read_message(line)
            if message is not None:
                return SessionMessage(message)
            if line.strip():
                self._on_noise(line[:500].decode("utf-8", "replace"))

    async def send(self, item: SessionMessage) -> None:
        """Hand a message to the process; what it does not take at once is queued."""
        try:
            self._process.send_line(_encode(item.message))
        except anyio.BrokenResourceError:
            self.broken = self.broken or "it does not read its input"
            raise

    async def aclose(self) -> None:
        """Do nothing: the process belongs to whoever started it."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


class Link:
    """A `ClientSession` and the dispatcher below it, over one process. One task enters and leaves it."""

    def __init__(self, process: ServerProcess, notify: Notify) -> None:
        self.stream = LineStream(process, lambda text: notify("noise", text))
        self._notify = notify
        self._dispatcher: JSONRPCDispatcher[Any] = JSONRPCDispatcher(self.stream, self.stream)
        self._session = ClientSession(
            dispatcher=self._dispatcher,
            client_info=types.Implementation(name="grue", version=__version__),
            logging_callback=self._log,
        )

    async def __aenter__(self) -> Self:
        await self._session.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        # Without the body's exception, which would come back inside an ExceptionGroup.
        await self._session.__aexit__(None, None, None)

    async def initialize(self) -> types.InitializeResult:
        """Perform the handshake.

        Raises:
            SdkError: The server refused, or the connection broke.
            RuntimeError, ValueError: The answer makes no sense.
        """
        return await self._session.initialize()

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its result as it came, which the SDK's typed methods would not.

        Cancelling sends `notifications/cancelled` to the server.

        Raises:
            SdkError: The server answered with an error, or the connection broke: see `is_closed`.
        """
        return await self._dispatcher.send_raw_request(
            method, params, {"on_progress": self._progress} if method == "tools/call" else {}
        )

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        text = params.data if isinstance(params.data, str) else json.dumps(params.data)
        self._notify("log", f"{params.level}: {text}")

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        share = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
        self._notify("progress", f"{share} {message}" if message else share)


def is_closed(error: SdkError, stream: LineStream) -> bool:
    """Tell the dispatcher's word for a broken connection from a server's error that has the same code."""
    return (
        stream.broken is not None
        and error.code == types.CONNECTION_CLOSED
        and error.message == "Connection closed"
    )


def read_message(line: bytes) -> types.JSONRPCMessage | None:
    """Return the message of a line, or `None` for a line that is none. Never raises."""
    value = _decode(line)
    if not isinstance(value, dict):
        return None
    value.setdefault("jsonrpc", "2.0")
    try:
        return types.jsonrpc_message_adapter.validate_python(value, by_name=False)
    except ValueError:
        return _refusal(value)


def _refusal(value: dict[str, Any]) -> types.JSONRPCError | None:
    """Return the error that stands for an unusable answer, if it is an answer at all."""
    request_id = value.get("id")
    if "method" in value or not isinstance(request_id, int | str):
        return None
    member = "error" if "error" in value else "result"
    shown = json.dumps(value.get(member))[:200]
    text = f"The server's answer is not usable: {member} is {shown}"
    error = types.ErrorData(code=types.INTERNAL_ERROR, message=text)
    return types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error)


def _decode(line: bytes) -> object:
    try:
        return msgspec.json.decode(line)
    except (ValueError, RecursionError):
        pass
    # What is wrong may be a byte in a text, a NaN, half a surrogate pair: not worth a lost answer.
    try:
        return json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _encode(message: types.JSONRPCMessage) -> bytes:
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except ValueError:  # a lone surrogate in a model's arguments: JSON can carry it escaped
        return json.dumps(message.model_dump(by_alias=True, exclude_unset=True)).encode()
