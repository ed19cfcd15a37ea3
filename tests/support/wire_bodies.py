"""Check request bodies in every wire format: would a provider refuse them, and what do they contain?"""

import functools
import json
from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec
from hypothesis import strategies as st

from grue.messages import (
    AnswerSchema,
    CallId,
    ConversationItem,
    OfferTools,
    ServerName,
    SystemText,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserText,
)
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile
from grue.protocol.chat_wire.wire_format import Reply
from grue.testing.providers.chat_rules import ProviderRules
from grue.testing.providers.dialects import dialect_of

MODEL = ModelSettings(model="some/model", temperature=0.5, top_k=40, max_tokens=300)
THINK = ToolDefinition(
    server=ServerName("think"),
    tool="think",
    description="Think step by step.",
    input_schema={"type": "object", "properties": {"thought": {"type": "string"}}},
)
ANSWER = AnswerSchema(
    "AgentResponse",
    {
        "type": "object",
        "properties": {"action": {"type": "string"}, "new_objective": {"type": "string"}},
        "required": ["action"],
    },
)
OPENING: tuple[ConversationItem, ...] = (SystemText("You play Zork."), UserText("West of House."))

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)


def call(call_id: str, name: str = "think.think", arguments: str = "{}") -> ToolCall:
    return ToolCall(call_id=CallId(call_id), name=name, arguments=arguments)


def rules_for(profile: WireProfile) -> ProviderRules:
    """Return the rules of the strictest provider whose endpoints have this profile."""
    return ProviderRules(
        strict_names=profile.names == "encoded",
        cache_markers=profile.cache_markers,
        tools_with_history=profile.tools_with_forced,
        max_description_chars=profile.max_description_chars,
        developer_role=profile.system_role == "developer",
        images=profile.images,
        audio=profile.audio,
        files=profile.files,
    )


def unread_thoughts(wire: str, **message: Any) -> int:
    """Return how many replies have thoughts for another model, after one with the fields of `message`."""
    profile = FORMATS[wire].profile
    dialect = dialect_of(FORMATS[wire].path_of("m", stream=False))
    assert dialect is not None
    completion = {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": "stop"}]}
    body = dialect.from_chat(completion, {"include": ["reasoning.encrypted_content"]})
    conversation = EncodedConversation(profile, model="m")
    conversation.ask(OPENING, OfferTools((THINK,)))
    reply = conversation.read(json.dumps(body).encode(), request=1, used_ids=())
    assert isinstance(reply, Reply)
    conversation.keep(reply)
    conversation.ask([ToolMessage(each.call_id, "1") for each in reply.tool_calls], OfferTools())
    assert conversation.unread_thoughts == 0
    conversation.adopt(profile, "another model")
    return conversation.unread_thoughts


CALLING = {"id": "a", "type": "function", "function": {"name": "think.think", "arguments": "{}"}}
REPLIES: list[tuple[dict[str, Any], int]] = [
    ({"content": "Yes."}, 0),
    ({"content": "Hm.", "tool_calls": [CALLING]}, 0),
    ({"content": "Yes.", "reasoning_content": "deep"}, 1),
    ({"content": "Hm.", "reasoning_content": "deep", "tool_calls": [CALLING]}, 1),
]
"""Replies in the form of chat completions, and how many have thoughts. For `unread_thoughts`."""


def refusal(raw: bytes, profile: WireProfile) -> str | None:
    """Return why a strict provider with this profile refuses a request; `None`: it accepts the request."""
    path = FORMATS[profile.wire].path_of(MODEL.model, stream=False)
    dialect = dialect_of(path)
    assert dialect is not None
    _, refused = dialect.read({**(dialect.told(path) or {}), **json.loads(raw)}, rules_for(profile), {})
    return refused.words if refused else None


Place: TypeAlias = tuple[tuple[str, ...], object, str]
"""Where a text is in a request: the keys above its object, the object's `type`, and the text's key."""


def _texts(value: object, above: tuple[str, ...] = ()) -> Iterator[tuple[Place, str]]:
    """Yield all strings in a parsed body, in order, as (place, string)."""
    for item in value if isinstance(value, list) else ():
        yield from _texts(item, above)
    for key, item in value.items() if isinstance(value, dict) else ():
        if isinstance(item, str):
            yield (above, value.get("type"), key), item
        yield from _texts(item, (*above, key))


@functools.cache
def _places_of_ids(wire: str) -> tuple[Place, Place]:
    """Return two places in a format's requests: of the id in a call, and of the id in a call's result."""
    conversation = EncodedConversation(FORMATS[wire].profile)
    conversation.ask(OPENING, OfferTools((THINK,)))
    conversation.keep(Reply(tool_calls=(call("planted"),)))
    conversation.ask((ToolMessage(CallId("planted"), "{}"),), OfferTools())
    of_call, of_answer = (
        place for place, text in _texts(json.loads(conversation.body(MODEL))) if text == "planted"
    )
    return of_call, of_answer


def list_of(profile: WireProfile) -> str:
    """Return the name of the field that has a request's messages."""
    (above, _, _), _ = _places_of_ids(profile.wire)
    return above[0]


def without_markers(raw: bytes) -> bytes:
    """Return a request's bytes without cache markers, which move from request to request."""
    return raw.replace(b',"cache_control":{"type":"ephemeral"}', b"")


def up_to_last_message(raw: bytes, profile: WireProfile) -> bytes:
    """Return a request's bytes up to the end of its last message, without cache markers."""
    raw = without_markers(raw)
    text, decoder = raw.decode(), json.JSONDecoder()
    opening = f'"{list_of(profile)}":['
    at = text.index(opening) + len(opening)
    assert text[at] != "]"
    while text[at] != "]":
        _, at = decoder.raw_decode(text, at + (text[at] == ","))
    return text[:at].encode()


def markers(body: Any) -> int:
    """Count the cache markers anywhere in a parsed body."""
    if isinstance(body, dict):
        return ("cache_control" in body) + sum(map(markers, body.values()))
    return sum(map(markers, body)) if isinstance(body, list) else 0


def call_ids(raw: bytes, profile: WireProfile) -> tuple[list[str], list[str]]:
    """Return the ids of the calls in a request, and the ids in its tool results, each in order."""
    texts = list(_texts(json.loads(raw)))
    calls, answers = ([text for at, text in texts if at == place] for place in _places_of_ids(profile.wire))
    return calls, answers


def as_json(value: object) -> Any:
    """Return the JSON value by which a trace records `value`."""
    return msgspec.json.decode(msgspec.json.encode(value))
