"""The progress bar of a fleet that a program runs: `Fleet.map(progress=True)`. The command has its own."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

from grue.fleet.driver import Tally
from grue.fleet.engine import Costs
from grue.runtime.loops.sync_edge import in_notebook

Watch: TypeAlias = Callable[[Tally, dict[str, float], Costs], None]
"""Gets the counts, the running episodes with the time of their start, and what requests have cost."""

_REDRAW_S = 0.5


@contextlib.contextmanager
def shown_progress(watch: Watch | None, *, shown: bool) -> Iterator[Watch | None]:
    """Return a watch that also shows how far the fleet is, at a terminal or in a notebook."""
    if not shown or not (in_notebook() or sys.stderr.isatty()):
        yield watch
        return
    with _in_a_line() if in_notebook() else _as_a_bar() as draw:

        def seen(tally: Tally, running: dict[str, float], costs: Costs) -> None:
            draw(tally)
            if watch is not None:
                watch(tally, running, costs)

        yield seen


@contextlib.contextmanager
def _as_a_bar() -> Iterator[Callable[[Tally], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task("episodes", total=None)
        yield lambda tally: bar.update(
            task, completed=_ended(tally), total=tally.total, description=_described(tally)
        )


@contextlib.contextmanager
def _in_a_line() -> Iterator[Callable[[Tally], None]]:
    drawn_at, last = -_REDRAW_S, ""

    def draw(tally: Tally) -> None:
        nonlocal drawn_at, last
        last = f"\r{_ended(tally)}/{tally.total} {_described(tally)}"
        if time.monotonic() - drawn_at >= _REDRAW_S:
            drawn_at = time.monotonic()
            print(last, end="", file=sys.stderr, flush=True)  # noqa: T201

    yield draw
    print(last, file=sys.stderr)  # noqa: T201


def _ended(tally: Tally) -> int:
    return tally.done + tally.given_up + tally.unpaid


def _described(tally: Tally) -> str:
    counts = ((tally.failed, "failed"), (tally.given_up, "given up"), (tally.unpaid, "not paid for"))
    return ", ".join(["episodes", *(f"{count:,} {what}" for count, what in counts if count)])
