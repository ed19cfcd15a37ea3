"""How much memory this process holds, has held, and has in use."""

import ctypes
import os
import resource
import sys
from pathlib import Path


class _Mallinfo(ctypes.Structure):
    """What glibc's `mallinfo2` tells of malloc's heaps, in bytes."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def peak_mb() -> float:
    """Return the most memory that this process has held, in MB (2**20 bytes)."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        # Not on Linux, where this figure is inherited from the parent process.
        per_mb = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / per_mb
    return int(status.split("VmHWM:")[1].split()[0]) / 2**10


def resident_mb() -> float:
    """Return the memory that this process holds now, in MB: what is in use, and what allocators keep."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak_mb()
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def malloc_mb() -> tuple[float, float]:
    """Return what malloc has given out and not got back, and what it keeps free, in MB.

    Python's small objects are not in it: `sys.getallocatedblocks` counts those. Both are 0 where the C
    library does not tell.
    """
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0.0, 0.0
    mallinfo.restype = _Mallinfo
    told = mallinfo()
    return float(told.uordblks + told.hblkhd) / 2**20, float(told.fordblks) / 2**20
