"""Requests and replies of OpenAI-style chat completions."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grue.messages import (
    AnswerSchema,
    CallId,
    SystemText,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    Usage,
    UserText,
)
from grue.protocol.chat_wire.chat_completions import (
    Reply,
    answer_tail,
    decode_reply,
    encode_assistant,
    encode_head,
    encode_item,
    encode_tools,
    join_request,
    offer_tail,
)
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.profile import GENERIC, OPENAI, ModelSettings, WireProfile
from grue.protocol.tool_names import WireNames

CANONICAL = WireNames("canonical")
EVERYTHING = ModelSettings(
    model="some/model", temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, max_tokens=300, stop=("END",)
)

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)


def parsed(body: bytes) -> Any:
    return json.loads(body)


def read(message: object, **choice: object) -> Reply:
    body = json.dumps({"choices": [{"message": message, **choice}]}).encode()
    reply = decode_reply(body, CANONICAL, request=3)
    assert isinstance(reply, Reply)
    return reply


def call(function: object, **fields: object) -> dict[str, object]:
    return {"id": "c1", "type": "function", "function": function, **fields}


# --- Requests ---


@pytest.mark.parametrize(
    ("profile", "sampling"),
    [
        (
            GENERIC,
            {
                "temperature": 0.7,
                "top_p": 0.9,
                "top_k": 40,
                "min_p": 0.05,
                "max_tokens": 300,
                "stop": ["END"],
            },
        ),
        (OPENAI, {"temperature": 0.7, "top_p": 0.9, "max_completion_tokens": 300, "stop": ["END"]}),
    ],
)
def test_a_profile_takes_the_sampling_fields_that_it_knows(
    profile: WireProfile, sampling: dict[str, object]
) -> None:
    body = parsed(join_request(encode_head(EVERYTHING, profile), [], b""))
    assert body == {"model": "some/model", **sampling, "messages": []}


def test_a_setting_that_is_not_set_is_not_sent() -> None:
    assert parsed(encode_head(ModelSettings(model="m"), GENERIC) + b"]}") == {"model": "m", "messages": []}
    zero = parsed(encode_head(ModelSettings(model="m", temperature=0.0), GENERIC) + b"]}")
    assert zero["temperature"] == 0.0


def test_p15_a_marked_text_carries_its_cache_marker() -> None:
    assert parsed(encode_item(SystemText("You play."), marked=True)) == {
        "role": "system",
        "content": [{"type": "text", "text": "You play.", "cache_control": {"type": "ephemeral"}}],
    }
    assert parsed(encode_item(UserText("A lamp."))) == {"role": "user", "content": "A lamp."}


def test_a_tool_result_is_text_under_its_call_id() -> None:
    item = ToolMessage(CallId("c1"), '{"content":1}')
    assert parsed(encode_item(item, marked=True)) == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": '{"content":1}',
    }


@pytest.mark.parametrize("text", ["", " \n"])
def test_no_text_is_empty(text: str) -> None:
    assert parsed(encode_item(ToolMessage(CallId("c"), text)))["content"] == "(empty)"
    assert parsed(encode_item(UserText(text)))["content"] == "(empty)"
    assert parsed(encode_item(UserText(text), marked=True))["content"][0]["text"] == "(empty)"


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=30))
def test_any_text_can_be_sent(text: str) -> None:
    for marked in (False, True):
        parsed(encode_item(UserText(f"x{text}"), marked=marked))


def test_p10_tools_on_offer_and_no_response_format() -> None:
    tool = ToolDefinition(server="think", tool="think", description="Think.", input_schema={})  # type: ignore[arg-type]
    tail = offer_tail(encode_tools([tool], OPENAI, WireNames("encoded")))
    assert parsed(b'{"messages":[]' + tail + b"}") == {
        "messages": [],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "think__think",
                    "description": "Think.",
                    "parameters": {"type": "object", "properties": {}},
                },
            }
        ],
        "tool_choice": "auto",
    }


def test_without_tools_nothing_is_said_of_tools() -> None:
    assert offer_tail(encode_tools([], GENERIC, CANONICAL)) == b""


def test_a_long_description_is_cut_where_the_endpoint_has_a_limit() -> None:
    tool = ToolDefinition(server="s", tool="t", description="x" * 50, input_schema={})  # type: ignore[arg-type]
    profile = msgspec.structs.replace(GENERIC, max_description_chars=20)
    (encoded,) = parsed(encode_tools([tool], profile, CANONICAL))
    assert encoded["function"]["description"] == "x" * 19 + "…"
    (whole,) = parsed(encode_tools([tool], GENERIC, CANONICAL))
    assert whole["function"]["description"] == "x" * 50


ANSWER = AnswerSchema(
    "AgentResponse[Zork]",
    {"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]},
)


def tail_of(answer: AnswerSchema | None, profile: WireProfile, tools: bytes = b"") -> Any:
    return parsed(b'{"messages":[]' + answer_tail(answer, profile, tools) + b"}")


def test_p14_a_final_answer_is_asked_for_by_its_schema_without_tools() -> None:
    assert tail_of(ANSWER, GENERIC) == {
        "messages": [],
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "AgentResponse_Zork_",
                "strict": True,
                "schema": {
                    "type": "object",
                    "properties": {"action": {"type": "string"}},
                    "required": ["action"],
                    "additionalProperties": False,
                },
            },
        },
    }


def test_a_schema_that_cannot_be_strict_is_sent_as_it_is() -> None:
    free = AnswerSchema("Free", {"type": "object", "additionalProperties": True})
    assert tail_of(free, GENERIC)["response_format"]["json_schema"] == {"name": "Free", "schema": free.schema}


def test_other_ways_to_ask_for_an_answer() -> None:
    assert tail_of(None, GENERIC) == {"messages": []}
    loose = msgspec.structs.replace(GENERIC, response_format="json_object")
    assert tail_of(ANSWER, loose)["response_format"] == {"type": "json_object"}
    assert tail_of(ANSWER, msgspec.structs.replace(GENERIC, response_format="none")) == {"messages": []}


def test_r5_8_exception_tools_that_must_go_along_may_not_be_called() -> None:
    body = tail_of(ANSWER, GENERIC, b'[{"type":"function"}]')
    assert body["tools"] == [{"type": "function"}]
    assert body["tool_choice"] == "none"
    assert "response_format" in body


def test_the_history_shows_the_call_as_the_endpoint_knows_it() -> None:
    reply = Reply(
        content="Hm.",
        tool_calls=(ToolCall(call_id=CallId("c1"), name="think.think", arguments='{"a": 1}'),),
        echo={"reasoning_details": [{"type": "x"}], "reasoning_content": "deep"},
    )
    assert parsed(encode_assistant(reply, WireNames("encoded")) or b"") == {
        "role": "assistant",
        "content": "Hm.",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "think__think", "arguments": '{"a": 1}'},
            }
        ],
        "reasoning_details": [{"type": "x"}],
        "reasoning_content": "deep",
    }


@pytest.mark.parametrize("arguments", ["{", "", "[1]", '"text"', '{"a": NaN}', '{}{"b":1}', "{'a': 1}"])
def test_arguments_that_are_no_object_go_back_as_an_empty_one(arguments: str) -> None:
    reply = Reply(tool_calls=(ToolCall(call_id=CallId("c"), name="s.t", arguments=arguments),))
    message = parsed(encode_assistant(reply, CANONICAL) or b"")
    assert message["tool_calls"][0]["function"]["arguments"] == "{}"
    assert message["content"] is None


def test_a_text_goes_back_without_the_reasoning_that_only_calls_need() -> None:
    reply = Reply(content="look", echo={"reasoning_details": [1], "reasoning_content": "deep"})
    assert parsed(encode_assistant(reply, CANONICAL) or b"") == {
        "role": "assistant",
        "content": "look",
        "reasoning_details": [1],
    }


@pytest.mark.parametrize("content", [None, "", " \n "])
def test_a_reply_without_anything_leaves_no_message(content: str | None) -> None:
    assert encode_assistant(Reply(content=content), CANONICAL) is None


def test_what_json_cannot_say_is_replaced() -> None:
    assert parsed(encode_item(UserText("a \ud800 lamp")))["content"] == "a \ufffd lamp"
    reply = Reply(content="look", echo={"reasoning_details": ["\udfff", float("nan")]})
    assert parsed(encode_assistant(reply, CANONICAL) or b"")["reasoning_details"] == ["\ufffd", None]


# --- Replies ---


def test_p11_a_reply_with_tool_calls() -> None:
    names = WireNames("encoded", ["think.think"])
    body = {
        "model": "served/model",
        "choices": [
            {
                "finish_reason": "stop",
                "message": {
                    "content": "Let me think.",
                    "tool_calls": [
                        {"id": "a", "function": {"name": "think__think", "arguments": '{"thought":"x"}'}},
                        {"id": "b", "function": {"name": "invented", "arguments": "{}"}},
                    ],
                    "reasoning_content": "deep",
                },
            }
        ],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 8},
            "completion_tokens_details": {"reasoning_tokens": 2},
            "cost": 0.25,
        },
    }
    assert decode_reply(json.dumps(body).encode(), names, request=1) == Reply(
        content="Let me think.",
        tool_calls=(
            ToolCall(call_id=CallId("a"), name="think.think", arguments='{"thought":"x"}'),
            ToolCall(call_id=CallId("b"), name="invented", arguments="{}"),
        ),
        finish_reason="stop",
        model="served/model",
        usage=Usage(input_tokens=10, output_tokens=5, cached_tokens=8, reasoning_tokens=2, cost_usd=0.25),
        echo={"reasoning_content": "deep"},
    )


@pytest.mark.parametrize(
    ("sent", "arguments"),
    [
        ("", "{}"),
        ("  ", "{}"),
        (None, "{}"),
        ({"a": 1}, '{"a":1}'),
        ("{broken", "{broken"),
        ([1], "[1]"),
    ],
)
def test_arguments_as_they_come(sent: object, arguments: str) -> None:
    reply = read({"tool_calls": [call({"name": "s.t", "arguments": sent})]})
    assert reply.tool_calls[0].arguments == arguments


@pytest.mark.parametrize("name", [None, "", 7])
def test_a_call_without_a_name_is_a_call_all_the_same(name: object) -> None:
    assert read({"tool_calls": [call({"name": name, "arguments": "{}"})]}).tool_calls[0].name == "unnamed"


def test_a_flat_call_is_read_and_what_is_no_call_is_not() -> None:
    reply = read({"tool_calls": ["x", None, {"name": "s.t", "arguments": {"a": 1}}]})
    assert reply.tool_calls == (ToolCall(call_id=CallId("call_3_1"), name="s.t", arguments='{"a":1}'),)


@pytest.mark.parametrize("listed", [None, [], {}, "x"])
def test_no_calls(listed: object) -> None:
    assert read({"content": "look", "tool_calls": listed}) == Reply(content="look")


def test_ids_that_are_missing_or_taken_are_replaced() -> None:
    ids = ["", None, 5, "dup", "dup", "used", "call_3_2"]
    calls = [{"id": value, "function": {"name": "s.t"}} for value in ids]
    body = json.dumps({"choices": [{"message": {"tool_calls": calls}}]}).encode()
    reply = decode_reply(body, CANONICAL, request=3, used_ids={"used", "call_3_1"})
    assert isinstance(reply, Reply)
    assert [item.call_id for item in reply.tool_calls] == [
        "call_3_2",
        "call_3_3",
        "call_3_4",
        "dup",
        "call_3_5",
        "call_3_6",
        "call_3_7",
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("look", "look"),
        (None, None),
        ("", None),
        ([{"type": "text", "text": "lo"}, "o", {"type": "image"}, {"type": "text", "text": "k"}], "look"),
        ([{"type": "refusal", "refusal": "no"}], "no"),
        (5, None),
    ],
)
def test_content_as_it_comes(content: object, text: str | None) -> None:
    assert read({"content": content}).content == text


def test_a_refusal_is_the_text_where_there_is_no_other() -> None:
    assert read({"content": None, "refusal": "I cannot."}).content == "I cannot."


def test_neither_content_nor_calls_is_a_reply() -> None:
    assert read({}, finish_reason="length") == Reply(finish_reason="length")


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, Usage()),
        ({"prompt_tokens": -1, "completion_tokens": "5", "cost": -2}, Usage()),
        (
            {"prompt_tokens": 3.0, "prompt_cache_hit_tokens": 2, "cost": 0},
            Usage(input_tokens=3, cached_tokens=2, cost_usd=0.0),
        ),
        ({"prompt_tokens": 10**30, "prompt_tokens_details": 4}, Usage()),
    ],
)
def test_usage_as_it_comes(usage: object, expected: Usage) -> None:
    body = json.dumps({"choices": [{"message": {}}], "usage": usage}).encode()
    reply = decode_reply(body, CANONICAL, request=1)
    assert isinstance(reply, Reply)
    assert reply.usage == expected


@pytest.mark.parametrize(
    ("body", "kind", "status", "said"),
    [
        (b"<html><body>Welcome</body></html>", "invalid_reply", 200, "not JSON: <html>"),
        (b"", "invalid_reply", 200, "an empty body"),
        (b'{"choices":[{"message":{"content":"lo', "invalid_reply", 200, "not JSON"),
        (b"[" * 100_000, "invalid_reply", 200, "not JSON"),
        (b'{"x":' * 150 + b"1" + b"}" * 150, "invalid_reply", 200, "not JSON"),
        (b"[]", "invalid_reply", 200, "not a completion"),
        (b"{}", "invalid_reply", 200, "no choices"),
        (b'{"choices":[]}', "invalid_reply", 200, "no choices"),
        (b'{"choices":[{"message":null}]}', "invalid_reply", 200, "no choices"),
        (b'{"error":{"message":"Overloaded","code":502}}', "unavailable", 502, "Overloaded"),
        (b'{"error":{"message":"No credit","code":402}}', "refused", 402, "No credit"),
        (b'{"error":{"message":"hiccup","code":"server_error"}}', "unavailable", 200, "hiccup"),
        (b'{"error":"insufficient_quota","choices":null}', "refused", 200, "insufficient_quota"),
        (b'{"choices":[{"error":{"message":"cut","code":"502"},"message":{}}]}', "unavailable", 502, "cut"),
    ],
)
def test_a_body_that_is_no_completion(body: bytes, kind: str, status: int, said: str) -> None:
    fault = decode_reply(body, CANONICAL, request=1)
    assert isinstance(fault, Fault)
    assert (fault.kind, fault.status) == (kind, status)
    assert said in fault.message


def test_near_json_is_read() -> None:
    body = b'\xef\xbb\xbf{"choices":[{"message":{"content":"\\ud83d look \xff","reasoning_details":[NaN]}}]}'
    reply = decode_reply(body, CANONICAL, request=1)
    assert isinstance(reply, Reply)
    assert reply.content == "\ufffd look \ufffd"
    assert reply.echo == {"reasoning_details": [None]}


# --- Anything at all ---


def check_sendable(outcome: Reply | Fault) -> None:
    """Whatever was read can be recorded in a trace, and sent back."""
    msgspec.json.encode(outcome)
    if isinstance(outcome, Reply):
        ids = [item.call_id for item in outcome.tool_calls]
        assert len(set(ids)) == len(ids)
        assert all(ids)
        message = encode_assistant(outcome, WireNames("encoded"))
        assert message is None or parsed(message)["role"] == "assistant"


@settings(max_examples=300)
@given(st.binary())
def test_no_body_raises(body: bytes) -> None:
    check_sendable(decode_reply(body, CANONICAL, request=1))


@settings(max_examples=300)
@given(message=JSON_VALUES, calls=JSON_VALUES, function=JSON_VALUES, usage=JSON_VALUES)
def test_no_json_raises(message: object, calls: object, function: object, usage: object) -> None:
    for candidate in (
        message,
        {"content": message, "tool_calls": calls, "reasoning_details": usage},
        {"tool_calls": [calls, {"id": message, "function": function}]},
        {"tool_calls": [{"id": "a", "function": {"name": message, "arguments": function}}] * 2},
    ):
        for body in (
            {"choices": [{"message": candidate}], "usage": usage},
            {"choices": message, "error": usage},
        ):
            check_sendable(decode_reply(json.dumps(body).encode(), CANONICAL, request=1))


@settings(max_examples=300)
@given(cut=st.integers(0, 200), insert=st.binary(max_size=6), at=st.integers(0, 200))
def test_no_mutated_reply_raises(cut: int, insert: bytes, at: int) -> None:
    body = (
        b'{"choices":[{"message":{"content":null,"tool_calls":[{"id":"a","function":'
        b'{"name":"s.t","arguments":"{}"}}]}}],"usage":{"prompt_tokens":1}}'
    )
    mutated = body[:at] + insert + body[at : len(body) - cut]
    check_sendable(decode_reply(mutated, CANONICAL, request=1))


def test_deep_but_readable_replies_can_be_sent_back() -> None:
    deep: object = "x"
    for _ in range(90):
        deep = [deep]
    check_sendable(
        read({"tool_calls": [call({"name": "s.t", "arguments": deep})], "reasoning_details": deep})
    )
