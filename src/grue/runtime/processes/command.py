"""A command that runs to its end by itself: a child process whose output is captured.

Of each stream the beginning and the end are kept, up to a limit. A command that writes without end is
reported by `finish`, so that its owner can end it. Reading yields to other tasks, however fast the command
writes.
"""

import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import anyio

from grue.runtime.loops.pace import Pace
from grue.runtime.processes.child_process import ChildProcess, Program, read_available
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.processes.process_group import ProcessRegistry

_READS_AT_END = 64
"""How many chunks are read after the exit. A pipe holds few; an escaped process may go on writing."""


class Capture:
    """The beginning and the end of a stream of bytes.

    Args:
        max_bytes: How much is kept, half of it from each end.

    Attributes:
        size: How many bytes there were.
    """

    def __init__(self, max_bytes: int) -> None:
        self.size = 0
        self._half = max(1, max_bytes // 2)
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, chunk: bytes) -> None:
        """Add the next bytes."""
        self.size += len(chunk)
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[max(0, room) :]
        del self._tail[: -self._half]

    @property
    def dropped(self) -> int:
        """How many bytes in the middle were not kept."""
        return self.size - len(self._head) - len(self._tail)

    @property
    def parts(self) -> tuple[bytes, ...]:
        """The bytes that were kept: all of them, or the beginning and the end."""
        head, tail = bytes(self._head), bytes(self._tail)
        return (head, tail) if self.dropped else (head + tail,)


class Command(ChildProcess):
    """A running command. Enter it, call `finish`, leave it; then no process of its group is alive.

    Args:
        program: What to start.
        registry: Holds the process until it is reaped.
        limits: Time limits for ending it.
        max_output_bytes: How much of each stream is kept.
        max_written_bytes: How much it may write to both together before `finish` gives up.

    Attributes:
        stdout: What it has written to standard output.
        stderr: What it has written to standard error.
    """

    def __init__(
        self,
        program: Program,
        registry: ProcessRegistry,
        limits: ProcessLimits | None = None,
        *,
        max_output_bytes: int = 30_000,
        max_written_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        super().__init__(program, registry, limits)
        self.stdout = Capture(max_output_bytes)
        self.stderr = Capture(max_output_bytes)
        self._max_written_bytes = max_written_bytes
        self._over = anyio.Event()
        self._pace = Pace()

    @property
    def wrote_too_much(self) -> bool:
        """Whether it has written more than `max_written_bytes`."""
        return self.stdout.size + self.stderr.size > self._max_written_bytes

    async def finish(self, stdin: bytes = b"") -> bool:
        """Send `stdin` and wait for the exit. Safe to cancel; leaving then ends the command.

        Returns:
            Whether it has exited. If not, it has written too much.
        """
        # Its input ends here, so waiting for a polite exit at the end of the input makes no sense later on.
        # Leaving begins with SIGTERM.
        self._asked_to_exit = True
        if stdin:
            with contextlib.suppress(anyio.BrokenResourceError):  # it does not read its input, which is fine
                self.send(stdin)
        self.end_input()
        await self._over.wait()
        self._read_rest()
        return self.exited is not None

    def _readers(self) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
        return (
            lambda: self._capture(self._group.stdout, self.stdout),
            lambda: self._capture(self._group.stderr, self.stderr),
        )

    def _drains(self) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
        return self._readers()

    def _on_exit(self) -> None:
        self._over.set()

    async def _capture(self, fd: int, capture: Capture) -> None:
        while (chunk := read_available(fd)) != b"":
            if chunk is None:
                await anyio.wait_readable(fd)
                self._pace.paused()
                continue
            capture.add(chunk)
            if self.wrote_too_much:
                self._over.set()
            # A fast writer keeps the pipe full, so this loop would otherwise never wait.
            await self._pace.pause()

    def _read_rest(self) -> None:
        for fd, capture in ((self._group.stdout, self.stdout), (self._group.stderr, self.stderr)):
            for _ in range(_READS_AT_END):
                chunk = read_available(fd)
                if not chunk:
                    break
                capture.add(chunk)
