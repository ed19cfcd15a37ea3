"""A progress bar for `Runner.map`."""

import contextlib
import sys
from collections.abc import Generator, Iterable, Iterator, Sized
from typing import Any, TypeVar

from grue.engine.batch import BatchItem

T = TypeVar("T")


def with_bar(
    items: Iterator[BatchItem[T]], requests: Iterable[Any], total: int | None = None
) -> Iterator[BatchItem[T]]:
    """Yield the items unchanged and show a progress bar on standard error, if that is a terminal.

    Args:
        items: The items of `run_batch`.
        requests: The requests of the batch. If they have a length, the bar shows the total.
        total: The number of requests; `None`: their length, if they have one.
    """
    if not sys.stderr.isatty():
        return items
    if total is None and isinstance(requests, Sized):
        total = len(requests)
    return _followed(items, total)


def _followed(items: Iterator[BatchItem[T]], total: int | None) -> Generator[BatchItem[T], None, None]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    # What the program prints to the terminal appears above the bar. Redirected output is left alone.
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
