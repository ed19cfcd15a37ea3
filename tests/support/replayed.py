"""Replay every trace that a test leaves behind."""

from collections.abc import Iterator
from pathlib import Path

from grue.errors import TraceError
from grue.messages import RunTurn
from grue.testing import replay
from grue.tracing.reading import open_episode


def replay_all(folder: Path) -> list[Path]:
    """Replay each trace below `folder` and return their paths; what is no whole trace of turns is left out.

    Raises:
        AssertionError: One does not replay; the text has the file and the first divergence.
    """
    traces = list(traces_in(folder))
    for path in traces:
        replay(path)
    return traces


def traces_in(folder: Path) -> Iterator[Path]:
    """Yield the trace files below `folder` that can be read and hold a turn."""
    for path in sorted(folder.rglob("*.jsonl")):
        try:
            if path.is_file() and any(isinstance(envelope.body, RunTurn) for envelope in open_episode(path)):
                yield path
        except TraceError:
            continue  # made broken on purpose, or no trace at all
