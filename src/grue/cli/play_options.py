"""The options of `grue play`, and what of them is recorded so that the episode can be resumed."""

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, structs

from grue.errors import MCPConfigError
from grue.hosts.zork.past import Past
from grue.messages import JsonObject


class PlayOptions(Struct, frozen=True, kw_only=True):
    """The options of `grue play`; see its help.

    Attributes:
        mcp: Play with tools.
        turns: Most turns to play; 0: the default, or with `resume` what it was started with.
        resume: The run folder of an episode to go on with, by the options that it was started with.
        started_in: The folder that it is played in; `None`: the working directory.
        spawn_ahead: Start each turn's server while the move before is played.
        stream: Replies come as events.
        langfuse: Report to Langfuse.
        otel: Report to OpenTelemetry.
        output: `live` lines for people, `json` objects for programs, `quiet` for the end only.
    """

    game: str = "house"
    offline: bool = False
    model: str | None = None
    base_url: str | None = None
    mcp_config: Path | None = None
    mcp: bool = True
    turns: int = 0
    seed: int = 0
    run_dir: Path | None = None
    turn_timeout_s: float | None = None
    resume: Path | None = None
    started_in: Path | None = None
    spawn_ahead: bool = False
    stream: bool = False
    langfuse: bool = False
    otel: bool = False
    output: Literal["live", "json", "quiet"] = "live"


_RECORDED = ("game", "offline", "model", "base_url", "mcp_config", "mcp", "turns", "seed", "turn_timeout_s")
"""Options that are restored when an episode is resumed; the others only affect the display."""


def recorded(options: PlayOptions) -> JsonObject:
    """Return what an episode was asked for, as JSON, and where, which tells its project's settings."""
    given = {name: getattr(options, name) for name in _RECORDED}
    chosen: JsonObject = msgspec.to_builtins(given, enc_hook=str)
    return {**chosen, "started_in": str(Path.cwd())}


def as_started(options: PlayOptions, past: Past) -> PlayOptions:
    """Return the options that an episode was started with; turns, time limit and output as asked for now.

    Where the folder that it was started in is gone, it goes on in the working directory.

    Raises:
        MCPConfigError: The episode was not started by `grue play`, or by another version of it.
    """
    settings = past.started.settings
    if not settings:
        raise MCPConfigError(f"{options.resume} was not made by `grue play`: its host has to resume it.")
    try:
        started = msgspec.convert(settings, PlayOptions, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError as error:
        raise MCPConfigError(f"{options.resume} does not say how it was started: {error}.") from error
    return structs.replace(
        started,
        resume=None if options.resume is None else run_folder(options.resume),
        started_in=_existing(started.started_in),
        output=options.output,
        spawn_ahead=options.spawn_ahead,
        stream=options.stream,
        langfuse=options.langfuse,
        otel=options.otel,
        turns=options.turns or past.max_turns or started.turns,
        turn_timeout_s=options.turn_timeout_s or started.turn_timeout_s,
    )


def run_folder(run: Path) -> Path:
    """Return the run folder that is meant by its own name or by that of the trace in it; absolute."""
    return (run.parent if run.is_file() else run).absolute()


def _existing(folder: Path | None) -> Path | None:
    return folder if folder is not None and folder.is_dir() else None
