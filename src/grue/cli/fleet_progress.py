"""The progress of `grue fleet run`, `retry` and `fork`: status rows at a terminal, JSON Lines elsewhere."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import msgspec
from msgspec import Struct

from grue.cli.fleet_view import score_text
from grue.cli.live_terminal import Terminal
from grue.cli.saying import GRUE, shown, shown_argument
from grue.fleet.broker import Amount, Costs, FleetBudget
from grue.fleet.driver import Tally
from grue.fleet.folder import FleetFolder
from grue.runtime.loops.closing import Closing
from grue.tracing.columns import cut
from grue.tracing.facts import counted

_SHOWN_EVERY_S = {True: 0.2, False: 10.0}
_SLOW_AFTER_S = 10.0
_COUNTS = ("total", "done", "failed", "given_up", "unpaid", "waiting")
_SAMPLE = 10  # how many episodes this run has to finish before the remaining time is shown


class Seen(Struct, frozen=True, kw_only=True):
    """The state of a fleet, as the display shows it."""

    tally: Tally
    running: dict[str, float]  # the monotonic time at which each was submitted, by episode id
    costs: Costs  # of all runs; this run's requests count only if it has limits on requests
    elapsed_s: float

    @property
    def spent(self) -> Amount:
        """The cost so far, from `costs` or `tally`: the one that counts more requests."""
        return max(self.costs.spent, self.tally.spent, key=lambda spent: spent.requests)

    @property
    def left_s(self) -> float | None:
        """Estimated seconds for the missing episodes; `None`: this run has finished fewer than ten."""
        tally = self.tally
        fresh = tally.done - tally.before
        missing = tally.total - tally.done - tally.given_up - tally.unpaid
        return missing * self.elapsed_s / fresh if fresh >= _SAMPLE else None

    @property
    def slowest(self) -> tuple[str, float] | None:
        """The id of the oldest running episode, and its age in seconds; `None`: none is older than 10 s."""
        if not self.running:
            return None
        id_, since = min(self.running.items(), key=lambda item: item[1])
        age_s = time.monotonic() - since
        return (id_, age_s) if age_s > _SLOW_AFTER_S else None


class FleetProgress(Closing):
    """Shows the progress of the fleet in the folder `place`, every 0.2 s at a terminal, else every 10 s."""

    def __init__(self, out: TextIO, place: Path, budget: FleetBudget) -> None:
        self._terminal = Terminal(out)
        self.place = place
        self._budget = budget
        self._costs = Costs()
        self._began = time.monotonic()
        self._shown_at = 0.0

    def show(self, tally: Tally, running: dict[str, float], costs: Costs) -> None:
        """Show the fleet's progress, if enough time has passed since it was last shown."""
        self._costs = costs
        now = time.monotonic()
        if now - self._shown_at >= _SHOWN_EVERY_S[self._terminal.redraws]:
            self._shown_at = now
            with suppress(OSError):  # nobody reads the output any more, and the episodes go on
                self._draw(Seen(tally=tally, running=running, costs=costs, elapsed_s=now - self._began))

    def close(self) -> None:
        """Erase the status rows."""
        if self._terminal.redraws:
            with suppress(OSError):
                self._terminal.draw("")

    def end(self, tally: Tally) -> None:
        """Show the final counts, which stay on the screen."""
        elapsed_s = time.monotonic() - self._began
        self._draw(Seen(tally=tally, running={}, costs=self._costs, elapsed_s=elapsed_s), last=True)

    def _draw(self, seen: Seen, *, last: bool = False) -> None:
        if not self._terminal.redraws:
            line = json_line(seen, self._budget, self.place)
            self._terminal.write(msgspec.json.encode(line).decode() + "\n")
            return
        rows = [counts_row(seen, self._budget)]
        if seen.slowest is not None:
            id_, age_s = seen.slowest
            rows.append(f"  slowest {clock(age_s)}: {trace_command(self.place, id_)}")
        width = self._terminal.size().columns - 1
        rows = [cut(shown(row), width) for row in rows]
        self._terminal.draw(f"{rows[0]}\n" if last else "", () if last else rows)


def json_line(seen: Seen, budget: FleetBudget, place: Path) -> dict[str, Any]:
    """Return the progress as an object for JSON."""
    tally, spent = seen.tally, seen.spent
    line: dict[str, Any] = {
        **{name: getattr(tally, name) for name in _COUNTS},
        "running": len(seen.running),
        "scores": {name: total / count for name, (count, total) in tally.scores.items()},
        "requests": spent.requests,
        "tokens": spent.tokens,
        "money_usd": round(spent.money_usd, 6),
        "most_money_usd": budget.money_usd,
        "overloads": seen.costs.overloads,
        "left_s": None if seen.left_s is None else round(seen.left_s, 1),
    }
    if seen.slowest is not None:
        id_, age_s = seen.slowest
        line["slowest"] = {"id": id_, "age_s": round(age_s, 1), "trace": trace_command(place, id_)}
    return line


def counts_row(seen: Seen, budget: FleetBudget) -> str:
    """Return the first row at a terminal: counts, mean of the first score, cost, overloads, time left."""
    tally = seen.tally
    parts = [f"{tally.done:,}/{tally.total:,} done", f"{len(seen.running)} running"]
    parts += [f"{tally.waiting:,} waiting"] if tally.waiting else []
    if tally.failed or tally.given_up:
        parts.append(f"{tally.failed + tally.given_up:,} failed")
    parts += [score_text(name, total / count) for name, (count, total) in list(tally.scores.items())[:1]]
    parts += _cost(seen.spent, budget)
    if seen.costs.overloads:
        parts.append(f"{seen.costs.overloads:,} overloads")
    if seen.left_s is not None:
        parts.append(f"{clock(seen.left_s)} left")
    return ", ".join(parts)


def _cost(spent: Amount, budget: FleetBudget) -> list[str]:
    parts = []
    if budget.money_usd is not None:
        parts.append(f"${spent.money_usd:,.2f} of ${budget.money_usd:,.2f}")
    elif spent.money_usd:
        parts.append(f"${spent.money_usd:,.2f}")
    if budget.requests is not None:
        parts.append(f"{spent.requests:,} of {counted(budget.requests, 'request')}")
    if budget.tokens is not None:
        parts.append(f"{spent.tokens:,} of {budget.tokens:,} tokens")
    return parts


def trace_command(place: Path, id_: str) -> str:
    """Return the command that shows the last attempt's trace, or the episode if no attempt has begun."""
    attempts = FleetFolder(place).episode(id_).attempts()
    if not attempts:
        return f"{GRUE} fleet show {shown_argument(place)} {id_[:10]}"
    return f"{GRUE} trace show {shown_argument(attempts[-1][1])}"


def clock(seconds: float) -> str:
    """Return a duration as `M:SS` or `H:MM:SS`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
