"""Notice at once that a child process has exited, without reaping it.

While an exited child is not reaped, the kernel does not reuse its id or its group's id, and the group can be
killed safely (`process_group.py`). So nothing here may call `wait` or `poll`, which reap. Linux has pidfds
for this, macOS has kqueue. On a Linux without pidfds, polling `waitid` with `WNOWAIT` does not reap either.
"""

import io
import os
import select
import sys
import time
from typing import Protocol

import anyio

_POLL_EVERY_S = 0.01


class _Source(Protocol):
    """A descriptor that becomes readable when the process exits, and stays readable."""

    @property
    def closed(self) -> bool: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...


class ExitWatch:
    """Watches one child of this process. Nothing else may reap that child."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen = False
        self._source: _Source | None = None
        try:
            self._source = _open_source(pid)
        except ProcessLookupError:
            self._seen = True  # kqueue raises this for a child that has already exited

    async def wait(self) -> None:
        """Return when the process has exited. Cancelling leaves nothing behind."""
        while not self.exited_within(0):
            if self._source is None:
                await anyio.sleep(_POLL_EVERY_S)
            else:
                await anyio.wait_readable(self._source.fileno())

    def exited_within(self, limit_s: float) -> bool:
        """Block for at most `limit_s` seconds; return whether the process has exited."""
        if self._seen:
            return True
        if self._source is None:
            self._seen = _poll_exit(self._pid, time.monotonic() + limit_s)
        elif not self._source.closed:
            poll = select.poll()
            poll.register(self._source.fileno(), select.POLLIN)
            self._seen = bool(poll.poll(limit_s * 1000))
        return self._seen

    def descriptor(self) -> int | None:
        """Return the descriptor that `wait` waits on in the event loop; `None` if there is none."""
        return None if self._source is None or self._source.closed else self._source.fileno()

    def close(self) -> None:
        """Close the descriptor; safe to repeat."""
        if self._source is not None:
            self._source.close()


def _open_source(pid: int) -> _Source | None:
    if sys.platform == "linux":
        try:
            return io.FileIO(os.pidfd_open(pid))
        except OSError:  # a kernel before 5.3, or a sandbox that does not let it through
            return None
    else:
        events = select.kqueue()
        change = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
        try:
            events.control([change], 0)
        except OSError:
            events.close()
            raise
        return events


def _poll_exit(pid: int, deadline: float) -> bool:
    while True:
        try:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
                return True
        except ChildProcessError:  # the host ignores SIGCHLD: the kernel has reaped it
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_EVERY_S)
