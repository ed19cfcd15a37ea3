"""A completion as every wire format reads it, and what the formats share in reading one.

Replies are untrusted and often not quite as documented: ids are missing or come twice, arguments are objects
or empty, numbers are texts. What can be read is read; nothing in here raises.
"""

from collections.abc import Collection
from itertools import count
from json import JSONDecodeError, JSONDecoder

from msgspec import Struct

from grue.messages import CallId, JsonObject, ToolCall, Usage
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.json_text import from_json, to_json
from grue.protocol.tool_names import WireNames

NAMELESS = "unnamed"
"""What a call without a name is called."""

_ABSURD = 2**53


class Reply(Struct, frozen=True, kw_only=True):
    """A completion, read.

    Attributes:
        content: Its text, `None` if it has none; may stand beside tool calls.
        tool_calls: Canonical names, ids unique in the turn, arguments as JSON text or what was sent for it.
        refusal: The model's words where it declines, as far as the endpoint tells them apart.
        reasoning: What it says of its thinking.
        finish_reason: In the terms of chat completions.
        cut: It ended at its length limit.
        echo: What the provider wants to see again in the assistant's message; each format's own.
    """

    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    refusal: str | None = None
    reasoning: str | None = None
    finish_reason: str | None = None
    cut: bool = False
    model: str = ""
    usage: Usage = Usage()
    echo: JsonObject = {}


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

    def give(self, wanted: object) -> CallId:
        """Return `wanted`, or another id where it is none, or is in use."""
        call_id = wanted if isinstance(wanted, str) else ""
        while not call_id or call_id in self._used or call_id in self._given:
            call_id = f"call_{self._request}_{next(self._numbers)}"
        self._given.add(call_id)
        return CallId(call_id)


def read_call(call_id: object, name: object, arguments: object, ids: CallIds, names: WireNames) -> ToolCall:
    """Return a tool call from the parts that a format found, whatever they are."""
    return ToolCall(
        call_id=ids.give(call_id),
        name=names.to_canonical(name) if isinstance(name, str) and name else NAMELESS,
        arguments=_arguments(arguments),
    )


def _arguments(value: object) -> str:
    if isinstance(value, str):
        return _said_once(value) if value.strip() else "{}"
    return "{}" if value is None else to_json(value).decode()


def _said_once(text: str) -> str:
    """Return one copy of arguments that were sent several times over, as some gateways do with fragments."""
    try:
        first, end = _DECODER.raw_decode(text.strip())
        rest = text.strip()[end:].strip()
        while rest:
            again, length = _DECODER.raw_decode(rest)
            if again != first or not isinstance(first, dict):
                return text
            rest = rest[length:].strip()
    except (JSONDecodeError, RecursionError):
        return text
    return text.strip()[:end]


_DECODER = JSONDecoder()


def read_object(body: bytes) -> JsonObject | Fault:
    """Return the JSON object that a body is, or why it is none."""
    try:
        answer = from_json(body)
    except ValueError:
        start = body[:200].decode("utf-8", "replace")
        return Fault(kind="invalid_reply", status=200, message=f"not JSON: {start or 'an empty body'}")
    if not isinstance(answer, dict):
        return Fault(kind="invalid_reply", status=200, message="not a completion: a JSON object is missing")
    return answer


def no_completion(what: str) -> Fault:
    """Return the fault of an object that is no completion; `what` says what it lacks."""
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


def listed(value: object) -> list[object]:
    """Return a list; an empty one for anything else."""
    return value if isinstance(value, list) else []


def as_object(value: object) -> JsonObject:
    """Return an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def as_text(value: object) -> str | None:
    """Return a text; `None` for anything else."""
    return value if isinstance(value, str) else None


def tokens(value: object) -> int:
    """Return a count of tokens; 0 for what can be none."""
    return int(value) if isinstance(value, int | float) and 0 <= value < _ABSURD else 0


def cost(value: object) -> float | None:
    """Return an amount of money; `None` for what can be none."""
    return float(value) if isinstance(value, int | float) and 0 <= value < _ABSURD else None
