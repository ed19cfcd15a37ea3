"""The states of a turn, each named for what it waits for, and what all of them carry along.

`tool_loop.py` says how one follows another.
"""

from typing import Literal, TypeAlias

from msgspec import Struct

from grue.messages import (
    BatchId,
    CallId,
    ConversationItem,
    RunTurn,
    ServerName,
    ToolCall,
    ToolCallRecord,
    ToolDefinition,
    TurnCompleted,
    TurnFailed,
    Usage,
)
from grue.protocol.tool_calls import Run

Phase = Literal["loop", "only", "forced", "repair"]
"""What a completion was asked for: tools on offer, none to offer, to finish, to mend the answer."""

ForceReason = Literal["max_iterations", "no_content", "tool_timeout", "server_died"]


class Turn(Struct, frozen=True, kw_only=True):
    """What every state of a turn carries along.

    Attributes:
        run: The command that began it.
        tools: The listings of the open sessions, in the order of the servers.
        relisted: The tools have changed since they were last put before the model.
        open: Servers whose session has to be closed.
        forced: Why the final answer was forced; empty if it was not.
        degraded: Why the turn does without tools that were wanted; empty if it does not.
        reconnected: The one reconnect that the policy may allow has been used.
    """

    run: RunTurn
    tools: tuple[ToolDefinition, ...] = ()
    relisted: bool = False
    open: tuple[ServerName, ...] = ()
    iterations: int = 0
    requests: int = 0
    batches: int = 0
    records: tuple[ToolCallRecord, ...] = ()
    usage: Usage = Usage()
    forced: str = ""
    degraded: str = ""
    reconnected: bool = False


class Idle(Struct, frozen=True):
    """Waits for `RunTurn`."""


class AwaitingSessions(Struct, frozen=True):
    """Waits until each of `pending` has opened or is given up; `new` goes into the next request."""

    turn: Turn
    pending: tuple[ServerName, ...]
    new: tuple[ConversationItem, ...]


class AwaitingCompletion(Struct, frozen=True):
    """Waits for the model."""

    turn: Turn
    phase: Phase


class AwaitingTools(Struct, frozen=True):
    """Waits for the settlements of `batch`.

    Attributes:
        calls: The tool calls of the reply, in order.
        pending: Calls of the current batch that are not settled.
        unsent: Runs that go out after it.
        settled: Settlements so far, of all runs.
        broken: What a settlement of this reply leads to once all are in.
    """

    turn: Turn
    calls: tuple[ToolCall, ...]
    batch: BatchId
    pending: tuple[CallId, ...]
    unsent: tuple[Run, ...]
    settled: tuple[ToolCallRecord, ...]
    broken: Literal["", "tool_timeout", "server_died"] = ""


class AwaitingReconnect(Struct, frozen=True):
    """Waits until the dead server's session is closed, to open it anew."""

    turn: Turn
    server: ServerName
    new: tuple[ConversationItem, ...]


class AwaitingVerdict(Struct, frozen=True):
    """Waits for the host's check of the final text."""

    turn: Turn
    phase: Phase
    content: str


class AwaitingClose(Struct, frozen=True):
    """Waits until every session is closed; then says `end`."""

    turn: Turn
    pending: tuple[ServerName, ...]
    end: TurnCompleted | TurnFailed


class Finished(Struct, frozen=True):
    """The turn is over."""


TurnState: TypeAlias = (
    Idle
    | AwaitingSessions
    | AwaitingCompletion
    | AwaitingTools
    | AwaitingReconnect
    | AwaitingVerdict
    | AwaitingClose
    | Finished
)

LiveState: TypeAlias = (
    AwaitingSessions | AwaitingCompletion | AwaitingTools | AwaitingReconnect | AwaitingVerdict
)
"""The states in which the turn's end is still open."""


def waiting_for(state: LiveState) -> str:
    """Return what a turn in this state waits for, in the words of an error text."""
    match state:
        case AwaitingSessions(pending=pending):
            return f"starting {', '.join(pending)}"
        case AwaitingCompletion():
            return f"waiting for the model (request {state.turn.requests})"
        case AwaitingTools(pending=pending, calls=calls):
            names = [call.name for call in calls if call.call_id in pending]
            return f"waiting for {names[0]}"
        case AwaitingReconnect(server=server):
            return f"restarting {server}"
        case _:
            return "checking the answer"
