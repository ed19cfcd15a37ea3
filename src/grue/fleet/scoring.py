"""Run scorers over the finished episodes of a fleet, on the engine that also plays episodes.

The same command tries again what failed, timed out or was over budget. Episodes that are not finished, or
whose trace was not kept, are counted. The cost is in a separate ledger, `DIR/scores/ledger.jsonl`, so that
judging does not use up the budget of playing.
"""

import queue
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from grue.config.documents import read_config_text
from grue.errors import FleetError, LLMError, MCPConfigError
from grue.field_checks import check_settings, fault_of
from grue.fleet.attempt import Attempted, Task, text_of
from grue.fleet.broker import Amount, FleetBudget, Limits, Rate
from grue.fleet.course import read_said
from grue.fleet.engine import Engine, Lost
from grue.fleet.folder import TRACE, AttemptEnd, FleetFolder, driver_lock
from grue.fleet.local import LocalEngine, default_workers
from grue.fleet.request_count import requests_counted
from grue.fleet.results import has_trace, results
from grue.fleet.scorers import FinishedEpisode, Scorer, score
from grue.fleet.work import find_function, plain_text
from grue.protocol.turn.prices import Price
from grue.tracing.marks import MOST_REASON, SCORES, Mark, write_mark

_JUDGED = "judged"
_LOOK_S = 0.2
_MOST_TROUBLES = 5


class Scoring(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a TOML file of scorers."""

    scorer: dict[str, Scorer] = {}
    budget: FleetBudget = FleetBudget()  # of all judges together
    rate: Rate = Rate()
    workers: int = 0  # episodes scored at one time; 0: as many as there are cores
    timeout_s: float = 300.0  # for the scorers of one episode

    def __post_init__(self) -> None:
        check_settings(self, only=("workers", "timeout_s"), above_0=("timeout_s",))


def read_scoring(written: str) -> Scoring:
    """Read scorers from a TOML file, or the one that `module:function` names; raises an `MCPError`."""
    if not written.endswith(".toml") and ":" in written:
        scoring = Scoring(scorer={written.rpartition(":")[2]: Scorer(function=written)})
    else:
        scoring = _read_file(Path(written))
    if not scoring.scorer:
        raise FleetError(f"{written} has no scorer: add a table [scorer.NAME].")
    for name, scorer in scoring.scorer.items():
        scorer.check(name)
    return scoring


def _read_file(path: Path) -> Scoring:
    text = read_config_text(
        path, if_missing=f"There is no file {path}. Name a TOML file of scorers, or module:function."
    )
    try:
        return msgspec.convert(tomllib.loads(text), Scoring)
    except msgspec.ValidationError as error:
        raise FleetError(f"{path}: {fault_of(error)}.") from error
    except (FleetError, MCPConfigError) as error:  # raised by the check of a limit or a price
        raise FleetError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise FleetError(f"{path} is not valid TOML: {error}.") from error


class ScoreTask(Task, frozen=True, kw_only=True):
    """A task for a worker: run scorers over one episode. `cache` has the earlier verdicts of judges."""

    attempt: int
    settings: dict[str, Any]
    scores: dict[str, float]
    scorers: dict[str, Scorer]
    cache: Path
    prices: dict[str, Price] = field(default_factory=dict)

    def prepare(self) -> None:
        """Import the scorers' functions."""
        for scorer in self.scorers.values():
            if scorer.function is not None:
                find_function(scorer.function)

    def make(self) -> Attempted:
        """Run the scorers, and write the mark that each gives. If a scorer raises, the others still run."""
        run = self.folder / f"attempt-{self.attempt}"
        troubles, spent, refused = [], Amount(), ""
        for name, scorer in self.scorers.items():
            with requests_counted(self.prices) as count:
                try:
                    self._mark(name, scorer, run / TRACE, count)
                except BaseException as error:  # noqa: BLE001 - scorers are somebody else's code
                    troubles.append((name, error))
            spent += count.spent
            refused = refused or count.refused
        if refused:
            end = AttemptEnd(outcome="unpaid", kind="budget", error=refused, spent=spent)
        elif troubles:
            name, raised = troubles[0]
            kind = f"LLMError: {raised.kind}" if isinstance(raised, LLMError) else "exception"
            end = AttemptEnd(outcome="failed", kind=kind, error=f"{name}: {text_of(raised)}", spent=spent)
        else:
            end = AttemptEnd(outcome="scored", spent=spent)
        return Attempted(end=end, attempt=run.name)

    def _mark(self, name: str, scorer: Scorer, trace: Path, count: Any) -> None:
        said = read_said(trace)
        finished = FinishedEpisode(
            id=self.folder.name,
            settings=self.settings,
            scores=self.scores,
            question=said.question,
            answer=said.answer,
            trace=trace,
        )
        given = score(name, scorer, finished, self.cache, count)
        write_mark(
            self.folder,
            Mark(
                scorer=name,
                version=scorer.version,
                score=given.score,
                reason=plain_text(given.reason, MOST_REASON),
                attempt=self.attempt,
                requests=given.spent.requests,
                tokens=given.spent.tokens,
                money_usd=given.spent.money_usd,
            ),
        )


class ScoreTally(Struct):
    """The counts of a run of scorers."""

    total: int = 0  # episodes that this run has to score
    done: int = 0  # of these, have all scores now
    before: int = 0  # had all scores before this run
    failed: int = 0  # a scorer failed or took too long
    unpaid: int = 0  # the budget has refused a request
    without_trace: int = 0  # finished, lack a score, and the trace was not kept
    unfinished: int = 0  # have no result
    spent: Amount = Amount()
    troubles: list[str] = field(default_factory=list)  # the first few failures, with the episodes' ids


def score_fleet(
    fleet: Path, scoring: Scoring, *, again: bool = False, watch: Callable[[ScoreTally], None] | None = None
) -> ScoreTally:
    """Run each scorer over the episodes without a mark (stored score) of its current version. Blocks.

    Ctrl-C raises `KeyboardInterrupt`; written marks stay. `again`: score episodes again that have a mark.
    Raises `FleetError` if the folder or the workers cannot be used, or another run of scorers uses it.
    """
    place = FleetFolder(fleet.absolute() / SCORES)
    tally = ScoreTally()
    tasks = list(_tasks(fleet.absolute(), scoring, tally, again=again))
    tally.total = len(tasks)
    if not tasks:
        return tally
    with driver_lock(place):
        limits = Limits(scoring.budget, scoring.rate)
        workers = min(scoring.workers or default_workers(), len(tasks))
        engine = LocalEngine(place, limits, workers, episode_timeout_s=scoring.timeout_s)
        try:
            _run(engine, iter(tasks), tally, watch)
        finally:
            engine.close()
    return tally


def _tasks(fleet: Path, scoring: Scoring, tally: ScoreTally, *, again: bool) -> Iterator[ScoreTask]:
    for result in results(fleet):
        missing = {
            name: scorer
            for name, scorer in scoring.scorer.items()
            if again or f"{name}@{scorer.version}" not in {mark.name for mark in result.marks}
        }
        if not result.played:
            tally.unfinished += 1
        elif not missing:
            tally.before += 1
        elif not has_trace(result, fleet):
            tally.without_trace += 1
        else:
            yield ScoreTask(
                folder=result.folder(fleet),
                attempt=result.attempt,
                settings={**result.settings, **result.planned},
                scores={} if result.end is None else result.end.scores,
                scorers=missing,
                cache=fleet / SCORES / _JUDGED,
                prices=scoring.budget.prices,
            )


def _run(
    engine: Engine, tasks: Iterator[ScoreTask], tally: ScoreTally, watch: Callable[[ScoreTally], None] | None
) -> None:
    running, shown = 0, 0.0
    while True:
        while running < 2 * engine.slots and not tally.unpaid and (task := next(tasks, None)) is not None:
            engine.submit(task)
            running += 1
        if not running:
            return
        try:
            task_ended, ended = engine.ended.get(timeout=_LOOK_S)
        except queue.Empty:
            pass
        else:
            running -= 1
            _take(task_ended.folder.name, ended, tally)
        if watch is not None and time.monotonic() - shown > _LOOK_S:
            shown = time.monotonic()
            watch(tally)


def _take(id_: str, ended: Attempted | Lost, tally: ScoreTally) -> None:
    if isinstance(ended, Lost):
        if ended.kind == "unable":
            raise FleetError(ended.why)
        late = f"the scorers did not end within {ended.after_s:g} s"
        why = late if ended.kind == "timed_out" else ended.why
        end = AttemptEnd(outcome="failed", kind=ended.kind, error=why)
    else:
        end = ended.end
    tally.spent += end.spent
    if end.outcome == "scored":
        tally.done += 1
    elif end.outcome == "unpaid":
        tally.unpaid += 1
    else:
        tally.failed += 1
    if end.outcome != "scored" and len(tally.troubles) < _MOST_TROUBLES:
        tally.troubles.append(f"{id_[:10]}: {end.error}")
