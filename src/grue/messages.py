"""Every message of a turn: what it carries, in which unit, from whom to whom.

Commands are imperative and go to one actor (`OpenSession`, `CallTools`); events are past tense and tell what
came of a command (`SessionOpened`, `ToolTimedOut`); notes are facts that nobody has to act upon, recorded in
the trace beside the messages (`IterationStarted`, `ToolCalled`). All are frozen msgspec Structs whose tag is
their name, so that the trace file's schema is this module.

```
host ── RunTurn ──▶ agent ── CheckToolSupport ────▶ llm       ▶ ToolSupportChecked
                    agent ── OpenSession ─────────▶ session   ▶ SessionOpened | McpDisabled | StartupFailed
                    agent ── RequestCompletion ───▶ llm       ▶ CompletionReceived | CompletionFailed
                    agent ── CallTools(n calls) ──▶ session   ▶ n x (ToolReturned | ToolTimedOut | ToolSkipped
                                                                     | ServerDied), ToolsChanged
                    agent ── CheckAnswer ─────────▶ agent     ▶ AnswerAccepted | AnswerRefused
                    agent ── CloseSession ────────▶ session   ▶ SessionClosed
host ◀─ TurnCompleted | TurnFailed ── agent
```

Durations and time limits are seconds (`_s`), sizes are characters (`_chars`) or bytes (`_bytes`). Tool names
are canonical, `{server}.{tool}`, unless a field says `tool`: then it is the bare name that its server uses.
A field typed `object` holds a JSON value: None, bool, int, float, str, list or dict of the same.
"""

from typing import Literal, NewType, TypeAlias

from msgspec import Struct

ServerName = NewType("ServerName", str)
CallId = NewType("CallId", str)
BatchId = NewType("BatchId", int)
ConversationId = NewType("ConversationId", str)

JsonObject: TypeAlias = dict[str, object]
"""A JSON object; its values are JSON values."""


class Message(Struct, frozen=True, kw_only=True, tag=True):
    """Base of everything that crosses a channel or is noted in the trace."""


# --- What messages carry ---


class ToolDefinition(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool as its server lists it.

    Attributes:
        server: Name of the server in the configuration.
        tool: Bare name, as the server knows it; may contain dots.
        description: The server's words for the model; untrusted text.
        input_schema: JSON Schema of the arguments, an object schema.
        output_schema: JSON Schema of the structured result, if the server declares one.
        full_name: The canonical name where it is not `{server}.{tool}`, because what stands behind the
            session has names of its own.
    """

    server: ServerName
    tool: str
    description: str = ""
    input_schema: JsonObject
    output_schema: JsonObject | None = None
    full_name: str = ""

    @property
    def name(self) -> str:
        """The canonical name (R8.2, P34)."""
        return self.full_name or f"{self.server}.{self.tool}"


class ToolCall(Struct, frozen=True, kw_only=True):
    """A tool call as the model asked for it.

    Attributes:
        call_id: Unique within the turn; made up where the provider sent none, or one twice.
        name: Canonical name, as far as the model's text can be read as one.
        arguments: JSON text, not yet parsed: it may be anything.
    """

    call_id: CallId
    name: str
    arguments: str


class ServerCall(Struct, frozen=True, kw_only=True):
    """A tool call that may go to a server: its arguments are a JSON object, its tool is listed."""

    call_id: CallId
    tool: str
    arguments: JsonObject


class ToolCallResult(Struct, frozen=True):
    """What became of a tool call (R11).

    Attributes:
        content: A JSON value: structured content, parsed JSON, text, or a list of blocks.
        is_error: The call failed, or the tool said that it did.
        error_message: What failed, for the model; set whenever `is_error` is.
        blocks: Images, audio, links and resources that came beside structured content. Without that,
            `content` is the list of blocks itself.
    """

    content: object = None
    is_error: bool = False
    error_message: str | None = None
    blocks: tuple[JsonObject, ...] = ()

    def to_dict(self) -> JsonObject:
        """Return `{"content": ...}`, or `{"error": ..., "content": ...}` for a failure (R11.3, P43)."""
        if self.is_error:
            return {"error": self.error_message, "content": self.content}
        return {"content": self.content}


class Attachment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image, a recording or a file that a tool returned, checked and ready to be shown to the model.

    Attributes:
        mime: What `data` is by its first bytes, whatever the server called it.
        data: Base64, padded, without line breaks.
        bytes: Size of what `data` stands for.
        name: File name, for a `file`.
    """

    kind: Literal["image", "audio", "file"]
    mime: str
    data: str
    bytes: int
    name: str = ""


class ToolMessage(Struct, frozen=True, tag="tool", omit_defaults=True):
    """The answer to one tool call in the conversation; `content` is JSON text (R11.5, P44).

    Attributes:
        attachments: What `content` only describes, in the same order. An endpoint that does not take one of
            them is sent the description alone.
    """

    call_id: CallId
    content: str
    attachments: tuple[Attachment, ...] = ()


class CachePoint(Struct, frozen=True):
    """Where a caller wants an endpoint's prompt cache to end: a `cache_control` of its own.

    Attributes:
        end: How many characters of the text stand before it.
        control: The marker, as it goes out.
    """

    end: int
    control: JsonObject


class SystemText(Struct, frozen=True, tag="system", omit_defaults=True):
    """Instructions that open a conversation."""

    text: str
    cache_points: tuple[CachePoint, ...] = ()


class UserText(Struct, frozen=True, tag="user", omit_defaults=True):
    """What the host says to the model."""

    text: str
    cache_points: tuple[CachePoint, ...] = ()


class AssistantText(Struct, frozen=True, tag="assistant"):
    """What the model is taken to have said, in a conversation that a server made up for sampling."""

    text: str


ConversationItem: TypeAlias = SystemText | UserText | AssistantText | ToolMessage


class AnswerSchema(Struct, frozen=True):
    """The shape of a final answer: a name for the endpoint and a JSON Schema."""

    name: str
    schema: JsonObject


class OfferTools(Struct, frozen=True, tag="offer"):
    """The request offers tools and leaves the form of an answer free (R4.6, P14).

    Attributes:
        tools: The listing, when it is new to the conversation; `None`: as offered before.
    """

    tools: tuple[ToolDefinition, ...] | None = None


class RequireAnswer(Struct, frozen=True, tag="answer"):
    """The request offers no tools and asks for a final answer (R5.8, R5.9).

    Attributes:
        answer: The shape it must have; `None`: any text.
    """

    answer: AnswerSchema | None = None


class Usage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of one or more completions; `cost_usd` is `None` where the endpoint does not say."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float | None = None

    def __add__(self, other: "Usage") -> "Usage":
        """Sum two usages, each count within 63 bits; a cost is known as soon as one of them is."""
        costs = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        return Usage(
            input_tokens=_within_63_bits(self.input_tokens + other.input_tokens),
            output_tokens=_within_63_bits(self.output_tokens + other.output_tokens),
            cached_tokens=_within_63_bits(self.cached_tokens + other.cached_tokens),
            reasoning_tokens=_within_63_bits(self.reasoning_tokens + other.reasoning_tokens),
            cost_usd=sum(costs) if costs else None,
        )


def _within_63_bits(count: int) -> int:
    # An endpoint can report anything, and Python refuses to print an integer of over 4,300 digits.
    return max(-(2**63), min(count, 2**63 - 1))


class Budget(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much may be spent on the model; `None`: no limit.

    What has reached a limit asks for no more than the final answer it is owed, and for no repair of it.

    Attributes:
        requests: Completions that are asked for, the forced final one included; retries are not counted.
        tokens: Of what is sent and what comes back, together.
        cost_usd: As far as the endpoint says what its replies cost.
    """

    requests: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None


class TurnLimits(Struct, frozen=True, kw_only=True):
    """How much a turn may use.

    Attributes:
        max_tool_iterations: Replies with tool calls before the final answer is forced (R13.1).
        tool_call_timeout_s: For each tool call (R13.2).
        server_startup_timeout_s: For spawn, handshake and listing together (R13.3).
        max_result_chars: Longest tool result that goes into the conversation; the trace keeps the whole.
        max_image_bytes: Largest image that the model is shown; a larger one is described. 0: none is shown.
        max_media_bytes: Images, audio and files that the model is shown in one turn, together; what does not
            fit is described. 0: none is shown.
        max_samplings: Requests to the model that servers may make themselves, all of them together (MCP
            sampling); 0: servers are not told that they may.
        turn_timeout_s: For the whole turn, teardown included; `None`: no limit.
        teardown_s: Seconds of it that are kept for closing the sessions, at most half of the limit. `None`: a
            tenth of the limit, at most 0.5 s. A turn without servers keeps nothing. Where there is no limit:
            how long a cancelled turn waits for its sessions; `None`: 5 s.
        budget: For the model; the turn that reaches it is forced to its final answer.
    """

    max_tool_iterations: int = 20
    tool_call_timeout_s: float = 30.0
    server_startup_timeout_s: float = 10.0
    max_result_chars: int = 20_000
    max_image_bytes: int = 5 * 1024 * 1024
    max_media_bytes: int = 20 * 1024 * 1024
    max_samplings: int = 0
    turn_timeout_s: float | None = None
    teardown_s: float | None = None
    budget: Budget = Budget()


OnToolDrift = Literal["ignore", "report", "refuse"]
"""What becomes of a tool that is not as the tool lock has it; no tool is held back unless it is refused."""


class FailurePolicy(Struct, frozen=True, kw_only=True):
    """What a failure leads to; the defaults are the requirements' (R6).

    Attributes:
        first_connect: The episode's first connect failed: end it, or go on without tools (R6.1).
        connect_retries: Further attempts in a later turn whose connect failed (R6.7).
        after_timeout: A tool call timed out: answer the rest of the batch as skipped, run it all the same, or
            skip it and force the final answer (R6.5, R6.6).
        after_death: The server died in the middle of a turn: force the final answer, or connect once more.
        fallbacks_before_stop: Consecutive fallback turns after which a host ends its episode.
        on_tool_drift: A server lists a tool that its lock does not have, or has otherwise; without a lock
            it means nothing.
    """

    first_connect: Literal["raise", "disable"] = "raise"
    connect_retries: int = 1
    after_timeout: Literal["skip", "continue", "force"] = "skip"
    after_death: Literal["force", "reconnect"] = "force"
    fallbacks_before_stop: int = 3
    on_tool_drift: OnToolDrift = "report"


class ServerFailure(Struct, frozen=True, kw_only=True, tag=True):
    """Why a server could not be used, with what a person needs to mend it.

    Attributes:
        phase: Where it failed.
        command: The command line as one would type it, or the URL.
        cause: One sentence.
        exit_status: The process's status, if it exited by itself.
        signal: The signal that killed it, such as `SIGKILL`.
        elapsed_s: From the start of the spawn.
        stderr_tail: The last lines that the server wrote to stderr; untrusted, control characters removed.
        remedy: What to do.
    """

    server: ServerName
    phase: Literal["spawn", "initialize", "list", "call", "close"]
    command: str
    cause: str
    exit_status: int | None = None
    signal: str | None = None
    elapsed_s: float = 0.0
    stderr_tail: str = ""
    remedy: str = ""


class LlmFailure(Struct, frozen=True, kw_only=True, tag=True):
    """Why the model gave no completion, after all tries.

    Attributes:
        kind: `refused` is the endpoint's word that another try will not change (key, credit, model);
            `invalid_reply` an answer that is none; `damaged` a stream with an event that is garbled, lost, or
            out of order.
        endpoint: Base URL without credentials.
        status: HTTP status, if there was one.
        message: The endpoint's own words, or what happened to the connection; untrusted.
        attempts: Requests that were sent.
        remedy: What to do.
    """

    kind: Literal["refused", "unavailable", "timed_out", "invalid_reply", "damaged", "unreachable"]
    endpoint: str
    model: str
    message: str
    status: int | None = None
    attempts: int = 1
    remedy: str = ""


class ToolsUnsupported(Struct, frozen=True, kw_only=True, tag=True):
    """Tools were wanted of a model that cannot call any (R12.5); `reason` says who says so."""

    model: str
    endpoint: str
    reason: str


class DeadlineMissed(Struct, frozen=True, kw_only=True, tag=True):
    """The turn ran out of time; `doing` says what it was waiting for.

    Attributes:
        limit_s: Of the whole turn.
        kept_s: The part of it that was kept for closing sessions, so that the work ended that much earlier.
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
"""How an answer came about; where several hold: fallback, forced, degraded, answered, in this order."""


class ToolCallRecord(Struct, frozen=True, kw_only=True):
    """One tool call of a finished turn: what was asked, and what became of it.

    Attributes:
        settlement: `returned` (by the server, error or not), `timed_out`, `died` (the server did), `skipped`
            (never sent), `rejected` (unknown tool, unreadable arguments).
        iteration: One-based number of the reply that asked for it.
        duration_s: `None` where it was never sent.
    """

    call_id: CallId
    name: str
    arguments: str
    iteration: int
    settlement: Literal["returned", "timed_out", "died", "skipped", "rejected"]
    result: ToolCallResult
    duration_s: float | None = None


SupportCheck = Literal["skip", "beside", "before"]
"""Whether the model's endpoint is asked if it takes tools: not, while sessions open, before any is opened."""


# --- host -> agent -> host ---


class RunTurn(Message, frozen=True, kw_only=True):
    """host -> agent: think, and answer.

    Attributes:
        turn: One-based number of the turn in its episode.
        servers: Names of the tool servers to open, in order; empty: no tools this turn.
        answer: The shape of the answer, `None` for any text.
        fallback: The answer to use where the model gives no acceptable one; `None`: fail instead.
        support_check: When to ask whether the model can call tools; only where there are servers.
        stream: The model's words are noted as they come (`TextDelta`).
        attach_media: Images, audio and files in tool results are attached to the conversation. Traces from
            before that was possible lack the field, and replay without attachments.
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


class TurnCompleted(Message, frozen=True, kw_only=True):
    """agent -> host: the turn has an answer, and every session is closed.

    Attributes:
        answer: The accepted answer as a JSON value, or the host's fallback.
        raw_response: The text that the answer was read from, or the last text that was refused.
        reason: Why the kind is not `answered`; empty otherwise.
        iterations: Replies with tool calls.
        requests: Completions that were asked for.
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


class TurnFailed(Message, frozen=True, kw_only=True):
    """agent -> host: the turn has no answer; every session is closed."""

    turn: int
    failure: TurnFailure
    iterations: int = 0
    requests: int = 0
    tool_calls: tuple[ToolCallRecord, ...] = ()
    usage: Usage = Usage()


# --- agent -> session -> agent ---


class OpenSession(Message, frozen=True, kw_only=True):
    """agent -> session: connect, within `timeout_s` an attempt; spawn a fresh process where there is one."""

    server: ServerName
    turn: int
    timeout_s: float
    policy: FailurePolicy = FailurePolicy()


class SessionOpened(Message, frozen=True, kw_only=True):
    """session -> agent: connected, initialised, listed (P8).

    Attributes:
        attempt: 1, or 2 after a retry (R6.8).
        protocol_version: The MCP revision agreed upon; empty for servers that are none.
        pid: The server's process, if it has one.
    """

    server: ServerName
    tools: tuple[ToolDefinition, ...]
    attempt: int = 1
    protocol_version: str = ""
    pid: int | None = None
    elapsed_s: float = 0.0


class McpDisabled(Message, frozen=True, kw_only=True):
    """session -> agent: no tools from this server for the rest of the episode (R6.9, R6.10, P27).

    Attributes:
        newly: This turn disabled it; otherwise an earlier one did and nothing was tried.
    """

    server: ServerName
    reason: str
    newly: bool = False


class StartupFailed(Message, frozen=True, kw_only=True):
    """session -> agent: the first connect of the episode failed, and the policy is to raise (R6.1)."""

    server: ServerName
    failure: ServerFailure


class CallTools(Message, frozen=True, kw_only=True):
    """agent -> session: run these calls one after the other, and settle each (R5.2, P17).

    Attributes:
        after_timeout: What the session does with the rest of the batch when a call times out.
    """

    server: ServerName
    batch: BatchId
    calls: tuple[ServerCall, ...]
    timeout_s: float
    after_timeout: Literal["skip", "continue"] = "skip"


class ToolsChanged(Message, frozen=True, kw_only=True):
    """session -> agent: the server lists other tools than before; said between two batches."""

    server: ServerName
    tools: tuple[ToolDefinition, ...]


class ToolReturned(Message, frozen=True, kw_only=True):
    """session -> agent: the call was answered, with a result or an error."""

    batch: BatchId
    call_id: CallId
    result: ToolCallResult
    duration_s: float = 0.0


class ToolTimedOut(Message, frozen=True, kw_only=True):
    """session -> agent: no answer in time; the server was told that the call is cancelled (R6.5, P24)."""

    batch: BatchId
    call_id: CallId
    timeout_s: float
    duration_s: float = 0.0


class ToolSkipped(Message, frozen=True, kw_only=True):
    """session -> agent, or noted by the agent: the call was not sent to its server, and why."""

    batch: BatchId
    call_id: CallId
    reason: str


class ServerDied(Message, frozen=True, kw_only=True):
    """session -> agent: the server ended or its connection broke while this call was under way."""

    server: ServerName
    batch: BatchId
    call_id: CallId
    failure: ServerFailure
    duration_s: float = 0.0


class CloseSession(Message, frozen=True, kw_only=True):
    """agent -> session: close the connection and leave no process of it alive (R3.5, R3.7)."""

    server: ServerName


class SessionClosed(Message, frozen=True, kw_only=True):
    """session -> agent: closed; no process of the server's group is alive (P9).

    Attributes:
        ending: How the process went: by itself when its input ended, on request (SIGTERM), by force
            (SIGKILL), before it was asked to (`died`); `none`: there was no process; `handed_over`: it goes
            behind the turn, and is gone before the next turn's first tool call (`ServerEnded`).
        stderr_tail: The last lines that it wrote to stderr; untrusted, control characters removed.
    """

    server: ServerName
    ending: Literal["polite", "terminated", "killed", "died", "none", "handed_over"] = "none"
    exit_status: int | None = None
    stderr_tail: str = ""
    elapsed_s: float = 0.0


# --- agent -> llm -> agent ---


class CheckToolSupport(Message, frozen=True, kw_only=True):
    """agent -> llm: say whether the model can call tools, before it is offered any (R12)."""


class ToolSupportChecked(Message, frozen=True, kw_only=True):
    """llm -> agent: whether the model may be offered tools, by its endpoint's word or by its name.

    Attributes:
        by: Whose word it is: `forced` by the configuration, the `endpoint`'s model list, the host's `client`,
            the model's `name`.
        reason: Why not, for people; empty where it may.
    """

    model: str
    endpoint: str
    supported: bool
    by: Literal["forced", "endpoint", "client", "name"]
    reason: str = ""


class RequestCompletion(Message, frozen=True, kw_only=True):
    """agent -> llm, or a server's session by an ask: add what is new to the conversation and ask the model.

    The LLM actor keeps the assistant's own messages itself, so this never repeats history.

    Attributes:
        conversation: Names the conversation; a name not seen before starts an empty one.
        request: One-based number of the request in its turn.
        stream: Note the reply's words as they come.
    """

    conversation: ConversationId
    request: int
    new: tuple[ConversationItem, ...]
    mode: OfferTools | RequireAnswer
    stream: bool = False


class CompletionReceived(Message, frozen=True, kw_only=True):
    """llm -> agent: the model's reply.

    Attributes:
        content: Its text; may stand beside tool calls.
        refusal: The model's words where it declines to answer, as far as the endpoint tells them apart.
        reasoning: What it says of its thinking, for people; never an answer.
        finish_reason: The endpoint's word in the terms of chat completions (`stop`, `length`, `tool_calls`,
            `content_filter`), kept for people: nothing is decided by it.
        usage: Of every reply that this one took, one that was cut short included.
    """

    request: int
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    model: str = ""
    usage: Usage = Usage()
    elapsed_s: float = 0.0


class CompletionFailed(Message, frozen=True, kw_only=True):
    """llm -> agent: no completion, and no further try would help."""

    request: int
    failure: LlmFailure


# --- agent -> agent ---


class CheckAnswer(Message, frozen=True, kw_only=True):
    """agent -> agent: put this final text before the host's check."""

    content: str


class AnswerAccepted(Message, frozen=True, kw_only=True):
    """agent -> agent: the check accepted the text as this JSON value."""

    answer: object


class AnswerRefused(Message, frozen=True, kw_only=True):
    """agent -> agent: the check refused the text; `reason` is fit for the model to read."""

    reason: str


class DeadlinePassed(Message, frozen=True, kw_only=True):
    """agent -> agent: the work of this turn has used up its time.

    Attributes:
        limit_s: Of the whole turn.
        kept_s: The part of it that is kept for closing sessions.
    """

    limit_s: float
    kept_s: float = 0.0


class TurnInterrupted(Message, frozen=True, kw_only=True):
    """runtime -> agent: the turn was cancelled, from outside or by another actor's crash."""

    reason: str


# --- notes ---


class IterationStarted(Message, frozen=True, kw_only=True):
    """agent: asks the model with tools on offer for the nth time."""

    iteration: int
    max_iterations: int


class ToolRejected(Message, frozen=True, kw_only=True):
    """agent: a call that no server gets to see: unknown tool or unreadable arguments (R6.4)."""

    batch: BatchId
    call_id: CallId
    name: str
    error: str


class ReplyUnusable(Message, frozen=True, kw_only=True):
    """agent: the model's reply had neither content nor tool calls (R5.10)."""

    finish_reason: str | None
    iteration: int


class FinalForced(Message, frozen=True, kw_only=True):
    """agent: asks for the final answer, without tools (R5.7)."""

    reason: Literal["max_iterations", "no_content", "tool_timeout", "server_died", "budget"]
    iterations: int


class RepairRequested(Message, frozen=True, kw_only=True):
    """agent: the final answer was refused; asks once more."""

    reason: str


class FellBack(Message, frozen=True, kw_only=True):
    """agent: no acceptable answer; the host's fallback value is used (R15.3)."""

    reason: str
    raw_response: str | None


class ConnectFailed(Message, frozen=True, kw_only=True):
    """session: an attempt to connect failed, and what follows."""

    server: ServerName
    attempt: int
    failure: ServerFailure
    then: Literal["retry", "disable", "raise"]


class ToolCalled(Message, frozen=True, kw_only=True):
    """session: this call is being sent to its server (P28)."""

    server: ServerName
    batch: BatchId
    call_id: CallId
    tool: str
    arguments: JsonObject


class ServerNoted(Message, frozen=True, kw_only=True):
    """session, agent: something a server did beside the protocol: noise, a malformed tool, a log line.

    Attributes:
        kind: `bad_tool`: it is left out, or is not as it should be; `bad_schema`: its results are not held to
            its output schema; `too_large`: a message was not read, its values were kept as text, or further
            notices were left out.
    """

    server: ServerName
    kind: Literal["noise", "bad_tool", "bad_schema", "too_large", "log", "progress"]
    text: str


ToolPart = Literal["description", "input_schema", "output_schema"]
"""A part of a tool's definition that its server can change."""


class ToolDrifted(Message, frozen=True, kw_only=True):
    """session: a tool is not as it was approved, by the user's tool lock.

    Attributes:
        tool: Bare name.
        change: `added`: the lock does not have it; `removed`: the server no longer lists it.
        parts: What has changed, where something has.
        refused: It is not offered to the model.
    """

    server: ServerName
    tool: str
    change: Literal["added", "removed", "changed"]
    parts: tuple[ToolPart, ...] = ()
    refused: bool = False


class SessionPrewarmed(Message, frozen=True, kw_only=True, tag="SpareReady"):
    """session: a connection is open that no turn has asked for yet."""

    server: ServerName
    pid: int | None = None
    elapsed_s: float = 0.0


class PrewarmLost(Message, frozen=True, kw_only=True, tag="SpareLost"):
    """session: a connection that was prepared cannot be used; the turn opens another one."""

    server: ServerName
    cause: str


class ServerEnded(Message, frozen=True, kw_only=True):
    """session: a server that was left behind by its turn has ended; no process of its group is alive (P9)."""

    server: ServerName
    pid: int | None = None
    ending: Literal["polite", "terminated", "killed", "died", "none"] = "none"
    exit_status: int | None = None
    stderr_tail: str = ""
    elapsed_s: float = 0.0


class CompletionRetried(Message, frozen=True, kw_only=True):
    """llm: a request failed and is sent again after `delay_s`."""

    request: int
    attempt: int
    delay_s: float
    failure: LlmFailure


class ReplyCut(Message, frozen=True, kw_only=True):
    """llm: a reply ended at its length limit, in the middle of what it had to say.

    Attributes:
        limit_tokens: The limit that was sent; `None`: the endpoint's own.
        retried_with: The larger limit with which it is asked for once more; `None`: it is taken as it is.
    """

    request: int
    limit_tokens: int | None
    retried_with: int | None = None
    usage: Usage = Usage()


class TextDelta(Message, frozen=True, kw_only=True):
    """llm: a piece of a reply as it comes, in a turn that streams.

    The pieces of a request since its last restart, joined, are the reply's text so far.

    Attributes:
        part: What it belongs to: the answer's text, or what the model says of its thinking.
        restart: The reply begins anew, because the request is sent again: drop every piece of this request,
            of both parts, that came before. `text` is empty then.
    """

    request: int
    text: str
    part: Literal["content", "reasoning"] = "content"
    restart: bool = False


ConnectOutcome: TypeAlias = SessionOpened | McpDisabled | StartupFailed
Settlement: TypeAlias = ToolReturned | ToolTimedOut | ToolSkipped | ServerDied

TurnEvent: TypeAlias = (
    RunTurn
    | SessionOpened
    | McpDisabled
    | StartupFailed
    | ToolsChanged
    | ToolSupportChecked
    | CompletionReceived
    | CompletionFailed
    | ToolReturned
    | ToolTimedOut
    | ToolSkipped
    | ServerDied
    | AnswerAccepted
    | AnswerRefused
    | SessionClosed
    | DeadlinePassed
    | TurnInterrupted
)
"""What the turn's state machine takes."""

TurnCommand: TypeAlias = (
    CheckToolSupport
    | OpenSession
    | RequestCompletion
    | CallTools
    | CheckAnswer
    | CloseSession
    | TurnCompleted
    | TurnFailed
)
"""What it asks its shell to do."""

TurnNote: TypeAlias = (
    IterationStarted
    | ToolRejected
    | ToolSkipped
    | ReplyUnusable
    | FinalForced
    | RepairRequested
    | FellBack
    | ServerNoted
)
"""What it only says, for the trace."""

SessionCommand: TypeAlias = OpenSession | CallTools | CloseSession
LlmCommand: TypeAlias = RequestCompletion | CheckToolSupport
LlmNote: TypeAlias = CompletionRetried | ReplyCut | TextDelta
SessionNote: TypeAlias = (
    ConnectFailed | ToolCalled | ServerNoted | ToolDrifted | SessionPrewarmed | PrewarmLost | ServerEnded
)

AnyMessage: TypeAlias = TurnEvent | TurnCommand | TurnNote | SessionNote | LlmNote
"""Every message above; the trace reader decodes into it."""
