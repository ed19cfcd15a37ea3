"""The formats of the scripted endpoint: one conversation, one view of it, whichever way it comes and goes."""

import json
from typing import Any

import pytest
from dialect_requests import as_messages, as_responses
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from grue.testing.llm_server import (
    LlmReply,
    completion,
    error_reply,
    refusal_reply,
    text_reply,
    tool_calls_reply,
)
from grue.testing.providers.chat_rules import ProviderRules
from grue.testing.providers.dialects import CHAT, DIALECTS, Dialect, dialect_of

Json = dict[str, Any]
MESSAGES, RESPONSES = DIALECTS["messages"], DIALECTS["responses"]
ALL = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
ANSWER = {**SCHEMA, "required": ["a"], "additionalProperties": False}
MARK = {"type": "ephemeral"}


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).filter(lambda text: bool(text.strip()))
NAMES = st.text("abcXYZ_-019", min_size=1, max_size=20)
ARGUMENTS = st.dictionaries(TEXTS, TEXTS | st.integers() | st.lists(st.booleans()), max_size=3)


@st.composite
def conversations(draw: st.DrawFn) -> Json:
    """Make a request whose conversation has rounds of tool calls, as an agent's has."""
    messages = [{"role": "system", "content": draw(TEXTS)}, {"role": "user", "content": draw(TEXTS)}]
    numbers = iter(range(1000))
    for calls in draw(st.lists(st.lists(st.tuples(NAMES, ARGUMENTS), min_size=1, max_size=3), max_size=3)):
        made = [
            {
                "id": f"call_{next(numbers)}",
                "type": "function",
                "function": {"name": name, "arguments": compact(arguments)},
            }
            for name, arguments in calls
        ]
        content = draw(st.none() | TEXTS)
        messages.append({"role": "assistant", "content": content, "tool_calls": made})
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": draw(TEXTS)} for call in made]
    if len(messages) > 2 and draw(st.booleans()):
        messages.append({"role": "user", "content": draw(TEXTS)})
    function = {"name": "echo", "parameters": SCHEMA}
    return {"model": "m", "messages": messages, "tools": [{"type": "function", "function": function}]}


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@settings(max_examples=examples(150))
@given(conversations())
@pytest.mark.slow
def test_each_format_gives_the_same_view_of_a_conversation(chat: Json) -> None:
    views = [
        dialect.read(body, ProviderRules(), {})
        for dialect, body in ((CHAT, chat), (RESPONSES, as_responses(chat)), (MESSAGES, as_messages(chat)))
    ]
    assert [refusal for _, refusal in views] == [None, None, None]
    for view, _ in views:
        assert {**view, "max_tokens": 0} == {**chat, "max_tokens": 0}


@given(
    st.recursive(
        st.none() | st.integers() | st.sampled_from(["user", "text", "tool_use", "function_call", "x", ""]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["model", "messages", "input", "role", "content", "type", "tools", "id", "max_tokens"]
                ),
                inner,
            )
        ),
    )
)
def test_whatever_comes_is_read_or_refused(body: object) -> None:
    for dialect in DIALECTS.values():
        if isinstance(body, dict):
            _, refusal = dialect.read(body, ProviderRules(), {})
            is_whole = dialect is RESPONSES and isinstance(body.get("input"), str)
            assert refusal is not None or is_whole


def test_a_request_for_responses_with_everything() -> None:
    chat = RESPONSES.to_chat(
        {
            "model": "m",
            "instructions": "Play.",
            "input": [
                {"role": "developer", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}],
                },
                {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
                {"role": "user", "content": [{"type": "input_text", "text": "Do."}]},
            ],
            "tools": [
                {"type": "function", "name": "t", "parameters": ANSWER, "strict": True, "description": "T"}
            ],
            "tool_choice": {"type": "function", "name": "t"},
            "parallel_tool_calls": False,
            "text": {"format": {"type": "json_schema", "name": "a", "schema": ANSWER, "strict": True}},
            "max_output_tokens": 99,
            "reasoning": {"effort": "low"},
            "temperature": 0.5,
            "store": False,
            "stream": True,
        }
    )
    function = {"name": "t", "parameters": ANSWER, "description": "T", "strict": True}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    assert chat == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Play."},
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [image]},
            {"role": "assistant", "content": "No.", "reasoning_content": "Hm."},
            {"role": "user", "content": "Do."},
        ],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "t"}},
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": ANSWER, "strict": True},
        },
        "max_completion_tokens": 99,
        "reasoning_effort": "low",
        "temperature": 0.5,
        "stream": True,
    }


def test_a_request_for_messages_with_everything() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "ok"}, picture]}
    said = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "opaque"},
                {"type": "tool_use", "id": "a", "name": "t", "input": {"a": "é"}},
            ],
        },
        {"role": "user", "content": [result, {"type": "text", "text": "Do.", "cache_control": MARK}]},
    ]
    chat = MESSAGES.to_chat(
        {
            "model": "m",
            "max_tokens": 2000,
            "system": [{"type": "text", "text": "Play.", "cache_control": MARK}],
            "messages": said,
            "tools": [{"name": "t", "input_schema": SCHEMA, "description": "T", "cache_control": MARK}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "output_config": {"format": {"type": "json_schema", "schema": ANSWER}, "effort": "low"},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "stop_sequences": ["END"],
            "metadata": {"user_id": "u"},
        }
    )
    call = {"id": "a", "type": "function", "function": {"name": "t", "arguments": '{"a":"é"}'}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    assert chat["messages"] == [
        {"role": "system", "content": [{"type": "text", "text": "Play.", "cache_control": MARK}]},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
        {"role": "user", "content": [image, {"type": "text", "text": "Do.", "cache_control": MARK}]},
    ]
    function = {"name": "t", "parameters": SCHEMA, "description": "T"}
    assert chat["tools"] == [{"type": "function", "function": function}]
    assert (chat["tool_choice"], chat["parallel_tool_calls"]) == ("required", False)
    assert chat["response_format"]["json_schema"]["schema"] == ANSWER
    assert (chat["reasoning_effort"], chat["reasoning"]) == ("low", {"max_tokens": 1024})
    assert (chat["stop"], chat["user"], chat["max_tokens"]) == (["END"], "u", 2000)


@pytest.mark.parametrize(
    ("given_choice", "wanted"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "t"}, {"type": "function", "function": {"name": "t"}}),
    ],
)
def test_anthropics_tool_choice(given_choice: Json, wanted: object) -> None:
    assert MESSAGES.to_chat({"model": "m", "tool_choice": given_choice})["tool_choice"] == wanted


def replied(dialect: Dialect, reply: LlmReply, **request: object) -> Any:
    return dialect.reply(reply.body, reply.status, dict(request))


CALLS = tool_calls_reply(("t", {"a": 1}), ("t", "{broken"), ids=["x", "y"], content="So.")


def test_what_the_model_says_in_each_format() -> None:
    assert replied(CHAT, CALLS) == json.loads(CALLS.body)
    said, *calls = replied(RESPONSES, CALLS)["output"]
    assert said["content"] == [{"type": "output_text", "text": "So.", "annotations": [], "logprobs": []}]
    assert [(call["call_id"], call["arguments"]) for call in calls] == [("x", '{"a": 1}'), ("y", "{broken")]
    assert len({said["id"], *[call["id"] for call in calls]}) == 3
    message = replied(MESSAGES, CALLS)
    assert message["content"][0]["text"] == "So."
    assert [(use["id"], use["input"]) for use in message["content"][1:]] == [
        ("x", {"a": 1}),
        ("y", "{broken"),
    ]


@pytest.mark.parametrize(
    ("reply", "status", "reason", "stop"),
    [
        (text_reply("hi"), "completed", None, "end_turn"),
        (CALLS, "completed", None, "tool_use"),
        (completion(json.loads(CALLS.body)["choices"][0]["message"]), "completed", None, "tool_use"),
        (text_reply("hi", finish_reason="length"), "incomplete", "max_output_tokens", "max_tokens"),
        (text_reply(None, finish_reason="content_filter"), "incomplete", "content_filter", "refusal"),
        (text_reply("hi", finish_reason="stop_sequence"), "completed", None, "stop_sequence"),
        (refusal_reply("No."), "completed", None, "refusal"),
    ],
)
def test_why_a_reply_ends(reply: LlmReply, status: str, reason: str | None, stop: str) -> None:
    response, message = replied(RESPONSES, reply), replied(MESSAGES, reply, stop_sequences=["END"])
    assert (response["status"], (response["incomplete_details"] or {}).get("reason")) == (status, reason)
    assert message["stop_reason"] == stop
    assert message["stop_sequence"] == ("END" if stop == "stop_sequence" else None)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (529, "overloaded_error"),
        (422, "invalid_request_error"),
    ],
)
def test_errors_have_the_shape_of_the_format(status: int, kind: str) -> None:
    error = error_reply(status, "No.", code="x")
    assert replied(RESPONSES, error) == {"error": {"message": "No.", "code": "x"}}
    said = replied(MESSAGES, error)
    assert (said["type"], said["error"]) == ("error", {"type": kind, "message": "No."})
    inside = replied(MESSAGES, error_reply(200, "No.", code=429))
    assert inside["error"]["type"] == "rate_limit_error"


@ALL
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"choices": [1]}', b'{"choices": [{}]}'])
def test_what_is_no_completion_is_nobodys_reply(dialect: Dialect, body: bytes) -> None:
    if dialect is not CHAT or not body.startswith(b"{"):
        assert dialect.reply(body, 200, {}) is None


def test_paths() -> None:
    assert dialect_of("/v1/chat/completions") is CHAT
    assert dialect_of("/openai/v1/responses?api-version=1") is RESPONSES
    assert dialect_of("/v1/messages/") is MESSAGES
    assert dialect_of("/v1/embeddings") is None
