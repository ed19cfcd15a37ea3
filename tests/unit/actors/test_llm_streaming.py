"""Streamed replies: shown as they come, whole in the end, and given up in time."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import SocketStream
from llm_desk import KEY, LISTING, OPENING, desk, notes, settings_for
from msgspec.structs import replace
from raw_http import head, raw_server

import grue.transports.llm.exchange as llm_exchange
from grue.actors.llm import LlmEndpoint
from grue.messages import (
    CompletionFailed,
    CompletionReceived,
    CompletionRetried,
    TextDelta,
    ToolMessage,
    UserText,
)
from grue.protocol.chat_wire.chat_completions import ChatAssembler
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.retry import RetryPolicy
from grue.testing.llm_faults import (
    broken_off,
    dripping,
    error_in_stream,
    garbage_in_stream,
    mistyped,
    reset,
    stalled,
    truncated,
)
from grue.testing.llm_replies import LlmReply, Pace
from grue.testing.llm_server import (
    LlmRequest,
    Script,
    ScriptedLlmServer,
    error_reply,
    silence,
    text_reply,
    tool_calls_reply,
)

pytestmark = pytest.mark.anyio

LONG = "You are standing in an open field west of a white house, with a boarded front door."
COMPLETION = text_reply(LONG)
LOOK = b'data: {"choices":[{"delta":{"content":"look"},"finish_reason":"stop"}]}\n\n'
ONCE = RetryPolicy(max_retries=0, timeout_s=60.0)


async def asked(base_url: str, **changes: Any) -> tuple[CompletionReceived | CompletionFailed, list[bytes]]:
    """Ask one endpoint once, streaming; return what came of it and what was recorded."""
    lines: list[bytes] = []
    async with desk(LlmEndpoint(settings_for(base_url, **changes)), lines) as agent:
        return (await agent.ask(stream=True)).body, lines


async def asked_script(script: Script, **changes: Any) -> Any:
    with ScriptedLlmServer(script) as server:
        return await asked(server.base_url, **changes)


def said(lines: list[bytes], part: str = "content") -> str:
    return "".join(note.text for note in notes(lines, TextDelta) if note.part == part)


@pytest.mark.parametrize("wire", list(FORMATS))
async def test_a_streamed_turn_is_shown_as_it_comes_over_one_connection(wire: str) -> None:
    script = [
        tool_calls_reply(("think__think", {"thought": "hm"}), content="Hm.", reasoning_content="It is dark."),
        COMPLETION,
    ]
    lines: list[bytes] = []
    with ScriptedLlmServer(script) as server:
        endpoint = LlmEndpoint(settings_for(server.base_url, wire=wire))
        async with desk(endpoint, lines) as agent:
            first = await agent.reply(OPENING, LISTING, stream=True)
            assert (first.content, first.reasoning) == (said(lines), said(lines, "reasoning"))
            assert first.reasoning == "It is dark."
            (call,) = first.tool_calls
            assert call.arguments.replace(" ", "") == '{"thought":"hm"}'
            lines.clear()
            second = await agent.reply((ToolMessage(call.call_id, "1"),), stream=True)
        assert second.content == said(lines) == LONG
        assert (second.usage.input_tokens, second.usage.output_tokens) == (10, 5)
        assert all(request.body["stream"] for request in server.requests)
        assert [request.refused for request in server.requests] == [None, None]
        assert server.accepted == 1
    kinds = [json.loads(line)["body"]["type"] for line in lines]
    assert len(notes(lines, TextDelta)) >= 1
    assert kinds[-1] == "CompletionReceived"
    assert set(kinds[1:-1]) == {"TextDelta"}


@pytest.mark.parametrize(
    "content_type", ["application/json", "text/event-stream; charset=utf-8", "text/plain"]
)
async def test_an_endpoint_that_does_not_stream_is_understood(content_type: str) -> None:
    async def whole(stream: SocketStream) -> None:
        await stream.send(head(content_type) + COMPLETION.body)

    async with raw_server(whole) as base_url:
        reply, lines = await asked(base_url, retry=ONCE)
    assert isinstance(reply, CompletionReceived), reply
    assert reply.content == LONG
    assert notes(lines, TextDelta) == []


async def test_a_stream_under_another_name_is_a_stream() -> None:
    reply, lines = await asked_script([mistyped(COMPLETION)], retry=ONCE)
    assert isinstance(reply, CompletionReceived), reply
    assert reply.content == said(lines) == LONG


async def test_an_endpoint_that_refuses_to_stream_is_not_asked_to_again() -> None:
    def script(request: LlmRequest) -> LlmReply:
        if "stream" in request.body:
            return error_reply(400, "Streaming is not supported for this model.")
        return COMPLETION

    lines: list[bytes] = []
    with ScriptedLlmServer(script) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url)), lines) as agent:
            assert (await agent.reply(stream=True)).content == LONG
            assert (await agent.reply((UserText("And?"),), stream=True)).content == LONG
        assert ["stream" in request.body for request in server.requests] == [True, False, False]
    assert notes(lines, TextDelta) == []


@pytest.mark.parametrize("stream", [True, False])
async def test_an_endpoint_that_only_streams_is_streamed_from_and_shown_only_to_who_asked(
    stream: bool,
) -> None:
    def script(request: LlmRequest) -> LlmReply:
        if "stream" not in request.body:
            return error_reply(
                400, "This model only support stream mode, please enable the stream parameter."
            )
        return COMPLETION

    lines: list[bytes] = []
    with ScriptedLlmServer(script) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url)), lines) as agent:
            assert (await agent.reply(stream=stream)).content == LONG
            assert (await agent.reply((UserText("And?"),), stream=stream)).content == LONG
        asked_for = ["stream" in request.body for request in server.requests]
    assert asked_for == ([True, True] if stream else [False, True, True])
    assert said(lines) == (LONG * 2 if stream else "")


# --- Time limits ---


def shown_to_host(lines: list[bytes], part: str = "content") -> str:
    """Return what a host shows that drops everything when it is told to start over."""
    shown = ""
    for note in notes(lines, TextDelta):
        shown = "" if note.restart else shown + (note.text if note.part == part else "")
    return shown


@pytest.mark.parametrize(
    ("reply", "limits", "message"),
    [
        (stalled(COMPLETION), {"idle_timeout_s": 0.2}, "the stream paused for more than 0.2 s"),
        (silence(), {"first_byte_timeout_s": 0.2}, "no reply began within 0.2 s"),
        (dripping(COMPLETION, every_s=0.02), {"timeout_s": 0.3}, "no complete reply within 0.3 s"),
        (stalled(COMPLETION), {"timeout_s": 0.3}, "no complete reply within 0.3 s"),
    ],
    ids=["idle", "first byte", "whole, dripping", "whole, stalled"],
)
async def test_a_stream_is_given_up_in_time(reply: LlmReply, limits: dict[str, float], message: str) -> None:
    retry = RetryPolicy(**{"max_retries": 0, "timeout_s": 10.0, **limits})  # type: ignore[arg-type]
    with anyio.fail_after(60):
        failed, _ = await asked_script([reply], retry=retry)
    assert isinstance(failed, CompletionFailed)
    assert (failed.failure.kind, failed.failure.message) == ("timed_out", message)
    assert f"RetryPolicy({next(iter(limits))}=...)" in failed.failure.remedy


async def test_a_stream_that_never_pauses_long_may_take_longer_than_a_pause() -> None:
    retry = RetryPolicy(max_retries=0, timeout_s=60.0, idle_timeout_s=1.0)
    reply, _ = await asked_script([dripping(COMPLETION, size=200, every_s=0.2)], retry=retry)
    assert isinstance(reply, CompletionReceived), reply
    assert reply.elapsed_s > retry.idle_timeout_s


async def test_cancelled_in_the_middle_the_generation_ends_at_the_endpoint() -> None:
    gone = anyio.Event()

    async def endless(stream: SocketStream) -> None:
        await stream.send(head("text/event-stream"))
        await stream.send(b'data: {"choices":[{"delta":{"content":"lo"}}]}\n\n')
        try:
            await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            gone.set()

    lines: list[bytes] = []
    async with raw_server(endless) as base_url:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:

                async def turn() -> None:
                    async with desk(LlmEndpoint(settings_for(base_url)), lines) as agent:
                        await agent.ask(stream=True)

                group.start_soon(turn)
                while not notes(lines, TextDelta):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            await gone.wait()


# --- Streams that break ---


@pytest.mark.parametrize(
    "broken",
    [
        broken_off(COMPLETION),
        truncated(COMPLETION),
        reset(COMPLETION, after=0.5),
        error_in_stream(COMPLETION),
    ],
    ids=["broken off", "truncated", "reset", "error event"],
)
@pytest.mark.parametrize("wire", list(FORMATS))
async def test_a_stream_that_breaks_is_begun_anew(broken: LlmReply, wire: str) -> None:
    reply, lines = await asked_script([broken, COMPLETION], wire=wire)
    assert isinstance(reply, CompletionReceived), reply
    assert reply.content == LONG
    kinds = [json.loads(line)["body"]["type"] for line in lines]
    at = kinds.index("CompletionRetried")
    assert said(lines[at:]) == LONG
    assert LONG.startswith(said(lines[:at]))
    (note,) = notes(lines, CompletionRetried)
    assert note.failure.kind == "unavailable"


@pytest.mark.parametrize(
    "garbage",
    [b"data: {garbage\n\n", b"data: [1]\n\n", b"data: {}\xe9\n\n", b"dbta: {}\n\n", b'{"error": {}}\n\n'],
    ids=["not JSON", "not an object", "not UTF-8", "no field", "no event"],
)
@pytest.mark.parametrize("wire", list(FORMATS))
async def test_a_damaged_stream_is_begun_anew_and_said_so(garbage: bytes, wire: str) -> None:
    reply, lines = await asked_script([garbage_in_stream(COMPLETION, garbage), COMPLETION], wire=wire)
    assert isinstance(reply, CompletionReceived), reply
    assert reply.content == shown_to_host(lines) == LONG
    (note,) = notes(lines, CompletionRetried)
    assert note.failure.kind == "damaged"
    assert re.match(r"the stream is damaged: (event|line) \d+ ", note.failure.message)


@pytest.mark.parametrize("wire", list(FORMATS))
async def test_no_call_of_a_damaged_stream_is_made(wire: str) -> None:
    call = tool_calls_reply(("think__think", {"thought": "/data/projects/old/build/cache/file.txt"}))
    retry = RetryPolicy(max_retries=1, initial_delay_s=0.0, timeout_s=60.0)
    script = [garbage_in_stream(call), garbage_in_stream(call)]
    failed, lines = await asked_script(script, wire=wire, retry=retry)
    assert isinstance(failed, CompletionFailed), failed
    assert (failed.failure.kind, failed.failure.attempts) == ("damaged", 2)
    assert notes(lines, CompletionReceived) == []


async def test_a_retry_tells_the_host_to_start_over() -> None:
    reply, lines = await asked_script([truncated(COMPLETION), truncated(COMPLETION), COMPLETION])
    assert isinstance(reply, CompletionReceived), reply
    deltas = notes(lines, TextDelta)
    restarts = [delta for delta in deltas if delta.restart]
    assert [(delta.text, delta.request) for delta in restarts] == [("", 1), ("", 1)]
    assert len(said(lines)) > len(LONG)
    assert shown_to_host(lines) == LONG


async def test_a_retry_of_what_nobody_has_seen_starts_nothing_over() -> None:
    reply, lines = await asked_script([error_reply(503, "busy"), COMPLETION])
    assert isinstance(reply, CompletionReceived), reply
    assert not any(delta.restart for delta in notes(lines, TextDelta))


@pytest.mark.parametrize("then", ["stall", "close", "break"])
async def test_what_follows_the_end_of_a_reply_is_not_waited_for(then: str) -> None:
    async def almost_whole(stream: SocketStream) -> None:
        framing = head("text/event-stream")
        if then == "break":
            framing = framing.replace(b"Connection: close", b"Content-Length: 9999")
        await stream.send(framing)
        await stream.send(LOOK)
        if then == "stall":
            await stream.receive()

    retry = RetryPolicy(max_retries=0, timeout_s=10.0, idle_timeout_s=0.2)
    async with raw_server(almost_whole) as base_url:
        reply, _ = await asked(base_url, retry=retry)
    assert isinstance(reply, CompletionReceived), reply
    assert reply.content == "look"


@pytest.mark.parametrize("pings", [True, False])
async def test_a_whole_reply_whose_stream_never_ends_is_used_within_the_time_limit(pings: bool) -> None:
    async def endless(stream: SocketStream) -> None:
        await stream.send(head("text/event-stream"))
        await stream.send(LOOK)
        while pings:
            await stream.send(b": ping\n\n")
            await anyio.sleep(0.05)
        await stream.receive()

    async with raw_server(endless) as base_url:
        reply, _ = await asked(base_url, retry=RetryPolicy(max_retries=0, timeout_s=1.0))
    assert isinstance(reply, CompletionReceived), reply
    assert reply.content == "look"


async def test_a_reply_that_grows_after_its_finish_reason_is_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm_exchange, "_MOST_AFTER_WHOLE_S", 0.5)

    async def growing(stream: SocketStream) -> None:
        await stream.send(head("text/event-stream"))
        for _ in range(8):
            await stream.send(LOOK)
            await anyio.sleep(0.1)
        await stream.send(b"data: [DONE]\n\n")

    async with raw_server(growing) as base_url:
        reply, _ = await asked(base_url, retry=ONCE)
    assert isinstance(reply, CompletionReceived), reply
    assert reply.content == "look" * 8


async def test_what_comes_together_is_one_note_and_the_rest_is_read_for_the_connections_sake() -> None:
    ended = anyio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"".join(
            b'data: {"choices":[{"delta":{"%s":"%s"}}]}\n\n' % piece
            for piece in (
                (b"reasoning", b"h"),
                (b"reasoning", b"m"),
                (b"content", b"lo"),
                (b"content", b"ok"),
            )
        )
        yield b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        yield b": bye\n\n"
        ended.set()

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"Content-Type": "Text/Event-Stream"}, content=pieces())

    lines: list[bytes] = []
    endpoint = LlmEndpoint(settings_for("http://llm.invalid/v1"), transport=httpx.MockTransport(answer))
    async with desk(endpoint, lines) as agent:
        assert (await agent.reply(stream=True)).content == "look"
    assert [(note.part, note.text) for note in notes(lines, TextDelta)] == [
        ("reasoning", "hm"),
        ("content", "look"),
    ]
    assert ended.is_set()


async def test_a_stream_that_is_held_open_after_its_last_event_is_let_go() -> None:
    async def held(stream: SocketStream) -> None:
        await stream.send(head("text/event-stream"))
        await stream.send(LOOK + b"data: [DONE]\n\n")
        await stream.receive()

    async with raw_server(held) as base_url:
        with anyio.fail_after(60):
            reply, _ = await asked(base_url, retry=ONCE)
    assert isinstance(reply, CompletionReceived), reply
    assert reply.content == "look"


async def test_a_stream_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm_exchange, "MAX_REPLY_BYTES", 1000)
    failed, _ = await asked_script([text_reply("x" * 2000)], retry=ONCE)
    assert isinstance(failed, CompletionFailed)
    assert failed.failure.kind == "invalid_reply"
    assert failed.failure.message == "the reply is longer than 1000 bytes"


async def test_a_stream_that_says_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm_exchange, "MAX_BODY_BYTES", 300_000)
    script = [text_reply("x" * 400_000), text_reply("y" * 1000)]
    failed, _ = await asked_script(script[:1], retry=ONCE)
    assert isinstance(failed, CompletionFailed)
    assert failed.failure.message == "the reply is longer than 300000 bytes"
    reply, _ = await asked_script(script[1:], retry=ONCE)
    assert isinstance(reply, CompletionReceived), "a short one is not"


async def test_a_stream_is_refused_before_what_it_says_is_put_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(llm_exchange, "MAX_BODY_BYTES", 1000)
    monkeypatch.setattr(ChatAssembler, "body", lambda _: pytest.fail("it was put together"))
    for reply in (text_reply("x" * 2000), tool_calls_reply(("s.look", {"at": "y" * 2000}))):
        failed, _ = await asked_script([reply], retry=ONCE)
        assert isinstance(failed, CompletionFailed)
        assert failed.failure.message == "the reply is longer than 1000 bytes"


async def test_a_line_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grue.protocol.chat_wire.server_events.MAX_LINE_BYTES", 100)

    async def endless_line(stream: SocketStream) -> None:
        await stream.send(head("text/event-stream") + b"data: " + b"x" * 200)

    async with raw_server(endless_line) as base_url:
        failed, _ = await asked(base_url, retry=ONCE)
    assert isinstance(failed, CompletionFailed)
    assert (failed.failure.kind, failed.failure.message) == ("invalid_reply", "a line of more than 100 bytes")


async def test_the_key_is_in_nothing_that_a_stream_leaves_behind() -> None:
    async def indiscreet(stream: SocketStream) -> None:
        error = {"error": {"message": f"Incorrect API key provided: {KEY}", "code": 401}}
        await stream.send(head("text/event-stream") + f"data: {json.dumps(error)}\n\n".encode())

    async with raw_server(indiscreet) as base_url:
        failed, lines = await asked(base_url, retry=ONCE)
    assert isinstance(failed, CompletionFailed)
    assert failed.failure.message == "Incorrect API key provided: [redacted:api_key]"
    assert KEY not in b"".join(lines).decode()


async def test_an_endless_reply_is_asked_for_again_once_and_what_it_cost_is_counted() -> None:
    """By default it would be asked for six times, two minutes each, and none of its tokens counted."""
    endless = replace(text_reply("round and round it goes, " * 99), pace=Pace(size=400, every_s=0.05))
    patience = RetryPolicy(max_retries=5, initial_delay_s=0.0, timeout_s=0.5)
    lines: list[bytes] = []
    with ScriptedLlmServer(lambda _: endless) as server:
        settings = settings_for(server.base_url, retry=patience)
        async with desk(LlmEndpoint(settings), lines) as agent:
            failed = await agent.failure(stream=True)
    assert len(notes(lines, CompletionRetried)) == 1
    assert failed.failure.kind == "timed_out"
    assert failed.usage.input_tokens > 0
    assert failed.usage.output_tokens > 0


@pytest.mark.parametrize("endless", [silence(), replace(text_reply("round"), then="hang", after=0.5)])
async def test_an_endless_reply_that_is_not_streamed_is_asked_for_again_once_too(endless: LlmReply) -> None:
    patience = RetryPolicy(max_retries=5, initial_delay_s=0.0, timeout_s=0.2)
    lines: list[bytes] = []
    with ScriptedLlmServer(lambda _: endless) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url, retry=patience)), lines) as agent:
            failed = await agent.failure()
    # On a busy machine the server may not have read the requests yet.
    assert len(notes(lines, CompletionRetried)) == 1
    assert failed.failure.kind == "timed_out"
    assert "max_tokens" in failed.failure.remedy


STATED = b'data: {"choices":[{"delta":{},"finish_reason":"error"}],"usage":{"prompt_tokens":90}}\n\n'
BEGUN = b'data: {"id":"c","model":"m","choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'


@pytest.mark.parametrize(
    "broken",
    [
        replace(text_reply("one two three four five six seven"), then="drop", after=0.7),
        replace(text_reply("one two three four five six seven"), amid="error"),
        LlmReply(headers={"Content-Type": "text/event-stream"}, body=STATED),
        LlmReply(headers={"Content-Type": "text/event-stream"}, body=BEGUN),
    ],
    ids=["cut off", "ended by an error", "ended with its usage", "cut off before its first text"],
)
async def test_what_a_reply_that_broke_off_has_cost_counts_with_the_next_one(broken: LlmReply) -> None:
    with ScriptedLlmServer([broken, text_reply("ok")]) as server:
        retry = RetryPolicy(initial_delay_s=0.0)
        async with desk(LlmEndpoint(settings_for(server.base_url, retry=retry))) as agent:
            reply = await agent.reply(stream=True)
    assert reply.content == "ok"
    assert reply.usage.input_tokens > 10
    if broken.body == STATED:
        assert reply.usage.input_tokens == 100


@pytest.mark.parametrize("wire", FORMATS)
async def test_the_calls_of_a_stream_that_an_error_ended_have_cost_something(wire: Any) -> None:
    broken = error_in_stream(tool_calls_reply(("north", {"why": "because " * 999})), after=0.9)
    with ScriptedLlmServer([broken, text_reply("ok")]) as server:
        retry = RetryPolicy(initial_delay_s=0.0)
        async with desk(LlmEndpoint(settings_for(server.base_url, wire=wire, retry=retry))) as agent:
            reply = await agent.reply(stream=True)
    assert reply.content == "ok"
    assert reply.usage.input_tokens > 10


async def test_a_stream_that_brought_only_an_error_has_cost_nothing() -> None:
    error = b'data: {"id":"7","choices":[],"error":{"message":"The model is overloaded","code":503}}\n\n'
    busy = LlmReply(headers={"Content-Type": "text/event-stream"}, body=error)
    with ScriptedLlmServer([busy, text_reply("ok")]) as server:
        retry = RetryPolicy(initial_delay_s=0.0)
        async with desk(LlmEndpoint(settings_for(server.base_url, retry=retry))) as agent:
            reply = await agent.reply(stream=True)
    assert (reply.content, reply.usage.input_tokens) == ("ok", 10)


async def test_marked_thoughts_are_streamed_as_reasoning() -> None:
    lines: list[bytes] = []
    with ScriptedLlmServer([text_reply("<think>\nA maze?\n</think>\n\nIn a maze.")]) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url)), lines) as agent:
            reply = await agent.reply(stream=True)
    shown = notes(lines, TextDelta)
    assert (reply.content, reply.reasoning) == ("In a maze.", "A maze?")
    assert "".join(delta.text for delta in shown if delta.part == "content") == "In a maze."
    assert "".join(delta.text for delta in shown if delta.part == "reasoning").strip() == "A maze?"
