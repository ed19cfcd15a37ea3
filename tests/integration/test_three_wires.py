"""The same episode through every wire format: the same trace, and the key nowhere in what is written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, get_args

import pytest
from rows import first_of

from grue.config.settings import GameConfiguration, RetrySettings
from grue.errors import MCPError
from grue.hosts.zork.bundled import bundled_server
from grue.hosts.zork.client import LLMClient
from grue.hosts.zork.games.catalogue import open_game
from grue.hosts.zork.orchestrator import EpisodeSetup, ZorkOrchestratorV2
from grue.messages import CompletionReceived, TextDelta
from grue.protocol.chat_wire.formats import FORMATS, WireName
from grue.runtime.trace.recorder import Recorder
from grue.testing.llm_server import (
    LlmReply,
    LlmRequest,
    ScriptedLlmServer,
    error_reply,
    text_reply,
    tool_calls_reply,
)
from grue.tracing.diff import diff
from grue.tracing.observers.run_folder import RunFolder
from grue.tracing.reading import open_episode, read_episode

WIRES: tuple[WireName, ...] = get_args(WireName)
Script: TypeAlias = Callable[[LlmRequest], LlmReply]
KEY = "sk-planted-0123456789abcdefghij"
TURNS = 4


def play(folder: Path, server: ScriptedLlmServer, wire: WireName, **config: Any) -> None:
    """Play an episode against the server and write its run folder; its errors are the caller's."""
    configuration = GameConfiguration(
        mcp_enabled=True,
        client_base_url=server.base_url,
        agent_model="scripted",
        wire_format=wire,
        retry=RetrySettings(max_retries=1, initial_delay=0.0),
        **config,
    )
    recorder = Recorder()
    with RunFolder(folder, recorder, episode_id="wires") as run_folder:
        setup = EpisodeSetup(
            game=open_game("house"),
            max_turns=TURNS,
            client=LLMClient(configuration, api_key=KEY),
            mcp_manager=bundled_server(),
            recorder=recorder,
        )
        orchestrator = ZorkOrchestratorV2("wires", configuration, setup)
        try:
            orchestrator.play_episode()
        finally:
            orchestrator.close()
            run_folder.write_result(orchestrator.result())


def decision(action: str) -> str:
    return json.dumps({"thinking": "as good as any", "action": action, "new_objective": None})


def thought(text: str) -> str:
    arguments = {"thought": text, "thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": False}
    # Compact: one of the formats carries arguments as objects, and none of them carries spaces.
    return json.dumps(arguments, separators=(",", ":"))


def lively(request: LlmRequest) -> LlmReply:
    """Two thoughts at once after reasoning, an unknown tool beside a text, a bad decision, a good one."""
    said = [message["role"] for message in request.messages]
    tool = next((name for name in request.tool_names if name.endswith("think")), "none")
    match said.count("tool"), said.count("assistant"):
        case 0, 0:
            calls = [(tool, thought("a gate")), (tool, thought("a path"))]
            return tool_calls_reply(*calls, reasoning_content="Let me see.")
        case 2, 1:
            return tool_calls_reply(("nobody", "{}"), content="Wait.")
        case 3, 2:
            return text_reply("north, I think")
        case _:
            return text_reply(decision("north"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[WireName, Path]:
    base = tmp_path_factory.mktemp("wires")
    with ScriptedLlmServer(lively) as server:
        for wire in WIRES:
            play(base / wire, server, wire)
        paths = {request.path.removeprefix("/v1") for request in server.requests}
        refused = [request.refused for request in server.requests if request.refused]
    assert paths == {each.path_of("scripted", stream=False) for each in FORMATS.values()}
    assert refused == []
    return {wire: base / wire for wire in WIRES}


@pytest.mark.slow
@pytest.mark.parametrize("wire", WIRES[1:])
def test_the_same_episode_gives_the_same_trace_through_each_wire_format(
    folders: dict[WireName, Path], wire: WireName
) -> None:
    one, other = open_episode(folders[WIRES[0]]), open_episode(folders[wire])
    paths = [difference.path for each in diff(one, other) for difference in each.differences]
    assert paths == ['$.conditions["wire format"]'], "what the episode began with, and nothing after it"


@pytest.mark.slow
def test_the_trace_holds_what_the_model_said_of_its_thinking(folders: dict[WireName, Path]) -> None:
    for folder in folders.values():
        bodies = [envelope.body for envelope in read_episode(folder / "trace.jsonl").envelopes]
        replies = [body for body in bodies if isinstance(body, CompletionReceived)]
        assert replies[0].reasoning == "Let me see."
        assert replies[1].content == "Wait."


def hostile(request: LlmRequest) -> LlmReply:
    key = next(each for each in request.headers.values() if KEY in each).removeprefix("Bearer ")
    return error_reply(401, f"Incorrect API key provided: {key}. Find yours in the settings.")


def echoing(request: LlmRequest) -> LlmReply:
    return text_reply(decision(f"say {KEY}"))


@pytest.mark.parametrize("wire", first_of(WIRES))
@pytest.mark.parametrize("script", [lively, hostile, echoing])
@pytest.mark.slow
def test_the_key_is_in_nothing_that_an_episode_writes(
    tmp_path: Path,
    wire: WireName,
    script: Callable[[LlmRequest], LlmReply],
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = ""
    with ScriptedLlmServer(script) as server:
        try:
            play(tmp_path / "run", server, wire)
        except MCPError as error:
            words = f"{error}{error!r}{error.__cause__!r}"
        assert any(KEY in str(request.headers) for request in server.requests), "the key was sent"
    assert bool(words) == (script is hostile)
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {path.name for path in written} >= {"trace.jsonl", "events.jsonl", "episode.log", "result.json"}
    for path in written:
        assert KEY.encode() not in path.read_bytes(), path
    assert KEY not in words
    assert KEY not in "".join(capfd.readouterr())


@pytest.mark.parametrize("wire", WIRES)
def test_a_streamed_turn_has_the_same_events_and_deltas_besides(wire: WireName) -> None:
    from grue import FunctionTools, LlmSettings, Runner, TurnRequest

    seen: list[TextDelta] = []
    replies = [tool_calls_reply(("tools.look", "{}"), content="One moment."), text_reply("A long hall.")]
    with ScriptedLlmServer(replies) as server:
        llm = LlmSettings(base_url=server.base_url, model="scripted", wire=wire, api_key=KEY)
        runner = Runner(llm=llm, servers={"tools": FunctionTools({"look": lambda: "a hall"})})
        if wire != "chat_completions":
            replies[0] = tool_calls_reply(("tools__look", "{}"), content="One moment.")
        outcome = runner.run_turn(TurnRequest[str](system="Look.", user="Now.", on_delta=seen.append))
        assert all(request.body["stream"] is True for request in server.requests)
    assert outcome.response == "A long hall."
    assert [call.settlement for call in outcome.tool_calls] == ["returned"]
    assert "".join(delta.text for delta in seen if delta.request == 1) == "One moment."
    assert "".join(delta.text for delta in seen if delta.request == 2) == "A long hall."
