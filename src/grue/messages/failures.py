"""The reasons why a turn, a server or a request failed, as data."""

from typing import Literal, TypeAlias

from msgspec import Struct

from grue.context_policy import ContextOverflow
from grue.messages.message import ServerName
from grue.vocabulary import FailureKind, ServerPhase


class ServerFailure(Struct, frozen=True, kw_only=True, tag=True):
    """The failure of a server, with the details that a person needs to fix it.

    Attributes:
        phase: The step that failed.
        command: The command line in shell syntax, or the URL.
        cause: One sentence.
        exit_status: The process's status, if it exited by itself.
        signal: The signal that killed it, such as `SIGKILL`.
        elapsed_s: From the start of the spawn.
        stderr_tail: The last lines that the server wrote to stderr; untrusted, control characters removed.
        remedy: What to do.
        needs_login: Whether only a person's login at the server helps.
    """

    server: ServerName
    phase: ServerPhase
    command: str
    cause: str
    exit_status: int | None = None
    signal: str | None = None
    elapsed_s: float = 0.0
    stderr_tail: str = ""
    remedy: str = ""
    needs_login: bool = False


class LlmFailure(Struct, frozen=True, kw_only=True, tag=True):
    """The failure of a completion, after all tries.

    Attributes:
        kind: `refused`: the endpoint rejected the request, and a retry would not help (key, credit, model).
            `invalid_reply`: the reply cannot be parsed. `damaged`: an event of the stream is garbled, lost or
            out of order.
        endpoint: Base URL without credentials.
        status: HTTP status, if there was one.
        message: The endpoint's error text, or what happened to the connection; untrusted.
        attempts: Requests that were sent.
        remedy: What to do.
        overflow: Set if the request was refused because it is longer than the model's context window.
    """

    kind: FailureKind
    endpoint: str
    model: str
    message: str
    status: int | None = None
    attempts: int = 1
    remedy: str = ""
    overflow: ContextOverflow | None = None


class ToolsUnsupported(Struct, frozen=True, kw_only=True, tag=True):
    """Tools are configured for a model that cannot call any; `reason` says how that is known.

    Source: R12.5
    """

    model: str
    endpoint: str
    reason: str


class DeadlineMissed(Struct, frozen=True, kw_only=True, tag=True):
    """The turn ran out of time; `doing` says what it was waiting for.

    Attributes:
        limit_s: Limit of the whole turn.
        kept_s: The part of it that was reserved for closing sessions. The work was stopped that much earlier.
    """

    limit_s: float
    doing: str
    kept_s: float = 0.0


class Interrupted(Struct, frozen=True, kw_only=True, tag=True):
    """The turn was cancelled from outside, by Ctrl-C or by the caller, or by another actor's crash."""

    reason: str


class NoAnswer(Struct, frozen=True, kw_only=True, tag=True):
    """The model gave no acceptable answer and the host has no fallback."""

    reason: str
    raw: str | None = None


TurnFailure: TypeAlias = (
    ServerFailure | LlmFailure | ToolsUnsupported | DeadlineMissed | Interrupted | NoAnswer
)

OutcomeKind = Literal["answered", "forced", "degraded", "fallback"]
"""How the answer was obtained. If several apply, the first of fallback, forced, degraded, answered counts."""
