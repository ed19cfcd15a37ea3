"""The LLM actor against a real HTTP server on loopback, and against faults that no server makes easily."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx
import pytest
from llm_desk import KEY, LISTING, desk, notes, settings_for
from msgspec.structs import replace
from promises import cancelled_when

import grue.transports.llm.exchange as llm_exchange
from grue.actors.llm import LlmEndpoint
from grue.messages import (
    AnswerSchema,
    CompletionFailed,
    CompletionRetried,
    FormAdapted,
    OfferTools,
    RequireAnswer,
    SettingsLeftOut,
    ToolMessage,
    UserText,
)
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.profiles import GENERIC
from grue.protocol.retry import RetryPolicy
from grue.testing.llm_server import (
    LlmReply,
    LlmRequest,
    Script,
    ScriptedLlmServer,
    error_reply,
    hang_up,
    json_reply,
    silence,
    text_reply,
    tool_calls_reply,
)
from grue.testing.providers.chat_rules import ProviderRules

pytestmark = pytest.mark.anyio


async def failure_of(
    script: Script, lines: list[bytes] | None = None, **changes: Any
) -> tuple[CompletionFailed, ScriptedLlmServer]:
    with ScriptedLlmServer(script) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url, **changes)), lines) as agent:
            return await agent.failure(), server


def retries(lines: list[bytes]) -> list[CompletionRetried]:
    return notes(lines, CompletionRetried)


# --- Conversations ---


async def test_p14_a_turn_over_http() -> None:
    script = [
        tool_calls_reply(("think.think", {"thought": "hm"}), content="Hm."),
        text_reply('{"action":"look"}'),
    ]
    with ScriptedLlmServer(script) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url, temperature=0.2))) as agent:
            first = await agent.reply()
            (call,) = first.tool_calls
            assert (call.name, call.arguments, first.content) == ("think.think", '{"thought": "hm"}', "Hm.")
            answer = AnswerSchema("Answer", {"type": "object", "properties": {"action": {"type": "string"}}})
            final = await agent.reply(
                (ToolMessage(call.call_id, '{"content":"ok"}'), UserText("Finish.")), RequireAnswer(answer)
            )
        assert final.content == '{"action":"look"}'
        assert (final.request, final.model, final.usage.input_tokens) == (2, "scripted", 10)
        assert final.elapsed_s > 0
        one, two = server.requests
        assert (one.tool_names, one.body["tool_choice"], one.body["temperature"]) == (
            ["think.think"],
            "auto",
            0.2,
        )
        assert "response_format" not in one.body
        assert "tools" not in two.body
        assert [message["role"] for message in two.messages] == [
            "system",
            "user",
            "assistant",
            "tool",
            "user",
        ]
        assert two.raw.startswith(one.raw.partition(b'],"tools"')[0])
        assert one.headers["authorization"] == f"Bearer {KEY}"
        assert server.accepted == 1


async def test_conversations_are_kept_apart_and_call_ids_are_unique_across_them() -> None:
    script = [tool_calls_reply(("think.think", {}), ids=["same"]) for _ in range(2)]
    with ScriptedLlmServer(script) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url))) as agent:
            first = await agent.reply()
            second = await agent.reply((UserText("Sampling."),), OfferTools(()), conversation="sampling")
        assert first.tool_calls[0].call_id == "same"
        assert second.tool_calls[0].call_id == "call_2_1"
        assert server.requests[1].messages == [{"role": "user", "content": "Sampling."}]


async def test_a_refused_name_is_encoded_once_and_remembered_for_the_run() -> None:
    script = [tool_calls_reply(("think__think", {})), text_reply("look"), text_reply("again")]
    lines: list[bytes] = []
    with ScriptedLlmServer(script, rules=ProviderRules(strict_names=True)) as server:
        endpoint = LlmEndpoint(settings_for(server.base_url))
        async with desk(endpoint, lines) as agent:
            first = await agent.reply()
            assert first.tool_calls[0].name == "think.think"
            await agent.reply((ToolMessage(first.tool_calls[0].call_id, "1"),), OfferTools())
        async with desk(endpoint) as later_turn:
            await later_turn.reply()
        assert [request.tool_names for request in server.requests] == [
            ["think.think"],
            ["think__think"],
            ["think__think"],
            ["think__think"],
        ]
        assert server.requests[2].messages[2]["tool_calls"][0]["function"]["name"] == "think__think"
    (note,) = retries(lines)
    assert (note.delay_s, note.failure.status) == (0.0, 400)


async def test_a_lesson_uses_up_no_retry() -> None:
    script = [error_reply(503, "Overloaded"), text_reply("look")]
    retry = RetryPolicy(max_retries=1, initial_delay_s=0.0)
    with ScriptedLlmServer(script, rules=ProviderRules(strict_names=True)) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url, retry=retry))) as agent:
            assert (await agent.reply()).content == "look"
        assert len(server.requests) == 3


async def test_a_name_learned_in_one_conversation_holds_in_the_others() -> None:
    script = [text_reply("one"), text_reply("two"), text_reply("three")]
    with ScriptedLlmServer(script, rules=ProviderRules(strict_names=True)) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url))) as agent:
            await agent.reply((UserText("hi"),), OfferTools(()), conversation="other")
            await agent.reply()
            await agent.reply((UserText("now with tools"),), LISTING, conversation="other")
        assert [request.refused is None for request in server.requests] == [True, False, True, True]


async def test_a_retry_goes_where_its_form_belongs_though_another_conversation_has_learned_another() -> None:
    def busy_once(_: LlmRequest) -> LlmReply:
        if len(server.requests) > 1:
            return text_reply("ok")
        endpoint.profile = replace(endpoint.profile, wire="responses", names="encoded")
        return error_reply(503, "busy")

    with ScriptedLlmServer(busy_once) as server:
        endpoint = LlmEndpoint(settings_for(server.base_url))
        async with desk(endpoint) as agent:
            assert (await agent.reply()).content == "ok"
            assert (await agent.reply((UserText("And?"),))).content == "ok"
        wires = ["messages" in request.body for request in server.requests]
    assert wires == [True, True, False]


async def test_a_gate_is_told_the_limit_that_the_request_sends() -> None:
    told: list[int | None] = []

    class Gate:
        async def admit(self, wanted: llm_exchange.WantedRequest) -> str:
            told.append(wanted.max_tokens)
            return "no"

    llm_exchange.set_request_gate(Gate())
    try:
        profile = replace(GENERIC, default_max_tokens=8192)
        async with desk(LlmEndpoint(settings_for("http://127.0.0.1:1/v1", profile=profile))) as agent:
            await agent.failure()
    finally:
        llm_exchange.set_request_gate(None)
    assert told == [8192]


async def test_an_endpoint_that_wants_tools_with_history_teaches_it() -> None:
    script = [tool_calls_reply(("think.think", {})), text_reply("look")]
    with ScriptedLlmServer(script, rules=ProviderRules(tools_with_history=True)) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url))) as agent:
            first = await agent.reply()
            final = await agent.reply((ToolMessage(first.tool_calls[0].call_id, "1"),), RequireAnswer())
    assert final.content == "look"
    assert server.requests[-1].body["tool_choice"] == "none"


# --- Failures ---


async def test_settings_that_are_left_out_are_noted_once_each() -> None:
    lines: list[bytes] = []
    refused = error_reply(400, "Unsupported parameter: 'temperature' is not supported with this model.")
    with ScriptedLlmServer([text_reply("a"), refused, text_reply("b"), text_reply("c")]) as server:
        profile = replace(GENERIC, sampling=frozenset({"temperature"}))
        settings = settings_for(server.base_url, temperature=0.2, top_k=4, profile=profile)
        async with desk(LlmEndpoint(settings), lines) as agent:
            for _ in range(3):
                await agent.reply((UserText("Go on."),))
    assert [note.settings for note in notes(lines, SettingsLeftOut)] == [("top_k",), ("temperature",)]
    assert [("temperature" in asked.body, "top_k" in asked.body) for asked in server.requests] == [
        (True, False),
        (True, False),
        (False, False),
        (False, False),
    ]


async def test_another_form_of_request_is_noted_with_what_is_known_of_the_endpoint_now() -> None:
    lines: list[bytes] = []
    refused = error_reply(400, "Invalid 'tools[0].function.name': it does not match '^[a-zA-Z0-9_-]+$'.")
    with ScriptedLlmServer([refused, text_reply("ok")]) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url, profile=GENERIC)), lines) as agent:
            await agent.reply()
    (adapted,) = notes(lines, FormAdapted)
    assert (adapted.request, adapted.changed, adapted.rewritten) == (1, {"names": "encoded"}, True)


async def test_a_retry_is_noted_and_waits_as_long_as_the_endpoint_asks() -> None:
    script = [
        error_reply(503, "Overloaded", {"Retry-After": "0.05"}),
        error_reply(429, "Slow down"),
        text_reply("look"),
    ]
    lines: list[bytes] = []
    with ScriptedLlmServer(script) as server:
        endpoint = LlmEndpoint(settings_for(server.base_url), jitter=lambda: 0.0)
        async with desk(endpoint, lines) as agent:
            assert (await agent.reply()).content == "look"
    assert len(server.requests) == 3
    assert len({request.raw for request in server.requests}) == 1
    assert [(note.attempt, note.delay_s, note.failure.message) for note in retries(lines)] == [
        (1, 0.05, "Overloaded"),
        (2, 0.0, "Slow down"),
    ]


async def test_retries_are_spent() -> None:
    failed, server = await failure_of(lambda _: error_reply(502, "Bad gateway"))
    assert (failed.failure.kind, failed.failure.attempts, len(server.requests)) == ("unavailable", 3, 3)


async def test_a_refusal_is_final_and_says_what_to_do_without_the_key() -> None:
    lines: list[bytes] = []
    failed, server = await failure_of(
        [error_reply(401, f"Incorrect API key provided: {KEY}.", code="invalid_api_key")], lines
    )
    failure = failed.failure
    assert len(server.requests) == 1
    assert (failure.kind, failure.status, failure.model) == ("refused", 401, "some/model")
    assert failure.endpoint == server.base_url
    assert failure.message == "Incorrect API key provided: [redacted:api_key]."
    assert failure.remedy.startswith("Set api_key to ")
    assert KEY.encode() not in b"".join(lines)


@pytest.mark.parametrize("wire", list(FORMATS))
@pytest.mark.parametrize(
    "reply",
    [
        error_reply(403, f"key {KEY} may not", metadata={"raw": KEY}),
        error_reply(500, f"{KEY} {KEY}"),
        LlmReply(status=307, headers={"Location": f"http://127.0.0.1:9/?key={KEY}"}),
        LlmReply(body=f"<html><title>{KEY}</title></html>".encode()),
        json_reply({"error": {"message": KEY, "code": 500}}),
        text_reply("look", finish_reason="length"),
    ],
    ids=["refused", "retried", "redirect", "web page", "error in a 200", "success, cut"],
)
async def test_the_key_is_in_nothing_that_is_left_behind(wire: str, reply: LlmReply) -> None:
    lines: list[bytes] = []
    with ScriptedLlmServer(lambda _: reply) as server:
        endpoint = LlmEndpoint(settings_for(server.base_url, wire=wire, max_tokens=50))
        async with desk(endpoint, lines) as agent:
            outcome = (await agent.ask()).body
        assert any(KEY in value for value in server.requests[0].headers.values())
    assert len(lines) >= 2
    assert KEY not in b"".join(lines).decode() + repr(outcome) + repr(endpoint.settings)


async def test_an_error_within_a_200_is_an_error() -> None:
    failed, _ = await failure_of([LlmReply(body=b'{"error":{"message":"No credit","code":402}}')])
    assert (failed.failure.kind, failed.failure.status) == ("refused", 402)


async def test_a_web_page_is_no_reply() -> None:
    failed, server = await failure_of(lambda _: LlmReply(body=b"<html>Welcome</html>"))
    assert (failed.failure.kind, len(server.requests)) == ("invalid_reply", 2)
    assert "/v1" in failed.failure.remedy


async def test_a_redirect_is_not_followed() -> None:
    failed, server = await failure_of([LlmReply(status=307, headers={"Location": "http://127.0.0.1:9/v1"})])
    assert len(server.requests) == 1
    assert failed.failure.message == "redirects to http://127.0.0.1:9/v1"


async def test_an_endpoint_that_says_nothing_is_given_up_in_time() -> None:
    retry = RetryPolicy(max_retries=0, timeout_s=0.2)
    failed, _ = await failure_of([silence()], retry=retry)
    assert (failed.failure.kind, failed.failure.message) == ("timed_out", "no complete reply within 0.2 s")


async def test_a_reply_that_drips_is_given_up_in_time() -> None:
    async def drip() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await anyio.sleep(0.01)

    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=drip()))
    settings = settings_for("http://llm.invalid/v1", retry=RetryPolicy(max_retries=0, timeout_s=0.2))
    async with desk(LlmEndpoint(settings, transport=transport)) as agent:
        assert (await agent.failure()).failure.kind == "timed_out"


@pytest.mark.parametrize(
    "sent", [b"", b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"choices"', b"not HTTP\r\n\r\n"]
)
async def test_a_connection_that_breaks_is_tried_again(sent: bytes) -> None:
    with ScriptedLlmServer([hang_up(sent), text_reply("look")]) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url))) as agent:
            assert (await agent.reply()).content == "look"
    failed, _ = await failure_of(lambda _: hang_up(sent))
    assert failed.failure.kind == "unavailable"
    assert failed.failure.message.startswith("the connection broke: ")


async def test_nobody_listens() -> None:
    with ScriptedLlmServer([]) as server:
        closed = server.base_url
    async with desk(LlmEndpoint(settings_for(closed))) as agent:
        failure = (await agent.failure()).failure
    assert (failure.kind, failure.attempts) == ("unreachable", 2)
    assert "Is the server running?" in failure.remedy
    assert failure.message.startswith("cannot connect: ")


@pytest.mark.parametrize("limit", ["MAX_REPLY_BYTES", "MAX_BODY_BYTES"])
async def test_a_reply_without_end_is_cut_off(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm_exchange, limit, 1000)
    failed, _ = await failure_of(lambda _: text_reply("x" * 2000))
    assert (failed.failure.kind, failed.failure.message) == (
        "invalid_reply",
        "the reply is longer than 1000 bytes",
    )
    assert failed.failure.remedy == "Set max_tokens, or choose another model."


async def test_a_reply_that_cannot_be_decompressed() -> None:
    failed, _ = await failure_of(lambda _: LlmReply(headers={"Content-Encoding": "gzip"}, body=b"no gzip"))
    assert failed.failure.kind == "invalid_reply"
    assert failed.failure.remedy == "Check the proxies and gateways before the endpoint."


async def test_a_reply_in_a_coding_that_was_not_asked_for() -> None:
    body = base64.b64decode("Cw+AeyJlcnJvciI6eyJtZXNzYWdlIjoiYmFkIGtleSJ9fQM=")  # by brotli
    failed, _ = await failure_of(lambda _: LlmReply(headers={"Content-Encoding": "br"}, body=body))
    assert failed.failure.message == (
        "the reply cannot be decompressed: its Content-Encoding is br; asked for: gzip, deflate"
    )
    assert failed.failure.remedy == "Check the proxies and gateways before the endpoint."


async def test_a_success_without_a_completion_keeps_its_status() -> None:
    failed, _ = await failure_of(lambda _: LlmReply(status=204, body=b""))
    failure = failed.failure
    assert (failure.kind, failure.status, failure.message) == (
        "invalid_reply",
        204,
        "not JSON: an empty body",
    )
    assert "usually ends in /v1" in failure.remedy


async def test_a_cancelled_request_ends_at_once() -> None:
    with ScriptedLlmServer([silence()]) as server:

        async def ask() -> None:
            async with desk(LlmEndpoint(settings_for(server.base_url))) as agent:
                await agent.ask()

        await cancelled_when(lambda: server.requests, ask)
        assert len(server.requests) == 1
