"""`PresumedListings`: the tools that a turn may presume its servers to list, and where they are known from.

What the turn's machine makes of it is in `protocol/turn/sessions.py`. Decision 035 says why.
"""

import time
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from grue import messages as m
from grue.policies import FailurePolicy, OnToolDrift, StartWhen
from grue.protocol.tools.lock import ToolLock, screen
from grue.protocol.turn.connection import Disabled, Settled, Untried, is_given_up
from grue.runtime.processes.process_group import ProcessRegistry
from grue.tool_sessions.connection import Listing, SeenListing
from grue.tool_sessions.host_tools import HostCommands, HostFunctions, ToolServer
from grue.tool_sessions.server_specs import HttpServer, McpServer, StdioServer, in_its_box, starts_when_called


class PresumedListings:
    """The listings that the turns of a runner may presume. Thread-safe: turns may run in parallel.

    Args:
        servers: The runner's servers.
        lock: The tool lock, with the listings of its file; `None`: there is none.
    """

    def __init__(self, servers: Mapping[m.ServerName, ToolServer], lock: ToolLock | None) -> None:
        self._servers = servers
        self._lock = lock
        self._last: dict[m.ServerName, tuple[m.ToolDefinition, ...]] = {}
        self._recalled: dict[m.ServerName, tuple[m.ToolDefinition, ...]] = {}
        self._cached: dict[m.ServerName, SeenListing | None] = {}
        self._unsaved: dict[m.ServerName, SeenListing] = {}
        self._screenings: dict[
            tuple[m.ServerName, OnToolDrift],
            tuple[tuple[m.ToolDefinition, ...], tuple[m.ToolDefinition, ...]],
        ] = {}
        approved = {} if lock is None else {name: lock.listing(name) for name in lock.listings}
        self._locked = {name: tools for name, tools in approved.items() if tools is not None}

    def for_turn(
        self, command: m.RunTurn, connections: Mapping[m.ServerName, Settled], registry: ProcessRegistry
    ) -> m.ToolsPresumed | None:
        """Return the listings that a turn may presume; `None`: none, because a server's tools are not known.

        Args:
            command: The turn.
            connections: The state of each server. A disabled one offers nothing.
            registry: For the shell tool's listing.
        """
        waiting = {listing.server for listing in command.when_called}
        servers = [name for name in command.servers if name not in waiting]
        on = [name for name in servers if not isinstance(connections.get(name), Disabled)]
        starting = [name for name in on if not isinstance(self._servers[name], HostFunctions | HostCommands)]
        # Most turns presume nothing, and need not pay for the listing of functions.
        if not starting or not all(self._is_known(name) for name in starting):
            return None
        listings = [self._of(name, command.policy, registry) for name in on]
        known = tuple(listing for listing in listings if listing is not None)
        return m.ToolsPresumed(listings=known) if len(known) == len(on) else None

    def when_called(
        self, command: m.RunTurn, connections: Mapping[m.ServerName, Settled], at_s: float
    ) -> tuple[m.PresumedListing, ...]:
        """Return what a turn offers of the servers that start when they are called.

        A server whose tools are not known is not among them: it starts as others do, and its tools are known
        from then on. The same holds for one whose tools were listed longer ago than it said that they hold.
        Nor is one that was given up among them.

        Args:
            command: The turn.
            connections: The state of each server.
            at_s: The time, on the event loop's clock.
        """
        found = (
            self._listing(name, command.policy)
            for name in command.servers
            if starts_when_called(self._servers[name])
            and not self._is_stale(name)
            and not is_given_up(connections.get(name, Untried()), command.policy, at_s)
        )
        return tuple(listing for listing in found if listing is not None)

    def learn(self, name: m.ServerName, tools: tuple[m.ToolDefinition, ...]) -> None:
        """Take over what a server has listed in a turn, screened."""
        if self._may_presume(name):
            self._last[name] = tools

    def recall(self, listings: Mapping[m.ServerName, tuple[m.ToolDefinition, ...]]) -> None:
        """Take over the listings in a trace that is resumed. Those that this runner has seen come first."""
        self._recalled.update((name, tools) for name, tools in listings.items() if tools)

    def take_spoken(self, name: m.ServerName) -> str:
        """Return the MCP revision that a server spoke when it was last seen; empty: that is not known.

        It counts as not known from then on, in the cache too, until the server has listed its tools. So a
        server that ends because it is asked in that form is started as usual the next time.
        """
        seen = self._unsaved.get(name) or self._from_cache(name)
        if seen is None or not seen.protocol_version:
            return ""
        self._unsaved[name] = replace(seen, protocol_version="")
        return seen.protocol_version

    def on_listed(self, name: m.ServerName) -> Callable[[SeenListing], None] | None:
        """Return a function that takes a server's listings as they come; `None`: they are not cached."""
        if not self._may_remember(name):
            return None
        return lambda seen: self._unsaved.update({name: seen})

    def unsaved(self) -> list[tuple[McpServer, SeenListing]]:
        """Return the listings that the cache does not hold yet. They count as stored from now on."""
        new, self._unsaved = self._unsaved, {}
        changed = {name: seen for name, seen in new.items() if self._cached.get(name) != seen}
        self._cached |= changed
        servers = ((self._servers[name], seen) for name, seen in changed.items())
        return [(server, seen) for server, seen in servers if isinstance(server, StdioServer | HttpServer)]

    def _is_known(self, name: m.ServerName) -> bool:
        return self._may_presume(name) and self._found(name) is not None

    def _is_stale(self, name: m.ServerName) -> bool:
        seen = self._unsaved.get(name) or self._from_cache(name)
        return seen is not None and seen.expires_at is not None and seen.expires_at < time.time()

    def _found(self, name: m.ServerName) -> tuple[m.ListingSource, tuple[m.ToolDefinition, ...]] | None:
        """Return the listing of a server from the best source, with that source."""
        sources: tuple[tuple[m.ListingSource, Mapping[m.ServerName, tuple[m.ToolDefinition, ...]]], ...] = (
            ("runner", self._last),
            ("trace", self._recalled),
        )
        for source, listings in sources:
            if name in listings:
                return source, listings[name]
        cached = self._from_cache(name)
        if cached is not None:
            return "cache", cached.tools
        return ("locked", self._locked[name]) if name in self._locked else None

    def _from_cache(self, name: m.ServerName) -> SeenListing | None:
        server = self._servers[name]
        if not self._may_remember(name) or not isinstance(server, StdioServer | HttpServer):
            return None
        if name not in self._cached:
            from grue.transports.mcp.listing_cache import ListingCache  # few programs need it

            self._cached[name] = ListingCache().load(name, server)
        return self._cached[name]

    def _of(
        self, name: m.ServerName, policy: FailurePolicy, registry: ProcessRegistry
    ) -> m.PresumedListing | None:
        match self._servers[name]:
            case HostFunctions() as functions:
                return _known(name, functions.connect(name).listing)
            case HostCommands() as shell:
                return _known(name, shell.connect(name, registry).listing)
        return self._listing(name, policy)

    def _listing(self, name: m.ServerName, policy: FailurePolicy) -> m.PresumedListing | None:
        found = self._found(name)
        if found is None:
            return None
        source, tools = found
        if source != "runner":
            tools = self._screened_once(name, tools, policy)
        return m.PresumedListing(server=name, tools=tools, source=source)

    def _screened_once(
        self, name: m.ServerName, tools: tuple[m.ToolDefinition, ...], policy: FailurePolicy
    ) -> tuple[m.ToolDefinition, ...]:
        before = self._screenings.get((name, policy.on_tool_drift))
        if before is not None and before[0] is tools:
            return before[1]
        screened = self._screened(name, tools, policy)
        self._screenings[name, policy.on_tool_drift] = tools, screened
        return screened

    def _may_presume(self, name: m.ServerName) -> bool:
        locked = self._start_of(name) == "beside_if_locked" and name in self._locked
        return locked or self._may_remember(name)

    def _may_remember(self, name: m.ServerName) -> bool:
        """Return whether a list counts that was seen before, wherever that was."""
        return self._start_of(name) in ("beside", "when_called")

    def _start_of(self, name: m.ServerName) -> StartWhen:
        server = self._servers.get(name)
        own = server.options.start if isinstance(server, StdioServer | HttpServer) else None
        return own or "beside_if_locked"

    def _screened(
        self, name: m.ServerName, tools: tuple[m.ToolDefinition, ...], policy: FailurePolicy
    ) -> tuple[m.ToolDefinition, ...]:
        """Return the tools that a session would offer if the server listed these."""
        server = self._servers[name]
        tools = tuple(replace(tool, server=name, trusted=False) for tool in tools)
        if isinstance(server, StdioServer | HttpServer):
            tools = in_its_box(server, server.options.select(tools, lambda _kind, _text: None))
        if self._lock is not None:
            tools, _ = screen(self._lock.pins(name), name, tools, policy.on_tool_drift)
        return tools


def _known(name: m.ServerName, listing: Listing) -> m.PresumedListing | None:
    if listing.serves_unlisted:
        return None
    return m.PresumedListing(server=name, tools=listing.tools, source="known")
