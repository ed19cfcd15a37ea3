"""Streams damaged in every place: the reply is what was sent, or there is none; never another one.

Two formats have no redundancy inside a text: where a piece of it is lost, said twice, or has another letter
in it, what is left is a sound stream that says something else. Those places are named here (`LETTERS`,
`PIECES`) and left out, so that everything else is held to the rule. Responses say everything twice.
"""

import json
import re
from collections.abc import AsyncIterator, Iterator

import anyio
import httpx
import pytest

from grue.llm_transport.exchange import Answered, Streamed, exchange
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.profile import WireName
from grue.protocol.chat_wire.reply import Reply
from grue.protocol.retry import RetryPolicy
from grue.protocol.tool_names import WireNames
from grue.provider_rules.dialects import dialect_of
from grue.provider_rules.reply_streams import stream_of

NAMES = WireNames("canonical")
PATIENCE = RetryPolicy(timeout_s=10.0)
CALLS = [
    {"id": "a", "type": "function", "function": {"name": "fs.delete", "arguments": '{"path": "/data/old"}'}},
    {"id": "b", "type": "function", "function": {"name": "fs.list", "arguments": "{}"}},
]
MESSAGE = {"role": "assistant", "content": "I dé it.", "reasoning_content": "Hm, so.", "tool_calls": CALLS}
COMPLETION = {
    "model": "m",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "tool_calls"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5},
}
LETTERS = re.compile(
    rb'"(?:content|reasoning_content|arguments|name|text|thinking|signature|partial_json|id|finish_reason'
    rb'|stop_reason|model|delta|summary_text|encrypted_content|call_id|item_id|status)": ("(?:[^"\\]|\\.)*")'
)
"""Texts that may be any text: another letter in them is another text."""

PIECES = {
    "chat_completions": re.compile(
        rb'"delta": \{"(content|reasoning_content|tool_calls": \[\{"index": \d+, "function)"'
    ),
    "messages": re.compile(rb'"type": "content_block_delta"'),
    "responses": re.compile(rb"(?!)"),
}
"""Events that hold a piece of a text and no number that would tell its place."""

BITS = (0x01, 0x02, 0x04, 0x08, 0x10, 0x20)

EVERY = pytest.mark.parametrize(
    "every", [17, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
"""How many of the places are tried: one in so many."""

WIRES = pytest.mark.parametrize("wire", list(PIECES))


def events_of(wire: WireName) -> list[bytes]:
    dialect = dialect_of(FORMATS[wire].path)
    assert dialect is not None
    whole = dialect.from_chat(COMPLETION, {"include": ["reasoning.encrypted_content"]})
    return list(stream_of(dialect.name, whole, {"stream_options": {"include_usage": True}}))


async def outcome(wire: WireName, stream: bytes, transport: httpx.AsyncBaseTransport) -> object:
    """Return what a reply says, as far as a turn depends on it, or the fault's kind."""
    request = httpx.Request("POST", "http://llm.invalid/v1", content=stream)
    streamed = Streamed(FORMATS[wire].assembler(), lambda _: None)
    answered = await exchange(transport, request, PATIENCE, streamed)
    if isinstance(answered, Answered):
        reply = FORMATS[wire].decode(answered.body, NAMES, request=1)
        if isinstance(reply, Reply):
            calls = [(call.name, call.arguments) for call in reply.tool_calls]
            return reply.content, reply.reasoning, reply.refusal, reply.finish_reason, calls
        return reply.kind
    assert isinstance(answered, Fault)
    return answered.kind


def echoed(request: httpx.Request) -> httpx.Response:
    async def body() -> AsyncIterator[bytes]:
        yield request.content

    return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, content=body())


def wrong(wire: WireName, cases: Iterator[tuple[str, bytes]]) -> list[str]:
    """Return the cases whose reply is another one than was sent, and what it is."""

    async def all_of_them() -> list[str]:
        found = []
        transport = httpx.MockTransport(echoed)
        sound = await outcome(wire, b"".join(events_of(wire)), transport)
        assert isinstance(sound, tuple), sound
        for name, stream in cases:
            seen = await outcome(wire, stream, transport)
            if seen != sound and seen not in ("damaged", "unavailable", "invalid_reply"):
                found.append(f"{name}: {seen}")
        return found

    return anyio.run(all_of_them)


@WIRES
@EVERY
def test_a_stream_cut_anywhere(wire: WireName, every: int) -> None:
    stream = b"".join(events_of(wire))
    assert wrong(wire, ((f"cut at {at}", stream[:at]) for at in range(0, len(stream), every))) == []


@WIRES
@EVERY
def test_a_byte_that_is_no_text_anywhere(wire: WireName, every: int) -> None:
    stream = b"".join(events_of(wire))
    cases = ((f"at {at}", changed(stream, at, 0x80)) for at in range(0, len(stream), every))
    assert wrong(wire, cases) == []


@WIRES
@EVERY
def test_a_bit_flipped_anywhere_but_in_a_text(wire: WireName, every: int) -> None:
    stream = b"".join(events_of(wire))
    letters = {at for found in LETTERS.finditer(stream) for at in range(found.start(1) + 1, found.end(1) - 1)}
    places = [at for at in range(len(stream)) if at not in letters]
    # Each place with one bit, and if there is time with each of them.
    bits = [
        (at, bit)
        for number, at in enumerate(places[::every])
        for bit in (BITS if every == 1 else BITS[number % 6 :][:1])
    ]
    cases = ((f"{bit:#x} at {at}: {shown(stream, at)}", changed(stream, at, bit)) for at, bit in bits)
    assert wrong(wire, cases) == []


@WIRES
def test_an_event_that_is_lost_repeated_or_out_of_order(wire: WireName) -> None:
    events = events_of(wire)
    free = [PIECES[wire].search(event) is not None for event in events]

    def cases() -> Iterator[tuple[str, bytes]]:
        for at, event in enumerate(events):
            before, after = events[:at], events[at + 1 :]
            if not free[at]:
                yield f"lost {event!r}", b"".join([*before, *after])
                yield f"twice {event!r}", b"".join([*before, event, event, *after])
            if after and not (free[at] and free[at + 1]):
                swapped = [*before, after[0], event, *after[1:]]
                yield f"swapped {event!r} and {after[0]!r}", b"".join(swapped)

    assert wrong(wire, cases()) == []


def changed(stream: bytes, at: int, by: int) -> bytes:
    return stream[:at] + bytes([stream[at] ^ by]) + stream[at + 1 :]


def shown(stream: bytes, at: int) -> str:
    return json.dumps(stream[max(0, at - 25) : at + 25].decode("utf-8", "replace"))
