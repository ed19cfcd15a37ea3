"""Bodies that are too much for whoever reads them: a typed outcome, in bounded memory and without a stall."""

import gzip
import json
import math
import re
import time
import tracemalloc
from typing import Any

import anyio
import httpx
import pytest
from llm_desk import LISTING, OPENING, desk, settings_for
from rows import first_of
from turns import sort_calls

from grue.actors.llm import LlmEndpoint
from grue.messages import CompletionFailed, CompletionReceived
from grue.protocol.chat_wire.formats import FORMATS, WireName
from grue.protocol.chat_wire.profiles import OPENROUTER
from grue.protocol.retry import RetryPolicy
from grue.testing.providers.dialects import dialect_of
from grue.transports.llm.exchange import MAX_BODY_BYTES

pytestmark = pytest.mark.anyio

ONCE = RetryPolicy(max_retries=0, timeout_s=20.0)
WIRES = pytest.mark.parametrize("wire", list(FORMATS))
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
DEEP = "[" * 50_000 + "]" * 50_000
DIGITS = "9" * 5_000
HOSTILE = [
    f'{{"x": {DIGITS}}}',
    f'{{"x": {DEEP}}}',
    f'{{"error": {{"message": {DEEP}}}}}',
    f'{{"error": {{"code": {DIGITS}}}}}',
    '{"error": ' + "[" * 99 + "]" * 99 + "}",
    f'{{"usage": {{"prompt_tokens": {"9" * 400}, "cost": 1e308}}, "choices": []}}',
    '{"error": {"message": "\\ud800"}}',
    DEEP,
    DIGITS,
]


def body_of(wire: WireName, arguments: str, *, stream: bool) -> bytes:
    dialect = dialect_of(FORMATS[wire].path)
    assert dialect is not None
    call = {"id": "a", "type": "function", "function": {"name": "think.think", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    whole = dialect.from_chat({"model": "m", "choices": [choice], "usage": {}}, {})
    return b"".join(dialect.events(whole, {})) if stream else json.dumps(whole).encode()


async def asked(
    wire: str,
    body: bytes,
    *,
    stream: bool = False,
    asks: bool | None = None,
    headers: dict[str, str] | None = None,
    status: int = 200,
) -> CompletionReceived | CompletionFailed:
    kind = "text/event-stream" if stream else "application/json"

    async def pieces() -> Any:
        for start in range(0, len(body), 65_536):
            yield body[start : start + 65_536]

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, headers={"Content-Type": kind, **(headers or {})}, content=pieces())

    settings = settings_for("http://llm.invalid/v1", wire=wire, retry=ONCE)
    async with desk(LlmEndpoint(settings, transport=httpx.MockTransport(answer))) as agent:
        outcome = (await agent.ask(OPENING, LISTING, stream=stream if asks is None else asks)).body
    assert isinstance(outcome, CompletionReceived | CompletionFailed)
    return outcome


@WIRES
@STREAMED
@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_a_body_that_is_too_much_is_a_failure(wire: str, stream: bool, status: int, text: str) -> None:
    body = f"data: {text}\n\ndata: [DONE]\n\n" if stream else text
    outcome = await asked(wire, body.encode(), stream=stream, status=status)
    assert isinstance(outcome, CompletionFailed)
    assert len(outcome.failure.message) < 1000


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_a_model_list_that_is_too_much_says_nothing(text: str) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=text.encode())

    settings = settings_for("http://llm.invalid/v1", profile=OPENROUTER, retry=ONCE)
    endpoint = LlmEndpoint(settings, transport=httpx.MockTransport(answer))
    async with endpoint:
        assert (await endpoint.tool_support()).by == "name"


TOO_MUCH = pytest.mark.parametrize(
    "arguments",
    [f'{{"n": {DIGITS}}}', f'{{"n": {DEEP}}}', '{"n": 1e999}', '{"n": NaN}', f'{{"n": {DIGITS}}}' * 2],
    ids=["digits", "deep", "large", "nan", "twice"],
)


@pytest.mark.parametrize("wire", ["chat_completions", "responses"])
@STREAMED
@TOO_MUCH
async def test_arguments_that_are_too_much_are_an_error_of_their_call(
    wire: WireName, stream: bool, arguments: str
) -> None:
    assert await error_of_call(wire, body_of(wire, arguments, stream=stream), stream=stream)


@TOO_MUCH
async def test_pieces_of_input_that_are_too_much_are_an_error_of_their_call(arguments: str) -> None:
    block = {"type": "tool_use", "id": "a", "name": "think.think", "input": {}}
    piece = {"type": "input_json_delta", "partial_json": arguments}
    events = [
        {"type": "message_start", "message": {"role": "assistant"}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": piece},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    ]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    assert await error_of_call("messages", body.encode(), stream=True)


def events_with_object(wire: WireName, number: float) -> list[object]:
    """Return the events of a call whose arguments come at once, as an object."""
    thought = {"thought": [number]}
    if wire == "chat_completions":
        call = {"id": "a", "function": {"name": "think.think", "arguments": thought}}
        deltas = ({"tool_calls": [call]}, None), ({}, "tool_calls")
        return [{"choices": [{"delta": delta, "finish_reason": end}]} for delta, end in deltas]
    block = {"type": "tool_use", "id": "a", "name": "think.think", "input": thought}
    return [
        {"type": "message_start", "message": {"role": "assistant"}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    ]


@pytest.mark.parametrize("wire", ["chat_completions", "messages"])
@pytest.mark.parametrize("number", [math.nan, -math.inf])
async def test_a_streamed_object_with_a_number_that_is_no_json_is_an_error_of_its_call(
    wire: WireName, number: float
) -> None:
    events = events_with_object(wire, number)
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    assert await error_of_call(wire, body.encode(), stream=True)


@TOO_MUCH
async def test_input_that_is_too_much_is_no_call(arguments: str) -> None:
    body = body_of("messages", '{"n": "HERE"}', stream=False).replace(b'{"n": "HERE"}', arguments.encode())
    outcome = await asked("messages", body)
    # What is not JSON makes the whole body unreadable; a number out of range does not.
    if isinstance(outcome, CompletionFailed):
        assert outcome.failure.kind == "invalid_reply"
    else:
        assert await error_of_call("messages", body, stream=False)


async def error_of_call(wire: str, body: bytes, *, stream: bool) -> str:
    """Return what the model is told of the one call of a reply, which no server gets to see."""
    outcome = await asked(wire, body, stream=stream)
    assert isinstance(outcome, CompletionReceived), outcome
    runs, (rejected,) = sort_calls(outcome.tool_calls, LISTING.tools or ())
    assert runs == ()
    assert rejected.reason.startswith("Tool call failed: the arguments ")
    return rejected.reason


# --- Compressed ---


@pytest.mark.parametrize(("status", "reason"), [(401, "key"), (429, "rate"), (503, "overloaded")])
@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (b"\x00\x01", "gzip"),
        (b"{}", "gzip, gzip, gzip"),
        (gzip.compress(bytes(9_000_000)), "gzip"),
        (b"", ""),
    ],
    ids=["not gzip", "three times", "nine megabytes", "nothing"],
)
async def test_the_status_of_an_error_counts_whatever_its_body_is(
    status: int, reason: str, body: bytes, coding: str
) -> None:
    headers = {"content-encoding": coding, "retry-after": "7"}
    outcome = await asked("chat_completions", body, headers=headers, status=status)
    assert isinstance(outcome, CompletionFailed)
    assert (outcome.failure.status, outcome.failure.reason) == (status, reason)
    assert outcome.failure.retry_after_s == (7.0 if status in (429, 503) else None)


async def test_an_error_whose_body_breaks_off_is_still_that_error() -> None:
    async def pieces() -> Any:
        yield b'{"error": {"message": "Incorrect API key '
        raise httpx.ReadError("gone")

    transport = httpx.MockTransport(lambda _: httpx.Response(401, content=pieces()))
    async with desk(LlmEndpoint(settings_for("http://llm.invalid/v1"), transport=transport)) as agent:
        failed = await agent.failure()
    assert (failed.failure.reason, failed.failure.attempts) == ("key", 1)
    assert "Incorrect API key" in failed.failure.message


@WIRES
async def test_a_stream_that_nobody_asked_for_is_read(wire: WireName) -> None:
    outcome = await asked(wire, body_of(wire, '{"thought": "a"}', stream=True), asks=False, stream=True)
    assert isinstance(outcome, CompletionReceived)
    assert [call.name for call in outcome.tool_calls] == ["think.think"]


@STREAMED
@pytest.mark.parametrize("stages", first_of([3, 1, 2]))
@pytest.mark.slow
async def test_a_few_bytes_do_not_become_gigabytes(stages: int, stream: bool) -> None:
    body = bomb(stages)
    headers = {"Content-Encoding": ", ".join(["gzip"] * stages)}
    tracemalloc.start()
    try:
        outcome = await asked("chat_completions", body, stream=stream, headers=headers)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(outcome, CompletionFailed)
    assert outcome.failure.kind == "invalid_reply"
    words = f"longer than {MAX_BODY_BYTES} bytes|a line of more than" if stages < 3 else "compressed 3 times"
    assert re.search(words, outcome.failure.message)
    assert peak < 3 * 2**26


def bomb(stages: int) -> bytes:
    """Return 80 MB of spaces, compressed so many times."""
    body = b" " * 80_000_000
    for _ in range(stages):
        body = gzip.compress(body, 9)
    return body


@STREAMED
async def test_a_compressed_reply_is_read(stream: bool) -> None:
    body = gzip.compress(body_of("chat_completions", "{}", stream=stream))
    outcome = await asked("chat_completions", body, stream=stream, headers={"Content-Encoding": "gzip"})
    assert isinstance(outcome, CompletionReceived), outcome
    assert [call.name for call in outcome.tool_calls] == ["think.think"]


# --- Long ---


@STREAMED
@pytest.mark.parametrize(
    "arguments",
    ['{"a":1}\n' * 500_000, '{"a":"' + "x" * 4_000_000 + '"}', '{"a":[' + "{}," * 1_000_000 + "{}]}"],
    ids=["copies", "text", "values"],
)
@pytest.mark.slow
async def test_long_arguments_do_not_stall_the_loop(arguments: str, stream: bool) -> None:
    body = body_of("chat_completions", arguments, stream=stream)
    outcome, longest_s = await beside_a_clock(body, stream=stream)
    assert isinstance(outcome, CompletionReceived), outcome
    begun = time.thread_time()
    sort_calls(outcome.tool_calls, LISTING.tools or ())
    assert max(longest_s, time.thread_time() - begun) < 1.0


async def beside_a_clock(body: bytes, *, stream: bool) -> tuple[Any, float]:
    """Return the outcome, and the most seconds of computing between two steps of a task beside it."""
    longest_s = 0.0

    async def tick() -> None:
        nonlocal longest_s
        while True:
            begun = time.thread_time()
            await anyio.sleep(0.001)
            longest_s = max(longest_s, time.thread_time() - begun)

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        outcome = await asked("chat_completions", body, stream=stream)
        group.cancel_scope.cancel()
    return outcome, longest_s
