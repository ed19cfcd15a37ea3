"""How much memory this process has now, had at most, and uses."""

import ctypes
import os
import resource
import sys
from pathlib import Path


class _Mallinfo(ctypes.Structure):
    """The struct that glibc's `mallinfo2` returns: sizes of malloc's heaps, in bytes."""

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
    """Return the highest memory that this process has had so far, in MB (2**20 bytes)."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        # On Linux this would be wrong: there a process inherits `ru_maxrss` from its parent.
        per_mb = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / per_mb
    return int(status.split("VmHWM:")[1].split()[0]) / 2**10


def resident_mb() -> float:
    """Return the memory that this process has now, in MB: used, or kept free by allocators."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak_mb()
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def malloc_mb() -> tuple[float, float]:
    """Return how much memory is allocated by malloc, and how much malloc keeps free, in MB.

    Python's small objects do not count: `sys.getallocatedblocks` counts those. Both numbers are 0 if the C
    library has no `mallinfo2`.
    """
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0.0, 0.0
    mallinfo.restype = _Mallinfo
    told = mallinfo()
    return float(told.uordblks + told.hblkhd) / 2**20, float(told.fordblks) / 2**20
