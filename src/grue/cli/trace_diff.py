"""`grue trace diff`: compare two traces."""

from collections.abc import Iterator
from pathlib import Path

from grue.cli.saying import say
from grue.tracing.diff import diff as diff_traces
from grue.tracing.diff import render
from grue.tracing.divergence import Divergence
from grue.tracing.reading import open_episode


def diff(left: Path, right: Path, *, every: bool = False) -> bool:
    """Print where two traces differ; return whether they are identical.

    Args:
        left: A trace file or a run folder.
        right: Another one.
        every: Describe each difference, not only the first.
    """
    readers = open_episode(left), open_episode(right)
    identical = True

    def found() -> Iterator[Divergence]:
        nonlocal identical
        for divergence in diff_traces(*readers):
            identical = False
            yield divergence

    for line in render(found(), every=every):
        say(line)
    for name, reader in zip("AB", readers, strict=True):
        if reader.cut_short:
            say(f"The last line of {name} was cut short: its writer was killed while it wrote.")
    return identical
