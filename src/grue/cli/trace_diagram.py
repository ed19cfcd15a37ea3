"""`grue trace diagram`: print a trace as a sequence diagram."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from grue.cli.saying import say
from grue.errors import MCPConfigError
from grue.tracing.diagram import WIDTH, mermaid, plain
from grue.tracing.reading import EpisodeEnvelope, open_episode
from grue.tracing.turn_slices import split_turns


def diagram(file: Path, *, turn: int | None = None, as_mermaid: bool = False) -> bool:
    """Print a sequence diagram of a trace; return whether there was anything to draw.

    Args:
        file: A trace file or a run folder.
        turn: Only this one.
        as_mermaid: In Mermaid's language, not as text.

    Raises:
        MCPConfigError: The trace has no such turn.
    """
    drawn = False
    envelopes = _chosen(file, turn)
    for line in mermaid(envelopes) if as_mermaid else plain(envelopes, width=_width()):
        say(line)
        drawn = True
    if turn is not None and not drawn:
        raise MCPConfigError(f"{file} has no turn {turn}.")
    return drawn


def _chosen(file: Path, turn: int | None) -> Iterator[EpisodeEnvelope]:
    for turn_slice in split_turns(open_episode(file)):
        if turn in (None, turn_slice.turn):
            yield from turn_slice.envelopes


def _width() -> int:
    return shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH
