"""`grue fleet run`, `retry` and `stop`: run the episodes of a sweep and show the progress, or stop them."""

import sys
from pathlib import Path
from typing import Literal

from msgspec import Struct

from grue.cli.fleet_progress import FleetProgress
from grue.cli.saying import say, shown_argument
from grue.errors import FleetError, MCPConfigError
from grue.fleet.driver import Finished, stop
from grue.fleet.fleet import Fleet, FleetOptions
from grue.fleet.folder import FleetFolder, is_driven, require_fleet
from grue.fleet.local import default_workers
from grue.fleet.sweep import SAMPLE, PlannedWork, Sweep, read_plan, read_sweep
from grue.policies import Batching
from grue.protocol.turn.prices import price_of
from grue.tracing.facts import counted


class FleetRunOptions(Struct, frozen=True, kw_only=True):
    """The options of `grue fleet run`; see its help."""

    sweep: Path
    directory: Path | None = None
    workers: int | None = None
    engine: Literal["local", "ray"] = "local"
    ray: str | None = None
    batch: bool = False

    @property
    def place(self) -> Path:
        """The fleet's folder; for the sweep `think.toml` it is `runs/think` by default."""
        return self.directory or Path("runs") / self.sweep.stem


def run_fleet(options: FleetRunOptions, *, retry: bool = False) -> bool:
    """Run a sweep's missing episodes (with `retry`, also those given up); return whether all are done now."""
    sweep = _sweep_of(options.sweep)
    for sentence in warnings_of(sweep):
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
            batching=Batching(folder=str(options.place)) if options.batch else None,
        ),
    )
    view = FleetProgress(sys.stdout, options.place, sweep.budget)
    finished = fleet.sweep(sweep, retry=retry, watch=view.show)
    view.end(finished.tally)
    again = f"grue fleet retry {shown_argument(options.sweep)}"
    again += f" --dir {shown_argument(options.place)}" if options.directory else ""
    say(summary_of(finished, options.place, f"To try them again: {again}"))
    say(f"To see the scores: grue fleet table {shown_argument(options.place)}")
    return finished.reason == "finished" and not finished.tally.given_up and not finished.tally.unpaid


def print_plan(options: FleetRunOptions) -> None:
    """Print how many episodes of a sweep are missing, and estimate their cost and disk space."""
    sweep = _sweep_of(options.sweep)
    planned = read_plan(sweep, options.place)
    free = FleetFolder(options.place).free_bytes()
    short = "" if planned.bytes_needed < free else ", which is not enough"
    say(
        f"{options.sweep}: {counted(planned.total, 'episode')} of {planned.work},"
        f" {planned.missing:,} of them missing."
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
    """Ask the process that runs a fleet to stop after the running episodes; a second call cancels these."""
    require_fleet(directory)
    calls = stop(directory)
    if is_driven(FleetFolder(directory)):
        what = (
            "stops after its running episodes, or at once if you stop it again"
            if calls == 1
            else "cancels its running episodes"
        )
        say(f"The fleet {what}. To go on, run its sweep again.")
    else:
        # A process on another machine, which may not be visible here, also reads the file that `stop` writes.
        say("No process of this machine runs the fleet. One on another stops after its running episodes.")


def _sweep_of(path: Path) -> Sweep:
    try:
        return read_sweep(path)
    except FleetError as error:
        raise MCPConfigError(str(error)) from error  # exit status 2: 1 means that episodes are missing


def summary_of(finished: Finished, place: Path, again: str) -> str:
    """Return how a run in the folder `place` ended. `again`: how to try given-up episodes again."""
    tally = finished.tally
    whole = not (tally.given_up or tally.unpaid or tally.waiting)
    word = "ended" if finished.reason == "finished" and not whole else finished.reason
    lines = [f"{word}: {tally.done:,} of {counted(tally.total, 'episode')} done; {tally.failed:,} failed."]
    if finished.reason == "paused":
        lines.append(f"Paused, because {finished.why}")
    if finished.reason == "budget":
        lines.append(f"Ended, because {finished.why}. With a larger budget the same command plays the rest.")
    elif tally.unpaid:
        lines.append(
            f"{counted(tally.unpaid, 'episode')} not played to the end: the budget has refused a request."
        )
    if tally.waiting:
        waiting = counted(tally.waiting, "episode")
        lines.append(f"{waiting} waiting for the replies of a batch: the same command goes on with that.")
    if tally.given_up:
        lines += [
            f"{counted(tally.given_up, 'episode')} given up after three attempts, or unreadable:",
            *(f"  {trouble}" for trouble in tally.troubles),
            again,
        ]
    if tally.others:
        lines.append(
            f"{counted(tally.others, 'further episode')} in {shown_argument(place)}, with settings that this"
            " sweep lacks."
        )
    return "\n".join(lines)


def warnings_of(sweep: Sweep) -> list[str]:
    """Return a warning if the sweep has a limit in dollars, but lacks the price of a model, or all prices."""
    budget = sweep.budget
    if budget.money_usd is None:
        return []
    unpriced = sorted(model for model in sweep.models() if price_of(budget.prices, model) is None)
    if budget.prices and not unpriced:
        return []
    named = f"for {', '.join(unpriced)}" if unpriced else "at all"
    holds = (
        "their requests are refused"
        if budget.requests is None
        else f"the limit that holds is {budget.requests:,} requests, and money counts as far as the endpoint"
        " says what a request cost"
    )
    return [f"budget.prices has no price {named}, so {holds}."]


def _limits(sweep: Sweep) -> str:
    given = {
        name: getattr(table, name)
        for table in (sweep.budget, sweep.rate)
        for name in table.__struct_fields__
        if name != "prices"
    } | {"servers": sweep.servers}
    return ", ".join(f"{name} = {value:g}" for name, value in given.items() if value is not None) or "none"
