"""The official clients of OpenAI and Anthropic as a check of our requests: what they send, ours equals.

The same turn is run twice against the scripted endpoint: by the official client, called with its typed
parameters and given its own objects as the history, and by our conversation. Field order aside, the bodies
are the same. Beside that, every body on record is held against the packages' types, unknown keys included.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from media import audio, blob, image, tool_message
from pydantic import BaseModel, TypeAdapter

from grue.engine.answers import AnswerSpec
from grue.messages import (
    CallId,
    JsonObject,
    OfferTools,
    RequireAnswer,
    ServerName,
    SystemText,
    ToolCall,
    ToolMessage,
    UserText,
)
from grue.messages import ToolDefinition as Tool
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile
from grue.protocol.chat_wire.profiles import ANTHROPIC, OPENAI, OPENAI_CHAT
from grue.protocol.chat_wire.wire_format import Reply
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings

RECORDED = Path(__file__).parents[1] / "recorded"
KEY = "sk-made-up-key"
PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {"thought": {"type": "string"}},
    "required": ["thought"],
}
THINK = Tool(server=ServerName("think"), tool="think", description="Think.", input_schema=PARAMETERS)


class Item(BaseModel):
    name: str
    weight: float | None = None


class Decision(BaseModel):
    """What to do."""

    action: str
    mood: Literal["calm", "brave"]
    carried: list[Item]
    why: str | None = None


def scripted(request: LlmRequest) -> LlmReply:
    if any(message["role"] == "tool" for message in request.messages):
        return text_reply('{"action":"look","mood":"calm","carried":[],"why":null}')
    call = ("think__think", {"thought": "A maze?"})
    return tool_calls_reply(call, content="Hm.", ids=["call_1"], reasoning_content="A maze, then.")


pytestmark = pytest.mark.slow  # importing the packages takes seconds


@pytest.fixture
def server() -> Iterator[ScriptedLlmServer]:
    with ScriptedLlmServer(scripted) as server:
        yield server
    assert [request.refused for request in server.requests] == [None] * len(server.requests)


LEFT_OUT = [("stream", False), ("citations", None), ("description", "{default: None}")]
"""What the clients say and we do not: it is what saying nothing means."""


def sent(server: ScriptedLlmServer) -> list[Any]:
    """Return what the client sent, but for the differences that are meant."""
    return [without_meant_differences(request.body) for request in server.requests]


def without_meant_differences(value: Any) -> Any:
    if isinstance(value, list):
        return [without_meant_differences(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {name: without_meant_differences(item) for name, item in value.items()}
    kept = {name: item for name, item in kept.items() if (name, item) not in LEFT_OUT}
    if "properties" in kept:
        # We make what may be left out required and nullable; Anthropic's client lets it be missing.
        kept["required"] = list(kept["properties"])
    if "enum" in kept:
        # Anthropic's client drops the type of a choice.
        kept["type"] = "string"
    return kept


def ours(server: ScriptedLlmServer, profile_url: str, **settings: Any) -> list[dict[str, Any]]:
    """Return our bodies: the tool on offer, streamed and not, then the forced answer."""
    endpoint = LlmEndpoint(LlmSettings(base_url=profile_url, api_key=KEY, **settings))
    conversation, path = EncodedConversation(endpoint.profile), FORMATS[endpoint.profile.wire].path
    conversation.ask((SystemText("You play."), UserText("Where am I?")), OfferTools((THINK,)))
    streamed = conversation.body(endpoint.settings, stream=True)
    offered = conversation.body(endpoint.settings)
    headers = {name.lower(): value for name, value in endpoint.headers.items()}
    reply = conversation.read(server.answer(f"/v1{path}", headers, offered).body, request=1, used_ids=set())
    assert not isinstance(reply, Fault)
    conversation.keep(reply)
    said = (ToolMessage(CallId("call_1"), '"Yes."'), UserText("Answer now."))
    conversation.ask(said, RequireAnswer(AnswerSpec.from_model(Decision).schema))
    return [json.loads(body) for body in (streamed, offered, conversation.body(endpoint.settings))]


def test_chat_completions_as_the_openai_client_sends_them(server: ScriptedLlmServer) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed: pip install openai")
    function = {"name": "think__think", "description": "Think.", "parameters": PARAMETERS}
    tools = [{"type": "function", "function": function}]
    messages: list[Any] = [
        {"role": "system", "content": "You play."},
        {"role": "user", "content": "Where am I?"},
    ]
    asked = {"model": "gpt-4o", "temperature": 0.5, "max_completion_tokens": 300, "stop": ["END"]}
    offered = {**asked, "tools": tools, "tool_choice": "auto"}
    with openai.OpenAI(base_url=server.base_url, api_key=KEY, max_retries=0) as client:
        create = client.chat.completions.create
        with create(
            messages=messages, **offered, stream=True, stream_options={"include_usage": True}
        ) as said:
            assert len(list(said)) > 1
        first = create(messages=messages, **offered)
        messages.append(first.choices[0].message)
        messages.append({"role": "tool", "tool_call_id": "call_1", "content": '"Yes."'})
        messages.append({"role": "user", "content": "Answer now."})
        last = client.chat.completions.parse(messages=messages, response_format=Decision, **asked)
    assert last.choices[0].message.parsed == Decision(action="look", mood="calm", carried=[])
    expected = sent(server)
    url = "https://api.openai.com/v1/chat/completions"
    assert ours(server, url, model="gpt-4o", temperature=0.5, max_tokens=300, stop=("END",)) == expected


def test_responses_as_the_openai_client_sends_them(server: ScriptedLlmServer) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed: pip install openai")
    history: list[Any] = [
        {"role": "developer", "content": "You play."},
        {"role": "user", "content": "Where am I?"},
    ]
    tool = {"type": "function", "name": "think__think", "description": "Think.", "parameters": PARAMETERS}
    asked: dict[str, Any] = {
        "model": "gpt-5.4",
        "max_output_tokens": 300,
        "reasoning": {"effort": "low"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }
    offered = {**asked, "tools": [{**tool, "strict": False}], "tool_choice": "auto"}
    with openai.OpenAI(base_url=server.base_url, api_key=KEY, max_retries=0) as client:
        with client.responses.create(input=history, **offered, stream=True) as events:
            assert len(list(events)) > 1
        first = client.responses.create(input=history, **offered)
        history += first.output
        history.append({"type": "function_call_output", "call_id": "call_1", "output": '"Yes."'})
        history.append({"role": "user", "content": "Answer now."})
        last = client.responses.parse(input=history, text_format=Decision, **asked)
    assert last.output_parsed == Decision(action="look", mood="calm", carried=[])
    expected = sent(server)
    url = "https://api.openai.com/v1"
    assert ours(server, url, model="gpt-5.4", max_tokens=300, reasoning_effort="low") == expected


def test_messages_as_the_anthropic_client_sends_them(server: ScriptedLlmServer) -> None:
    anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed: pip install anthropic")
    marked = {"cache_control": {"type": "ephemeral"}}
    said: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Where am I?", **marked}]}]
    asked: dict[str, Any] = {
        "model": "claude-haiku-4-5",
        "max_tokens": 4000,
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "stop_sequences": ["END"],
        "system": [{"type": "text", "text": "You play.", **marked}],
        "tools": [{"name": "think__think", "description": "Think.", "input_schema": PARAMETERS}],
    }
    offered = {**asked, "tool_choice": {"type": "auto"}}
    url = server.base_url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        with client.messages.create(messages=said, **offered, stream=True) as events:
            assert len(list(events)) > 1
        first = client.messages.create(messages=said, **offered)
        result = {"type": "tool_result", "tool_use_id": "call_1", "content": '"Yes."'}
        said.append({"role": "assistant", "content": first.content})
        said.append({"role": "user", "content": [result, {"type": "text", "text": "Answer now.", **marked}]})
        schema = without_meant_differences(anthropic.transform_schema(Decision))
        answer = {"type": "json_schema", "schema": schema}
        forced = {**asked, "tool_choice": {"type": "none"}, "output_config": {"format": answer}}
        client.messages.create(messages=said, **forced)
    expected = sent(server)
    settings = {"model": "claude-haiku-4-5", "max_tokens": 4000, "reasoning_tokens": 2000, "stop": ("END",)}
    assert ours(server, "https://api.anthropic.com/v1", **settings) == expected


def test_every_body_is_what_the_openai_package_has_types_for() -> None:
    types = pytest.importorskip("openai.types.chat", reason="openai is not installed: pip install openai")
    chat = TypeAdapter(types.CompletionCreateParams)
    for path in (RECORDED / "openai_chat").iterdir():
        for body in requests(path):
            assert unknown_to(chat, body) == set()
    from openai.types.responses import ResponseCreateParams

    responses = TypeAdapter(ResponseCreateParams)
    for path in (RECORDED / "openai_responses").iterdir():
        for body in requests(path):
            if "input" in body:
                assert unknown_to(responses, body) == set()


def test_every_body_is_what_the_anthropic_package_has_types_for() -> None:
    types = pytest.importorskip("anthropic.types", reason="anthropic is not installed: pip install anthropic")
    adapter = TypeAdapter(types.MessageCreateParams)
    for path in (RECORDED / "anthropic").iterdir():
        for body in requests(path):
            # Older models sample; the package has the types of those that no longer do.
            assert unknown_to(adapter, body) <= {"temperature", "top_k"}


def media_requests(*profiles: WireProfile) -> Iterator[Any]:
    """Yield the requests of a conversation in which tools return an image, a recording and a PDF file."""
    for profile in profiles:
        conversation = EncodedConversation(profile)
        conversation.ask((UserText("Where am I?"),), OfferTools((THINK,)))
        conversation.keep(Reply(tool_calls=(ToolCall(call_id=CallId("c"), name="a.b", arguments="{}"),)))
        conversation.ask((tool_message("c", image(), audio(), blob()),), OfferTools())
        yield json.loads(conversation.body(ModelSettings(model="m", max_tokens=99)))


def test_images_audio_and_files_are_what_the_packages_have_types_for() -> None:
    chat_types = pytest.importorskip(
        "openai.types.chat", reason="openai is not installed: pip install openai"
    )
    responses = pytest.importorskip(
        "openai.types.responses", reason="openai is not installed: pip install openai"
    )
    anthropic = pytest.importorskip(
        "anthropic.types", reason="anthropic is not installed: pip install anthropic"
    )
    everything = {"images": True, "audio": True, "files": True}
    for kind, profile, kinds in (
        (chat_types.CompletionCreateParams, OPENAI_CHAT, ("image_url", "input_audio", "file")),
        (responses.ResponseCreateParams, OPENAI, ("input_image", "input_file")),
        (anthropic.MessageCreateParams, ANTHROPIC, ("image", "document")),
    ):
        (body,) = media_requests(msgspec.structs.replace(profile, **everything))
        assert unknown_to(TypeAdapter(kind), body) == set()
        assert all(f'"type": "{kind}"' in json.dumps(body) for kind in kinds)


FOREIGN = {
    "generic": {"top_k", "min_p"},
    "openrouter": {"top_k", "min_p", "reasoning", "cache_control"},
}
"""Fields of chat completions that the makers of other endpoints have added, and that OpenAI does not have."""


def test_other_endpoints_get_what_openai_has_types_for_and_no_more_than_they_have_added() -> None:
    types = pytest.importorskip("openai.types.chat", reason="openai is not installed: pip install openai")
    adapter = TypeAdapter(types.CompletionCreateParams)
    for path in (RECORDED / "golden").iterdir():
        bodies = [body for body in json.loads(path.read_text()) if "response_format" in body]
        for body in bodies:
            assert unknown_to(adapter, body) == FOREIGN.get(path.stem, set()), path.stem


def test_the_check_sees_what_the_types_do_not_have() -> None:
    types = pytest.importorskip("openai.types.chat", reason="openai is not installed: pip install openai")
    message = {"role": "user", "content": [{"type": "text", "text": "x", "made_up": 1}]}
    body = {"model": "m", "messages": [message], "invented": True}
    assert unknown_to(TypeAdapter(types.CompletionCreateParams), body) == {"made_up", "invented"}


def requests(path: Path) -> list[dict[str, Any]]:
    return [step["request"] for step in json.loads(path.read_text())["steps"]]


def unknown_to(adapter: TypeAdapter[Any], body: dict[str, Any]) -> set[str]:
    """Return the keys, at any depth, that the types do not have; fails on values that they do not allow."""
    return _lost(body, adapter.validate_python(body))


def _lost(given: Any, typed: Any) -> set[str]:
    if isinstance(given, dict):
        missing = given.keys() - typed.keys()
        return set(missing).union(*(_lost(given[name], typed[name]) for name in given.keys() & typed.keys()))
    if isinstance(given, list):
        # Typed as an iterable, it is checked as it is read.
        return set().union(*(_lost(one, other) for one, other in zip(given, list(typed), strict=True)))
    assert given == typed
    return set()
