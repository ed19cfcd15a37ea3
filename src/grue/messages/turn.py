"""Between host and agent: a turn, its end, and how an interrupted turn is resumed."""

from typing import TypeAlias

from msgspec import Struct, field

from grue.approvals import ApprovalDecision, ApprovalQuestion
from grue.context_policy import ContextItem, ContextPolicy
from grue.messages.conversation import (
    AnswerSchema,
    Attachment,
    ConversationItem,
    HistoryReference,
    ToolMessage,
)
from grue.messages.failures import OutcomeKind, TurnFailure
from grue.messages.limits import FailurePolicy, SupportCheck, TurnLimits
from grue.messages.llm import ModelAsked, Usage
from grue.messages.message import JsonObject, Message, ServerName
from grue.messages.tools import ServerCall, ToolCall, ToolCallRecord
from grue.tool_rules import ToolPolicy

FINAL_REQUEST = "Please provide your final action now without calling any more tools."
"""The text that asks for the final answer, unless the host has its own."""

REPAIR_REQUEST = (
    "That reply cannot be used: {reason}\n"
    "Reply once more, with nothing but the answer in the form that was asked for, and call no tools."
)
"""The text that asks for another answer after one was refused; `{reason}` stands for the reason."""


class RunTurn(Message, frozen=True, kw_only=True):
    """host -> agent: run the turn and reply with `TurnCompleted`, `TurnFailed` or `TurnParked`.

    Attributes:
        turn: One-based number of the turn in its episode.
        servers: Names of the tool servers to open, in order; empty: no tools this turn.
        answer: The schema of the answer; `None`: any text.
        fallback: The answer to use if the model gives no acceptable one; `None`: fail instead.
        support_check: When to check whether the model can call tools. Only used with servers.
        stream: Note the model's text as it arrives (`TextDelta`).
        attach_media: Attach images, audio and files in tool results to the conversation. Old traces lack this
            field and are replayed without attachments.
        tool_policy: Which tool calls are made, asked about or denied.
        history: The conversation that the turn continues; `None`: it begins one that ends with it.
        images: The images that belong to the user's text.
        final_request: The text that asks for the final answer, without tools. Old traces lack this field and
            the next one; their turns had the default texts.
        repair_request: The text that asks for another answer; `{reason}` stands for why the last was refused.
        tools: Patterns of the names of the tools to offer; `None`: all.
        resumed: Where the turn goes on; `None`: it begins.
        context: How to stay within the model's context window; `None`: nothing is cleared.
        earlier: The sizes of the history that the turn continues, oldest first. The first one is that of the
            conversation's first entry, which is never cleared. Only set with `context`.
        user_stub: What takes the place of `user` if a later turn clears it; empty: it stays.
        show_schemas: Questions about calls carry the tools' input schemas. Old traces lack this field and are
            replayed without them.
        asks: Which model the turn asks; `None`: an actor of the host's, or an old trace.
    """

    turn: int
    system: str
    user: str
    servers: tuple[ServerName, ...] = ()
    answer: AnswerSchema | None = None
    fallback: object = None
    limits: TurnLimits = TurnLimits()
    policy: FailurePolicy = FailurePolicy()
    support_check: SupportCheck = "skip"
    stream: bool = False
    attach_media: bool = False
    tool_policy: ToolPolicy = ToolPolicy()
    history: HistoryReference | None = None
    images: tuple[Attachment, ...] = ()
    final_request: str = FINAL_REQUEST
    repair_request: str = REPAIR_REQUEST
    tools: tuple[str, ...] | None = None
    resumed: "Resumption | None" = None
    context: ContextPolicy | None = None
    earlier: tuple[ContextItem, ...] = ()
    user_stub: str = ""
    show_schemas: bool = False
    asks: ModelAsked | None = None


class TurnCompleted(Message, frozen=True, kw_only=True):
    """agent -> host: the turn has an answer, and every session is closed.

    Attributes:
        answer: The accepted answer as a JSON value, or the host's fallback.
        raw_response: The text that the answer was parsed from, or the last text that was refused.
        reason: Why the kind is not `answered`; empty otherwise.
        iterations: Replies with tool calls.
        requests: Requested completions.
        untold: Answers to tool calls that no request has told the model. The turn's conversation keeps them.
    """

    turn: int
    kind: OutcomeKind
    answer: object = None
    raw_response: str | None = None
    reason: str = ""
    iterations: int = 0
    requests: int = 0
    tool_calls: tuple[ToolCallRecord, ...] = ()
    usage: Usage = Usage()
    untold: tuple[ToolMessage, ...] = ()


class TurnFailed(Message, frozen=True, kw_only=True):
    """agent -> host: the turn has no answer; every session is closed.

    Attributes:
        untold: As in `TurnCompleted`.
        unread: The turn ended while it waited for the model. Its conversation does not keep a reply that
            came after that.
    """

    turn: int
    failure: TurnFailure
    iterations: int = 0
    requests: int = 0
    tool_calls: tuple[ToolCallRecord, ...] = ()
    usage: Usage = Usage()
    untold: tuple[ToolMessage, ...] = ()
    unread: bool = False


class TurnParked(Message, frozen=True, kw_only=True):
    """agent -> host: the turn waits for a person; every session is closed, and its state is lost.

    It holds what a later process needs to go on, together with the trace before it.

    Attributes:
        questions: The calls that are asked about.
        calls: All tool calls of the reply. None of them has been sent, unless it is in `settled`.
        settled: Calls of this reply that an earlier process has sent.
        expires_at: Seconds since the epoch after which the questions are denied; `None`: never.
        iterations: As in `TurnCompleted`, as are the next three.
        batches: The number of the last batch of tool calls.
        media_bytes: Decoded size of the attachments so far.
        forced: Why the final answer was forced; empty if it was not.
        degraded: Why tools that were wanted are missing.
        reconnected: Whether the one reconnect of the turn has been used.
        used: How often each tool with a limit was called before this reply.
        untold: What the turn's conversation answers to the calls if the turn is given up.
        summaries: Summaries requested so far. Old traces lack it and the next two.
        overflowed: Whether the one try after an overflow has been used.
        window: The model's context window in tokens, as far as it is known.
    """

    turn: int
    questions: tuple[ApprovalQuestion, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    settled: tuple[ToolCallRecord, ...] = ()
    expires_at: float | None = None
    iterations: int = 0
    requests: int = 0
    tool_calls: tuple[ToolCallRecord, ...] = ()
    usage: Usage = Usage()
    batches: int = 0
    media_bytes: int = 0
    forced: str = ""
    degraded: str = ""
    reconnected: bool = False
    used: dict[str, int] = field(default_factory=dict)
    untold: tuple[ToolMessage, ...] = ()
    summaries: int = 0
    overflowed: bool = False
    window: int | None = None


class OpenTask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that was sent in a turn whose process was killed, and whose server works on it as a task.

    Attributes:
        server: The server that has it.
        call: The call as it was sent, with the task's handle.
        changed_arguments: The arguments, if a person had changed the model's; `None`: they are the model's.
    """

    server: ServerName
    call: ServerCall
    changed_arguments: JsonObject | None = None


class Resumption(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The point at which a turn goes on that was parked, or that was killed with its process.

    Attributes:
        parked: How far it had come.
        decisions: The answers to its questions. One that is missing is asked for again.
        new: If it has no calls to go on with: what the model is told. Nothing: the last request is sent
            again.
        tasks: Calls that are not sent again, because their servers can be asked for the results.
    """

    parked: TurnParked
    decisions: tuple[ApprovalDecision, ...] = ()
    new: tuple[ConversationItem, ...] = ()
    tasks: tuple[OpenTask, ...] = ()


class TurnResumed(Message, frozen=True, kw_only=True):
    """host: goes on with a turn. A `RunTurn` with the same number follows.

    It is on file before anything else happens, so that nothing is resumed twice.

    Attributes:
        turn: Number of the turn.
        after: Number of the last envelope of the turn's earlier part.
        expired: The questions had expired, so they are denied.
    """

    turn: int
    after: int
    expired: bool = False


TurnEnd: TypeAlias = TurnCompleted | TurnFailed | TurnParked
"""How a turn ends."""
