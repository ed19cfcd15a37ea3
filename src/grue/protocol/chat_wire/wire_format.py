"""The interface of a wire format, a decoded reply, and the code that the formats share.

`docs/architecture.md` says what a new wire format needs. It has to map each finish reason of a whole reply,
or of one cut at its length limit, to a word in `_WHOLE`: with an unknown reason, a reply that has calls
counts as stopped early, and `as_it_ended` leaves the calls out.

Replies are untrusted, and often differ from the documentation: ids are missing or duplicate, arguments are
objects or empty, numbers are strings. The functions here read what they can.

Source: R4.1, R4.2, P10, P11
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Literal, Protocol, TypeAlias
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.policies import MediaKind
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile
from grue.protocol.chat_wire.server_events import ServerEvent
from grue.protocol.json_text import from_json, past_space, strict_object, to_json
from grue.protocol.tools.names import CUT_MARK, WireNames, openai_tool

BatchFormName: TypeAlias = Literal["openai", "anthropic"]

NAMELESS = "unnamed"

MAX_CALLS = 10_000  # a reply with more tool calls, content blocks or output items is invalid
UNREADABLE = (ValueError, RecursionError, OverflowError, MemoryError)
"""Exceptions that extreme texts and numbers in a reply cause. They are caught: no reply may end an actor."""

LENGTH = frozenset({"length", "max_tokens", "model_length", "max_output_tokens"})
"""Finish reasons of a reply that was cut at its length limit."""

_WHOLE = frozenset(  # finish reasons of a reply that is whole, or that was cut at its length limit
    {"stop", "tool_calls", "tool_call", "tool_use", "function_call", "end_turn", "stop_sequence", "complete"}
    | {"completed", "eos", "eos_token", "end", "done", "load", "unload", *LENGTH}
)
_BROKEN = frozenset(
    {"error", "network_error", "insufficient_system_resource", "abort", "aborted", "cancelled", "failed"}
    | {"timeout", "server_error", "in_progress", "queued"}
)
_STOPPED = re.compile(
    r"content_?filter|refusal|safety|moderation|sensitive|recitation|blocklist|prohibited|spii|guardrail|incomplete"
    r"|malformed|policy"
)

_ABSURD = 2**53
_LONGEST_ID = 500
_VALUE_WEIGHT = 16


class Reply(Struct, frozen=True, kw_only=True):
    """A completion, as it was read from the body of a reply.

    Attributes:
        tool_calls: Calls with canonical names, ids that are unique in the conversation, and text arguments.
        refusal: The model's or the provider's text, if the endpoint marks the reply as a refusal to answer.
        finish_reason: Why the reply ended, in words of chat completions if possible, else the endpoint's.
        cut: Whether the reply ended at its length limit.
        stopped: Why the endpoint stopped the reply early, other than for its length; empty if it did not. The
            text of a stopped reply is the part that had arrived, and its calls are left out.
        written: The tool calls that the model wrote as text, also if grue has turned them into `tool_calls`.
        echo: Fields that the assistant's message has to have in later requests; each format has its own.
        prompt_tokens: Tokens of this reply's prompt, set by the LLM actor. `usage` may include earlier tries.
    """

    content: str | None = None
    tool_calls: tuple[m.ToolCall, ...] = ()
    refusal: str | None = None
    reasoning: str | None = None
    finish_reason: str | None = None
    cut: bool = False
    stopped: str = ""
    written: m.WrittenCalls | None = None
    model: str = ""
    usage: m.Usage = m.Usage()
    echo: m.JsonObject = {}
    prompt_tokens: int = 0
    facts: m.ReplyFacts = m.ReplyFacts()
    tokens: m.ReplyTokens | None = None


class CallIds:
    """Gives each call of a reply an id that no other call of the reply has, and that is not in `used`."""

    def __init__(self, request: int, used: Collection[str] = ()) -> None:
        self._request = request
        self._used = used
        self._given: set[str] = set()
        self._numbers = count(1)

    def give(self, wanted: object) -> m.CallId:
        """Return `wanted`, or a new id if `wanted` is not an id or is in use."""
        call_id = wanted if isinstance(wanted, str) else ""
        while not call_id or call_id in self._used or call_id in self._given:
            call_id = f"call_{self._request}_{next(self._numbers)}"
        self._given.add(call_id)
        return m.CallId(call_id)


def read_call(call_id: object, name: object, arguments: object, ids: CallIds, names: WireNames) -> m.ToolCall:
    """Make a tool call from the values that the endpoint sent, whatever their types are."""
    return m.ToolCall(
        call_id=ids.give(call_id),
        name=names.to_canonical(name) if isinstance(name, str) and name else NAMELESS,
        arguments=_arguments(arguments),
    )


def _arguments(value: object) -> str:
    if isinstance(value, str):
        return _without_copies(value) if value.strip() else "{}"
    return "{}" if value is None else to_json(value).decode()


def _without_copies(text: str) -> str:
    """Return a call's arguments once, if a gateway has sent them several times: `{"a":1}{"a":1}`."""
    text = text.strip()
    if (several := _SEVERAL.search(text)) is None:
        return text
    first = text[: several.start() + 1]
    if not text.replace(first, "").strip() and strict_object(first) is not None:
        return first
    # Suppressed: the text is not JSON, too deep, or has an integer with more digits than Python converts.
    with contextlib.suppress(ValueError, RecursionError):
        return _one_of_equals(text) if len(text) <= _MOST_COMPARED else text
    return text


def _one_of_equals(text: str) -> str:
    first, end = _DECODER.raw_decode(text)
    at = past_space(text, end)
    for _ in range(_MOST_COPIES):
        if at == len(text) or not isinstance(first, dict):
            break
        again, at = _DECODER.raw_decode(text, at)
        if again != first:
            return text
        at = past_space(text, at)
    return text[:end] if at == len(text) else text


_DECODER = json.JSONDecoder()
_SEVERAL = re.compile(r"\}\s*+\{")
_MOST_COMPARED = 64 * 2**10
_MOST_COPIES = 8


def unless_cut(calls: Sequence[m.ToolCall], given: object) -> tuple[m.ToolCall, ...]:
    """Return the calls of a reply that was cut off; the last gets a `CUT_MARK` if it may look complete.

    It may if its arguments, as `given`, are blank, or an object, which a gateway may have completed.
    """
    if not calls or (isinstance(given, str) and given.strip()):
        return tuple(calls)
    last = calls[-1]
    return (*calls[:-1], replace(last, arguments=f"{last.arguments}{CUT_MARK}"))


def as_it_ended(reply: Reply) -> Reply | Fault:
    """Return the reply, without calls if it is a refusal or was stopped early; if it broke off, a fault."""
    reason = (reply.finish_reason or "").strip().lower()
    if reason in _BROKEN:
        words = f"the reply broke off: {reason}"
        return Fault(kind="unavailable", status=200, message=words, usage=reply.usage)
    if reply.refusal:
        return replace(reply, tool_calls=())
    if not reason or reason in _WHOLE or not (reply.tool_calls or _STOPPED.search(reason)):
        return reply
    # A call whose arguments have not arrived may look like a call without arguments.
    return replace(reply, tool_calls=(), stopped=_short(reply.finish_reason) or "unknown")


def read_object(body: bytes) -> m.JsonObject | Fault:
    """Return the JSON object in a body, or the fault if there is none."""
    try:
        answer = from_json(body)
    except (ValueError, MemoryError):
        start = body[:200].decode("utf-8", "replace")
        return Fault(kind="invalid_reply", status=200, message=f"not JSON: {start or 'an empty body'}")
    if not isinstance(answer, dict):
        return no_completion("a JSON object is missing")
    return answer


def no_completion(what: str) -> Fault:
    """Return the fault for a body that is not a completion; `what` says why it is not."""
    return Fault(kind="invalid_reply", status=200, message=f"not a completion: {what}")


def text_of(content: object) -> str:
    """Return the text in a `content` field: a string, a part with a `text`, or a list of either."""
    match content:
        case str():
            return content
        case list():
            return "".join(text_of(part) for part in content)
        case {"text": str() as text}:
            return text
        case _:
            return ""


def facts_of(answer: m.JsonObject) -> m.ReplyFacts:
    """Return id, service tier and system fingerprint of an endpoint's answer."""
    id_, tier, system = map(_short, map(answer.get, ("id", "service_tier", "system_fingerprint")))
    return m.ReplyFacts(id=id_, service_tier=tier, system_fingerprint=system)


def _short(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= _LONGEST_ID else ""


def listed(value: object) -> list[object]:
    """Return `value` if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def as_object(value: object) -> m.JsonObject:
    """Return `value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[m.JsonObject]:
    """Return the items of a list, with `{}` for an item that is not an object. No list: no items."""
    return [as_object(item) for item in listed(value)]


def as_text(value: object) -> str | None:
    """Return `value` if it is a text, else `None`."""
    return value if isinstance(value, str) else None


def weight(value: object) -> int:
    """Return a rough measure of a JSON value's memory. Its text is no measure: `{}` takes dozens of bytes."""
    total, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        total += _VALUE_WEIGHT
        match item:
            case str():
                total += len(item)
            case list():
                waiting += item
            case dict():
                total += sum(map(len, item))
                waiting += item.values()
    return total


def tokens(value: object) -> int:
    """Return `value` if it can be a number of tokens, else 0."""
    return int(value) if isinstance(value, int | float) and 0 <= value < _ABSURD else 0


def usage_of(usage: m.JsonObject, **counts: object) -> m.Usage:
    """Return the usage of a reply, from values of any type. `counts` have the names of `Usage`'s fields."""
    cost_usd = cost(usage.get("cost"))
    if usage.get("is_byok") is True:
        # With a provider's key of the user's own, `cost` is OpenRouter's fee, without the provider's bill.
        billed = cost(as_object(usage.get("cost_details")).get("upstream_inference_cost"))
        cost_usd = cost_usd if billed is None else billed + (cost_usd or 0.0)
    return m.Usage(**{name: tokens(count) for name, count in counts.items()}, cost_usd=cost_usd)


def cost(value: object) -> float | None:
    """Return `value` if it can be an amount of money, else `None`."""
    return float(value) if isinstance(value, int | float) and 0 <= value < _ABSURD else None


SHOWN_NEXT = "shown in the next message"
REFUSED = "not shown: the model's endpoint refused it"

_PLURALS = {"image": "images", "audio": "audio", "file": "files"}


class Shown(Struct, frozen=True):
    """A user message with the attachments of tool results, for formats whose tool messages are text only."""

    results: tuple[m.ToolMessage, ...]


class NamedResult(m.ToolMessage, frozen=True):
    """A tool message with the wire name of the tool that was called."""

    name: str = NAMELESS


WireItem: TypeAlias = m.SystemText | m.UserText | m.AssistantText | NamedResult | Shown


def sent(item: m.ConversationItem, profile: WireProfile) -> tuple[m.Attachment, ...]:
    """Return those attachments of a message whose kind the endpoint accepts."""
    return tuple(each for each in getattr(item, "attachments", ()) if each.kind in profile.inputs)


def result_text(message: m.ToolMessage | m.UserText, profile: WireProfile, *, shown: str = "") -> str:
    """Return a message's text, with a line for each attachment that the endpoint does not accept.

    `shown`: a text such as `SHOWN_NEXT`, for a line about each other attachment; empty: no such lines.
    """
    lines = [message.text if isinstance(message, m.UserText) else message.content]
    for each in message.attachments:
        if each.kind not in profile.inputs:
            lines.append(_line(each, f"not shown: the model takes no {_PLURALS[each.kind]}"))
        elif shown:
            lines.append(_line(each, shown))
    return "\n".join(lines)


def user_text(message: m.UserText, profile: WireProfile) -> m.UserText:
    """Return a user's message, with a line of text about each attachment that the endpoint cannot take."""
    return replace(message, text=result_text(message, profile))


def label(message: m.ToolMessage) -> str:
    """Return the line that introduces a tool message's attachments. They are sent in a separate message."""
    return f"[Returned by the tool call {message.call_id}:]"


def with_shown(items: Sequence[WireItem], profile: WireProfile) -> tuple[WireItem, ...]:
    """Insert a user message (`Shown`) with the attachments after each run of tool messages that has any."""
    arranged: list[WireItem] = []
    waiting: list[m.ToolMessage] = []
    for item in items:
        if isinstance(item, m.ToolMessage):
            waiting += [item] if sent(item, profile) else []
        elif waiting:
            arranged.append(Shown(tuple(waiting)))
            waiting = []
        arranged.append(item)
    return (*arranged, Shown(tuple(waiting))) if waiting else tuple(arranged)


def without_attachments(items: Iterable[m.ConversationItem]) -> tuple[m.ConversationItem, ...]:
    """Return the items with a line of text in place of each attachment."""
    stripped: list[m.ConversationItem] = []
    for item in items:
        lines = "".join(f"\n{_line(each, REFUSED)}" for each in getattr(item, "attachments", ()))
        if isinstance(item, m.UserText):
            item = replace(item, text=item.text + lines, attachments=())
        elif isinstance(item, m.ToolMessage):
            item = replace(item, content=item.content + lines, attachments=())
        stripped.append(item)
    return tuple(stripped)


def data_url(attachment: m.Attachment) -> str:
    """Return an attachment as a `data:` URL."""
    return f"data:{attachment.mime};base64,{attachment.data}"


def _line(attachment: m.Attachment, said: str) -> str:
    return f"[{attachment.mime}, {attachment.bytes:,} bytes: {said}]"


EMPTY = "(empty)"  # sent in place of an empty or blank text, which some endpoints refuse


class EncodedItems(Struct, frozen=True):
    """Encoded messages. `system` has the instructions if the format keeps them apart from the messages."""

    system: tuple[bytes, ...] = ()
    messages: tuple[bytes, ...] = ()


class Choice(Struct, frozen=True):
    """Says if the model may or must call tools. With `mode="named"` it must call the tool `name`."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""


class WireRequest(Struct, frozen=True, kw_only=True):
    """The parts of a request's body."""

    settings: ModelSettings
    profile: WireProfile
    system: Sequence[bytes] = ()
    messages: Sequence[bytes] = ()
    tools: bytes = b""
    choice: Choice = Choice()
    answer: m.AnswerSchema | None = None
    extra: Mapping[str, object] = {}
    stream: bool = False


class Delta(Struct, frozen=True):
    """A piece of the text of a streamed reply."""

    text: str
    part: Literal["content", "reasoning"] = "content"


class Assembler(Protocol):
    """Assembles the events of a streamed reply into the body that an unstreamed reply would have.

    Events after the one that sets `finished` are not read. So set it at the format's end marker or at an
    error, not at the finish reason, because events with token counts may follow. If a format has no end
    marker, leave `finished` false, and let `whole` be true from the finish reason on: the stream is then read
    to its end.
    """

    finished: bool  # whether the last event, or an error, has arrived

    @property
    def begun(self) -> bool:
        """`True` if a piece of the reply has arrived, such as of its text or of a call."""

    @property
    def held(self) -> int:
        """A rough size of the reply so far, to limit it: its texts' characters and other values' `weight`."""

    @property
    def whole(self) -> bool:
        """`True` if `finished`, or if the reply is complete although the last event has not arrived."""

    def feed(self, event: ServerEvent) -> Iterable[Delta]:
        """Add the next event, and return its text. May raise `DamagedStream` or `OversizedStream`."""

    def body(self) -> bytes:
        """Return the reply so far, or the error, as the body that an unstreamed reply would have."""


class WireFormat(Protocol):
    """Encodes requests and decodes replies of one API. A format has no state."""

    name: str  # the format's name in settings and traces, one of `WireName`
    # The path of the request, after the base URL; `{model}` in it stands for the model's name. A base URL
    # that ends in this path selects the format.
    path: str
    stream_path: str = ""  # of a request for a stream; empty: the same as `path`. Both may have a query
    profile: WireProfile  # the profile of an unknown endpoint of this format
    provider: str  # OpenTelemetry's name for the format's maker; an unknown endpoint gets it
    inputs: frozenset[MediaKind]  # besides text, as far as the format can express them
    own_fields: frozenset[str]  # of a request, set by the turn; `extra_body` may not replace them
    limit_fields: frozenset[str]  # the fields of a request that can limit the tokens of the reply
    json_objects: bool = True  # whether a request can ask for a JSON object of any shape
    echoes_text: bool = True  # whether the echo of a reply repeats the reply's text
    results_carry_media: bool = True  # tool messages can have images and files; if not, a `Shown` has them
    marks_results: bool = False  # whether tool messages can have a cache marker
    assembler: Callable[[], Assembler]
    batches: BatchFormName | None = None  # the form in which providers take batches; `None`: they take none

    def path_of(self, model: str, *, stream: bool) -> str:
        """Return the path of a request."""
        path = self.stream_path if stream and self.stream_path else self.path
        return path.replace("{model}", quote(model, safe="", errors="replace"))

    def ending(self, path: str) -> str:
        """Return the end of `path` that is this format's request path for any model, or an empty text."""
        known = (each.partition("?")[0] for each in (self.path, self.stream_path) if each)
        ends = "|".join(re.escape(each).replace(r"\{model\}", "[^/]+") for each in known)
        found = re.search(rf"(?:{ends})\Z", path)
        return found[0] if found else ""

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers that the format needs, with the key if there is one."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def encode_items(
        self, items: Sequence[WireItem], marked: Collection[int], profile: WireProfile
    ) -> EncodedItems:
        """Encode items between two replies; those whose index is in `marked` get a cache marker.

        Implementations take texts from `user_text` and `result_text`, which add a line about each attachment
        that is not sent.
        """

    def encode_reply(self, reply: Reply, names: WireNames) -> tuple[bytes, ...]:
        """Encode a reply as the assistant's message of later requests; empty if there is nothing to send."""

    def has_thoughts(self, echo: m.JsonObject) -> bool:
        """Return whether a reply's `echo` has more than the reply's text and calls, such as thoughts."""

    def encode_tools(
        self, tools: Iterable[m.ToolDefinition], profile: WireProfile, names: WireNames
    ) -> bytes:
        """Encode a list of tools; `b""` if there are no tools, because endpoints refuse an empty list."""
        encoded: list[m.JsonObject] = []
        most = profile.max_description_chars
        for tool in tools:
            function = as_object(openai_tool(tool, name=names.to_wire(tool.name))["function"])
            if most is not None and len(tool.description) > most:
                function["description"] = f"{tool.description[: most - 1]}…"
            encoded.append(self.tool(function))
        return to_json(encoded) if encoded else b""

    def tool(self, function: m.JsonObject) -> m.JsonObject:
        """Return a tool as an entry of a request's list; `function`: its name, description and parameters."""

    def body(self, request: WireRequest) -> bytes:
        """Return the body of a request."""

    def decode(
        self, body: bytes, names: WireNames, *, request: int, used_ids: Collection[str] = ()
    ) -> Reply | Fault:
        """Read the untrusted body of a reply with status 2xx; no call of it gets an id from `used_ids`."""
        answer = read_object(body)
        return answer if isinstance(answer, Fault) else self.read(answer, CallIds(request, used_ids), names)

    def read(self, answer: m.JsonObject, ids: CallIds, names: WireNames) -> Reply | Fault:
        """Read the JSON object in a reply's body. It is unchecked: any member may be missing."""


def non_blank(text: str) -> str:
    """Return a text that every endpoint accepts: `EMPTY` in place of a blank one."""
    return text if text and not text.isspace() else EMPTY


EPHEMERAL: m.JsonObject = {"type": "ephemeral"}  # asks to cache the prompt up to the end of the marked text


def marked_pieces(item: m.SystemText | m.UserText, marked: bool) -> list[tuple[str, m.JsonObject | None]]:
    """Split a text at its cache markers; `marked`: a text without markers gets one at its end."""
    text = item.text
    points = item.cache_points or ((m.CachePoint(len(text), EPHEMERAL),) if marked else ())
    if _is_blank(text):
        return [(EMPTY, points[-1].control if points else None)]
    pieces: list[tuple[str, m.JsonObject | None]] = []
    start = 0
    for point in points:
        # Join a blank piece to the next one, and drop the marker between them: endpoints refuse blank pieces.
        if not _is_blank(text[start : point.end]):
            pieces.append((text[start : point.end], point.control))
            start = point.end
    rest = text[start:]
    return pieces if _is_blank(rest) else [*pieces, (rest, None)]


def _is_blank(text: str) -> bool:
    return not text or text.isspace()  # `strip` would copy the text, which may be megabytes long


def _joined(own: object, given: object) -> object:
    both = isinstance(own, dict) and isinstance(given, dict) and given and "type" not in given
    return as_object(own) | as_object(given) if both else given


def encode_body(
    request: WireRequest, messages: str, head: m.JsonObject, choice: object, own: m.JsonObject
) -> bytes:
    """Join the parts of a request into its body. `messages` is the name of the field with the messages.

    `choice` is the value of `tool_choice`; without tools, or if it is `None`, that field is left out. The
    fields of `request.extra` replace those of `head` and `own`. But if both values are objects, they are
    joined, unless the one in `extra` is empty or has a `type`.
    """
    fields = {name: value for name, value in head.items() if value is not None and name not in request.extra}
    tail = {name: _joined(head.get(name, own.get(name)), value) for name, value in request.extra.items()}
    tail = {**own, **tail, **({"stream": True} if request.stream else {})}
    system = b'"system":[' + b",".join(request.system) + b"]," if request.system else b""
    members = [b'"tools":' + request.tools] if request.tools else []
    if request.tools and choice is not None:
        members.append(b'"tool_choice":' + to_json(choice))
    if tail:
        members.append(to_json(tail)[1:-1])
    encoded = [part for message in request.messages for part in (b",", message)][1:]
    begin = (to_json(fields)[:-1], b"," if fields else b"", system, b'"' + messages.encode() + b'":[')
    return b"".join((*begin, *encoded, b"]", *(b"," + member for member in members), b"}"))
