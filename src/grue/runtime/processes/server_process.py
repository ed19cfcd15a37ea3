"""A server process: a child process that is sent lines and answers with lines.

This module knows nothing of MCP: it must not look into a line. Whatever the server does, these hold, beside
what `child_process.py` promises:

- A line is read in linear time, up to a limit.
- Standard error is always drained, and its end is kept.

Source: R3.5-R3.7, P9
"""

from collections.abc import Callable, Coroutine
from typing import Any

import anyio

from grue.runtime.lines import LineBuffer
from grue.runtime.loops.pace import Pace
from grue.runtime.processes.child_process import ChildProcess, Program, read_available
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.processes.process_group import ProcessRegistry
from grue.runtime.safe_text import plain_text

_STDERR_READS_AT_ONCE = 64


class ServerProcess(ChildProcess):
    """A running server process. One task at a time may receive; everything else is as in `ChildProcess`."""

    def __init__(
        self, program: Program, registry: ProcessRegistry, limits: ProcessLimits | None = None
    ) -> None:
        super().__init__(program, registry, limits)
        self._lines = LineBuffer(self._limits.max_line_bytes, self._limits.max_message_bytes)
        self._pace = Pace()
        self._receiving: anyio.CancelScope | None = None
        self._stderr = bytearray()
        self._stderr_dropped = False

    async def receive_line(self) -> bytes:
        """Return the next line of standard output, as bytes without the newline.

        Cancelling loses no data.

        Raises:
            anyio.EndOfStream: The output has ended, or the process has exited and all its output was read.
            CutLineError: The line is longer than `max_message_bytes`. The next call returns the next line.
            LineTooLongError: More than `max_line_bytes` came without a newline.
        """
        while True:
            # Buffered lines are returned without waiting. Without this pause a server that writes fast would
            # keep the event loop from running other tasks and from noticing timeouts.
            await self._pace.pause()
            line = self._lines.take()
            if line is None and not await self._receive_more():
                line = self._lines.rest()
                if line is None:
                    raise anyio.EndOfStream
            if line is not None:
                return line

    def send_line(self, line: bytes) -> None:
        """Write a line; queue what the pipe does not take at once. Never blocks, and keeps the order.

        Args:
            line: One line without any newline.

        Raises:
            anyio.BrokenResourceError: The process has exited, has closed its input, or has left more than
                `max_line_bytes` unread.
        """
        if len(self._unsent) + len(line) > self._limits.max_line_bytes:
            raise anyio.BrokenResourceError
        self.send(line + b"\n")

    def stderr_tail(self, redacted: Callable[[str], str] = str) -> str:
        """Return the end of the server's standard error, made safe to print.

        Args:
            redacted: Removes secrets. It is called before the text is cut: half a secret would no longer be
                recognised, and would be shown.
        """
        self._read_stderr()
        limit = self._limits.stderr_tail_bytes
        text = redacted(plain_text(self._stderr.decode("utf-8", "replace")))
        if self._stderr_dropped:
            # The kept bytes may begin in the middle of a secret, so drop the first line.
            _, newline, rest = text.partition("\n")
            text = rest if newline else text[len(text) // 4 :]
        kept = text[max(0, len(text) - limit) :]
        if len(kept) < len(text) and "\n" in kept:
            kept = kept.partition("\n")[2]  # the first line is incomplete
        return kept.strip()

    def _readers(self) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
        return (self._drain_stderr,)

    def _drains(self) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
        return self._drain_stderr, self._discard_stdout

    def _on_exit(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()

    def _read_rest(self) -> None:
        self._read_stderr()

    async def _receive_more(self) -> bool:
        """Wait for output and add it to the buffer; return `False` at its end."""
        if self.exited is None:
            with anyio.CancelScope() as self._receiving:
                await anyio.wait_readable(self._group.stdout)
            self._receiving = None
            self._pace.paused()
        chunk = read_available(self._group.stdout)
        if chunk:
            self._lines.feed(chunk)
        # After the process has exited, an empty pipe counts as the end of the output. A grandchild may hold
        # the pipe open for ever, and waiting for a real end would hang; its output is not the server's.
        return bool(chunk) or (chunk is None and self.exited is None)

    async def _drain_stderr(self) -> None:
        while True:
            await anyio.wait_readable(self._group.stderr)
            if not self._read_stderr():
                return

    def _read_stderr(self) -> bool:
        """Read what is available, up to a limit; return `False` at the end."""
        for _ in range(_STDERR_READS_AT_ONCE):
            chunk = read_available(self._group.stderr)
            if not chunk:
                return chunk is None
            self._stderr += chunk
            dropped = max(0, len(self._stderr) - 2 * self._limits.stderr_tail_bytes)
            self._stderr_dropped |= dropped > 0
            del self._stderr[:dropped]
        return True

    async def _discard_stdout(self) -> None:
        # Otherwise a server that still writes would block on a full pipe and not get to its exit.
        try:
            while read_available(self._group.stdout) != b"":
                await anyio.wait_readable(self._group.stdout)
        except anyio.BusyResourceError:
            return  # another task is still receiving, which drains the pipe
