"""The stream of messages that the SDK's session reads and writes, whatever the transport is.

Import this module inside functions: it imports `mcp`, which is slow.
"""

import json
from abc import ABC, abstractmethod
from typing import ClassVar, Self

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError as SdkError
from mcp.shared.message import SessionMessage

MAX_UNASKED = 100_000  # most messages in a row that a server may send without an answer among them
_TOOLS_CHANGED = "notifications/tools/list_changed"


class MessageStream(ABC):
    """The read and write stream that the SDK expects, in one object. A send never waits for the server."""

    broken: str | None  # why nothing more can be exchanged; `None` while the stream works
    # The server has announced changed tools since the client last set this to `False`. Set as soon as the
    # announcement is read: the SDK handles it in another task, possibly after the next call was sent.
    tools_changed: bool = False
    last_request_id: str = ""  # of the last `tools/call`; empty: none, or the current one is not sent yet
    sessionless: bool = False  # whether requests over HTTP leave out the id of the session, if there is one
    over_http: ClassVar[bool] = False  # whether requests have HTTP headers

    @abstractmethod
    async def receive(self) -> SessionMessage | Exception:
        """Return the server's next message. Raises `EndOfStream` at the end; `broken` then says why."""

    async def send(self, item: SessionMessage) -> None:
        """Send or queue a message; raises `BrokenResourceError` if nothing can be sent any more."""
        if isinstance(item.message, types.JSONRPCRequest) and item.message.method == "tools/call":
            self.last_request_id = str(item.message.id)
        await self._send(item)

    @abstractmethod
    async def _send(self, item: SessionMessage) -> None: ...

    def end_input(self) -> None:  # noqa: B027 - a server over HTTP has no input to end
        """Close the server's input, if it has one. No message may be sent after that."""

    async def aclose(self) -> None:  # noqa: B027 - for the SDK to call; the wire closes
        """Do nothing: the wire (`ProcessWire`, `HttpWire`) closes the connection."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            item = await self.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise StopAsyncIteration from None
        if isinstance(item, SessionMessage) and getattr(item.message, "method", "") == _TOOLS_CHANGED:
            self.tools_changed = True
        return item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


def is_closed(error: SdkError, stream: MessageStream) -> bool:
    """Return whether `error` means that the stream is broken. A server's own error may have the same code."""
    return (
        stream.broken is not None
        and error.code == types.CONNECTION_CLOSED
        and error.message == "Connection closed"
    )


def encode_message(message: types.JSONRPCMessage) -> bytes:
    """Return a message as one line of JSON, without its newline."""
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except ValueError:  # the arguments have a lone surrogate, which JSON can hold in escaped form
        return json.dumps(message.model_dump(by_alias=True, exclude_unset=True)).encode()
