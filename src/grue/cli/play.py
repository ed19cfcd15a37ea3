"""`grue play`: play an episode with the given options and print its result."""

import os
import sys
import time
from contextlib import ExitStack, chdir, closing, suppress
from pathlib import Path
from typing import Any

from grue.cli.episode_options import RECORDED, PlayOptions, as_started, chosen_backends, recorded_options
from grue.cli.live import JsonLines, LiveView, shown
from grue.cli.live_terminal import Terminal
from grue.cli.project import declines_mcp
from grue.cli.runs import RUNS
from grue.cli.saying import GRUE, say, shown_argument, shown_path
from grue.config.mcp_servers import missing_servers
from grue.config.settings import GameConfiguration
from grue.engine.approval import ask_at_terminal
from grue.errors import GameError, MCPConfigError, MCPError, TraceError
from grue.hosts.zork.bundled import BUNDLED_NAME, bundled_server
from grue.hosts.zork.client import LLMClient
from grue.hosts.zork.games.catalogue import open_game
from grue.hosts.zork.games.game import Game, Observation
from grue.hosts.zork.games.zmachine import ZMachineGame
from grue.hosts.zork.orchestrator import (
    DEFAULT_MAX_TURNS,
    EpisodeResult,
    EpisodeSetup,
    GamePast,
    ZorkOrchestratorV2,
    read_past,
)
from grue.runtime.safe_text import well_formed
from grue.runtime.trace.recorder import Recorder
from grue.tracing.facts import counted
from grue.tracing.observers.run_folder import RunFolder, new_run_path
from grue.transports.llm.endpoint import api_key, require_key


def pace(game: Game, pause_s: float) -> None:
    """Make the game wait before each move, so that people can watch (`--pace`)."""
    step = game.step

    def paced(command: str) -> Observation:
        time.sleep(pause_s)
        return step(command)

    game.step = paced  # type: ignore[method-assign]  # only of this object


def play_episode(options: PlayOptions) -> EpisodeResult:
    """Play or resume an episode, show it while it is played, and return its result."""
    if options.resume is None:
        return _play(options, None)
    past = read_past(options.resume)
    options = as_started(options, past)
    # Relative paths and `pyproject.toml` are those of the folder in which the episode was first started.
    with chdir(options.started_in or Path()):
        return _play(options, past)


def _play(options: PlayOptions, past: GamePast | None) -> EpisodeResult:
    config, server, notice = _configuration(options)
    game = open_game(options.game, interpreter=options.interpreter)
    client = _client(options, config, game)
    if notice:
        say(f"grue: {notice}", err=True)
    if isinstance(game, ZMachineGame) and game.notice:
        say(f"grue: {game.notice}", err=True)
    recorder = Recorder()
    folder_path = options.resume or options.run_dir or new_run_path(RUNS)
    episode_id = past.started.episode_id if past else well_formed(folder_path.name)
    max_turns = options.turns or DEFAULT_MAX_TURNS
    live = LiveView(Terminal(sys.stdout), max_turns=max_turns)
    with (
        closing(game),
        chosen_backends(recorder, episode_id, langfuse=options.langfuse, otel=options.otel),
        RunFolder(folder_path, recorder, episode_id=episode_id, resume=past is not None) as folder,
        shown(recorder, options.output, JsonLines(sys.stdout), live) as view,
    ):
        if past is not None:
            # Another process may have continued the episode before the folder was locked.
            past = read_past(folder_path)
        setup = EpisodeSetup(
            game=game,
            client=client,
            mcp_manager=server,
            seed=options.seed,
            max_turns=max_turns,
            recorder=recorder,
            approve=ask_at_terminal,
            turn_timeout_s=options.turn_timeout_s,
            scripted=options.offline,
            start=options.start,
            stream=options.stream,
            settings=recorded_options(options, RECORDED),
            past=past,
        )
        try:
            orchestrator = ZorkOrchestratorV2(episode_id, config, setup)
        except BaseException:
            if past is None:
                folder.discard()  # the episode has not begun, so there is nothing to keep
            raise
        if options.pace_s:
            # `ZorkOrchestratorV2` has already repeated the old moves of a resumed episode, without pauses.
            pace(game, options.pace_s)
        return _played(orchestrator, folder, view, options)


def _played(
    orchestrator: ZorkOrchestratorV2, folder: RunFolder, view: ExitStack, options: PlayOptions
) -> EpisodeResult:
    def finish() -> EpisodeResult:
        orchestrator.close()
        result = orchestrator.result()
        try:
            folder.write_result(result)
        finally:
            view.close()
        if options.output != "json":
            say(("" if options.output == "quiet" else "\n") + _summary(result, folder.path))
        return result

    if options.output == "quiet":
        for change in orchestrator.changes:
            say(f"grue: {change.text}.", err=True)
    try:
        orchestrator.play_episode()
    except BaseException as error:
        # Write the result file also after an error. If that fails, raise the first error all the same.
        with suppress(TraceError):
            finish()
        if isinstance(error, GameError):
            # A `GameError` would tell the caller that no game began, but this game broke while it was played.
            raise MCPError(str(error)) from error
        raise
    return finish()


def _configuration(options: PlayOptions) -> tuple[GameConfiguration, Any, str]:
    """Return the settings, the bundled server or `None`, and a notice about this server or an empty text."""
    config = GameConfiguration.of_project()
    model = options.model
    if options.offline:
        from grue.testing.offline import MODEL

        model = model or MODEL
    config.ask(options.base_url, model)
    if not options.mcp:
        config.mcp_enabled = False
        return config, None, ""
    if options.mcp_config is not None:
        if not options.mcp_config.exists():
            raise MCPConfigError(missing_servers(options.mcp_config, named=True))
        config.mcp_enabled = True
        config.mcp_config_file = str(options.mcp_config.absolute())
        return config, None, ""
    if config.mcp_enabled or declines_mcp():
        return config, None, ""
    config.mcp_enabled = True
    why = "no MCP servers are configured"
    # Say why an existing file of servers is not used, because `grue tools` does use it.
    if (file := config.mcp_config_path).is_file():
        why = f"{shown_path(file)} is not used without --mcp-config, or enabled = true"
    notice = (
        f"{why}, so the bundled server, {BUNDLED_NAME!r}, is used. For none: --no-mcp, or enabled = false"
        " under [tool.grue.mcp] in pyproject.toml."
    )
    return config, bundled_server(), notice if options.output == "live" else ""


def _client(options: PlayOptions, config: GameConfiguration, game: Game) -> LLMClient:
    if options.offline:
        from grue.testing.offline import OFFLINE_URL, ScriptedModelTransport, playbook_for

        transport = ScriptedModelTransport(playbook_for(game.name, options.seed))
        return LLMClient(config, base_url=OFFLINE_URL, transport=transport)
    key = api_key(config.client_base_url, os.environ)
    require_key(
        config.client_base_url, key, ", name another endpoint with --base-url, or play with --offline"
    )
    return LLMClient(config, api_key=key)


def _summary(result: EpisodeResult, folder: Path) -> str:
    most = f" of {result.max_score}" if result.max_score is not None else ""
    score = f" {result.score}{most} points," if result.score is not None else ""
    model = f"{result.model} (scripted, no LLM)" if result.scripted else result.model
    numbers = ((result.turns, "turn"), (result.tool_calls, "tool call"), (result.requests, "request"))
    counts = ", ".join(counted(count, noun) for count, noun in numbers)
    where = shown_argument(folder)
    more = {"interrupted": "", "turn_limit": f" --turns {2 * result.turns}"}.get(result.reason)
    further = "" if more is None else f"\nTo go on: {GRUE} play --resume {where}{more}"
    ended = f"{result.reason}:{score} {counts}, {result.duration_s:.1f} s, {model}"
    return f"{ended}\nThe trace is in {where}; to read it: {GRUE} trace show {where}{further}"
