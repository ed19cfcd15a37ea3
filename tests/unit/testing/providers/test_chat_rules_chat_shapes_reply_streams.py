"""Streams of the scripted endpoint: put together again, they say what the plain reply says."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.testing.llm_faults import (
    compressed,
    dripping,
    error_in_stream,
    garbage_in_stream,
    mistyped,
    stalled,
    truncated,
    web_page,
)
from grue.testing.llm_server import (
    LlmReply,
    ScriptedLlmServer,
    error_reply,
    refusal_reply,
    text_reply,
    tool_calls_reply,
)
from grue.testing.providers.chat_rules import PIECES, pieces
from grue.testing.providers.dialects import CHAT, DIALECTS, Dialect

Json = dict[str, Any]
ALL = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
HEADERS = {"x-api-key": "sk-made-up", "anthropic-version": "2023-06-01"}
LONG = "Zürich — 🐉 " * 20
ASKED: dict[str, Json] = {
    "chat_completions": {"messages": [{"role": "user", "content": "hi"}]},
    "responses": {"input": "hi"},
    "messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 99},
}


def read(stream: bytes) -> list[tuple[str, Any]]:
    """Return the events of a stream: name, and content where it is JSON."""
    events = []
    for block in stream.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        fields = dict(line.split(": ", 1) for line in lines)
        if "data" in fields:
            text = fields["data"]
            events.append((fields.get("event", ""), json.loads(text) if text[:1] == "{" else text))
    return events


def put_together(dialect: Dialect, stream: bytes) -> Json:
    """Return the reply that a stream amounts to, in as far as its deltas say it."""
    return {"chat_completions": _chat, "responses": _responses, "messages": _messages}[dialect.name](
        read(stream)
    )


def _chat(events: list[tuple[str, Any]]) -> Json:
    assert events.pop() == ("", "[DONE]")
    message: Json = {}
    finish = None
    for _, chunk in events:
        for choice in chunk["choices"]:
            finish = choice["finish_reason"] or finish
            for field, value in choice["delta"].items():
                if field == "tool_calls":
                    _add_call(message.setdefault("tool_calls", []), *value)
                else:
                    message[field] = message.get(field, "") + value
    return {"message": message, "finish_reason": finish}


def _add_call(calls: list[Json], delta: Json) -> None:
    if delta["index"] == len(calls):
        calls.append({**delta, "function": dict(delta["function"])})
        del calls[-1]["index"]
    else:
        calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]


def _messages(events: list[tuple[str, Any]]) -> Json:
    names = [name for name, _ in events]
    assert (names[:2], names[-2:]) == (["message_start", "ping"], ["message_delta", "message_stop"])
    message = events[0][1]["message"]
    texts: dict[int, str] = {}
    for name, event in events:
        assert event["type"] == name
        if name == "content_block_start":
            message["content"].append(event["content_block"])
        if name == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            kind = delta["type"].removesuffix("_delta")
            if kind == "input_json":
                texts[event["index"]] = texts.get(event["index"], "") + delta["partial_json"]
            else:
                block[kind] += delta[kind]
    for index, text in texts.items():
        message["content"][index]["input"] = json.loads(text)
    return {**message, **events[-2][1]["delta"], "usage": events[-2][1]["usage"]}


def _responses(events: list[tuple[str, Any]]) -> Json:
    assert [event["sequence_number"] for _, event in events] == list(range(len(events)))
    assert [name for name, _ in events[:2]] == ["response.created", "response.in_progress"]
    output: list[Json] = []
    for name, event in events:
        assert event["type"] == name
        match name.removeprefix("response."):
            case "output_item.added":
                output.append(event["item"])
            case "content_part.added":
                output[-1]["content"].append(event["part"])
            case "reasoning_summary_part.added":
                output[-1]["summary"].append(event["part"])
            case "output_text.delta" | "refusal.delta" as kind:
                output[-1]["content"][-1][kind.removeprefix("output_").split(".")[0]] += event["delta"]
            case "reasoning_summary_text.delta":
                output[-1]["summary"][-1]["text"] += event["delta"]
            case "function_call_arguments.delta":
                output[-1]["arguments"] += event["delta"]
            case "output_item.done":
                # What only the end says: that it is complete, and the seal of a reasoning item.
                last = {"encrypted_content": ..., "status": ...}
                assert {**output[-1], **last} == {**event["item"], **last}
    return {**events[-1][1]["response"]}


@ALL
@given(
    content=st.none() | st.text(min_size=1),
    arguments=st.lists(st.dictionaries(st.text(), st.text() | st.integers(), max_size=3), max_size=3),
)
def test_a_stream_amounts_to_the_reply(dialect: Dialect, content: str | None, arguments: list[Json]) -> None:
    said = tool_calls_reply(*[(f"t{n}", each) for n, each in enumerate(arguments)], content=content)
    reply = dialect.reply(said.body, 200, {})
    assert reply is not None
    amount = put_together(dialect, b"".join(dialect.events(reply, {})))
    if dialect is CHAT:
        message = reply["choices"][0]["message"]
        assert amount["message"].get("tool_calls", []) == message["tool_calls"]
        assert amount["message"]["content"] == (content or "")
    else:
        assert amount == reply


def asked(dialect: Dialect, **more: object) -> Json:
    return {"model": "m", "stream": True, **ASKED[dialect.name], **more}


def served(dialect: Dialect, reply: LlmReply, **more: object) -> httpx.Response:
    with ScriptedLlmServer([reply]) as server, httpx.Client(trust_env=False, headers=HEADERS) as client:
        return client.post(server.base_url + dialect.path, json=asked(dialect, **more))


def gather(response: httpx.Response, received: bytearray) -> None:
    for chunk in response.iter_raw():
        received += chunk


@ALL
@pytest.mark.parametrize(
    "reply",
    [
        text_reply(LONG, reasoning_content="Hm. " * 20),
        text_reply("cut", finish_reason="length"),
        refusal_reply("I must not."),
        tool_calls_reply(("t", {"a": LONG}), ("u", {}), reasoning_content="Hm."),
    ],
    ids=["text", "length", "refusal", "calls"],
)
def test_streams_over_http(dialect: Dialect, reply: LlmReply) -> None:
    more = {"include": ["reasoning.encrypted_content"]} if dialect.name == "responses" else {}
    response = served(dialect, reply, **more)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["transfer-encoding"] == "chunked"
    amount = put_together(dialect, response.content)
    if dialect is CHAT:
        choice = json.loads(reply.body)["choices"][0]
        assert amount["finish_reason"] == choice["finish_reason"]
        assert amount["message"].get("reasoning_content") == choice["message"].get("reasoning_content")
    else:
        plain = dialect.reply(reply.body, 200, asked(dialect, **more))
        assert plain is not None
        # Where there is nothing to explain, the last event has no place for it.
        assert {"stop_details": None, **amount} == {"stop_details": None, **plain}


def test_text_and_arguments_come_in_fragments() -> None:
    assert "".join(pieces(LONG)) == LONG
    assert 5 < len(pieces(LONG)) <= PIECES
    assert pieces("") == []
    deltas = [
        call["function"]["arguments"]
        for _, chunk in read(served(CHAT, tool_calls_reply(("t", {"a": LONG}))).content)[:-1]
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls", ())
    ]
    assert len(deltas) > 5
    assert json.loads("".join(deltas)) == {"a": LONG}


@pytest.mark.slow
def test_usage_comes_last_where_it_is_asked_for() -> None:
    without = read(served(CHAT, text_reply("hi")).content)
    with_usage = read(served(CHAT, text_reply("hi"), stream_options={"include_usage": True}).content)
    assert not any("usage" in chunk for _, chunk in without[:-1])
    assert (with_usage[-2][1]["choices"], with_usage[-2][1]["usage"]["total_tokens"]) == ([], 15)


@ALL
def test_errors_come_plain(dialect: Dialect) -> None:
    response = served(dialect, error_reply(429, "Slow down"))
    assert (response.status_code, response.json()["error"]["message"]) == (429, "Slow down")


@ALL
@pytest.mark.slow
def test_a_stream_that_ends_early_says_nothing_of_it(dialect: Dialect) -> None:
    whole = served(dialect, text_reply(LONG)).content
    part = served(dialect, truncated(text_reply(LONG))).content
    assert whole.startswith(part)
    assert 0 < len(part) < len(whole)
    assert part.endswith(b"\n\n")


@ALL
def test_an_error_event_ends_a_stream(dialect: Dialect) -> None:
    name, event = read(served(dialect, error_in_stream(text_reply(LONG))).content)[-1]
    assert "broke off" in str(event)
    assert name == ("" if dialect is CHAT else "error")


@ALL
@pytest.mark.parametrize("stream", [True, False])
def test_a_reply_is_compressed_in_the_format_of_the_request(dialect: Dialect, stream: bool) -> None:
    response = served(dialect, compressed(text_reply(LONG), stages=2), stream=stream)
    assert response.headers["Content-Encoding"] == "gzip, gzip"
    assert response.content == served(dialect, text_reply(LONG), stream=stream).content


@ALL
def test_a_fault_of_streams_leaves_a_web_page_whole(dialect: Dialect) -> None:
    assert served(dialect, error_in_stream(web_page())).content == web_page().body
    assert served(dialect, garbage_in_stream(web_page())).content == web_page().body


@ALL
@pytest.mark.slow
def test_garbage_stands_between_events(dialect: Dialect) -> None:
    whole = served(dialect, text_reply(LONG)).content
    garbled = served(dialect, garbage_in_stream(text_reply(LONG), b"data: {no\n\n")).content
    assert garbled != whole
    assert garbled.replace(b"data: {no\n\n", b"") == whole


@ALL
def test_a_stream_stalls_between_two_events(dialect: Dialect) -> None:
    received = bytearray()
    with (
        ScriptedLlmServer([stalled(text_reply(LONG))]) as server,
        httpx.Client(trust_env=False, timeout=0.3, headers=HEADERS) as client,
        client.stream("POST", server.base_url + dialect.path, json=asked(dialect)) as response,
        pytest.raises(httpx.ReadTimeout),
    ):
        gather(response, received)
    assert received.endswith(b"\n\n")
    assert len(read(bytes(received))) > 1


def test_a_stream_may_drip_and_be_mistyped() -> None:
    response = served(CHAT, dripping(mistyped(text_reply("Zürich 🐉")), size=7, every_s=0.0001))
    assert response.headers["content-type"] == "text/html"
    assert put_together(CHAT, response.content)["message"]["content"] == "Zürich 🐉"
