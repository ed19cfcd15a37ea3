"""Find the descendants of a server that have left its process group, and kill them.

A process that calls `setsid` leaves the group, and if its parent has exited, no walk of the process tree
finds it. But every child inherits the resource limits, and `exec` keeps them. So each server gets a unique
number as its RLIMIT_RTTIME, its mark. That limit matters only for realtime scheduling, and above 10^18
microseconds it has no effect. The search reads the hard limit, because a process may change its soft limit.

This works only on Linux, and only where `prlimit` and pidfds work; elsewhere nothing is marked or found. A
process loses the mark if it lowers its hard limit, or raises it as root, or if another program starts it on
behalf of a server (systemd, Docker, cron). A process is killed through a pidfd that was opened before its
mark was checked, because its id may belong to an unrelated process when it is killed.
"""

from __future__ import annotations

import itertools
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

if sys.platform == "linux":
    import resource

_BASE = 4 * 10**18  # the smallest mark: the digit 4, then nine digits for the host and nine for the server
_FEWEST_MARKS = 10**6  # nothing is marked if `HostMark.digits` can have fewer values (see `_room`)


class HostMark:
    """Makes the RLIMIT_RTTIME values that mark this process's servers. All begin with the same digits."""

    def __init__(self) -> None:
        self._digits: str | None = None
        self._serial = itertools.count(1)

    def digits(self) -> str:
        """Return the ten digits that all server marks of this host begin with; empty: marks cannot be set."""
        if self._digits is None:
            room = _room() if _can_mark() else 0
            self._digits = f"4{secrets.randbelow(room):09d}" if room >= _FEWEST_MARKS else ""
        return self._digits

    def next(self) -> int | None:
        """Return the RLIMIT_RTTIME value that marks a new server's processes; `None`: marks cannot be set."""
        digits = self.digits()
        return int(f"{digits}{next(self._serial) % 10**9:09d}") if digits else None

    def forget(self) -> None:
        """Forget `digits`: this process was forked, so its servers' marks must begin with other digits."""
        self._digits = None


host_mark = HostMark()


class Descendants:
    """The processes that `pid` and its descendants start from now on. Call `kill` before `pid` is reaped."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._mark = host_mark.next()
        if self._mark is not None and not _set_mark(pid, self._mark):
            self._mark = None

    def kill(self, within_s: float) -> int:
        """Kill descendants until none is found or the time is up; return how many were found."""
        killed = 0
        deadline = time.monotonic() + within_s
        while found := self._find():
            killed += len(found)
            for pidfd in found:
                with suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            for pidfd in found:
                _exited(pidfd, deadline - time.monotonic())
                os.close(pidfd)
            if time.monotonic() >= deadline:
                break
        return killed

    def _find(self) -> list[int]:
        if self._mark is None:
            return []
        found = []
        try:
            candidates = _listed()
        except OSError:  # no descriptor is left to read /proc; the guard kills descendants when the host ends
            return []
        for pid in candidates:
            # Most ids belong to other programs, so check the mark before opening a pidfd. Check the mark
            # again afterwards, because the id may have been given to another process meanwhile.
            if pid == self._pid or _mark_of(pid) != self._mark:
                continue
            with suppress(OSError):  # it has exited, it is a thread, or no descriptor is left
                pidfd = os.pidfd_open(pid)
                if _mark_of(pid) == self._mark and not _exited(pidfd, 0):
                    found.append(pidfd)
                else:
                    os.close(pidfd)
        return found


def unmark(pid: int) -> None:
    """If this process runs in a marked server, remove the mark that the child `pid` has inherited."""
    if _can_mark() and _mark_of(os.getpid()) >= _BASE:
        # A limit below `_BASE` does not mark a server. "Unlimited" may be impossible, because the kernel lets
        # only root raise a hard limit.
        _set_mark(pid, _BASE - 1)


def _can_mark() -> bool:
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False
    soft, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    if any(limit != resource.RLIM_INFINITY and limit < _BASE for limit in (soft, hard)):
        return False  # the user has set a real limit, which a server's mark would lift
    try:
        os.close(os.pidfd_open(os.getpid()))
        # If /proc belongs to another pid namespace, its ids are not the ids that this process can kill.
        return Path("/proc/self").readlink().name == str(os.getpid())
    except OSError:
        return False


def _room() -> int:
    """Return how many values `HostMark.digits` can have: no mark may exceed this process's RLIMIT_RTTIME."""
    hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    return 10**9 if hard == resource.RLIM_INFINITY else min(10**9, (hard - _BASE) // 10**9)


def carries_host_mark(pid: int) -> bool:
    """Return whether a process is marked as a server that this process has started, or as its descendant."""
    digits = host_mark.digits()
    return bool(digits) and _mark_of(pid) // 10**9 == int(digits)


def _set_mark(pid: int, mark: int) -> bool:
    if sys.platform == "linux":
        with suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_RTTIME, (mark, mark))
            return True
    return False


def _mark_of(pid: int) -> int:
    """Return a process's hard RLIMIT_RTTIME (a mark if at least `_BASE`); -1: unlimited, or unreadable."""
    if sys.platform == "linux":
        with suppress(OSError):
            return resource.prlimit(pid, resource.RLIMIT_RTTIME)[1]
    return -1


def _exited(pidfd: int, within_s: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(max(0.0, within_s) * 1000))


def _listed() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - a tenth of the time


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


os.register_at_fork(after_in_child=host_mark.forget)


class ProcessEntry(NamedTuple):
    """A process in the system's process table; `state` begins with the system's letter, `Z` for a zombie."""

    pid: int
    parent: int
    group: int
    state: str


def all_process_ids() -> frozenset[int]:
    """Return the ids of all processes that are visible to this process."""
    return frozenset(each.pid for each in all_processes())


def all_processes(besides: Container[int] = ()) -> Iterator[ProcessEntry]:
    """Yield all processes that are visible to this process, except those in `besides`."""
    if sys.platform != "linux":
        yield from (each for each in _listed_by_ps() if each.pid not in besides)
        return
    for pid in _listed():
        if pid in besides:
            continue
        with suppress(OSError):  # the process has exited since the folder was listed
            # The second field is the program's name in parentheses, and may contain `)`: split at the last.
            state, parent, group = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split(None, 3)[:3]
            yield ProcessEntry(pid, int(parent), int(group), state.decode())


def described(pid: int) -> str:
    """Return a process's state and command line, for a message; empty if there is no such process."""
    if sys.platform != "linux":
        listed = subprocess.run(["ps", "-o", "stat=,args=", "-p", str(pid)], capture_output=True, check=False)
        return listed.stdout.decode(errors="replace").strip()
    try:
        name, _, fields = _read(f"/proc/{pid}/stat").partition(b" (")[2].rpartition(b") ")
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").strip()
    except OSError:
        return ""
    # A zombie has no command line, so write its program's name in brackets, as `ps` does.
    return b" ".join((fields[:1], words or b"[" + name + b"]")).decode(errors="replace")


def live_members(pgid: int) -> list[int]:
    """Return the ids of the members of a process group, without zombies."""
    return [each.pid for each in all_processes() if each.group == pgid and not each.state.startswith("Z")]


def _listed_by_ps() -> Iterator[ProcessEntry]:
    with subprocess.Popen(["ps", "-A", "-o", "pid=,ppid=,pgid=,stat="], stdout=subprocess.PIPE) as ps:
        listing = ps.communicate()[0].decode()
    for line in listing.splitlines():
        pid, parent, group, state = line.split()[:4]
        if int(pid) != ps.pid:
            yield ProcessEntry(int(pid), int(parent), int(group), state)
