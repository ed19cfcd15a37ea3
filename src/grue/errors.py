"""The errors that host programs catch, under one root.

The root keeps the name `MCPError`, which existing host programs catch.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self


class MCPError(Exception):
    """Root of grue's own error classes.

    Source: R9.3, R12.5
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # A process pool pickles the exceptions of its work. By default, unpickling calls the class with the
        # message alone. If the class needs more arguments, that call raises, and the pool is broken.
        usual = super().__reduce__()
        assert isinstance(usual, tuple), "an exception gives a tuple: its class, arguments and state"
        return _unpickled, (type(self), self.args), *usual[2:]


def _unpickled(kind: type[MCPError], args: tuple[Any, ...]) -> MCPError:
    error = kind.__new__(kind)
    error.args = args
    return error


class MCPConfigError(MCPError):
    """A configuration file, table or value cannot be used. Usually raised before a turn starts anything.

    Attributes:
        path: The file, or `None` when the value did not come from a file.
        line: One-based line of the mistake, or `None`.
        column: One-based column of the mistake, or `None`.
        problems: An entry for each wrong value whose path in the configuration is known; may be empty.

    Source: R2.2, R2.3
    """

    class Problem(NamedTuple):
        """One wrong value of a configuration.

        Attributes:
            keys: The path to the value, from the top of the file or of the settings object: keys and
                zero-based list indexes, such as `("rules", 0, "verdict")`.
            text: What is wrong, and what to do.
        """

        keys: tuple[int | str, ...]
        text: str

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        line: int | None = None,
        column: int | None = None,
        problems: Sequence[Problem] = (),
    ) -> None:
        super().__init__(message)
        self.problems = tuple(problems)
        self.path, self.line, self.column = path, line, column

    @classmethod
    def of_value(cls, owner: str, keys: tuple[int | str, ...], text: str) -> Self:
        """Return the error for the wrong value at the path `keys` in `owner`, such as `ContextPolicy`."""
        return cls(f"{owner}: {text}", problems=[cls.Problem(keys, text)])


class MissingDependencyError(MCPConfigError, ImportError):
    """A needed package or program is missing, too old, or hidden by a file; the text says what to do.

    It is an `ImportError` too, so that code that tries an optional feature can catch `ImportError`.
    """


class SandboxError(MCPError):
    """The sandbox of a server or a command cannot be made.

    Attributes:
        problem: What is wrong, in a sentence.
        remedy: What the user can do, in a sentence; may be empty.
    """

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        super().__init__(f"{problem} {remedy}".rstrip())
        self.problem, self.remedy = problem, remedy


class GameError(MCPError):
    """A game of `grue play` cannot be started, resumed or continued. The text says why."""


class MCPServerStartupError(MCPError):
    """An MCP server did not start: in a turn that needs it (`FailurePolicy.first_connect`), or outside turns.

    Attributes:
        phase: The step that failed: `spawn`, `initialize` or `list`; empty if it is not known.
        exit_status: `None` unless the server's process exited by itself.
        stderr_tail: The last lines that the server wrote to stderr.

    Source: R6.1
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
        self.server, self.phase, self.command = server, phase, command
        self.exit_status, self.stderr_tail = exit_status, stderr_tail


class NeedsLogin(MCPServerStartupError):
    """A server wants a person to log in. The text names the command, `grue login SERVER`."""


class MCPToolCallError(MCPError):
    """A tool call outside a turn failed, and the caller asked for an error (`check=True`).

    If the error is of this class itself, not of a subclass, the call was refused or the tool reported an
    error. A turn raises no such error: it gives the failure to the model as the call's result.

    Attributes:
        tool: The tool's full name, `SERVER.TOOL`.
        result: The `ToolCallResult` that a call without `check=True` returns.
    """

    def __init__(self, message: str, *, tool: str = "", result: object = None) -> None:
        super().__init__(message)
        self.tool, self.result = tool, result


class ToolNotFound(MCPToolCallError):
    """The server does not list the tool."""


class ToolChanged(MCPToolCallError):
    """The server has changed or removed the tool since the decision to call it. The call was not sent."""


class ToolCallDenied(MCPToolCallError):
    """The tool policy denies the call. The call was not sent."""


class ToolCallTimedOut(MCPToolCallError, TimeoutError):
    """The tool did not answer in time. The call may have had an effect."""


class ToolServerDied(MCPToolCallError):
    """The tool's server ended, or the connection to it broke, before the call was answered."""


class MCPRequestError(MCPError):
    """A request outside a turn failed: the server refused it, died, was too slow, or is no MCP server.

    Attributes:
        method: The method of the request, such as `prompts/get`.
        code: The JSON-RPC error code; `None` if the server sent no error.
    """

    def __init__(self, message: str, *, server: str = "", method: str = "", code: int | None = None) -> None:
        super().__init__(message)
        self.server, self.method, self.code = server, method, code


class MCPRequestTimedOut(MCPRequestError, TimeoutError):
    """The server did not answer a request in time."""


class LLMError(MCPError):
    """The model gave no completion, after all retries.

    Attributes:
        kind: How it failed: `refused`, `unavailable`, `timed_out`, `invalid_reply`, `damaged` (the stream has
            a fault) or `unreachable`. A connection that broke off is `unavailable`.
        reason: Why it failed, as a word that programs can compare: `key`, `permission`, `credit`, `rate`,
            `overloaded`, `region`, `model`, `tools`, `content`, `too_long`, `request`, `address`,
            `connection`, `timeout` or `reply`; empty if it is not known.
        status: HTTP status; `None`: no reply came, or only a part of one.
        retry_after_s: The wait that the endpoint asked for, if `kind` is `unavailable`; else `None`.
        endpoint: Base URL without credentials, or the class of the host's own LLM client.
        tool_calls: The tool calls of the turn so far (`ToolCallRecord`).
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str = "",
        reason: str = "",
        status: int | None = None,
        retry_after_s: float | None = None,
        model: str = "",
        endpoint: str = "",
        tool_calls: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(message)
        self.tool_calls = tool_calls
        self.kind, self.reason = kind, reason
        self.status, self.retry_after_s = status, retry_after_s
        self.model, self.endpoint = model, endpoint


class TurnTimedOut(MCPError):
    """The turn's time limit passed.

    Attributes:
        doing: What the turn was waiting for when the limit passed.
        tool_calls: The tool calls so far (`ToolCallRecord`), without those that had no result yet.
    """

    def __init__(self, message: str, *, limit_s: float, doing: str, tool_calls: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.limit_s, self.doing, self.tool_calls = limit_s, doing, tool_calls


class TurnCancelled(MCPError):
    """A turn or call was cut off: a handle cancelled it, its runner was closed, or the event loop failed."""


class BudgetSpent(MCPError):
    """The episode's budget has no room for a turn. The turn is not started, or its request is not sent."""


class AnswerError(MCPError):
    """The model gave no acceptable answer, and the host set no fallback.

    Attributes:
        raw: The model's last text; `None`: the model gave no text.
        tool_calls: The tool calls of the turn (`ToolCallRecord`).
    """

    def __init__(self, message: str, *, raw: str | None = None, tool_calls: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.raw, self.tool_calls = raw, tool_calls


class AnswerStopped(AnswerError):
    """The provider stopped the model's reply before its end. `raw` is the part that had arrived.

    Attributes:
        finish_reason: The provider's word for the stop, such as `content_filter`.
    """

    def __init__(
        self,
        message: str,
        *,
        raw: str | None = None,
        tool_calls: tuple[Any, ...] = (),
        finish_reason: str = "",
    ) -> None:
        super().__init__(message, raw=raw, tool_calls=tool_calls)
        self.finish_reason = finish_reason


class ApprovalPending(MCPError):
    """A person has to decide on tool calls, so the turn is parked. `Runner.resume` continues it.

    A fork cannot be resumed.

    Attributes:
        questions: The calls that a person has to decide on (`ApprovalQuestion`).
        expires_at: When the questions expire and their calls are denied, in epoch seconds; `None`: never.
    """

    def __init__(
        self, message: str, *, turn: int, questions: tuple[Any, ...] = (), expires_at: float | None = None
    ) -> None:
        super().__init__(message)
        self.turn, self.questions, self.expires_at = turn, questions, expires_at


class ChangeRefused(MCPError):
    """A person has changed a call's arguments to ones that JSON or the tool's schema refuses. Decide again.

    Attributes:
        name: Canonical name of the call's tool.
    """

    def __init__(self, message: str, *, call_id: str, name: str) -> None:
        super().__init__(message)
        self.call_id, self.name = call_id, name


class NothingToResume(MCPError):
    """No turn can be resumed: for example, none is parked, or the turn is running. The text says why."""


class ForkMissed(MCPError):
    """A fork needs something that its record lacks. If it is the result of a call, the call is not sent."""


class ActorCrashed(MCPError):
    """An actor or the host's code raised an unexpected exception, the `__cause__` of this error."""

    def __init__(self, message: str, *, actor: str) -> None:
        super().__init__(message)
        self.actor = actor


class ConversationError(MCPError):
    """A conversation cannot be saved, loaded, resumed or continued. The text says why.

    Attributes:
        path: The file, or `None` if the error is not about a file.
        line: One-based line of the damage, or `None`.
    """

    def __init__(self, message: str, *, path: str | None = None, line: int | None = None) -> None:
        super().__init__(message)
        self.path, self.line = path, line


class ConversationBusy(ConversationError):
    """Another turn of the conversation is running. Wait for its end."""


class ConversationParked(ConversationError):
    """A turn of the conversation is parked, so no other turn can begin.

    Resume or abandon the parked turn, or go on in a `branch()` of the conversation.

    Attributes:
        questions: The calls that a person has to decide on (`ApprovalQuestion`).
    """

    def __init__(self, message: str, *, turn: int, questions: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.turn, self.questions = turn, questions


class FleetError(MCPError):
    """A fleet (many episodes in parallel processes) cannot be started, continued or evaluated."""


class TraceError(MCPError):
    """A trace cannot be written, read, or used for what was asked. The text says why."""
