"""The scripted endpoint: what it refuses, what it serves, how it ends."""

import contextlib
import copy
import json
import os
import signal
import socket
import threading
from typing import Any

import httpx
import pytest
from case_tables import each_case
from msgspec.structs import replace

from grue import FunctionTools, LlmSettings, RetryPolicy, Runner, TurnRequest
from grue.errors import LLMError
from grue.messages import LlmFailure
from grue.protocol.retry import next_delay
from grue.testing import llm_server
from grue.testing.decisions import Called, assert_answer, assert_calls
from grue.testing.llm_server import (
    LlmReply,
    ScriptedLlmServer,
    completion,
    error_reply,
    hang_up,
    silence,
    text_reply,
    tool_calls_reply,
)
from grue.testing.providers.chat_rules import ProviderRules, refusal_of

CALL = {"id": "a", "type": "function", "function": {"name": "s.t", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "s.t", "parameters": {"type": "object", "properties": {}}}}
MARKED = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
GOOD: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": [MARKED]},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "user", "content": "go on"},
    ],
    "tools": [TOOL],
    "tool_choice": "auto",
}
HUNG_UP = LlmFailure(kind="unavailable", endpoint="", model="m", message="")
STRICT = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": {}}}


def changed(path: str, value: object) -> dict[str, Any]:
    """Return the good request with one field set, or taken out where the value is `...`."""
    body = copy.deepcopy(GOOD)
    *steps, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    target: Any = body
    for step in steps:
        target = target[step]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return body


def with_schema(schema: object) -> dict[str, Any]:
    shape = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}}
    return {**{key: GOOD[key] for key in ("model", "messages")}, "response_format": shape}


def test_a_good_request_is_accepted() -> None:
    assert refusal_of(GOOD, ProviderRules()) is None
    closed = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    assert refusal_of(with_schema({**closed, "additionalProperties": False}), ProviderRules()) is None


@each_case(
    "path, value, said",
    [
        ("model", ..., "model parameter"),
        ("messages", [], "non-empty array"),
        ("messages/0", "hi", "non-empty array"),
        ("messages/1/role", "narrator", "Invalid value: 'narrator'"),
        ("messages/1/content", None, "got null"),
        ("messages/1/content", "", "must be non-empty"),
        ("messages/1/content", [], "must be non-empty"),
        ("messages/0/content/0/text", " ", "must be non-empty"),
        ("messages/1/cache_control", {}, "Unknown parameter"),
        ("messages/0/content", [MARKED] * 5, "maximum of 4"),
        ("messages/2", {"role": "assistant", "content": "x", "tool_calls": []}, "empty array"),
        ("messages/2/tool_calls/0/id", "", "Missing required parameter"),
        ("messages/2/tool_calls/0/function/name", "", "empty string"),
        ("messages/2/tool_calls/0/function/arguments", "{", "expected a JSON object"),
        ("messages/2/tool_calls/0/function/arguments", "[]", "expected a JSON object"),
        ("messages/2/tool_calls/0/function/arguments", {}, "expected a JSON object"),
        ("messages/2/tool_calls", [CALL, CALL], "duplicate"),
        ("messages/3", ..., "did not have response messages: a"),
        ("messages/4", {"role": "assistant", "content": None, "tool_calls": [CALL]}, "duplicate"),
        ("messages/2", ..., "must be a response to a preceding message"),
        ("messages/3/tool_call_id", "b", "must be a response to a preceding message"),
        ("messages/3/content", [{"type": "text", "text": "1"}], "expected a string"),
        ("tools", [], "Invalid 'tools': empty array"),
        ("tools", None, "Invalid 'tools': empty array"),
        ("tools", [TOOL, TOOL], "must be unique"),
        ("tools", ..., "'tool_choice' is only allowed"),
        ("tools/0/function/parameters", {"type": "object"}, "missing properties"),
        ("tools/0/function", None, "wrong type"),
        ("tools/0/function/strict", True, "Invalid schema for function 's.t'"),
        ("response_format", STRICT, "cannot be combined with tools"),
        ("stream_options", {"include_usage": True}, "only allowed when 'stream' is enabled"),
    ],
)
def test_what_some_provider_refuses(path: str, value: object, said: str) -> None:
    refused = refusal_of(changed(path, value), ProviderRules())
    assert refused is not None
    assert said in refused


def test_rules_that_not_every_provider_has() -> None:
    assert "does not match pattern" in str(refusal_of(GOOD, ProviderRules(strict_names=True)))
    assert "cache_control" in str(refusal_of(GOOD, ProviderRules(cache_markers=0)))
    without = {key: GOOD[key] for key in ("model", "messages")}
    assert refusal_of(without, ProviderRules()) is None
    assert "must define tools" in str(refusal_of(without, ProviderRules(tools_with_history=True)))
    long = changed("tools/0/function/description", "x" * 11)
    assert "maximum length 10" in str(refusal_of(long, ProviderRules(max_description_chars=10)))
    developer = changed("messages/0/role", "developer")
    assert "Invalid value: 'developer'" in str(refusal_of(developer, ProviderRules()))
    assert refusal_of(developer, ProviderRules(developer_role=True)) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {}}, "required": [], "additionalProperties": False},
        {"type": "string", "default": "x"},
        {"anyOf": [{"type": "array", "items": {"properties": {}}}]},
        {"$defs": {"X": {"properties": {}}}},
    ],
)
def test_a_strict_schema_has_to_be_strict(schema: object) -> None:
    assert "Invalid schema for response_format" in str(refusal_of(with_schema(schema), ProviderRules()))


def post(server: ScriptedLlmServer, body: object = GOOD, path: str = "/chat/completions") -> httpx.Response:
    return httpx.post(server.base_url + path, json=body, trust_env=False, timeout=60)


def post_in_vain(server: ScriptedLlmServer) -> None:
    with pytest.raises(httpx.HTTPError):
        post(server)


@pytest.mark.slow
def test_the_script_is_served_in_order_and_a_mistake_uses_up_nothing() -> None:
    with ScriptedLlmServer([text_reply("one"), tool_calls_reply(("s.t", {"a": 1}))]) as server:
        assert post(server).json()["choices"][0]["message"]["content"] == "one"
        assert post(server, {}).json()["error"]["message"] == "you must provide a model parameter"
        assert server.left == 1
        (call,) = post(server).json()["choices"][0]["message"]["tool_calls"]
        assert call["function"] == {"name": "s.t", "arguments": '{"a": 1}'}
        assert server.left == 0
        assert "no reply number 3" in post(server).text
        assert server.left == 0
    assert [request.refused is None for request in server.requests] == [True, False, True, True]
    assert server.requests[0].body == GOOD
    assert json.loads(server.requests[0].raw) == GOOD
    assert server.requests[0].tool_names == ["s.t"]


def test_a_function_as_script_and_its_failure() -> None:
    def script(request: Any) -> LlmReply:
        return text_reply(request.messages[5]["content"])

    with ScriptedLlmServer(script) as server:
        reply = post(server)
        assert (reply.status_code, reply.json()["error"]["message"]) == (
            400,
            "grue.testing: the script failed: IndexError: list index out of range",
        )


def test_pytest_fail_in_a_script_reaches_the_client() -> None:
    with ScriptedLlmServer(lambda request: pytest.fail("never asked")) as server:
        message = post(server).json()["error"]["message"]
    assert message == "grue.testing: the script failed: Failed: never asked"


@pytest.mark.slow
def test_other_paths_and_other_bodies() -> None:
    with ScriptedLlmServer([]) as server:
        assert post(server, path="/completions").status_code == 404
        broken = httpx.post(f"{server.base_url}/chat/completions", content=b'{"a": NaN}', trust_env=False)
        assert "NaN is not JSON" in broken.text
        assert "is an object" in post(server, [1]).text


@pytest.mark.parametrize("body", [b"no json", b"[]", b'{"requests": [5]}', b"[" * 100_000, b"\xff"])
@pytest.mark.parametrize("path", ["/chat/completions", "/batches", "/files", "/messages/batches"])
def test_a_malformed_body_is_refused(path: str, body: bytes) -> None:
    key = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    with ScriptedLlmServer(["yes"]) as server:
        reply = httpx.post(f"{server.base_url}{path}", content=body, headers=key)
        assert (reply.status_code, type(reply.json()["error"]["message"])) == (400, str)


CLAUDE = {"x-api-key": "k", "anthropic-version": "2023-06-01"}


def test_a_reply_without_json_is_an_error_of_its_request_and_not_of_its_batch() -> None:
    page = LlmReply(status=502, body=b"<html>Bad gateway</html>")
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    asked = {"requests": [{"custom_id": each, "params": body} for each in "ab"]}
    with ScriptedLlmServer([page, text_reply("hello")]) as server:
        url = f"{server.base_url}/messages/batches"
        url += f"/{httpx.post(url, headers=CLAUDE, json=asked).json()['id']}"
        assert httpx.get(url, headers=CLAUDE).json()["processing_status"] == "ended"
        results = map(json.loads, httpx.get(f"{url}/results", headers=CLAUDE).text.splitlines())
    assert {each["custom_id"]: each["result"]["type"] for each in results} == {
        "a": "succeeded",
        "b": "errored",
    }


@pytest.mark.parametrize(
    ("method", "path", "kind"), [("POST", "", "invalid_request_error"), ("GET", "/no", "not_found_error")]
)
def test_an_error_about_anthropics_batches_has_anthropics_shape(method: str, path: str, kind: str) -> None:
    with ScriptedLlmServer([]) as server:
        url = f"{server.base_url}/messages/batches{path}"
        reply = httpx.request(method, url, headers=CLAUDE, content=b'{"requests": [{"custom_id": [1]}]}')
    assert (reply.json()["type"], reply.json()["error"]["type"]) == ("error", kind)


def test_a_batch_that_nobody_made_has_no_results() -> None:
    with ScriptedLlmServer([]) as server:
        headers = {"x-api-key": "test", "anthropic-version": "2023-06-01"}
        url = f"{server.base_url}/messages/batches/batch_9/results"
        assert httpx.get(url, headers=headers, trust_env=False).status_code == 404


@pytest.mark.slow
def test_replies_of_every_kind() -> None:
    failing = error_reply(429, "Slow down", {"Retry-After": "3"}, code="rate_limit")
    script = [failing, completion({"content": 5}, finish_reason="odd"), hang_up(b"half")]
    with ScriptedLlmServer(script) as server:
        refused = post(server)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "3")
        assert refused.json() == {"error": {"message": "Slow down", "code": "rate_limit"}}
        assert post(server).json()["choices"][0]["finish_reason"] == "odd"
        with pytest.raises(httpx.RemoteProtocolError):
            post(server)


def test_a_server_that_is_never_left_keeps_no_program_alive() -> None:
    before = {*threading.enumerate()}
    with ScriptedLlmServer(["yes"]) as server, httpx.Client(trust_env=False) as client:
        client.post(f"{server.base_url}/chat/completions", json=GOOD)
        assert [each.daemon for each in {*threading.enumerate()} - before] == [True, True]


def test_closing_ends_idle_connections_and_silent_ones() -> None:
    before = {*threading.enumerate()}
    with ScriptedLlmServer([text_reply("hi"), silence()]) as server:
        client = httpx.Client(trust_env=False, timeout=60)
        client.post(f"{server.base_url}/chat/completions", json=GOOD)
        asking = threading.Thread(target=post_in_vain, args=(server,))
        asking.start()
        while len(server.requests) < 2:
            threading.Event().wait(0.005)
    asking.join(60)
    assert not asking.is_alive()
    client.close()
    assert {*threading.enumerate()} <= before, "another test's thread may end meanwhile"


def test_errors_ask_to_be_tried_again_at_once_if_the_test_wants_that() -> None:
    waits = {"Retry-After": "7"}
    script = [error_reply(500, "no"), error_reply(503, "no", waits), text_reply("yes")]
    with ScriptedLlmServer(script, retry_after="0") as server:
        asked = b'{"model": "m", "messages": [{"role": "user", "content": "Hello."}]}'
        replies = [server.answer("/v1/chat/completions", {}, asked) for _ in script]
    assert [reply.headers.get("Retry-After") for reply in replies[:2]] == ["0", "7"]


def test_a_server_that_is_started_again_can_keep_its_port() -> None:
    with ScriptedLlmServer(["one"]) as first:
        port = int(first.base_url.split(":")[2].removesuffix("/v1"))
    with ScriptedLlmServer(["two"], port=port) as again:
        assert again.base_url == first.base_url
        assert httpx.post(f"{again.base_url}/chat/completions", json=GOOD).status_code == 200


@pytest.mark.slow
def test_a_text_is_a_reply() -> None:
    for script in ("yes", ["yes"], lambda _: "yes"):
        with ScriptedLlmServer(script) as server:
            assert post(server).json()["choices"][0]["message"]["content"] == "yes"


@pytest.mark.parametrize("script", [[1], [None], ({"content": "yes"},)])
def test_a_script_of_something_else_is_refused_where_it_is_made(script: Any) -> None:
    with pytest.raises(TypeError, match=r"reply 1 is of type \w+: give a text, text_reply"):
        ScriptedLlmServer(script)


@pytest.mark.parametrize("script", [5, None, {"role": "assistant", "content": "yes"}, b"yes"])
def test_a_script_that_is_no_list_and_no_function_is_refused(script: Any) -> None:
    with pytest.raises(TypeError, match=r"^script is of type \w+: give a list of replies, or a function\.$"):
        ScriptedLlmServer(script)


@pytest.mark.parametrize(
    "script",
    [[hang_up] * 6, [hang_up(b"half a reply")] * 6, lambda _: hang_up],
    ids=["uncalled", "called", "by a function"],
)
def test_a_model_that_hangs_up_costs_no_waits_also_if_it_is_not_called(
    script: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with ScriptedLlmServer(script) as server, pytest.raises(LLMError) as failed:
        Runner(llm=server.settings).run_turn("Hello.")
    assert (failed.value.kind, failed.value.reason) == ("unavailable", "connection")
    assert len(server.requests) == 1 + server.settings.retry.max_retries
    assert next_delay(server.settings.retry, 5, HUNG_UP) == 0, "the usual settings wait for half a minute"
    assert capfd.readouterr().err == "", "no fault in a thread of the server"


@pytest.mark.slow
def test_one_that_hangs_up_is_a_script(scripted_llm: Any) -> None:
    for endpoint in (scripted_llm(hang_up), scripted_llm(hang_up, "yes")):
        with pytest.raises(httpx.RemoteProtocolError):
            post(endpoint)
    assert post(endpoint).json()["choices"][0]["message"]["content"] == "yes"


def test_silence_is_a_reply_if_it_is_not_called() -> None:
    with ScriptedLlmServer([silence, "yes"]) as server:
        impatient = replace(server.settings, retry=RetryPolicy(initial_delay_s=0, timeout_s=0.2))
        assert Runner(llm=impatient).run_turn("Hello.").response == "yes"


def test_a_body_that_cannot_be_sent_is_refused_where_it_is_made() -> None:
    with pytest.raises(TypeError, match="body= wants bytes, not str"):
        hang_up("half")  # type: ignore[arg-type]  # the mistake


def test_a_fault_of_the_script_asks_for_another_script_and_not_for_another_model() -> None:
    for script, says, advice in (
        (
            [],
            "no reply number 1",
            "each reply with tool calls is followed by a request, and so is each refused answer.",
        ),
        (lambda _: 3, "returned int, and no reply or text", "\nCorrect the script of the test."),
    ):
        with (
            ScriptedLlmServer(script) as server,  # type: ignore[arg-type]  # the mistake
            pytest.raises(LLMError, match=says) as failed,
        ):
            Runner(llm=LlmSettings(base_url=server.base_url, model="m")).run_turn("Hello.")
        assert str(failed.value).endswith(advice)


def test_a_script_without_a_further_reply_says_what_the_request_was_for() -> None:
    with ScriptedLlmServer(["ten"]) as server:
        runner = Runner(llm=LlmSettings(base_url=server.base_url, model="m"))
        with pytest.raises(LLMError) as failed:
            runner.run_turn(TurnRequest("How many?", answer=int))
    says = "no reply number 2: the agent has asked once more than there are replies (1). The reply before it"
    assert f"{says} was refused. Its last message (user) is: That reply cannot be used: " in str(failed.value)
    tool = {"shop": FunctionTools({"price": lambda: 21})}
    with ScriptedLlmServer([tool_calls_reply(("shop.price", {}))]) as server:
        runner = Runner(llm=LlmSettings(base_url=server.base_url, model="m"), servers=tool)
        with pytest.raises(LLMError) as failed:
            runner.run_turn("How much?")
    assert "than there are replies (1). Its last message (tool) is: 21" in str(failed.value)


def test_a_text_reply_of_a_value_and_an_answer_without_its_turn_are_refused() -> None:
    with pytest.raises(TypeError, match=r"text_reply wants a text, not dict; .*json\.dumps"):
        text_reply({"total": 3})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="assert_answer wants the TurnOutcome of a turn, not str"):
        assert_answer("urgent", "urgent")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="assert_calls wants the TurnOutcome of a turn, not tuple"):
        assert_calls(())  # type: ignore[arg-type]


def test_calls_in_a_list_are_refused() -> None:
    with ScriptedLlmServer(["north"]) as server:
        outcome = Runner(llm=server.settings).run_turn("Where to?")
    with pytest.raises(TypeError, match=r"assert_calls\(outcome, Called\(\.\.\.\), .*: list is no Called"):
        assert_calls(outcome, [Called("cave.look", {})])  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_forked_child_that_leaves_the_block_does_not_end_the_server() -> None:
    with ScriptedLlmServer(["one", "two"]) as server, httpx.Client(base_url=server.base_url) as client:
        asked = {"model": "m", "messages": [{"role": "user", "content": "u"}]}
        assert client.post("/chat/completions", json=asked).status_code == 200
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # a signal that ends the child if it waits for ever
            server.__exit__()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert client.post("/chat/completions", json=asked).status_code == 200
    assert server.accepted == 1


def test_the_end_of_the_block_waits_for_a_thread_whose_client_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, ending = set(threading.enumerate()), threading.Event()
    end = llm_server._HttpServer.shutdown_request

    def slow(server: llm_server._HttpServer, request: Any) -> None:
        ending.set()
        threading.Event().wait(0.2)
        end(server, request)

    monkeypatch.setattr(llm_server._HttpServer, "shutdown_request", slow)
    with ScriptedLlmServer([]) as server:
        port = int(server.base_url.rpartition(":")[2].partition("/")[0])
        socket.create_connection(("127.0.0.1", port)).close()
        assert ending.wait(10)
    assert set(threading.enumerate()) <= before


def test_a_hundred_clients_may_connect_at_once() -> None:
    server = ScriptedLlmServer(["one"])  # nothing accepts the connections yet
    port = int(server.base_url.rpartition(":")[2].partition("/")[0])
    with contextlib.ExitStack() as clients:
        for _ in range(100):
            clients.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
        with server:
            pass


@pytest.mark.parametrize(
    "framing", ["Content-Length: many", "Content-Length: -1", "Transfer-Encoding: chunked"]
)
def test_a_request_without_a_usable_length_is_refused_at_once(framing: str) -> None:
    with ScriptedLlmServer(["one"]) as server:
        port = int(server.base_url.rpartition(":")[2].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{framing}\r\n\r\n2\r\n{{}}".encode())
            with client.makefile("rb") as answer:
                assert answer.readline() == b"HTTP/1.1 411 Length Required\r\n"
                answer.read()  # up to the end of the connection
        assert (server.requests, server.left) == ([], 1)


def test_half_a_request_of_a_client_that_has_ended_is_no_request() -> None:
    with ScriptedLlmServer(["one"]) as server:
        port = int(server.base_url.rpartition(":")[2].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{")
            client.shutdown(socket.SHUT_WR)
            assert client.recv(100) == b""
        assert (server.requests, server.left) == ([], 1)
