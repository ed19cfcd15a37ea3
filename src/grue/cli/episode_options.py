"""The options that `grue play`, `chat` and `run` share, with the code for them; and those of `grue play`."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
from msgspec import Struct, structs

from grue import messages as m
from grue.errors import MCPConfigError
from grue.field_checks import fault_of
from grue.policies import StartAhead, StartWhen
from grue.runtime.trace.recorder import Recorder

if TYPE_CHECKING:
    from grue.hosts.zork.orchestrator import GamePast


class EpisodeOptions(Struct, frozen=True, kw_only=True):
    """The options that `grue play`, `grue chat` and `grue run` have in common."""

    offline: bool = False
    model: str | None = None
    base_url: str | None = None
    run_dir: Path | None = None
    resume: Path | None = None  # a run folder or trace, from which most other options are then taken


class PlayOptions(EpisodeOptions, frozen=True, kw_only=True):
    """The options of `grue play`; see its help."""

    game: str = "house"
    interpreter: str | None = None
    mcp_config: Path | None = None
    mcp: bool = True
    turns: int = 0  # 0: the default, or with `resume` the limit of the last run
    seed: int = 0
    turn_timeout_s: float | None = None
    started_in: Path | None = None  # where the episode was first started; `None`: in the working directory
    start: StartWhen | StartAhead | None = None
    stream: bool = False
    pace_s: float = 0.0
    langfuse: bool = False
    otel: bool = False
    output: Literal["live", "json", "quiet"] = "live"


ASKED = ("offline", "model", "base_url", "mcp_config", "mcp")
RECORDED = ("game", *ASKED, "turns", "seed", "turn_timeout_s", "interpreter")  # `--resume` restores them


def as_started(options: PlayOptions, past: "GamePast") -> PlayOptions:
    """Return the recorded options of a resumed episode. Limits in `options` take precedence."""
    settings = past.started.settings
    if not settings:
        fault = f"{options.resume} was not made by `grue play`. Resume it with the program that made it."
        raise MCPConfigError(fault)
    started = resumed_options(options, settings, (*RECORDED, "started_in"), "grue play")
    return structs.replace(
        started,
        started_in=existing(started.started_in),
        turns=options.turns or past.max_turns or started.turns,
        turn_timeout_s=options.turn_timeout_s or started.turn_timeout_s,
    )


def existing(folder: Path | None) -> Path | None:
    """Return `folder` if it is a folder, otherwise `None`."""
    return folder if folder is not None and folder.is_dir() else None


S = TypeVar("S", bound=EpisodeOptions)


def recorded_options(options: Struct, names: Iterable[str]) -> m.JsonObject:
    """Return the options called `names`, and the working directory, for the trace."""
    given = {name: getattr(options, name) for name in names}
    chosen: m.JsonObject = msgspec.to_builtins(given, enc_hook=str)
    return {**chosen, "started_in": str(Path.cwd())}


def resumed_options(options: S, recorded: m.JsonObject, names: Iterable[str], command: str) -> S:
    """Return `options` with the recorded values for `names`; `resume` becomes the run folder."""
    run = options.resume
    assert run is not None, "an episode is resumed"
    try:
        started = msgspec.convert(recorded, type(options), dec_hook=lambda type_, value: type_(value))
    except msgspec.ValidationError as error:
        said = f"{run} does not hold valid options of `{command}`"
        raise MCPConfigError(f"{said}: {fault_of(error)}.") from error
    folder = (run.parent if run.is_file() else run).absolute()
    return structs.replace(options, **{name: getattr(started, name) for name in names}, resume=folder)


@contextmanager
def chosen_backends(recorder: Recorder, episode_id: str, *, langfuse: bool, otel: bool) -> Iterator[None]:
    """Send the trace to the chosen backends. At the end they send what is left, for a few seconds at most."""
    with ExitStack() as open_ones:
        if langfuse:
            from grue.tracing.observers.langfuse import LangfuseObserver, require_langfuse

            require_langfuse()
            recorder.add(open_ones.enter_context(closing(LangfuseObserver(session_id=episode_id))))
        if otel:
            from grue.tracing.observers.otel import OtelObserver, require_otel

            require_otel()
            recorder.add(open_ones.enter_context(closing(OtelObserver(session_id=episode_id))))
        yield
