"""The scripted endpoint's context window: it counts, and it refuses."""

import json

import httpx
import pytest

from grue.testing.llm_server import (
    ContextWindow,
    LlmReply,
    ScriptedLlmServer,
    error_reply,
    hang_up,
    text_reply,
)
from grue.testing.llm_server import ContextWindow as Window

HELLO = {"model": "m", "messages": [{"role": "user", "content": "x" * 400}]}


def post(server: ScriptedLlmServer, body: object) -> httpx.Response:
    return httpx.post(f"{server.base_url}/chat/completions", json=body)


def test_a_request_is_counted_by_its_messages_and_tools() -> None:
    size = len(json.dumps(HELLO["messages"][0]))
    assert Window(100).count(HELLO) == 4 + size // 4
    assert Window(100, bytes_per_token=2.0).count(HELLO) == 4 + size // 2
    assert Window(100).count({**HELLO, "tools": [{"type": "function"}]}) > 4 + size // 4


def test_a_request_that_fits_is_answered_with_its_size() -> None:
    with ScriptedLlmServer([text_reply("hi")], window=ContextWindow(1000)) as server:
        usage = post(server, HELLO).json()["usage"]
    assert usage["prompt_tokens"] == Window(1000).count(HELLO)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert server.overflows == 0


@pytest.mark.slow
def test_a_request_that_is_too_long_is_refused_in_openais_words_and_uses_up_no_reply() -> None:
    with ScriptedLlmServer([text_reply("hi")], window=ContextWindow(110)) as server:
        refused = post(server, HELLO)
        short = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        assert post(server, short).json()["choices"][0]["message"]["content"] == "hi"
        too_much = post(server, {**short, "max_tokens": 200})
    assert refused.status_code == too_much.status_code == 400
    error = refused.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("This model's maximum context length is 110 tokens.")
    assert server.overflows == 2


def test_a_reply_that_is_no_completion_is_sent_as_it_is() -> None:
    for reply in (error_reply(503, "busy"), hang_up(b"x")):
        assert Window(10).counted(reply, HELLO) is reply


@pytest.mark.parametrize("usage", [None, 3, []])
def test_a_reply_whose_usage_is_no_object_is_sent_as_it_is(usage: object) -> None:
    body = json.dumps({"choices": [], "usage": usage}).encode()
    assert ContextWindow(100).counted(LlmReply(body=body), 7).body == body
