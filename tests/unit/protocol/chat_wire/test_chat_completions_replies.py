"""Replies of OpenAI-style chat completions, as documented and as they really come."""

import json
from typing import Any

import msgspec
import pytest
from case_tables import each_case
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from grue.messages import CallId, ReplyTokens, ToolCall, Usage
from grue.protocol.chat_wire.chat_completions import ChatCompletions
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.formats import FORMATS, WireName
from grue.protocol.chat_wire.wire_format import MAX_CALLS, Reply
from grue.protocol.tools.names import WireNames

CHAT = ChatCompletions()
CANONICAL = WireNames("canonical")

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)


def parsed(body: bytes) -> Any:
    return json.loads(body)


def as_history(reply: Reply, names: WireNames = CANONICAL) -> Any:
    (message,) = CHAT.encode_reply(reply, names)
    return parsed(message)


def read(message: object, **choice: object) -> Reply:
    body = json.dumps({"choices": [{"message": message, **choice}]}).encode()
    reply = CHAT.decode(body, CANONICAL, request=3)
    assert isinstance(reply, Reply)
    return reply


def call(function: object, **fields: object) -> dict[str, object]:
    return {"id": "c1", "type": "function", "function": function, **fields}


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
    assert CHAT.decode(json.dumps(body).encode(), names, request=1) == Reply(
        content="Let me think.",
        tool_calls=(
            ToolCall(call_id=CallId("a"), name="think.think", arguments='{"thought":"x"}'),
            ToolCall(call_id=CallId("b"), name="invented", arguments="{}"),
        ),
        finish_reason="stop",
        model="served/model",
        usage=Usage(input_tokens=10, output_tokens=5, cached_tokens=8, reasoning_tokens=2, cost_usd=0.25),
        reasoning="deep",
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
    reply = CHAT.decode(body, CANONICAL, request=3, used_ids={"used", "call_3_1"})
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
        ([{"type": "refusal", "refusal": "no"}], None),
        (5, None),
    ],
)
def test_content_as_it_comes(content: object, text: str | None) -> None:
    assert read({"content": content}).content == text


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "refusal": "I cannot."},
        {"content": [{"type": "refusal", "refusal": "I cannot."}, {"type": "refusal"}, "x"], "refusal": ""},
    ],
)
def test_a_refusal_is_no_content(message: dict[str, Any]) -> None:
    reply = read(message)
    assert reply.refusal == "I cannot."
    assert reply.content in (None, "x")


@pytest.mark.parametrize(
    ("message", "reasoning"),
    [
        ({"reasoning": "deep"}, "deep"),
        ({"reasoning_content": "deeper", "reasoning": "deep"}, "deeper"),
        ({"reasoning": ""}, None),
        ({"reasoning": 5}, None),
    ],
)
def test_reasoning_is_told_apart(message: dict[str, Any], reasoning: str | None) -> None:
    assert read({"content": "look", **message}).reasoning == reasoning


@pytest.mark.parametrize(
    ("finish", "cut"), [("length", True), ("stop", False), (None, False), (["length"], False)]
)
def test_a_reply_that_ended_at_its_limit_is_cut(finish: object, cut: bool) -> None:
    assert read({"content": "lo"}, finish_reason=finish).cut is cut


def test_what_a_call_carries_beside_its_arguments_goes_back_with_it() -> None:
    signed = {"google": {"thought_signature": "s"}}
    reply = read(
        {
            "tool_calls": [
                call({"name": "s.t", "arguments": "{}"}, extra_content=signed),
                call({"name": "s.u"}, id="c2"),
            ]
        }
    )
    one, two = as_history(reply)["tool_calls"]
    assert one["extra_content"] == signed
    assert "extra_content" not in two


def test_neither_content_nor_calls_is_a_reply() -> None:
    assert read({}, finish_reason="length") == Reply(finish_reason="length", cut=True)


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
    reply = CHAT.decode(body, CANONICAL, request=1)
    assert isinstance(reply, Reply)
    assert reply.usage == expected


@each_case(
    "body, kind, status, said",
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
        (b'{"error":{"message":"hiccup","code":"server_error"}}', "unavailable", 500, "hiccup"),
        (b'{"error":{"message":"hiccup","code":"odd"}}', "unavailable", 200, "hiccup"),
        (b'{"error":"insufficient_quota","choices":null}', "refused", 200, "insufficient_quota"),
        (b'{"choices":[{"error":{"message":"cut","code":"502"},"message":{}}]}', "unavailable", 502, "cut"),
        (b'{"error_code":18,"error_msg":"qps request limit reached"}', "unavailable", 200, "limit reached"),
        (b'{"code":401,"message":"expired","data":null}', "refused", 401, "expired"),
        (b'{"success":false,"errors":[{"message":"Rate limited"}]}', "unavailable", 200, "Rate limited"),
        (b'{"detail":"Hello"}', "invalid_reply", 200, "Hello"),
    ],
)
def test_a_body_that_is_no_completion(body: bytes, kind: str, status: int, said: str) -> None:
    fault = CHAT.decode(body, CANONICAL, request=1)
    assert isinstance(fault, Fault)
    assert (fault.kind, fault.status) == (kind, status)
    assert said in fault.message


def test_near_json_is_read() -> None:
    body = b'\xef\xbb\xbf{"choices":[{"message":{"content":"\\ud83d look","reasoning_details":[NaN]}}]}'
    reply = CHAT.decode(body, CANONICAL, request=1)
    assert isinstance(reply, Reply)
    assert reply.content == "\ufffd look"
    assert reply.echo == {"reasoning_details": [None]}


def test_a_body_that_is_not_utf_8_is_not_read_with_other_characters_in_it() -> None:
    body = completion_of_call(b'{\\"path\\":\\"caf\xe9\\"}')
    fault = CHAT.decode(body, CANONICAL, request=1)
    assert isinstance(fault, Fault)
    assert fault.kind == "invalid_reply"


def completion_of_call(arguments: bytes, finish: bytes = b"tool_calls") -> bytes:
    function = b'{"name":"s.t","arguments":"%b"}' % arguments
    return b'{"choices":[{"message":{"tool_calls":[{"function":%b}]},"finish_reason":"%b"}]}' % (
        function,
        finish,
    )


# --- Anything at all ---


def check_sendable(outcome: Reply | Fault) -> None:
    """Whatever was read can be recorded in a trace, and sent back."""
    msgspec.json.encode(outcome)
    if isinstance(outcome, Reply):
        ids = [item.call_id for item in outcome.tool_calls]
        assert len(set(ids)) == len(ids)
        assert all(ids)
        messages = CHAT.encode_reply(outcome, WireNames("encoded"))
        assert [parsed(message)["role"] for message in messages] in ([], ["assistant"])


@settings(max_examples=examples(300))
@given(st.binary())
def test_no_body_raises(body: bytes) -> None:
    check_sendable(CHAT.decode(body, CANONICAL, request=1))


@settings(max_examples=examples(300))
@given(message=JSON_VALUES, calls=JSON_VALUES, function=JSON_VALUES, usage=JSON_VALUES)
@pytest.mark.slow
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
            check_sendable(CHAT.decode(json.dumps(body).encode(), CANONICAL, request=1))


@settings(max_examples=examples(300))
@given(cut=st.integers(0, 200), insert=st.binary(max_size=6), at=st.integers(0, 200))
def test_no_mutated_reply_raises(cut: int, insert: bytes, at: int) -> None:
    body = (
        b'{"choices":[{"message":{"content":null,"tool_calls":[{"id":"a","function":'
        b'{"name":"s.t","arguments":"{}"}}]}}],"usage":{"prompt_tokens":1}}'
    )
    mutated = body[:at] + insert + body[at : len(body) - cut]
    check_sendable(CHAT.decode(mutated, CANONICAL, request=1))


def test_deep_but_readable_replies_can_be_sent_back() -> None:
    deep: object = "x"
    for _ in range(90):
        deep = [deep]
    check_sendable(
        read({"tool_calls": [call({"name": "s.t", "arguments": deep})], "reasoning_details": deep})
    )


def test_a_body_with_too_many_values_is_not_read() -> None:
    body = b'{"choices":[{"message":{"content":"x"}}],"x":[' + b"0," * 500_001 + b"0]}"
    fault = CHAT.decode(body, CANONICAL, request=1)
    assert isinstance(fault, Fault)
    assert fault.kind == "invalid_reply"
    assert isinstance(CHAT.decode(body.replace(b"0," * 500_001, b""), CANONICAL, request=1), Reply)


def test_near_json_that_is_nested_too_deeply_is_not_read() -> None:
    body = b'{"choices":[{"message":{"content":"x"}}],"x":NaN,"y":' + b"[" * 150 + b"]" * 150 + b"}"
    assert isinstance(CHAT.decode(body, CANONICAL, request=1), Fault)


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        ("chat_completions", {"choices": [{"message": {"tool_calls": [{}] * (MAX_CALLS + 1)}}]}),
        ("responses", {"output": [{}] * (MAX_CALLS + 1)}),
        ("messages", {"content": [{}] * (MAX_CALLS + 1)}),
    ],
)
def test_a_body_with_too_many_calls_is_no_reply(wire: WireName, body: object) -> None:
    fault = FORMATS[wire].decode(json.dumps(body).encode(), CANONICAL, request=1)
    assert isinstance(fault, Fault)
    assert fault.message.startswith(f"not a completion: more than {MAX_CALLS} ")


def test_the_tokens_of_a_reply_are_those_that_the_endpoint_names() -> None:
    entries = [{"id": 7, "token": "a", "logprob": -0.5, "bytes": [97]}, {"id": 9, "token": "b", "logprob": 0}]
    asked: list[tuple[dict[str, Any], ReplyTokens | None]] = [
        ({}, None),
        ({"logprobs": None}, None),
        ({"logprobs": {"content": entries}}, ReplyTokens(ids=(7, 9), logprobs=(-0.5, 0.0))),
        ({"token_ids": [1, 2, 3]}, ReplyTokens(ids=(1, 2, 3))),
        # vLLM: the ids apart from the log-probabilities, or in the place of the tokens' texts
        (
            {"token_ids": [1, 2], "logprobs": {"content": [{"logprob": -1}, {"logprob": -2}]}},
            ReplyTokens(ids=(1, 2), logprobs=(-1.0, -2.0)),
        ),
        (
            {"logprobs": {"content": [{"token": "token_id:12", "logprob": -1}]}},
            ReplyTokens(ids=(12,), logprobs=(-1.0,)),
        ),
        # OpenAI names no ids
        ({"logprobs": {"content": [{"token": "a", "logprob": -1}]}}, ReplyTokens(logprobs=(-1.0,))),
        # where one is missing or none, all are left out: a hole would shift the rest
        ({"token_ids": [1, "2"]}, None),
        ({"token_ids": [1, -2]}, None),
        ({"token_ids": [True, 2.0]}, None),
        ({"logprobs": {"content": [{"token": "token_id:x", "logprob": "low"}]}}, None),
        ({"logprobs": {"content": [{"token": f"token_id:{'9' * 5000}"}, None]}}, None),
        (
            {"token_ids": [1, 2, 3], "logprobs": {"content": [{"logprob": -1}]}},
            ReplyTokens(ids=(1, 2, 3)),
        ),
    ]
    for choice, tokens in asked:
        assert read({"content": "ab"}, **choice).tokens == tokens, choice
    huge = b'{"choices":[{"message":{"content":"a"},"logprobs":{"content":[{"id":1,"logprob":-1e999}]}}]}'
    reply = CHAT.decode(huge, CANONICAL, request=1)
    assert isinstance(reply, Reply)
    assert reply.tokens == ReplyTokens(ids=(1,))
