"""`grue fleet run`, `retry`, `stop`: run a sweep and show its progress while it runs."""

import sys
import time
from pathlib import Path
from typing import Literal, TextIO

import msgspec
from msgspec import Struct

from grue.cli.fleet_view import score_text
from grue.cli.saying import say, shown, shown_path
from grue.errors import FleetError
from grue.fleet.driver import Finished, Tally, stop
from grue.fleet.engine import Costs
from grue.fleet.fleet import Fleet, FleetOptions
from grue.fleet.folder import MANIFEST, FleetFolder
from grue.fleet.local import default_workers
from grue.fleet.plan import SAMPLE, PlannedWork, read_plan
from grue.fleet.sweep import Sweep, read_sweep

_SHOWN_EVERY_S = {True: 0.2, False: 10.0}


class RunOptions(Struct, frozen=True, kw_only=True):
    """The options of `grue fleet run`; see its help."""

    sweep: Path
    directory: Path | None = None
    workers: int | None = None
    engine: Literal["local", "ray"] = "local"
    ray: str | None = None
    retry: bool = False

    @property
    def place(self) -> Path:
        """The fleet's folder."""
        return self.directory or Path("runs") / self.sweep.stem


def run_fleet(options: RunOptions) -> bool:
    """Run a sweep and print its progress; return whether nothing is missing.

    Raises:
        FleetError, MCPConfigError: The sweep or the folder cannot be used.
    """
    sweep = read_sweep(options.sweep)
    for sentence in _warnings(sweep):
        say(f"grue: {sentence}", err=True)
    fleet = Fleet(
        options.place,
        workers=options.workers or sweep.workers,
        engine=options.engine,
        budget=sweep.budget,
        rate=sweep.rate,
        options=FleetOptions(
            episode_timeout_s=sweep.episode_timeout_s,
            keep=sweep.keep,
            servers=sweep.cap,
            ray=options.ray,
        ),
    )
    view = _Progress(sys.stdout)
    finished = fleet.sweep(sweep, retry=options.retry, watch=view.show)
    view.end()
    say(_summary(finished, options))
    return finished.reason == "finished" and not finished.tally.given_up


def print_plan(options: RunOptions) -> None:
    """Say how many episodes are missing, and what they will take.

    Raises:
        FleetError, MCPConfigError: The sweep or the folder cannot be used.
    """
    sweep = read_sweep(options.sweep)
    planned = read_plan(sweep, options.place)
    free = FleetFolder(options.place).free_bytes()
    short = "" if planned.bytes_needed < free else ", which is not enough"
    say(
        f"{options.sweep}: {planned.total:,} episodes of {planned.work}, {planned.missing:,} of them are"
        " missing."
    )
    say(f"Disk: about {planned.bytes_needed / 2**20:,.0f} MB, {free / 2**20:,.0f} MB are free{short}.")
    workers = options.workers or sweep.workers or default_workers()
    say(f"Workers: {workers}. Limits: {_limits(sweep)}.")
    say(f"Cost: {_cost(planned)}")


def _cost(planned: PlannedWork) -> str:
    done, rest = planned.total - planned.missing, planned.missing
    if done < SAMPLE:
        return f"known after the first {SAMPLE} episodes."
    spent = planned.spent
    money = "" if not spent.money_usd else f"${spent.money_usd / done * rest:,.2f}, "
    unknown = "" if spent.money_usd or not spent.requests else " No price is known: see budget.prices."
    return (
        f"about {money}{spent.requests / done * rest:,.0f} requests and"
        f" {spent.tokens / done * rest:,.0f} tokens more, by the {done:,} that are done.{unknown}"
    )


def stop_fleet(directory: Path) -> None:
    """Ask a fleet's driver to stop.

    Raises:
        FleetError: There is no fleet.
    """
    if not (directory / MANIFEST).is_file():
        raise FleetError(f"There is no fleet in {directory}: it has no {MANIFEST}.")
    stop(directory)
    say("The fleet stops after its running episodes. To go on, run its sweep again.")


class _Progress:
    """Shows the progress: a line that changes at a terminal, JSON lines elsewhere."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._shown_at = 0.0
        self._began = time.monotonic()
        self._width = 0

    def show(self, tally: Tally, running: dict[str, float], costs: Costs) -> None:
        """Show the counts if the last time is long enough ago."""
        now = time.monotonic()
        finished = not running and tally.done + tally.given_up >= tally.total
        if now - self._shown_at < _SHOWN_EVERY_S[self._terminal] and not finished:
            return
        self._shown_at = now
        if self._terminal:
            self._line(_line(tally, running, costs, now - self._began))
        else:
            self._json(tally, running, costs)

    def end(self) -> None:
        """Leave the line as it is."""
        if self._terminal and self._width:
            self._out.write("\n")
            self._out.flush()

    def _line(self, text: str) -> None:
        text = shown(text)[:79]
        self._out.write("\r" + text.ljust(self._width))
        self._out.flush()
        self._width = len(text)

    def _json(self, tally: Tally, running: dict[str, float], costs: Costs) -> None:
        spent = costs.spent
        line = {
            "total": tally.total,
            "done": tally.done,
            "failed": tally.failed,
            "given_up": tally.given_up,
            "running": len(running),
            "scores": {name: total / count for name, (count, total) in tally.scores.items()},
            "requests": spent.requests,
            "money_usd": round(spent.money_usd, 6),
            "overloads": costs.overloads,
        }
        self._out.write(msgspec.json.encode(line).decode() + "\n")
        self._out.flush()


def _line(tally: Tally, running: dict[str, float], costs: Costs, elapsed_s: float) -> str:
    parts = [f"{tally.done:,}/{tally.total:,} done", f"{len(running)} running"]
    if tally.failed or tally.given_up:
        parts.append(f"{tally.failed + tally.given_up:,} failed")
    parts += [score_text(name, total / count) for name, (count, total) in list(tally.scores.items())[:1]]
    if costs.spent.money_usd:
        parts.append(f"${costs.spent.money_usd:,.2f}")
    if costs.overloads:
        parts.append(f"{costs.overloads} overloads")
    fresh = tally.done - tally.before
    if fresh >= SAMPLE:
        left_s = (tally.total - tally.done - tally.given_up) * elapsed_s / fresh
        parts.append(f"{_clock(left_s)} left")
    if running:
        slowest, since = min(running.items(), key=lambda item: item[1])
        age_s = time.monotonic() - since
        if age_s > 10:
            parts.append(f"slowest {slowest[:8]} {_clock(age_s)}")
    return ", ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _summary(finished: Finished, options: RunOptions) -> str:
    tally, place = finished.tally, shown_path(options.place)
    lines = [
        f"{finished.reason}: {tally.done:,} of {tally.total:,} episodes are done; {tally.failed:,} failed."
    ]
    if finished.why:
        lines.append(f"Paused, because {finished.why}")
    if tally.given_up:
        lines.append(
            f"{tally.given_up:,} could not be played in three attempts. To try them again: grue fleet retry"
            f" {shown_path(options.sweep)}" + (f" --dir {place}" if options.directory else "")
        )
    if tally.others:
        lines.append(
            f"{tally.others:,} further episodes in {place} are not in this sweep: their settings differ."
        )
    lines.append(f"To see the scores: grue fleet table {place}")
    return "\n".join(lines)


def _warnings(sweep: Sweep) -> list[str]:
    budget = sweep.budget
    if budget.money_usd is not None and not budget.prices:
        return [
            "the budget in money needs [budget.prices.MODEL] with input and output, in dollars per million"
            " tokens; without it every request is refused. A budget of requests needs no prices."
        ]
    return []


def _limits(sweep: Sweep) -> str:
    given = {
        name: getattr(table, name)
        for table in (sweep.budget, sweep.rate)
        for name in table.__struct_fields__
        if name != "prices"
    } | {"servers": sweep.servers}
    return ", ".join(f"{name} = {value:g}" for name, value in given.items() if value is not None) or "none"
