"""A server process and its pipes, line by line; it knows nothing of MCP.

What it promises, whatever the server does: a line is read in linear time and up to a limit; sending never
blocks, even where the server has stopped reading; standard error is always drained, and its end kept; the
exit is seen at once, though a grandchild may hold the pipes; leaving the block takes bounded time and leaves
no process of the group alive (R3.5-R3.7, P9).
"""

import contextlib
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.abc
from msgspec import Struct, field
from msgspec.structs import replace

from grue.mcp_transport.environment import InheritEnv, inherited
from grue.mcp_transport.lines import LineBuffer, LineTooLongError
from grue.mcp_transport.process_group import ProcessGroup, ProcessRegistry, SpawnError
from grue.mcp_transport.redaction import Redactor
from grue.protocol.safe_text import plain_text
from grue.runtime.pace import Pace
from grue.tool_sessions.connection import Ending, ServerExit
from grue.tool_sessions.server_options import ServerOptions

__all__ = [
    "LineTooLongError",
    "ProcessLimits",
    "ProcessRegistry",
    "ServerExit",
    "ServerProcess",
    "SpawnError",
    "StdioServer",
]


_CHUNK_BYTES = 65_536
_GRACE_AT_LEAST_S = 0.05
"""What a server gets to leave, and again after SIGTERM, where the deadline has passed."""

_KILL_GRACE_S = 5.0
_STDERR_READS_AT_ONCE = 64


class StdioServer(Struct, frozen=True, kw_only=True):
    """A server that is a local program speaking over its standard streams.

    Of `env` its `repr` shows the names only, and of `args` what looks like no secret.

    Attributes:
        command: A path, relative to `cwd` or absolute, or a name on the PATH.
        env: Added to what is inherited of the host's environment, over variables of the same name (R3.2, P7).
        inherit_env: What that is: `all` of it; `no_keys`: all but the keys that grue uses for models and
            observers; `safe`: what programs commonly need; `none`. Without a PATH the command is looked for
            on the host's.
        cwd: Working directory; `None`: the host's.
        options: Time limits and tool choices; the process itself has no use for them.
    """

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    options: ServerOptions = ServerOptions()
    inherit_env: InheritEnv = "all"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Return what may be shown; rich shows this in tracebacks."""
        command, *args = Redactor({**os.environ, **self.env}).words(self.command, self.args)
        hidden = dict.fromkeys(self.env, "[redacted]")
        return [
            ("name", self.name),
            ("command", command),
            ("args", tuple(args)),
            ("env", hidden),
            ("cwd", self.cwd),
        ]

    def __repr__(self) -> str:
        return f"StdioServer({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def environment(self) -> dict[str, str]:
        """Return the process's environment: what it inherits of the host's as it is now, `env` over it."""
        return {**inherited(os.environ, self.inherit_env), **self.env}

    def named_values(self) -> Mapping[str, str]:
        """Return what was configured that may hold secrets, by the names that tell."""
        return self.env


class ProcessLimits(Struct, frozen=True, kw_only=True):
    """How long a server may take to leave, and how much it may say.

    Attributes:
        exit_grace_s: From the end of its input until SIGTERM.
        term_grace_s: From SIGTERM until SIGKILL.
        cancelled_grace_s: Most that either of them is where a cancellation closes the server: whoever pressed
            Ctrl-C waits for it.
        max_line_bytes: Longest line in either direction, and most that waits for a server that does not read.
            A longer one breaks the connection.
        max_message_bytes: Longest message that is read. The request that a longer one answers fails, and the
            session goes on.
        stderr_tail_bytes: How much of the end of its standard error is kept.
    """

    exit_grace_s: float = 2.0
    term_grace_s: float = 2.0
    cancelled_grace_s: float = 0.5
    max_line_bytes: int = 64 * 1024 * 1024
    max_message_bytes: int = 8 * 1024 * 1024
    stderr_tail_bytes: int = 8192

    def when_cancelled(self) -> Self:
        """Return the same with graces of at most `cancelled_grace_s`."""
        return replace(
            self,
            exit_grace_s=min(self.exit_grace_s, self.cancelled_grace_s),
            term_grace_s=min(self.term_grace_s, self.cancelled_grace_s),
        )


def leaves_no_time(exc_type: type[BaseException] | None) -> bool:
    """Say whether the event loop itself is going down with this exception, so that nothing can be awaited."""
    return exc_type is not None and issubclass(exc_type, KeyboardInterrupt | SystemExit | GeneratorExit)


class BackgroundTasks:
    """Tasks that end with a block, whose own exception leaves as it is and not in an ExceptionGroup."""

    def __init__(self) -> None:
        self._group: anyio.abc.TaskGroup

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if not leaves_no_time(exc_type):
            self._group.cancel_scope.shield = True
            self._group.cancel_scope.cancel()
            await self._group.__aexit__(None, None, None)

    def start(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a task until it returns or the block is left. It must not raise."""
        self._group.start_soon(task)


class ServerProcess:
    """A running server. One task enters and leaves it; one task at a time may receive.

    Leaving closes its input, waits, asks with SIGTERM, waits, kills; in every case the whole group is killed
    before the leader is reaped. A cancellation, before or while it is left, shortens what is still to be
    waited for (`ProcessLimits.when_cancelled`); one that pierces shields as well (asyncio's second Ctrl-C)
    has the group killed without waiting.

    Args:
        registry: Knows the process until it is reaped; its owner kills leftovers outside the event loop.
        limits: The time it gets to leave, and how much it may say. Where it is entered under a deadline, each
            grace is cut to a part of what is left, so that there is time for SIGTERM and SIGKILL.

    Raises:
        SpawnError: On entering: command or directory not found, or the system refused.
        MCPConfigError: On entering: this is Windows.
    """

    def __init__(
        self, server: StdioServer, registry: ProcessRegistry, limits: ProcessLimits | None = None
    ) -> None:
        self._server = server
        self._registry = registry
        self._limits = limits or ProcessLimits()
        self._close_by = float("inf")
        self._group: ProcessGroup
        self._tasks = BackgroundTasks()
        self._gone: anyio.Event
        self._lines = LineBuffer(self._limits.max_line_bytes, self._limits.max_message_bytes)
        self._pace = Pace()
        self._receiving: anyio.CancelScope | None = None
        self._unsent = bytearray()
        self._flushing = False
        self._stderr = bytearray()
        self._stderr_dropped = False
        self._ending: Ending | None = None
        self._asked_to_end = False

    async def __aenter__(self) -> Self:
        server = self._server
        # Asked now: once a scope is cancelled, nothing tells when it would have ended.
        self._close_by = anyio.current_effective_deadline()
        self._group = self._registry.spawn(server.command, server.args, server.environment(), server.cwd)
        self._gone = anyio.Event()
        await self._tasks.__aenter__()
        self._tasks.start(self._await_exit)
        self._tasks.start(self._drain_stderr)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if exc_type is not None and issubclass(exc_type, anyio.get_cancelled_exc_class()):
            self._limits = self._limits.when_cancelled()
        try:
            if not leaves_no_time(exc_type):
                await self._leave()
        finally:
            # Does nothing more unless something has pierced the shield, such as a second Ctrl-C.
            self._group.end()
            self._gone.set()
            self._close_descriptors()

    @property
    def pid(self) -> int:
        """The process id, which is its group's and its session's too."""
        return self._group.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, reaped or not."""
        return self._group.exit is not None or self._group.watch.exited_within(0)

    @property
    def exited(self) -> ServerExit | None:
        """How the process ended, or `None` while it runs."""
        return self._group.exit

    @property
    def ending(self) -> Ending | None:
        """What it took to end it; `None` until the block is left, or the process has died before."""
        return "died" if self._ending is None and self.exited else self._ending

    async def wait_exit(self) -> ServerExit:
        """Wait until the process has exited and its group is killed. May be cancelled."""
        await self._gone.wait()
        return self._group.exit or ServerExit()

    async def receive_line(self) -> bytes:
        """Return the next line of standard output without its newline, as bytes: nothing is decoded here.

        Cancelling loses no data.

        Raises:
            anyio.EndOfStream: The output has ended, or the process has exited and all it wrote was received.
            CutLineError: The line is longer than `max_message_bytes`; the next call goes on behind it.
            LineTooLongError: More than `max_line_bytes` came without a newline.
        """
        while True:
            # Lines that are here already must not keep everything else waiting, time limits included.
            await self._pace.pause()
            line = self._lines.take()
            if line is None and not await self._receive_more():
                line = self._lines.rest()
                if line is None:
                    raise anyio.EndOfStream
            if line is not None:
                return line

    def send_line(self, line: bytes) -> None:
        """Write a line, or queue what the server does not take at once. Never blocks; order is kept.

        Args:
            line: Without a newline in or after it.

        Raises:
            anyio.BrokenResourceError: The process has gone, has closed its input, or has left more than
                `max_line_bytes` unread.
        """
        if self._group.exit is not None or self._group.stdin < 0:
            raise anyio.BrokenResourceError
        if len(self._unsent) + len(line) > self._limits.max_line_bytes:
            raise anyio.BrokenResourceError
        self._unsent += line
        self._unsent += b"\n"
        if self._flushing:
            return
        if not self._write():
            raise anyio.BrokenResourceError
        if self._unsent:
            self._flushing = True
            self._tasks.start(self._flush)

    def stderr_tail(self, redacted: Callable[[str], str] = str) -> str:
        """Return the end of what the server wrote to standard error, made safe to print.

        Args:
            redacted: Takes the secrets out; called before the text is cut, which may be within one.
        """
        self._read_stderr()
        limit = self._limits.stderr_tail_bytes
        text = redacted(plain_text(self._stderr.decode("utf-8", "replace")))
        if self._stderr_dropped:
            # It may begin within a secret.
            _, newline, rest = text.partition("\n")
            text = rest if newline else text[len(text) // 4 :]
        kept = text[max(0, len(text) - limit) :]
        if len(kept) < len(text) and "\n" in kept:
            kept = kept.partition("\n")[2]  # the first line is cut
        return kept.strip()

    async def _receive_more(self) -> bool:
        """Wait for output and add it; False at the end of it."""
        if self.exited is None:
            with anyio.CancelScope() as self._receiving:
                await anyio.wait_readable(self._group.stdout)
            self._receiving = None
            self._pace.paused()
        chunk = _read(self._group.stdout)
        if chunk:
            self._lines.feed(chunk)
        # Once the process has exited, "nothing there just now" is the end: a grandchild may hold the pipe
        # open for ever, and what that one writes is not the server's word.
        return bool(chunk) or (chunk is None and self.exited is None)

    def _write(self) -> bool:
        """Write what the pipe takes; False if nobody reads at its other end any more."""
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
                break  # closed while it was waiting; the next sender is told
            self._write()
        self._flushing = False

    async def _await_exit(self) -> None:
        await self._group.watch.wait()
        self._group.end()
        self._gone.set()
        if self._receiving is not None:
            self._receiving.cancel()

    async def _drain_stderr(self) -> None:
        while True:
            await anyio.wait_readable(self._group.stderr)
            if not self._read_stderr():
                return

    def _read_stderr(self) -> bool:
        """Take what is there, up to a bound; False at the end."""
        for _ in range(_STDERR_READS_AT_ONCE):
            chunk = _read(self._group.stderr)
            if not chunk:
                return chunk is None
            self._stderr += chunk
            dropped = max(0, len(self._stderr) - 2 * self._limits.stderr_tail_bytes)
            self._stderr_dropped |= dropped > 0
            del self._stderr[:dropped]
        return True

    async def _discard_stdout(self) -> None:
        # A server that still has something to say must not hang on a full pipe instead of leaving.
        try:
            while _read(self._group.stdout) != b"":
                await anyio.wait_readable(self._group.stdout)
        except anyio.BusyResourceError:
            return  # somebody still receives, and drains it

    async def _leave(self) -> None:
        # The tasks share the body's fate: if that was cancelled, so were they, and their end may say so once
        # more. What closing needs it starts anew, under the shield.
        try:
            await self._tasks.__aexit__(None, None, None)
        except anyio.get_cancelled_exc_class():
            await self._close()
            raise
        await self._close()

    async def _close(self) -> None:
        died = self._group.watch.exited_within(0)
        self._stop_sending()
        try:
            await self._await_end(died=died)
        except anyio.get_cancelled_exc_class():
            # Cancelled, by now or meanwhile: it goes on from where it is, in less time.
            self._limits = self._limits.when_cancelled()
            with anyio.CancelScope(shield=True):
                await self._await_end(died=died)
            raise

    async def _await_end(self, *, died: bool) -> None:
        async with BackgroundTasks() as drains:
            drains.start(self._drain_stderr)
            drains.start(self._discard_stdout)
            if self._ending is None:
                self._ending = "died" if died else await self._end_by_degrees()

    async def _end_by_degrees(self) -> Ending:
        if not self._asked_to_end and await self._exits_within(self._cut(self._limits.exit_grace_s)):
            return "polite"
        self._asked_to_end = True
        self._group.signal(signal.SIGTERM)
        if await self._exits_within(self._cut(self._limits.term_grace_s)):
            return "terminated"
        self._group.signal(signal.SIGKILL)
        await self._exits_within(_KILL_GRACE_S)
        return "killed"

    def _cut(self, grace_s: float) -> float:
        """Return the grace, or half of the time that is left for closing, if that is less."""
        left_s = self._close_by - anyio.current_time()
        return min(grace_s, max(_GRACE_AT_LEAST_S, left_s / 2))

    async def _exits_within(self, limit_s: float) -> bool:
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
        self._read_stderr()
        with contextlib.suppress(RuntimeError):  # the event loop has gone, and its waiters with it
            for fd in (group.stdin, group.stdout, group.stderr, group.watch.descriptor()):
                if fd is not None and fd >= 0:
                    anyio.notify_closing(fd)
        group.close_descriptors()


def _read(fd: int) -> bytes | None:
    """Read what is there: `None` if nothing is just now, empty bytes at the end."""
    try:
        return os.read(fd, _CHUNK_BYTES) if fd >= 0 else b""
    except BlockingIOError:
        return None
    except OSError:
        return b""
