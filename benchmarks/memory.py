"""How much memory this process has held."""

import resource
import sys
from pathlib import Path


def peak_mb() -> float:
    """Return the most memory that this process has held, in MB (2**20 bytes)."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        # Not on Linux, where this figure is inherited from the parent process.
        per_mb = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / per_mb
    return int(status.split("VmHWM:")[1].split()[0]) / 2**10
