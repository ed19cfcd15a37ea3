"""The states of a turn, most named for what they wait for, and the `Turn` that nearly all of them carry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Literal, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.policies import ApprovalQuestion
from grue.protocol.context.fit import ContextLedger
from grue.protocol.context.history import Items
from grue.protocol.tools.built_in import CALL_TOOL, READ_RESULT, find_tools, named_call
from grue.protocol.tools.calls import CallNote, Calls, Records, Run, ValidCall, tool_messages, tool_of
from grue.protocol.tools.names import SERVER, Servers, Tools, is_built_in
from grue.protocol.tools.policy import Decisions, matches_any
from grue.protocol.tools.results import MediaRoom, is_referred
from grue.protocol.turn.prices import Spent

T = TypeVar("T")


Phase = Literal["loop", "only", "forced", "repair"]
"""The kind of a request: `loop` offers tools; `only` asks for the answer, because the turn has no tools;
`forced` asks for the final answer; `repair` asks for a corrected answer."""


class Turn(Struct, frozen=True, kw_only=True, gc=False):
    """The memory of a turn, passed from state to state."""

    run: m.RunTurn
    # The tools of open sessions, and of servers that start when they are called, as far as `RunTurn.tools`
    # selects them, in the order of the servers; then `read_result`, if it is offered.
    tools: Tools = ()
    relisted: bool = False  # `offered` may have changed since the last request that offered tools
    open: Servers = ()  # servers whose session has to be closed before the turn ends
    serving_unlisted: Servers = ()  # servers that take calls of tools which they do not list
    iterations: int = 0  # replies with tool calls so far, to requests that offered tools
    requests: int = 0  # includes those that were `sampled` before the turn was resumed
    sampled: int = 0  # finished requests of servers to the model (sampling), which `usage` counts too
    batches: int = 0  # the last number given to a batch of tool calls, or to notes about calls not made
    records: Records = ()  # the settled calls; a reply's are added when all are settled, or the turn fails
    usage: m.Usage = m.Usage()
    media_bytes: int = 0  # decoded size of the images, audio and files attached so far, the user's included
    forced: str = ""  # why the final answer was forced; empty if it was not
    degraded: str = ""  # why tools that the turn should have are missing; by server, see `missing`
    missing: Mapping[m.ServerName, str] = {}
    reconnected: bool = False
    ledger: ContextLedger | None = None
    window: int | None = None
    last: tuple[m.ToolMessage, ...] = ()  # added by the last request; empty without a `ledger`
    summaries: int = 0
    overflowed: bool = False
    used: Mapping[str, int] = {}  # calls that the policy has let through, of each tool with a `max_calls`
    told: tuple[m.ToolMessage, ...] = ()  # answers to the last reply's calls, until a request sends them
    reminded: bool = False  # the model has been reminded not to write tool calls as text
    unstarted: Servers = ()  # servers that start when they are called, and that no call has started yet
    searching: bool = False  # requests have `find_tools` and `call_tool` in place of most tools: `ToolSearch`

    @property
    def resuming(self) -> m.Resumption | None:
        """How the turn was resumed; `None`: it was not, or it has sent or answered calls since."""
        resumed = self.run.resumed
        return resumed if resumed is not None and resumed.parked.batches == self.batches else None

    @property
    def open_tasks(self) -> Mapping[m.CallId, m.OpenTask]:
        """The MCP tasks of an earlier process, whose results the resumed turn asks for."""
        resumed = self.resuming
        return {} if resumed is None else {each.call.call_id: each for each in resumed.tasks}

    @property
    def opening(self) -> Items:
        """The turn's first items: the user text, after the system text if the conversation has no entries."""
        user = m.UserText(self.run.user, attachments=self.run.images, stub=self.run.user_stub)
        if self.run.history is not None and self.run.history.length:
            return (user,)
        return m.SystemText(self.run.system), user

    @property
    def untold(self) -> tuple[m.ToolMessage, ...]:
        """Tool messages not sent yet, for the conversation's next turn; empty without `RunTurn.history`."""
        return () if self.run.history is None else self.told

    @property
    def unlisted(self) -> Servers:
        """The servers that take calls of tools which they do not list; none if `RunTurn.tools` is set."""
        return self.serving_unlisted if self.run.tools is None else ()

    @property
    def can_call(self) -> bool:
        """`True` if `tools` or `unlisted` is not empty: the model can call something."""
        return bool(self.tools or self.unlisted)

    @property
    def offered(self) -> Tools:
        """The tools that a request offers; while `searching`, only built-in and `ToolSearch.always` ones."""
        search = self.run.tool_search if self.searching else None
        shown = self.tools
        if search is not None:
            shown = tuple(
                tool for tool in shown if is_built_in(tool) or matches_any(tool.name, search.always)
            )
        if self.run.sorts_tools:
            shown = tuple(sorted(shown, key=lambda tool: (is_built_in(tool), tool.server, tool.name)))
        return shown if search is None else (find_tools(self.run.servers), CALL_TOOL, *shown)

    @property
    def callable(self) -> Tools:
        """The known tools that the model may call: those that are offered or that a search can find."""
        return (find_tools(self.run.servers), CALL_TOOL, *self.tools) if self.searching else self.tools

    def meant(self, call: m.ToolCall) -> m.ToolCall:
        """Return the call of a known tool that `call` makes through `call_tool`; if it makes none, `call`."""
        named = named_call(call, bind=self.run.binds_arguments) if self.searching else call
        if named is call:
            return call
        listed = {tool.name: tool for tool in self.tools}
        return call if tool_of(named.name, listed, self.unlisted) is None else named

    def relist(self, listings: Mapping[m.ServerName, Tools]) -> Turn:
        """Replace the tools of each server in `listings` by the listed ones that `RunTurn.tools` selects."""
        order = {name: position for position, name in enumerate((*self.run.servers, SERVER))}
        others = tuple(tool for tool in self.tools if tool.server not in listings)
        wanted = self.run.tools
        listed: Iterable[m.ToolDefinition] = chain.from_iterable(listings.values())
        if wanted is not None:
            listed = (tool for tool in listed if matches_any(tool.name, wanted))
        turn = replace(self, tools=tuple(sorted((*others, *listed), key=lambda tool: order[tool.server])))
        same = self.run.sorts_tools and self.tools and turn.offered == self.offered
        return turn if same else replace(turn, relisted=True)

    def tell(self, records: Records) -> tuple[Turn, tuple[m.ToolMessage, ...]]:
        """Return the turn with a reply's settled tool calls added, and the tool messages for the model."""
        limits = self.run.limits
        room = MediaRoom(limits, self.media_bytes) if self.run.attach_media else None
        refers = self.run.references != "never"
        told = tool_messages(
            records,
            limits.max_result_chars,
            room,
            plain=self.run.plain_results,
            refers=refers,
            unwraps=self.run.unwraps_texts,
        )
        shown = sum(attachment.bytes for attachment in room.attachments) if room else 0
        turn = replace(
            self, records=(*self.records, *records), media_bytes=self.media_bytes + shown, told=told
        )
        if refers and any(is_referred(each.content, each.call_id) for each in told):
            turn = turn.referring()
        return turn, told

    def referring(self) -> Turn:
        """Add `read_result` to the turn's tools: with it, the model can read cut or cleared results."""
        return self if self.refers else replace(self, tools=(*self.tools, READ_RESULT), relisted=True)

    @property
    def refers(self) -> bool:
        """`True` if the built-in tool `read_result` is among the turn's tools."""
        return READ_RESULT in self.tools

    def count(self, usage: m.Usage) -> Turn:
        """Return the turn with the tokens and cost of a completion added."""
        return replace(self, usage=self.usage + usage)

    @property
    def budget_reached(self) -> bool:
        """`True` if the budget allows at most one more request, which must ask for the final answer."""
        most = self.run.limits.budget.requests
        return self.budget_spent or (most is not None and self.requests + self.sampled + 1 >= most)

    @property
    def budget_spent(self) -> bool:
        """`True` if the budget is used up: only the final answer may still be asked for, once."""
        spent = Spent(requests=self.requests + self.sampled, usage=self.usage)
        return bool(spent.reached(self.run.limits.budget))


class Idle(Struct, frozen=True):
    """Waits for `RunTurn`."""


class AwaitingSupport(Struct, frozen=True):
    """Waits for the check that the model can call tools; no session has been opened yet."""

    turn: Turn
    presumed: m.ToolsPresumed | None = None


class AwaitingSessions(Struct, frozen=True, gc=False):
    """Waits for the servers in `pending` and, if `asking`, for the check that the model can call tools."""

    turn: Turn
    pending: Servers
    new: Items  # what the next request adds to the conversation
    asking: bool = False
    presumed: m.ToolsPresumed | None = None


class Presuming(Struct, frozen=True, kw_only=True):
    """Waits for the reply to a request that offers presumed tools, and for the sessions."""

    turn: Turn  # its `tools` do not contain those of `pending` servers
    pending: Servers
    offered: Tools
    ledger: ContextLedger | None  # without the reply, because that may be dropped
    reply: m.CompletionReceived | m.CompletionFailed | None = None


class AwaitingDrop(Struct, frozen=True):
    """Waits for `ReplyDropped`. Then the turn fails with `failure`, or asks again if that is `None`."""

    turn: Turn
    failure: m.ServerFailure | None = None


class AwaitingCompletion(Struct, frozen=True, gc=False):
    """Waits for the model's reply to the last request."""

    turn: Turn
    phase: Phase


class AwaitingSummary(Struct, frozen=True):
    """Waits for a summary. `phase` and `new` are those of the request that is sent after it."""

    turn: Turn
    phase: Phase
    new: Items


CallNotes: TypeAlias = tuple[CallNote, ...]
Notes: TypeAlias = tuple[m.TurnNote, ...]


class PlacedNote(Struct, frozen=True):
    """A note that is recorded as soon as the number of the reply's settled calls reaches `settled`."""

    settled: int
    note: CallNote


class AwaitingApproval(Struct, frozen=True, kw_only=True):
    """Waits for decisions on `questions` about a reply's calls, after the policy has judged them all.

    Only an earlier process may have sent calls of the reply.
    """

    turn: Turn
    calls: Calls
    open: tuple[ValidCall, ...]  # the calls that are to be made, in order, some only if a person approves
    earlier: Records = ()  # records of the calls that were answered before the turn was resumed
    settled: Records  # `earlier`, and records of the calls that are not made
    used_before: Mapping[str, int] = {}  # `Turn.used` before these calls were judged
    noted: CallNotes = ()  # about calls not made, for `AwaitingTools.noted`
    questions: tuple[ApprovalQuestion, ...] = ()
    decisions: Decisions = {}


class Batch(Struct, frozen=True):
    """Calls that were sent to `server` together. Only `parallel` batches are under way at the same time."""

    number: m.BatchId
    server: m.ServerName
    pending: tuple[m.CallId, ...]
    parallel: bool = False


class AwaitingTools(Struct, frozen=True):
    """Waits until every call of the reply is settled, for instance because it has returned or timed out."""

    turn: Turn
    calls: Calls
    under_way: tuple[Batch, ...]  # not settled: one, several parallel ones, or none while servers start
    unsent: tuple[Run, ...]  # the calls that are still to be sent; each run becomes a batch
    settled: Records
    died: m.ServerName | None = None
    timed_out: bool = False  # a call has timed out, and `FailurePolicy.after_timeout` is not `continue`
    changed: Mapping[m.CallId, m.JsonObject] = {}  # arguments that a person has changed
    tools: Tools = ()  # `Turn.callable` at the time when the calls were allowed
    noted: tuple[PlacedNote, ...] = ()
    starting: Servers = ()  # servers that this reply has started, and that are neither ready nor failed

    def waits_for(self, batch: m.BatchId, call_id: m.CallId) -> bool:
        """Return whether this call of this batch is under way."""
        return any(each.number == batch and call_id in each.pending for each in self.under_way)


class AwaitingReconnect(Struct, frozen=True):
    """Waits until the session of the server that died is closed, and then opens a new one."""

    turn: Turn
    server: m.ServerName
    new: Items


class AwaitingVerdict(Struct, frozen=True):
    """Waits for the host's check of the final text; `cut`: the text was cut at the length limit."""

    turn: Turn
    phase: Phase
    content: str
    cut: bool = False


class AwaitingClose(Struct, frozen=True):
    """Waits until every session is closed, and then reports `end`."""

    turn: Turn
    pending: Servers
    end: m.TurnEnd


class Waiting(Struct, frozen=True):
    """Waits until the sessions in `pending` are closed, then for a later process, which goes on as `then`."""

    then: AwaitingCompletion | AwaitingSummary
    pending: Servers
    item: str  # as in `CompletionPostponed`

    @property
    def turn(self) -> Turn:
        """The turn that waits."""
        return self.then.turn


class Finished(Struct, frozen=True):
    """The turn has ended."""


LiveState: TypeAlias = (  # those in which a deadline or an interruption can still change how the turn ends
    AwaitingSupport
    | AwaitingSessions
    | Presuming
    | AwaitingDrop
    | AwaitingCompletion
    | AwaitingApproval
    | AwaitingSummary
    | AwaitingTools
    | AwaitingReconnect
    | AwaitingVerdict
)
TurnState: TypeAlias = Idle | LiveState | AwaitingClose | Waiting | Finished

Commands: TypeAlias = tuple[m.TurnCommand | m.TurnNote, ...]
Transition: TypeAlias = tuple[TurnState, Commands]


def waiting_for(state: LiveState) -> str:
    """Describe what the turn waits for, for an error text and for `TurnProgress.doing`."""
    match state:
        case AwaitingSupport() | AwaitingSessions(pending=()):
            return "asking whether the model takes tools"
        case AwaitingSessions(pending=pending):
            return f"starting {', '.join(pending)}"
        case Presuming(pending=pending, reply=reply) if pending:
            starting = f"starting {', '.join(pending)}"
            return starting if reply is not None else f"{starting} and {_for_the_model(state.turn)}"
        case AwaitingCompletion() | Presuming() | AwaitingDrop():
            return _for_the_model(state.turn)
        case AwaitingSummary():
            return f"waiting for a summary (request {state.turn.requests})"
        case AwaitingApproval(questions=questions):
            return f"waiting for an approval of {', '.join(question.name for question in questions)}"
        case AwaitingTools(under_way=(), starting=starting):
            return f"starting {', '.join(starting)}"
        case AwaitingTools(under_way=under_way, calls=calls):
            return f"waiting for {', '.join(calls[batch.pending[0]].name for batch in under_way)}"
        case AwaitingReconnect(server=server):
            return f"restarting {server}"
        case _:
            return "checking the answer"


def _for_the_model(turn: Turn) -> str:
    return f"waiting for the model (request {turn.requests})"


def without(items: tuple[T, ...], item: T) -> tuple[T, ...]:
    """Return the items without `item`, which occurs in them at most once."""
    if items and items[0] == item:
        return items[1:]
    return tuple(other for other in items if other != item)


class TurnProgress(Struct, frozen=True, kw_only=True, gc=False):
    """A snapshot of how far a turn has come.

    Attributes:
        doing: What the turn waits for, in words: `waiting for the model (request 2)`.
        iterations: Replies with tool calls so far, to requests that offered tools.
        requests: Requests of the turn so far, plus the finished requests of servers to the model (sampling).
        tool_calls: Tool calls settled so far.
        usage: Tokens and cost of `requests`, as far as they have ended.
        elapsed_s: Seconds since the turn was requested.
    """

    doing: str
    iterations: int = 0
    requests: int = 0
    tool_calls: int = 0
    usage: m.Usage = m.Usage()
    elapsed_s: float = 0.0


def progress_of(state: TurnState) -> TurnProgress:
    """Return a turn's progress, without `elapsed_s`; of a turn that is `Idle` or `Finished` only `doing`."""
    settled = len(state.settled) if isinstance(state, AwaitingTools) else 0
    match state:
        case Idle() | Finished():
            return TurnProgress(doing="starting" if isinstance(state, Idle) else "ending")
        case AwaitingClose(turn=turn):
            doing = "closing its sessions"
        case Waiting(turn=turn):
            doing = f"waiting for a batch (request {turn.requests})"
        case _:
            turn, doing = state.turn, waiting_for(state)
    return TurnProgress(
        doing=doing,
        iterations=turn.iterations,
        requests=turn.requests + turn.sampled,
        tool_calls=len(turn.records) + settled,
        usage=turn.usage,
    )
