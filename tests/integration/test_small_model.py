"""A real model: SmolLM2 with 135 million parameters, in llama.cpp's server.

What such a model says is mostly
nonsense, so the tests look at shapes, counts and errors. The prompts are short, because a slow machine reads
a few dozen tokens a second.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from commands import environment, forked
from small_model import MODEL, PATIENCE_S, WINDOW, served

from grue import FunctionTools, Runner, TurnRequest
from grue.cli.trace_to_test import to_test
from grue.engine.answers import AnswerSpec
from grue.errors import AnswerError, LLMError
from grue.messages import CompletionReceived, SchemaIgnored, TextDelta, ToolsUnseen
from grue.policies import TurnLimits
from grue.protocol.retry import RetryPolicy
from grue.tracing.diff import diff
from grue.tracing.reading import open_episode
from grue.transports.llm.endpoint import LlmSettings

pytestmark = pytest.mark.slow

WIRES = ("chat_completions", "responses", "messages")  # the formats that llama.cpp speaks
COLOUR = {
    "type": "object",
    "properties": {"swatch": {"type": "string", "maxLength": 12}},
    "required": ["swatch"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of its server."""
    with served(tmp_path_factory.mktemp("llama")) as url:
        yield url


def settings(url: str, wire: Any, most: int) -> LlmSettings:
    patience = RetryPolicy(max_retries=0, timeout_s=PATIENCE_S, length_retry_factor=1.0)
    return LlmSettings(base_url=url, model=MODEL, wire=wire, max_tokens=most, temperature=0.0, retry=patience)


def runner(url: str, wire: str = "chat_completions", *, most: int = 8) -> Runner:
    return Runner(llm=settings(url, wire, most), limits=TurnLimits(turn_timeout_s=4 * PATIENCE_S))


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_chat(small_model: str, wire: str, streamed: bool) -> None:
    """Streamed or not, the same words come, since the model is asked for the most likely ones."""
    deltas: list[TextDelta] = []
    replies: list[CompletionReceived] = []
    request = TurnRequest(
        system="You are brief.", user="Name a colour.", on_delta=deltas.append if streamed else None
    )
    with runner(small_model, wire) as turns:
        turns.recorder.add(lambda envelope, _line: replies.append(envelope.body))
        outcome = turns.run_turn(request)
    (reply,) = [body for body in replies if isinstance(body, CompletionReceived)]
    assert reply.content
    assert outcome.response == reply.content
    assert outcome.usage.input_tokens > 10
    assert 0 < outcome.usage.output_tokens <= 8
    assert "".join(delta.text for delta in deltas) == (reply.content if streamed else "")


def test_a_schema_holds_the_model_to_it(small_model: str) -> None:
    answer = AnswerSpec(json.loads, schema=COLOUR)
    with runner(small_model, most=60) as turns:
        outcome = turns.run_turn(TurnRequest(system="Be brief.", user="Name a colour.", answer=answer))
    assert (outcome.kind, outcome.requests) == ("answered", 1)
    assert list(outcome.response) == ["swatch"]


@pytest.mark.parametrize("wire", ["responses", "messages"])
def test_a_schema_that_is_ignored_is_noticed_and_stated_in_words(small_model: str, wire: str) -> None:
    """llama.cpp ignores the schema on these two; the repair and every later prompt state it."""
    bodies: list[object] = []
    spec = AnswerSpec(json.loads, schema=COLOUR)
    with runner(small_model, wire, most=10) as turns:
        turns.recorder.add(lambda envelope, _line: bodies.append(envelope.body))
        with pytest.raises(AnswerError):
            turns.run_turn(TurnRequest(system="Be brief.", user="Name a colour.", answer=spec))
    replies = [body for body in bodies if isinstance(body, CompletionReceived)]
    assert sum(isinstance(body, SchemaIgnored) for body in bodies) == 1
    first, second = (reply.usage.input_tokens for reply in replies[:2] if reply.usage is not None)
    assert second > first + 30, "the schema is in the second prompt"


@pytest.mark.parametrize("wire", WIRES)
def test_it_is_noted_that_its_chat_template_leaves_the_tools_out(small_model: str, wire: str) -> None:
    bodies: list[object] = []
    tools = FunctionTools({f"lamp_{number}": lamp for number in range(4)})
    servers, patience = {"home": tools}, TurnLimits(turn_timeout_s=4 * PATIENCE_S)
    with Runner(llm=settings(small_model, wire, 8), servers=servers, limits=patience) as turns:
        turns.recorder.add(lambda envelope, _line: bodies.append(envelope.body))
        turns.run_turn(TurnRequest(user="Is the lamp in the hall on?"))
    (note,) = [body for body in bodies if isinstance(body, ToolsUnseen)]
    assert (note.tools, note.model) == (4, MODEL)
    assert 10 < note.prompt_tokens < 60


def lamp(room: str, state: str = "") -> str:
    """Switch the lamp of a room on or off, and return whether it was on before. No state only asks."""
    return f"{room} {state}"


def test_a_prompt_longer_than_the_window_is_refused_with_what_to_do(small_model: str) -> None:
    with runner(small_model) as turns, pytest.raises(LLMError) as refused:
        turns.run_turn(TurnRequest(system="Be brief.", user="The lamp is here. " * WINDOW))
    assert refused.value.status == 400
    assert f"exceeds the available context size ({WINDOW} tokens)" in str(refused.value)
    assert "Set a ContextPolicy, send less, or choose a model with a larger context window." in str(
        refused.value
    )


def project(folder: Path, url: str, *, wire: str = "chat_completions") -> Path:
    (folder / "pyproject.toml").write_text(f"""
[tool.grue.llm]
client_base_url = "{url}"
agent_model = "{MODEL}"
wire_format = "{wire}"
[tool.grue.agent_sampling]
max_tokens = 80
temperature = 0.0
[tool.grue.retry]
max_retries = 0
timeout_seconds = {PATIENCE_S}
""")
    return folder


def run(*args: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        forked("grue", *args),
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )


def test_a_game_is_played(small_model: str, tmp_path: Path) -> None:
    limit = str(2 * PATIENCE_S)
    options = ("--turns", "1", "--no-mcp", "--quiet", "--run-dir", "run", "--turn-timeout", limit)
    played = run("play", *options, cwd=project(tmp_path, small_model))
    assert played.returncode == 0, played.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["reason"], result["turns"], result["requests"]) == ("turn_limit", 1, 1)
    assert result["model"] == MODEL


def test_doctor_judges_the_schema_by_the_reply(small_model: str, tmp_path: Path) -> None:
    """The endpoint accepts it on this wire, too. The lines about a slow machine are as true."""
    found = run("doctor", cwd=project(tmp_path, small_model, wire="responses"))
    assert "Traceback" not in found.stderr
    assert f"{MODEL} at {small_model} (responses)" in found.stdout
    if "does not answer" in found.stdout:
        assert "within 30 s" in found.stdout
        return
    assert f"ok     {MODEL} is in its list of 1 model" in found.stdout
    too_slow = "Structured output: unknown, since the reply took too long."
    ignored = "Structured output: the endpoint accepts a JSON schema and ignores it"
    assert ignored in found.stdout or too_slow in found.stdout, found.stdout
    left_out = "Tools: the chat template leaves them out."
    assert left_out in found.stdout or "Tools: unknown, since" in found.stdout, found.stdout


@pytest.mark.parametrize("text_tool_calls", ["ask", "run"])
def test_what_it_writes_of_a_tool_is_an_answer_or_a_call_and_never_both(
    small_model: str, text_tool_calls: Any
) -> None:
    """It knows no calls, so it writes them as text, or talks. No text that is a call counts as answered."""
    called: list[str] = []

    def lamp(state: str = "") -> str:
        """Switch the lamp."""
        called.append(state)
        return "done"

    llm = msgspec.structs.replace(
        settings(small_model, "chat_completions", 40), text_tool_calls=text_tool_calls
    )
    bodies: list[object] = []
    limits = TurnLimits(turn_timeout_s=6 * PATIENCE_S, max_tool_iterations=1)
    system = (
        'Answer only with: <tool_call>\n{"name": "home.lamp", "arguments": {"state": "on"}}\n</tool_call>'
    )
    with Runner(llm=llm, servers={"home": FunctionTools({"lamp": lamp})}, limits=limits) as turns:
        turns.recorder.add(lambda envelope, _line: bodies.append(envelope.body))
        try:
            outcome = turns.run_turn(TurnRequest(system=system, user="Switch the lamp on."))
        except AnswerError:
            outcome = None
    replies = [body for body in bodies if isinstance(body, CompletionReceived)]
    seen = [reply for reply in replies if reply.written is not None]
    if text_tool_calls == "ask":
        assert called == [] or any(reply.tool_calls and reply.written is None for reply in replies)
    for reply in seen:
        assert reply.written is not None
        assert reply.written.made == bool(reply.tool_calls)
        assert outcome is None or outcome.kind == "fallback" or outcome.response != reply.content
    if outcome is not None and outcome.kind == "answered":
        assert "<tool_call>" not in outcome.response.split("\n", 1)[0]


def test_an_unchanged_fork_says_the_same_and_becomes_a_test(small_model: str, tmp_path: Path) -> None:
    """The most likely words are asked for, so the fork of a turn is the turn."""
    traces = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    llm, patient = settings(small_model, "chat_completions", 8), TurnLimits(turn_timeout_s=4 * PATIENCE_S)
    with Runner(llm=llm, limits=patient, trace=traces[0]) as turns:
        said = turns.run_turn(TurnRequest(system="You are brief.", user="Name a colour.")).response
    with Runner(llm=llm, trace=traces[1]) as turns:
        assert turns.fork(traces[0]).response == said
    assert list(diff(open_episode(traces[0]), open_episode(traces[1]))) == []
    to_test(traces[1], None, (), tmp_path / "test_colour.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_colour.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout
