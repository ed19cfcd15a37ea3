"""Play an episode with the Zork host: play a text adventure and return the scores."""

import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec

from grue import Recorder
from grue.errors import MCPError
from grue.fleet import host_settings
from grue.fleet.work import Episode, work
from grue.hosting import GameConfiguration, RunFolder
from grue.hosts.zork.bundled import bundled_server
from grue.hosts.zork.client import LLMClient
from grue.hosts.zork.games.catalogue import open_game
from grue.hosts.zork.orchestrator import EpisodeResult, EpisodeSetup, GamePast, ZorkOrchestratorV2, read_past
from grue.testing.offline import MODEL, OFFLINE_URL, ScriptedModelTransport, playbook_for
from grue.transports.llm.endpoint import api_key


class PlayCase(host_settings.ProjectCase, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a case."""

    game: str = "house"
    turns: int = 60
    turn_timeout_s: float | None = None


def completed(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a case's settings, completed by `with_endpoint`; raises `FleetError` if they cannot be used."""
    with host_settings.usable_case("played"):
        return host_settings.with_endpoint(settings)


@work(
    files=("game", "mcp_config"),
    scores=("score", "turns", "tool_calls", "deaths"),
    settings=PlayCase,
    complete=completed,
)
def play(case: dict[str, Any], episode: Episode) -> dict[str, float]:
    """Play an episode of the case's game; return the scores. Raises an `MCPError` if the episode fails."""
    with host_settings.usable_case("played"):
        settings = msgspec.convert(case, PlayCase)
    result = _played(settings, episode)
    if result.reason == "failed" or result.reason == "fallbacks":
        said = f"The episode ended with {result.reason}: {result.detail}"
        raise host_settings.error_of_failed(episode, said)
    return {
        "score": float(result.score or 0),
        "turns": float(result.turns),
        "tool_calls": float(result.tool_calls),
        "deaths": float(result.deaths),
    }


def _played(case: PlayCase, episode: Episode) -> EpisodeResult:
    config, server = _configuration(case)
    past = _past(episode)
    recorder = Recorder()
    with (
        contextlib.closing(open_game(case.game)) as game,
        RunFolder(episode.folder, recorder, episode_id=episode.id, resume=past is not None) as folder,
    ):
        setup = EpisodeSetup(
            game=game,
            seed=case.seed,
            max_turns=case.turns,
            client=_client(case, config, game.name),
            mcp_manager=server,
            recorder=recorder,
            turn_timeout_s=case.turn_timeout_s,
            scripted=case.offline,
            past=past,
        )
        orchestrator = ZorkOrchestratorV2(episode.id, config, setup)
        try:
            orchestrator.play_episode()
        finally:
            orchestrator.close()
            result = orchestrator.result()
            folder.write_result(result)
    return result


def _past(episode: Episode) -> GamePast | None:
    """Copy an interrupted attempt's files, and return how far its game got; `None`: begin a new game."""
    if not host_settings.continue_interrupted(episode):
        return None
    try:
        return read_past(episode.folder)
    except MCPError:  # the attempt was interrupted before its trace had enough to resume it
        host_settings.begin_again(episode)
        return None


def _configuration(case: PlayCase) -> tuple[GameConfiguration, Any]:
    config = GameConfiguration.of_project()
    config.ask(case.base_url, case.model or (MODEL if case.offline else None))
    config.mcp_enabled = case.mcp
    if case.mcp_config is not None and case.mcp:
        config.mcp_config_file = str(Path(case.mcp_config).absolute())
        return config, None
    return config, bundled_server() if case.mcp else None


def _client(case: PlayCase, config: GameConfiguration, game: str) -> LLMClient:
    if not case.offline:
        return LLMClient(config, api_key=api_key(config.client_base_url, os.environ))
    return LLMClient(
        config, base_url=OFFLINE_URL, transport=ScriptedModelTransport(playbook_for(game, case.seed))
    )
