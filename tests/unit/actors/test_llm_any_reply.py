"""Whatever an endpoint sends: the actor reports, and the next request leaves no tool call unanswered."""

import json
from typing import Any, get_args

import anyio
import httpx
import pytest
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llm_desk import KEY, LISTING, OPENING, desk, settings_for
from rows import first_of
from wire_bodies import JSON_VALUES, call_ids

from grue.actors.llm import LlmEndpoint
from grue.messages import CompletionFailed, CompletionReceived, ConversationItem, ToolMessage, UserText
from grue.protocol.chat_wire.formats import FORMATS, WireName
from grue.protocol.chat_wire.profile import WireProfile
from grue.protocol.retry import RetryPolicy
from grue.testing.providers.dialects import Dialect, dialect_of

PROFILES: dict[WireName, WireProfile] = {wire: FORMATS[wire].profile for wire in get_args(WireName)}
CALLS = [
    {"id": call_id, "type": "function", "function": {"name": "think.think", "arguments": '{"thought": "hm"}'}}
    for call_id in ("a", "b")
]
MESSAGE = {"role": "assistant", "content": "Hm.", "reasoning_content": "deep", "tool_calls": CALLS}
COMPLETION = {
    "model": "m",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "tool_calls"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5},
}


def dialect(wire: WireName) -> Dialect:
    found = dialect_of(FORMATS[wire].path)
    assert found is not None
    return found


def sound_body(wire: WireName, *, stream: bool) -> bytes:
    whole = dialect(wire).from_chat(COMPLETION, {"include": ["reasoning.encrypted_content"]})
    return b"".join(dialect(wire).events(whole, {})) if stream else json.dumps(whole).encode()


async def two_requests(wire: WireName, first_body: bytes, *, stream: bool) -> list[bytes]:
    """Send a request that gets `first_body`, and the one that a turn would send next; return both bodies."""
    sent: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.content)
        kind = "text/event-stream" if stream else "application/json"
        return httpx.Response(200, headers={"Content-Type": kind}, content=first_body)

    retry = RetryPolicy(max_retries=0, timeout_s=60.0)
    configured = settings_for("http://llm.invalid/v1", profile=PROFILES[wire], retry=retry)
    async with desk(LlmEndpoint(configured, transport=httpx.MockTransport(answer))) as agent:
        outcome = (await agent.ask(OPENING, LISTING, stream=stream)).body
        assert isinstance(outcome, CompletionReceived | CompletionFailed)
        new: list[ConversationItem] = [UserText("And?")]
        if isinstance(outcome, CompletionReceived):
            # Not all of them: as where a host ends a turn in their middle.
            new = [*(ToolMessage(call.call_id, "1") for call in outcome.tool_calls[::2]), *new]
        await agent.ask(new, LISTING, stream=stream)
    return sent


def check(wire: WireName, body: bytes, *, stream: bool) -> None:
    requests = anyio.run(lambda: two_requests(wire, body, stream=stream))
    assert len(requests) == 2
    for request in requests:
        calls, answers = call_ids(request, PROFILES[wire])
        assert sorted(calls) == sorted(answers)
        assert len(set(calls)) == len(calls)
        assert KEY.encode() not in request


wires = pytest.mark.parametrize("wire", list(PROFILES))
one_wire = pytest.mark.parametrize("wire", first_of(PROFILES))
streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
patient = settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])


@wires
@streams
def test_of_a_sound_reply_the_calls_that_were_answered_are_shown(wire: WireName, stream: bool) -> None:
    body = sound_body(wire, stream=stream)
    requests = anyio.run(lambda: two_requests(wire, body, stream=stream))
    assert call_ids(requests[1], PROFILES[wire]) == (["a"], ["a"])


@one_wire
@streams
@patient
@given(body=st.binary(max_size=200))
def test_any_bytes(wire: WireName, stream: bool, body: bytes) -> None:
    check(wire, body, stream=stream)


MUTATIONS = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 40), st.binary(max_size=5)), min_size=1, max_size=3
)


@one_wire
@streams
@patient
@given(mutations=MUTATIONS)
def test_a_reply_with_bytes_changed(
    wire: WireName, stream: bool, mutations: list[tuple[int, int, bytes]]
) -> None:
    body = sound_body(wire, stream=stream)
    for at, removed, inserted in mutations:
        place = at % (len(body) + 1)
        body = body[:place] + inserted + body[place + removed :]
    check(wire, body, stream=stream)


def replaced(value: Any, at: int, by: object) -> tuple[Any, int]:
    """Return a JSON value with its `at`-th part replaced (itself is the first), and what is left of `at`."""
    if at == 0:
        return by, -1
    at -= 1
    if isinstance(value, dict):
        items = {}
        for key, member in value.items():
            items[key], at = replaced(member, at, by) if at >= 0 else (member, at)
        return items, at
    if isinstance(value, list):
        members = []
        for member in value:
            changed, at = replaced(member, at, by) if at >= 0 else (member, at)
            members.append(changed)
        return members, at
    return value, at


@one_wire
@streams
@patient
@given(
    changes=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), JSON_VALUES), min_size=1, max_size=3)
)
@pytest.mark.slow
def test_a_reply_with_values_changed(
    wire: WireName, stream: bool, changes: list[tuple[int, int, object]]
) -> None:
    body = sound_body(wire, stream=stream)
    prefix = b"data: " if stream else b""
    parts = [line for line in body.split(b"\n") if line.startswith(prefix + b"{")]
    for at, which, by in changes:
        old = parts[which % len(parts)]
        changed, _ = replaced(json.loads(old.removeprefix(prefix)), at, by)
        body = body.replace(old, prefix + json.dumps(changed).encode())
        parts = [line for line in body.split(b"\n") if line.startswith(prefix + b"{")] or [old]
    check(wire, body, stream=stream)
