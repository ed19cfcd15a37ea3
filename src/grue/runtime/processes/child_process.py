"""A child process: start it, write to it, and end it in every case, whatever the process does.

- Sending never blocks, even if the process has stopped reading.
- An exit is noticed at once, or within 10 ms if the kernel cannot report it, even if a grandchild still
  holds the pipes open.
- Leaving the block takes bounded time. Then no process of the group is alive, unless stuck in the kernel.
- Output is read in linear time and bounded memory, and other tasks run meanwhile.

Source: R3.5-R3.7, P9
"""

import contextlib
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import anyio

from grue.policies import ProcessEnding
from grue.runtime.large_data import LineBuffer
from grue.runtime.loops.beside_loop import BackgroundTasks, Pace, leaves_no_time
from grue.runtime.processes.limits import ProcessLimits, ServerExit
from grue.runtime.processes.process_group import ProcessGroup, ProcessRegistry
from grue.runtime.safe_text import plain_text
from grue.sandbox.box import Sandbox

CHUNK_BYTES = 65_536  # how much is read from a pipe at once
_GRACE_AT_LEAST_S = 0.05  # a deadline shortens the waits before SIGTERM and SIGKILL to no less than this
_KILL_GRACE_S = 5.0


class _Program(Protocol):
    """A process for `ProcessRegistry.spawn` to start. `environment` returns its whole environment."""

    @property
    def command(self) -> str: ...
    @property
    def args(self) -> Sequence[str]: ...
    @property
    def cwd(self) -> str | None: ...
    @property
    def sandbox(self) -> Sandbox | None: ...
    def environment(self) -> dict[str, str]: ...


class ChildProcess:
    """A running child process, as an async context manager. A subclass reads its output.

    The task that enters the block has to leave it. Leaving takes these steps until the process exits: close
    its standard input and wait, send SIGTERM and wait, send SIGKILL. Each of the two waits has a limit, its
    grace. A deadline cuts a grace to half of the time left, but not below 50 ms. In every case the whole
    group is killed before its leader is reaped.

    Cancellation is what makes leaving hard: in a cancelled scope every `await` raises at once.

    1. If a cancellation makes the task leave the block, `ProcessLimits.when_cancelled` shortens both graces.
    2. If the cancellation arrives while the process is being closed, the wait raises. Closing then starts
       again under a shield, with the shorter graces, from the step that it had reached (`_ending`,
       `_asked_to_exit`): a server that has already got SIGTERM must not get the first wait again.
    3. If the event loop itself is torn down, as by a `KeyboardInterrupt` or a `SystemExit`, nothing can be
       awaited any more. `__aexit__` then kills the group in its `finally`, by a blocking call.

    `own_words`: see `ProcessRegistry.spawn`. Entering raises `SpawnError`, and on Windows `MCPConfigError`.
    """

    def __init__(
        self,
        program: _Program,
        registry: ProcessRegistry,
        limits: ProcessLimits | None = None,
        *,
        own_words: int | None = None,
    ) -> None:
        self._program = program
        self._own_words = own_words
        self._registry = registry
        self._limits = limits or ProcessLimits()
        self._close_by = float("inf")
        self._group: ProcessGroup
        self._tasks = BackgroundTasks()
        self._gone: anyio.Event
        self._unsent = bytearray()
        self._flushing = False
        self._input_ended = False
        self._died: bool | None = None
        self._ending: ProcessEnding = "none"
        self._asked_to_exit = False

    async def __aenter__(self) -> Self:
        program = self._program
        # Read the deadline now: once a scope is cancelled, anyio reports -inf instead of its deadline.
        self._close_by = anyio.current_effective_deadline()
        env = program.environment()
        self._group = self._registry.spawn(
            program.command, program.args, env, program.cwd, program.sandbox, self._own_words
        )
        self._gone = anyio.Event()
        await self._tasks.__aenter__()
        self._tasks.start(self._await_exit)
        for reader in self._readers():
            self._tasks.start(reader)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if exc_type is not None and not issubclass(exc_type, Exception):
            self._limits = self._limits.when_cancelled()  # the task is cancelled, or the program ends
        try:
            if not leaves_no_time(exc_type):
                await self._leave()
        finally:
            # Without an `await`: if the event loop is torn down, `_leave` was skipped or interrupted.
            self._group.end()
            self._gone.set()
            self._close_descriptors()

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its process group and of its POSIX session."""
        return self._group.pid

    @property
    def has_ended(self) -> bool:
        """`True` if the process has ended, reaped or not."""
        return self._group.exit is not None or self._group.watch.exited_within(0)

    @property
    def exited(self) -> ServerExit | None:
        """How the process ended; `None` until it is reaped."""
        return self._group.exit

    @property
    def ending(self) -> ProcessEnding:
        """How the process ended. `none`: it still runs. `died`: it ended without the steps of a close."""
        return "died" if self._ending == "none" and self.exited else self._ending

    def refusals(self, text: str, *, died: bool = False) -> tuple[str, ...]:
        """Return what `ProcessGroup.refusals` says about accesses that the sandbox seems to have refused."""
        return self._group.refusals(text, died=died)

    async def wait_exit(self) -> ServerExit:
        """Wait until the process has exited and its group is killed; return how it ended. Safe to cancel."""
        await self._gone.wait()
        return self._group.exit or ServerExit()

    def send(self, data: bytes) -> None:
        """Write to the process's standard input. What the pipe does not take at once is queued.

        Raises `anyio.BrokenResourceError` if the pipe is closed or broken, or the process has exited.
        """
        if self._group.exit is not None or self._group.stdin < 0:
            raise anyio.BrokenResourceError
        self._unsent += data
        if self._flushing:
            return
        if not self._write():
            raise anyio.BrokenResourceError
        if self._unsent:
            self._flushing = True
            self._tasks.start(self._flush)

    def ask_to_exit(self) -> None:
        """Ask the process to exit, by closing its standard input.

        If it exits only after this call, `ending` is not `died` after the block.
        """
        self._note_death()
        self.end_input()

    def end_input(self) -> None:
        """Close the process's standard input, once everything that is queued has been written."""
        self._input_ended = True
        if not self._flushing:
            self._stop_sending()

    def _readers(self) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
        """Return functions that read the process's output while it runs. Each is run as a task."""
        raise NotImplementedError

    def _drains(self) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
        """Return functions that read the pipes after `_readers` have stopped, while the process ends."""
        return self._readers()

    def _on_exit(self) -> None:
        """Called if the process exits before the block is left, once its group is killed. For subclasses."""

    def _read_rest(self) -> None:
        """Read what is left in the process's pipes, before they are closed. Must not block."""

    def _write(self) -> bool:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._group.stdin, self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()
            self._group.close_stdin()
            return False
        return True

    async def _flush(self) -> None:
        while self._unsent:
            try:
                await anyio.wait_writable(self._group.stdin)
            except (anyio.ClosedResourceError, OSError, ValueError):
                break  # the input pipe is closed or broken; the next `send` raises the error
            self._write()
        self._flushing = False
        if self._input_ended:
            self._stop_sending()

    async def _await_exit(self) -> None:
        await self._group.watch.wait()
        self._group.end()
        self._gone.set()
        self._on_exit()

    async def _leave(self) -> None:
        # End the tasks that read: `_await_end` starts new ones, and two tasks must not read the same pipe.
        # Close the process even if a cancellation interrupts this.
        try:
            await self._tasks.__aexit__(None, None, None)
        except anyio.get_cancelled_exc_class():
            await self._close()
            raise
        await self._close()

    async def _close(self) -> None:
        died = self._note_death()
        self._stop_sending()
        try:
            await self._await_end(died=died)
        except anyio.get_cancelled_exc_class():
            # Raise the cancellation later. Otherwise the process would be killed without a SIGTERM first.
            self._limits = self._limits.when_cancelled()
            with anyio.CancelScope(shield=True):
                await self._await_end(died=died)
            raise

    def _note_death(self) -> bool:
        """Return whether the process had already exited when this method was first called."""
        if self._died is None:
            self._died = self._group.watch.exited_within(0)
        return self._died

    async def _await_end(self, *, died: bool) -> None:
        async with BackgroundTasks() as drains:
            for drain in self._drains():
                drains.start(drain)
            if self._ending == "none":
                self._ending = "died" if died else await self._terminate_in_steps()

    async def _terminate_in_steps(self) -> ProcessEnding:
        if not self._asked_to_exit and await self._exited_within(self._shortened(self._limits.exit_grace_s)):
            return "polite"
        self._asked_to_exit = True
        self._group.signal(signal.SIGTERM)
        if await self._exited_within(self._shortened(self._limits.term_grace_s)):
            return "terminated"
        self._group.signal(signal.SIGKILL)
        await self._exited_within(_KILL_GRACE_S)
        return "killed"

    def _shortened(self, grace_s: float) -> float:
        left_s = self._close_by - anyio.current_time()
        return min(grace_s, max(_GRACE_AT_LEAST_S, left_s / 2))

    async def _exited_within(self, limit_s: float) -> bool:
        with anyio.move_on_after(limit_s):
            await self._group.watch.wait()
        return self._group.watch.exited_within(0)

    def _stop_sending(self) -> None:
        self._unsent.clear()
        if self._group.stdin >= 0:
            anyio.notify_closing(self._group.stdin)
            self._group.close_stdin()

    def _close_descriptors(self) -> None:
        group = self._group
        self._read_rest()
        # `notify_closing` raises RuntimeError if the event loop is closed. Then no task waits on descriptors.
        with contextlib.suppress(RuntimeError):
            for fd in (group.stdin, group.stdout, group.stderr, group.watch.descriptor()):
                if fd is not None and fd >= 0:
                    anyio.notify_closing(fd)
        group.close_descriptors()


def read_available(fd: int) -> bytes | None:
    """Read up to `CHUNK_BYTES`; `None`: no bytes have arrived yet; `b""`: the pipe has ended or is closed."""
    try:
        return os.read(fd, CHUNK_BYTES) if fd >= 0 else b""
    except BlockingIOError:
        return None
    except OSError:
        return b""


_STDERR_READS_AT_ONCE = 64


class ServerProcess(ChildProcess):
    """A running server process, which exchanges lines. Only one task at a time may receive."""

    def __init__(
        self, program: _Program, registry: ProcessRegistry, limits: ProcessLimits | None = None
    ) -> None:
        super().__init__(program, registry, limits)
        self._lines = LineBuffer(self._limits.max_line_bytes, self._limits.max_message_bytes)
        self._pace = Pace()
        self._receiving: anyio.CancelScope | None = None
        self._stderr = bytearray()
        self._stderr_dropped = False

    async def receive_line(self) -> bytes:
        """Return the next line of standard output without the newline. Cancelling loses no data.

        Raises `anyio.EndOfStream`, `LineTooLongError`, or `CutLineError`, after which reading can go on.
        """
        while True:
            # Without this pause, a server that writes fast would keep other tasks and timeouts from running.
            await self._pace.pause()
            line = self._lines.take()
            if line is None and not await self._receive_more():
                line = self._lines.rest()
                if line is None:
                    raise anyio.EndOfStream
            if line is not None:
                return line

    def send_line(self, line: bytes) -> None:
        """Send a line, given without its newline. Raises as `send` does, also if too much is queued."""
        if len(self._unsent) + len(line) > self._limits.max_line_bytes:
            raise anyio.BrokenResourceError
        self.send(line + b"\n")

    def stderr_tail(self, redacted: Callable[[str], str] = str) -> str:
        """Return the end of the server's standard error, printable, after `redacted` has removed secrets."""
        self._read_stderr()
        limit = self._limits.stderr_tail_bytes
        text = redacted(plain_text(self._stderr.decode("utf-8", "replace")))
        if self._stderr_dropped:
            # The kept bytes may begin within a secret, so drop the first line, or a quarter of the only line.
            _, newline, rest = text.partition("\n")
            text = rest if newline else text[len(text) // 4 :]
        kept = text[max(0, len(text) - limit) :]
        if len(kept) < len(text) and "\n" in kept:
            kept = kept.partition("\n")[2]
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
        if self.exited is None:
            with anyio.CancelScope() as self._receiving:
                await anyio.wait_readable(self._group.stdout)
            self._receiving = None
            self._pace.paused()
        chunk = read_available(self._group.stdout)
        if chunk:
            self._lines.feed(chunk)
        # After the exit, an empty pipe counts as the end of the output: a grandchild may hold the pipe open
        # for ever, and its output is not needed.
        return bool(chunk) or (chunk is None and self.exited is None)

    async def _drain_stderr(self) -> None:
        while True:
            await anyio.wait_readable(self._group.stderr)
            if not self._read_stderr():
                return

    def _read_stderr(self) -> bool:
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
        # Empty the pipe: if it gets full, a server that still writes blocks and never exits.
        try:
            while read_available(self._group.stdout) != b"":
                await anyio.wait_readable(self._group.stdout)
        except anyio.BusyResourceError:
            return  # another task is still receiving, which drains the pipe


_READS_AT_END = 64  # more chunks than a full pipe holds; limited, because some process may go on writing


class Capture:
    """Keeps at most `max_bytes` of a stream's `size` bytes: half from its beginning, half from its end."""

    def __init__(self, max_bytes: int) -> None:
        self.size = 0
        self._half = max_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, chunk: bytes) -> None:
        """Add the next bytes."""
        self.size += len(chunk)
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[max(0, room) :]
        del self._tail[: max(0, len(self._tail) - self._half)]

    @property
    def dropped(self) -> int:
        """How many bytes in the middle were not kept."""
        return self.size - len(self._head) - len(self._tail)

    @property
    def parts(self) -> tuple[bytes, ...]:
        """The captured bytes: `(all,)` if nothing was dropped, otherwise `(beginning, end)`."""
        head, tail = bytes(self._head), bytes(self._tail)
        return (head, tail) if self.dropped else (head + tail,)


class Command(ChildProcess):
    """A running command: enter it, call `finish`, leave it. Keeps up to `max_output_bytes` of each stream."""

    def __init__(
        self,
        program: _Program,
        registry: ProcessRegistry,
        limits: ProcessLimits | None = None,
        *,
        own_words: int | None = None,
        max_output_bytes: int = 30_000,
        max_written_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        super().__init__(program, registry, limits, own_words=own_words)
        self.stdout = Capture(max_output_bytes)
        self.stderr = Capture(max_output_bytes)
        self._max_written_bytes = max_written_bytes
        self._over = anyio.Event()
        self._pace = Pace()

    async def finish(self, stdin: bytes = b"") -> bool:
        """Send `stdin`, and wait until the command exits (`True`) or has written too much (`False`)."""
        # `end_input` below asks the command to exit. `__aexit__` does not ask again: it begins with SIGTERM.
        self._asked_to_exit = True
        if stdin:
            # A command may close its input without reading it.
            with contextlib.suppress(anyio.BrokenResourceError):
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

    def _on_exit(self) -> None:
        self._over.set()

    async def _capture(self, fd: int, capture: Capture) -> None:
        while (chunk := read_available(fd)) != b"":
            if chunk is None:
                await anyio.wait_readable(fd)
                self._pace.paused()
                continue
            capture.add(chunk)
            if self.stdout.size + self.stderr.size > self._max_written_bytes:
                self._over.set()
            # If the process writes fast, the pipe is never empty, and only this line lets other tasks run.
            await self._pace.pause()

    def _read_rest(self) -> None:
        for fd, capture in ((self._group.stdout, self.stdout), (self._group.stderr, self.stderr)):
            for _ in range(_READS_AT_END):
                chunk = read_available(fd)
                if not chunk:
                    break
                capture.add(chunk)
