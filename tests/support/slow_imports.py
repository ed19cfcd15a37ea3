"""Let imports of the MCP client take two minutes by the clock of its time limits, but no real time."""

import time
from types import ModuleType

import anyio
import pytest

from grue.runtime.loading import load

_TAKES_S = 120.0


class SlowImports:
    """Replaces the MCP client's clock and its function for imports.

    Attributes:
        deadlines: anyio's effective deadline at each import.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.deadlines: list[float] = []
        self._late_s = 0.0
        monkeypatch.setattr("grue.transports.mcp.client.time", self)
        monkeypatch.setattr("grue.transports.mcp.client.load", self._load)

    def monotonic(self) -> float:
        """Return the time, plus two minutes for each import so far."""
        return time.monotonic() + self._late_s

    def _load(self, name: str) -> ModuleType:
        self.deadlines.append(anyio.current_effective_deadline())
        self._late_s += _TAKES_S
        return load(name)
