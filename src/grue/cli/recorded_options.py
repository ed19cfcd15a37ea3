"""Options of a command that its trace records, so that the episode can be resumed with them."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.errors import MCPConfigError

S = TypeVar("S", bound=Struct)


def recorded_options(options: Struct, names: Iterable[str]) -> m.JsonObject:
    """Return these options as JSON, with the working directory, where the project's settings are."""
    given = {name: getattr(options, name) for name in names}
    chosen: m.JsonObject = msgspec.to_builtins(given, enc_hook=str)
    return {**chosen, "started_in": str(Path.cwd())}


def started_options(recorded: m.JsonObject, kind: type[S], otherwise: str) -> S:
    """Return the options that were recorded.

    Args:
        recorded: As `recorded_options` has returned them.
        kind: The class of the options.
        otherwise: The beginning of the error's text.

    Raises:
        MCPConfigError: They are not options of this kind.
    """
    try:
        return msgspec.convert(recorded, kind, dec_hook=lambda type_, value: type_(value))
    except msgspec.ValidationError as error:
        raise MCPConfigError(f"{otherwise}: {error}.") from error


def run_folder(run: Path) -> Path:
    """Return the absolute path of a run folder, given the folder or the trace in it."""
    return (run.parent if run.is_file() else run).absolute()
