"""Use an `MCPManager` with overridden methods as the tool server of a turn, by calling its methods.

If the overriding methods call the original ones, the turn gets the same facts as from an ordinary manager:
why the server did not start, whether it died, its process, how it ended, and the end of its standard error.
"""

from types import TracebackType

from grue import messages as m
from grue.errors import MCPServerStartupError
from grue.hosting import Connect, ConnectionStatus, Listing, Note, OwnedSession, ServerExit, ServerFailed
from grue.hosts.zork.manager import MCPManager
from grue.hosts.zork.manager_connection import ManagerConnection
from grue.hosts.zork.session_news import TurnUse

_REPORT_S = 0.45
"""Extra time for `connect_session`, which applies the start-up limit itself and then reports the cause."""


class OverriddenManagerConnection(ManagerConnection):
    """One session with a manager whose methods are overridden.

    The manager connects and disconnects in one task. Its connect gets one attempt with the turn's time
    limits. Its logger and Langfuse client get the events of the turn and not those of the coroutines.

    Args:
        manager: The manager.
        note: Puts a note into the turn's trace.
    """

    report_s = _REPORT_S

    def __init__(self, manager: MCPManager, note: Note) -> None:
        super().__init__(manager, manager.server_name, note)
        self._lent = manager
        self._before = manager.session

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(exc_type, exc, tb)
        finally:
            self._lent.give_back()

    async def open(self, timeout_s: float) -> Listing:
        """Connect and list the tools.

        Raises:
            ServerFailed: The connect failed. If the original method failed, this has the cause it found.
        """
        self._lent.lend(TurnUse(self._note, timeout_s))
        return await super().open(timeout_s)

    async def call(self, tool: str, arguments: m.JsonObject, timeout_s: float) -> m.ToolCallResult:
        """Call a tool by the manager's `call_tool`.

        Raises:
            ServerFailed: The result is an error, and the server has died.
            ToolTimedOutError: The manager raised `TimeoutError`, or took longer than `timeout_s`.
        """
        result = await super().call(tool, arguments, timeout_s)
        session = self._session
        if result.is_error and session is not None and session.died is not None:
            raise ServerFailed(session.died)
        return result

    @property
    def status(self) -> ConnectionStatus:
        """The state of the server's process, as the manager's own session reports it."""
        session = self._session
        if session is None:
            return ConnectionStatus()
        closed = session.closed
        if closed is None:
            return ConnectionStatus(pid=session.pid)
        return ConnectionStatus(
            pid=session.pid,
            exit=None if closed.exit_status is None else ServerExit(closed.exit_status),
            ending=closed.ending,
            stderr_tail=closed.stderr_tail,
        )

    @property
    def _session(self) -> OwnedSession | None:
        """The session that the original methods have opened in this turn, if any."""
        session = self._lent.session
        return None if session is self._before else session

    def _failure(self, error: Exception, started: float) -> ServerFailed:
        known = self._lent.failure
        if isinstance(error, MCPServerStartupError) and known is not None:
            return ServerFailed(known)
        return super()._failure(error, started)


def connect_overridden(manager: MCPManager) -> Connect:
    """Return a tool server for a `Runner`, which connects by calling the manager's methods."""
    return lambda note: OverriddenManagerConnection(manager, note)
