"""Use tool servers without an agent, from synchronous code: connect, call, close.

The sessions work as in a turn, with the same actor. The difference is their lifetime: one event loop in a
background thread (`EpisodeLoop`) owns them until the `with` block is left, so that a session stays open
between calls. The thread is a daemon; the interpreter closes its loop at exit.

The state of each server is used in that loop only, and a session is opened under a lock. So any number of
threads can call at the same time: they share one session per server, and each gets its own result.
"""

import contextlib
import weakref
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Self, TypeVar

import anyio

from grue import messages as m
from grue.engine.argument_checks import refuse_other_kinds, settings_or_default
from grue.engine.outside_turns.server_sessions import ServerSessions, SessionSources, SessionWork, ToolAccess
from grue.engine.tool_servers import connect_to, hide_secrets, startup_limits, usable_servers
from grue.errors import MCPError, TurnCancelled
from grue.policies import TurnLimits
from grue.runtime.loops.interrupts import defer_interrupts
from grue.runtime.loops.loop_thread import EpisodeLoop, ErrorTexts
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.processes.process_group import ProcessRegistry
from grue.runtime.trace.recorder import Recorder
from grue.tool_sessions.host_tools import ToolServer
from grue.tool_sessions.server_requests import Abilities, Elicit
from grue.transports.mcp.client_options import ClientOptions

T = TypeVar("T")


class ToolClient(ToolAccess):
    """Keep sessions with tool servers open until the block is left. Then no server process is alive.

    ```python
    with ToolClient({"files": StdioServer(name="files", command="mcp-files")}) as client:
        print(client.call("files.read", {"path": "notes.txt"}).content)
    ```

    Thread-safe. Threads share one session per server. Calls to one server run one at a time, and calls to
    different servers run in parallel. Ctrl-C cancels the current call; leaving the block then gives the
    servers only as much time as a cancelled turn does. If the block is never left, the client is closed at
    the interpreter's exit or when it is garbage collected.

    Args:
        servers: By name, as for a `Runner`.
        limits: Only `server_startup_timeout_s` and `tool_call_timeout_s` are used.
        recorder: Records the sessions' messages; `None`: they are not recorded.
        process_limits: How server processes are ended.
        elicit: Asks the user a server's question, in the sessions' event loop; `None`: always declined.
        max_reconnects: How often each server that has died is connected again, before the next call to it;
            `None`: without limit. The call that met its death is never repeated.

    Raises:
        MCPConfigError: A server name cannot be used.
        MissingDependencyError: There is a server process to talk to, and `mcp` is absent or too old.

    Source: R14.4, P9
    """

    def __init__(
        self,
        servers: Mapping[str, ToolServer],
        *,
        limits: TurnLimits | None = None,
        recorder: Recorder | None = None,
        process_limits: ProcessLimits | None = None,
        elicit: Elicit | None = None,
        max_reconnects: int | None = 0,
    ) -> None:
        refuse_other_kinds(recorder=recorder, elicit=elicit, process_limits=process_limits)
        self.limits = settings_or_default("limits", limits, TurnLimits())
        self.recorder = recorder or Recorder()
        self._servers = usable_servers(servers)
        self._options = ClientOptions(
            limits=process_limits or ProcessLimits(),
            abilities=Abilities(elicit=elicit),
            on_secret=self.recorder.hide,
        )
        hide_secrets(self.recorder, self._servers.values())
        self._max_reconnects = max_reconnects
        self._registry = ProcessRegistry()
        self._sessions = self._new_sessions()
        self._loop: EpisodeLoop | None = None

    def __enter__(self) -> Self:
        self._sessions = sessions = self._new_sessions()
        self._loop = EpisodeLoop(
            lambda _: _closing_at_end(sessions),
            on_exit=self._registry.kill_leftovers,
            force_kill=self._registry.kill_now,
            error_texts=_ERROR_TEXTS,
        )
        # Ends the loop if the client is garbage collected without having been closed.
        self._lost = weakref.finalize(self, self._loop.end)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._close(hurried=exc_type is not None and not issubclass(exc_type, Exception))

    def close(self) -> None:
        """Close every session and wait until its process has ended. A second call does nothing.

        Calls of other threads that are still running raise an error.
        """
        self._close(hurried=False)

    @property
    def closed(self) -> Mapping[str, m.SessionClosed]:
        """How each closed session ended."""
        return self._sessions.closed

    def connect(self, *names: str) -> Mapping[str, m.SessionOpened | m.ServerFailure]:
        """Connect to servers in parallel and return the result for each, in order. Nothing is retried.

        An open session is kept. If its server has died, it is replaced by a new session.

        Args:
            names: Names of the servers; none: all configured ones.

        Raises:
            KeyError: There is no server of that name.
        """
        wanted = [m.ServerName(name) for name in names] or list(self._servers)
        for name in wanted:
            self._servers[name]
        outcomes = self._outside_turns(lambda sessions: sessions.connect(wanted))
        return {str(name): outcome for name, outcome in outcomes.items()}

    def _new_sessions(self) -> ServerSessions:
        connect = {
            name: connect_to(name, server, self._registry, self._options)
            for name, server in self._servers.items()
        }
        return ServerSessions(
            SessionSources(
                connect=connect,
                recorder=self.recorder,
                limits=startup_limits(self.limits, self._servers),
                max_reconnects=self._max_reconnects,
                lasting=True,
            )
        )

    def _outside_turns(self, work: SessionWork[T]) -> T:
        """Run `work` in the sessions' loop and wait. An interrupted wait cancels it."""
        loop, sessions = self._loop, self._sessions
        if loop is None:
            raise RuntimeError("use the ToolClient in a `with` block")
        loop.loop_thread.refuse_waiting()
        with defer_interrupts():
            try:
                return loop.submit(lambda: work(sessions)).wait(force_kill=self._registry.kill_now)
            except TurnCancelled as cut:
                raise MCPError(str(cut)) from cut.__cause__

    def _close(self, *, hurried: bool) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        self._lost.detach()
        sessions = self._sessions
        with defer_interrupts():
            try:
                if not loop.is_over and not loop.loop_thread.is_here:
                    loop.submit(lambda: sessions.close(hurried=hurried)).wait(
                        force_kill=self._registry.kill_now
                    )
            finally:
                loop.close()


@contextlib.asynccontextmanager
async def _closing_at_end(sessions: ServerSessions) -> AsyncIterator[None]:
    """Close the sessions when the loop ends, for whatever reason."""
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await sessions.close(hurried=True)


_ERROR_TEXTS = ErrorTexts(
    forked="The ToolClient is its parent process's: make a new one after a fork.",
    waiting="A ToolClient cannot be waited for in its own event loop, where what it asks the host runs.",
    closed="The ToolClient is closed.",
    ended_early="The ToolClient was closed before the call was over.",
)
