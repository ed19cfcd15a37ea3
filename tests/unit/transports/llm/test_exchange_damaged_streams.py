"""Streams damaged in every place: the reply is what was sent, or there is none; never another one.

Two formats have no redundancy inside a text: where a piece of it is lost, said twice, or has another letter
in it, what is left is a sound stream that says something else. Those places are named here (`LETTERS`,
`PIECES`) and left out, so that everything else is held to the rule. Responses say everything twice.
"""

import itertools
import json
import pickle
import re
from bisect import bisect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple

import anyio
import httpx
import pytest

from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.formats import FORMATS, WireName
from grue.protocol.chat_wire.server_events import DamagedStream, OversizedStream
from grue.protocol.chat_wire.wire_format import Delta, Reply
from grue.protocol.retry import RetryPolicy
from grue.protocol.tools.names import WireNames
from grue.testing.providers.dialects import dialect_of
from grue.transports.llm.exchange import (
    Answered,
    Connection,
    Connections,
    EncodingError,
    Streamed,
    _Incoming,
    _unreadable,
    exchange,
)

NAMES = WireNames("canonical")
PATIENCE = RetryPolicy(timeout_s=60.0)
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

EVERY = pytest.mark.parametrize("every", [17, pytest.param(1, marks=pytest.mark.slow)])
"""How many of the places are tried: one in so many. One in 17 goes through a whole exchange, too."""

WIRES = pytest.mark.parametrize("wire", list(FORMATS))


def events_of(wire: WireName) -> list[bytes]:
    dialect = dialect_of(FORMATS[wire].path)
    assert dialect is not None
    whole = dialect.from_chat(COMPLETION, {"include": ["reasoning.encrypted_content"]})
    return list(dialect.events(whole, {"stream_options": {"include_usage": True}}))


class Case(NamedTuple):
    name: str
    at: int
    stream: bytes


def unseen(_: Delta) -> None:
    pass


def said(wire: WireName, body: bytes) -> object:
    """Return what a reply says, as far as a turn depends on it, or the fault's kind."""
    reply = FORMATS[wire].decode(body, NAMES, request=1)
    if isinstance(reply, Reply):
        calls = [(call.name, call.arguments) for call in reply.tool_calls]
        return reply.content, reply.reasoning, reply.refusal, reply.finish_reason, calls
    return reply.kind


async def echo(request: httpx.Request) -> httpx.Response:
    """Reply with the body of the request."""

    async def chunks() -> AsyncIterator[bytes]:
        yield request.content

    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=chunks())


ECHO = Connections(lambda: Connection(https=False, transport=httpx.MockTransport(echo)))


async def exchanged(wire: WireName, stream: bytes) -> object:
    """Return what comes of a stream that arrives in a whole exchange."""
    streamed = Streamed(FORMATS[wire].assembler(), unseen)
    request = httpx.Request("POST", "http://llm.invalid/v1", content=stream)
    answered = await exchange(ECHO, request, PATIENCE, streamed)
    if isinstance(answered, Answered):
        return said(wire, answered.body)
    assert isinstance(answered, Fault)
    return answered.kind


class SoundBeginnings:
    """The reader of a stream's events, as it is after each of them.

    Damage leaves the events before it as they are. To read them again for each of 50,000 cases would take
    most of the time.
    """

    def __init__(self, wire: WireName) -> None:
        self._wire = wire
        self._ends: list[int] = []
        self._readers: list[bytes] = []

    async def read(self) -> None:
        reader = _Incoming(Streamed(FORMATS[self._wire].assembler(), unseen), named=True)
        events = events_of(self._wire)
        self._ends = [0, *itertools.accumulate(map(len, events))]
        for event in events:
            self._readers.append(pickle.dumps(reader))
            await reader.take(event)

    async def outcome(self, case: Case) -> object:
        """Return what comes of a stream that is sound up to `case.at`."""
        number = bisect(self._ends, case.at) - 1
        reader: _Incoming = pickle.loads(self._readers[number])
        try:
            await reader.take(case.stream[self._ends[number] :])
            body = await reader.body()
        except (EncodingError, OversizedStream, DamagedStream) as error:
            return _unreadable(error, 200).kind
        return "unavailable" if body is None else said(self._wire, body)


async def wrong(
    wire: WireName, cases: Iterable[Case], *reads: Callable[[Case], Awaitable[object]]
) -> list[str]:
    """Return the cases whose reply is another one than was sent, and what it is."""
    sound = await exchanged(wire, b"".join(events_of(wire)))
    assert isinstance(sound, tuple), sound
    found = []
    for case in cases:
        seen, *others = [await read(case) for read in reads]
        assert all(other == seen for other in others), (case.name, seen, others)
        if seen != sound and seen not in ("damaged", "unavailable", "invalid_reply"):
            found.append(f"{case.name}: {seen}")
    return found


def wrong_anywhere(wire: WireName, every: int, cases: Iterable[Case]) -> list[str]:
    async def read() -> list[str]:
        beginnings = SoundBeginnings(wire)
        await beginnings.read()
        if every == 1:
            return await wrong(wire, cases, beginnings.outcome)
        return await wrong(wire, cases, beginnings.outcome, lambda case: exchanged(wire, case.stream))

    return anyio.run(read)


@WIRES
@EVERY
@pytest.mark.slow
def test_a_stream_cut_anywhere(wire: WireName, every: int) -> None:
    stream = b"".join(events_of(wire))
    cases = (Case(f"cut at {at}", at, stream[:at]) for at in range(0, len(stream), every))
    assert wrong_anywhere(wire, every, cases) == []


@WIRES
@EVERY
@pytest.mark.slow
def test_a_byte_that_is_no_text_anywhere(wire: WireName, every: int) -> None:
    stream = b"".join(events_of(wire))
    cases = (Case(f"at {at}", at, changed(stream, at, 0x80)) for at in range(0, len(stream), every))
    assert wrong_anywhere(wire, every, cases) == []


@WIRES
@EVERY
@pytest.mark.slow
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
    cases = (
        Case(f"{bit:#x} at {at}: {stream[max(0, at - 25) : at + 25]!r}", at, changed(stream, at, bit))
        for at, bit in bits
    )
    assert wrong_anywhere(wire, every, cases) == []


@WIRES
def test_an_event_that_is_lost_repeated_or_out_of_order(wire: WireName) -> None:
    events = events_of(wire)
    free = [PIECES[wire].search(event) is not None for event in events]

    def cases() -> Iterator[Case]:
        for at, event in enumerate(events):
            before, after = events[:at], events[at + 1 :]
            if not free[at]:
                yield Case(f"lost {event!r}", 0, b"".join([*before, *after]))
                yield Case(f"twice {event!r}", 0, b"".join([*before, event, event, *after]))
            if after and not (free[at] and free[at + 1]):
                swapped = [*before, after[0], event, *after[1:]]
                yield Case(f"swapped {event!r} and {after[0]!r}", 0, b"".join(swapped))

    assert anyio.run(wrong, wire, cases(), lambda case: exchanged(wire, case.stream)) == []


def changed(stream: bytes, at: int, by: int) -> bytes:
    return stream[:at] + bytes([stream[at] ^ by]) + stream[at + 1 :]


BEHIND = {
    "chat_completions": {
        "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "x", "function": {
            "name": "fs.wipe", "arguments": "{}"}}]}, "finish_reason": "tool_calls"}]},
    "messages": {"type": "error", "error": {"message": "x"}},
    "responses": {"type": "response.completed", "response": {"status": "completed", "output": [
        {"type": "function_call", "call_id": "x", "name": "fs.wipe", "arguments": "{}"}]}},
}  # fmt: skip


@WIRES
@pytest.mark.parametrize("end", [b"\n\n", b"\n", b""], ids=["whole", "line", "open"])
@pytest.mark.parametrize("filling", [0, 3 * 8192])
def test_an_event_behind_the_last_one_does_not_count(wire: WireName, end: bytes, filling: int) -> None:
    """Neither in the same bytes, nor in later ones, nor as the event that the end of the stream completes."""
    stream = b"".join(events_of(wire))
    behind = b": " + b"." * filling + b"\n\ndata: " + json.dumps(BEHIND[wire]).encode() + end

    async def outcomes() -> tuple[object, object]:
        return await exchanged(wire, stream), await exchanged(wire, stream + behind)

    sound, followed = anyio.run(outcomes)
    assert isinstance(sound, tuple)
    assert followed == sound


def a_bomb(wire: WireName) -> Iterator[bytes]:
    """Yield the events of a stream whose parts are no texts: two characters of JSON each, and an object."""
    many = "[" + ",".join(["{}"] * 40_000) + "]"
    begun = b"".join(events_of(wire)[:3])
    yield begun
    event = {
        "chat_completions": '{"choices": [{"index": 0, "delta": {"reasoning_details": %s}}]}',
        "messages": '{"type": "content_block_start", "index": %d, "content_block": {"type": "odd", "x": %s}}',
        "responses": '{"type": "response.output_item.done", "output_index": %d, "item": {"x": %s}}',
    }[wire]
    for number in range(60):
        said = event % ((many,) if event.count("%") == 1 else (number + 1, many))
        yield f"data: {said}\n\n".encode()


@WIRES
@pytest.mark.slow
def test_parts_that_are_no_texts_count_in_what_is_held(wire: WireName) -> None:
    async def taken() -> int:
        reader = _Incoming(Streamed(FORMATS[wire].assembler(), unseen), named=True)
        for number, event in enumerate(a_bomb(wire)):
            try:
                await reader.take(event)
            except OversizedStream:
                return number
        raise AssertionError("all of it was held")

    assert anyio.run(taken) < 20
