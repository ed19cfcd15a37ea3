"""The messages of a client over stdio, for a server that does not know `initialize`.

The SDK's server chooses the protocol's era of a connection by the client's first request, and `initialize`
would choose the older one, even if it is refused. So it is refused here, before the server has seen it.
"""

from types import TracebackType
from typing import Any, Protocol, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import UNSUPPORTED_PROTOCOL_VERSION, ErrorData, JSONRPCError, JSONRPCRequest
from mcp_types.version import MODERN_PROTOCOL_VERSIONS


class _Reads(Protocol):
    async def receive(self) -> SessionMessage | Exception: ...
    async def aclose(self) -> None: ...


class _Writes(Protocol):
    async def send(self, item: SessionMessage, /) -> None: ...


class WithoutInitialize:
    """A stream of a client's messages, without its `initialize` requests; each is answered by an error.

    Args:
        read: All messages of the client.
        write: Takes the server's messages.
    """

    def __init__(self, read: _Reads, write: _Writes) -> None:
        self._read = read
        self._write = write

    @property
    def last_context(self) -> Any:
        """The context in which the last message was sent."""
        return getattr(self._read, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message.

        Raises:
            anyio.EndOfStream: The client has closed its side.
        """
        while True:
            item = await self._read.receive()
            request = item.message if isinstance(item, SessionMessage) else None
            if not isinstance(request, JSONRPCRequest) or request.method != "initialize":
                return item
            await self._write.send(SessionMessage(message=_refusal(request)))

    async def aclose(self) -> None:
        """Close the stream of all messages."""
        await self._read.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose()


def _refusal(request: JSONRPCRequest) -> JSONRPCError:
    requested = (request.params or {}).get("protocolVersion")
    versions = {"supported": list(MODERN_PROTOCOL_VERSIONS), "requested": requested}
    error = ErrorData(
        code=UNSUPPORTED_PROTOCOL_VERSION, message="Unsupported protocol version", data=versions
    )
    return JSONRPCError(jsonrpc="2.0", id=request.id, error=error)
