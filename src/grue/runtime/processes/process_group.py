"""Process groups: start a server as the leader of its own group, end the whole group, reap the leader.

The order of the steps of `ProcessGroup.end` is what makes them safe:

1. Kill the group, even if the leader has exited by itself, since its children may still run.
2. Wait for the leader's exit without reaping it.
3. Kill the processes that have left the group (`descendants.py`).
4. Tell the guard (`guard.py`) to forget the group.
5. Reap the leader.
6. Wait until the other members of the group are gone.

The kernel does not reuse the id of a zombie or its group. If the leader were reaped before step 1, the kill
could hit an unrelated group with the same id; if it were reaped before step 4 and the host then died, the
guard could kill such a group. So nothing may wait for or poll the leader earlier: an `ExitWatch` sees its
exit.

Everything here except `ExitWatch.wait` is blocking code that needs no event loop and works from any thread,
even after a Ctrl-C has torn the loop down.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import io
import os
import select
import shlex
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

import anyio

from grue.errors import MCPConfigError, MCPError, SandboxError
from grue.runtime.files import os_cause
from grue.runtime.processes.descendants import Descendants, live_members
from grue.runtime.processes.guard import guard
from grue.runtime.processes.limits import ServerExit
from grue.sandbox.box import Sandbox

if TYPE_CHECKING:
    from grue.sandbox.launch import Boxed


_POLL_EVERY_S = 0.01


class _Source(Protocol):
    @property
    def closed(self) -> bool: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...


class ExitWatch:
    """Tells when one child of this process has exited. No other code may reap that child meanwhile."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen = False
        self._source: _Source | None = None
        try:
            self._source = _open_source(pid)
        except ProcessLookupError:
            self._seen = True  # the child has already exited: kqueue raises this error then

    async def wait(self) -> None:
        """Return when the process has exited. May be cancelled and called again."""
        while not self.exited_within(0):
            if self._source is None:
                await anyio.sleep(_POLL_EVERY_S)
            else:
                await anyio.wait_readable(self._source.fileno())

    def exited_within(self, limit_s: float) -> bool:
        """Block for at most `limit_s` seconds; return whether the exit was seen."""
        if self._seen:
            return True
        if self._source is None:
            self._seen = _poll_exit(self._pid, time.monotonic() + limit_s)
        elif not self._source.closed:
            poll = select.poll()
            poll.register(self._source.fileno(), select.POLLIN)
            self._seen = bool(poll.poll(limit_s * 1000))
        return self._seen

    def descriptor(self) -> int | None:
        """Return the descriptor that `wait` waits on; `None`: `wait` polls instead, or `close` was called."""
        return None if self._source is None or self._source.closed else self._source.fileno()

    def close(self) -> None:
        """Close the descriptor. A second call does nothing."""
        if self._source is not None:
            self._source.close()


def _open_source(pid: int) -> _Source | None:
    if sys.platform == "linux":
        try:
            return io.FileIO(os.pidfd_open(pid))
        except OSError:  # an old kernel (before 5.3), a sandbox that forbids the call, no descriptor left
            return None
    else:
        events = select.kqueue()
        change = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
        try:
            events.control([change], 0)
        except OSError:
            events.close()
            raise
        return events


def _poll_exit(pid: int, deadline: float) -> bool:
    while True:
        try:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
                return True
        except ChildProcessError:  # the host ignores SIGCHLD, so the kernel has reaped the process
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_EVERY_S)


_SHELL = "/bin/sh"
_SHIM = 'read -r _ && exec "$@"'
"""A shell script that waits for one line and then becomes the server with `exec`.

The guard has to know the group before the server runs. `read` takes a pipe byte by byte, so everything after
the line is left for the server. If the host dies first, the shell exits at the end of the pipe.
"""

_DEATH_S = 5.0  # a killed process ends within milliseconds, unless it is stuck in the kernel
_DESCENDANTS_S = 1.0  # time to kill processes that left the group: one that keeps forking may escape for ever


class SpawnError(MCPError):
    """The process could not be started. `missing`: the command, if it was not found. `remedy`: advice."""

    def __init__(self, message: str, *, missing: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.missing = missing
        self.remedy = remedy


class ProcessGroup:
    """A process group and its leader, which also leads a POSIX session of its own."""

    def __init__(
        self, leader: subprocess.Popen[bytes], registry: ProcessRegistry, boxed: Boxed | None = None
    ) -> None:
        self._leader = leader
        self._boxed = boxed
        self._registry = registry
        self._lock = threading.RLock()  # reentrant: a signal handler may run in a thread that holds the lock
        self.exit: ServerExit | None = None  # set when the group is killed and the leader reaped
        self.pid = leader.pid
        self._descendants = Descendants(leader.pid)
        self.watch = ExitWatch(leader.pid)

    @property
    def stdin(self) -> int:
        """Our end of the leader's standard input; -1 once closed."""
        return _fileno(self._leader.stdin)

    @property
    def stdout(self) -> int:
        """Our end of the leader's standard output; -1 once closed."""
        return _fileno(self._leader.stdout)

    @property
    def stderr(self) -> int:
        """Our end of the leader's standard error; -1 once closed."""
        return _fileno(self._leader.stderr)

    def refusals(self, text: str, *, died: bool = False) -> tuple[str, ...]:
        """Return up to five sentences about accesses that the leader's box (a sandbox) seems to have refused.

        `text`: what the leader wrote. `died`: the leader itself has failed, and not only a tool call.
        """
        return () if self._boxed is None else self._boxed.refusals(text, died=died)

    def signal(self, number: int) -> None:
        """Send a signal to the whole group, unless the group has ended."""
        with self._lock:
            if self._leader.returncode is not None:
                return  # the group has ended, and another one may have its id by now
            # Darwin raises EPERM if a zombie is all that is left of the group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def end(self) -> ServerExit | None:
        """Kill the group and what `Descendants` finds, reap the leader, and wait until the group is empty.

        Blocks for a limited time. Safe to repeat, in any thread. `None`: the leader did not end in that time.

        Source: P9
        """
        with self._lock:
            if self.exit is None:
                self.signal(signal.SIGKILL)
                if not self.watch.exited_within(_DEATH_S):
                    return None
                self._descendants.kill(_DESCENDANTS_S)
                guard.release(self.pid)
                self.exit = _exit_of(self._leader.wait())
                _await_empty(self.pid)
                self._registry._remove(self)  # noqa: SLF001 - the other half of one pair
                if self._boxed is not None:
                    _end_box(self._boxed)
            return self.exit

    def close_descriptors(self) -> None:
        """Close the pipes and the exit watch. Call it only when no event loop waits on them."""
        for pipe in (self._leader.stdin, self._leader.stdout, self._leader.stderr):
            if pipe is not None:
                pipe.close()
        self.watch.close()

    def close_stdin(self) -> None:
        """Close the leader's standard input, which asks it to exit."""
        if self._leader.stdin is not None:
            self._leader.stdin.close()

    def disown(self) -> None:
        """In a forked child, close this copy's descriptors. The parent's process group goes on running."""
        self._leader.returncode = 0
        self.close_descriptors()
        if self._boxed is not None and self._boxed.gate is not None:
            self._boxed.gate.disown()


class ProcessRegistry:
    """The process groups of one owner, such as an episode, which must not kill another's. Thread-safe.

    Source: R3.5, R3.7, P9
    """

    def __init__(self) -> None:
        self._groups: dict[int, ProcessGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def spawn(
        self,
        command: str,
        args: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        sandbox: Sandbox | None = None,
        own_words: int | None = None,
    ) -> ProcessGroup:
        """Start `command` in its own POSIX session, with pipes for its standard streams, and register it.

        `command` is an absolute path, a path relative to `cwd` (`None`: the host's), or a name on the `PATH`
        in `env` or, if `env` has none, on the host's. `env` is the whole environment. The first
        `own_words` words of the command line (`None`: all) are the user's, not a model's: the `sandbox` gives
        access to the files that they name.

        Raises `SpawnError`, and on Windows `MCPConfigError`.
        """
        if os.name != "posix":
            raise MCPConfigError("grue's stdio servers need Linux or macOS.")
        program = _resolve(command, env, cwd)
        own, *own_args = (program, *args)[:own_words] or (_SHELL,)
        boxed = None if sandbox is None else _in_box(sandbox, own, own_args, env, cwd)
        env = env if boxed is None else boxed.env
        shim = _shell_keeps(env)

        started: list[subprocess.Popen[bytes]] = []

        def start() -> subprocess.Popen[bytes]:
            leader = subprocess.Popen(
                (_SHELL, "-c", _SHIM, _SHELL, program, *args) if shim else (program, *args),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=env,
                cwd=cwd or None,
                start_new_session=True,
            )
            started.append(leader)
            return leader

        try:
            leader = start() if boxed is None else boxed.run(start)
        except BaseException as error:
            for each in started:  # a KeyboardInterrupt, or another exception of a signal handler
                with each:
                    each.kill()
            if boxed is not None:
                _end_box(boxed)
            if not isinstance(error, OSError | ValueError | SandboxError):
                raise
            raise SpawnError(f"{command}: {os_cause(error)}", remedy=_more_room(error)) from error
        return self._admit(leader, boxed, released=not shim)

    def kill_now(self) -> None:
        """Send SIGKILL to every group. Wait only for groups that another thread is ending.

        A signal handler may call this.
        """
        for group in list(self._groups.values()):
            group.signal(signal.SIGKILL)

    def kill_leftovers(self, *, loop_running: bool = False) -> int:
        """End all groups, and return how many. Close their descriptors, unless a loop may wait on them."""
        groups = list(self._groups.values())
        self.kill_now()
        for group in groups:
            group.end()
            if not loop_running:
                group.close_descriptors()
        return len(groups)

    def _admit(self, leader: subprocess.Popen[bytes], boxed: Boxed | None, *, released: bool) -> ProcessGroup:
        group = ProcessGroup(leader, self, boxed)
        self._groups[group.pid] = group
        _all_groups[group.pid] = group
        guard.watch(group.pid)
        if boxed is not None:
            boxed.limit(group.pid)
        for fd in (group.stdin, group.stdout, group.stderr):
            os.set_blocking(fd, False)
        if not released:
            with contextlib.suppress(BrokenPipeError):
                os.write(group.stdin, b"\n")
        if boxed is not None:
            boxed.released()
        return group

    def _remove(self, group: ProcessGroup) -> None:
        self._groups.pop(group.pid, None)
        _all_groups.pop(group.pid, None)


_all_groups: dict[int, ProcessGroup] = {}  # of all registries; those that are left at exit are killed


def _kill_all() -> None:
    for group in list(_all_groups.values()):
        group.end()
        group.close_descriptors()


def _disown_all() -> None:
    groups = list(_all_groups.values())
    _all_groups.clear()
    for group in groups:
        group._registry._groups.clear()  # noqa: SLF001 - the processes are the parent's
        group.disown()


def _await_empty(pgid: int) -> None:
    """Wait up to `_DEATH_S` until a killed group has no live member. Its members keep its id from reuse."""
    deadline = time.monotonic() + _DEATH_S
    pause_s = 0.0002
    while _has_members(pgid) and time.monotonic() < deadline:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.02)


def _has_members(pgid: int) -> bool:
    try:
        os.killpg(pgid, 0)
    # On Darwin a PermissionError means that only zombies are left.
    except (ProcessLookupError, PermissionError):
        return False
    # Do not count zombies: init has to reap them, and in some containers it never does.
    try:
        return sys.platform != "linux" or bool(live_members(pgid))
    except OSError:  # there is no /proc, or no descriptor is left to read it with
        return True


def _fileno(pipe: IO[bytes] | None) -> int:
    return -1 if pipe is None or pipe.closed else pipe.fileno()


def _exit_of(returncode: int) -> ServerExit:
    if returncode >= 0:
        return ServerExit(status=returncode)
    try:
        return ServerExit(signal=signal.Signals(-returncode).name)
    except ValueError:  # most real-time signals have no name
        return ServerExit(signal=f"signal {-returncode}")


def _resolve(command: str, env: Mapping[str, str], cwd: str | None) -> str:
    """Return the program's absolute path, or raise a clearer error than a spawn would."""
    base = cwd or "."
    # Use strings: `Path`s take longer, and the server cannot start before this is done.
    if cwd:  # the host's own directory needs no check: a process can start there even if it was deleted
        try:
            os.stat(f"{cwd}/.")  # noqa: PTH116
        except (OSError, ValueError) as error:
            raise SpawnError(f"The working directory {cwd} cannot be used: {os_cause(error)}.") from error
    if "/" in command:
        path = os.path.join(base, command)  # noqa: PTH118
        found = path if os.path.isfile(path) and os.access(path, os.X_OK) else None  # noqa: PTH113
    else:
        import shutil  # imported here, because only a name without "/" needs it

        found = shutil.which(command, path=env.get("PATH", os.environ.get("PATH", os.defpath)))
    if found is None:
        raise _not_found(command, Path(base))
    return found if found.startswith("/") else str(Path(found).absolute())


def _not_found(command: str, base: Path) -> SpawnError:
    path = base / command
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode) if "/" in command else None
    except PermissionError:
        return SpawnError(f"The command {command!r} is in a folder that this user may not enter.")
    except (OSError, ValueError):
        is_folder = None
    if is_folder is None:
        return SpawnError(f"The command {command!r} was not found.", missing=command)
    if is_folder:
        return SpawnError(f"The command {command!r} is a folder.", remedy="Name the program in it.")
    return SpawnError(
        f"The command {command!r} is not executable: the file has no execute permission.",
        remedy=f"Run `chmod +x {shlex.quote(str(path.absolute()))}`, or name its interpreter as the command"
        " and the file as the first argument.",
    )


def _in_box(
    sandbox: Sandbox, program: str, args: Sequence[str], env: Mapping[str, str], cwd: str | None
) -> Boxed:
    # Imported here, because this imports ctypes, and most programs run without a box.
    from grue.sandbox.launch import boxed, scratch_path

    scratch = ""
    try:
        scratch = scratch_path()
        guard.watch(scratch)  # before the folder exists, or a host that is killed in between would leave it
        return boxed(sandbox, program=program, args=args, env=env, cwd=cwd, scratch=scratch)
    except BaseException as error:
        guard.release(scratch)
        if isinstance(error, SandboxError):
            raise SpawnError(error.problem, remedy=error.remedy) from error
        if isinstance(error, OSError):
            why = f"The sandbox of {program} cannot be made: {os_cause(error)}"
            raise SpawnError(why, remedy=_more_room(error)) from error
        raise


def _more_room(error: Exception) -> str | None:
    """Return advice if the error says that the process or the machine is at a limit, else `None`."""
    if getattr(error, "errno", None) not in (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM):
        return None
    return "Run fewer servers at once, or raise the limit: `ulimit -a` shows those of this process."


def _end_box(boxed: Boxed) -> None:
    boxed.end()
    guard.release(boxed.scratch)


def _shell_keeps(env: Mapping[str, str]) -> bool:
    # A POSIX shell may drop variables whose names it could not have set itself, but the server must get its
    # whole environment.
    # Source: R3.2
    return os.access(_SHELL, os.X_OK) and "".join(env).isascii() and all(map(str.isidentifier, env))


atexit.register(_kill_all)
os.register_at_fork(after_in_child=_disown_all)
