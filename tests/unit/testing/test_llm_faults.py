"""Replies that fail on their way: each fault, as a client sees it on the wire."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_faults import (
    broken_off,
    dripping,
    empty,
    error_in_200,
    error_in_stream,
    garbage_in_stream,
    mistyped,
    rate_limited,
    redirect,
    reset,
    stalled,
    truncated,
    web_page,
)
from grue.testing.llm_server import LlmReply, ScriptedLlmServer, silence, text_reply

SOUND = text_reply("The lamp is lit.")
ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@contextmanager
def serving(*replies: LlmReply) -> Iterator[ScriptedLlmServer]:
    with ScriptedLlmServer(replies) as server:
        yield server


def post(server: ScriptedLlmServer, **more: Any) -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=60) as client:
        return client.post(f"{server.base_url}/chat/completions", json=ASKED, **more)


def got(reply: LlmReply) -> httpx.Response:
    with serving(reply) as server:
        return post(server)


def on_the_wire(server: ScriptedLlmServer, **more: Any) -> socket.socket:
    """Send a request and return its socket."""
    port = int(server.base_url.rpartition(":")[2].partition("/")[0])
    wire = socket.create_connection(("127.0.0.1", port), timeout=60)
    body = json.dumps({**ASKED, **more}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    wire.sendall(head.encode() + body)
    return wire


def received(wire: socket.socket, into: bytearray) -> None:
    """Gather what comes, up to the end."""
    while more := wire.recv(1 << 16):
        into += more


def test_a_stall_comes_after_the_head_and_half_the_body() -> None:
    into = bytearray()
    with serving(stalled(SOUND)) as server, on_the_wire(server) as wire:
        wire.settimeout(0.3)
        with pytest.raises(TimeoutError):
            received(wire, into)
    head, _, part = bytes(into).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(SOUND.body)}".encode() in head
    assert part == SOUND.body[: len(SOUND.body) // 2]


def test_a_drip_takes_its_time_and_is_whole() -> None:
    started = time.monotonic()
    size = len(SOUND.body) // 10
    assert got(dripping(SOUND, size=size, every_s=0.01)).content == SOUND.body
    assert time.monotonic() - started >= 0.1


@pytest.mark.parametrize(
    "reply",
    [reset(SOUND), reset(error_in_stream(SOUND)), reset(SOUND, after=0.5)],
    ids=["in place of a reply", "in place of a stream", "in its middle"],
)
def test_a_reset(reply: LlmReply) -> None:
    into = bytearray()
    with (
        serving(reply) as server,
        on_the_wire(server) as wire,
        pytest.raises(ConnectionResetError),
    ):
        received(wire, into)
    assert reply.after is not None or not into


def test_less_than_promised() -> None:
    with pytest.raises(httpx.RemoteProtocolError, match="without sending complete message body"):
        got(broken_off(SOUND))


@pytest.mark.parametrize(
    "reply",
    [broken_off(error_in_stream(SOUND)), replace(SOUND, amid="error", then="drop")],
    ids=["at a place", "in the middle"],
)
def test_a_connection_that_is_dropped_after_an_error_in_a_stream(reply: LlmReply) -> None:
    into = bytearray()
    with serving(reply) as server, on_the_wire(server, stream=True) as wire:
        received(wire, into)
    head, _, events = bytes(into).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: text/event-stream" in head
    assert b"broke off" in events.rpartition(b"data: ")[2]
    assert not events.endswith(b"0\r\n\r\n"), "the stream has no proper end"
    assert got(reply).json() == json.loads(SOUND.body), "this reply is not streamed"


def test_truncated_json_has_its_right_length() -> None:
    response = got(truncated(SOUND, after=0.7))
    assert int(response.headers["content-length"]) == len(response.content)
    assert response.content == SOUND.body[: int(len(SOUND.body) * 0.7)]


@pytest.mark.parametrize("fault", [error_in_stream, garbage_in_stream])
def test_a_fault_of_streams_leaves_a_reply_without_a_stream_whole(
    fault: Callable[[LlmReply], LlmReply],
) -> None:
    assert got(fault(SOUND)).json() == json.loads(SOUND.body)


def test_an_error_inside_a_200() -> None:
    response = got(error_in_200("No upstream.", 503, metadata={"provider_name": "X"}))
    assert response.status_code == 200
    assert response.json() == {
        "error": {"message": "No upstream.", "code": 503, "metadata": {"provider_name": "X"}}
    }


@pytest.mark.slow
def test_rate_limits_say_when_to_come_back() -> None:
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=30)
    by_date = got(rate_limited(soon)).headers["retry-after"]
    assert by_date.endswith("GMT")
    assert parsedate_to_datetime(by_date) == soon
    assert got(rate_limited(0.5)).headers["retry-after"] == "0.5"
    bare = got(rate_limited())
    assert (bare.status_code, "retry-after" in bare.headers) == (429, False)


@pytest.mark.parametrize(
    ("reply", "status", "content_type", "body"),
    [
        (web_page(), 200, "text/html", b"<title>Bad gateway</title>"),
        (web_page(502, "<b>"), 502, "text/html", b"<title>&lt;b&gt;</title>"),
        (redirect("/elsewhere"), 307, None, b""),
        (mistyped(SOUND, "text/plain"), 200, "text/plain", b"The lamp is lit."),
        (empty(), 200, "application/json", b""),
    ],
    ids=["page", "bad gateway", "redirect", "mistyped", "empty"],
)
def test_what_is_not_what_it_should_be(
    reply: LlmReply, status: int, content_type: str | None, body: bytes
) -> None:
    response = got(reply)
    assert (response.status_code, response.headers.get("content-type")) == (status, content_type)
    assert body in response.content
    assert bool(response.content) == bool(body)


@pytest.mark.slow
def test_the_next_request_is_served_after_a_fault() -> None:
    faults = [reset(), reset(SOUND, after=0.5), broken_off(SOUND)]
    with serving(*faults, SOUND) as server:
        for _ in faults:
            with pytest.raises(httpx.HTTPError):
                post(server)
        assert post(server).content == SOUND.body


@pytest.mark.parametrize(
    "reply",
    [silence(), stalled(SOUND), dripping(SOUND, size=1, every_s=60)],
    ids=["silent", "stalled", "drip"],
)
def test_every_wait_ends_when_the_server_closes(reply: LlmReply) -> None:
    with assert_nothing_left():
        with serving(reply) as server:
            wire = on_the_wire(server)
            while not server.requests:
                threading.Event().wait(0.005)
        received(wire, bytearray())
        wire.close()


def test_a_client_that_goes_is_no_accident(capfd: pytest.CaptureFixture[str]) -> None:
    with serving(dripping(SOUND, size=1, every_s=0.001)) as server:
        on_the_wire(server).close()
        while not server.requests:
            threading.Event().wait(0.005)
    assert capfd.readouterr().err == ""


def test_the_models_may_fail_too() -> None:
    with ScriptedLlmServer([], models=web_page(503)) as server:
        response = httpx.get(f"{server.base_url}/models", trust_env=False)
        assert httpx.get(f"{server.base_url}/nothing", trust_env=False).status_code == 404
    assert response.status_code == 503
    assert [listing.path for listing in server.listings] == ["/v1/models", "/v1/nothing"]
