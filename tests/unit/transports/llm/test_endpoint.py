"""The endpoint: settings, connections, proxies, several event loops."""

import contextlib
import gzip
import json
import math
import threading
import traceback
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import msgspec
import pytest
from anyio.abc import SocketStream
from case_tables import each_case
from raw_http import head, raw_server

from grue.errors import MCPConfigError
from grue.messages import RequireAnswer, UserText
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.formats import FORMATS, WireName
from grue.protocol.chat_wire.profiles import OPENAI, OPENAI_CHAT, OPENROUTER, profile_for
from grue.protocol.retry import RetryPolicy
from grue.protocol.turn.completion_attempts import Breaker, larger_limit
from grue.protocol.turn.prices import Price
from grue.testing.llm_server import ScriptedLlmServer, text_reply
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings, limit_in
from grue.transports.llm.exchange import Answered

SECRETS = ("sk-recognisable-0123456789", "header-secret-0123456789", "further-secret-0123")


def secretive(base_url: str = "https://openrouter.ai/api/v1") -> LlmSettings:
    headers = {"X-Token": SECRETS[1], "X-Title": SECRETS[2]}
    return LlmSettings(base_url=base_url, model="m", api_key=SECRETS[0], extra_headers=headers)


def request_body(settings: LlmSettings) -> bytes:
    conversation = EncodedConversation(OPENAI_CHAT)
    conversation.ask((UserText("hi"),), RequireAnswer())
    return conversation.body(settings)


async def post_once(endpoint: LlmEndpoint) -> Answered:
    async with endpoint:
        answer = await endpoint.post(request_body(endpoint.settings))
    assert isinstance(answer, Answered), answer
    return answer


def test_settings_show_no_secret() -> None:
    settings = secretive()
    shown = f"{settings!r} {settings} {settings.__rich_repr__()}"
    assert not [secret for secret in SECRETS if secret in shown]
    assert "https://openrouter.ai/api/v1" in shown
    assert "X-Token" in shown
    assert "api_key=None" in repr(LlmSettings(model="m"))


@pytest.mark.parametrize(
    ("base_url", "said"),
    [
        ("", "must start with http"),
        ("openrouter.ai/api/v1", "must start with http"),
        ("ftp://host/v1", "must start with http"),
        ("http://", "must start with http"),
        ("http://[::1", "cannot be read"),
        ("http://host:99999/v1", "cannot be read"),
        ("http://xn--a/v1", "cannot be read"),
        ("http://host:0/v1", "must start with http"),
        ("https://me:pass-word@host/v1", "user or a password .* set api_key .*GRUE_API_KEY"),
        ("https://pass-word@host/v1", "user or a password"),
        ("https://host/v1?api-version=1&api_key=pass-word", "'api_key' in its query, .* set api_key"),
        ("https://me:pass-word", "cannot be read"),
    ],
)
def test_a_base_url_that_cannot_be_used(base_url: str, said: str) -> None:
    with pytest.raises(MCPConfigError, match=said) as caught:
        LlmEndpoint(LlmSettings(base_url=base_url, model="m"))
    assert "pass-word" not in "".join(traceback.format_exception(caught.value))


def test_a_query_without_a_secret_may_stay_in_the_base_url() -> None:
    endpoint = LlmEndpoint(LlmSettings(base_url="https://host/v1?api-version=2026-01-01", model="m"))
    assert endpoint.url == "https://host/v1/chat/completions?api-version=2026-01-01"


@pytest.mark.parametrize("key", ["sk-\u00e4", "sk-1\nX-Evil: 1", "sk-\x00"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(MCPConfigError, match="The API key holds characters") as caught:
        LlmEndpoint(LlmSettings(model="m", api_key=key))
    assert "sk-" not in str(caught.value)


def test_a_header_that_cannot_be_sent_is_refused_without_its_value() -> None:
    headers = {"X-Token": "header-s\u00e9cret"}
    with pytest.raises(MCPConfigError, match="The header 'X-Token' holds characters") as caught:
        LlmEndpoint(LlmSettings(model="m", extra_headers=headers))
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "X Token", "X-Token:", "X-T\u00f6ken", "X-Token\n"])
def test_a_name_that_no_header_can_have_is_refused_before_a_request(name: str) -> None:
    with pytest.raises(MCPConfigError, match="no HTTP header can carry"):
        LlmEndpoint(LlmSettings(model="m", extra_headers={name: "a"}))


@pytest.mark.parametrize(
    ("extra_body", "named"),
    [
        ({"model": "x"}, "model"),
        ({"tools": [], "stream": True, "seed": 1}, "stream, tools"),
        (
            {"messages": [], "input": [], "system": "", "tool_choice": ""},
            "input, messages, system, tool_choice",
        ),
    ],
)
def test_fields_that_the_turn_sets_are_no_ones_to_replace(extra_body: dict[str, object], named: str) -> None:
    with pytest.raises(MCPConfigError, match=f"extra_body may not have {named}:"):
        LlmEndpoint(LlmSettings(model="m", extra_body=extra_body))


@pytest.mark.parametrize(
    ("base_url", "wire", "url"),
    [
        ("http://h/v1", None, "http://h/v1/chat/completions"),
        ("http://h/v1/", "responses", "http://h/v1/responses"),
        ("http://h/v1/chat/completions", None, "http://h/v1/chat/completions"),
        ("http://h/v1/chat/completions/", "messages", "http://h/v1/messages"),
        ("http://h/v1/responses?a=b", None, "http://h/v1/responses?a=b"),
        ("http://h/messages", None, "http://h/messages"),
        ("http://h", None, "http://h/chat/completions"),
        ("https://h.example:443/v1", None, "https://h.example/v1/chat/completions"),
        ("http://[::1]:8080/v1", None, "http://[::1]:8080/v1/chat/completions"),
        ("https://H\u00f6hle.example/a b", None, "https://xn--hhle-5qa.example/a%20b/chat/completions"),
    ],
)
def test_where_requests_go(base_url: str, wire: WireName | None, url: str) -> None:
    endpoint = LlmEndpoint(LlmSettings(base_url=base_url, model="m", wire=wire))
    assert endpoint.url == url
    models = url.replace(FORMATS[endpoint.profile.wire].path, "/models")
    assert str(endpoint._request("GET", "/models").url) == models


@pytest.mark.parametrize(
    ("wire", "headers"),
    [
        ("chat_completions", {"authorization": f"Bearer {SECRETS[0]}"}),
        ("responses", {"authorization": f"Bearer {SECRETS[0]}"}),
        ("messages", {"x-api-key": SECRETS[0], "anthropic-version": "2023-06-01"}),
    ],
)
def test_the_key_goes_out_as_the_format_carries_it(wire: WireName, headers: dict[str, str]) -> None:
    endpoint = LlmEndpoint(LlmSettings(base_url="http://h/v1", model="m", api_key=SECRETS[0], wire=wire))
    sent = {name.lower(): value for name, value in endpoint.headers.items()}
    assert headers.items() <= sent.items()
    assert sum(SECRETS[0] in value for value in sent.values()) == 1


def test_a_lesson_that_another_conversation_had_is_this_ones_too() -> None:
    endpoint = LlmEndpoint(LlmSettings(base_url="http://h/v1", model="m"))
    followed = endpoint.profile
    refusal = Fault(kind="refused", status=400, message="Invalid tool name: it must match a pattern")
    assert endpoint.adapt_to_error(refusal, followed)
    assert endpoint.profile.names == "encoded"
    learned = endpoint.profile
    assert not endpoint.adapt_to_error(refusal)
    assert endpoint.adapt_to_error(refusal, followed)
    assert endpoint.profile == learned
    assert not endpoint.adapt_to_error(refusal, learned)


@pytest.mark.parametrize(
    ("most", "limit", "factor", "larger"),
    [
        (None, 100, 4.0, 400),
        (None, 100, 1.0, None),
        (None, 3, 1.1, None),
        (None, None, 4.0, None),
        (150, 100, 4.0, 150),
        (100, 100, 4.0, None),
        (50, 100, 4.0, None),
    ],
)
def test_the_larger_limit_for_a_reply_that_was_cut(
    most: int | None, limit: int | None, factor: float, larger: int | None
) -> None:
    profile = msgspec.structs.replace(OPENROUTER, max_output_tokens=most, default_max_tokens=limit)
    settings = LlmSettings(model="m", profile=profile, retry=RetryPolicy(length_retry_factor=factor))
    assert larger_limit(settings, profile, settings.retry) == larger
    if limit is not None:
        own = msgspec.structs.replace(settings, max_tokens=limit)
        assert larger_limit(own, profile, settings.retry) is None


def test_the_profile_follows_the_base_url_unless_given() -> None:
    assert LlmEndpoint(LlmSettings(model="m")).profile is OPENROUTER
    assert LlmEndpoint(LlmSettings(model="m", profile=OPENAI)).profile is OPENAI


@pytest.mark.parametrize("ending", ["", "/", "/chat/completions", "?api-version=1"])
def test_the_url_and_the_headers_that_are_sent(ending: str) -> None:
    with ScriptedLlmServer([text_reply("hi")]) as server:
        settings = secretive(server.base_url + ending)
        key = msgspec.structs.replace(settings, api_key=f" {SECRETS[0]}\n")
        anyio.run(post_once, LlmEndpoint(key))
    (request,) = server.requests
    assert request.path.partition("?")[0] == "/v1/chat/completions"
    assert request.path.endswith("?api-version=1") is ("?" in ending)
    assert request.headers["authorization"] == f"Bearer {SECRETS[0]}"
    assert request.headers["x-token"] == SECRETS[1]
    assert request.headers["content-type"] == "application/json"


def test_without_a_key_no_authorisation_is_sent() -> None:
    with ScriptedLlmServer([text_reply("hi")]) as server:
        anyio.run(post_once, LlmEndpoint(LlmSettings(base_url=server.base_url, model="m")))
    assert "authorization" not in server.requests[0].headers


@each_case(
    "body, limit",
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": None, "max_completion_tokens": 6}, 6),
        ({"max_output_tokens": 7.0}, 7),
        ({"max_tokens": "5"}, None),
        ({"max_tokens": {"x": 5}, "max_output_tokens": 7}, 7),
    ],
)
def test_the_limit_of_a_reply_is_read_from_any_body(body: dict[str, object], limit: int | None) -> None:
    assert limit_in(json.dumps(body).encode()) == limit


def test_a_header_of_the_user_takes_the_place_of_the_endpoints_own_whatever_its_case() -> None:
    given = {"authorization": "Basic abc", "CONTENT-TYPE": "application/json; charset=utf-8"}
    endpoint = LlmEndpoint(LlmSettings(model="m", api_key="key", extra_headers=given))
    lower = [name.lower() for name in endpoint.headers]
    assert len(lower) == len(set(lower)), "no header is sent twice"
    assert given.items() <= endpoint.headers.items()


def test_each_request_has_its_host_and_its_length_once() -> None:
    with ScriptedLlmServer(lambda _: text_reply("hi")) as server:
        endpoint = LlmEndpoint(LlmSettings(base_url=server.base_url, model="m"))
        host = server.base_url.split("/")[2]
        anyio.run(post_once, endpoint)
        named = LlmEndpoint(
            LlmSettings(
                base_url=server.base_url,
                model="m",
                extra_headers={"host": "llm.example", "Transfer-Encoding": "chunked"},
            )
        )
        anyio.run(post_once, named)
    assert [request.headers["host"] for request in server.requests] == [host, "llm.example"]
    lengths = [request.headers["content-length"] for request in server.requests]
    assert lengths == [str(len(request_body(endpoint.settings)))] * 2
    assert {request.headers["connection"] for request in server.requests} == {"keep-alive"}
    assert all("transfer-encoding" not in request.headers for request in server.requests)


def test_a_transport_of_ones_own_can_read_the_whole_request() -> None:
    class Reading(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, content=request.content)

    endpoint = LlmEndpoint(LlmSettings(model="m"), transport=Reading())
    assert anyio.run(post_once, endpoint).body == request_body(endpoint.settings)


def test_an_id_that_a_provider_has_chosen_changes_nothing_else_of_the_url() -> None:
    asked: list[httpx.URL] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url)
        return httpx.Response(200, json={})

    async def ask() -> None:
        settings = LlmSettings(base_url="http://127.0.0.1/v1?zone=a", model="m")
        async with LlmEndpoint(settings, transport=httpx.MockTransport(answer)) as endpoint:
            await endpoint.call("GET", "/batches/b\u00e9?x#y", params={"after": "a=b&c"})
            async for _ in endpoint.download("/files/\u00e9?x/content", 10):
                pass

    anyio.run(ask)
    assert [str(url) for url in asked] == [
        "http://127.0.0.1/v1/batches/b%C3%A9%3Fx%23y?zone=a&after=a%3Db%26c",
        "http://127.0.0.1/v1/files/%C3%A9%3Fx/content?zone=a",
    ]


class Endless(httpx.AsyncByteStream):
    """A body whose next piece is always there at once. It ends after many pieces, so that no test hangs."""

    def __init__(self) -> None:
        self.sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self.sent < 2_000_000:
            await anyio.lowlevel.checkpoint()
            self.sent += 1
            yield b"x" * 50


@pytest.mark.parametrize(
    ("status", "most_bytes", "kind"),
    [(200, 1000, "invalid_reply"), (200, 10**12, "timed_out"), (503, 1000, "unavailable")],
)
def test_a_file_without_an_end_is_a_fault(
    status: int, most_bytes: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grue.transports.llm.endpoint._FILE_TIMEOUT_S", 0.1)
    body = Endless()

    async def pieces() -> list[bytes | Fault]:
        settings = LlmSettings(model="m", retry=RetryPolicy(timeout_s=0.2))
        transport = httpx.MockTransport(lambda _: httpx.Response(status, stream=body))
        async with LlmEndpoint(settings, transport=transport) as endpoint:
            return [piece async for piece in endpoint.download("/files/1/content", most_bytes)]

    *read, fault = anyio.run(pieces)
    assert isinstance(fault, Fault)
    assert fault.kind == kind
    assert sum(len(piece) for piece in read if isinstance(piece, bytes)) <= most_bytes
    assert body.sent < 2_000_000


def test_a_fork_takes_the_form_of_a_profile_that_the_user_has_set() -> None:
    settings = LlmSettings(base_url="http://127.0.0.1/v1", model="m")
    usual = LlmEndpoint(settings)
    mine = msgspec.structs.replace(usual.profile, names="encoded", system_role="user")
    recorded = LlmEndpoint(msgspec.structs.replace(settings, profile=mine)).asked()
    assert recorded.form == {"names": "encoded", "system_role": "user"}
    assert usual.asked().form == {}
    usual.recall_form(recorded)
    assert usual.profile == mine


def test_a_file_that_does_not_begin_in_time_names_the_time_that_was_waited() -> None:
    async def never(_: httpx.Request) -> httpx.Response:
        await anyio.sleep_forever()
        raise AssertionError

    async def pieces() -> list[bytes | Fault]:
        settings = LlmSettings(model="m", retry=RetryPolicy(timeout_s=0.2))
        async with LlmEndpoint(settings, transport=httpx.MockTransport(never)) as endpoint:
            return [piece async for piece in endpoint.download("/files/1/content", 10)]

    (fault,) = anyio.run(pieces)
    assert isinstance(fault, Fault)
    assert fault.message == "no complete reply within 0.2 s"


def test_connections_live_as_long_as_someone_holds_the_endpoint() -> None:
    async def two_turns(endpoint: LlmEndpoint, *, held: bool) -> None:
        async with contextlib.AsyncExitStack() as stack:
            if held:
                await stack.enter_async_context(endpoint)
            await post_once(endpoint)
            await post_once(endpoint)

    for held, accepted in ((True, 1), (False, 2)):
        with ScriptedLlmServer(lambda _: text_reply("hi")) as server:
            endpoint = LlmEndpoint(LlmSettings(base_url=server.base_url, model="m"))
            anyio.run(lambda endpoint=endpoint, held=held: two_turns(endpoint, held=held))
        assert server.accepted == accepted


def test_one_endpoint_serves_event_loops_in_several_threads() -> None:
    threads = 4
    meeting = threading.Barrier(threads)

    async def meet_and_post(endpoint: LlmEndpoint) -> int:
        async with endpoint:
            await anyio.to_thread.run_sync(meeting.wait)
            return (await post_once(endpoint)).status

    with ScriptedLlmServer(lambda _: text_reply("hi")) as server:
        endpoint = LlmEndpoint(LlmSettings(base_url=server.base_url, model="m"))
        with ThreadPoolExecutor(threads) as pool:
            statuses = list(pool.map(lambda _: anyio.run(meet_and_post, endpoint), range(threads)))
        assert statuses == [200] * threads
        assert server.accepted == threads


def test_posting_without_entering_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(RuntimeError, match="enter the endpoint"):
        anyio.run(LlmEndpoint(LlmSettings(model="m")).post, b"{}")


def test_a_proxy_from_the_environment_is_used_but_not_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NO_PROXY", "no_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    script = lambda _: text_reply("hi")  # noqa: E731 - used twice
    with ScriptedLlmServer(script) as proxy, ScriptedLlmServer(script) as server:
        monkeypatch.setenv("http_proxy", proxy.base_url.removesuffix("/v1"))
        anyio.run(post_once, LlmEndpoint(LlmSettings(base_url="http://llm.invalid/v1", model="m")))
        anyio.run(post_once, LlmEndpoint(LlmSettings(base_url=server.base_url, model="m")))
        assert [request.path for request in proxy.requests] == ["http://llm.invalid/v1/chat/completions"]
        assert len(server.requests) == 1


def test_a_transport_takes_the_place_of_the_network() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=request.content))
    endpoint = LlmEndpoint(LlmSettings(model="m"), transport=transport)
    assert anyio.run(post_once, endpoint).body == request_body(endpoint.settings)


def test_secrets_in_an_endpoints_words_are_replaced() -> None:
    endpoint = LlmEndpoint(secretive())
    failure = endpoint.describe(Fault(kind="refused", message=" ".join(SECRETS)))
    assert failure.message == "[redacted:api_key] [redacted:X-Token] [redacted:X-Title]"


def test_chance_reaches_the_waits_and_is_drawn_anew_for_each() -> None:
    """Agents that are refused at once must not come back at once."""
    settings = LlmSettings(model="m", base_url="http://llm.test/v1")
    endpoint = LlmEndpoint(settings)
    assert len({endpoint.jitter() for _ in range(5)}) > 1
    assert all(0 <= endpoint.jitter() <= 1 for _ in range(5))


def test_another_model_begins_with_what_its_name_says_and_not_with_what_was_learned() -> None:
    endpoint = LlmEndpoint(LlmSettings(base_url="https://api.openai.com/v1", model="gpt-4o", api_key="k"))
    learned = msgspec.structs.replace(endpoint.profile, streams=False)
    endpoint.recall(endpoint.first_profile, learned)
    endpoint.left_out, endpoint.breaker = frozenset({"top_k"}), Breaker(failures=1, until_s=1e12)
    endpoint.change_model("gpt-5")
    assert (endpoint.left_out, endpoint.breaker) == (frozenset(), Breaker())
    assert endpoint.settings.model == "gpt-5"
    assert endpoint.profile == endpoint.first_profile == profile_for("https://api.openai.com/v1", "gpt-5")
    assert endpoint.headers["Authorization"] == "Bearer k"


@pytest.mark.parametrize("asked", [2, "2", 0])
def test_several_replies_to_one_request_are_refused(asked: object) -> None:
    with pytest.raises(MCPConfigError, match="Leave `n` out"):
        LlmSettings(model="m", extra_body={"n": asked})
    LlmSettings(model="m", extra_body={"n": 1})


@pytest.mark.parametrize("value", [math.inf, [{"a": math.nan}]])
def test_extra_body_may_not_have_numbers_that_json_lacks(value: object) -> None:
    # They would be sent as `null`.
    with pytest.raises(MCPConfigError, match=r"extra_body=\{'typical_p': \.\.\.\}\): JSON has no number"):
        LlmSettings(model="m", extra_body={"top_a": b"1", "typical_p": value})


def test_extra_body_may_have_negative_numbers() -> None:
    extra: dict[str, object] = {"presence_penalty": -0.5, "seed": -1, "logit_bias": {"50256": -100}}
    assert LlmSettings(model="m", extra_body=extra).extra_body == extra


def test_a_price_that_is_no_price_is_refused_before_anything_is_asked() -> None:
    price = Price(input=1.0, output=2.0)
    assert LlmSettings(model="m", prices={"m": price}).prices == {"m": price}
    given: Any = {"m": price, "*": {"input": 1.0, "output": 2.0}}
    with pytest.raises(MCPConfigError, match=r"prices= wants Price\(...\) as its values, not dict"):
        LlmSettings(model="m", prices=given)


PACKED = gzip.compress(b"one\ntwo\n" * 9)


@each_case(
    "body, most_bytes, whole, fault",
    [
        (PACKED, 72, True, None),
        (PACKED, 71, False, "invalid_reply"),
        (b"no gzip", 72, False, "damaged"),
    ],
)
def test_a_file_that_is_compressed_although_it_was_not_asked_to_be(
    body: bytes, most_bytes: int, whole: bool, fault: str | None
) -> None:
    async def serve(stream: SocketStream) -> None:
        await stream.send(head("application/jsonl\r\nContent-Encoding: gzip") + body)

    async def read() -> None:
        async with (
            raw_server(serve) as base_url,
            LlmEndpoint(LlmSettings(base_url=base_url, model="m")) as at,
        ):
            pieces = [piece async for piece in at.download("/files/1/content", most_bytes)]
        faults = [piece.kind for piece in pieces if isinstance(piece, Fault)]
        text = b"".join(piece for piece in pieces if isinstance(piece, bytes))
        assert (text == b"one\ntwo\n" * 9, faults) == (whole, [fault] if fault else [])

    anyio.run(read)
