"""Check that a piece of code leaves nothing behind: no process, no descriptor, no thread.

New children of this process are found on all systems, other new descendants only on Linux. These are
recognised by an environment variable that they inherit; those of grue's servers also by a resource limit.
"""

import os
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from grue.runtime.processes.descendants import (
    ProcessEntry,
    all_process_ids,
    all_processes,
    carries_host_mark,
    described,
)
from grue.runtime.processes.guard import guard

_MARK = "GRUE_LEFTOVERS_MARK"
_KEPT = "anon_inode:[landlock-ruleset]"
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.1


class _Present(NamedTuple):
    processes: frozenset[int]
    descriptors: frozenset[int]
    threads: frozenset[threading.Thread]
    started: frozenset[int]  # the kernel's ids of all threads; empty if this is not Linux
    running: frozenset[int]  # the `ident`s of the threads that run Python code


@contextmanager
def assert_nothing_left(within_s: float = 10.0) -> Iterator[None]:
    """Assert that the `with` block leaves no process, descriptor or thread behind.

    What existed before the block does not count, nor do these: grue's guard process; the fork server and the
    resource tracker of `multiprocessing`, which end with the program; descriptors of Landlock rules that grue
    keeps for the next sandbox. If the block raises an exception, nothing is checked.

    Args:
        within_s: The most seconds to wait, after the end of the block, for leftovers to disappear.

    Raises:
        AssertionError: Something is left; the text lists it.

    Source: P9
    """
    guard.start()
    mark = uuid.uuid4().hex
    outer = os.environ.get(_MARK)
    running = _running()
    before = _Present(
        all_process_ids(), frozenset(_descriptors()), frozenset(_threads(running)), _tasks(), running
    )
    os.environ[_MARK] = f"{mark} {outer}"  # in nested blocks, a process inherits the marks of all blocks
    try:
        yield
    finally:
        if outer is None:
            del os.environ[_MARK]
        else:
            os.environ[_MARK] = outer
    deadline = time.monotonic() + within_s
    pause_s = _FIRST_PAUSE_S
    while any(left := _new_since(before, mark)) and time.monotonic() < deadline:
        time.sleep(pause_s)
        # Frequent readings of the list of all processes would slow down processes that are ending.
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
    if any(left):
        raise AssertionError("left behind: " + ", ".join(_description(*left)))


def _new_since(before: _Present, mark: str) -> tuple[set[int], set[int], set[threading.Thread]]:
    # Leave out Python's fork server and resource tracker, and the descriptors of their pipes.
    server: Any = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    tracker: Any = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    helpers = {getattr(server, "_forkserver_pid", None), getattr(tracker, "_pid", None)}
    pipes = {getattr(server, "_forkserver_alive_fd", None), getattr(tracker, "_fd", None)}
    return (
        {each.pid for each in all_processes(besides=before.processes) if _is_ours(each, mark)} - helpers,
        set(_descriptors()) - before.descriptors - pipes,
        # `threading` does not list a thread of C code before that thread calls `current_thread()`. So a
        # thread can be new in the list and older than the block. Then its kernel id is in `before.started`.
        {
            each
            for each in set(_threads(before.running)) - before.threads
            if each.native_id not in before.started
        },
    )


def _description(processes: set[int], descriptors: set[int], threads: set[threading.Thread]) -> Iterator[str]:
    for pid in sorted(processes):
        yield f"process {pid} ({described(pid)})"
    for descriptor in sorted(descriptors):
        target = ""
        with suppress(OSError):
            target = str(Path(f"/dev/fd/{descriptor}").readlink())
        yield f"descriptor {descriptor} ({target})"
    for thread in threads:
        yield f"thread {thread.name}"


def _is_ours(process: ProcessEntry, mark: str) -> bool:
    if process.pid in (os.getpid(), guard.pid):
        return False
    if process.parent == os.getpid() or (carries_host_mark(process.pid) and process.state != "Z"):
        return True
    try:
        return mark.encode() in Path(f"/proc/{process.pid}/environ").read_bytes()
    except OSError:  # the process has ended or belongs to another user, or this is not Linux
        return False


def _descriptors() -> Iterator[int]:
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - numbers, not paths
        with suppress(OSError):  # the descriptor that `listdir` itself used is closed by now
            os.fstat(int(name))
            if not os.path.islink(f"/dev/fd/{name}") or os.readlink(f"/dev/fd/{name}") != _KEPT:  # noqa: PTH114, PTH115
                yield int(name)


def _threads(known: frozenset[int]) -> Iterator[threading.Thread]:
    """Yield the threads that run, or are about to. `known` has the `ident`s of threads before the block."""
    # `threading.enumerate` may also return threads that have ended: Python adds an entry for a foreign thread
    # that calls `current_thread()`, and old versions keep it. If a later thread has the same `ident`, the old
    # entry seems to run. So on Linux, if its `ident` is in `known`, the kernel must list its `native_id`.
    tasks = _tasks()
    running = _running()
    for thread in threading.enumerate():
        if thread.ident is None or (
            thread.ident in running and (not tasks or thread.native_id in tasks or thread.ident not in known)
        ):
            yield thread


def _running() -> frozenset[int]:
    return frozenset(sys._current_frames())  # noqa: SLF001 - documented, and there is no other way


def _tasks() -> frozenset[int]:
    try:
        return frozenset(int(name) for name in os.listdir("/proc/self/task"))  # noqa: PTH208 - numbers, not paths
    except OSError:  # this is not Linux
        return frozenset()
