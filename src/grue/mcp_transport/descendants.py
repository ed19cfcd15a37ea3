"""Find the descendants of a server that have left its process group, and kill them.

A process that calls `setsid` leaves the group, and one whose parents have gone cannot be found by walking the
process tree. Resource limits, however, are inherited by every child and kept by `exec`, whatever else a
program clears. So each server gets a number of its own as its soft RLIMIT_RTTIME, a limit that only concerns
realtime scheduling and at 10^18 microseconds or more limits nothing. A process with that number was started
by this server.

Linux only, and only where `prlimit` and pidfds work; elsewhere nothing is marked and nothing is found.
A process loses the mark by setting that limit itself. One that another program starts on a server's behalf
(systemd, Docker, cron) never had it.

Killing goes through a pidfd, opened before the mark is looked at: a process id that is given to somebody else
meanwhile cannot be hit.
"""

import itertools
import os
import secrets
import select
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

if sys.platform == "linux":
    import resource

_BASE = 4 * 10**18
"""Marks are `4`, nine digits of the host and nine of the server."""

_FEW_IDS = 64
_IDS_PER_S = 20_000
"""No system hands out more process and thread ids a second than this until they come round."""


class HostMark:
    """The part of the marks that all servers of this process share; a forked child needs one of its own."""

    def __init__(self) -> None:
        self._digits: str | None = None
        self._serial = itertools.count(1)

    def digits(self) -> str:
        """Return what every mark of this host begins with, in decimal; empty where marks cannot be set."""
        if self._digits is None:
            self._digits = f"4{secrets.randbelow(10**9):09d}" if _can_mark() else ""
        return self._digits

    def next(self) -> int | None:
        """Return a mark for one more server, or `None` where marks cannot be set."""
        digits = self.digits()
        return int(f"{digits}{next(self._serial) % 10**9:09d}") if digits else None

    def forget(self) -> None:
        """Take another one at the next use; for a forked child."""
        self._digits = None


host_mark = HostMark()


class Descendants:
    """All that a process starts, from the moment this is made. Call `kill` before the process is reaped."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._since = time.monotonic()
        self._mark = host_mark.next()
        if self._mark is not None and not _set_mark(pid, self._mark):
            self._mark = None

    def kill(self, within_s: float) -> int:
        """Kill every live descendant and wait until they are gone; return how many there were.

        What they start meanwhile is killed too.

        Args:
            within_s: How many seconds to go on at most.
        """
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
        """Return a pidfd of each live process that carries the mark, the server itself excepted."""
        if self._mark is None:
            return []
        found = []
        for pid in _ids_since(self._pid, time.monotonic() - self._since):
            # Most ids are somebody else's: the mark is looked at first, and once more when the id is held.
            if pid == self._pid or _mark_of(pid) != self._mark:
                continue
            with suppress(OSError):  # it has gone, or is a thread's id
                pidfd = os.pidfd_open(pid)
                if _mark_of(pid) == self._mark and not _exited(pidfd, 0):
                    found.append(pidfd)
                else:
                    os.close(pidfd)
        return found


def unmark(pid: int) -> None:
    """Take away the mark that a child inherited from this process, if this is itself part of a server."""
    if _can_mark() and _mark_of(os.getpid()) >= _BASE:
        _set_mark(pid, resource.RLIM_INFINITY)


def _can_mark() -> bool:
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False
    soft, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    if hard != resource.RLIM_INFINITY or (soft != resource.RLIM_INFINITY and soft < _BASE):
        return False  # somebody uses the limit for what it is meant for
    try:
        os.close(os.pidfd_open(os.getpid()))
        # Where /proc shows another namespace, its ids are not those that we could kill.
        return Path("/proc/self").readlink().name == str(os.getpid())
    except OSError:
        return False


def carries_host_mark(pid: int) -> bool:
    """Say whether a server of this process has started that one, at whatever remove."""
    digits = host_mark.digits()
    return bool(digits) and _mark_of(pid) // 10**9 == int(digits)


def _set_mark(pid: int, mark: int) -> bool:
    if sys.platform == "linux":
        with suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_RTTIME, (mark, resource.RLIM_INFINITY))
            return True
    return False


def _mark_of(pid: int) -> int:
    """Return the process's soft limit, marked or not; -1: unlimited, gone, or somebody else's."""
    if sys.platform == "linux":
        with suppress(OSError):
            return resource.prlimit(pid, resource.RLIMIT_RTTIME)[0]
    return -1


def _exited(pidfd: int, within_s: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(max(0.0, within_s) * 1000))


def _ids_since(first: int, age_s: float) -> Iterable[int]:
    """Return the ids that a process may have which was started after `first`, `age_s` seconds ago.

    Ids are handed out in turn. While they cannot have come round, only those between `first` and the newest
    are looked at: usually a handful, where a machine may have thousands of processes.
    """
    highest, newest = _highest_id(), _newest_id()
    if age_s > highest / _IDS_PER_S:
        return _listed()
    if first <= newest <= first + _FEW_IDS:
        return range(first + 1, newest + 1)
    if first <= newest:
        return [pid for pid in _listed() if first < pid <= newest]
    return [pid for pid in _listed() if pid > first or pid <= newest]


def _newest_id() -> int:
    return int(_read("/proc/loadavg").split()[-1])


def _highest_id() -> int:
    return int(_read("/proc/sys/kernel/pid_max"))


def _listed() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - a tenth of the time


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 256)
    finally:
        os.close(descriptor)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=host_mark.forget)
