"""What is looked at around a case: time, memory, what is left, and what went wrong in silence."""

import ctypes
import gc
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from casebook import CANARY

from grue.runtime.processes.descendants import all_processes, carries_host_mark
from grue.runtime.processes.guard import guard

LATE_S = 0.5
"""By how much a limit may be exceeded."""

EARLY_SHARE = 0.85
"""A turn that times out has had at least this share of its limit: its work gets nine tenths of it."""

LARGEST_INPUT = 64 * 1024 * 1024
PEAK = 4 * LARGEST_INPUT
"""By how many bytes memory may grow in a case."""

_LEFT_S = 2.0


@dataclass
class Findings:
    """What is wrong in one case, and what it took."""

    wrong: list[str] = field(default_factory=list)
    begun: int = 0
    grown: int = 0
    elapsed_s: float = 0.0

    def add(self, what: str) -> None:
        """Add one thing, once."""
        if what not in self.wrong:
            self.wrong.append(what)


class _Log(logging.Handler):
    def __init__(self, findings: Findings) -> None:
        super().__init__(logging.WARNING)
        self._findings = findings

    def emit(self, record: logging.LogRecord) -> None:
        told = record.getMessage()
        if CANARY in told or (record.exc_info and CANARY in str(record.exc_info[1])):
            self._findings.add(f"logged by {record.name}: the server's secret")
        if record.name == "asyncio" or "never retrieved" in told or record.exc_info:
            self._findings.add(f"logged by {record.name}: {told[:200]}")


@contextmanager
def watched(findings: Findings) -> Iterator[None]:
    """Watch the block, add what is wrong to the findings."""
    log = _Log(findings)
    logging.getLogger().addHandler(log)
    threads = set(threading.enumerate())
    hooks = threading.excepthook, sys.unraisablehook
    threading.excepthook = lambda args: findings.add(
        f"in a thread: {args.exc_type.__name__}: {args.exc_value}"
    )
    sys.unraisablehook = lambda args: findings.add(f"unraisable: {args.exc_value!r} in {args.object!r}"[:300])
    gc.collect()
    begun = findings.begun = _reset_peak()
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield
            gc.collect()
    finally:
        findings.grown = findings.grown or peak_since(begun)
        threading.excepthook, sys.unraisablehook = hooks
        logging.getLogger().removeHandler(log)
    for warning in warned:
        if issubclass(warning.category, RuntimeWarning | ResourceWarning):
            findings.add(f"{warning.category.__name__}: {warning.message}"[:300])
    if findings.grown > PEAK:
        findings.add(f"memory grew by {findings.grown >> 20} MiB, more than {PEAK >> 20}")
    _look_for_leftovers(findings, threads)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def peak_since(begun: int) -> int:
    """Return by how many bytes the process has grown at most since the peak was reset."""
    return max(0, _status("VmHWM") - begun)


def _look_for_leftovers(findings: Findings, threads: set[threading.Thread]) -> None:
    deadline = time.monotonic() + _LEFT_S
    while (left := _left(threads)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for each in left:
        findings.add(f"left behind: {each}")


def _left(threads: set[threading.Thread]) -> list[str]:
    left = [
        f"process {_command(each.pid)}"
        for each in all_processes()
        if each.pid != guard.pid
        and each.state != "Z"
        and (each.parent == os.getpid() or carries_host_mark(each.pid))
    ]
    # Threads that anyio keeps for the loop, or that the trace is written by, end a moment later.
    return left + [
        f"thread {each.name}" for each in threading.enumerate() if each not in threads and each.is_alive()
    ]


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    return str(pid)


def _reset_peak() -> int:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    with suppress(OSError):
        for row in Path("/proc/self/status").read_text().splitlines():
            if row.startswith(name):
                return int(row.split()[1]) * 1024
    return 0
