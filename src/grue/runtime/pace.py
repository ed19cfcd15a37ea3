"""Yield to other tasks in a long `while` or `for` loop that may never await anything."""

import time

import anyio.lowlevel

STRETCH_S = 0.005
"""Longest time in seconds without a pause."""


class Pace:
    """Pauses a loop when it has worked for `STRETCH_S` without waiting for anything."""

    def __init__(self) -> None:
        self._due = 0.0

    async def pause(self) -> None:
        """Let other tasks run if the time is up. A cancellation is raised here."""
        if time.monotonic() >= self._due:
            await anyio.lowlevel.checkpoint()
            self.paused()

    async def pause_shielded(self) -> None:
        """Let other tasks run if the time is up, without taking a cancellation."""
        if time.monotonic() >= self._due:
            await anyio.lowlevel.cancel_shielded_checkpoint()
            self.paused()

    def paused(self) -> None:
        """Restart the time, because the caller has just awaited something."""
        self._due = time.monotonic() + STRETCH_S
