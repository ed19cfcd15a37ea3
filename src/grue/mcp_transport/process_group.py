"""Process groups of our own: started under guard, ended as a whole, reaped once.

The order at the end is what makes the rest safe. While the leader has exited but is not reaped, its id cannot
be given to another process, and neither can its group's; so the group is killed *first*, whether the leader
left politely or not, then what has left the group (`descendants.py`), then the guard is told, and only then
is the leader reaped. Nothing waits earlier.

Everything here is plain: no event loop, from any thread. That is what a `finally` outside `anyio.run` needs
after a second Ctrl-C has torn the loop down.
"""

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from grue.errors import MCPConfigError, MCPError
from grue.mcp_transport.descendants import Descendants
from grue.mcp_transport.exit_watch import ExitWatch
from grue.mcp_transport.guard import guard
from grue.mcp_transport.process_table import live_members
from grue.tool_sessions.connection import ServerExit

_SHELL = "/bin/sh"
_SHIM = 'read -r _ && exec "$@"'
"""Wait for a line before becoming the server, so that the group is under guard before the server runs. `read`
takes a pipe byte by byte: what follows the line is the server's. If the host dies first, so does this."""

_DEATH_S = 5.0
"""How long a killed process may take to go; only one stuck in the kernel takes longer than milliseconds."""

_DESCENDANTS_S = 1.0
"""How long what has left the group is searched for and killed: a process that keeps forking could go on."""


class SpawnError(MCPError):
    """The process could not be started at all.

    Attributes:
        missing: The command that was not found, or `None` if something else was wrong.
    """

    def __init__(self, message: str, *, missing: str | None = None) -> None:
        super().__init__(message)
        self.missing = missing


class ProcessGroup:
    """A process in a session of its own, with everything that it starts. Made by `ProcessRegistry.spawn`."""

    def __init__(self, leader: subprocess.Popen[bytes], registry: "ProcessRegistry") -> None:
        self._leader = leader
        self._registry = registry
        self._lock = threading.RLock()  # a signal handler may come in while this thread holds it
        self._exit: ServerExit | None = None
        self.pid = leader.pid
        self._descendants = Descendants(leader.pid)
        self.watch = ExitWatch(leader.pid)

    @property
    def exit(self) -> ServerExit | None:
        """How the leader ended; `None` until the group is killed and the leader reaped."""
        return self._exit

    @property
    def stdin(self) -> int:
        """Our end of the leader's standard input; -1 once closed."""
        return _fileno(self._leader.stdin)

    @property
    def stdout(self) -> int:
        """Our end of its standard output; -1 once closed."""
        return _fileno(self._leader.stdout)

    @property
    def stderr(self) -> int:
        """Our end of its standard error; -1 once closed."""
        return _fileno(self._leader.stderr)

    def signal(self, number: int) -> None:
        """Send a signal to the whole group, unless it has ended."""
        with self._lock:
            self._signal(number)

    def end(self, patience_s: float = _DEATH_S) -> ServerExit | None:
        """Kill what is left of the group and what has left it, reap the leader, and wait for the others (P9).

        Safe to repeat, from any thread.

        Returns:
            How the leader ended, or `None` if it was still not gone after `patience_s` seconds.
        """
        with self._lock:
            if self._exit is None:
                self._signal(signal.SIGKILL)
                if not self.watch.exited_within(patience_s):
                    return None
                self._descendants.kill(_DESCENDANTS_S)
                guard.release(self.pid)
                self._exit = _exit_of(self._leader.wait())
                _await_empty(self.pid)
                self._registry._remove(self)  # noqa: SLF001 - the other half of one pair
            return self._exit

    def close_descriptors(self) -> None:
        """Close the pipes and the watch. No event loop may be using them any more."""
        for pipe in (self._leader.stdin, self._leader.stdout, self._leader.stderr):
            if pipe is not None:
                pipe.close()
        self.watch.close()

    def close_stdin(self) -> None:
        """Let the leader see the end of its input."""
        if self._leader.stdin is not None:
            self._leader.stdin.close()

    def disown(self) -> None:
        """In a forked child: let go of the parent's process without touching it."""
        self._leader.returncode = 0
        self.close_descriptors()

    def _signal(self, number: int) -> None:
        if self._leader.returncode is not None:
            return  # reaped: the number may be another group's by now
        # Darwin says EPERM of a group that has only a zombie left.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


class ProcessRegistry:
    """The groups of one run, so that what is left of it can be killed without an event loop (R3.5, R3.7, P9).

    Each run has its own: two threads that run two turns do not kill each other's servers. Thread-safe.
    """

    def __init__(self) -> None:
        self._groups: dict[int, ProcessGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def spawn(
        self, command: str, args: tuple[str, ...], env: Mapping[str, str], cwd: str | None
    ) -> ProcessGroup:
        """Start `command` in a session of its own, with pipes for its standard streams, under guard.

        Args:
            command: A path, relative to `cwd` or absolute, or a name to look for on `env`'s PATH, or
                on the host's if `env` has none.
            args: What follows it.
            env: The whole environment of the process.
            cwd: Its working directory; `None`: the host's.

        Raises:
            SpawnError: The command or the directory is not there, or the system refused.
            MCPConfigError: This is Windows.
        """
        if os.name != "posix":
            raise MCPConfigError("grue's stdio servers need Linux or macOS.")
        argv = (_resolve(command, env, cwd), *args)
        shim = _shell_keeps(env)
        try:
            leader = subprocess.Popen(
                (_SHELL, "-c", _SHIM, _SHELL, *argv) if shim else argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise SpawnError(f"{command}: {getattr(error, 'strerror', None) or error}") from error
        return self._admit(leader, released=not shim)

    def kill_now(self) -> None:
        """Kill every group without waiting; whoever waits for their exit reaps them.

        May be called from a signal handler. That is the sound answer to a second Ctrl-C: an exception raised
        by a handler can strike in the middle of the event loop's own code, and lose a task's wake-up.
        """
        for group in list(self._groups.values()):
            group.signal(signal.SIGKILL)

    def kill_leftovers(self, *, loop_running: bool = False) -> int:
        """Kill and reap every group still registered, and return how many there were.

        Args:
            loop_running: The event loop that opened them may still run, in another thread: their descriptors
                are left to it.
        """
        groups = list(self._groups.values())
        self.kill_now()
        for group in groups:
            group.end()
            if not loop_running:
                group.close_descriptors()
        return len(groups)

    def _admit(self, leader: subprocess.Popen[bytes], *, released: bool) -> ProcessGroup:
        group = ProcessGroup(leader, self)
        self._groups[group.pid] = group
        _everywhere[group.pid] = group
        guard.watch(group.pid)
        for fd in (group.stdin, group.stdout, group.stderr):
            os.set_blocking(fd, False)
        if not released:
            with contextlib.suppress(BrokenPipeError):
                os.write(group.stdin, b"\n")
        return group

    def _remove(self, group: ProcessGroup) -> None:
        self._groups.pop(group.pid, None)
        _everywhere.pop(group.pid, None)


_everywhere: dict[int, ProcessGroup] = {}
"""The groups of all registries, for the exit of the interpreter and for forked children."""


def _kill_everything() -> None:
    for group in list(_everywhere.values()):
        group.end()
        group.close_descriptors()


def _disown_everything() -> None:
    groups = list(_everywhere.values())
    _everywhere.clear()
    for group in groups:
        group._registry._groups.clear()  # noqa: SLF001 - a forked child has a copy, never the processes
        group.disown()


def _await_empty(pgid: int) -> None:
    """Wait until the members of a killed group are gone: they die a moment after the signal was sent.

    The kernel does not give the group's id away before that, though its leader is reaped.
    """
    deadline = time.monotonic() + _DEATH_S
    pause_s = 0.0002
    while _has_members(pgid) and time.monotonic() < deadline:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.02)


def _has_members(pgid: int) -> bool:
    try:
        os.killpg(pgid, 0)
    except (ProcessLookupError, PermissionError):  # Darwin says the latter of zombies
        return False
    # Orphaned zombies count as members until init reaps them, which in some containers nobody does.
    return sys.platform != "linux" or bool(live_members(pgid))


def _fileno(pipe: IO[bytes] | None) -> int:
    return -1 if pipe is None or pipe.closed else pipe.fileno()


def _exit_of(returncode: int) -> ServerExit:
    if returncode >= 0:
        return ServerExit(status=returncode)
    try:
        return ServerExit(signal=signal.Signals(-returncode).name)
    except ValueError:  # a real-time signal has no name
        return ServerExit(signal=f"signal {-returncode}")


def _resolve(command: str, env: Mapping[str, str], cwd: str | None) -> str:
    """Return the program's absolute path, found before the spawn so that its absence has a clear error."""
    base = Path(cwd or ".")
    if not base.is_dir():
        raise SpawnError(f"The working directory {cwd} does not exist.")
    if "/" in command:
        path = base / command
        found = str(path) if path.is_file() and os.access(path, os.X_OK) else None
    else:
        found = shutil.which(command, path=env.get("PATH", os.environ.get("PATH", os.defpath)))
    if found is None:
        raise SpawnError(f"The command {command!r} was not found.", missing=command)
    return str(Path(found).absolute())


def _shell_keeps(env: Mapping[str, str]) -> bool:
    # A POSIX shell passes on only variables that it could have set itself. The process is to have the whole
    # environment (R3.2), so with other names in it the server starts directly, under guard a moment later.
    return os.access(_SHELL, os.X_OK) and all(name.isidentifier() and name.isascii() for name in env)


atexit.register(_kill_everything)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_everything)
