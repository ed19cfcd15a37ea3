"""Between agent and llm: requests to the model and its replies; and the notes of the LLM actor."""

from typing import Literal

from msgspec import Struct

from grue.messages.conversation import AnswerSchema, Cleared, ConversationItem, Echo, Rewritten, Summarised
from grue.messages.failures import LlmFailure
from grue.messages.message import ConversationId, JsonObject, Message, ServerName
from grue.messages.tools import ToolCall, ToolDefinition


class OfferTools(Struct, frozen=True, tag="offer"):
    """The request offers tools and leaves the form of an answer free.

    Attributes:
        tools: The tools; `None`: the same as in the previous request of the conversation.

    Source: R4.6, P14
    """

    tools: tuple[ToolDefinition, ...] | None = None


class RequireAnswer(Struct, frozen=True, tag="answer"):
    """The request offers no tools and asks for a final answer.

    Attributes:
        answer: The schema of the answer; `None`: any text.

    Source: R5.8, R5.9
    """

    answer: AnswerSchema | None = None


class Usage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of one or more completions; `cost_usd` is `None` if the endpoint does not report it.

    Attributes:
        cached_tokens: Those of the prompt that were read from the provider's cache.
        cache_write_tokens: Those of the prompt that were written to it.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float | None = None

    def __add__(self, other: "Usage") -> "Usage":
        """Add two usages. Counts are clamped to 63 bits. The cost is `None` only if both are."""
        mine, theirs = self.cost_usd, other.cost_usd
        return Usage(
            input_tokens=_within_63_bits(self.input_tokens + other.input_tokens),
            output_tokens=_within_63_bits(self.output_tokens + other.output_tokens),
            cached_tokens=_within_63_bits(self.cached_tokens + other.cached_tokens),
            cache_write_tokens=_within_63_bits(self.cache_write_tokens + other.cache_write_tokens),
            reasoning_tokens=_within_63_bits(self.reasoning_tokens + other.reasoning_tokens),
            cost_usd=theirs if mine is None else mine if theirs is None else mine + theirs,
        )


class ModelAsked(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The model that a turn asks, its address and settings, for spans and people. No decision depends on it.

    Attributes:
        model: The model's name, as the request has it.
        address: The endpoint's base URL, without user, password and query.
        provider: The provider, by the names of OpenTelemetry's conventions where these have one.
        wire: The wire format.
        sampling: The sampling settings that are sent, by grue's own names.
        streams: Whether the endpoint can stream a reply.
    """

    model: str
    address: str = ""
    provider: str = ""
    wire: str = ""
    sampling: JsonObject = {}
    streams: bool = True


class ReplyFacts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts that an endpoint reports about a reply beside the reply itself. No decision depends on them.

    Attributes:
        id: The endpoint's id of the completion.
        service_tier: The service tier that answered, at OpenAI.
        system_fingerprint: The version of the provider's system, at OpenAI.
        first_chunk_s: For a streamed reply, the time from the request to its first event.
    """

    id: str = ""
    service_tier: str = ""
    system_fingerprint: str = ""
    first_chunk_s: float | None = None


def _within_63_bits(count: int) -> int:
    # An endpoint can report anything, and Python refuses to print an integer of over 4,300 digits.
    return max(-(2**63), min(count, 2**63 - 1))


class CheckToolSupport(Message, frozen=True, kw_only=True):
    """agent -> llm: check whether the model can call tools, before any are offered.

    Source: R12
    """


class ToolSupportChecked(Message, frozen=True, kw_only=True):
    """llm -> agent: whether the model supports tools.

    Attributes:
        by: How that is known: `forced` by the configuration, from the `endpoint`'s model list, from the
            host's `client`, or by the model's `name`.
        reason: Why it does not, for people; empty if it does.
    """

    model: str
    endpoint: str
    supported: bool
    by: Literal["forced", "endpoint", "client", "name"]
    reason: str = ""


ListingSource = Literal["runner", "trace", "cache", "locked", "known"]
"""Where a presumed listing is from: an earlier turn of this runner, the trace of an episode or a turn that is
resumed, the user's cache, or the listing file beside the tool lock. `known`: it cannot change, as that of
functions."""


class PresumedListing(Struct, frozen=True, kw_only=True):
    """The tools that a server is presumed to list, because it did before; screened as a listing is."""

    server: ServerName
    tools: tuple[ToolDefinition, ...]
    source: ListingSource


class ToolsPresumed(Message, frozen=True, kw_only=True):
    """agent -> agent: the first request may offer these tools before the servers have listed theirs.

    Recorded right after `RunTurn`. Servers that are disabled have no listing here.
    """

    listings: tuple[PresumedListing, ...]


class RequestCompletion(Message, frozen=True, kw_only=True):
    """agent -> llm: add new items to the conversation and ask the model. For sampling, a session asks too.

    The LLM actor keeps the history, including the assistant's messages, so this carries new items only.

    Attributes:
        conversation: Id of the conversation; an unknown id starts an empty one.
        request: One-based number of the request in its turn.
        stream: Note the reply's text as it arrives.
        aside: Ask beside the conversation: neither `new` nor the reply is added to it, and the last reply, if
            it has no answers yet, is left out.
        clears: An overflow is answered by clearing, so do not try the request in other forms after one.
        presumed: It offers tools that no server has listed yet in this turn, so it may be followed by a
            `DropCompletion` before it is answered.
    """

    conversation: ConversationId
    request: int
    new: tuple[ConversationItem, ...]
    mode: OfferTools | RequireAnswer
    stream: bool = False
    aside: bool = False
    clears: bool = False
    presumed: bool = False


class DropCompletion(Message, frozen=True, kw_only=True):
    """agent -> llm: cancel this request if it is under way, and forget the reply to it if there is one.

    Attributes:
        reason: Why, for people: which tools are not as they were presumed, or which server did not start.
    """

    conversation: ConversationId
    request: int
    reason: str


class RewriteHistory(Message, frozen=True, kw_only=True):
    """agent -> llm: change what was said in the conversation before the next request.

    Attributes:
        reason: Why: the request would be too long for the `window`, or the endpoint has reported an
            `overflow`.
    """

    conversation: ConversationId
    change: Cleared | Summarised
    reason: Literal["window", "overflow"]


class CompletionReceived(Message, frozen=True, kw_only=True):
    """llm -> agent: the model's reply.

    Attributes:
        content: Its text. There may be tool calls as well.
        refusal: The model's text if it declines to answer and the endpoint marks that.
        reasoning: The model's reasoning text, for people; never used as an answer.
        finish_reason: As in chat completions (`stop`, `length`, `tool_calls`, `content_filter`). For people
            only; no decision depends on it.
        usage: Sum over all replies to this request, including one that was cut short.
        echo: What the provider requires back with the reply. Old traces lack it.
        prompt_tokens: Tokens of the prompt of the last of them; 0: the endpoint has not counted them.
        facts: What the endpoint says about the reply.
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
    echo: Echo | None = None
    prompt_tokens: int = 0
    facts: ReplyFacts = ReplyFacts()


class CompletionFailed(Message, frozen=True, kw_only=True):
    """llm -> agent: no completion, after all retries."""

    request: int
    failure: LlmFailure


class ReplyDropped(Message, frozen=True, kw_only=True):
    """llm -> agent: the request is not under way any more, and its reply is forgotten.

    The one answer to `DropCompletion`. A reply that was on its way to the agent arrives before it.

    Attributes:
        usage: What the request has cost, as far as no `CompletionReceived` says it: for a request that was
            cancelled, an estimate of its prompt and as many tokens as the reply might have had.
    """

    request: int
    usage: Usage = Usage()


class CompletionRetried(Message, frozen=True, kw_only=True):
    """llm: a request failed and is sent again after `delay_s`."""

    request: int
    attempt: int
    delay_s: float
    failure: LlmFailure


class ReplyCut(Message, frozen=True, kw_only=True):
    """llm: a reply was cut off at its length limit.

    Attributes:
        limit_tokens: The limit that was sent; `None`: the endpoint's default.
        retried_with: The larger limit of the retry; `None`: the reply is used as it is.
    """

    request: int
    limit_tokens: int | None
    retried_with: int | None = None
    usage: Usage = Usage()


class HistoryRewritten(Message, frozen=True, kw_only=True):
    """llm: a conversation's history was changed, so the next request does not begin as the one before it.

    Attributes:
        reason: Why, for people.
    """

    conversation: ConversationId
    rewrite: Rewritten
    reason: str


class CostUncounted(Message, frozen=True, kw_only=True):
    """host: the cost of replies is not known, so a limit on the cost has no effect. Once a runner.

    Attributes:
        model: The model that is asked.
        endpoint: The kind of endpoint, as its profile is named.
        limit_usd: The limit.
    """

    model: str
    endpoint: str
    limit_usd: float


class SchemaIgnored(Message, frozen=True, kw_only=True):
    """llm: a reply does not have the shape of the schema that was sent, so the prompt states it from now on.

    Attributes:
        request: The request whose reply has another shape.
        endpoint: The kind of endpoint, as its profile is named.
        model: The model that replied.
    """

    request: int
    endpoint: str
    model: str


class SettingsLeftOut(Message, frozen=True, kw_only=True):
    """llm: requests leave out settings that the endpoint does not take, or no longer takes. Once each.

    Attributes:
        request: The first request without them.
        settings: Their names, as in the settings.
        endpoint: The kind of endpoint, as its profile is named.
    """

    request: int
    settings: tuple[str, ...]
    endpoint: str
    model: str


class ThoughtsDropped(Message, frozen=True, kw_only=True):
    """llm: the endpoint cannot read the thoughts in some replies of the conversation, so they are not sent.

    The texts and the tool calls of these replies are sent.

    Attributes:
        replies: How many replies have such thoughts.
        wire: The wire format that requests are written in.
        model: The model that is asked.
    """

    conversation: ConversationId
    replies: int
    wire: str
    model: str


class TextDelta(Message, frozen=True, kw_only=True):
    """llm: a piece of a streamed reply.

    The pieces of a request since its last restart, concatenated, are the reply's text so far.

    Attributes:
        part: Whether the piece belongs to the answer's text or to the model's reasoning.
        restart: The request is being retried. Discard all earlier pieces of this request, of both parts.
            `text` is empty.
    """

    request: int
    text: str
    part: Literal["content", "reasoning"] = "content"
    restart: bool = False
