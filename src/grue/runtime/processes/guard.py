"""The guard: a small shell process that kills all servers when the host ends, even by SIGKILL.

It runs in a POSIX session of its own, and reads `+ITEM` and `-ITEM` lines from a pipe, which add an item to
its list or remove it: the id of a process group, or the path of a temporary folder. The kernel closes the
pipe when the host ends. Then the guard kills the groups on its list, and all processes that are marked as
started by this host's servers (`descendants.py`), and removes the folders on the list. PR_SET_PDEATHSIG
cannot do this: it fires when the spawning *thread* ends, and does not reach grandchildren.

- A group is added before its server runs, or the server could outlive a host that is killed in between. The
  exception is a server with environment variables that a shell may drop. A group is removed before its leader
  is reaped, or the guard could kill an unrelated group with the same id.
- No process but the host may hold the writing end of the pipe, or the guard would never see the pipe's end.
  The writing end is close-on-exec, and a forked child closes its copy at once.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import threading
import warnings
from typing import IO

from grue.runtime.processes.descendants import host_mark, unmark

_SCRIPT = """
trap '' INT HUP TERM
mark=$1
shift
while IFS= read -r line; do
  case $line in
    +*) set -- "$@" "${line#+}" ;;
    -*) for each do shift; [ "$each" = "${line#-}" ] || set -- "$@" "$each"; done ;;
    nothing-left) exit ;;
  esac
done
for each do case $each in /*) ;; *) kill -s KILL -- "-$each" ;; esac; done 2>/dev/null
for round in 1 2 3 4 5; do
  [ -n "$mark" ] || break
  if command -v grep; then
    found=$(grep -l "^Max realtime timeout .* $mark" /proc/[0-9]*/limits)
  else
    found=
    for limits in /proc/[0-9]*/limits; do
      while read -r limit; do
        case $limit in "Max realtime timeout "*" $mark"*) found="$found $limits" ;; esac
      done <"$limits"
    done
  fi 2>/dev/null
  [ -n "$found" ] || break
  for limits in $found; do limits=${limits#/proc/}; kill -s KILL "${limits%/limits}" 2>/dev/null; done
done
for each do
  case $each in /*) rm -rf "$each" || { chmod -R u+rwX "$each"; rm -rf "$each"; } ;; esac
done
"""
"""A mark is a resource limit (`descendants.py`), which `/proc/PID/limits` shows as `Max realtime timeout`.

`$1` is first the common beginning of this host's marks; empty: marks cannot be set. After the `shift`, the
positional parameters are the list of groups and folders: as `"$@"` they keep paths with spaces whole. Without
`grep`, which not every PATH has, the search takes 15 times as long.

The search is repeated, because a process that forks just as it is killed may leave a child. It ends after 5
rounds, because a zombie that nobody reaps is found each time.
"""

_END_S = 1.0  # how long `end` waits for the guard, which usually needs about a millisecond


class GuardUnavailableWarning(RuntimeWarning):
    """Servers run without a guard. They are still closed as usual, but not if the host is killed."""


class HostGuard:
    """The guard of this process. `start` or the first `watch` starts it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._list: set[int | str] = set()
        self._shell: subprocess.Popen[bytes] | None = None
        self._warned = False

    @property
    def pid(self) -> int | None:
        """The id of the guard's process, which may have died; `None`: not started, or ended."""
        return self._shell.pid if self._shell else None

    def start(self) -> None:
        """Start the guard now, before its first use."""
        with self._lock:
            self._ensure_running()

    def watch(self, listed: int | str) -> None:
        """Add a process group, to be killed when the host ends, or a folder's path, to be removed then."""
        with self._lock:
            self._list.add(listed)
            self._send(f"+{listed}")

    def release(self, listed: int | str) -> None:
        """Remove a process group or a folder from the list. Call this before the group's leader is reaped."""
        with self._lock:
            self._list.discard(listed)
            if self._shell is not None:
                self._send(f"-{listed}")

    def end(self) -> None:
        """Let the guard kill and remove what is listed, and end. Wait up to `_END_S`, or until a Ctrl-C."""
        with self._lock:
            shell, self._shell = self._shell, None
            if shell is None or shell.stdin is None:
                return
            if not self._list:
                with contextlib.suppress(OSError):
                    os.write(shell.stdin.fileno(), b"nothing-left\n")
            _close(shell.stdin)
            shell.send_signal(signal.SIGCONT)  # it may have been stopped
            try:
                shell.wait(_END_S)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                shell.returncode = 0  # keep Popen from warning that it still runs

    def forget(self) -> None:
        """Drop the guard. A forked child calls this, because guard and servers belong to its parent."""
        shell, self._shell = self._shell, None
        self._lock = threading.Lock()  # a thread of the parent may have held the old lock during the fork
        self._list = set()
        if shell is not None and shell.stdin is not None:
            shell.stdin.close()
            shell.returncode = 0  # the process is not our child, so keep Popen from waiting for it

    def _send(self, line: str) -> None:
        if self._ensure_running():
            return  # a guard was started, and got the whole list of groups and folders
        try:
            self._write(line)
        except OSError:
            # The guard has died, or was stopped and its pipe is full. A new guard gets the whole list.
            self._discard()
            self._ensure_running()

    def _write(self, line: str) -> None:
        # The guard gets one path a line, so it cannot remove a folder whose path has a line break.
        if "\n" not in line and self._shell is not None and self._shell.stdin is not None:
            os.write(self._shell.stdin.fileno(), os.fsencode(f"{line}\n"))

    def _ensure_running(self) -> bool:
        if self._shell is not None and self._shell.poll() is None:
            return False
        self._discard()
        try:
            self._shell = _start_shell()
        except OSError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"No guard for server processes ({error}): they would survive if this program were"
                    " killed.",
                    GuardUnavailableWarning,
                    stacklevel=2,
                )
            return False
        for listed in self._list:
            self._write(f"+{listed}")
        return True

    def _discard(self) -> None:
        shell, self._shell = self._shell, None
        if shell is None or shell.stdin is None:
            return
        # Kill the shell before closing its pipe: once that is closed, the shell would kill all servers.
        shell.kill()
        shell.wait()
        _close(shell.stdin)


def _close(pipe: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # other code of the program may have closed all descriptors
        pipe.close()


def _start_shell() -> subprocess.Popen[bytes]:
    shell = subprocess.Popen(
        ["/bin/sh", "-c", _SCRIPT, "grue-guard", host_mark.digits()],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd="/",  # The guard may live long, and must not keep a directory in use.
        env={"PATH": os.environ.get("PATH", os.defpath)},  # the guard must not have the host's secrets
        start_new_session=True,
    )
    unmark(shell.pid)  # if the host itself runs in a server, the guard must not be killed with that server
    if shell.stdin is not None:
        os.set_blocking(shell.stdin.fileno(), False)
    return shell


guard = HostGuard()

atexit.register(guard.end)
os.register_at_fork(after_in_child=guard.forget)
