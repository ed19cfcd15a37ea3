"""List the system's processes with their parents and groups: from /proc on Linux, from `ps` elsewhere.

`process_group.py` uses it to wait until a killed group is empty. Tests use it to check that nothing is left,
and to name what is.
"""

import os
import subprocess
import sys
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class ProcessEntry(NamedTuple):
    """One line of the table; `state` is the system's letter, `Z` for a zombie."""

    pid: int
    parent: int
    group: int
    state: str


def all_process_ids() -> frozenset[int]:
    """Return the id of every process that this one can see."""
    if sys.platform != "linux":
        return frozenset(each.pid for each in _listed_by_ps())
    return frozenset(_listed_in_proc())


def all_processes(besides: Container[int] = ()) -> Iterator[ProcessEntry]:
    """Yield every process that this one can see, without those whose ids are in `besides`."""
    if sys.platform != "linux":
        yield from (each for each in _listed_by_ps() if each.pid not in besides)
        return
    for pid in _listed_in_proc():
        if pid in besides:
            continue
        with suppress(OSError):  # it has exited since the folder was listed
            # The second field is the program's name in parentheses. The name may contain spaces and
            # parentheses itself, so read only what follows the last closing one.
            state, parent, group = _stat(pid).rpartition(b")")[2].split(None, 3)[:3]
            yield ProcessEntry(pid, int(parent), int(group), state.decode())


def described(pid: int) -> str:
    """Return a process's state and command line, for a message; empty if it has exited.

    A zombie has no command line any more: the name of its program stands in brackets, as `ps` has it.
    """
    if sys.platform != "linux":
        listed = subprocess.run(["ps", "-o", "stat=,args=", "-p", str(pid)], capture_output=True, check=False)
        return listed.stdout.decode(errors="replace").strip()
    try:
        name, _, fields = _stat(pid).partition(b" (")[2].rpartition(b") ")
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").strip()
    except OSError:
        return ""
    return b" ".join((fields[:1], words or b"[" + name + b"]")).decode(errors="replace")


def _listed_in_proc() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())  # noqa: PTH208 - a tenth of the time


def _stat(pid: int) -> bytes:
    descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def live_members(pgid: int) -> list[int]:
    """Return the ids of a group's processes that still run, without zombies, which wait to be reaped."""
    return [each.pid for each in all_processes() if each.group == pgid and not each.state.startswith("Z")]


def _listed_by_ps() -> Iterator[ProcessEntry]:
    with subprocess.Popen(["ps", "-A", "-o", "pid=,ppid=,pgid=,stat="], stdout=subprocess.PIPE) as ps:
        listing = ps.communicate()[0].decode()
    for line in listing.splitlines():
        pid, parent, group, state = line.split()[:4]
        if int(pid) != ps.pid:
            yield ProcessEntry(int(pid), int(parent), int(group), state)
