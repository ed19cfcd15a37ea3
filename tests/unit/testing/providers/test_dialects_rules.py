"""What the scripted endpoint refuses in the way of one provider, and the reasoning that it wants back."""

import copy
from typing import Any

import httpx
import pytest
from case_tables import each_case

from grue.testing.llm_server import LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.testing.providers.chat_rules import ProviderRules, sealed
from grue.testing.providers.dialects import DIALECTS, Dialect

Json = dict[str, Any]
MESSAGES, RESPONSES = DIALECTS["messages"], DIALECTS["responses"]
SCHEMA = {"type": "object", "properties": {}}
MARK = {"type": "ephemeral"}
TEXT = {"type": "text", "text": "hi"}
USE = {"type": "tool_use", "id": "a", "name": "t", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "1"}
ANTHROPIC: Json = {
    "model": "m",
    "max_tokens": 2000,
    "system": "Play.",
    "messages": [
        {"role": "user", "content": [TEXT]},
        {"role": "assistant", "content": [TEXT, USE]},
        {"role": "user", "content": [RESULT, TEXT]},
    ],
    "tools": [{"name": "t", "input_schema": SCHEMA}],
}
CALL = {"type": "function_call", "call_id": "a", "name": "t", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "1"}
USER = {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}
OPENAI: Json = {
    "model": "m",
    "input": [USER, CALL, OUTPUT, {"role": "user", "content": "go on"}],
    "tools": [{"type": "function", "name": "t", "parameters": SCHEMA, "strict": False}],
}


def changed(good: Json, path: str, value: object) -> Json:
    """Return a good request with one field set, or taken out where the value is `...`."""
    body = copy.deepcopy(good)
    *steps, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    target: Any = body
    for step in steps:
        target = target[step]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return body


def refused(dialect: Dialect, body: Json) -> str:
    _, refusal = dialect.read(body, ProviderRules(), {})
    return "" if refusal is None else refusal.words


def test_good_requests_are_accepted() -> None:
    assert refused(MESSAGES, ANTHROPIC) == ""
    assert refused(RESPONSES, OPENAI) == ""
    assert refused(MESSAGES, changed(ANTHROPIC, "tools/0/name", "x" * 128)) == ""
    assert refused(RESPONSES, changed(OPENAI, "input", "hi")) == ""


@each_case(
    "path, value, said",
    [
        ("max_tokens", ..., "max_tokens: Field required"),
        ("max_tokens", 0, "greater than or equal to 1"),
        ("messages", ..., "messages: Field required"),
        ("messages", [], "at least one message"),
        ("messages/0", "hi", "wrong type"),
        ("max_completion_tokens", 5, "max_completion_tokens: Extra inputs are not permitted"),
        ("messages/0/role", "system", "top-level `system` parameter"),
        ("messages/0/role", "tool", "Input should be 'user' or 'assistant'"),
        ("messages/0/name", "me", "messages.0.name: Extra inputs"),
        ("messages/0/content", [], "non-empty content"),
        ("messages/0/content/0/text", " ", "text content blocks must be non-empty"),
        ("messages/0/content/0/mark", 1, "messages.0.content.0.text.mark: Extra inputs"),
        ("messages/0/content/0", {"type": "input_text"}, "not allowed in `user` messages"),
        ("messages/0", ..., 'must use the "user" role'),
        ("messages/1/content/1/name", "s.t", "String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"),
        ("messages/1/content/1/id", "a.b", "String should match pattern '^[a-zA-Z0-9_-]+$'"),
        ("messages/1/content/1/input", "{}", "valid dictionary"),
        ("messages/1/content", [USE, USE], "must be unique"),
        ("messages/2", ..., "does not support assistant message prefill"),
        ("messages/2/content", [TEXT, RESULT], "without `tool_result` blocks immediately after: a"),
        ("messages/2/content", [TEXT], "without `tool_result` blocks immediately after: a"),
        ("messages/1/content", [TEXT], "unexpected `tool_use_id`"),
        ("messages/2/content/0/content", "", "must be non-empty"),
        ("tools", ..., "must define tools"),
        ("tools", [], "must define tools"),
        ("tools/0/name", "s.t", "String should match pattern"),
        ("tools/0/input_schema", {}, "tools.0.custom.input_schema.type"),
        ("tools/0/parameters", {}, "tools.0.custom.parameters: Extra inputs"),
        ("tool_choice", {"type": "required"}, "'required' does not match"),
        ("temperature", 1.5, "range: 0..1"),
        ("thinking", {"type": "enabled", "budget_tokens": 99}, "greater than or equal to 1024"),
        ("thinking", {"type": "enabled", "budget_tokens": 5000}, "must be greater than"),
        ("system", [{**TEXT, "cache_control": MARK}] * 5, "maximum of 4"),
        ("messages", "hi", "at least one message"),
    ],
)
def test_what_anthropic_refuses(path: str, value: object, said: str) -> None:
    assert said in refused(MESSAGES, changed(ANTHROPIC, path, value))


def test_anthropics_rules_of_several_fields() -> None:
    thinking = {**ANTHROPIC, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    assert "only be set to 1" in refused(MESSAGES, {**thinking, "temperature": 0.5})
    for asked in (thinking, {**ANTHROPIC, "thinking": {"type": "adaptive"}}):
        assert "forces tool use" in refused(MESSAGES, {**asked, "tool_choice": {"type": "any"}})
    marked = changed(ANTHROPIC, "tools/0/cache_control", MARK)
    marked["system"] = [{**TEXT, "cache_control": MARK}] * 3
    assert refused(MESSAGES, marked) == ""
    marked["messages"][2]["content"][0]["cache_control"] = MARK
    assert "Found 5" in refused(MESSAGES, marked)


@each_case(
    "path, value, said",
    [
        ("messages", [], "'messages'. In the Responses API, this parameter has moved to 'input'"),
        ("max_tokens", 5, "moved to 'max_output_tokens'"),
        ("response_format", {}, "moved to 'text.format'"),
        ("stop", ["x"], "Unknown parameter: 'stop'"),
        ("input", ..., "Missing required parameter: 'input'"),
        ("input", [], "Missing required parameter: 'input'"),
        ("max_output_tokens", 1, "Expected a value >= 16, but got 1"),
        ("tools", [], "Invalid 'tools': empty array"),
        (
            "tools/0",
            {"type": "function", "function": {"name": "t"}},
            "Missing required parameter: 'tools[0].name'",
        ),
        ("tools/0/name", "s.t", "does not match pattern"),
        ("tools/0/type", "web", "Invalid value: 'web'"),
        ("tools/0/strict", True, "Invalid schema for function 't'"),
        ("input/0/role", "narrator", "Invalid value: 'narrator'"),
        ("input/0/content/0/type", "text", "Supported values are: 'input_text'"),
        ("input/0/content/0/cache_control", MARK, "Unknown parameter: 'input[0].content[0].cache_control'"),
        ("input/0/name", "me", "Unknown parameter: 'input[0].name'"),
        ("input/1/name", "s.t", "does not match pattern"),
        ("input/1/id", "call_1", "Expected an ID that begins with 'fc'"),
        ("input/1/type", "tool_call", "Invalid value: 'tool_call'"),
        ("input/1", ..., "No tool call found for function call output with call_id a"),
        ("input/2", ..., "No tool output found for function call a"),
        ("input/3", REASONING, "Item with id 'rs_1' not found"),
        ("input/1/arguments", "{", "expected a JSON object"),
        ("input", 5, "wrong type"),
    ],
)
def test_what_openais_responses_refuse(path: str, value: object, said: str) -> None:
    assert said in refused(RESPONSES, changed(OPENAI, path, value))


def post(server: ScriptedLlmServer, path: str, body: Json, **headers: str) -> httpx.Response:
    with_key = {"x-api-key": "sk-made-up", "anthropic-version": "2023-06-01", **headers}
    sent = {name: value for name, value in with_key.items() if value}
    return httpx.post(server.base_url + path, json=body, headers=sent, trust_env=False, timeout=60)


@pytest.mark.slow
def test_anthropic_wants_a_key_and_a_version() -> None:
    with ScriptedLlmServer(lambda _: text_reply("hi")) as server:
        without_key = post(server, "/messages", ANTHROPIC, **{"x-api-key": ""})
        bearer = post(server, "/messages", ANTHROPIC, **{"x-api-key": "", "Authorization": "Bearer made-up"})
        without_version = post(server, "/messages", ANTHROPIC, **{"anthropic-version": ""})
    assert (without_key.status_code, without_key.json()["error"]["type"]) == (401, "authentication_error")
    assert bearer.status_code == 200
    assert (without_version.status_code, "header is required" in without_version.text) == (400, True)
    refused = server.requests[0].refused
    assert refused == "x-api-key header is required (the scripted endpoint takes any: api_key='test')"


def reasoned(request: LlmRequest) -> Any:
    if request.messages[-1]["role"] == "tool":
        return text_reply("done")
    return tool_calls_reply(("t", {}), ("t", {}), reasoning_content="I have thought about it.")


def answered(dialect: Dialect, body: Json, said: Json) -> Json:
    """Return the request that goes on from a reply: what was said as it came, and each call answered."""
    body = copy.deepcopy(body)
    if dialect is MESSAGES:
        results = [{**RESULT, "tool_use_id": block["id"]} for block in said["content"] if "input" in block]
        said_so = {"role": "assistant", "content": said["content"]}
        body["messages"] = [body["messages"][0], said_so, {"role": "user", "content": results}]
    else:
        outputs = [{**OUTPUT, "call_id": item["call_id"]} for item in said["output"] if "call_id" in item]
        body["input"] = [USER, *said["output"], *outputs]
    return body


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("", None, None),
        ("messages/1/content/0", ..., "Expected `thinking` or `redacted_thinking`, but found `tool_use`"),
        ("messages/1/content/0/signature", "changed", "Invalid `signature` in `thinking` block"),
        ("messages/1/content/0/thinking", "changed", "Invalid `signature` in `thinking` block"),
        ("messages/1/content/0/signature", ..., "wrong type"),
    ],
)
@pytest.mark.slow
def test_anthropic_wants_its_thinking_back_as_it_was(path: str, value: object, said: str | None) -> None:
    with ScriptedLlmServer(reasoned) as server:
        first = post(server, "/messages", changed(ANTHROPIC, "messages", ANTHROPIC["messages"][:1])).json()
        again = answered(MESSAGES, ANTHROPIC, first)
        last = post(server, "/messages", changed(again, path, value) if path else again)
    assert first["content"][0]["thinking"] == "I have thought about it."
    assert (last.status_code, (said or "done") in last.text) == (400 if said else 200, True)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("", None, None),
        ("input/1", ..., "was provided without its required 'reasoning' item: 'rs_"),
        ("input/1/encrypted_content", "gAAAAchanged", "could not be verified"),
        ("input/1/encrypted_content", sealed("I have thought of something else."), "could not be verified"),
        ("input/1/encrypted_content", ..., "not persisted when `store` is set to false"),
        ("input/1/summary", [], "does not match"),
    ],
)
@pytest.mark.slow
def test_openai_wants_its_reasoning_back_as_it_was(path: str, value: object, said: str | None) -> None:
    asked = {**OPENAI, "store": False, "include": ["reasoning.encrypted_content"]}
    with ScriptedLlmServer(reasoned) as server:
        first = post(server, "/responses", {**asked, "input": [USER]}).json()
        again = answered(RESPONSES, asked, first)
        last = post(server, "/responses", changed(again, path, value) if path else again)
    assert (last.status_code, (said or "done") in last.text) == (400 if said else 200, True), last.text


@pytest.mark.slow
def test_reasoning_does_not_stand_alone() -> None:
    with ScriptedLlmServer(lambda _: text_reply("hi", reasoning_content="Hm.")) as server:
        reasoning, said = post(server, "/responses", {**OPENAI, "input": [USER]}).json()["output"]
        last = [
            post(server, "/responses", {**OPENAI, "input": [USER, reasoning, *items]}).text
            for items in ([USER], [], [said, USER])
        ]
    assert ["was provided without its following item" in text for text in last] == [True, True, False]
    assert server.requests[-1].refused is None


@pytest.mark.slow
def test_openai_keeps_reasoning_that_it_may_store() -> None:
    with ScriptedLlmServer(reasoned) as server:
        first = post(server, "/responses", {**OPENAI, "input": [USER]}).json()
        assert "encrypted_content" not in first["output"][0]
        last = post(server, "/responses", answered(RESPONSES, OPENAI, first))
    assert last.status_code == 200


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.slow
def test_some_providers_of_chat_completions_want_it_back(echo: bool) -> None:
    tools = [{"type": "function", "function": {"name": "t", "parameters": SCHEMA}}]
    user = {"role": "user", "content": "hi"}
    with ScriptedLlmServer(reasoned, rules=ProviderRules(echo_reasoning=echo)) as server:
        body: Json = {"model": "m", "messages": [user], "tools": tools}
        said = post(server, "/chat/completions", body).json()["choices"][0]["message"]
        answers = [
            {"role": "tool", "tool_call_id": call["id"], "content": "1"} for call in said["tool_calls"]
        ]
        for message in (said, {**said, "reasoning_content": "changed"}):
            body["messages"] = [user, message, *answers]
            assert post(server, "/chat/completions", body).status_code in (200, 400)
    refusals = [request.refused for request in server.requests]
    wanted = "The `reasoning_content` in the thinking mode must be passed back to the API." if echo else None
    assert refusals == [None, None, wanted]


@pytest.mark.slow
def test_reasoning_is_wanted_back_only_in_the_format_in_which_it_was_sent() -> None:
    """A conversation that goes on in another format is sent without it."""
    tools = [{"type": "function", "function": {"name": "t", "parameters": SCHEMA}}]
    user = {"role": "user", "content": "hi"}
    with ScriptedLlmServer(reasoned) as server:
        asked = {"model": "m", "messages": [user], "tools": tools}
        said = post(server, "/chat/completions", asked).json()["choices"][0]["message"]
        called = said["tool_calls"][0]["id"]
        call = {"type": "function_call", "call_id": called, "name": "t", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": called, "output": "1"}
        post(server, "/responses", {**OPENAI, "input": [user, call, output]})
        use = {"type": "tool_use", "id": called, "name": "t", "input": {}}
        result = {"type": "tool_result", "tool_use_id": called, "content": "1"}
        turns = [user, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        post(server, "/messages", {**ANTHROPIC, "messages": turns})
    assert [request.refused for request in server.requests] == [None, None, None]


@pytest.mark.slow
def test_a_script_sees_one_conversation_whatever_the_format() -> None:
    with ScriptedLlmServer(lambda request: text_reply(request.messages[-1]["content"])) as server:
        post(server, "/messages", ANTHROPIC)
        post(server, "/responses", changed(OPENAI, "input/3/content", "hi"))
    ours, theirs = server.requests
    assert [request.dialect for request in server.requests] == ["messages", "responses"]
    assert ours.messages[-2:] == theirs.messages[-2:]
    assert ours.messages[-1] == {"role": "user", "content": "hi"}
    assert ours.tool_names == theirs.tool_names == ["t"]
    assert (ours.body, ours.chat["max_tokens"]) == (ANTHROPIC, 2000)
