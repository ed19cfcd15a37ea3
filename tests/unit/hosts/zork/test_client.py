"""`LLMClient`: the required call on the core's wire format."""

import copy
import itertools
import json
from typing import Any

import anyio
import httpx
import pytest
from case_tables import each_case
from hypothesis import given
from hypothesis import strategies as st

from grue.config.settings import GameConfiguration, RetrySettings
from grue.errors import LLMError, MCPConfigError, MCPError
from grue.hosts.zork.chat_messages import FunctionCall, LLMResponse, ToolCall
from grue.hosts.zork.client import CompletionError, LLMClient
from grue.protocol.chat_wire.formats import WireName
from grue.protocol.chat_wire.profile import WireProfile
from grue.protocol.chat_wire.profiles import (
    GENERIC,
    GENERIC_MESSAGES,
    GENERIC_RESPONSES,
    PROFILES,
    tool_support_error,
)
from grue.runtime.loops.sync_edge import BlockingInsideEventLoopWarning
from grue.testing.llm_server import ScriptedLlmServer, error_reply, hang_up, text_reply, tool_calls_reply
from grue.testing.providers.chat_rules import ProviderRules
from grue.transports.llm.endpoint import LlmEndpoint
from grue.transports.llm.exchange import Answered

KEY = "sk-a-very-secret-key"
HELLO = [{"role": "user", "content": "Hello."}]
SYSTEM = {"role": "system", "content": "You play.", "cache_control": {"type": "ephemeral"}}
THINK = {
    "type": "function",
    "function": {
        "name": "mind.think",
        "description": "Think.",
        "parameters": {"type": "object", "properties": {"thought": {"type": "string"}}},
    },
}
CALL = {"id": "a", "type": "function", "function": {"name": "mind.think", "arguments": "{}"}}
HISTORY = [
    SYSTEM,
    *HELLO,
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a", "content": '{"content": 1}'},
]


def client(server: ScriptedLlmServer, **settings: Any) -> LLMClient:
    return LLMClient(
        GameConfiguration(**settings), base_url=server.base_url, api_key=KEY, sleep=lambda _: None
    )


def mocked(
    reply: str = "hello", base_url: str = "https://openrouter.ai/api/v1", wire: WireName | None = None
) -> tuple[LLMClient, list[Any]]:
    """Return a client of an endpoint of that address, and the bodies that it gets to see."""
    bodies: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        choices = [{"message": {"content": reply}}]
        return httpx.Response(200, json={"choices": choices, "output": [], "content": []})

    transport = httpx.MockTransport(answer)
    config = GameConfiguration(wire_format=wire)
    return LLMClient(config, base_url=base_url, api_key=KEY, transport=transport), bodies


# --- Replies ---


def test_r4_2_a_text_is_returned() -> None:
    with ScriptedLlmServer([text_reply("north")]) as server, client(server) as llm:
        reply = llm.chat_completions_create(model="gpt-4o", messages=HELLO)
    assert reply == LLMResponse(
        content="north",
        model="scripted",
        usage={"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        finish_reason="stop",
    )
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_p12_tool_calls_leave_no_content() -> None:
    script = [tool_calls_reply(("mind.think", {"thought": "hm"}), content="I think.", ids=["a"])]
    with ScriptedLlmServer(script) as server, client(server) as llm:
        reply = llm.chat.completions.create(model="gpt-4o", messages=HELLO, tools=[THINK], tool_choice="auto")
    assert reply.content is None
    assert reply.tool_calls == [ToolCall("a", "function", FunctionCall("mind.think", '{"thought": "hm"}'))]
    assert server.requests[0].tool_names == ["mind.think"]


@given(st.none() | st.text(min_size=1), st.lists(st.dictionaries(st.text(), st.integers()), max_size=3))
def test_p12_a_response_has_content_or_calls_and_never_both(
    content: str | None, calls: list[dict[str, int]]
) -> None:
    wire = [
        {**CALL, "id": f"id{n}", "function": {"name": "mind.think", "arguments": json.dumps(arguments)}}
        for n, arguments in enumerate(calls)
    ]
    message = {"content": content, "tool_calls": wire or None}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"choices": [{"message": message}]}))
    with LLMClient(base_url="http://test.invalid/v1", api_key=KEY, transport=transport) as llm:
        reply = llm.chat_completions_create("gpt-4o", HELLO, tools=[THINK])
    assert reply.content is None or reply.tool_calls is None
    if calls:
        assert [json.loads(call.function.arguments) for call in reply.tool_calls or ()] == calls
    else:
        assert reply.content == content


def test_p11_an_id_that_the_history_has_is_replaced() -> None:
    script = [tool_calls_reply(("mind.think", {}), ids=["a"])]
    with ScriptedLlmServer(script) as server, client(server) as llm:
        reply = llm.chat_completions_create("gpt-4o", HISTORY, tools=[THINK])
    assert reply.tool_calls is not None
    assert reply.tool_calls[0].id == "call_2_1"


# --- Requests ---


def test_the_required_history_is_sent_as_strict_providers_want_it() -> None:
    rules = ProviderRules(cache_markers=0)
    with ScriptedLlmServer([text_reply("done")], rules=rules) as server, client(server) as llm:
        llm.chat_completions_create("gpt-4o", HISTORY, tools=[THINK])
    assert server.requests[-1].messages == [
        {"role": "system", "content": "You play."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "a", "content": '{"content": 1}'},
    ]


def test_p15_markers_and_names_go_out_as_the_endpoint_takes_them() -> None:
    llm, bodies = mocked()
    llm.chat_completions_create("gpt-4o", HISTORY, tools=[THINK])
    texts = [message["content"] for message in bodies[0]["messages"][:2]]
    assert all(text[0]["cache_control"] == {"type": "ephemeral"} for text in texts)
    assert all("cache_control" not in message for message in bodies[0]["messages"])
    assert bodies[0]["tools"][0]["function"]["name"] == "mind__think"
    assert bodies[0]["messages"][2]["tool_calls"][0]["function"]["name"] == "mind__think"


KNOWN_TO_REFUSE_MARKERS = {"openai chat completions", "groq", "gemini", "mistral"}
LONGER: dict[str, Any] = {"type": "ephemeral", "ttl": "1h"}
PROFILES_BY_URL = [
    *((f"https://{host}/v1", row) for host, rows in PROFILES.items() for row in rows),
    *(("https://gateway.example/v1", row) for row in (GENERIC, GENERIC_MESSAGES, GENERIC_RESPONSES)),
]


def marked_texts(body: Any) -> list[tuple[str, Any]]:
    """Return the texts of a body that carry a cache marker, with the marker."""
    said = [*(body.get("system") or ()), *(body.get("messages") or body["input"])]
    parts = [said_part for each in said for said_part in parts_of(each)]
    return [(part["text"], part["cache_control"]) for part in parts if "cache_control" in part]


def parts_of(message: Any) -> list[Any]:
    if "text" in message:
        return [message]
    return message["content"] if isinstance(message.get("content"), list) else []


@each_case("url, profile", PROFILES_BY_URL)
def test_r4_7_markers_that_a_caller_has_set_go_out_where_it_has_set_them(
    url: str, profile: WireProfile
) -> None:
    first = {"type": "text", "text": "You play. ", "cache_control": LONGER}
    messages = [
        {"role": "system", "content": [first, {"type": "text", "text": "It is night."}]},
        {"role": "user", "content": "A house."},
        {"role": "user", "content": "A mailbox.", "cache_control": {"type": "ephemeral"}},
    ]
    llm, bodies = mocked(base_url=url, wire=profile.wire)
    llm.chat_completions_create("m", messages)
    expected = [("You play. ", LONGER), ("A mailbox.", {"type": "ephemeral"})]
    dropped = profile.name in KNOWN_TO_REFUSE_MARKERS or profile.wire == "responses"
    assert marked_texts(bodies[0]) == ([] if dropped else expected)
    said = json.dumps(bodies[0])
    assert all(text in said for text in ("You play. ", "It is night.", "A house.", "A mailbox."))


def test_no_more_of_a_callers_markers_go_out_than_endpoints_take() -> None:
    llm, bodies = mocked()
    said = [{"role": "user", "content": str(n), "cache_control": LONGER} for n in range(6)]
    llm.chat_completions_create("m", said)
    assert marked_texts(bodies[0]) == [(str(n), LONGER) for n in range(4)]


@pytest.mark.parametrize("control", [None, "ephemeral", 1, []])
def test_a_marker_that_is_none_is_not_sent(control: Any) -> None:
    llm, bodies = mocked(base_url="http://127.0.0.1:1/v1")
    llm.chat_completions_create("m", [{"role": "user", "content": "Hello.", "cache_control": control}])
    assert bodies[0]["messages"] == [{"role": "user", "content": "Hello."}]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("required", "required"),
        (
            {"type": "function", "function": {"name": "mind.think"}},
            {"type": "function", "function": {"name": "mind__think"}},
        ),
        ("none", None),
    ],
)
def test_the_choice_of_a_tool(choice: Any, sent: Any) -> None:
    llm, bodies = mocked()
    llm.chat_completions_create("gpt-4o", HELLO, tools=[THINK], tool_choice=choice, seed=7, nothing=None)
    assert bodies[0].get("tool_choice") == sent
    assert ("tools" in bodies[0]) == (sent is not None)
    assert bodies[0]["seed"] == 7
    assert "nothing" not in bodies[0]


def test_a_tool_without_a_dot_keeps_its_name() -> None:
    llm, bodies = mocked()
    lookup = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}
    llm.chat_completions_create("gpt-4o", HELLO, tools=[lookup])
    assert bodies[0]["tools"][0]["function"]["name"] == "lookup"


def test_p14_a_response_format_never_goes_with_tools() -> None:
    schema = {"type": "object", "properties": {"action": {"type": "string"}}}
    shape = {"type": "json_schema", "json_schema": {"name": "AgentResponse", "schema": schema}}
    llm, bodies = mocked()
    llm.chat_completions_create("gpt-4o", HELLO, tools=[THINK], response_format=shape)
    llm.chat_completions_create("gpt-4o", HELLO, response_format=shape)
    llm.chat_completions_create("gpt-4o", HELLO, response_format={"type": "json_object"})
    assert "response_format" not in bodies[0]
    assert bodies[1]["response_format"]["json_schema"]["name"] == "AgentResponse"
    assert bodies[1]["response_format"]["json_schema"]["strict"] is True
    assert bodies[2]["response_format"] == {"type": "json_object"}


def test_sampling_and_headers_go_along() -> None:
    with ScriptedLlmServer([text_reply("done")]) as server, client(server) as llm:
        llm.chat_completions_create(
            "m",
            HELLO,
            0.5,
            top_k=3,
            max_tokens=9,
            stop="END",
            extra_headers={"X-Title": "test"},
            name="Agent",
        )
    body = server.requests[0].body
    assert (body["temperature"], body["top_k"], body["max_tokens"], body["stop"]) == (0.5, 3, 9, ["END"])
    assert not {"top_p", "min_p", "name"} & body.keys()
    assert server.requests[0].headers["x-title"] == "test"


def test_what_an_endpoint_teaches_is_learned_once() -> None:
    rules = ProviderRules(strict_names=True, tools_with_history=True, cache_markers=0)
    with ScriptedLlmServer([text_reply("a"), text_reply("b")], rules=rules) as server, client(server) as llm:
        assert llm.chat_completions_create("gpt-4o", HISTORY).content == "a"
        refused = len(server.requests)
        assert llm.chat_completions_create("gpt-4o", HISTORY).content == "b"
    assert (refused, len(server.requests)) == (4, 5)
    assert server.requests[-1].tool_names == ["mind__think"]
    assert server.requests[-1].body["tool_choice"] == "none"


ROLES = st.sampled_from(["system", "user", "assistant"])


@given(st.lists(st.tuples(ROLES, st.text()), min_size=1))
@pytest.mark.slow
def test_every_text_is_sent_in_its_order(said: list[tuple[str, str]]) -> None:
    llm, bodies = mocked(base_url="http://127.0.0.1:1/v1")
    llm.chat_completions_create("m", [{"role": role, "content": text} for role, text in said])
    shown = [(message["role"], message["content"]) for message in bodies[0]["messages"]]
    expected = [
        (role, text if text.strip() else "(empty)")
        for role, text in said
        if (role != "system" or text) and not (role == "assistant" and not text.strip())
    ]
    assert shown == expected


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "text only"),
        ({"role": "wizard", "content": "Hello."}, "role 'wizard'"),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "Each of an assistant's 'tool_calls' has"),
        ({"role": "assistant", "tool_calls": [{**CALL, "id": 3}]}, "all three are texts"),
        ({"role": "assistant", "tool_calls": ["think"]}, "all three are texts"),
        ("Hello.", "Each of the messages is a dictionary"),
        ({"role": "assistant", "tool_calls": 5}, "Each of an assistant's 'tool_calls' has"),
    ],
)
def test_what_cannot_be_sent_is_refused(message: Any, complaint: str) -> None:
    llm, bodies = mocked()
    with pytest.raises(MCPError, match=complaint):
        llm.chat_completions_create("m", [message])
    assert bodies == []


@pytest.mark.parametrize(
    ("setting", "complaint"), [({"stop": 5}, "stop"), ({"response_format": "json"}, "400")]
)
def test_a_setting_of_a_wrong_type_is_refused(setting: dict[str, Any], complaint: str) -> None:
    with ScriptedLlmServer([error_reply(400, "response_format is not an object")] * 3) as server:
        llm = LLMClient(base_url=server.base_url, sleep=lambda _: None)
        with pytest.raises(MCPError, match=complaint):
            llm.chat_completions_create("m", HELLO, **setting)


def test_text_parts_are_joined() -> None:
    llm, bodies = mocked(base_url="http://127.0.0.1:1/v1")
    parts = [{"type": "text", "text": "Hello, "}, {"type": "text", "text": "sailor."}]
    llm.chat_completions_create("m", [{"role": "user", "content": parts}])
    assert bodies[0]["messages"] == [{"role": "user", "content": "Hello, sailor."}]


# --- Failures ---


def test_it_tries_again_and_waits_as_it_is_asked_to() -> None:
    waits: list[float] = []
    script = [
        error_reply(503, "busy"),
        error_reply(429, "slow down", {"Retry-After": "7"}),
        text_reply("done"),
    ]
    retry = RetrySettings(initial_delay=2.0, jitter_factor=0.0)
    with ScriptedLlmServer(script) as server:
        llm = LLMClient(GameConfiguration(retry=retry), base_url=server.base_url, sleep=waits.append)
        assert llm.chat_completions_create("m", HELLO).content == "done"
        llm.close()
    assert waits == [2.0, 7.0]


def test_a_refusal_is_final_and_tells_no_key() -> None:
    with (
        ScriptedLlmServer([error_reply(401, f"bad key {KEY}")]) as server,
        client(server) as llm,
        pytest.raises(LLMError) as raised,
    ):
        llm.chat_completions_create("gpt-4o", HELLO)
    error = raised.value
    assert (error.kind, error.status, error.model) == ("refused", 401, "gpt-4o")
    assert str(error).startswith(f"The model 'gpt-4o' at {server.base_url} failed with status 401: bad key")
    assert KEY not in str(error)
    assert KEY not in repr(llm.llm_settings())
    assert isinstance(error, CompletionError)
    assert error.failure.attempts == 1


def test_half_a_reply_is_no_reply() -> None:
    half = hang_up(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
    with (
        ScriptedLlmServer([half, text_reply("whole")]) as server,
        client(server) as llm,
    ):
        assert llm.chat_completions_create("m", HELLO).content == "whole"


def test_a_cut_reply_is_asked_for_once_more_with_more_room() -> None:
    script = [text_reply("nor", finish_reason="length"), text_reply("north")]
    with ScriptedLlmServer(script) as server, client(server, wire_format="messages") as llm:
        reply = llm.chat_completions_create("m", HELLO)
    assert (reply.content, reply.finish_reason) == ("north", "stop")
    assert reply.usage == {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}
    assert [request.body["max_tokens"] for request in server.requests] == [8192, 32768]


def test_a_limit_of_the_callers_own_is_not_exceeded() -> None:
    script = [text_reply("nor", finish_reason="length")]
    with ScriptedLlmServer(script) as server, client(server, wire_format="messages") as llm:
        assert llm.chat_completions_create("m", HELLO, max_tokens=100).content == "nor"


def test_a_connect_has_a_limit_of_its_own() -> None:
    limits: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        limits.append(request.extensions["timeout"])
        return httpx.Response(200, json={"choices": [{"message": {"content": "hi"}}]})

    retry = RetrySettings(timeout_seconds=60)
    transport = httpx.MockTransport(answer)
    with LLMClient(GameConfiguration(retry=retry), api_key=KEY, transport=transport) as llm:
        llm.chat_completions_create("m", HELLO)
    assert (limits[0]["connect"], limits[0]["read"]) == (10, 60)


def test_nobody_there_is_told() -> None:
    with ScriptedLlmServer([]) as server:
        gone = server.base_url
    retry = RetrySettings(max_retries=1)
    llm = LLMClient(GameConfiguration(retry=retry), base_url=gone, sleep=lambda _: None)
    with pytest.raises(LLMError, match=r"failed after 2 attempts: cannot connect") as raised:
        llm.chat_completions_create("m", HELLO)
    llm.close()
    assert raised.value.kind == "unreachable"


class Drip(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __iter__(self) -> Any:
        yield from itertools.repeat(b" ")

    async def __aiter__(self) -> Any:
        for piece in self:
            yield piece


@pytest.mark.slow
def test_a_reply_that_drips_for_ever_times_out() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Drip()))
    retry = RetrySettings(max_retries=0, timeout_seconds=0.2)
    llm = LLMClient(GameConfiguration(retry=retry), transport=transport)
    with pytest.raises(LLMError) as raised:
        llm.chat_completions_create("m", HELLO)
    assert raised.value.kind == "timed_out"


def test_r12_5_the_refusal_names_the_model_and_both_remedies() -> None:
    assert str(tool_support_error("o1-mini")).splitlines() == [
        "Model 'o1-mini' does not support tool calling.",
        "Please either:",
        "  1. Set mcp.enabled = false in pyproject.toml, or",
        "  2. Use a compatible model (gpt-4, claude-3, etc.)",
    ]


def test_p13_tools_for_a_model_that_cannot_call_any_are_refused_before_a_request() -> None:
    llm, bodies = mocked()
    with pytest.raises(MCPError, match=r"Model 'o1-mini' does not support tool calling\.\nPlease either:"):
        llm.chat_completions_create("o1-mini", HELLO, tools=[THINK])
    assert bodies == []
    forced = GameConfiguration(mcp_force_tool_support=True)
    assert (llm._supports_tool_calling("o1-mini"), llm._supports_tool_calling("o1-mini", forced)) == (
        False,
        True,
    )


# --- The client itself ---


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRUE_API_KEY", KEY)
    assert LLMClient().llm_settings("m", temperature=0.5, stop=["a", "b"]).api_key == KEY
    assert LLMClient().llm_settings().model == GameConfiguration().agent_model
    assert LLMClient().llm_settings("m", temperature=0.5).temperature == 0.5


def test_its_endpoint_shares_address_key_and_transport() -> None:
    llm, _ = mocked(base_url="http://127.0.0.1:9/v1")
    endpoint = llm.endpoint("m", top_p=0.5)
    assert (endpoint.settings.base_url, endpoint.settings.api_key) == ("http://127.0.0.1:9/v1", KEY)
    assert (endpoint.settings.model, endpoint.settings.top_p) == ("m", 0.5)
    assert endpoint._transport is llm._transport


class OnlySync(httpx.BaseTransport):
    def __init__(self, stream: httpx.SyncByteStream) -> None:
        self._stream = stream
        self.closed = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=self._stream)

    def close(self) -> None:
        self.closed = True


class OnlyAsync(httpx.AsyncBaseTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=HI)


class Pieces(httpx.SyncByteStream):
    def __iter__(self) -> Any:
        yield from (HI[:9], HI[9:])


class Endless(httpx.SyncByteStream):
    def __iter__(self) -> Any:
        yield from itertools.repeat(b" ")


HI = b'{"choices": [{"message": {"content": "hi"}}]}'


@pytest.mark.parametrize("transport", [OnlySync(Pieces()), OnlySync(httpx.ByteStream(HI)), OnlyAsync()])
def test_a_transport_may_block_or_not(transport: Any) -> None:
    async def posted(endpoint: LlmEndpoint) -> object:
        async with endpoint:
            return await endpoint.post(b"{}")

    with LLMClient(transport=transport, api_key=KEY) as llm:
        assert llm.chat_completions_create("m", HELLO).content == "hi"
        assert llm.chat_completions_create("m", HELLO).content == "hi"
        answered = anyio.run(posted, llm.endpoint("m"))
        assert isinstance(answered, Answered)
        assert answered.body == HI
        assert not getattr(transport, "closed", False)
    assert getattr(transport, "closed", True)


@pytest.mark.slow
def test_a_blocking_transport_that_drips_for_ever_times_out() -> None:
    retry = RetrySettings(max_retries=0, timeout_seconds=0.2)
    llm = LLMClient(GameConfiguration(retry=retry), api_key=KEY, transport=OnlySync(Endless()))
    with pytest.raises(LLMError) as raised:
        llm.chat_completions_create("m", HELLO)
    assert raised.value.kind == "timed_out"


def test_async_code_is_told_that_it_waits() -> None:
    async def ask() -> str | None:
        with LLMClient(transport=OnlyAsync(), api_key=KEY) as llm:
            return llm.chat_completions_create("m", HELLO).content

    with pytest.warns(BlockingInsideEventLoopWarning, match=r"asyncio\.to_thread"):
        assert anyio.run(ask) == "hi"


def test_a_base_url_that_cannot_be_used_is_refused_at_once() -> None:
    with pytest.raises(MCPConfigError):
        LLMClient(base_url="localhost:8080")


def test_a_copy_of_a_client_is_asked_as_the_client_is() -> None:
    llm, _ = mocked()
    assert (llm.completes_by_itself, copy.copy(llm).completes_by_itself) == (False, False)
    llm.chat.completions.create = lambda **_: None
    assert llm.completes_by_itself


def test_a_closed_client_can_be_used_again() -> None:
    with ScriptedLlmServer([text_reply("one"), text_reply("two")]) as server, client(server) as llm:
        assert llm.chat_completions_create("m", HELLO).content == "one"
        llm.close()
        assert llm.chat_completions_create("m", HELLO).content == "two"
