"""List the system's processes with their parents and groups: from /proc on Linux, from `ps` elsewhere.

`process_group.py` uses it to wait until a killed group is empty. Tests use it to check that nothing is left.
"""

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
        with suppress(OSError):  # it has exited since the folder was listed
            # The second field is the program's name in parentheses. The name may contain spaces and
            # parentheses itself, so read only what follows the last closing one.
            state, parent, group = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
            yield ProcessEntry(int(entry.name), int(parent), int(group), state)


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
