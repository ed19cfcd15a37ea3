"""How far a batch is, shown at a terminal."""

import contextlib
import sys
from collections.abc import Generator, Iterable, Iterator, Sized
from typing import Any, TypeVar

from grue.engine.batch import BatchItem

T = TypeVar("T")


def with_bar(items: Iterator[BatchItem[T]], requests: Iterable[Any]) -> Iterator[BatchItem[T]]:
    """Return the same items, with a bar on standard error that follows them; in a pipe there is none.

    Args:
        items: Of `run_batch`.
        requests: How many there will be, if they have a length.
    """
    if not sys.stderr.isatty():
        return items
    return _followed(items, len(requests) if isinstance(requests, Sized) else None)


def _followed(items: Iterator[BatchItem[T]], total: int | None) -> Generator[BatchItem[T], None, None]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    # Above the bar, on the terminal, goes what is printed there; what is printed into a file stays in it.
    bar = Progress(*columns, console=Console(stderr=True), redirect_stdout=sys.stdout.isatty())
    with contextlib.ExitStack() as ending, bar as shown:
        if isinstance(items, Generator):
            ending.enter_context(contextlib.closing(items))
        task = shown.add_task("turns", total=total)
        failed = recalled = 0
        for item in items:
            failed += item.error is not None
            recalled += item.recalled
            notes = [f"{failed} failed"] * bool(failed) + [f"{recalled} recalled"] * bool(recalled)
            shown.update(task, advance=1, description=", ".join(["turns", *notes]))
            yield item
