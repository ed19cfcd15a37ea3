"""`ZorkOrchestratorV2`: whole episodes of a small scripted game, with a model that says what it is told."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from commands import faulty, write_servers

from grue.config.settings import GameConfiguration
from grue.errors import GameError, LLMError, MCPConfigError, MCPError, MCPServerStartupError
from grue.hosts.zork.facts import (
    Decided,
    EpisodeEnded,
    EpisodeStarted,
    McpInitFailed,
    McpInitialized,
    Observed,
)
from grue.hosts.zork.games.game import Observation
from grue.hosts.zork.games.house import HouseGame
from grue.hosts.zork.manager import MCPManager
from grue.hosts.zork.orchestrator import EpisodeSetup, ZorkOrchestratorV2
from grue.messages import Message, ToolCalled, TurnFailed
from grue.policies import FailurePolicy
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.testing.doubles import MockLLMClient, MockMCPManager

Body = TypeVar("Body")


def saw(text: str = "A corridor.", **seen: Any) -> Observation:
    return Observation(**{"text": text, "location": "Corridor", "score": 0, "max_score": 10, **seen})


class CorridorGame:
    """A game that answers each command with the next observation, and the last one again and again."""

    name = "The Corridor"
    fingerprint = "corridor-1"

    def __init__(self, *replies: Observation, on_step: Callable[[str], None] | None = None) -> None:
        self.replies = [*replies, saw()]
        self.commands: list[str] = []
        self.closed = False
        self._on_step = on_step

    def reset(self, seed: int = 0) -> Observation:
        return saw("A corridor. It is long.")

    def step(self, command: str) -> Observation:
        self.commands.append(command)
        if self._on_step is not None:
            self._on_step(command)
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    def close(self) -> None:
        self.closed = True


class Tape:
    """Everything that was recorded, in order."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.bodies: list[Any] = []
        self.recorder.add(self._keep)

    def _keep(self, envelope: Envelope[Any], line: bytes) -> None:
        self.bodies.append(envelope.body)

    def of(self, kind: type[Body]) -> list[Body]:
        return [body for body in self.bodies if isinstance(body, kind)]


def client_that_says(*actions: str, objective: str | None = None) -> MockLLMClient:
    client = MockLLMClient()
    for action in actions:
        client.add_response(
            content=json.dumps({"thinking": "Why not.", "action": action, "new_objective": objective})
        )
    return client


def episode(game: Any, client: Any, tape: Tape | None = None, **options: Any) -> ZorkOrchestratorV2:
    """An episode without MCP, unless `mcp_manager` is given."""
    config = options.pop("config", None) or GameConfiguration(mcp_enabled="mcp_manager" in options)
    setup = EpisodeSetup(game=game, client=client, recorder=(tape or Tape()).recorder, **options)
    return ZorkOrchestratorV2("episode-1", config, setup)


def shown(client: MockLLMClient, request: int) -> str:
    """The user's text of a request."""
    content = client.requests[request]["messages"][1]["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@pytest.mark.parametrize(
    ("reply", "reason", "detail"),
    [
        (saw("You win.", score=10, won=True, done=True), "won", "the game is won"),
        (saw("You are dead.", died=True, done=True), "died", "the player died, and the game is over"),
        (saw("Goodbye.", done=True), "quit", "the game ended"),
        (saw("Still here."), "turn_limit", "the limit on turns, 1, is used up"),
    ],
)
def test_r9_an_episode_ends_with_a_reason_and_that_is_recorded_last(
    reply: Observation, reason: str, detail: str
) -> None:
    tape = Tape()
    played = episode(CorridorGame(reply), client_that_says("north"), tape, seed=5, max_turns=1)
    result = played.play_episode()
    assert (result.reason, result.detail, result.commands) == (reason, detail, ("north",))
    assert result.succeeded
    facts = (EpisodeStarted, Observed, Decided, EpisodeEnded)
    kinds = [type(body) for body in tape.bodies if isinstance(body, facts)]
    assert kinds == [EpisodeStarted, Observed, Decided, Observed, EpisodeEnded]
    (started,), (ended,) = tape.of(EpisodeStarted), tape.of(EpisodeEnded)
    assert (started.game, started.game_hash, started.seed) == ("The Corridor", "corridor-1", 5)
    assert (ended.reason, ended.detail, ended.turns) == (reason, detail, 1)
    assert tape.bodies[-1] is ended
    assert [seen.text for seen in tape.of(Observed)] == ["A corridor. It is long.", reply.text]


def test_a_decision_is_recorded_before_it_is_played() -> None:
    tape = Tape()
    last: list[Message] = []
    game = CorridorGame(on_step=lambda command: last.append(tape.bodies[-1]))
    episode(game, client_that_says("north", "south"), tape, max_turns=2).play_episode()
    assert [body.action for body in last if isinstance(body, Decided)] == ["north", "south"]


def test_dying_is_not_the_end_where_the_game_goes_on() -> None:
    game = CorridorGame(saw("You die, and wake up again.", died=True), saw("Out.", won=True, done=True))
    result = episode(game, client_that_says("jump", "north")).play_episode()
    assert (result.reason, result.deaths, result.turns) == ("won", 1, 2)


def test_fallbacks_in_a_row_stop_the_episode_with_their_cause() -> None:
    tape, client, game = Tape(), MockLLMClient(), CorridorGame()
    for _ in range(3):
        client.add_error(RuntimeError("the line is dead"))
    result = episode(game, client, tape, max_turns=20).play_episode()
    assert (result.reason, result.turns, result.fallbacks) == ("fallbacks", 3, 3)
    assert not result.succeeded
    assert result.detail.startswith("3 turns in a row fell back to 'look': ")
    assert "the line is dead" in result.detail
    assert game.commands == ["look"] * 3
    assert all(d.kind == "fallback" and "the line is dead" in d.reason for d in tape.of(Decided))


def test_a_turn_that_decides_resets_the_count_of_fallbacks() -> None:
    client = MockLLMClient()
    for fails in (True, False, True, True):
        if fails:
            client.add_error(RuntimeError("busy"))
        else:
            client.add_response(content='{"thinking": "Why not.", "action": "north"}')
    policy = FailurePolicy(fallbacks_before_stop=2)
    result = episode(CorridorGame(), client, policy=policy, max_turns=20).play_episode()
    assert (result.reason, result.turns, result.fallbacks) == ("fallbacks", 4, 3)
    assert result.commands == ("look", "north", "look", "look")


def test_r15_3_an_answer_that_cannot_be_used_is_a_counted_fallback() -> None:
    tape, client = Tape(), MockLLMClient()
    client.add_response(content="I go north.")
    client.add_response(content="North, I said. " + "x" * 200)
    result = episode(CorridorGame(), client, tape, max_turns=1).play_episode()
    (decided,) = tape.of(Decided)
    assert (decided.action, decided.kind, result.fallbacks, result.requests) == ("look", "fallback", 1, 2)
    assert decided.reasoning.startswith("Parse error: ")
    assert decided.reasoning.endswith(". Raw: North, I said. " + "x" * 85)


@pytest.mark.parametrize("status", [401, 402, 403, 404])
def test_key_credit_and_model_errors_end_the_episode(status: int) -> None:
    class RefusalError(Exception):
        status_code = status

    tape, client, game = Tape(), MockLLMClient(), CorridorGame()
    client.add_error(RefusalError("not with this key"))
    played = episode(game, client, tape)
    with pytest.raises(LLMError, match="not with this key"):
        played.play_episode()
    assert game.commands == []
    assert played.result().reason == tape.of(EpisodeEnded)[0].reason == "failed"
    assert "not with this key" in played.result().detail


def test_an_endpoint_that_was_never_reached_ends_the_episode() -> None:
    tape, client, game = Tape(), MockLLMClient(), CorridorGame()
    client.add_error(ConnectionRefusedError("nobody there"))
    played = episode(game, client, tape)
    with pytest.raises(LLMError, match="nobody there") as raised:
        played.play_episode()
    assert raised.value.kind == "unreachable"
    assert game.commands == []
    assert tape.of(EpisodeEnded)[0].reason == "failed"


def test_one_that_has_answered_and_is_gone_costs_only_its_turn() -> None:
    tape, client, game = Tape(), client_that_says("north"), CorridorGame()
    client.add_error(ConnectionRefusedError("nobody there"))
    result = episode(game, client, tape, max_turns=2).play_episode()
    assert game.commands == ["north", "look"]
    assert [decided.kind for decided in tape.of(Decided)] == ["answered", "fallback"]
    assert (result.reason, result.fallbacks) == ("turn_limit", 1)


def test_a_turn_past_its_limit_is_a_counted_fallback() -> None:
    class Silent(MockMCPManager):
        async def connect_session(self) -> None:
            import anyio

            await anyio.sleep_forever()

    tape, game = Tape(), CorridorGame()
    config = GameConfiguration(mcp_enabled=True, agent_model="gpt-4")
    played = episode(
        *(game, MockLLMClient(), tape),
        config=config,
        mcp_manager=Silent(),
        turn_timeout_s=0.3,
        max_turns=1,
    )
    result = played.play_episode()
    (decided,) = tape.of(Decided)
    assert (result.fallbacks, decided.kind, game.commands) == (1, "fallback", ["look"])
    assert "0.3 s" in decided.reason
    assert len(tape.of(TurnFailed)) == 1


def test_r6_1_a_server_that_never_started_ends_the_episode() -> None:
    tape, manager = Tape(), MockMCPManager()
    manager.connect_error = OSError("no such server")
    played = episode(CorridorGame(), client_that_says("north"), tape, mcp_manager=manager)
    with pytest.raises(MCPError, match="no such server"):
        played.play_episode()
    assert tape.of(EpisodeEnded)[0].reason == "failed"
    assert played.result().commands == ()


def test_r6_1_played_turn_by_turn_it_ends_the_episode_too() -> None:
    tape, manager, game = Tape(), MockMCPManager(), CorridorGame()
    manager.connect_error = OSError("no such server")
    played = episode(game, client_that_says("north"), tape, mcp_manager=manager)
    with pytest.raises(MCPServerStartupError, match="no such server"):
        played._process_turn()
    manager.connect_error = None
    recorded = len(tape.bodies)
    assert [played._process_turn() for _ in range(3)] == [False] * 3
    assert played.play_episode().reason == "failed", "the same word, however it is asked"
    assert (manager.connect_count, game.commands, len(tape.bodies)) == (0, [], recorded)
    (ended,) = tape.of(EpisodeEnded)
    assert (ended.reason, ended.turns) == ("failed", 1)
    assert "no such server" in ended.detail
    assert len(tape.of(Observed)) == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (GameError("it broke"), "failed"),
        (LLMError("no", status=401), "failed"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_a_turn_that_is_cut_off_ends_the_episode_whoever_drives_it(error: BaseException, reason: str) -> None:
    def breaks(command: str) -> None:
        raise error

    tape, client = Tape(), client_that_says("north", "north")
    played = episode(CorridorGame(on_step=breaks), client, tape)
    with pytest.raises(type(error)):
        played._process_turn()
    assert played._process_turn() is False
    assert [ended.reason for ended in tape.of(EpisodeEnded)] == [played.result().reason] == [reason]
    assert len(client.requests) == 1


def test_the_policy_given_is_the_turns() -> None:
    tape, manager = Tape(), MockMCPManager()
    manager.connect_error = OSError("no such server")
    policy = FailurePolicy(first_connect="disable")
    config = GameConfiguration(mcp_enabled=True, agent_model="gpt-4")
    played = episode(
        *(CorridorGame(), client_that_says("north"), tape),
        config=config,
        mcp_manager=manager,
        policy=policy,
        max_turns=1,
    )
    assert played.play_episode().commands == ("north",)
    assert [decided.kind for decided in tape.of(Decided)] == ["degraded"]


def test_a_game_that_breaks_ends_the_episode() -> None:
    def breaks(command: str) -> None:
        raise GameError("the interpreter died")

    tape = Tape()
    with pytest.raises(GameError):
        episode(CorridorGame(on_step=breaks), client_that_says("north"), tape).play_episode()
    assert [type(body) for body in tape.bodies[-2:]] == [Decided, EpisodeEnded]
    assert len(tape.of(Observed)) == 1, "the command has changed nothing that could be observed"
    assert tape.of(EpisodeEnded)[0].detail == "the interpreter died"


def test_ctrl_c_is_recorded_and_passed_on() -> None:
    def interrupt(command: str) -> None:
        raise KeyboardInterrupt

    tape = Tape()
    played = episode(CorridorGame(on_step=interrupt), client_that_says("north"), tape)
    with pytest.raises(KeyboardInterrupt):
        played.play_episode()
    assert played.result().reason == tape.of(EpisodeEnded)[0].reason == "interrupted"
    assert not played.result().succeeded


def test_what_happened_reaches_the_next_context() -> None:
    game = CorridorGame(saw("It pays.", score=5), saw("Nothing."))
    client = client_that_says("pull lever", "wait", "wait", objective="find the exit")
    episode(game, client, max_turns=3).play_episode()
    first, second, third = (shown(client, request) for request in range(3))
    assert "A corridor. It is long." in first
    assert "Objectives" not in first
    assert "- find the exit" in second
    assert "> pull lever (+5 points): It pays." in second
    assert second.endswith("What you remember of this place:\n- 'pull lever' brought 5 points")
    assert third.count("- find the exit") == 1


def test_a_player_who_is_stuck_is_told_so() -> None:
    client = client_that_says(*["push wall"] * 4)
    episode(CorridorGame(), client, max_turns=4).play_episode()
    warned = ["three times running" in shown(client, request) for request in range(4)]
    assert warned == [False, False, False, True]


def test_r10_2_a_host_may_play_turn_by_turn() -> None:
    played = episode(
        CorridorGame(saw(), saw(won=True, done=True)), client_that_says("north", "south"), Tape()
    )
    assert played.game_state.last_action is None
    assert played.result().detail == "still being played"
    assert played._process_turn() is True
    assert played.game_state.last_action == "north"
    assert played._process_turn() is True
    assert played._process_turn() is False
    assert played.game_state.last_action == "south"
    assert played.result().reason == "won"


def test_the_embedded_world_is_what_is_played_unless_another_is_given() -> None:
    played = episode(None, client_that_says("north"), max_turns=1)
    assert isinstance(played.game, HouseGame)
    result = played.play_episode()
    assert (result.game, result.max_score) == (HouseGame().name, 100)
    assert played.game_state.observation.location == "Overgrown Garden"
    played.close()


def test_the_game_is_closed() -> None:
    game = CorridorGame()
    episode(game, MockLLMClient()).close()
    assert game.closed


def test_r9_2_r9_5_the_manager_given_is_the_agents_and_serves_a_session_a_turn() -> None:
    tape, manager, client = Tape(), MockMCPManager(), MockLLMClient()
    client.add_response(tool_calls=[{"name": "thoughtbox.think", "arguments": {"thought": "Hm."}}])
    for action in ("north", "south"):
        client.add_response(content=json.dumps({"thinking": "Why not.", "action": action}))
    config = GameConfiguration(mcp_enabled=True, agent_model="gpt-4")
    played = episode(CorridorGame(), client, tape, config=config, mcp_manager=manager, max_turns=2)
    assert played.agent.mcp_manager is manager is played.mcp_manager
    result = played.play_episode()
    assert (manager.connect_count, manager.connected) == (2, False)
    assert (result.tool_calls, result.requests, len(tape.of(ToolCalled))) == (1, 3, 1)
    assert result.commands == ("north", "south")


@pytest.fixture
def project(tmp_path: Path) -> GameConfiguration:
    """Settings with MCP on, and a file of three servers, of which the first has a key without effect."""
    alone = {**faulty(), "autoApprove": ["*"]}
    write_servers(tmp_path / "mcp_config.json", faulty={**alone, "oauth": {}}, two=alone, three=alone)
    return GameConfiguration(mcp_enabled=True, agent_model="gpt-4", project_dir=tmp_path)


def test_r9_1_r2_6_with_mcp_on_it_makes_a_manager_and_names_what_it_ignores(
    project: GameConfiguration, caplog: pytest.LogCaptureFixture
) -> None:
    tape, logger = Tape(), logging.getLogger("test.orchestrator")
    with caplog.at_level(logging.INFO, logger="test.orchestrator"):
        played = episode(CorridorGame(), MockLLMClient(), tape, config=project, logger=logger)
    assert isinstance(played.mcp_manager, MCPManager)
    assert played.agent.mcp_manager is played.mcp_manager
    (initialized,) = tape.of(McpInitialized)
    assert (initialized.server, initialized.ignored) == ("faulty", ("two", "three"))
    assert any("'oauth'" in text for text in initialized.warnings)
    told = [(record.levelname, record.getMessage()) for record in caplog.records if record.name != "asyncio"]
    assert told[:2] == [
        ("INFO", "MCP Manager initialized"),
        ("WARNING", "Only the first MCP server is used, 'faulty'; ignored: two, three"),
    ]
    assert [(level, text) for level, text in told[2:]] == [("WARNING", text) for text in initialized.warnings]
    assert {record.episode_id for record in caplog.records if record.name != "asyncio"} == {"episode-1"}


def test_r9_3_a_configuration_that_cannot_be_used_ends_it_before_it_begins(tmp_path: Path) -> None:
    tape = Tape()
    config = GameConfiguration(mcp_enabled=True, project_dir=tmp_path)
    with pytest.raises(MCPConfigError) as caught:
        episode(CorridorGame(), MockLLMClient(), tape, config=config)
    missing = f"MCP is enabled but config file not found: {tmp_path / 'mcp_config.json'}"
    assert str(caught.value).startswith(f"MCP initialization failed: {missing}\nPlease either:\n")
    assert isinstance(caught.value, MCPError)
    assert [type(body) for body in tape.bodies] == [McpInitFailed]
    assert tape.of(McpInitFailed)[0].error.startswith(missing)


def test_r9_4_r2_5_with_mcp_off_there_is_no_manager_and_no_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "mcp_config.json").write_text("this is not JSON")
    tape = Tape()
    config = GameConfiguration(mcp_enabled=False, project_dir=tmp_path)
    client = client_that_says("north")
    played = episode(CorridorGame(), client, tape, config=config, max_turns=1)
    assert played.mcp_manager is None
    assert played.play_episode().commands == ("north",)
    assert tape.of(McpInitialized) == []
    assert tape.of(EpisodeStarted)[0].servers == ()
    assert client.requests[0]["tools"] is None


def test_without_a_configuration_the_working_directorys_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ZorkOrchestratorV2(episode_id="e").config == GameConfiguration()
    (tmp_path / "pyproject.toml").write_text("[tool.zorkgpt.mcp]\nmax_tool_iterations = 3\n")
    assert ZorkOrchestratorV2(episode_id="e").config.mcp_max_tool_iterations == 3


def test_what_a_failed_turn_cost_is_counted_too() -> None:
    client = MockLLMClient()
    client.add_response(content="no JSON")
    client.add_error(RuntimeError("gone"))
    client.add_response(content=json.dumps({"thinking": "", "action": "east", "new_objective": None}))
    setup = EpisodeSetup(game=CorridorGame(), client=client, max_turns=2)
    played = ZorkOrchestratorV2("e", GameConfiguration(), setup).play_episode()
    assert played.fallbacks == 1
    assert played.requests == 3
