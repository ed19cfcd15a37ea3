"""The gate: an optional object, used by fleets, that has to permit each start of an MCP server process."""

from typing import Protocol


class ServerPlace(Protocol):
    """The permission to run one server process. The gate may have only a few such permissions to give."""

    def leave(self) -> None:
        """Give the place back. Called once; does not block."""


class ServerGate(Protocol):
    """Decides when a server process may be started. Used from any event loop and thread."""

    async def admit(self) -> "ServerPlace | str":
        """Wait for a place, and return it or a sentence that says why no server may start. Safe to cancel."""


_gates: list[ServerGate] = []


def set_server_gate(gate: ServerGate | None) -> None:
    """Set the gate at which this process waits before it starts a server; `None`: it does not wait."""
    _gates[:] = [] if gate is None else [gate]


def server_gate() -> ServerGate | None:
    """Return the gate that `set_server_gate` has set, or `None`."""
    return _gates[0] if _gates else None
