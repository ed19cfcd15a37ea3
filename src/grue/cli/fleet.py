"""The commands `grue fleet run`, `retry`, `fork`, `stop` and `score`."""

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TextIO

import msgspec
from msgspec import structs

from grue.cli.fleet_view import score_text
from grue.cli.fork import Change, read_turn
from grue.cli.live_terminal import Terminal
from grue.cli.runs import RUNS
from grue.cli.saying import GRUE, reader_may_leave, say, shown, shown_argument
from grue.errors import FleetError, MCPConfigError
from grue.fleet.broker import Amount, Costs, FleetBudget
from grue.fleet.driver import Finished, Tally, stop
from grue.fleet.fleet import Fleet, FleetOptions
from grue.fleet.folder import FleetFolder, is_driven, require_fleet
from grue.fleet.fork_work import condition, forks_of, turns_in
from grue.fleet.local import default_workers
from grue.fleet.scoring import ScoreTally, read_scoring, score_fleet
from grue.fleet.sweep import SAMPLE, PlannedWork, Sweep, read_plan, read_sweep
from grue.policies import Batching, Misses
from grue.protocol.turn.prices import price_of
from grue.runtime.loops.closing import Closing
from grue.runtime.trace.format import TRACE_FILE
from grue.tracing.columns import cut
from grue.tracing.facts import counted
from grue.transports.llm.endpoint import LlmEndpoint

_SHOWN_EVERY_S = {True: 0.2, False: 10.0}
_SLOW_AFTER_S = 10.0
_COUNTS = ("total", "done", "failed", "given_up", "unpaid", "waiting")


class FleetProgress(Closing):
    """Shows the progress of the fleet in the folder `place`, every 0.2 s at a terminal, else every 10 s."""

    def __init__(self, out: TextIO, place: Path, budget: FleetBudget) -> None:
        self._terminal = Terminal(out)
        self.place = place
        self._budget = budget
        self._tally = Tally()
        self._running: dict[str, float] = {}  # the monotonic time at which each was submitted, by episode id
        self._costs = Costs()  # of all runs; this run's requests count only if it has limits on requests
        self._began = time.monotonic()
        self._shown_at = 0.0

    def show(self, tally: Tally, running: dict[str, float], costs: Costs) -> None:
        """Show the fleet's progress, if enough time has passed since it was last shown."""
        self._tally, self._running, self._costs = tally, running, costs
        now = time.monotonic()
        if now - self._shown_at >= _SHOWN_EVERY_S[self._terminal.redraws]:
            self._shown_at = now
            with suppress(OSError):  # nobody reads the output any more, and the episodes go on
                self._draw()

    def close(self) -> None:
        """Erase the status rows."""
        if self._terminal.redraws:
            with suppress(OSError):
                self._terminal.draw("")

    def end(self, tally: Tally) -> None:
        """Show the final counts, which stay on the screen."""
        self._tally, self._running = tally, {}
        self._draw(last=True)

    def _draw(self, *, last: bool = False) -> None:
        slowest = self._slowest()
        if not self._terminal.redraws:
            self._terminal.write(msgspec.json.encode(self._json_line(slowest)).decode() + "\n")
            return
        rows = [self._counts_row()]
        if slowest is not None:
            rows.append(f"  slowest {clock(slowest['age_s'])}: {slowest['trace']}")
        width = self._terminal.size().columns - 1
        rows = [cut(shown(row), width) for row in rows]
        self._terminal.draw(f"{rows[0]}\n" if last else "", () if last else rows)

    def _slowest(self) -> dict[str, Any] | None:
        if not self._running:
            return None
        id_, since = min(self._running.items(), key=lambda item: item[1])
        age_s = round(time.monotonic() - since, 1)
        if age_s <= _SLOW_AFTER_S:
            return None
        return {"id": id_, "age_s": age_s, "trace": trace_command(self.place, id_)}

    def _spent(self) -> Amount:
        return max(self._costs.spent, self._tally.spent, key=lambda spent: spent.requests)

    def _left_s(self) -> float | None:
        tally = self._tally
        fresh = tally.done - tally.before
        missing = tally.total - tally.done - tally.given_up - tally.unpaid
        return missing * (time.monotonic() - self._began) / fresh if fresh >= SAMPLE else None

    def _json_line(self, slowest: dict[str, Any] | None) -> dict[str, Any]:
        tally, spent, left_s = self._tally, self._spent(), self._left_s()
        return {
            **{name: getattr(tally, name) for name in _COUNTS},
            "running": len(self._running),
            "scores": {name: total / count for name, (count, total) in tally.scores.items()},
            "requests": spent.requests,
            "tokens": spent.tokens,
            "money_usd": round(spent.money_usd, 6),
            "most_money_usd": self._budget.money_usd,
            "overloads": self._costs.overloads,
            "left_s": None if left_s is None else round(left_s, 1),
            **({} if slowest is None else {"slowest": slowest}),
        }

    def _counts_row(self) -> str:
        tally, spent, left_s, budget = self._tally, self._spent(), self._left_s(), self._budget
        parts = [f"{tally.done:,}/{tally.total:,} done", f"{len(self._running)} running"]
        parts += [f"{tally.waiting:,} waiting"] if tally.waiting else []
        if tally.failed or tally.given_up:
            parts.append(f"{tally.failed + tally.given_up:,} failed")
        parts += [score_text(name, total / count) for name, (count, total) in list(tally.scores.items())[:1]]
        if budget.money_usd is not None:
            parts.append(f"${spent.money_usd:,.2f} of ${budget.money_usd:,.2f}")
        elif spent.money_usd:
            parts.append(f"${spent.money_usd:,.2f}")
        if budget.requests is not None:
            parts.append(f"{spent.requests:,} of {counted(budget.requests, 'request')}")
        if budget.tokens is not None:
            parts.append(f"{spent.tokens:,} of {budget.tokens:,} tokens")
        if self._costs.overloads:
            parts.append(f"{self._costs.overloads:,} overloads")
        if left_s is not None:
            parts.append(f"{clock(left_s)} left")
        return ", ".join(parts)


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


def run_fleet(
    file: Path,
    directory: Path | None,
    *,
    workers: int | None = None,
    engine: Literal["local", "ray"] = "local",
    ray: str | None = None,
    batch: bool = False,
    retry: bool = False,
) -> bool:
    """Run a sweep's missing episodes (with `retry`, also those given up); return whether all are done now."""
    sweep, place = _sweep_of(file), directory or RUNS / file.stem
    for sentence in warnings_of(sweep):
        say(f"grue: {sentence}", err=True)
    fleet = Fleet(
        place,
        workers=workers or sweep.workers,
        engine=engine,
        budget=sweep.budget,
        rate=sweep.rate,
        options=FleetOptions(
            episode_timeout_s=sweep.episode_timeout_s,
            keep=sweep.keep,
            servers=sweep.cap,
            ray=ray,
            batching=Batching(folder=str(place)) if batch else None,
        ),
    )
    again = f"{GRUE} fleet retry {shown_argument(file)}"
    again += f" --dir {shown_argument(place)}" if directory else ""
    view = FleetProgress(sys.stdout, place, sweep.budget)
    then = f"To see the scores: {GRUE} fleet table {shown_argument(place)}"
    return _run(fleet, sweep, view, retry=retry, again=f"To try them again: {again}", then=then)


def _run(fleet: Fleet, sweep: Sweep, view: FleetProgress, *, retry: bool, again: str, then: str) -> bool:
    with view:  # an error is printed where the status rows were
        finished = fleet.sweep(sweep, retry=retry, watch=view.show)
    with reader_may_leave():
        view.end(finished.tally)
        say(summary_of(finished, view.place, again))
        say(then)
    return finished.reason == "finished" and not finished.tally.given_up and not finished.tally.unpaid


def print_plan(file: Path, directory: Path | None, workers: int | None = None) -> None:
    """Print how many episodes of a sweep are missing, and estimate their cost and disk space."""
    sweep, place = _sweep_of(file), directory or RUNS / file.stem
    planned = read_plan(sweep, place)
    free = FleetFolder(place).free_bytes()
    short = "" if planned.bytes_needed < free else ", which is not enough"
    episodes = f"{counted(planned.total, 'episode')} of {planned.work}"
    say(f"{file}: {episodes}, {planned.missing:,} of them missing.")
    say(f"Disk: about {planned.bytes_needed / 2**20:,.0f} MB, {free / 2**20:,.0f} MB are free{short}.")
    workers = workers or sweep.workers or default_workers()
    say(f"Workers: {workers}. Limits: {_limits(sweep)}.")
    say(f"Cost: {_cost(planned)}")


def _cost(planned: PlannedWork) -> str:
    done, rest = planned.total - planned.missing, planned.missing
    if done < SAMPLE:
        return f"known after the first {SAMPLE} episodes."
    spent = planned.spent
    money = "" if not spent.money_usd else f"${spent.money_usd / done * rest:,.2f}, "
    unknown = "" if spent.money_usd or not spent.requests else " No price is known: see budget.prices."
    requests, tokens = spent.requests / done * rest, spent.tokens / done * rest
    more = f"{requests:,.0f} requests and {tokens:,.0f} tokens more"
    return f"about {money}{more}, by the {done:,} that are done.{unknown}"


def stop_fleet(directory: Path) -> None:
    """Ask the process that runs a fleet to stop after the running episodes; a second call cancels these."""
    require_fleet(directory)
    first = "stops after its running episodes, or at once if you stop it again"
    what = first if stop(directory) == 1 else "cancels its running episodes"
    if is_driven(FleetFolder(directory)):
        say(f"The fleet {what}. To go on, give the command again that ran it.")
    else:
        # `is_driven` may not see a process of another machine, which also reads the file that `stop` writes.
        say(f"No process of this machine runs the fleet. A process of another machine {what}.")


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
        unpaid = counted(tally.unpaid, "episode")
        lines.append(f"{unpaid} not played to the end: the budget has refused a request.")
    if tally.waiting:
        waiting = counted(tally.waiting, "episode")
        lines.append(f"{waiting} waiting for the replies of a batch: the same command goes on with that.")
    if tally.given_up:
        lines += [
            f"{counted(tally.given_up, 'episode')} given up after three attempts, or unreadable:",
            *(f"  {trouble}".replace("\n", "\n    ") for trouble in tally.troubles),
            again,
        ]
    if tally.others:
        others = counted(tally.others, "further episode")
        lines.append(f"{others} in {shown_argument(place)}, of other settings or another version.")
    return "\n".join(lines)


def warnings_of(sweep: Sweep) -> list[str]:
    """Return a warning if the sweep has a limit in dollars, but no prices, or none for one of its models."""
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
    given = {**structs.asdict(sweep.budget), **structs.asdict(sweep.rate), "servers": sweep.servers}
    given.pop("prices")
    return ", ".join(f"{name} = {value:g}" for name, value in given.items() if value is not None) or "none"


def fork_fleet(
    traces: Path,
    change: Change,
    *,
    where: str,
    misses: Misses,
    repetitions: int,
    directory: Path | None,
    workers: int,
    max_requests: int | None,
) -> bool:
    """Fork the turns in `traces` that meet the condition `where`; return whether all forks are done."""
    fits = condition(where)
    chosen = [turn for turn in turns_in(traces) if fits(turn)]
    if not chosen:
        asked = f" that fits {where!r}" if where else ""
        raise FleetError(f"There is no recorded turn in {traces}{asked}. `{GRUE} runs` lists the runs.")
    # Before any fork runs, raise an error if the change cannot be made to the first turn.
    _, llm = read_turn(Path(chosen[0].trace), chosen[0].turn, chosen[0].at, change)
    LlmEndpoint(llm)
    given = {**structs.asdict(change), "misses": misses}
    changed = {name: value for name, value in given.items() if value not in (None, {})}
    place = directory or folder_of_forks(traces)
    budget = FleetBudget(requests=max_requests)
    say(f"{counted(len(chosen), 'turn')}, each forked {counted(repetitions, 'time')}")
    fleet = Fleet(place, workers=workers, budget=budget)
    sweep, view = forks_of(chosen, changed, repetitions), FleetProgress(sys.stdout, place, budget)
    again = "To try them again, run the same command again."
    then = f"To compare: {GRUE} fleet compare {shown_argument(place)}:fork=recorded :fork=changed"
    return _run(fleet, sweep, view, retry=True, again=again, then=then)


def folder_of_forks(traces: Path) -> Path:
    """Return the fleet's folder for forks of the traces in a folder or file, such as `runs/tries-forks`."""
    place = traces.resolve()
    place = place.parent if place.name == TRACE_FILE else place
    return RUNS / f"{place.stem if place.is_file() else place.name}-forks"


def score_episodes(directory: Path, scorers: str, *, again: bool) -> bool:
    """Score a fleet's finished episodes; return whether all scorers succeeded and the budget sufficed."""
    require_fleet(directory)
    scoring, terminal = read_scoring(scorers), Terminal(sys.stderr)
    names = ", ".join(f"{name}@{scorer.version}" for name, scorer in scoring.scorer.items())

    def show(*rows: str) -> None:
        if terminal.redraws:
            terminal.draw("", rows)

    def watch(tally: ScoreTally) -> None:
        show(f"{tally.done:,}/{tally.total:,} scored, {tally.failed:,} failed")

    try:
        tally = score_fleet(directory, scoring, again=again, watch=watch)
    except KeyboardInterrupt:
        show()
        say("Interrupted. The scores so far are kept; the same command computes the others.", err=True)
        raise
    finally:
        show()
    before = f"; {tally.before:,} had a score" if tally.before else ""
    say(f"{names}: {tally.done:,} of {counted(tally.total, 'episode')} scored{before}.")
    if tally.spent.requests:
        spent = tally.spent
        say(f"  spent {counted(spent.requests, 'request')}, {spent.tokens:,} tokens, ${spent.money_usd:,.2f}")
    removed = "without a trace: the work has written none, or the sweep's `keep` has removed it"
    refused = "not scored, because the budget has refused a request; it counts all runs of scorers here"
    counts = {"without a result yet": tally.unfinished, removed: tally.without_trace, refused: tally.unpaid}
    for what, count in {**counts, "could not be scored:": tally.failed}.items():
        if count:
            say(f"  {count:,} {what}")
    for trouble in tally.troubles:
        say(f"    {trouble}".replace("\n", "\n      "))
    return not tally.failed and not tally.unpaid
