"""What a server's configuration says beyond how it is reached: time limits, and which tools it may offer."""

from fnmatch import fnmatchcase

from msgspec import Struct

from grue.messages import ToolDefinition
from grue.tool_sessions.notices import Notify


class ServerOptions(Struct, frozen=True, kw_only=True):
    """Limits and choices for one server.

    A turn has limits of its own, and where both have one, the smaller holds: neither can make the other wait.

    Attributes:
        call_timeout_s: Most that one call of a tool may take; `None`: what the turn allows.
        startup_timeout_s: Most that handshake and listing may take together; `None`: what the turn allows.
        include: Bare names of the tools that are offered, or patterns with `*`, `?` and `[...]`; `None`: all.
        roots: `file://` URIs of the folders that the server may work in; `None`: it is not told of any.
        exclude: Names or patterns of those that are not, even where `include` has them.
    """

    call_timeout_s: float | None = None
    startup_timeout_s: float | None = None
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    roots: tuple[str, ...] | None = None

    def call_limit(self, timeout_s: float) -> float:
        """Return the limit of a call that its caller gives `timeout_s`."""
        return _smaller(timeout_s, self.call_timeout_s)

    def startup_limit(self, timeout_s: float) -> float:
        """Return the limit of a start that its caller gives `timeout_s`."""
        return _smaller(timeout_s, self.startup_timeout_s)

    def select(self, tools: tuple[ToolDefinition, ...], notify: Notify) -> tuple[ToolDefinition, ...]:
        """Return the tools that are offered, in the listing's order.

        An entry of `include` that fits no tool is reported as `bad_tool`: it is a misspelling, or the server
        has changed.
        """
        names = [tool.tool for tool in tools]
        for pattern in self.include or ():
            if not any(fnmatchcase(name, pattern) for name in names):
                notify("bad_tool", f"tools.include has {pattern!r}, and the server lists no such tool")
        return tuple(tool for tool in tools if self.offers(tool.tool))

    def offers(self, tool: str) -> bool:
        """Say whether a tool of this bare name is offered."""
        wanted = self.include is None or any(fnmatchcase(tool, pattern) for pattern in self.include)
        return wanted and not any(fnmatchcase(tool, pattern) for pattern in self.exclude)


def _smaller(timeout_s: float, own_s: float | None) -> float:
    return timeout_s if own_s is None else min(timeout_s, own_s)
