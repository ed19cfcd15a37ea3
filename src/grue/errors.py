"""Every error that grue raises on purpose, under one root.

The root is called `MCPError` because the programs that grue serves catch that name. Each error says in its
text what was wrong, where, and what to do about it; the attributes hold the same facts for programs.
"""


class MCPError(Exception):
    """Root of every error that grue raises on purpose (R9.3, R12.5)."""


class MCPConfigError(MCPError):
    """A configuration file, table or value cannot be used; raised before anything starts (R2.2, R2.3).

    Attributes:
        path: The file, or `None` when the value did not come from a file.
        line: One-based line of the fault, or `None`.
        column: One-based column of the fault, or `None`.
    """

    def __init__(
        self, message: str, *, path: str | None = None, line: int | None = None, column: int | None = None
    ) -> None:
        super().__init__(message)
        self.path = path
        self.line = line
        self.column = column


class MissingDependencyError(MCPConfigError):
    """A package or program that the configuration asks for is not installed; the text has the command."""


class GameError(MCPError):
    """A game cannot be started, restored or played any further."""


class MCPServerStartupError(MCPError):
    """An MCP server could not be started on the first turn of an episode (R6.1).

    Attributes:
        server: Its name in the configuration.
        phase: `spawn`, `initialize` or `list`.
        command: The command line.
        exit_status: Its exit status, if it exited.
        stderr_tail: The last lines of its stderr.
    """

    def __init__(
        self,
        message: str,
        *,
        server: str = "",
        phase: str = "",
        command: str = "",
        exit_status: int | None = None,
        stderr_tail: str = "",
    ) -> None:
        super().__init__(message)
        self.server = server
        self.phase = phase
        self.command = command
        self.exit_status = exit_status
        self.stderr_tail = stderr_tail


class MCPToolCallError(MCPError):
    """The seeds' name for a failed tool call. No turn raises it: there a failed tool is a message."""


class LLMError(MCPError):
    """The model gave no completion, after all retries.

    Attributes:
        kind: `refused`, `unavailable`, `timed_out`, `invalid_reply`, `damaged` (a stream) or `unreachable`.
        status: HTTP status, or `None` if there was no reply.
        model: The model that was asked for.
        endpoint: Base URL without credentials.
    """

    def __init__(
        self, message: str, *, kind: str = "", status: int | None = None, model: str = "", endpoint: str = ""
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.model = model
        self.endpoint = endpoint


class TurnTimedOut(MCPError):  # noqa: N818 - named as the event it reports, like the messages
    """The turn's time limit passed; `doing` says what it was waiting for, `tool_calls` what had been done."""

    def __init__(
        self, message: str, *, limit_s: float, doing: str, tool_calls: tuple[object, ...] = ()
    ) -> None:
        super().__init__(message)
        self.limit_s = limit_s
        self.doing = doing
        self.tool_calls = tool_calls


class TurnCancelled(MCPError):  # noqa: N818 - named as the event it reports, like the messages
    """The turn was ended before its time: its handle was cancelled, or its runner closed."""


class BudgetSpent(MCPError):  # noqa: N818 - named as the event it reports, like the messages
    """The episode's budget for the model is used up: no further turn is begun; the text says which limit."""


class AnswerError(MCPError):
    """The model gave no acceptable answer, and the host set no fallback; `raw` is the last text."""

    def __init__(self, message: str, *, raw: str | None = None) -> None:
        super().__init__(message)
        self.raw = raw


class ActorCrashed(MCPError):  # noqa: N818 - named as the event it reports, like the messages
    """An actor raised something unforeseen; the exception is the cause, the trace holds the event."""

    def __init__(self, message: str, *, actor: str) -> None:
        super().__init__(message)
        self.actor = actor


class TraceError(MCPError):
    """A trace file cannot be written or read."""
