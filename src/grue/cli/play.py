"""`grue play`: put an episode together from the options, play it, say how it ended."""

import os
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import typer
from msgspec import Struct

from grue.cli.live import JsonLines, LiveView
from grue.cli.project import declines_mcp, project_configuration
from grue.config.secrets import api_key, key_names, needs_key
from grue.config.settings import GameConfiguration
from grue.errors import MCPConfigError
from grue.games.catalogue import open_game
from grue.games.game import Game
from grue.hosts.zork.bundled import bundled_server
from grue.hosts.zork.client import LLMClient
from grue.hosts.zork.orchestrator import EpisodeResult, EpisodeSetup, ZorkOrchestratorV2
from grue.observers.run_folder import RunFolder
from grue.runtime.trace import Recorder


class PlayOptions(Struct, frozen=True, kw_only=True):
    """The options of `grue play`; see its help.

    Attributes:
        mcp: Play with tools.
        output: `live` lines for people, `json` objects for programs, `quiet` for the end only.
    """

    game: str = "house"
    offline: bool = False
    model: str | None = None
    base_url: str | None = None
    mcp_config: Path | None = None
    mcp: bool = True
    turns: int = 60
    seed: int = 0
    run_dir: Path | None = None
    turn_timeout_s: float | None = None
    output: Literal["live", "json", "quiet"] = "live"


def play_episode(options: PlayOptions) -> EpisodeResult:
    """Play an episode and print it.

    Raises:
        MCPConfigError, GameError: An option or a file cannot be used; nothing was started.
        MCPError: The episode could not go on.
        KeyboardInterrupt: Ctrl-C; the run folder tells how far it got.
    """
    config, server = _configuration(options)
    game = open_game(options.game)
    client = _client(options, config, game)
    recorder = Recorder()
    episode_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    folder_path = options.run_dir or Path("runs") / episode_id
    with RunFolder(folder_path, recorder, episode_id=episode_id) as folder:
        _show(recorder, options.output)
        setup = EpisodeSetup(
            game=game,
            seed=options.seed,
            max_turns=options.turns,
            client=client,
            mcp_manager=server,
            recorder=recorder,
            turn_timeout_s=options.turn_timeout_s,
            scripted=options.offline,
        )
        orchestrator = ZorkOrchestratorV2(episode_id, config, setup)
        try:
            orchestrator.play_episode()
        finally:
            orchestrator.close()
            result = orchestrator.result()
            folder.write_result(result)
            if options.output != "json":
                typer.echo(_summary(result, folder_path))
    return result


def _configuration(options: PlayOptions) -> tuple[GameConfiguration, Any]:
    """Return the settings, and the bundled server where no other one is asked for."""
    config = project_configuration()
    if options.base_url is not None:
        config.client_base_url = options.base_url
    config.agent_model = options.model or (OFFLINE_MODEL if options.offline else config.agent_model)
    if not options.mcp:
        config.mcp_enabled = False
        return config, None
    if options.mcp_config is not None:
        config.mcp_enabled = True
        config.mcp_config_file = str(options.mcp_config.absolute())
        return config, None
    if config.mcp_enabled or declines_mcp():
        return config, None
    config.mcp_enabled = True
    return config, bundled_server()


def _client(options: PlayOptions, config: GameConfiguration, game: Game) -> LLMClient:
    if options.offline:
        from grue.offline import ScriptedModelTransport, playbook_for

        transport = ScriptedModelTransport(playbook_for(game.name, options.seed))
        return LLMClient(config, base_url=OFFLINE_URL, transport=transport)
    key = api_key(config.client_base_url, os.environ)
    if key is None and needs_key(config.client_base_url):
        names = " or ".join(key_names(config.client_base_url))
        raise MCPConfigError(
            f"There is no key for {config.client_base_url}: set {names}"
            " in the environment, name another endpoint with --base-url, or play with --offline."
        )
    return LLMClient(config, api_key=key)


OFFLINE_MODEL = "grue-offline-script"
OFFLINE_URL = "http://offline.invalid/v1"
"""Never resolved: the script answers in its place."""


def _show(recorder: Recorder, output: Literal["live", "json", "quiet"]) -> None:
    if output == "json":
        recorder.add(JsonLines(sys.stdout))
    elif output == "live":
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        width = shutil.get_terminal_size((80, 24)).columns
        recorder.add(LiveView(sys.stdout, colour=colour, width=width))


def _summary(result: EpisodeResult, folder: Path) -> str:
    score = ""
    if result.score is not None:
        most = f" of {result.max_score}" if result.max_score is not None else ""
        score = f" {result.score}{most} points,"
    model = f"{result.model} (scripted, no LLM)" if result.scripted else result.model
    counts = f"{result.turns} turns, {result.tool_calls} tool calls, {result.requests} requests"
    return (
        f"\n{result.reason}:{score} {counts}, {result.duration_s:.1f} s, {model}\n"
        f"Everything that was said is in {folder}; look at it with: grue trace show {folder}"
    )
