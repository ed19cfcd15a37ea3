"""Requests and replies of OpenAI's responses."""

import json
from typing import Any

import pytest
from msgspec.structs import replace
from wire_bodies import ANSWER, THINK, call

from grue.messages import (
    AssistantText,
    CallId,
    ConversationItem,
    SystemText,
    ToolCall,
    ToolMessage,
    Usage,
    UserText,
)
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile
from grue.protocol.chat_wire.profiles import GENERIC_RESPONSES
from grue.protocol.chat_wire.responses import Responses
from grue.protocol.chat_wire.wire_format import Choice, Reply, WireRequest
from grue.protocol.tools.names import WireNames

WIRE = Responses()
PLAIN = replace(GENERIC_RESPONSES, reasoning="none")
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}
TEXT = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Hm.", "annotations": []}],
}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "think__think", "arguments": "{}"}


def names() -> WireNames:
    return WireNames("encoded", [THINK.name])


def body_of(profile: WireProfile = PLAIN, settings: ModelSettings | None = None, **parts: Any) -> Any:
    request = WireRequest(settings=settings or ModelSettings(model="m"), profile=profile, **parts)
    return json.loads(WIRE.body(request))


def read(*output: object, **fields: object) -> Reply:
    body = json.dumps({"status": "completed", "output": output, **fields}).encode()
    reply = WIRE.decode(body, names(), request=3)
    assert isinstance(reply, Reply), reply
    return reply


def history(reply: Reply) -> list[Any]:
    return [json.loads(item) for item in WIRE.encode_reply(reply, names())]


def test_the_key_goes_out_as_a_bearer_token() -> None:
    assert WIRE.headers("k") == {"Authorization": "Bearer k"}
    assert WIRE.headers("") == {}


def test_nothing_is_kept_at_the_endpoint_and_thoughts_come_sealed() -> None:
    settings = ModelSettings(model="m", temperature=0.5, top_k=4, max_tokens=300, reasoning_effort="low")
    assert body_of(GENERIC_RESPONSES, settings, stream=True) == {
        "model": "m",
        "store": False,
        "temperature": 0.5,
        "max_output_tokens": 300,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low"},
        "input": [],
        "stream": True,
    }
    assert body_of(PLAIN, ModelSettings(model="m", reasoning_effort="low")) == {
        "model": "m",
        "store": False,
        "input": [],
    }


@pytest.mark.parametrize(
    ("item", "encoded"),
    [
        (SystemText("You play."), {"role": "developer", "content": "You play."}),
        (UserText(""), {"role": "user", "content": "(empty)"}),
        (AssistantText("Two."), {"role": "assistant", "content": "Two."}),
        (ToolMessage(CallId("a"), "1"), {"type": "function_call_output", "call_id": "a", "output": "1"}),
    ],
)
def test_items(item: ConversationItem, encoded: dict[str, str]) -> None:
    said = WIRE.encode_items([item], {0}, replace(PLAIN, system_role="developer"))
    assert said.system == ()
    assert [json.loads(message) for message in said.messages] == [encoded]


def test_tools_are_flat_and_not_held_to_the_strict_dialect() -> None:
    tools = WIRE.encode_tools([THINK], replace(PLAIN, max_description_chars=6), names())
    body = body_of(tools=tools, choice=Choice("named", "think__think"))
    assert body["tools"] == [
        {
            "type": "function",
            "name": "think__think",
            "description": "Think…",
            "parameters": THINK.input_schema,
            "strict": False,
        }
    ]
    assert body["tool_choice"] == {"type": "function", "name": "think__think"}
    assert body_of(tools=tools)["tool_choice"] == "auto"
    assert WIRE.encode_tools([], PLAIN, names()) == b""
    assert "tools" not in body_of()


def test_ways_to_ask_for_an_answer() -> None:
    shape = body_of(answer=ANSWER)["text"]["format"]
    assert (shape["type"], shape["name"], shape["strict"]) == ("json_schema", "AgentResponse", True)
    assert body_of(replace(PLAIN, response_format="json_object"), answer=ANSWER)["text"] == {
        "format": {"type": "json_object"}
    }
    assert "text" not in body_of(replace(PLAIN, response_format="none"), answer=ANSWER)
    assert body_of(answer=ANSWER, extra={"text": {}, "store": True}) == {
        "model": "m",
        "store": True,
        "input": [],
        "text": {},
    }


def test_a_reply_with_everything_goes_back_as_it_came() -> None:
    usage = {
        "input_tokens": 10,
        "output_tokens": 5,
        "input_tokens_details": {"cached_tokens": 8},
        "output_tokens_details": {"reasoning_tokens": 2},
    }
    thought = {**THOUGHT, "summary": [{"type": "summary_text", "text": "deep"}]}
    reply = read(thought, TEXT, CALL, {"type": "web_search_call"}, "junk", model="served", usage=usage)
    assert replace(reply, echo={}) == Reply(
        content="Hm.",
        tool_calls=(ToolCall(call_id=CallId("a"), name="think.think", arguments="{}"),),
        reasoning="deep",
        finish_reason="tool_calls",
        model="served",
        usage=Usage(input_tokens=10, output_tokens=5, cached_tokens=8, reasoning_tokens=2),
    )
    assert history(reply) == [thought, TEXT, CALL]


def test_calls_go_back_as_they_were_understood() -> None:
    broken = {**CALL, "call_id": "", "arguments": "{", "name": "made up"}
    reply = read(broken, {**CALL, "call_id": "b"}, {**CALL, "call_id": "b"})
    assert [item.call_id for item in reply.tool_calls] == ["call_3_1", "b", "call_3_2"]
    assert [(item["call_id"], item["name"], item["arguments"]) for item in history(reply)] == [
        ("call_3_1", "made_up", "{}"),
        ("b", "think__think", "{}"),
        ("call_3_2", "think__think", "{}"),
    ]


def test_a_call_without_an_answer_is_left_out_and_so_is_a_thought_that_led_to_nothing() -> None:
    reply = read(THOUGHT, CALL, {**THOUGHT, "id": "rs_2"}, {**CALL, "call_id": "b"})
    one, two = reply.tool_calls
    assert [item["type"] for item in history(replace(reply, tool_calls=(one,)))] == [
        "reasoning",
        "function_call",
    ]
    assert [item.get("call_id") for item in history(replace(reply, tool_calls=(two,)))] == [None, None, "b"]
    assert history(replace(reply, tool_calls=())) == []


def test_a_reply_of_another_format_becomes_items() -> None:
    reply = Reply(content="Hm.", tool_calls=(call("a"),), echo={"reasoning_content": "deep"})
    assert history(reply) == [
        {"role": "assistant", "content": "Hm."},
        {"type": "function_call", "call_id": "a", "name": "think__think", "arguments": "{}"},
    ]
    assert history(Reply(content=" \n")) == []


@pytest.mark.parametrize(
    ("fields", "finish", "cut"),
    [
        ({"status": "completed"}, "stop", False),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length", True),
        (
            {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
            "content_filter",
            False,
        ),
        ({"status": "incomplete", "incomplete_details": None}, "incomplete", False),
        ({"status": None}, None, False),
        ({"status": ["odd"]}, None, False),
    ],
)
def test_how_it_ended(fields: dict[str, object], finish: str | None, cut: bool) -> None:
    reply = read(TEXT, **fields)
    assert (reply.content, reply.finish_reason, reply.cut) == ("Hm.", finish, cut)


def test_a_refusal_is_no_content() -> None:
    reply = read({**TEXT, "content": [{"type": "refusal", "refusal": "I cannot."}]})
    assert (reply.content, reply.refusal) == (None, "I cannot.")


def test_thoughts_are_read_from_summary_or_content() -> None:
    plain = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "one"}]}
    summed = {"type": "reasoning", "summary": [{"text": "two"}], "content": [{"text": "more"}]}
    assert read(plain, summed, THOUGHT, TEXT).reasoning == "one\ntwo"
    assert read(THOUGHT, TEXT).reasoning is None


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b"<html>", "invalid_reply", "not JSON"),
        (b"{}", "invalid_reply", "no output"),
        (b'{"output": {}}', "invalid_reply", "no output"),
        (b'{"error": {"message": "no", "code": "invalid_prompt"}, "output": []}', "refused", "no"),
        (b'{"status": "failed", "output": []}', "unavailable", "the response is failed"),
        (b'{"status": "cancelled", "output": []}', "unavailable", "the response is cancelled"),
    ],
)
def test_a_body_that_is_no_response(body: bytes, kind: str, said: str) -> None:
    fault = WIRE.decode(body, names(), request=1)
    assert isinstance(fault, Fault)
    assert fault.kind == kind
    assert said in fault.message
