"""Choose the session for a runner's calls outside turns."""

from typing import TYPE_CHECKING, Generic, TypeVar

from grue.engine.tool_servers import startup_timeouts
from grue.engine.turn import TurnSettings, refuse_inside_turn
from grue.engine.turn_actors import TurnResources
from grue.engine.wiring import connect_fresh
from grue.loading import importing
from grue.messages import ServerName
from grue.tool_sessions.connection import Connect
from grue.tool_sessions.server_specs import McpServer
from grue.tool_sessions.session_pool import SessionPool
from grue.tool_sessions.shared_session import SharedSession

if TYPE_CHECKING:
    from grue.engine.server_sessions import SessionWork

T = TypeVar("T")


class OutsideTurns(Generic[T]):
    """Calls outside turns. `run` makes them, once.

    If the episode keeps its sessions, they are used, between the batches of a turn that runs meanwhile.
    Otherwise new sessions are opened and closed again. A prewarmed session is never used: it belongs to the
    next turn, which expects it without any memory of earlier calls.

    Args:
        settings: The runner's settings.
        work: The calls.

    Raises:
        MCPError: The caller is inside a turn of the same runner.
    """

    def __init__(self, settings: TurnSettings, work: "SessionWork[T]") -> None:
        refuse_inside_turn(settings.wiring)
        self._settings = settings
        self._work = work

    async def run(self, resources: TurnResources) -> T:
        """Make the calls and return their result. Cancellation cancels them.

        Args:
            resources: The processes and sessions that the calls may use.
        """
        # Many programs only run turns.
        with importing():
            from grue.engine.server_sessions import SessionSources, with_sessions

        settings, pool = self._settings, resources.pool
        keeping = pool if pool is not None and pool.sessions == "kept" else None
        servers = settings.wiring.servers
        sources = SessionSources(
            connect={name: self._connect(name, resources, keeping) for name in servers},
            recorder=settings.wiring.recorder,
            startup_timeout_s=settings.limits.server_startup_timeout_s,
            startup_timeouts_s=startup_timeouts(
                settings.wiring.servers, settings.limits.server_startup_timeout_s
            ),
            tool_policy=settings.tool_policy,
            lasting=keeping is not None,
        )
        return await with_sessions(sources, self._work)

    def _connect(self, name: ServerName, resources: TurnResources, keeping: SessionPool | None) -> Connect:
        settings, sample = self._settings, None
        drift = settings.policy.on_tool_drift
        if keeping is None or not isinstance(settings.wiring.servers[name], McpServer):
            return connect_fresh(settings.wiring, name, resources.registry, drift)
        if settings.limits.max_samplings > 0:
            # A session that is opened here serves later turns too, so it offers what a turn's session does.
            sample = resources.sampling.on_behalf_of(name)
        connect = connect_fresh(settings.wiring, name, resources.registry, drift, sample)
        return lambda _: SharedSession(keeping, name, connect)
