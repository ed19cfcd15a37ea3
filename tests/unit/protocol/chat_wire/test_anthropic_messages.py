"""Requests and replies of Anthropic's messages."""

import json
from typing import Any

import pytest
from msgspec.structs import replace
from wire_bodies import ANSWER, THINK, call

from grue.messages import AssistantText, CallId, SystemText, ToolCall, ToolMessage, Usage, UserText
from grue.protocol.chat_wire.anthropic_messages import AnthropicMessages
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile
from grue.protocol.chat_wire.profiles import ANTHROPIC, GENERIC_MESSAGES
from grue.protocol.chat_wire.wire_format import Choice, Reply, WireRequest
from grue.protocol.tools.names import WireNames

WIRE = AnthropicMessages()
THOUGHT = {"type": "thinking", "thinking": "deep", "signature": "s"}
HIDDEN = {"type": "redacted_thinking", "data": "sealed"}
CALL = {"type": "tool_use", "id": "a", "name": "think__think", "input": {"thought": "hm"}}
MARK = {"type": "ephemeral"}


def names() -> WireNames:
    return WireNames("encoded", [THINK.name])


def body_of(profile: WireProfile = ANTHROPIC, settings: ModelSettings | None = None, **parts: Any) -> Any:
    request = WireRequest(settings=settings or ModelSettings(model="m"), profile=profile, **parts)
    return json.loads(WIRE.body(request))


def read(*content: object, stop: object = "end_turn", **fields: object) -> Reply:
    body = json.dumps({"content": content, "stop_reason": stop, **fields}).encode()
    reply = WIRE.decode(body, names(), request=3)
    assert isinstance(reply, Reply), reply
    return reply


def history(reply: Reply) -> list[Any]:
    messages = [json.loads(message) for message in WIRE.encode_reply(reply, names())]
    assert all(message["role"] == "assistant" for message in messages)
    return [block for message in messages for block in message["content"]]


def test_the_key_and_the_version() -> None:
    assert WIRE.headers("k") == {"anthropic-version": "2023-06-01", "x-api-key": "k"}
    assert WIRE.headers("") == {"anthropic-version": "2023-06-01"}


def test_what_was_said_between_two_replies_is_one_message() -> None:
    items = [
        SystemText("You play."),
        ToolMessage(CallId("a"), ""),
        UserText("Well?"),
        SystemText("Be brief."),
    ]
    said = WIRE.encode_items(items, {0, 2}, ANTHROPIC)
    assert [json.loads(block) for block in said.system] == [
        {"type": "text", "text": "You play.", "cache_control": MARK},
        {"type": "text", "text": "Be brief."},
    ]
    assert [json.loads(message) for message in said.messages] == [
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "(empty)"},
                {"type": "text", "text": "Well?", "cache_control": MARK},
            ],
        }
    ]


def test_what_the_assistant_is_taken_to_have_said_stands_between() -> None:
    said = WIRE.encode_items([UserText("One?"), AssistantText("Two."), UserText("Three?")], (), ANTHROPIC)
    assert [json.loads(message)["role"] for message in said.messages] == ["user", "assistant", "user"]


def test_a_request_with_everything() -> None:
    settings = ModelSettings(model="m", temperature=0.5, top_k=4, min_p=0.1, max_tokens=300, stop=("END",))
    tools = WIRE.encode_tools([THINK], GENERIC_MESSAGES, names())
    body = body_of(
        GENERIC_MESSAGES,
        settings,
        system=[b'{"a":1}'],
        messages=[b'{"b":2}'],
        tools=tools,
        answer=ANSWER,
        stream=True,
    )
    schema = body.pop("output_config")["format"]
    assert (schema["type"], schema["schema"]["additionalProperties"]) == ("json_schema", False)
    assert body == {
        "model": "m",
        "temperature": 0.5,
        "top_k": 4,
        "max_tokens": 300,
        "stop_sequences": ["END"],
        "system": [{"a": 1}],
        "messages": [{"b": 2}],
        "tools": [
            {"name": "think__think", "description": THINK.description, "input_schema": THINK.input_schema}
        ],
        "tool_choice": {"type": "auto"},
        "stream": True,
    }


def test_a_request_with_nothing_has_a_limit_all_the_same() -> None:
    assert body_of() == {"model": "m", "max_tokens": 8192, "messages": []}
    assert WIRE.encode_tools([], ANTHROPIC, names()) == b""


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (Choice(), {"type": "auto"}),
        (Choice("none"), {"type": "none"}),
        (Choice("required"), {"type": "any"}),
        (Choice("named", "think__think"), {"type": "tool", "name": "think__think"}),
    ],
)
def test_the_choice_of_a_tool(choice: Choice, sent: dict[str, str]) -> None:
    assert body_of(tools=b"[{}]", choice=choice)["tool_choice"] == sent


@pytest.mark.parametrize(
    ("thinking", "fields"),
    [
        ({}, {"temperature": 0.5}),
        ({"reasoning_effort": "none"}, {"temperature": 0.5, "thinking": {"type": "disabled"}}),
        (
            {"reasoning_effort": "minimal"},
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
        ),
        (
            {"reasoning_effort": "high", "reasoning_tokens": 2000},
            {
                "max_tokens": 10_192,
                "thinking": {"type": "enabled", "budget_tokens": 2000},
                "output_config": {"effort": "high"},
            },
        ),
    ],
)
def test_how_much_to_think(thinking: dict[str, Any], fields: dict[str, object]) -> None:
    settings = ModelSettings(model="m", temperature=0.5, **thinking)
    sent = body_of(GENERIC_MESSAGES, settings)
    assert sent == {"model": "m", "max_tokens": 8192, "messages": [], **fields}
    unasked = replace(GENERIC_MESSAGES, reasoning="none")
    assert body_of(unasked, settings).keys() == {"model", "max_tokens", "messages", "temperature"}


@pytest.mark.parametrize("asked", [{"reasoning_tokens": 2000}, {"reasoning_effort": "high"}])
def test_a_request_that_forces_a_call_does_not_ask_for_thinking(asked: dict[str, Any]) -> None:
    settings = ModelSettings(model="m", **asked)
    for choice in (Choice("required"), Choice("named", "think__think")):
        assert "thinking" not in body_of(GENERIC_MESSAGES, settings, tools=b"[{}]", choice=choice)
    assert "thinking" in body_of(GENERIC_MESSAGES, settings, tools=b"[{}]")


def test_where_a_schema_is_refused_none_is_sent() -> None:
    for shape in ("none", "json_object"):
        assert "output_config" not in body_of(replace(ANTHROPIC, response_format=shape), answer=ANSWER)


def test_a_reply_with_everything_goes_back_as_it_came() -> None:
    usage = {
        "input_tokens": 2,
        "output_tokens": 5,
        "cache_read_input_tokens": 7,
        "cache_creation_input_tokens": 1,
    }
    reply = read(
        THOUGHT, HIDDEN, {"type": "text", "text": "Hm."}, CALL, stop="tool_use", usage=usage, model="x"
    )
    assert replace(reply, echo={}) == Reply(
        content="Hm.",
        tool_calls=(ToolCall(call_id=CallId("a"), name="think.think", arguments='{"thought":"hm"}'),),
        reasoning="deep",
        finish_reason="tool_calls",
        model="x",
        usage=Usage(input_tokens=10, output_tokens=5, cached_tokens=7, cache_write_tokens=1),
    )
    assert history(reply) == [THOUGHT, HIDDEN, {"type": "text", "text": "Hm."}, CALL]


def test_calls_go_back_as_they_were_understood_and_only_those_that_were_answered() -> None:
    reply = read(
        THOUGHT,
        {"type": "text", "text": "  "},
        {**CALL, "id": None, "input": "{broken"},
        {**CALL, "id": "b", "name": "no such"},
        {"type": "server_tool_use"},
        "junk",
    )
    one, two = reply.tool_calls
    assert (one.call_id, one.arguments, two.name) == ("call_3_1", "{broken", "no such")
    assert history(replace(reply, tool_calls=(one,))) == [
        THOUGHT,
        {"type": "tool_use", "id": "call_3_1", "name": "think__think", "input": {}},
    ]
    assert history(replace(reply, tool_calls=())) == []


def test_a_reply_of_another_format_becomes_blocks() -> None:
    reply = Reply(content="Hm.", tool_calls=(call("a"),), echo={"reasoning_content": "deep"})
    assert history(reply) == [
        {"type": "text", "text": "Hm."},
        {"type": "tool_use", "id": "a", "name": "think__think", "input": {}},
    ]
    assert history(Reply(content=" ")) == []


@pytest.mark.parametrize(
    ("stop", "finish", "cut"),
    [
        ("end_turn", "stop", False),
        ("stop_sequence", "stop", False),
        ("max_tokens", "length", True),
        ("model_context_window_exceeded", "length", True),
        ("pause_turn", "pause_turn", False),
        (None, None, False),
        (["odd"], None, False),
    ],
)
def test_how_it_ended(stop: object, finish: str | None, cut: bool) -> None:
    reply = read({"type": "text", "text": "Hm."}, stop=stop)
    assert (reply.content, reply.finish_reason, reply.cut) == ("Hm.", finish, cut)


@pytest.mark.parametrize(
    ("content", "details", "words"),
    [
        ([{"type": "text", "text": "I cannot."}], None, "I cannot."),
        ([], {"explanation": "It is about poison."}, "It is about poison."),
        ([], None, "the provider's safety system stopped the reply"),
    ],
)
def test_a_refusal_is_no_content(content: list[object], details: object, words: str) -> None:
    reply = read(*content, stop="refusal", stop_details=details)
    assert (reply.content, reply.refusal, reply.finish_reason) == (None, words, "content_filter")


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b"<html>", "invalid_reply", "not JSON"),
        (b"{}", "invalid_reply", "no content"),
        (b'{"content": "text"}', "invalid_reply", "no content"),
        (
            b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
            "unavailable",
            "Overloaded",
        ),
        (b'{"error":{"type":"authentication_error","message":"bad key"}}', "refused", "bad key"),
    ],
)
def test_a_body_that_is_no_message(body: bytes, kind: str, said: str) -> None:
    fault = WIRE.decode(body, names(), request=1)
    assert isinstance(fault, Fault)
    assert fault.kind == kind
    assert said in fault.message
