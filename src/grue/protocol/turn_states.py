"""The states of a turn, each named for what it waits for, and what all of them carry along.

`tool_loop.py` says how one follows another.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from grue.messages import (
    BatchId,
    CallId,
    ConversationItem,
    RunTurn,
    ServerName,
    SystemText,
    ToolCall,
    ToolCallRecord,
    ToolDefinition,
    ToolMessage,
    TurnCompleted,
    TurnFailed,
    Usage,
    UserText,
)
from grue.protocol.growing import Growing, Remaining
from grue.protocol.tool_calls import Run, tool_messages
from grue.protocol.tool_media import MediaRoom

T = TypeVar("T")

Phase = Literal["loop", "only", "forced", "repair"]
"""What a completion was asked for: tools on offer, none to offer, to finish, to mend the answer."""

ForceReason = Literal["max_iterations", "no_content", "tool_timeout", "server_died", "budget"]


class Turn(Struct, frozen=True, kw_only=True):
    """What every state of a turn carries along.

    Attributes:
        run: The command that began it.
        tools: The listings of the open sessions, in the order of the servers.
        relisted: The tools have changed since they were last put before the model.
        open: Servers whose session has to be closed.
        media_bytes: What its tool messages have shown of images, audio and files.
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
    media_bytes: int = 0
    forced: str = ""
    degraded: str = ""
    reconnected: bool = False

    @property
    def opening(self) -> tuple[ConversationItem, ...]:
        """What its conversation begins with."""
        return SystemText(self.run.system), UserText(self.run.user)

    def relist(self, server: ServerName, listed: tuple[ToolDefinition, ...]) -> "Turn":
        """Put `listed` in the place of what the server listed before, the servers in their order.

        The same episode then offers the same list, however fast each of them boots.
        """
        order = {name: position for position, name in enumerate(self.run.servers)}
        others = tuple(tool for tool in self.tools if tool.server != server)
        tools = tuple(sorted((*others, *listed), key=lambda tool: order[tool.server]))
        return replace(self, tools=tools, relisted=True)

    def server_that_died(self, records: tuple[ToolCallRecord, ...]) -> ServerName:
        """Return whose death these records of one reply tell of."""
        died = next(record for record in records if record.settlement == "died")
        return next(tool.server for tool in self.tools if tool.name == died.name)

    def tell(self, records: tuple[ToolCallRecord, ...]) -> tuple["Turn", tuple[ToolMessage, ...]]:
        """Keep the records of one reply, and return what the conversation is told of them."""
        limits = self.run.limits
        room = MediaRoom(limits, self.media_bytes) if self.run.attach_media else None
        told = tool_messages(records, limits.max_result_chars, room)
        shown = sum(attachment.bytes for attachment in room.attachments) if room else 0
        turn = replace(self, records=(*self.records, *records), media_bytes=self.media_bytes + shown)
        return turn, told

    def count(self, usage: Usage) -> "Turn":
        """Add what a completion took."""
        return replace(self, usage=self.usage + usage)

    @property
    def budget_reached(self) -> bool:
        """No more may be spent than the one request takes that is kept back for the final answer."""
        most = self.run.limits.budget.requests
        return self.budget_spent or (most is not None and self.requests + 1 >= most)

    @property
    def budget_spent(self) -> bool:
        """Nothing more may be spent, not even on a repair."""
        budget, usage = self.run.limits.budget, self.usage
        return (
            (budget.requests is not None and self.requests >= budget.requests)
            or (budget.tokens is not None and usage.input_tokens + usage.output_tokens >= budget.tokens)
            or (budget.cost_usd is not None and (usage.cost_usd or 0.0) >= budget.cost_usd)
        )


class Idle(Struct, frozen=True):
    """Waits for `RunTurn`."""


class AwaitingSupport(Struct, frozen=True):
    """Waits for the word that the model can call tools, before anything is started for it."""

    turn: Turn


class AwaitingSessions(Struct, frozen=True):
    """Waits until each of `pending` has opened or is given up; `new` goes into the next request.

    Attributes:
        asking: The word that the model can call tools is still to come, too.
    """

    turn: Turn
    pending: tuple[ServerName, ...]
    new: tuple[ConversationItem, ...]
    asking: bool = False


class AwaitingCompletion(Struct, frozen=True):
    """Waits for the model."""

    turn: Turn
    phase: Phase


class AwaitingTools(Struct, frozen=True):
    """Waits for the settlements of `batch`.

    Attributes:
        calls: The tool calls of the reply by their ids, in order.
        pending: Calls of the current batch that are not settled.
        unsent: Runs that go out after it.
        settled: Settlements so far, of all runs.
        broken: What a settlement of this reply leads to once all are in.
    """

    turn: Turn
    calls: Mapping[CallId, ToolCall]
    batch: BatchId
    pending: Remaining[CallId]
    unsent: Remaining[Run]
    settled: Growing[ToolCallRecord]
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
    | AwaitingSupport
    | AwaitingSessions
    | AwaitingCompletion
    | AwaitingTools
    | AwaitingReconnect
    | AwaitingVerdict
    | AwaitingClose
    | Finished
)

LiveState: TypeAlias = (
    AwaitingSupport
    | AwaitingSessions
    | AwaitingCompletion
    | AwaitingTools
    | AwaitingReconnect
    | AwaitingVerdict
)
"""The states in which the turn's end is still open."""


def waiting_for(state: LiveState) -> str:
    """Return what a turn in this state waits for, in the words of an error text."""
    match state:
        case AwaitingSupport() | AwaitingSessions(pending=()):
            return "asking whether the model takes tools"
        case AwaitingSessions(pending=pending):
            return f"starting {', '.join(pending)}"
        case AwaitingCompletion():
            return f"waiting for the model (request {state.turn.requests})"
        case AwaitingTools(pending=pending, calls=calls):
            return f"waiting for {calls[pending.first].name}"
        case AwaitingReconnect(server=server):
            return f"restarting {server}"
        case _:
            return "checking the answer"


def without(items: tuple[T, ...], item: T) -> tuple[T, ...]:
    """Return the items but this one."""
    return tuple(other for other in items if other != item)


class TurnProgress(Struct, frozen=True, kw_only=True):
    """Where a turn stands.

    Attributes:
        doing: What it waits for, in words: `waiting for the model (request 2)`.
        iterations: Replies with tool calls so far.
        requests: Completions that were asked for so far.
        tool_calls: Tool calls that are settled.
        usage: What the finished completions took.
        elapsed_s: Since the turn was asked for.
    """

    doing: str
    iterations: int = 0
    requests: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()
    elapsed_s: float = 0.0


def progress_of(state: TurnState) -> TurnProgress:
    """Return where a turn stands."""
    settled = 0
    match state:
        case Idle():
            return TurnProgress(doing="starting")
        case Finished():
            return TurnProgress(doing="ending")
        case AwaitingTools(turn=turn):
            doing, settled = waiting_for(state), len(state.settled)
        case AwaitingClose(turn=turn):
            doing = "closing its sessions"
        case _:
            turn, doing = state.turn, waiting_for(state)
    return TurnProgress(
        doing=doing,
        iterations=turn.iterations,
        requests=turn.requests,
        tool_calls=len(turn.records) + settled,
        usage=turn.usage,
    )
