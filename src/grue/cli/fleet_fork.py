"""`grue fleet fork`: run all recorded turns that meet a condition again, with the same change in each."""

import sys
from pathlib import Path

from grue.cli.fleet import summary_of
from grue.cli.fleet_progress import FleetProgress
from grue.cli.fork import Change, ForkOptions, change_of, refuse_script
from grue.cli.runs import RUNS
from grue.cli.saying import GRUE, say, shown_argument
from grue.config.wiring import model_for
from grue.engine.fork import changed_turn, read_run
from grue.errors import FleetError
from grue.fleet.broker import FleetBudget
from grue.fleet.fleet import Fleet
from grue.fleet.fork_work import TurnToFork, condition, forks_of, turns_in
from grue.runtime.trace.format import TRACE_FILE
from grue.tracing.facts import counted
from grue.transports.llm.endpoint import LlmEndpoint


def fork_fleet(
    fork: ForkOptions,
    *,
    where: str,
    repetitions: int,
    directory: Path | None,
    workers: int,
    max_requests: int | None,
) -> bool:
    """Fork the turns in `fork.trace` that meet the condition `where`; return whether all forks are done."""
    change = change_of(fork)
    fits = condition(where)
    chosen = [turn for turn in turns_in(fork.trace) if fits(turn)]
    if not chosen:
        asked = f" that fits {where!r}" if where else ""
        raise FleetError(f"There is no recorded turn in {fork.trace}{asked}. `{GRUE} runs` lists the runs.")
    _check(chosen[0], fork, change)
    given = {
        "model": fork.model,
        "base_url": fork.base_url,
        "system": change.system,
        "llm": change.llm,
        "changes": change.changes,
        "misses": fork.misses,
    }
    changed = {name: value for name, value in given.items() if value not in (None, {})}
    place = directory or RUNS / f"{_name(fork.trace.absolute())}-forks"
    budget = FleetBudget(requests=max_requests)
    say(f"{counted(len(chosen), 'turn')}, each forked {counted(repetitions, 'time')}")
    view = FleetProgress(sys.stdout, place, budget)
    fleet = Fleet(place, workers=workers, budget=budget)
    finished = fleet.sweep(forks_of(chosen, changed, repetitions), retry=True, watch=view.show)
    view.end(finished.tally)
    tally = finished.tally
    say(summary_of(finished, place, "To try them again, run the same command again."))
    say(f"To compare: {GRUE} fleet compare {shown_argument(place)}:fork=recorded :fork=changed")
    return finished.reason == "finished" and not tally.given_up and not tally.unpaid


def _check(turn: TurnToFork, fork: ForkOptions, change: Change) -> None:
    # Before any fork runs, raise an error if the change cannot be made to this turn.
    recorded = read_run(turn.trace, turn.turn, turn.at)
    refuse_script(recorded, fork)
    LlmEndpoint(model_for(recorded.asks(recorded.place(turn.at)), change.llm, fork.model, fork.base_url))
    changed_turn(recorded.begun, change.changes)


def _name(place: Path) -> str:
    return place.parent.name if place.name == TRACE_FILE else place.stem
