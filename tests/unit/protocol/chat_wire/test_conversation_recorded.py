"""Recorded conversations with every kind of endpoint: what is asked, what goes out, what comes of the reply.

`tests/recorded/{endpoint}/{quirk}.json` holds them, written from the endpoints' documentation. A step says
something, or sends the last request once more, as the LLM actor does after a refusal that it has learned from
and after a reply that was cut. Everything is driven as the actor drives it, without a network.
"""

import json
from pathlib import Path
from typing import Literal

import msgspec
from case_tables import each_case
from msgspec import Struct

from grue.messages import (
    AnswerSchema,
    CallId,
    ConversationItem,
    JsonObject,
    OfferTools,
    RequireAnswer,
    ServerName,
    SystemText,
    ToolDefinition,
    ToolMessage,
    UserText,
)
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.chat_wire.failures import Fault, fault_of_status
from grue.protocol.chat_wire.server_events import EventLines
from grue.protocol.chat_wire.wire_format import Reply
from grue.protocol.retry import asked_wait, next_delay
from grue.protocol.turn.completion_attempts import larger_limit
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings

RECORDED = Path(__file__).parents[3] / "recorded"
FILES = sorted(path for path in RECORDED.glob("*/*.json") if path.parent.name != "golden")
KEY = "sk-made-up-key"
TOOLS = (
    ToolDefinition(
        server=ServerName("think"), tool="think", description="Think.", input_schema={"type": "object"}
    ),
)
ANSWER = AnswerSchema(
    "Decision",
    {"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]},
)


class Answered(Struct, forbid_unknown_fields=True):
    """What the endpoint sends: JSON, text as it is, or events of a stream."""

    status: int = 200
    headers: dict[str, str] = {}
    body: object = None
    text: str | None = None
    events: list[object] | None = None


class Failed(Struct, forbid_unknown_fields=True):
    """What a person is told, and the seconds until the next request; `None`: none follows."""

    kind: str
    message: str
    remedy: str
    status: int | None = None
    wait_s: float | None = None


class Step(Struct, forbid_unknown_fields=True):
    """Something is said, or nothing: then the last request goes out once more."""

    request: JsonObject
    answered: Answered
    say: list[list[str]] | None = None
    mode: Literal["tools", "answer", "text"] = "text"
    reply: JsonObject | None = None
    asked_again_with: int | None = None
    fault: Failed | None = None
    learned: JsonObject = {}


class Recording(Struct, forbid_unknown_fields=True):
    """A conversation; `url` and `headers` are what its requests are sent with."""

    about: str
    endpoint: JsonObject
    steps: list[Step]
    url: str | None = None
    headers: dict[str, str] = {}


@each_case("path", FILES)
def test_a_recorded_conversation(path: Path) -> None:
    recording = msgspec.json.decode(path.read_bytes(), type=Recording)
    settings = msgspec.convert({**recording.endpoint, "api_key": KEY}, type=LlmSettings)
    endpoint = LlmEndpoint(settings, jitter=lambda: 0.0)
    if recording.url is not None:
        assert str(endpoint.url) == recording.url
    assert endpoint.headers.items() >= recording.headers.items()
    conversation = EncodedConversation(endpoint.profile)
    used_ids: set[str] = set()
    request = attempt = 0
    for step in recording.steps:
        attempt += 1
        if step.say is not None:
            request, attempt, settings = request + 1, 1, endpoint.settings
            conversation.ask(tuple(map(item, step.say)), mode(step.mode, offered=request > 1))
        body = conversation.body(settings, stream=step.answered.events is not None)
        assert json.loads(body) == step.request
        reply = read(conversation, step.answered, request, used_ids, settings)
        if isinstance(reply, Fault):
            before = endpoint.profile
            assert told(endpoint, reply, attempt) == step.fault
            conversation.adopt(endpoint.profile)
            assert differences(before, endpoint.profile) == step.learned
        elif step.asked_again_with is not None:
            larger = larger_limit(settings, endpoint.profile, settings.retry)
            assert (reply.cut, larger) == (True, step.asked_again_with)
            settings = msgspec.structs.replace(settings, max_tokens=step.asked_again_with)
        else:
            assert shown(reply) == step.reply
            conversation.keep(reply)
            used_ids |= {call.call_id for call in reply.tool_calls}


def item(words: list[str]) -> ConversationItem:
    match words:
        case ["system", text]:
            return SystemText(text)
        case ["user", text]:
            return UserText(text)
        case ["tool", call_id, content]:
            return ToolMessage(CallId(call_id), content)
        case _:
            raise ValueError(f"not an item of a conversation: {words}")


def mode(name: str, *, offered: bool) -> OfferTools | RequireAnswer:
    if name == "tools":
        return OfferTools(None if offered else TOOLS)
    return RequireAnswer(ANSWER if name == "answer" else None)


def read(
    conversation: EncodedConversation,
    answered: Answered,
    request: int,
    used_ids: set[str],
    settings: LlmSettings,
) -> Reply | Fault:
    if answered.events is not None:
        lines, assembler = EventLines(), conversation.format.assembler()
        for sent in answered.events:
            text = sent if isinstance(sent, str) else json.dumps(sent)
            for event in lines.feed(f"data: {text}\n\n".encode()):
                list(assembler.feed(event))
        assert assembler.whole
        body = assembler.body()
    else:
        body = (json.dumps(answered.body) if answered.text is None else answered.text).encode()
    if answered.status != 200:
        headers = {name.lower(): value for name, value in answered.headers.items()}
        return fault_of_status(answered.status, body, headers.get("location"), asked_wait(headers, now=0.0))
    return conversation.read(
        body, request=request, used_ids=used_ids, text_tool_calls=settings.text_tool_calls
    )


def told(endpoint: LlmEndpoint, fault: Fault, attempt: int) -> Failed:
    """Return what is told of a fault, after the endpoint has learned what there is to be learned from it."""
    failure = endpoint.describe(fault)
    if endpoint.adapt_to_error(fault):
        wait_s: float | None = 0.0
    else:
        wait_s = next_delay(endpoint.settings.retry, attempt, failure)
    return Failed(failure.kind, failure.message, failure.remedy, failure.status, wait_s)


def differences(before: Struct, after: Struct) -> JsonObject:
    old, new = (msgspec.to_builtins(profile, order="sorted") for profile in (before, after))
    return {name: value for name, value in new.items() if value != old[name]}


def shown(reply: Reply) -> JsonObject:
    """Return what a reply says; its model and its echo show in the next request."""
    fields = {name: getattr(reply, name) for name in reply.__struct_fields__ if name not in ("model", "echo")}
    fields["tool_calls"] = [[call.call_id, call.name, call.arguments] for call in reply.tool_calls]
    fields["usage"] = msgspec.to_builtins(reply.usage)
    fields["facts"] = msgspec.to_builtins(reply.facts)
    if reply.written is not None:
        fields["written"] = msgspec.json.decode(msgspec.json.encode(reply.written))
    return {name: value for name, value in fields.items() if value}
