"""Give other tasks a turn in a loop that may never have to wait."""

import time

import anyio.lowlevel

STRETCH_S = 0.005
"""Longest stretch of work without a pause."""


class Pace:
    """Pauses a loop when it has worked for `STRETCH_S` without waiting for anything."""

    def __init__(self) -> None:
        self._due = 0.0

    async def pause(self) -> None:
        """Let other tasks run, if it is time to; a cancellation strikes here."""
        if time.monotonic() >= self._due:
            await anyio.lowlevel.checkpoint()
            self.paused()

    def paused(self) -> None:
        """Take note that the loop has waited for something else just now."""
        self._due = time.monotonic() + STRETCH_S
