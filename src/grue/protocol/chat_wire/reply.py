"""A decoded completion, the same for every wire format, and the functions that the formats share to read it.

Replies are untrusted, and often differ from the documentation: ids are missing or duplicate, arguments are
objects or empty, numbers are strings. The functions here read what they can, and do not raise.
"""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from itertools import count

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.json_text import from_json, strict_object, to_json
from grue.protocol.tools.names import CUT_MARK, WireNames

NAMELESS = "unnamed"
"""The name given to a call that has none."""

MAX_CALLS = 10_000
"""Most tool calls of one reply; a reply with more is invalid."""

UNREADABLE = (ValueError, RecursionError, OverflowError, MemoryError)
"""Exceptions that Python raises for extreme texts and numbers. Readers guard against it by themselves;
at the edge it is caught once more, because nothing that an endpoint says may end an actor."""

LENGTH = frozenset({"length", "max_tokens", "model_length", "max_output_tokens"})
"""Words for the end of a reply at its length limit."""

_WHOLE = frozenset(
    {"stop", "tool_calls", "tool_call", "tool_use", "function_call", "end_turn", "stop_sequence", "complete"}
    | {"completed", "eos", "eos_token", "end", "done", "load", "unload", *LENGTH}
)
"""Words for the end of a reply that is whole, or that was cut at its length limit, as is judged elsewhere."""

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
    """A completion, read.

    Attributes:
        content: The text; `None` if there is none. A reply may have both text and tool calls.
        tool_calls: Calls with canonical names, ids that are unique in the turn, and arguments as text.
        refusal: The model's text if it declines to answer, and the endpoint marks that.
        reasoning: The text of its thinking.
        finish_reason: The reason why it ended, in the terms of chat completions.
        cut: Whether it ended at its length limit.
        stopped: Why the endpoint stopped it before its end, if not for its length; empty if it did not. The
            text is what there was by then, and calls are left out.
        written: The tool calls that its text is, if they have not been made calls of it.
        echo: Fields that the provider requires back in the assistant's message; each format has its own.
        prompt_tokens: The size of the prompt, without those of earlier tries that `usage` includes.
        facts: What the endpoint says about the reply.
        tokens: The tokens that the model wrote, if the endpoint says which.
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
    """Gives each call of a reply an id that no other call of the turn has.

    Args:
        request: Number of the request in its turn; ids that have to be made up become `call_{request}_{n}`.
        used: Ids of the turn so far.
    """

    def __init__(self, request: int, used: Collection[str] = ()) -> None:
        self._request = request
        self._used = used
        self._given: set[str] = set()
        self._numbers = count(1)

    def give(self, wanted: object) -> m.CallId:
        """Return `wanted`, or a new id if that is not an id or is in use."""
        call_id = wanted if isinstance(wanted, str) else ""
        while not call_id or call_id in self._used or call_id in self._given:
            call_id = f"call_{self._request}_{next(self._numbers)}"
        self._given.add(call_id)
        return m.CallId(call_id)


def read_call(call_id: object, name: object, arguments: object, ids: CallIds, names: WireNames) -> m.ToolCall:
    """Return a tool call from the parts that a format found, whatever they are."""
    return m.ToolCall(
        call_id=ids.give(call_id),
        name=names.to_canonical(name) if isinstance(name, str) and name else NAMELESS,
        arguments=_arguments(arguments),
    )


def _arguments(value: object) -> str:
    if isinstance(value, str):
        return _without_copies(value) if value.strip() else "{}"
    if value is None:
        return "{}"
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        # Keep a number that JSON cannot express, so that the call is rejected later.
        return json.dumps(value)
    return to_json(value).decode()


def _without_copies(text: str) -> str:
    """Return one copy of arguments that a gateway has sent several times.

    This takes linear time, whatever the number of copies: they are compared as text first. Only a few copies
    with a different spelling are decoded and compared as values.
    """
    text = text.strip()
    several = _SEVERAL.search(text)
    if several is None:
        return text
    first = text[: several.start() + 1]
    if not text.replace(first, "").strip() and strict_object(first) is not None:
        return first
    if len(text) > _MOST_COMPARED:
        return text
    try:
        return _one_of_equals(text)
    except (ValueError, RecursionError):
        # ValueError: no JSON, or an integer of more digits than Python reads.
        return text


def _one_of_equals(text: str) -> str:
    first, end = _DECODER.raw_decode(text)
    at = _past_space(text, end)
    for _ in range(_MOST_COPIES):
        if at == len(text) or not isinstance(first, dict):
            break
        again, at = _DECODER.raw_decode(text, at)
        if again != first:
            return text
        at = _past_space(text, at)
    return text[:end] if at == len(text) else text


def _past_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")
_SEVERAL = re.compile(r"\}\s*+\{")
_MOST_COMPARED = 64 * 2**10
_MOST_COPIES = 8


def unless_cut(calls: Sequence[m.ToolCall], given: object) -> tuple[m.ToolCall, ...]:
    """Return the calls of a reply that was cut, the last one marked if nobody can tell whether it is whole.

    Args:
        calls: In order.
        given: The last one's arguments as they came. Of a text one can tell; an object was put together by
            somebody who may have added what was missing, and a blank text may be all that there was time for.
    """
    if not calls or (isinstance(given, str) and given.strip()):
        return tuple(calls)
    last = calls[-1]
    return (*calls[:-1], replace(last, arguments=f"{last.arguments}{CUT_MARK}"))


def as_it_ended(reply: Reply) -> Reply | Fault:
    """Return a reply as far as it may be used, by the reason why it ended; the fault if it broke off.

    Nothing is done because of a reply that is not whole: a call whose arguments had only begun, or not even
    that, may look like a call without arguments. Of a word that is not known, calls are left out too.
    """
    reason = (reply.finish_reason or "").strip().lower()
    if reason in _BROKEN:
        return Fault(kind="unavailable", status=200, message=f"the reply broke off: {reason}")
    if reply.refusal:
        return replace(reply, tool_calls=())
    if not reason or reason in _WHOLE or not (reply.tool_calls or _STOPPED.search(reason)):
        return reply
    return replace(reply, tool_calls=(), stopped=_short(reply.finish_reason) or "unknown")


def read_object(body: bytes) -> m.JsonObject | Fault:
    """Return the JSON object in a body, or the fault if there is none."""
    try:
        answer = from_json(body)
    except (ValueError, MemoryError):
        start = body[:200].decode("utf-8", "replace")
        return Fault(kind="invalid_reply", status=200, message=f"not JSON: {start or 'an empty body'}")
    if not isinstance(answer, dict):
        return Fault(kind="invalid_reply", status=200, message="not a completion: a JSON object is missing")
    return answer


def no_completion(what: str) -> Fault:
    """Return the fault for a body that is not a completion; `what` says why."""
    return Fault(kind="invalid_reply", status=200, message=f"not a completion: {what}")


def text_of(content: object) -> str:
    """Return the text of a content, whether it is a string, a part, or a list of either."""
    match content:
        case str():
            return content
        case list():
            return "".join(text_of(part) for part in content)
        case {"text": str() as text}:
            return text
        case _:
            return ""


def texts_of(message: m.JsonObject, names: Iterable[str]) -> list[str]:
    """Return the texts of these members of a message."""
    return [text_of(message.get(name)) for name in names]


def facts_of(answer: m.JsonObject) -> m.ReplyFacts:
    """Return the ids and names in an endpoint's answer; texts that are too long to be ids are left out."""
    return m.ReplyFacts(
        id=_short(answer.get("id")),
        service_tier=_short(answer.get("service_tier")),
        system_fingerprint=_short(answer.get("system_fingerprint")),
    )


def _short(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= _LONGEST_ID else ""


def listed(value: object) -> list[object]:
    """Return a list; an empty one for anything else."""
    return value if isinstance(value, list) else []


def as_object(value: object) -> m.JsonObject:
    """Return an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def as_text(value: object) -> str | None:
    """Return a text; `None` for anything else."""
    return value if isinstance(value, str) else None


def weight(value: object) -> int:
    """Return about how much a JSON value holds: its characters, and a few for each value.

    An empty object takes two characters of JSON and dozens of bytes of memory, so characters alone would not
    bound what a stream may make grue hold.
    """
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
    """Return a count of tokens; 0 for what can be none."""
    return int(value) if isinstance(value, int | float) and 0 <= value < _ABSURD else 0


def usage_of(
    *,
    input_tokens: object,
    output_tokens: object,
    cached_tokens: object,
    cache_write_tokens: object,
    reasoning_tokens: object,
    cost_usd: object,
) -> m.Usage:
    """Return the usage of a reply, from what the endpoint says in the fields that its format has for them."""
    return m.Usage(
        input_tokens=tokens(input_tokens),
        output_tokens=tokens(output_tokens),
        cached_tokens=tokens(cached_tokens),
        cache_write_tokens=tokens(cache_write_tokens),
        reasoning_tokens=tokens(reasoning_tokens),
        cost_usd=cost(cost_usd),
    )


def cost(value: object) -> float | None:
    """Return an amount of money; `None` for what can be none."""
    return float(value) if isinstance(value, int | float) and 0 <= value < _ABSURD else None
