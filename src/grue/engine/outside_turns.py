"""Where a runner's calls outside turns get their sessions from."""

from collections.abc import Mapping
from typing import TypeVar

from grue.engine.server_sessions import SessionSources, SessionWork, with_sessions
from grue.engine.turn import TurnSettings
from grue.engine.turn_actors import TurnResources
from grue.engine.wiring import connect_fresh
from grue.messages import ServerName
from grue.tool_sessions.connection import Connect
from grue.tool_sessions.server_specs import McpServer
from grue.tool_sessions.shared_session import SharedSession

T = TypeVar("T")


async def run_outside_turns(settings: TurnSettings, resources: TurnResources, work: SessionWork[T]) -> T:
    """Run `work` with sessions for it, and return its result. Cancellation cancels the calls.

    If the episode keeps its sessions, they are used, between the batches of a turn that runs meanwhile.
    Otherwise new sessions are opened and closed again. A prewarmed session is never used: it belongs to the
    next turn, which expects it without any memory of earlier calls.

    Args:
        settings: The runner's settings.
        resources: The processes and sessions that the work may use.
        work: The calls.
    """
    kept = resources.pool is not None and resources.pool.sessions == "kept"
    sources = SessionSources(
        connect=_connects(settings, resources, kept=kept),
        recorder=settings.wiring.recorder,
        startup_timeout_s=settings.limits.server_startup_timeout_s,
        tool_policy=settings.tool_policy,
        lasting=kept,
    )
    return await with_sessions(sources, work)


def _connects(
    settings: TurnSettings, resources: TurnResources, *, kept: bool
) -> Mapping[ServerName, Connect]:
    servers = settings.wiring.servers
    return {
        name: _kept(settings, resources, name)
        if kept and isinstance(server, McpServer)
        else connect_fresh(settings.wiring, name, resources.registry, settings.policy.on_tool_drift)
        for name, server in servers.items()
    }


def _kept(settings: TurnSettings, resources: TurnResources, name: ServerName) -> Connect:
    # A session that is opened here serves later turns too, so it offers the server what a turn's does.
    sampled = settings.limits.max_samplings > 0
    sample = resources.sampling.on_behalf_of(name) if sampled else None
    drift, pool = settings.policy.on_tool_drift, resources.pool
    assert pool is not None, "only a pool keeps sessions"
    connect = connect_fresh(settings.wiring, name, resources.registry, drift, sample)
    return lambda _: SharedSession(pool, name, connect)
