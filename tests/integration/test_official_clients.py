"""The official clients of OpenAI and Anthropic talk to the scripted endpoint: its formats are real."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from grue.testing.llm_faults import error_in_stream, rate_limited
from grue.testing.llm_server import ScriptedLlmServer, completion, refusal_reply, text_reply, tool_calls_reply

pytestmark = pytest.mark.slow  # importing the packages takes seconds

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
LONG = "You are in a dark cave. Zürich is 6.000 km away — 🐉 is near. " * 4
USAGE = {
    "prompt_tokens": 30,
    "completion_tokens": 9,
    "total_tokens": 39,
    "prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 5},
}
TWO_CALLS = tool_calls_reply(
    ("echo", {"text": LONG}), ("look", ""), content="Let me see.", reasoning_content="A cave, then. " * 9
)


@pytest.fixture
def server() -> Iterator[ScriptedLlmServer]:
    with ScriptedLlmServer([TWO_CALLS, text_reply(LONG)]) as server:
        yield server


def openai_client(server: ScriptedLlmServer) -> Any:
    openai = pytest.importorskip("openai", reason="openai is not installed: pip install openai")
    return openai.OpenAI(base_url=server.base_url, api_key="sk-made-up", max_retries=0, timeout=60)


def anthropic_client(server: ScriptedLlmServer) -> Any:
    anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed: pip install anthropic")
    url = server.base_url.removesuffix("/v1")
    return anthropic.Anthropic(base_url=url, api_key="sk-made-up", max_retries=0, timeout=60)


CHAT_TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("echo", "look")
]
FLAT_TOOLS = [
    {"type": "function", "name": name, "parameters": SCHEMA, "strict": False} for name in ("echo", "look")
]
ANTHROPIC_TOOLS = [{"name": name, "input_schema": SCHEMA} for name in ("echo", "look")]


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_turn_by_chat_completions(server: ScriptedLlmServer, streamed: bool) -> None:
    asked = {"model": "scripted", "tools": CHAT_TOOLS}
    messages: list[Any] = [{"role": "user", "content": "Where am I?"}]
    with openai_client(server) as client:

        def ask() -> Any:
            if not streamed:
                return client.chat.completions.create(messages=messages, **asked)
            more = {"stream_options": {"include_usage": True}}
            with client.chat.completions.stream(messages=messages, **asked, **more) as stream:
                return stream.get_final_completion()

        first = ask()
        said = first.choices[0].message
        assert [call.function.name for call in said.tool_calls] == ["echo", "look"]
        assert json.loads(said.tool_calls[0].function.arguments) == {"text": LONG}
        assert (said.content, first.usage.total_tokens) == ("Let me see.", 15)
        calls = [
            {
                **call.model_dump(include={"id", "type", "function"}),
                "function": {"name": "echo", "arguments": "{}"},
            }
            for call in said.tool_calls
        ]
        messages.append({"role": "assistant", "content": said.content, "tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in calls]
        last = ask()
    assert last.choices[0].message.content == LONG
    assert last.choices[0].finish_reason == "stop"
    assert [request.refused for request in server.requests] == [None, None]


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_turn_by_responses(server: ScriptedLlmServer, streamed: bool) -> None:
    asked = {"model": "scripted", "tools": FLAT_TOOLS, "instructions": "Play.", "store": False}
    asked |= {"include": ["reasoning.encrypted_content"]}
    items: list[Any] = [{"role": "user", "content": "Where am I?"}]
    with openai_client(server) as client:

        def ask() -> Any:
            if not streamed:
                return client.responses.create(input=items, **asked)
            with client.responses.stream(input=items, **asked) as stream:
                return stream.get_final_response()

        first = ask()
        assert [item.type for item in first.output] == [
            "reasoning",
            "message",
            "function_call",
            "function_call",
        ]
        assert first.output[0].summary[0].text == "A cave, then. " * 9
        assert json.loads(first.output[2].arguments) == {"text": LONG}
        # The stream's parser adds fields of its own to what it read.
        items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in first.output]
        items[-2]["arguments"] = items[-1]["arguments"] = "{}"
        items[2]["content"] = items[2]["content"][0]["text"]
        for call in first.output[2:]:
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": "ok"})
        last = ask()
    assert (last.output_text, last.status, last.usage.total_tokens) == (LONG, "completed", 15)
    assert [request.refused for request in server.requests] == [None, None]
    assert [message["role"] for message in server.requests[1].messages] == (
        ["system", "user", "assistant", "tool", "tool"]
    )


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_turn_by_messages(server: ScriptedLlmServer, streamed: bool) -> None:
    asked = {"model": "scripted", "tools": ANTHROPIC_TOOLS, "system": "Play.", "max_tokens": 4000}
    messages: list[Any] = [{"role": "user", "content": "Where am I?"}]
    with anthropic_client(server) as client:

        def ask() -> Any:
            if not streamed:
                return client.messages.create(messages=messages, **asked)
            with client.messages.stream(messages=messages, **asked) as stream:
                return stream.get_final_message()

        first = ask()
        assert [block.type for block in first.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert first.content[0].thinking == "A cave, then. " * 9
        assert [block.input for block in first.content[2:]] == [{"text": LONG}, {}]
        assert first.stop_reason == "tool_use"
        messages.append({"role": "assistant", "content": [sent(block) for block in first.content]})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "ok"} for block in first.content[2:]
        ]
        messages.append({"role": "user", "content": results})
        last = ask()
    assert (last.content[0].text, last.stop_reason) == (LONG, "end_turn")
    assert (last.usage.input_tokens, last.usage.output_tokens) == (10, 5)
    assert [request.refused for request in server.requests] == [None, None]
    assert server.requests[1].messages[2]["reasoning_content"] == "A cave, then. " * 9


def sent(block: Any) -> Any:
    return block.model_dump(exclude_none=True)


def test_usage_and_refusals_are_read_as_they_are_meant() -> None:
    script = [completion({"content": "hi"}, usage=USAGE), refusal_reply("I must not.")]
    with ScriptedLlmServer(lambda asked: script[("no" in str(asked.body))]) as server:
        with openai_client(server) as client:
            counted = client.responses.create(model="m", input="yes").usage
            refused = client.responses.create(model="m", input="no").output[0].content[0]
        with anthropic_client(server) as client:
            of = {"model": "m", "max_tokens": 100}
            cached = client.messages.create(messages=[{"role": "user", "content": "yes"}], **of).usage
            stopped = client.messages.create(messages=[{"role": "user", "content": "no"}], **of)
    assert (counted.input_tokens, counted.input_tokens_details.cached_tokens) == (30, 20)
    assert counted.output_tokens_details.reasoning_tokens == 5
    assert (cached.input_tokens, cached.cache_read_input_tokens, cached.cache_creation_input_tokens) == (
        6,
        20,
        4,
    )
    assert cached.output_tokens_details.thinking_tokens == 5
    assert (refused.type, refused.refusal) == ("refusal", "I must not.")
    assert (stopped.stop_reason, stopped.stop_details.explanation) == ("refusal", "I must not.")


def test_errors_are_those_of_the_packages() -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed: pip install openai")
    anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed: pip install anthropic")
    user = [{"role": "user", "content": "hi"}]
    with ScriptedLlmServer(lambda _: rate_limited(7)) as server:
        with (
            openai_client(server) as client,
            pytest.raises(openai.RateLimitError, match="Rate limit exceeded"),
        ):
            client.responses.create(model="m", input="hi")
        with anthropic_client(server) as client, pytest.raises(anthropic.RateLimitError) as limited:
            client.messages.create(model="m", max_tokens=9, messages=user)
        assert limited.value.body["error"]["type"] == "rate_limit_error"
    with ScriptedLlmServer(lambda _: error_in_stream(text_reply(LONG))) as server:
        with openai_client(server) as client, pytest.raises(openai.APIError, match="broke off"):
            [*client.chat.completions.create(model="m", messages=user, stream=True)]
        with anthropic_client(server) as client, pytest.raises(anthropic.APIError, match="broke off"):
            [*client.messages.create(model="m", max_tokens=9, messages=user, stream=True)]


def test_the_models_are_listed() -> None:
    models = [{"id": "one", "supported_parameters": ["tools"]}, {"id": "two"}]
    with ScriptedLlmServer([], models=models) as server:
        with openai_client(server) as client:
            listed = [*client.models.list()]
        with anthropic_client(server) as client:
            assert [model.id for model in client.models.list()] == ["one", "two"]
    assert [model.id for model in listed] == ["one", "two"]
    assert listed[0].supported_parameters == ["tools"]
    assert len(server.listings) == 2
    assert server.requests == []
