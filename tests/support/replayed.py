"""Replay all traces that a test has left in its folder."""

from collections.abc import Iterator
from pathlib import Path

from grue.errors import TraceError
from grue.messages import RunTurn
from grue.testing import replay
from grue.tracing.reading import open_episode


def replay_all(folder: Path) -> list[Path]:
    """Replay each readable trace with a turn below `folder`, and return their paths.

    Raises:
        AssertionError: A replay differs from its trace. The text names the file and the first difference.
    """
    traces = list(traces_in(folder))
    for path in traces:
        replay(path)
    return traces


def traces_in(folder: Path) -> Iterator[Path]:
    """Yield the trace files below `folder` that can be read and contain a turn."""
    for path in sorted(folder.rglob("*.jsonl")):
        try:
            if path.is_file() and any(isinstance(envelope.body, RunTurn) for envelope in open_episode(path)):
                yield path
        except TraceError:
            continue  # a trace that a test has damaged, or another file
