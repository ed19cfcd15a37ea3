"""Death with the host: no server outlives the program that started it, SIGKILL included.

One guard, a small shell, runs beside the host process in a session of its own. It reads `+pgid` and `-pgid`
lines from a pipe whose only writing end is ours, and when that pipe ends, because the host ended in whatever
way, it kills the process groups that are still on its list. PR_SET_PDEATHSIG cannot do this: it fires when
the spawning *thread* ends, and it does not reach grandchildren. It also kills what has left those groups and
carries the mark of this host's servers (`descendants.py`), unless it was told that nothing is left.

The writing end is close-on-exec, and a forked child closes its copy at once; a copy held by anything that can
outlive the host would keep the guard waiting.
"""

import atexit
import contextlib
import os
import subprocess
import threading
import warnings

from grue.mcp_transport.descendants import host_mark, unmark

_SCRIPT = """
trap '' INT HUP TERM
groups=' '
while read -r line; do
  group=" ${line#[+-]} "
  case $line in
    +*) groups="$groups${line#+} " ;;
    -*) case $groups in *"$group"*) groups="${groups%%"$group"*} ${groups#*"$group"}" ;; esac ;;
    nothing-left) exit ;;
  esac
done
for group in $groups; do kill -s KILL -- "-$group" 2>/dev/null; done
[ -n "$1" ] || exit
for round in 1 2 3 4 5; do
  found=$(grep -l "^Max realtime timeout  *$1" /proc/[0-9]*/limits 2>/dev/null)
  [ -n "$found" ] || exit
  for limits in $found; do limits=${limits#/proc/}; kill -s KILL "${limits%/limits}" 2>/dev/null; done
done
"""
"""`$1` is what the marks of this host's servers begin with. A process that forks just as it is killed may
leave a child, so the search is repeated; a zombie that nobody reaps is found each time, so the rounds have an
end."""

_END_S = 1.0
"""How long interpreter exit waits for the guard to finish; it takes about a millisecond."""


class GuardUnavailableWarning(RuntimeWarning):
    """Servers run without a guard: they are still closed with their turn, but not if the host is killed."""


class HostGuard:
    """The guard of this process: started at the first use, replaced if it has died. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._shell: subprocess.Popen[bytes] | None = None
        self._unavailable = False

    @property
    def pid(self) -> int | None:
        """The guard's process id, or `None` while there is none."""
        return self._shell.pid if self._shell else None

    def start(self) -> None:
        """Start the guard now rather than with the first server."""
        with self._lock:
            self._ensure_running()

    def watch(self, pgid: int) -> None:
        """Have this process group killed when the host ends."""
        with self._lock:
            self._groups.add(pgid)
            self._tell(f"+{pgid}")

    def release(self, pgid: int) -> None:
        """Forget a group. Call it before the leader is reaped: afterwards the id may be someone else's."""
        with self._lock:
            self._groups.discard(pgid)
            if self._shell is not None:
                self._tell(f"-{pgid}")

    def end(self) -> None:
        """Let the guard go, killing what is still on its list."""
        with self._lock:
            shell, self._shell = self._shell, None
            if shell is None or shell.stdin is None:
                return
            if not self._groups:
                with contextlib.suppress(OSError):
                    os.write(shell.stdin.fileno(), b"nothing-left\n")
            shell.stdin.close()
            try:
                shell.wait(_END_S)
            except subprocess.TimeoutExpired:
                shell.kill()
                shell.wait()

    def forget(self) -> None:
        """Drop the parent's guard in a forked child, which has neither its servers nor its duties."""
        shell, self._shell = self._shell, None
        self._lock = threading.Lock()  # another thread may have held the old one at the fork
        self._groups = set()
        if shell is not None and shell.stdin is not None:
            shell.stdin.close()
            shell.returncode = 0  # not our child: keeps Popen from waiting for it

    def _tell(self, line: str) -> None:
        if self._ensure_running():
            return  # a new guard has just been told the whole list
        try:
            self._write(line)
        except OSError:
            # It died after the check, or somebody stopped it and the pipe is full. Nobody is told twice.
            self._discard()
            self._ensure_running()

    def _write(self, line: str) -> None:
        if self._shell is not None and self._shell.stdin is not None:
            os.write(self._shell.stdin.fileno(), f"{line}\n".encode())

    def _ensure_running(self) -> bool:
        """Return True if a new guard had to be started."""
        if self._unavailable or (self._shell is not None and self._shell.poll() is None):
            return False
        self._discard()
        try:
            self._shell = _start_shell()
        except OSError as error:
            self._unavailable = True
            warnings.warn(
                f"No guard for server processes ({error}): they would survive if this program were killed.",
                GuardUnavailableWarning,
                stacklevel=2,
            )
            return False
        for pgid in self._groups:
            self._write(f"+{pgid}")
        return True

    def _discard(self) -> None:
        shell, self._shell = self._shell, None
        if shell is None or shell.stdin is None:
            return
        # Killed before its pipe ends: it must not act on a list that its successor keeps.
        shell.kill()
        shell.wait()
        shell.stdin.close()


def _start_shell() -> subprocess.Popen[bytes]:
    shell = subprocess.Popen(
        ["/bin/sh", "-c", _SCRIPT, "grue-guard", host_mark.digits()],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd="/",  # it may live long, and must not pin a directory
        env={"PATH": os.environ.get("PATH", os.defpath)},  # nor keep the host's secrets
        start_new_session=True,
    )
    unmark(shell.pid)  # of a host that is itself part of a server: killed with it, this could not do its work
    if shell.stdin is not None:
        os.set_blocking(shell.stdin.fileno(), False)
    return shell


guard = HostGuard()


def guard_pid() -> int | None:
    """Return the process id of this host's guard, or `None` if none runs.

    The guard lives as long as the host; whoever looks for leftover processes excepts it.
    """
    return guard.pid


atexit.register(guard.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=guard.forget)
