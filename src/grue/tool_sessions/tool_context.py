"""`ToolContext`: lets a function of `FunctionTools` report progress, and ask whether it was cancelled."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from grue import messages as m
from grue.errors import MCPError
from grue.policies import NoticeKind
from grue.runtime.safe_text import beginning, plain_text

_NOTICE_CHARS = 500
_MAX_NOTICES = 500
"""Most notices of one call. A function that reports in a tight loop would fill the trace."""

ContextNotify: TypeAlias = Callable[[NoticeKind, str], None]


class ToolCancelled(MCPError):  # noqa: N818 - named as the event, like the other cancellations
    """Raised by `ToolContext.raise_if_cancelled`; the call's result is no longer wanted."""


class ToolContext:
    """One call of a function tool: its time limit, whether it was cancelled, and where it reports progress.

    Give a function a parameter of this type, with any name. The model does not see the parameter. All methods
    can be called from the function's own thread.

    ```python
    @tool
    def dig(depth_m: int, context: ToolContext) -> str:
        for metre in range(depth_m):
            context.raise_if_cancelled()
            context.progress(metre, depth_m)
            ...
    ```

    A coroutine function is cancelled at its time limit like any task. A plain function runs in a thread, and
    Python cannot stop a thread: it should look at `cancelled` from time to time, or wait with `wait`.

    Attributes:
        server: The server's name.
        tool: The tool's bare name.
    """

    def __init__(self, server: m.ServerName, tool: str, timeout_s: float, notify: ContextNotify) -> None:
        self.server = server
        self.tool = tool
        self._deadline = time.monotonic() + timeout_s
        self._notify = notify
        self._notices = 0
        self._over = False
        self._cancelled = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()

    @property
    def cancelled(self) -> bool:
        """Whether the call has timed out or was cancelled, so that its result is dropped."""
        return self._cancelled.is_set()

    @property
    def remaining_s(self) -> float:
        """Seconds until the call's time limit; 0 once it has passed."""
        return max(0.0, self._deadline - time.monotonic())

    def raise_if_cancelled(self) -> None:
        """Raise `ToolCancelled` if the call has timed out or was cancelled."""
        if self.cancelled:
            raise ToolCancelled(f"The call of {self.server}.{self.tool} was cancelled.")

    def wait(self, timeout_s: float) -> bool:
        """Sleep, but wake up at once if the call is cancelled. For plain functions; it blocks the thread.

        Returns:
            Whether the call was cancelled.
        """
        return self._cancelled.wait(timeout_s)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report how far the call is. It is shown as a server's own progress is.

        Args:
            done: The part that is done, in any unit.
            total: The whole, in the same unit; `None`: unknown.
            message: What is being done now.
        """
        share = f"{done:g}" if total is None else f"{done:g}/{total:g}"
        self._send("progress", f"{share} {message}" if message else share)

    def log(self, text: str) -> None:
        """Write a line to the trace. It is shown as a server's log messages are."""
        self._send("log", text)

    def _send(self, kind: NoticeKind, text: str) -> None:
        shown = plain_text(beginning(text, _NOTICE_CHARS))[:_NOTICE_CHARS]
        if threading.get_ident() == self._loop_thread:
            self._deliver(kind, shown)
        elif not self.cancelled:
            # The loop delivers these in order, and before the function's result, which takes the same way.
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._deliver, kind, shown)

    def _deliver(self, kind: NoticeKind, text: str) -> None:
        if self._over:
            return  # a thread that was abandoned; the call has been answered
        self._notices += 1
        if self._notices < _MAX_NOTICES:
            self._notify(kind, text)
        elif self._notices == _MAX_NOTICES:
            self._notify(
                "too_large", f"{self.tool}: more than {_MAX_NOTICES} notices; further ones are left out"
            )

    def _end(self, *, cancelled: bool) -> None:
        """End the call, in the event loop. Later notices are dropped."""
        self._over = True
        if cancelled:
            self._cancelled.set()
