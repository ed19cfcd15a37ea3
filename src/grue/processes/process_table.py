"""The system's processes, as far as groups are concerned: from /proc on Linux, from `ps` elsewhere."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class ProcessEntry(NamedTuple):
    """One line of the table; `state` is the system's letter, `Z` for a zombie."""

    pid: int
    parent: int
    group: int
    state: str


def all_processes() -> Iterator[ProcessEntry]:
    """Yield every process that this one can see."""
    if sys.platform != "linux":
        yield from _listed_by_ps()
        return
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):  # it has gone meanwhile
            # The name in parentheses may hold anything, parentheses too: what counts follows the last one.
            state, parent, group = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
            yield ProcessEntry(int(entry.name), int(parent), int(group), state)


def live_members(pgid: int) -> list[int]:
    """Return the ids of a group's live processes; a zombie, which only waits to be reaped, is none."""
    return [each.pid for each in all_processes() if each.group == pgid and not each.state.startswith("Z")]


def _listed_by_ps() -> Iterator[ProcessEntry]:
    with subprocess.Popen(["ps", "-A", "-o", "pid=,ppid=,pgid=,stat="], stdout=subprocess.PIPE) as ps:
        listing = ps.communicate()[0].decode()
    for line in listing.splitlines():
        pid, parent, group, state = line.split()[:4]
        if int(pid) != ps.pid:
            yield ProcessEntry(int(pid), int(parent), int(group), state)
