"""Use an `MCPManager` with overridden methods as the tool server of a turn, by calling its methods.

If the overriding methods call the original ones, the turn gets the same facts as from an ordinary manager:
why the server did not start, whether it died, its process, how it ended, and the end of its standard error.
"""

from types import TracebackType

from grue.engine.owned_session import OwnedSession
from grue.errors import MCPServerStartupError
from grue.hosts.zork.manager import MCPManager
from grue.hosts.zork.manager_connection import ManagerConnection
from grue.hosts.zork.session_news import TurnUse
from grue.messages import JsonObject, SessionClosed, ToolCallResult
from grue.runtime.actor import Note
from grue.tool_sessions.connection import Connect, Ending, Listing, ServerExit
from grue.tool_sessions.failures import ServerFailed

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

    async def call(self, tool: str, arguments: JsonObject, timeout_s: float) -> ToolCallResult:
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
    def pid(self) -> int | None:
        """The server's process."""
        return self._session.pid if self._session else None

    @property
    def exit(self) -> ServerExit | None:
        """How the process ended; `None` unless it exited with a status."""
        closed = self._closed
        return ServerExit(closed.exit_status) if closed and closed.exit_status is not None else None

    @property
    def ending(self) -> Ending | None:
        """How the process had to be ended, if it had to be."""
        closed = self._closed
        return None if closed is None or closed.ending == "none" else closed.ending

    @property
    def stderr_tail(self) -> str:
        """The last output of the server on standard error."""
        return self._closed.stderr_tail if self._closed else ""

    @property
    def _session(self) -> OwnedSession | None:
        """The session that the original methods have opened in this turn, if any."""
        session = self._lent.session
        return None if session is self._before else session

    @property
    def _closed(self) -> SessionClosed | None:
        return self._session.closed if self._session else None

    def _failure(self, error: Exception, started: float) -> ServerFailed:
        known = self._lent.failure
        if isinstance(error, MCPServerStartupError) and known is not None:
            return ServerFailed(known)
        return super()._failure(error, started)


def connect_overridden(manager: MCPManager) -> Connect:
    """Return a tool server for a `Runner`, which connects by calling the manager's methods."""
    return lambda note: OverriddenManagerConnection(manager, note)
