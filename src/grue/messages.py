"""All messages of a turn: their fields, units, senders and receivers.

The messages are the interface between the actors, and a trace consists of them. A command is imperative
(`CallTools`). An event is past tense and reports what happened (`ToolTimedOut`). A note is only recorded in
the trace (`IterationStarted`). The tag of a message is the name of its class, or the old name if the class
was renamed, because old traces contain it. So this module is also the schema of the trace file.

```
host ── RunTurn ──▶ agent ── CheckToolSupport ────▶ llm       ▶ ToolSupportChecked
                    agent ── OpenSession ─────────▶ session   ▶ SessionOpened | McpDisabled | StartupFailed
                    agent ── RewriteHistory ──────▶ llm
                    agent ── RequestCompletion ───▶ llm       ▶ CompletionReceived | CompletionFailed
                                                                     | CompletionPostponed
                    agent ── DropCompletion ──────▶ llm       ▶ ReplyDropped
                    agent ── CallTools(n calls) ──▶ session   ▶ n x (ToolReturned | ToolTimedOut | ToolSkipped
                                                                     | ServerDied), ToolsChanged
                                                    sampling  ▶ ServerSampled
                    agent ── AskApproval ─────────▶ approval  ▶ CallsDecided | ApprovalPostponed
                    agent ── CheckAnswer ─────────▶ agent     ▶ AnswerAccepted | AnswerRefused
                    agent ── CloseSession ────────▶ session   ▶ SessionClosed
host ◀─ TurnCompleted | TurnFailed | TurnParked | TurnWaits ── agent
```

Durations and time limits are seconds (`_s`), sizes are characters (`_chars`) or bytes (`_bytes`). Tool names
are canonical, `{server}.{tool}`. A field called `tool` holds the bare name that the tool's server uses; only
`ContextItem.tool` is canonical. In a note, `endpoint` is the name of the endpoint's profile. A field typed
`object` holds a JSON value: None, bool, int, float, str, list or dict of the same.

The classes that `__all__` lists are public. The other classes are internal: their names and fields in Python
may change in any version. Traces with such messages stay readable.
"""

from typing import TYPE_CHECKING, ClassVar, Literal, NewType, TypeAlias, Union

import msgspec
from msgspec import Struct, field

from grue import policies

__all__ = [
    "AssistantReply",
    "Attachment",
    "CallTools",
    "CheckToolSupport",
    "CompletionFailed",
    "CompletionReceived",
    "Echo",
    "HistoryItem",
    "JsonObject",
    "LlmFailure",
    "McpDisabled",
    "ModelPassedOver",
    "OfferTools",
    "RequestCompletion",
    "RewriteHistory",
    "RunTurn",
    "ServerDied",
    "ServerFailure",
    "ServerName",
    "SessionClosed",
    "SessionOpened",
    "SystemText",
    "TextDelta",
    "ToolCall",
    "ToolCallRecord",
    "ToolCallResult",
    "ToolCalled",
    "ToolDefinition",
    "ToolDenied",
    "ToolMessage",
    "ToolReturned",
    "ToolSupportChecked",
    "ToolTimedOut",
    "TurnCompleted",
    "TurnFailed",
    "TurnParked",
    "Usage",
    "UserText",
]

# --- What messages carry: names and ids

ServerName = NewType("ServerName", str)
CallId = NewType("CallId", str)
BatchId = NewType("BatchId", int)
ConversationId = NewType("ConversationId", str)

JsonObject: TypeAlias = dict[str, object]


class Message(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """Base of every message."""

    compared: ClassVar[bool] = True
    """`False`: `grue trace diff` does not compare such messages, because they may differ from run to run."""

    words: ClassVar[str] = ""
    """How people read the message, a template for `str.format` (`{0.x}`: the field `x`); empty: its row in
    `grue.tracing.message_words` says it."""


class ToSession(Message, frozen=True, kw_only=True):
    """Base of the messages to the actor of a session."""


class ToLlm(Message, frozen=True, kw_only=True):
    """Base of the messages to the LLM actor."""


class TurnNote(Message, frozen=True, kw_only=True):
    """Base of the notes that the turn's state machine returns."""


class SessionNote(Message, frozen=True, kw_only=True):
    """Base of the notes about a server and its sessions."""


class LlmNote(Message, frozen=True, kw_only=True):
    """Base of the notes about conversations with a model."""


# --- Tools and their calls


class ToolDefinition(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A tool as its server lists it.

    Attributes:
        tool: Bare name, as the server knows it; may contain dots.
        description: The server's text for the model; untrusted.
        input_schema: JSON Schema of the arguments, an object schema.
        output_schema: JSON Schema of the structured result, if the server declares one.
        full_name: The canonical name, if it is not `{server}.{tool}`, as for built-in tools; else empty.
        annotations: The server's statements about the tool's behaviour; untrusted. `None`: no statements.
        trusted: grue trusts the annotations, for example because the tool lock holds this definition.
        boxed: The tool's server or command runs in a sandbox, and this machine enforces all limits.
    """

    server: ServerName
    tool: str
    description: str = ""
    input_schema: JsonObject
    output_schema: JsonObject | None = None
    full_name: str = ""
    annotations: policies.ToolAnnotations | None = None
    trusted: bool = False
    boxed: bool = False

    @property
    def name(self) -> str:
        """The canonical name, such as `files.read`.

        Source: R8.2, P34
        """
        return self.full_name or f"{self.server}.{self.tool}"


class ToolCall(Struct, frozen=True, kw_only=True, gc=False):
    """A tool call as the model asked for it.

    Attributes:
        call_id: Unique within the conversation. Generated if the provider sent no id, or a used one.
        name: Canonical name of the tool; the name as the model wrote it, if there is no such tool.
        arguments: The model's text, not yet parsed. It may be invalid JSON.
    """

    call_id: CallId
    name: str
    arguments: str


class ToolTask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call that its server runs as an MCP task: the client polls for the result."""

    task_id: str  # the server's id of the task; untrusted
    poll_s: float = 1.0  # seconds between two polls: the server's wish, within limits; 1 s if it has none
    ttl_s: float | None = None  # seconds that the server keeps it; `None`: not stated, or no limit


class ServerCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call as its session gets it: the arguments have been parsed into a JSON object."""

    call_id: CallId
    tool: str
    arguments: JsonObject
    task: ToolTask | None = None  # set if an earlier process has sent this call: only ask for the result
    # Digest of the tool's definition when the call was allowed. If the tool has changed since, the session
    # does not send the call. Empty (old traces, or `task` is set): no check.
    definition: str = ""


class ToolCallResult(Struct, frozen=True, gc=False):
    """The result of a tool call.

    Attributes:
        content: A JSON value: structured content, parsed JSON, text, or a list of blocks; `None`: no content.
        is_error: The call failed, or the tool reported an error.
        error_message: The error, for the model. Set if `is_error` is set.
        blocks: If `content` is structured content: the images, audio, links and resources that the server
            sent in addition. For a call outside a turn: all blocks that the server sent.

    Source: R11
    """

    content: object = None
    is_error: bool = False
    error_message: str | None = None
    blocks: tuple[JsonObject, ...] = ()

    def to_dict(self) -> JsonObject:
        """Return `{"content": ...}`, or `{"error": ..., "content": ...}` for a failure.

        Source: R11.3, P43
        """
        if self.is_error:
            return {"error": self.error_message, "content": self.content}
        return {"content": self.content}


class ToolCallRecord(Struct, frozen=True, kw_only=True, gc=False):
    """One settled tool call of a turn, with its result.

    Attributes:
        settlement: `returned` (with a result or an error), `timed_out`, `died` (the server, during the call),
            `skipped` (not sent by this process), `rejected` (never sent: the tool is unknown or has changed,
            or the arguments cannot be read or do not fit the tool's schema), `denied` (by the policy or a
            person, or nobody has answered the question), `interrupted` (sent by a process that was killed:
            the call may have taken effect).
        iteration: How many replies had tool calls, up to and including this call's reply. Only replies to
            requests with tools count.
        duration_s: How long the call took; `None`: not sent, or `interrupted`.
        changed_arguments: What a person has changed the arguments to; `None`: nobody has changed them.
    """

    call_id: CallId
    name: str
    arguments: str
    iteration: int
    settlement: policies.SettlementKind
    result: ToolCallResult
    duration_s: float | None = None
    changed_arguments: JsonObject | None = None


ToolPart = Literal["description", "input_schema", "output_schema", "annotations"]


# --- What is said in a conversation


class Attachment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image, a recording or a file for the model, after its validation.

    Attributes:
        mime: Media type, detected from the first bytes. What a server or a file name claims is ignored.
        data: Base64, padded, without line breaks.
        bytes: Size of the decoded data.
        name: The file's name, if `kind` is `file`; else empty.
    """

    kind: policies.MediaKind
    mime: str
    data: str
    bytes: int
    name: str = ""


class ToolMessage(Struct, frozen=True, tag="tool", omit_defaults=True, gc=False):
    """The answer to one tool call in the conversation.

    Attributes:
        content: The text for the model. In old traces, and with `TurnRequest.json_results`, always JSON.
        attachments: Images, audio and files of the result. `content` describes each, in the same order. An
            endpoint that does not support an attachment gets only the description.
        whole_chars: How long the text was before it was cut to `TurnLimits.max_result_chars`; 0: not cut.

    Source: R11.5, P44
    """

    call_id: CallId
    content: str
    attachments: tuple[Attachment, ...] = ()
    whole_chars: int = 0


class CachePoint(Struct, frozen=True):
    """A place in a text that the host has marked with `cache_control`: after the first `end` characters."""

    end: int
    control: JsonObject


class SystemText(Struct, frozen=True, tag="system", omit_defaults=True, gc=False):
    """Instructions that open a conversation."""

    text: str
    cache_points: tuple[CachePoint, ...] = ()


class UserText(Struct, frozen=True, tag="user", omit_defaults=True, gc=False):
    """A text in the role of the user, mostly the host's.

    Attributes:
        attachments: Images. An endpoint that does not support an image gets a description instead.
        stub: The shorter text that replaces `text` if a `ContextPolicy` clears it; empty: never cleared.
    """

    text: str
    cache_points: tuple[CachePoint, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    stub: str = ""


class AssistantText(Struct, frozen=True, tag="assistant"):
    """A text in the assistant's role that is no reply of the model, such as one in a sampling request."""

    text: str


class Echo(Struct, frozen=True, kw_only=True):
    """The parts of a reply that later requests must send back unchanged, such as thoughts and signatures.

    Attributes:
        wire: The wire format that `data` is written in.
        model: The model, as the settings name it. Another model cannot read `data`.
        data: The parts, as a JSON object. Each wire format has its own keys.
    """

    wire: str
    model: str
    data: JsonObject


class AssistantReply(Struct, frozen=True, kw_only=True, tag="reply", omit_defaults=True, gc=False):
    """A reply of the model, as a conversation keeps it.

    Attributes:
        echo: What later requests must send back to the provider with this reply; `None`: nothing.
    """

    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    echo: Echo | None = None


ConversationItem: TypeAlias = SystemText | UserText | AssistantText | ToolMessage

HistoryItem: TypeAlias = UserText | AssistantReply | AssistantText | ToolMessage
"""An item of a conversation before the turn, as given in `TurnRequest.history`."""


class Cleared(Struct, frozen=True, kw_only=True, tag="cleared", omit_defaults=True):
    """A change of a conversation's history: shorter texts take the place of tool results and user texts."""

    results: tuple[ToolMessage, ...] = ()  # replace earlier ones with the same call ids
    texts: int = 0  # how many further user texts are replaced by their `UserText.stub`, oldest first


class Summarised(Struct, frozen=True, tag="summarised"):
    """A change of a conversation's history: `items` replace all entries after the history's first entry."""

    items: tuple[UserText, ...]


class Shortened(Struct, frozen=True, tag="shortened"):
    """A change of a conversation's history: its oldest exchanges after the first entry are left out.

    At most the fraction `share` (0 to 1) of the size of all entries after the first is kept. The last user
    text and the entries after it are kept in any case.
    """

    share: float


class AnswerSchema(Struct, frozen=True):
    """The shape of a final answer: a JSON Schema, and the name under which the endpoint gets it."""

    name: str
    schema: JsonObject


class Said(Struct, frozen=True, tag="said", omit_defaults=True, gc=False):
    """An entry of a conversation: texts and tool results that were added together, mostly by one request."""

    items: tuple[ConversationItem, ...]
    answer: AnswerSchema | None = None  # the schema asked for; `None`: none, or the same as before
    beside_tools: bool = False  # the request also offered tools, so the schema `answer` was sent as text


class Rewritten(Struct, frozen=True, tag="rewritten"):
    """A change of a conversation's history: `entries` replace the slice `[start:stop]` of its entries."""

    start: int
    stop: int
    entries: tuple[Said | AssistantReply, ...] = ()


HistoryEntry: TypeAlias = Said | AssistantReply | Rewritten


class HistoryReference(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reference to a conversation's entries before a turn."""

    conversation: ConversationId
    length: int  # entries added so far, replaced ones included; a `Rewritten` counts as one, too
    digest: str  # their SHA-256, as `Ledger` in `context/history.py` computes it; empty without entries
    file: str = ""  # the file that the conversation is appended to; empty: no file


# --- Why a turn failed


class ServerFailure(Struct, frozen=True, kw_only=True, tag=True):
    """The failure of a server, with the details that a person needs to fix it.

    Attributes:
        command: The server's command line in shell syntax, its URL, or the method that connects to it.
        cause: What went wrong, in one sentence.
        exit_status: The process's status, if it exited by itself.
        signal: The signal that killed the process, such as `SIGKILL`.
        elapsed_s: Seconds since the attempt to connect began.
        stderr_tail: The last lines that the server wrote to stderr; untrusted, control characters removed.
        needs_login: Whether a person has to log in at the server (`grue login`).
    """

    server: ServerName
    phase: policies.ServerPhase
    command: str
    cause: str
    exit_status: int | None = None
    signal: str | None = None
    elapsed_s: float = 0.0
    stderr_tail: str = ""
    remedy: str = ""
    needs_login: bool = False

    @property
    def last_words(self) -> str:
        """The last line that the server wrote to stderr, at most 200 characters; empty: it wrote no line."""
        line = self.stderr_tail.rstrip().rpartition("\n")[2].strip()
        return line if len(line) <= _MAX_LAST_WORDS else f"{line[: _MAX_LAST_WORDS - 1]}…"


_MAX_LAST_WORDS = 200


class LlmFailure(Struct, frozen=True, kw_only=True, tag=True):
    """The failure of a completion, or of one try that is followed by another (`CompletionRetried`).

    Attributes:
        kind: `refused`: a retry would not help (key, credit, model). `unavailable`: it may help. `timed_out`:
            no whole reply in time. `unreachable`: no connection. `invalid_reply`: the reply cannot be parsed.
            `damaged`: an event of the stream is garbled, lost or out of order.
        endpoint: Base URL without credentials, or the class of the host's own LLM client.
        status: HTTP status, if the endpoint replied.
        message: The endpoint's error text, or what happened to the connection; untrusted.
        attempts: How many tries with this model have failed, this one included. After a cut reply, the count
            begins anew.
        overflow: If `reason` is `too_long`, the sizes that the refusal names; else `None`. An `LlmFailure`
            that a host's own LLM client has made may lack them.
        reason: Why the completion failed; `None` in the traces of versions that did not record it.
        retry_after_s: The wait that the endpoint asked for, if `kind` is `unavailable`; else `None`.
    """

    kind: policies.FailureKind
    endpoint: str
    model: str
    message: str
    status: int | None = None
    attempts: int = 1
    remedy: str = ""
    overflow: policies.ContextOverflow | None = None
    reason: policies.FailureReason | None = None
    retry_after_s: float | None = None


class ToolsUnsupported(Struct, frozen=True, kw_only=True, tag=True):
    """Tools are configured for a model that cannot call any; `reason` says why it cannot.

    Source: R12.5
    """

    model: str
    endpoint: str
    reason: str


class DeadlineMissed(Struct, frozen=True, kw_only=True, tag=True):
    """The turn ran out of time; `doing` says what it was waiting for."""

    limit_s: float  # of the whole turn
    doing: str
    kept_s: float = 0.0  # the part of the limit that was reserved for closing sessions


class Interrupted(Struct, frozen=True, kw_only=True, tag=True):
    """The turn was cancelled from outside, for example by Ctrl-C, or because another actor crashed."""

    reason: str


class NoAnswer(Struct, frozen=True, kw_only=True, tag=True):
    """The model gave no acceptable answer and the host has no fallback."""

    reason: str
    raw: str | None = None
    stopped: str = ""  # `CompletionReceived.stopped` of the last reply


TurnFailure: TypeAlias = (
    ServerFailure | LlmFailure | ToolsUnsupported | DeadlineMissed | Interrupted | NoAnswer
)

OutcomeKind = Literal["answered", "forced", "degraded", "fallback"]
"""How an answer was obtained. `fallback`: the host's fallback value is used. `forced`: the final answer was
forced (`FinalForced`). `degraded`: configured tools were missing. `answered`: none of these. If several words
apply, the first of them, in this order, is used."""


# --- The agent and the LLM actor


class OfferTools(Struct, frozen=True, tag="offer", gc=False):
    """The request offers tools. The endpoint is not told to enforce a schema on the reply.

    Attributes:
        tools: `None`: the same as in the previous request of the conversation.
        answer: The schema of the final answer, which is written into the prompt unless it is there already.
            `None`: any text is accepted, or the host's own texts describe the answer.

    Source: R4.6, P14
    """

    tools: tuple[ToolDefinition, ...] | None = None
    answer: AnswerSchema | None = None


class RequireAnswer(Struct, frozen=True, tag="answer"):
    """The request offers no tools: it asks for a final answer, a summary, or a text for a server (sampling).

    Source: R5.8, R5.9
    """

    answer: AnswerSchema | None = None  # `None`: no schema is sent


class Usage(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Tokens of one or more completions; `cost_usd` is `None` if the cost is not known.

    Attributes:
        cached_tokens: Those of the `input_tokens` that were read from the provider's cache.
        cache_write_tokens: Those of the `input_tokens` that were written to the provider's cache.
        reasoning_tokens: Those of the `output_tokens` that were spent on thinking.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float | None = None

    def __add__(self, other: "Usage") -> "Usage":
        """Add two usages. Counts are clamped to 63 bits. The cost is `None` only if both costs are."""
        mine, theirs = self.cost_usd, other.cost_usd
        *names, _ = self.__struct_fields__
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        # An endpoint can report anything, and Python refuses to print an integer of over 4,300 digits.
        sums = {name: max(-(2**63), min(count, 2**63 - 1)) for name, count in sums.items()}
        return Usage(**sums, cost_usd=theirs if mine is None else mine if theirs is None else mine + theirs)


class ModelAsked(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The model that a turn asks, for telemetry, display and forks only."""

    model: str
    address: str = ""  # the endpoint's base URL, without user, password and query
    provider: str = ""  # its name by OpenTelemetry's conventions (`gen_ai.provider.name`)
    wire: str = ""
    sampling: JsonObject = {}  # the settings that are sent, by their names in `LlmSettings` and `extra_body`
    streams: bool = True
    # The form of requests: the fields of `WireProfile` that the user has set, or grue has learned, and that
    # differ from the usual profile of this endpoint. A fork at the same endpoint uses it.
    form: JsonObject = {}


class ReplyFacts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Details of a reply, for telemetry and display only."""

    id: str = ""
    service_tier: str = ""
    system_fingerprint: str = ""  # the version of the provider's system (OpenAI)
    first_chunk_s: float | None = None  # until a streamed reply's first event; `None`: not streamed


class ReplyTokens(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tokens of a reply, as the endpoint reports them. grue only records them."""

    ids: tuple[int, ...] = ()  # in order; empty: not reported, or not readable
    logprobs: tuple[float, ...] = ()  # in the same order; empty: not reported, or not readable


class WrittenCalls(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tool calls that a model has written as text, and that the endpoint did not recognise as calls."""

    form: str  # the syntax of the calls: `hermes`, `mistral`, `json` and so on
    names: tuple[str, ...] = ()  # of the tools, as written; empty: the calls cannot be parsed reliably
    made: bool = False  # grue has turned the text into tool calls of the reply

    def __str__(self) -> str:
        """Return the form and the names of the tools, for people: `hermes: files.read`."""
        return f"{self.form}: {', '.join(self.names)}" if self.names else self.form


class CheckToolSupport(ToLlm, frozen=True, kw_only=True):
    """agent -> llm: check whether the model can call tools, before the first request offers them.

    Source: R12
    """

    words = "can the model call tools?"


class ToolSupportChecked(Message, frozen=True, kw_only=True):
    """llm -> agent: whether the model supports tools.

    Attributes:
        by: How this is known. `forced`: the configuration says so. `endpoint`: the endpoint's list of models
            says so. `client`: the host's LLM client says so. `name`: judged by the model's name.
        reason: Why the model does not support tools, for people; empty if it does.
    """

    model: str
    endpoint: str
    supported: bool
    by: Literal["forced", "endpoint", "client", "name"]
    reason: str = ""


ListingSource = Literal["runner", "trace", "cache", "locked", "known"]
"""Where a `PresumedListing` is from: an earlier turn of this `runner`, the resumed `trace`, the user's
`cache`, the listing file beside the tool lock (`locked`), or the host's functions or commands (`known`)."""


class PresumedListing(Struct, frozen=True, kw_only=True):
    """The tools that grue expects a server to list, without those that its options or the lock exclude."""

    server: ServerName
    tools: tuple[ToolDefinition, ...]
    source: ListingSource


class ToolsPresumed(Message, frozen=True, kw_only=True):
    """agent -> agent: the first request may offer these tools although the servers are still starting.

    The agent records this message after the commands that follow from `RunTurn`.
    """

    listings: tuple[PresumedListing, ...]


class RequestCompletion(ToLlm, frozen=True, kw_only=True):
    """agent -> llm: add new items to a conversation and ask the model. Sent for MCP sampling requests, too.

    The LLM actor keeps the history, including the model's replies, so the message carries new items only.

    Attributes:
        conversation: An unknown id starts an empty conversation.
        request: One-based number of the request in its turn; sampling requests are numbered apart.
        stream: Record the reply's text piece by piece, as it arrives (`TextDelta`).
        aside: Ask with a copy of the conversation; the conversation itself does not change. The copy leaves
            out a last reply that no request has followed yet.
        clears: The agent can shorten the history. So before the LLM actor reports that the request is too
            long, it tries only a lower token limit for the reply or, at status 413, fewer images and files.
        presumed: Servers are still starting. If they fail, or list other tools than the request offers, the
            agent may drop the request (`DropCompletion`), before or after the reply has come.
    """

    conversation: ConversationId
    request: int
    new: tuple[ConversationItem, ...]
    mode: OfferTools | RequireAnswer
    stream: bool = False
    aside: bool = False
    clears: bool = False
    presumed: bool = False


class DropCompletion(ToLlm, frozen=True, kw_only=True):
    """agent -> llm: cancel this request, or discard its reply if that has come; `reason` is for people."""

    conversation: ConversationId
    request: int
    reason: str


class RewriteHistory(ToLlm, frozen=True, kw_only=True):
    """agent -> llm: change the history of the conversation before the next request.

    Attributes:
        reason: `window`: the next request would not fit. `overflow`: the last one was refused as too long.
    """

    conversation: ConversationId
    change: Cleared | Shortened | Summarised
    reason: Literal["window", "overflow"]


class CompletionReceived(Message, frozen=True, kw_only=True):
    """llm -> agent: the model's reply.

    Attributes:
        content: The reply's text. The reply may have tool calls as well.
        refusal: The text of a refusal, if the endpoint marks the reply as a refusal.
        reasoning: The model's reasoning text, for people; never used as an answer.
        finish_reason: Why the reply ended. Words of chat completions, such as `stop`, `length` and
            `tool_calls`, are used for every wire format; for other reasons, the endpoint's own words.
        usage: Sum over all tries of this request. If the endpoint reports no tokens for a try, those of its
            input and output are estimated, but not for a host's own LLM client.
        echo: What later requests must send back to the provider with this reply. Old traces lack this field.
        prompt_tokens: Tokens of the prompt of the last try; 0: the endpoint has not counted them.
        stopped: The endpoint's word for why it stopped the reply, other than for its length; else empty.
        written: Set if the model wrote its tool calls as text, even if grue has turned them into calls.
        tokens: The reply's tokens. `None`: grue did not ask for them, the endpoint reports none, or the reply
            contained a secret, which the tokens' ids would reveal.
    """

    also_hidden: ClassVar[tuple[str, ...]] = ("tokens",)  # fields set to `None` if a secret is replaced

    request: int
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    model: str = ""
    usage: Usage = Usage()
    elapsed_s: float = 0.0
    echo: Echo | None = None
    prompt_tokens: int = 0
    facts: ReplyFacts = ReplyFacts()
    stopped: str = ""
    written: WrittenCalls | None = None
    tokens: ReplyTokens | None = None


class CompletionFailed(Message, frozen=True, kw_only=True):
    """llm -> agent: no completion, after all retries.

    Attributes:
        usage: The cost of replies that broke off or were cut: as the replies state it, or an estimate.
    """

    request: int
    failure: LlmFailure
    usage: Usage = Usage()


class CompletionPostponed(Message, frozen=True, kw_only=True):
    """llm -> agent: the request is not answered now: it waits for a provider's batch, or for the budget.

    `item` is the request's id in the batch, or `budget` if the runner's budget has no room for the request.
    """

    words = "request {0.request} waits for a batch as {0.item}"

    request: int
    item: str


class ReplyDropped(Message, frozen=True, kw_only=True):
    """llm -> agent: the answer to a `DropCompletion`. The request has ended; a reply to it is discarded.

    If a `CompletionReceived` was sent already, the agent receives it before this message.

    Attributes:
        usage: If the request was cancelled: an estimate of what it has cost. Otherwise nothing, because a
            `CompletionReceived` or `CompletionFailed` has reported the cost.
    """

    request: int
    usage: Usage = Usage()


class ServerSampled(Message, frozen=True, kw_only=True):
    """sampling -> agent: a server's request to the model has ended. The turn's budget counts the request."""

    words = "{0.server}, {0.usage.input_tokens} + {0.usage.output_tokens} tokens"

    server: ServerName
    usage: Usage


class ModelPassedOver(LlmNote, frozen=True, kw_only=True):
    """llm: a model gave no whole reply, or takes no tools. This and later requests go to another model.

    Attributes:
        model: The model that is passed over.
        address: The base URL of that model's endpoint, without credentials.
        reason: Why the model is passed over; untrusted.
        asks: The model that is asked now.
    """

    request: int
    model: str
    address: str
    reason: str
    asks: ModelAsked


class CompletionRetried(LlmNote, frozen=True, kw_only=True):
    """llm: a try at a model has failed. The next try follows in `delay_s`."""

    request: int
    attempt: int  # the number of the failed try: from 1 for each model, and again after a `ReplyCut`
    delay_s: float
    failure: LlmFailure


class ReplyCut(LlmNote, frozen=True, kw_only=True):
    """llm: a reply was cut off at its length limit."""

    request: int
    limit_tokens: int | None  # the limit that was sent; `None`: the endpoint's default
    retried_with: int | None = None  # the larger limit of the retry; `None`: the cut reply is used
    usage: Usage = Usage()


class HistoryRewritten(LlmNote, frozen=True, kw_only=True):
    """llm: history entries were replaced without a `RewriteHistory`, so prompt caches begin anew."""

    conversation: ConversationId
    rewrite: Rewritten
    reason: str


class CostUncounted(Message, frozen=True, kw_only=True):
    """host: costs are unknown, so a cost limit has no effect. Noted once per runner, resumed turn or fork."""

    compared = False
    model: str
    endpoint: str
    limit_usd: float


class SchemaIgnored(LlmNote, frozen=True, kw_only=True):
    """llm: a reply does not fit the schema that was sent, so from now on prompts state the schema."""

    request: int
    endpoint: str
    model: str


class ToolsUnseen(LlmNote, frozen=True, kw_only=True):
    """llm: the endpoint's token count shows that the prompt did not contain the tools that were sent.

    The chat template of a local model may leave tools out without an error. Noted once for each endpoint.
    """

    compared = False
    request: int
    tools: int
    prompt_tokens: int
    endpoint: str
    model: str


class SettingsLeftOut(LlmNote, frozen=True, kw_only=True):
    """llm: from now on, requests leave out settings that the endpoint refuses. Each setting is noted once."""

    compared = False
    request: int
    settings: tuple[str, ...]
    endpoint: str
    model: str


class OfferChanged(LlmNote, frozen=True, kw_only=True, omit_defaults=True):
    """llm: tools were added, removed or changed since the last request, so prompt caches begin anew."""

    conversation: ConversationId
    request: int
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class FormAdapted(LlmNote, frozen=True, kw_only=True):
    """llm: the endpoint has refused the form of a request, so requests have another form from now on."""

    request: int
    changed: JsonObject  # the fields of `WireProfile` whose values have changed, with their new values
    rewritten: bool = False  # the prompt (tools included) is encoded differently, so its cache begins anew


class ThoughtsDropped(LlmNote, frozen=True, kw_only=True):
    """llm: thoughts of earlier replies are not sent, because the model that is asked cannot read them."""

    conversation: ConversationId
    replies: int  # how many have thoughts that are not from this `model` in the format `wire`
    wire: str
    model: str


class TextDelta(LlmNote, frozen=True, kw_only=True):
    """llm: a piece of a streamed reply.

    To get the text of a `part` so far, join the pieces of this part since the request's last `restart`.

    Attributes:
        restart: Discard the request's earlier pieces: the reply has failed or is replaced. `text` is empty.
    """

    compared = False
    request: int
    text: str
    part: Literal["content", "reasoning"] = "content"
    restart: bool = False


# --- The agent and a session actor


class OpenSession(ToSession, frozen=True, kw_only=True):
    """agent -> session: connect, with `timeout_s` for each attempt."""

    words = "{0.server}, within {0.timeout_s:g} s"

    server: ServerName
    turn: int
    timeout_s: float
    policy: policies.FailurePolicy = policies.FailurePolicy()


class SessionOpened(Message, frozen=True, kw_only=True):
    """session -> agent: the server is connected and initialised, and grue has its list of tools.

    Attributes:
        attempt: Number of the attempt that succeeded, from 1.
        protocol_version: The MCP revision that grue has negotiated; empty: it has negotiated none.
        pid: Id of the server's process; `None`: the server is not a process that grue has started.
        serves_unlisted: Whether tools that are not in the list can be called too.
        address: The URL of an MCP server over HTTP, without secrets; empty for others.
        box: A text about the sandbox of the server or its commands: what they can reach, and which
            limits this machine cannot enforce. Empty: there is no sandbox.

    Source: R6.8, P8
    """

    server: ServerName
    tools: tuple[ToolDefinition, ...]
    attempt: int = 1
    protocol_version: str = ""
    pid: int | None = None
    elapsed_s: float = 0.0
    serves_unlisted: bool = False
    address: str = ""
    box: str = ""


class McpDisabled(Message, frozen=True, kw_only=True):
    """session -> agent: the server is disabled, and offers no tools in this turn (see `FailurePolicy`).

    Attributes:
        newly: This turn disabled the server. Otherwise an earlier turn or the host did.
        last_words: The last line that the server wrote to stderr; empty: the server wrote no line.
        retry_s: Seconds until a turn may try to connect again. `None`: no turn of the episode tries again, or
            this turn did not try. Old traces lack this field and `last_words`.

    Source: R6.9, R6.10, P27
    """

    server: ServerName
    reason: str
    newly: bool = False
    last_words: str = ""
    retry_s: float | None = None

    @property
    def why(self) -> str:
        """Why the server is disabled, for people, with the server's last line on stderr, if any."""
        if not self.last_words:
            return self.reason
        return f"{self.reason.removesuffix('.')}. Its last line on stderr: {self.last_words}"


class StartupFailed(Message, frozen=True, kw_only=True):
    """session -> agent: a first connect failed, and the policy for it is `raise` (see `FailurePolicy`).

    Source: R6.1
    """

    server: ServerName
    failure: ServerFailure


class CallTools(ToSession, frozen=True, kw_only=True):
    """agent -> session: run these calls one after the other and report the result of each.

    Attributes:
        after_timeout: What happens to the rest of the batch when a call has timed out.

    Source: R5.2, P17
    """

    server: ServerName
    batch: BatchId
    calls: tuple[ServerCall, ...]
    timeout_s: float
    after_timeout: Literal["skip", "continue"] = "skip"


class ToolsChanged(Message, frozen=True, kw_only=True):
    """session -> agent: the server's tool list has changed.

    The session sends this before a call, or before the last settlement of a batch, never during a call.
    """

    server: ServerName
    tools: tuple[ToolDefinition, ...]


class ToolReturned(Message, frozen=True, kw_only=True):
    """session -> agent: the call was answered, with a result or an error.

    Attributes:
        request_id: Id of the JSON-RPC request that grue has sent; empty: it has sent none.
        error_code: The code of the JSON-RPC error that the server answered with; `None` if it sent none.
    """

    batch: BatchId
    call_id: CallId
    result: ToolCallResult
    duration_s: float = 0.0
    request_id: str = ""
    error_code: int | None = None


class ToolTimedOut(Message, frozen=True, kw_only=True):
    """session -> agent: no result came in time. An MCP server that got the call is sent a cancellation.

    Attributes:
        request_id: Id of the JSON-RPC request that grue has sent; empty: it has sent none.

    Source: R6.5, P24
    """

    batch: BatchId
    call_id: CallId
    timeout_s: float
    duration_s: float = 0.0
    request_id: str = ""


class ToolSkipped(TurnNote, frozen=True, kw_only=True, omit_defaults=True):
    """session -> agent, or a note of the agent: this process did not send the call to its server."""

    batch: BatchId
    call_id: CallId
    reason: str
    refused: bool = False  # the tool does not accept the arguments, or has changed since the call was allowed


class ServerDied(Message, frozen=True, kw_only=True):
    """session -> agent: the server ended, or the connection broke, during this call.

    Attributes:
        request_id: Id of the JSON-RPC request that grue has sent; empty: it has sent none.
    """

    server: ServerName
    batch: BatchId
    call_id: CallId
    failure: ServerFailure
    duration_s: float = 0.0
    request_id: str = ""


class CloseSession(ToSession, frozen=True, kw_only=True):
    """agent -> session: close the session. The server's processes end, unless a session pool keeps them.

    Source: R3.5, R3.7
    """

    words = "{0.server}"

    server: ServerName


class SessionClosed(Message, frozen=True, kw_only=True):
    """session -> agent: the session is closed, and no process of its server is alive (unless `handed_over`).

    Attributes:
        ending: See `Ending` in `policies.py`. `handed_over`: the session pool keeps the process for later
            turns, or ends it in the background. When it has ended, a `ServerEnded` is recorded.
        stderr_tail: The last lines that the server wrote to stderr; untrusted, control characters removed.
        elapsed_s: How long closing took, which includes the wait for the process's exit.

    Source: P9
    """

    server: ServerName
    ending: policies.Ending = "none"
    exit_status: int | None = None
    stderr_tail: str = ""
    elapsed_s: float = 0.0


class ConnectFailed(SessionNote, frozen=True, kw_only=True):
    """session: an attempt to connect failed; `then` is the next step."""

    server: ServerName
    attempt: int
    failure: ServerFailure
    then: policies.AfterFailedConnect


class ToolCalled(SessionNote, frozen=True, kw_only=True, omit_defaults=True):
    """session: this call is made now. In a fork, a recorded result may take the place of the call.

    Attributes:
        task: Set if an earlier process has sent the call already. The server is asked for the task's result.

    Source: P28
    """

    server: ServerName
    batch: BatchId
    call_id: CallId
    tool: str
    arguments: JsonObject
    task: ToolTask | None = None


class TaskCreated(SessionNote, frozen=True, kw_only=True):
    """session: the server runs the current call as an MCP task. The session polls for the task's result."""

    words = "{0.server} {0.tool}: task {0.task.task_id}, asked every {0.task.poll_s:g} s"

    server: ServerName
    tool: str
    task: ToolTask


class ServerNoted(TurnNote, SessionNote, frozen=True, kw_only=True):
    """session, agent or host: a notice about a server, such as noise on its stdout. `text` is untrusted."""

    compared = False
    server: ServerName
    kind: policies.NoticeKind
    text: str


class ServerRequested(SessionNote, frozen=True, kw_only=True):
    """host: a request to a server, sent outside turns, has ended. Its answer is not recorded."""

    server: ServerName
    method: str  # such as `prompts/get` or `resources/read`
    params: JsonObject = field(default_factory=dict)
    error: str = ""  # why the request failed; empty: it was answered, or cancelled
    duration_s: float = 0.0


class ToolDrifted(SessionNote, frozen=True, kw_only=True):
    """session: a tool differs from the tool lock, which has the definitions that the user approved."""

    server: ServerName
    tool: str
    change: policies.ToolChange  # `added`: not in the lock; `removed`: not listed; `changed`: `parts` differ
    parts: tuple[ToolPart, ...] = ()
    refused: bool = False  # the tool is not offered to the model


class SessionPrewarmed(SessionNote, frozen=True, kw_only=True, tag="SpareReady"):
    """session: a connection has opened that was started in advance of a turn, or for a call outside turns."""

    server: ServerName
    pid: int | None = None
    elapsed_s: float = 0.0


class PrewarmLost(SessionNote, frozen=True, kw_only=True, tag="SpareLost"):
    """session: a connection started in advance or kept open cannot be used. The turn opens a new one."""

    server: ServerName
    cause: str


class ServerEnded(SessionNote, frozen=True, kw_only=True):
    """session: a session of the session pool has ended, with all its processes.

    Source: P9
    """

    server: ServerName
    pid: int | None = None
    ending: policies.ProcessEnding = "none"
    exit_status: int | None = None
    stderr_tail: str = ""
    elapsed_s: float = 0.0


# --- The agent and the approval actor


class AskApproval(Message, frozen=True, kw_only=True):
    """agent -> approval: ask a person about these calls of a reply."""

    questions: tuple[policies.ApprovalQuestion, ...]


class CallsDecided(Message, frozen=True, kw_only=True):
    """approval -> agent: answers to some or all of the questions."""

    decisions: tuple[policies.ApprovalDecision, ...]


class ApprovalPostponed(Message, frozen=True, kw_only=True):
    """approval -> agent: nobody answers now, so the turn is to be parked."""

    words = "nobody answers now"

    expires_at: float | None = None  # epoch seconds; a later resumption denies the calls; `None`: no limit


# --- The check of the answer, the deadline, interruptions, and the agent's notes


class CheckAnswer(Message, frozen=True, kw_only=True):
    """agent -> agent: run the host's check on this final text."""

    content: str


class AnswerAccepted(Message, frozen=True, kw_only=True):
    """agent -> agent: the check accepted the model's text. `answer` is a JSON value."""

    answer: object


class AnswerRefused(Message, frozen=True, kw_only=True):
    """agent -> agent: the host's check refused the model's text because of `reason`."""

    reason: str


class DeadlinePassed(Message, frozen=True, kw_only=True):
    """clock -> agent: the turn's time is up. `kept_s` of the `limit_s` seconds are for closing sessions."""

    limit_s: float
    kept_s: float = 0.0


class TurnInterrupted(Message, frozen=True, kw_only=True):
    """supervisor -> agent: the turn was cancelled, from outside or by another actor's crash."""

    reason: str


class IterationStarted(TurnNote, frozen=True, kw_only=True):
    """agent: a request with tools is sent, after `iteration - 1` replies with tool calls."""

    words = "{0.iteration} of {0.max_iterations}"

    iteration: int
    max_iterations: int


class ToolsVerified(TurnNote, frozen=True, kw_only=True):
    """agent: tools that a request offered before their servers had started were compared with the listings.

    Without `server`, the request is not dropped: the reply calls no tool in `changed`, which may be empty.
    With `server`, a tool call has started this server, and calls of tools in `changed` are not sent.
    """

    request: int
    changed: tuple[str, ...] = ()  # names of tools that differ from those that the request offered
    server: ServerName = ServerName("")


class ToolRejected(TurnNote, frozen=True, kw_only=True):
    """agent: a call was not sent: its tool is unknown or has changed, or its arguments cannot be read.

    Source: R6.4
    """

    batch: BatchId
    call_id: CallId
    name: str
    error: str


class ToolDenied(TurnNote, frozen=True, kw_only=True):
    """agent: the policy or a person denied a call, or nobody answered. The model gets `reason`."""

    batch: BatchId
    call_id: CallId
    name: str
    reason: str


class DecisionIgnored(TurnNote, frozen=True, kw_only=True):
    """agent or approval: a decision was ignored, for example because it came too late.

    If it contradicts an earlier decision about the call, the call is denied.
    """

    call_id: CallId
    reason: str


class ReplyUnusable(TurnNote, frozen=True, kw_only=True):
    """agent: the model's reply has no text and no calls, or a tool call that is written as text.

    Source: R5.10
    """

    finish_reason: str | None
    iteration: int
    seen: str = ""  # what the reply contains, such as `thoughts and nothing else`; empty: nothing


class SummaryFailed(TurnNote, frozen=True, kw_only=True):
    """agent: no usable summary arrived, so the history is not replaced by a summary."""

    reason: str


class FinalForced(TurnNote, frozen=True, kw_only=True):
    """agent: the agent requests the final answer, without tools.

    Source: R5.7
    """

    reason: policies.ForceReason
    iterations: int


class RepairRequested(TurnNote, frozen=True, kw_only=True):
    """agent: the final answer was not accepted, so the agent asks the model once for another answer."""

    reason: str


class FellBack(TurnNote, frozen=True, kw_only=True):
    """agent: the model gave no acceptable answer, so the host's fallback value is used.

    Source: R15.3
    """

    reason: str
    raw_response: str | None


# --- The host and the agent

FINAL_REQUEST = "Please provide your final action now without calling any more tools."
"""Asks for the final action of a game (`grue play`). For other turns, `TurnRequest` has a default text."""

REPAIR_REQUEST = (
    "That reply cannot be used: {reason}\n"
    "Reply once more, with nothing but the answer in the form that was asked for, and call no tools."
)
"""The text that asks for another answer after one was refused; `{reason}` stands for the reason."""


class RunTurn(Message, frozen=True, kw_only=True):
    """host -> agent: run the turn; reply with `TurnCompleted`, `TurnFailed`, `TurnParked` or `TurnWaits`.

    Attributes:
        turn: One-based number of the turn in its episode.
        servers: Names of the turn's tool servers, in the runner's order; empty: no tools this turn.
        answer: The schema of the answer; `None`: any text.
        fallback: The answer to use if the model gives no acceptable one; `None`: fail instead.
        support_check: When to check whether the model can call tools. Ignored without tools or if `resumed`.
        stream: Record the model's text as it arrives (`TextDelta`).
        attach_media: Send images, audio and files of tool results to the model.
        history: The conversation that the turn continues; `None`: the turn begins its own.
        images: The images that are sent with the user's text.
        final_request: The text that asks for the final answer, without tools.
        repair_request: The text that asks for another answer; `{reason}` stands for what was wrong.
        tools: Patterns of the names of the tools to offer; `None`: offer all tools.
        resumed: The point from which a parked, killed or cancelled turn goes on; `None`: the turn is new.
        context: How to stay within the model's context window; `None`: nothing is cleared.
        earlier: The sizes of the conversation's parts before this turn, oldest first; only with `context`.
        user_stub: The text that replaces `user` if a later turn clears it; empty: it is never cleared.
        show_schemas: Approval questions carry the tools' input schemas.
        binds_calls: Set in all new turns. It stands for four rules: a call is not sent if its tool has
            changed since the call was allowed; a pattern that matches no tool is reported; calls that are not
            made are recorded in the reply's order; thoughts do not count for the next prompt's size.
        plain_results: A tool's text is sent to the model as plain text, not in JSON.
        states_answer: A request with tools contains the schema of the answer.
        restates_answer: With `states_answer`: a request with tools contains the schema even if an earlier
            request without tools had the same schema.
        asks: Which model the turn asks; `None`: the host has an LLM actor of its own.
        sorts_tools: Tools are offered sorted by server and name, whatever the order of the listings.
        references: When to offer `read_result`, which returns what was cut or cleared of a tool result.
            `later`: after the first such result. `now`: from the start, because an earlier turn had one.
        when_called: The servers that start at their first call, with the tools that are offered until then.
        tool_search: When to offer `find_tools` and `call_tool` in place of servers' tools; `None`: never.
        waits: The turn's requests are sent in a provider's batches. A later process may continue the turn.
        binds_arguments: Set in new turns with `tool_search`. Then a call of `call_tool` is not made if the
            tool's arguments are beside `name` and not in `arguments`: the tool would run without them.
        place: The position of the turn's request in its `Runner.map`, from 1. `None`: the turn is not from
            `Runner.map`, or the position equals `turn`.

    Old traces lack many of these fields. Their turns are replayed with the defaults.
    """

    turn: int
    system: str
    user: str
    servers: tuple[ServerName, ...] = ()
    answer: AnswerSchema | None = None
    fallback: object = None
    limits: policies.TurnLimits = policies.TurnLimits()
    policy: policies.FailurePolicy = policies.FailurePolicy()
    support_check: policies.SupportCheck = "skip"
    stream: bool = False
    attach_media: bool = False
    tool_policy: policies.ToolPolicy = policies.ToolPolicy()
    history: HistoryReference | None = None
    images: tuple[Attachment, ...] = ()
    final_request: str = FINAL_REQUEST
    repair_request: str = REPAIR_REQUEST
    tools: tuple[str, ...] | None = None
    resumed: "Resumption | None" = None
    context: policies.ContextPolicy | None = None
    earlier: tuple[policies.ContextItem, ...] = ()
    user_stub: str = ""
    show_schemas: bool = False
    binds_calls: bool = False
    # Set in all new turns. It stands for four rules: a call that is not made because its tool has changed is
    # not made after another parking either; a resumed turn is degraded only by servers that fail after it was
    # resumed; a failed request with presumed tools is not sent again if the listed tools are the same,
    # even if a server serves tools that it does not list; if a reply is dropped because it calls such a tool,
    # the reason names the tool.
    binds_parked: bool = False
    plain_results: bool = False
    states_answer: bool = False
    asks: ModelAsked | None = None
    sorts_tools: bool = False
    references: Literal["never", "later", "now"] = "never"
    when_called: tuple[PresumedListing, ...] = ()
    tool_search: policies.ToolSearch | None = None
    waits: bool = False
    binds_arguments: bool = False
    # Set in all new turns: `read_result`, and results cut for it, show `{"content": TEXT}` as TEXT's lines.
    unwraps_texts: bool = False
    restates_answer: bool = False
    place: int | None = None

    @property
    def conversation(self) -> ConversationId:
        """The id of the turn's conversation. A turn that continues none is a conversation of its own."""
        return ConversationId(f"turn-{self.turn}") if self.history is None else self.history.conversation


class TurnCompleted(Message, frozen=True, kw_only=True):
    """agent -> host: the turn has an answer, and every session is closed.

    Attributes:
        answer: The accepted answer as a JSON value, or the host's fallback.
        raw_response: The text that the answer was parsed from, or the last text that was refused, if any.
        reason: Why `kind` is not `answered`; empty if it is.
        iterations: How many replies to requests with tools had tool calls.
        requests: How many completions were requested, by the turn and by its servers (sampling).
        usage: What all `requests` have cost.
        untold: Tool results that no request has sent to the model. The conversation's next turn sends them.
            Empty if the turn continues no conversation.
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
    """agent -> host: the turn has no answer, and every session is closed.

    Attributes:
        untold: As in `TurnCompleted`.
        unread: Whether the model may have sent a reply that the turn has not used. Such a reply is not in the
            conversation. `False` for a turn that continues no conversation.
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
    """agent -> host: the turn waits for a person. Every session is closed; the servers' state may be lost.

    A later process needs only this message and the trace before it. Old traces lack some of the fields.

    Attributes:
        calls: The last reply's tool calls. Only those in `settled` or `Resumption.tasks` may have been sent.
        settled: Calls of this reply that an earlier process has settled, with their results.
        expires_at: As in `ApprovalPostponed`.
        iterations: As in `TurnCompleted`; so are `requests`, `tool_calls` and `usage`.
        batches: The last number given to a batch of tool calls, or to notes about calls not made.
        media_bytes: Decoded size of the attachments so far.
        forced: Why the final answer was forced; empty if it was not.
        degraded: Why configured tools are missing; empty if no tool is missing.
        reconnected: Whether the one reconnect of the turn has been used.
        used: For each tool that has a `max_calls`, how many calls the policy has let through. Calls that it
            will judge again do not count.
        definitions: By name, digests of the called tools' definitions at the time of the reply.
        untold: Answers to the calls, such as "not called", for the case that the turn is never resumed.
        summaries: Summaries requested so far.
        overflowed: Whether the one retry of a request that was too long has been used.
        window: The model's context window in tokens; `None`: not known.
        refers: The model is offered `read_result`.
        searching: The model is offered `find_tools` and `call_tool`.
    """

    turn: int
    questions: tuple[policies.ApprovalQuestion, ...] = ()
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
    definitions: dict[str, str] = field(default_factory=dict)
    refers: bool = False
    searching: bool = False


class OpenTask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that had become an MCP task, and had no result, when its turn was killed or cancelled."""

    server: ServerName
    call: ServerCall
    changed_arguments: JsonObject | None = None  # as sent, if a person had changed the model's


class Resumption(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The point at which a parked, killed or cancelled turn goes on."""

    parked: TurnParked  # of a killed or cancelled turn: made from its trace
    decisions: tuple[policies.ApprovalDecision, ...] = ()  # unanswered questions are asked again
    # What the next request adds to the conversation; empty: the last request is sent again. Not used if
    # there are `parked.calls`: then the turn goes on with these.
    new: tuple[ConversationItem, ...] = ()
    tasks: tuple[OpenTask, ...] = ()  # not sent again: their servers can be asked for the results
    # How many of the last parts in `RunTurn.earlier` the turn must keep: if the last request is sent again,
    # the model may not have read what follows its last reply. 0 in old traces.
    unread: int = 0


class TurnResumed(Message, frozen=True, kw_only=True):
    """host: the host resumes a turn. A `RunTurn` with the same number follows.

    This note is flushed to the trace before the turn makes a call or sends a request.
    """

    turn: int
    after: int  # sequence number of the turn's last message before this note
    expired: bool = False  # the questions had expired before a person answered, so their calls are denied


class TurnForked(Message, frozen=True, kw_only=True, omit_defaults=True):
    """agent -> agent: the turn is a fork of a recorded turn.

    In a fork from the beginning of a turn, this message follows `RunTurn`, and no message of the turn is
    copied. In any other fork it comes before the last copied message to the agent.
    """

    compared = False
    trace: str  # the trace file of the recorded turn
    episode: str  # the recorded turn's episode
    turn: int  # number of the turn; the same in the recorded turn and in the fork
    # Sequence number, in `trace`, of the last message to the agent that is copied. In a fork from the
    # beginning of a turn: of the turn's `RunTurn`, which is not copied.
    at: int
    first: int = 0  # in the fork's trace, the number of the first copied message; 0: none is copied
    misses: policies.Misses = "fail"  # what happens to a tool call that has no recorded result
    changed: tuple[str, ...] = ()  # what differs, for people: `system` or `limits.max_tool_iterations`
    limits: policies.TurnLimits | None = None  # from the fork on; `None`: the recorded ones
    policy: policies.FailurePolicy | None = None  # from the fork on; `None`: the recorded one
    # By server, the tools that the server lists from the fork on, if not the recorded ones.
    listings: dict[ServerName, tuple[ToolDefinition, ...]] = field(default_factory=dict)
    asks: ModelAsked | None = None  # from the fork on; `None`: the host has an LLM actor of its own
    # How many iterations are copied. The message that ends the turn counts them too. The same holds for the
    # copied `requests`, their `usage` and the `calls`.
    iterations: int = 0
    requests: int = 0
    usage: Usage = Usage()
    calls: tuple[CallId, ...] = ()


class TurnWaits(Message, frozen=True, kw_only=True):
    """agent -> host: the turn waits for the reply to `request`. No session is open.

    `item` is as in `CompletionPostponed`.
    """

    words = "waits for a batch with {0.item}"

    turn: int
    request: int
    item: str


class WaitEnded(Message, frozen=True, kw_only=True):
    """agent -> agent: go on with a turn that waited (`TurnWaits`), or was killed while it asked the model.

    `request` is the number of the request whose reply is read next.
    """

    words = "turn {0.turn} goes on with the reply to request {0.request}"

    turn: int
    request: int


TurnEnd: TypeAlias = TurnCompleted | TurnFailed | TurnParked


# --- Unions of the messages that each actor receives. If you add a member, mypy reports each `match` that
# ends in `assert_never`. For a new `TurnEvent`, `test_tool_loop_table.py` fails until its table has it.

ConnectOutcome: TypeAlias = SessionOpened | McpDisabled | StartupFailed
Settlement: TypeAlias = ToolReturned | ToolTimedOut | ToolSkipped | ServerDied
SessionEvent: TypeAlias = ConnectOutcome | ToolsChanged | Settlement | SessionClosed
"""Every message that a session sends to the agent."""

TurnEvent: TypeAlias = (
    SessionEvent
    | RunTurn
    | CallsDecided
    | ApprovalPostponed
    | ToolSupportChecked
    | ToolsPresumed
    | CompletionReceived
    | CompletionFailed
    | CompletionPostponed
    | ReplyDropped
    | ServerSampled
    | AnswerAccepted
    | AnswerRefused
    | TurnForked
    | WaitEnded
    | DeadlinePassed
    | TurnInterrupted
)
"""The events of the turn's state machine."""

SessionCommand: TypeAlias = OpenSession | CallTools | CloseSession
LlmCommand: TypeAlias = RequestCompletion | DropCompletion | RewriteHistory | CheckToolSupport

TurnCommand: TypeAlias = SessionCommand | LlmCommand | CheckAnswer | AskApproval | TurnEnd | TurnWaits
"""The commands that the state machine returns."""

if TYPE_CHECKING:
    AnyMessage: TypeAlias = TurnEvent | TurnCommand | TurnNote | SessionNote | LlmNote | TurnResumed
else:
    # Collect the classes above: if a written list lacked one, traces with its messages would not load.
    AnyMessage = Union[  # noqa: UP007 - made of a list
        tuple(
            kind
            for kind in tuple(globals().values())
            if isinstance(kind, type) and issubclass(kind, Message) and not kind.__subclasses__()
        )
    ]
"""Every message above."""

# When msgspec first reads a class, it builds a description of the class. If two threads do so at once, the
# process may crash. So build all descriptions here: only one thread runs an import.
msgspec.json.Decoder(AnyMessage)
