"""A progress bar for `Runner.map`."""

import contextlib
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sized
from typing import Any, TypeVar

from grue.engine.batch import BatchItem

T = TypeVar("T")


def with_bar(
    items: Iterator[BatchItem[T]], requests: Iterable[Any], total: int | None = None
) -> Iterator[BatchItem[T]]:
    """Yield the items unchanged and show a progress bar on standard error, at a terminal or in a notebook.

    Args:
        items: The items of `run_batch`.
        requests: The requests of the batch. If they have a length, the bar shows the total.
        total: The number of requests; `None`: their length, if they have one.
    """
    if total is None and isinstance(requests, Sized):
        total = len(requests)
    if _in_notebook():
        return _followed_in_notebook(items, total)
    return _followed(items, total) if sys.stderr.isatty() else items


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
            shown.update(task, advance=1, description=_described(failed, recalled))
            yield item


def _described(failed: int, recalled: int) -> str:
    notes = [f"{failed} failed"] * bool(failed) + [f"{recalled} recalled"] * bool(recalled)
    return ", ".join(["turns", *notes])


def _in_notebook() -> bool:
    """Return whether the program runs in the kernel of a notebook, whose output is not a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def _followed_in_notebook(
    items: Iterator[BatchItem[T]], total: int | None
) -> Generator[BatchItem[T], None, None]:
    """Show a bar of plain text in one line. Rich would ask for a package that draws widgets there."""
    done = failed = recalled = 0
    drawn_at = -_REDRAW_S
    with contextlib.ExitStack() as ending:
        if isinstance(items, Generator):
            ending.enter_context(contextlib.closing(items))
        ending.callback(lambda: print(_line(done, total, failed, recalled), file=sys.stderr))  # noqa: T201
        for item in items:
            done, failed, recalled = done + 1, failed + (item.error is not None), recalled + item.recalled
            if time.monotonic() - drawn_at >= _REDRAW_S:
                drawn_at = time.monotonic()
                print(_line(done, total, failed, recalled), end="", file=sys.stderr, flush=True)  # noqa: T201
            yield item


_REDRAW_S = 0.2
_WIDTH = 40


def _line(done: int, total: int | None, failed: int, recalled: int) -> str:
    filled = _WIDTH * done // total if total else 0
    bar = f"{'█' * filled}{'░' * (_WIDTH - filled)} {done}/{total}" if total else str(done)
    return f"\r{bar} {_described(failed, recalled)}"
