"""What the skill agent records: its servers, steps and skills, and how a run begins and ends.

Each fact about MCP is an event, too, with the name that programs which read `events.jsonl` expect.
"""

from typing import ClassVar

from grue.facts import Fact, LogLevel, LogLine, Severity, register_facts


class HostEvent(Fact, frozen=True, kw_only=True):
    """Base of facts that are one event each: the name of the event, and how serious it is."""

    between_turns: ClassVar[bool] = True
    event: ClassVar[str] = ""
    level: ClassVar[LogLevel] = "info"

    def severity(self) -> Severity:
        """Return `fail` or `warn`, as the level says."""
        severities: dict[LogLevel, Severity] = {"error": "fail", "warning": "warn"}
        return severities.get(self.level, "")

    def mark(self) -> str:
        """Return the event's name if it reports a problem."""
        return "" if self.level == "info" else self.event.removeprefix("mcp_").replace("_", " ")

    def log_lines(self) -> tuple[LogLine, ...]:
        """Return the event."""
        return (LogLine(self.level, self.event, self.summary(), self.log_fields()),)


class McpServersConnected(HostEvent, frozen=True, kw_only=True, tag="skillagent.McpServersConnected"):
    """The servers are connected, or those that could be. `tools` has the names that calls use."""

    event: ClassVar[str] = "mcp_servers_connected"

    servers: tuple[str, ...]
    tools: tuple[str, ...]

    def summary(self) -> str:
        """Return how many tools there are, and of which servers."""
        return f"{len(self.tools)} tools from {', '.join(self.servers) or 'no server'}"


class McpConnectionFailed(HostEvent, frozen=True, kw_only=True, tag="skillagent.McpConnectionFailed"):
    """A server could not be connected.

    Attributes:
        server: The server; empty if the failure concerns none, as when the package `mcp` is absent.
        goes_on_with: The servers that are used without it.
    """

    event: ClassVar[str] = "mcp_connection_failed"
    level: ClassVar[LogLevel] = "warning"

    server: str
    error: str
    goes_on_with: tuple[str, ...] = ()

    def summary(self) -> str:
        """Return the error and what follows."""
        return f"{self.error} Going on with {', '.join(self.goes_on_with) or 'no MCP tools'}."


class McpToolShadowed(HostEvent, frozen=True, kw_only=True, tag="skillagent.McpToolShadowed"):
    """Two servers have a tool of the same name. The bare name means the one of `server`."""

    event: ClassVar[str] = "mcp_tool_shadowed"
    level: ClassVar[LogLevel] = "warning"

    tool: str
    server: str
    shadowed: str

    def summary(self) -> str:
        """Return both servers and the names to use."""
        return (
            f"{self.server} and {self.shadowed} both have a tool {self.tool!r}: {self.tool} means that of"
            f" {self.server}, and {self.shadowed}.{self.tool} the other one"
        )


class McpServersDisconnected(HostEvent, frozen=True, kw_only=True, tag="skillagent.McpServersDisconnected"):
    """The servers were disconnected. `error` says what failed in it; the run goes on regardless."""

    event: ClassVar[str] = "mcp_servers_disconnected"

    error: str = ""

    def summary(self) -> str:
        """Return the error, if there was one."""
        return f"MCP servers disconnected{f': {self.error}' if self.error else ''}"


FACTS: tuple[type[Fact], ...] = (
    McpServersConnected,
    McpConnectionFailed,
    McpToolShadowed,
    McpServersDisconnected,
)

register_facts("skillagent", *FACTS)
