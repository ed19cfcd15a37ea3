"""Options of a tool server that hold for any transport: time limits, and which of its tools are offered."""

from fnmatch import fnmatchcase
from typing import get_args

from msgspec import Struct

from grue import messages as m
from grue.errors import MCPConfigError
from grue.policies import StartAhead, StartWhen
from grue.tool_sessions.notices import Notify


class ServerOptions(Struct, frozen=True, kw_only=True):
    """Time limits and tool choices of one server.

    A turn has a time limit for calls too; the smaller of the two applies.

    Attributes:
        call_timeout_s: Time limit of one tool call; `None`: the turn's.
        startup_timeout_s: Time limit from spawning to the listing; `None`: the turn's. It replaces the
            turn's, also if it is longer.
        startup_timeout_place: Where that limit can be written, in words, for the advice after a slow start.
            A configuration file sets it.
        exit_grace_s: How long a server process may take to exit after its input was closed, before it gets
            SIGTERM; `None`: as the runner's `ProcessLimits` say, 2 s by default.
        include: Bare names of the tools to offer, or patterns with `*`, `?` and `[...]`; `None`: all.
        exclude: Names or patterns of the tools not to offer. It wins over `include`.
        required: Whether the first connect of an episode has to succeed. `True`: a failure ends the turn with
            an error. `False`: the episode goes on without the server. `None`: the turn's `FailurePolicy`.
        check_arguments: Whether a call that the tool's input schema refuses is answered with an error instead
            of being sent. Switch it off for a server whose schemas are wrong.
        start: When it starts, one of `StartWhen`; `None`: as the runner's `start` says.
        roots: `file://` URIs of the folders that the server may work in; `None`: it is not given any.
    """

    call_timeout_s: float | None = None
    startup_timeout_s: float | None = None
    startup_timeout_place: str = "startup_timeout_s in the ServerOptions of this server"
    exit_grace_s: float | None = None
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    roots: tuple[str, ...] | None = None
    required: bool | None = None
    check_arguments: bool = True
    start: StartWhen | None = None

    def __post_init__(self) -> None:
        """Refuse a `start` that there is not."""
        if self.start in (None, *get_args(StartWhen)):
            return
        if self.start in get_args(StartAhead):
            raise MCPConfigError(
                f'start="{self.start}" is for all servers of a runner: write Runner(start="{self.start}").'
            )
        known = ", ".join(f'"{each}"' for each in get_args(StartWhen))
        raise MCPConfigError(f"The start of a server is one of {known}, not {self.start!r:.60}.")

    def __eq__(self, other: object) -> bool:
        """Compare everything but the place: options are the same wherever they are written."""
        return isinstance(other, ServerOptions) and self._effective() == other._effective()

    def __hash__(self) -> int:
        return hash(self._effective())

    def _effective(self) -> tuple[object, ...]:
        names = (name for name in self.__struct_fields__ if name != "startup_timeout_place")
        return tuple(getattr(self, name) for name in names)

    def call_limit(self, timeout_s: float) -> float:
        """Return the smaller of the caller's `timeout_s` and the server's limit for a call."""
        return timeout_s if self.call_timeout_s is None else min(timeout_s, self.call_timeout_s)

    def select(self, tools: tuple[m.ToolDefinition, ...], notify: Notify) -> tuple[m.ToolDefinition, ...]:
        """Return the tools to offer, in the order of the listing.

        An entry of `include` or `exclude` that matches no tool is reported as a `bad_tool` notice, because
        it is misspelt or the server has changed.
        """
        names = [tool.tool for tool in tools]
        entries = [("include", each) for each in self.include or ()]
        entries += [("exclude", each) for each in self.exclude]
        for key, pattern in entries:
            if not any(fnmatchcase(name, pattern) for name in names):
                notify("bad_tool", f"tools.{key} has {pattern!r}, and the server lists no such tool")
        return tuple(tool for tool in tools if self.offers(tool.tool))

    def offers(self, tool: str) -> bool:
        """Return whether to offer the tool with this bare name."""
        wanted = self.include is None or any(fnmatchcase(tool, pattern) for pattern in self.include)
        return wanted and not any(fnmatchcase(tool, pattern) for pattern in self.exclude)
