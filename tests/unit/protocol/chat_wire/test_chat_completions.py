"""Requests of OpenAI-style chat completions."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.messages import (
    AnswerSchema,
    AssistantText,
    CallId,
    ConversationItem,
    SystemText,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserText,
)
from grue.protocol.chat_wire.chat_completions import ChatCompletions
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile
from grue.protocol.chat_wire.profiles import GENERIC, OPENAI_CHAT, OPENROUTER
from grue.protocol.chat_wire.wire_format import Choice, Reply, WireRequest
from grue.protocol.tools.names import WireNames

CHAT = ChatCompletions()
CANONICAL = WireNames("canonical")
EVERYTHING = ModelSettings(
    model="some/model", temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, max_tokens=300, stop=("END",)
)


def parsed(body: bytes) -> Any:
    return json.loads(body)


def body_of(settings: ModelSettings, profile: WireProfile = GENERIC, **parts: Any) -> Any:
    return parsed(CHAT.body(WireRequest(settings=settings, profile=profile, **parts)))


def encoded(item: ConversationItem, *, marked: bool = False, profile: WireProfile = GENERIC) -> Any:
    said = CHAT.encode_items([item], {0} if marked else (), profile)
    assert said.system == ()
    (message,) = said.messages
    return parsed(message)


def as_history(reply: Reply, names: WireNames = CANONICAL) -> Any:
    (message,) = CHAT.encode_reply(reply, names)
    return parsed(message)


def test_the_key_goes_out_as_a_bearer_token() -> None:
    assert CHAT.headers("k") == {"Authorization": "Bearer k"}
    assert CHAT.headers("") == {}


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
        (OPENAI_CHAT, {"temperature": 0.7, "top_p": 0.9, "max_completion_tokens": 300, "stop": ["END"]}),
    ],
)
def test_a_profile_takes_the_sampling_fields_that_it_knows(
    profile: WireProfile, sampling: dict[str, object]
) -> None:
    assert body_of(EVERYTHING, profile) == {"model": "some/model", **sampling, "messages": []}


def test_a_setting_that_is_not_set_is_not_sent() -> None:
    assert body_of(ModelSettings(model="m")) == {"model": "m", "messages": []}
    assert body_of(ModelSettings(model="m", temperature=0.0))["temperature"] == 0.0


def test_p15_a_marked_text_carries_its_cache_marker() -> None:
    assert encoded(SystemText("You play."), marked=True) == {
        "role": "system",
        "content": [{"type": "text", "text": "You play.", "cache_control": {"type": "ephemeral"}}],
    }
    assert encoded(UserText("A lamp.")) == {"role": "user", "content": "A lamp."}


def test_a_tool_result_is_text_under_its_call_id() -> None:
    item = ToolMessage(CallId("c1"), '{"content":1}')
    assert encoded(item) == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": '{"content":1}',
    }


@pytest.mark.parametrize("text", ["", " \n"])
def test_no_text_is_empty(text: str) -> None:
    assert encoded(ToolMessage(CallId("c"), text))["content"] == "(empty)"
    assert encoded(UserText(text))["content"] == "(empty)"
    assert encoded(UserText(text), marked=True)["content"][0]["text"] == "(empty)"


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=30))
def test_any_text_can_be_sent(text: str) -> None:
    for marked in (False, True):
        encoded(UserText(f"x{text}"), marked=marked)


def test_p10_tools_on_offer_and_no_response_format() -> None:
    tool = ToolDefinition(server="think", tool="think", description="Think.", input_schema={})  # type: ignore[arg-type]
    tools = CHAT.encode_tools([tool], OPENAI_CHAT, WireNames("encoded"))
    assert body_of(ModelSettings(model="m"), tools=tools) == {
        "model": "m",
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
    tools = CHAT.encode_tools([], GENERIC, CANONICAL)
    assert tools == b""
    assert body_of(ModelSettings(model="m"), tools=tools) == {"model": "m", "messages": []}


def test_a_long_description_is_cut_where_the_endpoint_has_a_limit() -> None:
    tool = ToolDefinition(server="s", tool="t", description="x" * 50, input_schema={})  # type: ignore[arg-type]
    profile = msgspec.structs.replace(GENERIC, max_description_chars=20)
    (cut,) = parsed(CHAT.encode_tools([tool], profile, CANONICAL))
    assert cut["function"]["description"] == "x" * 19 + "…"
    (whole,) = parsed(CHAT.encode_tools([tool], GENERIC, CANONICAL))
    assert whole["function"]["description"] == "x" * 50


ANSWER = AnswerSchema(
    "AgentResponse[Zork]",
    {"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]},
)


def tail_of(answer: AnswerSchema | None, profile: WireProfile, **parts: Any) -> Any:
    body = body_of(ModelSettings(model="m"), profile, answer=answer, **parts)
    return {key: value for key, value in body.items() if key != "model"}


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
    body = tail_of(ANSWER, GENERIC, tools=b'[{"type":"function"}]', choice=Choice("none"))
    assert body["tools"] == [{"type": "function"}]
    assert body["tool_choice"] == "none"
    assert "response_format" in body


def test_the_history_shows_the_call_as_the_endpoint_knows_it() -> None:
    reply = Reply(
        content="Hm.",
        tool_calls=(ToolCall(call_id=CallId("c1"), name="think.think", arguments='{"a": 1}'),),
        echo={"reasoning_details": [{"type": "x"}], "reasoning_content": "deep"},
    )
    assert as_history(reply, WireNames("encoded")) == {
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
    message = as_history(reply)
    assert message["tool_calls"][0]["function"]["arguments"] == "{}"
    assert message["content"] is None


def test_a_text_goes_back_without_the_reasoning_that_only_calls_need() -> None:
    reply = Reply(content="look", echo={"reasoning_details": [1], "reasoning_content": "deep"})
    assert as_history(reply) == {
        "role": "assistant",
        "content": "look",
        "reasoning_details": [1],
    }


@pytest.mark.parametrize("content", [None, "", " \n "])
def test_a_reply_without_anything_leaves_no_message(content: str | None) -> None:
    assert CHAT.encode_reply(Reply(content=content), CANONICAL) == ()


def test_what_json_cannot_say_is_replaced() -> None:
    assert encoded(UserText("a \ud800 lamp"))["content"] == "a \ufffd lamp"
    reply = Reply(content="look", echo={"reasoning_details": ["\udfff", float("nan")]})
    assert as_history(reply)["reasoning_details"] == ["\ufffd", None]


@pytest.mark.parametrize(
    ("settings", "profile", "fields"),
    [
        ({"reasoning_effort": "low"}, GENERIC, {"reasoning_effort": "low"}),
        ({"reasoning_tokens": 900}, GENERIC, {}),
        ({"reasoning_effort": "low"}, OPENROUTER, {"reasoning": {"effort": "low"}}),
        (
            {"reasoning_effort": "low", "reasoning_tokens": 900},
            OPENROUTER,
            {"reasoning": {"max_tokens": 900}},
        ),
        ({}, OPENROUTER, {}),
        ({"reasoning_effort": "low"}, msgspec.structs.replace(GENERIC, reasoning="none"), {}),
    ],
)
def test_how_much_to_think(settings: dict[str, Any], profile: WireProfile, fields: object) -> None:
    body = body_of(ModelSettings(model="m", **settings), profile)
    assert body == {"model": "m", "messages": [], **fields}  # type: ignore[dict-item]


def test_instructions_come_from_whom_the_profile_says() -> None:
    profile = msgspec.structs.replace(GENERIC, system_role="developer")
    assert encoded(SystemText("You play."), profile=profile)["role"] == "developer"


def test_what_the_assistant_is_taken_to_have_said() -> None:
    assert encoded(AssistantText("Two.")) == {"role": "assistant", "content": "Two."}


def test_a_tool_can_be_chosen_by_its_name() -> None:
    body = body_of(ModelSettings(model="m"), tools=b"[{}]", choice=Choice("named", "s__t"))
    assert body["tool_choice"] == {"type": "function", "function": {"name": "s__t"}}


def test_further_fields_outrank_those_of_the_settings_and_come_once() -> None:
    raw = CHAT.body(
        WireRequest(
            settings=EVERYTHING, profile=GENERIC, answer=ANSWER, extra={"top_k": 1, "response_format": {}}
        )
    )
    assert (raw.count(b'"top_k"'), raw.count(b'"response_format"')) == (1, 1)
    assert (parsed(raw)["top_k"], parsed(raw)["response_format"]) == (1, {})


def test_a_stream_is_asked_for_with_its_usage() -> None:
    body = body_of(ModelSettings(model="m"), stream=True)
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert "stream" not in body_of(ModelSettings(model="m"))
