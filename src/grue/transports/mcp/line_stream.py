"""A process's pipes as a `MessageStream`: one JSON-RPC message per line."""

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from grue.runtime.large_data import CutLineError, LineTooLongError
from grue.runtime.processes.child_process import ServerProcess
from grue.tool_sessions.server_requests import Notify
from grue.transports.mcp.incoming import read_message, refusal_of_cut
from grue.transports.mcp.message_stream import MAX_UNASKED, MessageStream, encode_message

_LONG_ID = 20  # digits


class LineStream(MessageStream):
    """A stream of a process's lines.

    An unusable answer, or one over `max_message_bytes`, becomes an error for its request if its id can be
    read. A line over `max_message_bytes` is also reported, as are an answer to no request, such as an error
    with the id `null`, and a line that is neither a message nor an answer. The stream breaks after a line
    over `ProcessLimits.max_line_bytes`, which is larger by default, or over `MAX_UNASKED` lines in a row that
    are no answers.
    """

    def __init__(self, process: ServerProcess, notify: Notify, max_message_bytes: int) -> None:
        self._process = process
        self._notify = notify
        self._max_message_bytes = max_message_bytes
        self._unasked = 0
        self._last_id = 0  # of the requests sent, which the SDK numbers
        self.broken: str | None = None

    async def receive(self) -> SessionMessage | Exception:
        """Return the server's next message."""
        while True:
            message = await self._next()
            answers = isinstance(message, types.JSONRPCResponse | types.JSONRPCError)
            self._unasked = 0 if answers else self._unasked + 1
            if self._unasked > MAX_UNASKED:
                self.broken = f"it wrote {MAX_UNASKED} lines, and none of them was an answer"
                raise anyio.EndOfStream
            if message is not None:
                return SessionMessage(message)

    async def _next(self) -> types.JSONRPCMessage | None:
        try:
            line = await self._process.receive_line()
        except anyio.EndOfStream:
            self.broken = self.broken or "it closed its output"
            raise
        except LineTooLongError as error:
            self.broken = f"it wrote {error}"
            raise anyio.EndOfStream from error
        except CutLineError as cut:
            self._notify("too_large", f"{cut}, and at most {self._max_message_bytes} are read")
            return refusal_of_cut(cut, self._max_message_bytes)
        message = await read_message(line)
        if line.strip() and (message is None or self._answers_nothing(message)):
            self._notify("noise", line[:500].decode("utf-8", "replace"))
        return message

    def _answers_nothing(self, message: types.JSONRPCMessage) -> bool:
        """Return whether a message is an answer to no request that was sent."""
        if not isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            return False
        number = message.id
        if isinstance(number, str) and len(number) < _LONG_ID and number.isdecimal():
            number = int(number)  # as the SDK does
        return not (isinstance(number, int) and number <= self._last_id)

    async def _send(self, item: SessionMessage) -> None:
        if isinstance(item.message, types.JSONRPCRequest) and isinstance(item.message.id, int):
            self._last_id = item.message.id
        try:
            self._process.send_line(encode_message(item.message))
        except anyio.BrokenResourceError:
            self.broken = self.broken or "it does not read its input"
            raise

    def end_input(self) -> None:
        """Close the server's standard input, so that the server exits while the session is being closed."""
        self._process.ask_to_exit()
