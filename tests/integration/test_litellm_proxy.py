"""Whole turns through the LiteLLM proxy, the gateway that many endpoints stand behind.

Some of its models are its own mock replies; the others are forwarded, translated, to the scripted endpoint.
It is started where the environment variable GRUE_LITELLM names its executable.
"""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from grue import Runner, TurnRequest
from grue.engine.answers import AnswerSpec
from grue.errors import LLMError
from grue.messages import TextDelta
from grue.policies import TurnLimits
from grue.protocol.retry import RetryPolicy
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.testing.providers.chat_rules import ProviderRules
from grue.tool_sessions.function_tools import FunctionTools
from grue.transports.llm.endpoint import LlmSettings

pytestmark = pytest.mark.slow

KEY = "sk-made-up-master-key"
WIRES = ("chat_completions", "responses", "messages")  # the formats that the proxy speaks
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "LITELLM_LOG": "ERROR",
    "DISABLE_ADMIN_UI": "True",
    "NO_PROXY": "*",
}


def upstream_says(request: LlmRequest) -> LlmReply:
    """Call the tool as long as there is one to call, but once only in a conversation that says so."""
    heard = sum(message["role"] == "tool" for message in request.messages)
    once = "once" in json.dumps(request.messages)
    # Where there are none, the proxy makes one up for Claude, which wants some with calls in its history.
    callable_now = request.tool_names and request.tool_names != ["dummy_tool"]
    callable_now = callable_now and request.chat.get("tool_choice") != "none"
    if not callable_now or (heard and once):
        return text_reply(f"A maze, after {heard}.")
    calls = [(request.tool_names[0], {"text": text}) for text in ("hello", "again")]
    return tool_calls_reply(*calls[: 2 if "twice" in json.dumps(request.messages) else 1], content="Hm.")


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedLlmServer]:
    with ScriptedLlmServer(upstream_says, rules=ProviderRules(strict_names=True)) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(upstream: ScriptedLlmServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    executable = os.environ.get("GRUE_LITELLM")
    if not executable:
        pytest.skip("no LiteLLM proxy: set GRUE_LITELLM to the path of litellm, of litellm[proxy]")
    folder = tmp_path_factory.mktemp("litellm")
    config = folder / "config.yaml"
    config.write_text(json.dumps(configuration(upstream.base_url)))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [executable, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with assert_nothing_left(within_s=10), (folder / "log").open("wb") as log:
        environment = {**os.environ, **QUIET, "HOME": str(folder)}
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            wait_until_ready(process, f"http://127.0.0.1:{port}", folder / "log")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def configuration(upstream_url: str) -> dict[str, Any]:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "house.echo", "arguments": '{"text":"hi"}'},
    }
    mock = {"model": "openai/mock", "api_key": "none"}
    forward = {"api_key": "sk-made-up-upstream-key"}
    models = {
        "mock-text": {**mock, "mock_response": "You are in a cave."},
        "mock-tools": {**mock, "mock_response": "", "mock_tool_calls": [call]},
        "gpt": {**forward, "model": "openai/scripted", "api_base": upstream_url},
        "claude": {
            **forward,
            "model": "anthropic/claude-haiku-4-5",
            "api_base": upstream_url.removesuffix("/v1"),
        },
    }
    return {
        "model_list": [{"model_name": name, "litellm_params": params} for name, params in models.items()],
        "general_settings": {"master_key": KEY},
        "litellm_settings": {"telemetry": False, "num_retries": 0},
    }


def wait_until_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    """Wait as long as the process lives: its first start imports and compiles thousands of modules."""
    while process.poll() is None:
        try:
            if httpx.get(f"{url}/health/readiness", trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    pytest.fail(f"the proxy has ended: {log.read_text(errors='replace')[-2000:]}")


def echo(text: str) -> str:
    """Say it again."""
    return text


def runner(proxy: str, model: str, wire: Any, *, iterations: int = 3, key: str = KEY) -> Runner:
    settings = LlmSettings(
        base_url=proxy, model=model, wire=wire, api_key=key, retry=RetryPolicy(max_retries=0, timeout_s=30)
    )
    tools = {"house": FunctionTools({"echo": echo})}
    return Runner(llm=settings, servers=tools, limits=TurnLimits(max_tool_iterations=iterations))


def ask(user: str = "Where am I?", **request: Any) -> TurnRequest[str]:
    return TurnRequest(system="You play.", user=user, **request)


@pytest.mark.parametrize("wire", WIRES)
def test_a_mock_reply_is_an_answer(proxy: str, wire: str) -> None:
    with runner(proxy, "mock-text", wire) as turns:
        outcome = turns.run_turn(ask())
    assert (outcome.kind, outcome.response) == ("answered", "You are in a cave.")
    assert outcome.usage.input_tokens > 0


def test_mock_calls_are_run_though_their_finish_reason_is_stop_and_never_when_forced(proxy: str) -> None:
    answer = AnswerSpec(str, fallback="look")
    with runner(proxy, "mock-tools", "chat_completions", iterations=1) as turns:
        outcome = turns.run_turn(ask(answer=answer))
    assert [call.settlement for call in outcome.tool_calls] == ["returned", "skipped", "skipped"]
    assert outcome.tool_calls[0].result.content == "hi"
    assert (outcome.kind, outcome.response, outcome.requests) == ("fallback", "look", 3)


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("model", ["gpt", "claude"])
def test_a_call_and_an_answer(proxy: str, model: str, wire: str, streamed: bool) -> None:
    deltas: list[TextDelta] = []
    request = ask("Think once.", on_delta=deltas.append if streamed else None)
    with runner(proxy, model, wire) as turns:
        outcome = turns.run_turn(request)
    assert (outcome.kind, outcome.response) == ("answered", "A maze, after 1.")
    (call,) = outcome.tool_calls
    assert (call.name, call.settlement, call.result.content) == ("house.echo", "returned", "hello")
    assert outcome.usage.input_tokens == 20
    assert "".join(delta.text for delta in deltas) == ("Hm.A maze, after 1." if streamed else "")


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("model", ["gpt", "claude"])
def test_two_calls_in_a_stream(proxy: str, model: str, wire: str) -> None:
    request = ask("Think once, and call twice.", on_delta=lambda _: None)
    with runner(proxy, model, wire) as turns:
        outcome = turns.run_turn(request)
    assert (outcome.kind, outcome.response) == ("answered", "A maze, after 2.")
    assert [(call.settlement, call.result.content) for call in outcome.tool_calls] == [
        ("returned", "hello"),
        ("returned", "again"),
    ]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("model", ["gpt", "claude"])
def test_a_forced_answer_with_calls_in_its_history(proxy: str, model: str, wire: str) -> None:
    with runner(proxy, model, wire, iterations=2) as turns:
        outcome = turns.run_turn(ask("Think hard."))
    assert (outcome.kind, outcome.response) == ("forced", "A maze, after 2.")
    assert [call.settlement for call in outcome.tool_calls] == ["returned"] * 2


@pytest.mark.parametrize("wire", WIRES)
def test_a_wrong_key_is_refused_with_what_to_do(proxy: str, wire: str) -> None:
    wrong = "sk-made-up-and-wrong"
    with runner(proxy, "mock-text", wire, key=wrong) as turns, pytest.raises(LLMError) as refused:
        turns.run_turn(ask())
    # With a database it would be 401; without one it cannot look the key up.
    assert (refused.value.kind, refused.value.status) == ("refused", 400)
    assert "No connected db" in str(refused.value)
    assert "Set api_key to a key that this endpoint accepts" in str(refused.value)
    assert wrong not in str(refused.value)


@pytest.mark.parametrize("wire", WIRES)
def test_an_unknown_model_is_refused_by_its_name(proxy: str, wire: str) -> None:
    with runner(proxy, "no-such-model", wire) as turns, pytest.raises(LLMError) as refused:
        turns.run_turn(ask())
    assert (refused.value.kind, refused.value.status) == ("refused", 400)
    assert "Check the model name 'no-such-model'" in str(refused.value)
