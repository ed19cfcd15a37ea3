"""Write a report on a fleet as one self-contained HTML page: scores, costs, cases, charts, failures."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from grue.errors import FleetError, MissingDependencyError
from grue.fleet import compare, results
from grue.fleet.failures import WORDS, around, group_failures
from grue.fleet.folder import FleetFolder, require_fleet
from grue.fleet.results import Passing, Result
from grue.fleet.statistics import LEAST_CASES, mean_intervals, mean_of, range_of, with_unseen
from grue.runtime.safe_text import printable, shortened
from grue.runtime.secrets.redaction import Redaction
from grue.tracing.facts import counted
from grue.tracing.page_file import refuse_foreign, write_page

REPORT = "report.html"
_MOST_CELLS = 12
_MOST_GROUPS = 200
_MOST_LABEL = 160
_MOST_NAME = 300


class _Scale(Struct, frozen=True, kw_only=True):
    score: str
    failed_as: float  # the score of a failed episode
    passing: Passing
    axes: Sequence[str]
    redaction: Redaction

    def of(self, result: Result) -> float | None:
        return results.score_of(result, self.score, self.failed_as)

    @property
    def no_case(self) -> frozenset[str]:
        return compare.NO_CASE.union(self.axes)

    def cell_of(self, result: Result) -> str:
        settings = results.all_settings(result)
        return _named({name: settings.get(name) for name in self.axes})

    def short(self, name: str) -> str:
        return printable(shortened(self.redaction.redact_text(name), _MOST_LABEL), 2 * _MOST_LABEL)


def write_report(
    fleet: Path,
    target: Path,
    *,
    score: str = "score",
    passing: float | None = None,
    lower_is_better: bool = False,
    failed_as: float | None = None,
    by: Sequence[str] | None = None,
) -> int:
    """Write the page on the latest sweep, and return how many episodes it shows. Replaces an existing report.

    The options are as in `compare.Options`. `by`: settings by whose values the episodes are grouped into
    cells; `None`: `cell_axes` chooses. Raises `FleetError` if there is nothing to report or an option does
    not fit, and `TraceError` if `target` is a file that grue did not write as a report.
    """
    require_fleet(fleet)
    refuse_foreign(target, "report")
    found, earlier = results.latest_results(fleet)
    if not found and earlier:
        others = counted(earlier, "other episode")
        raise FleetError(f"No episode of the latest sweep in {fleet} has begun; the folder has {others}.")
    if not found:
        raise FleetError(f"No episode of {fleet} has begun.")
    results.require_score(found, score)
    results.require_settings(found, by or ())
    axes = FleetFolder(fleet).read_manifest().axes
    if by is None:
        by = compare.cell_axes([each.planned for each in found], _MOST_CELLS, axes)
    scale = _Scale(
        score=score,
        failed_as=results.failed_score(found, failed_as, lower_is_better=lower_is_better),
        passing=Passing.of(
            [each.scores[score] for each in found if score in each.scores],
            passing,
            lower_is_better=lower_is_better,
        ),
        axes=by,
        redaction=Redaction.of_environment(),
    )
    folder = quote(os.fsencode(os.path.relpath(fleet, target.parent)))
    report = _report(found, earlier, fleet, folder, scale)
    write_page(target, "report", report["title"], report, error=FleetError)
    return len(found)


def _report(found: list[Result], earlier: int, fleet: Path, folder: str, scale: _Scale) -> dict[str, Any]:
    """Return the data of the page. `folder`: the URL of the fleet's folder, relative to the page."""
    cells: dict[str, list[Result]] = {}
    for each in found:
        cells.setdefault(scale.cell_of(each), []).append(each)
    values = {name: results.all_settings(episodes[0]) for name, episodes in cells.items()}
    names = sorted(cells, key=lambda name: compare.in_order(values[name].get(axis) for axis in scale.axes))
    groups = group_failures(found, scale.score, scale.passing)
    group_of = {
        episode.id: min(number, _MOST_GROUPS - 1)
        for number, group in enumerate(groups)
        for episode in group.episodes
    }
    episodes, cases = _columns(found, names, scale, group_of)
    return {
        "title": f"Fleet {printable(fleet.name or str(fleet), _MOST_NAME)}",
        "fleet": printable(str(fleet), _MOST_NAME),
        "folder": folder,
        "score": printable(scale.score, _MOST_NAME),
        "lower_is_better": scale.passing.lower_is_better,
        "cells": [_cell(name, cells[name], scale) for name in names],
        "verdicts": _verdicts(names, cells, scale),
        "cases": cases,
        "groups": [
            {"what": WORDS[group.kind], "text": printable(group.text, 2 * _MOST_LABEL)}
            for group in groups[:_MOST_GROUPS]
        ],
        "episodes": episodes,
        "earlier": earlier,
    }


def _columns(
    found: list[Result], names: list[str], scale: _Scale, group_of: dict[str, int]
) -> tuple[dict[str, list[Any]], list[str]]:
    cell_of = {name: number for number, name in enumerate(names)}
    cases: dict[str, int] = {}
    labels: list[str] = []
    rows = []
    for each in found:
        end, course = each.end, each.course
        message = 0 if course is None else course.message
        number = cases.setdefault(compare.case_key(each, scale.no_case), len(cases))
        if number == len(labels):
            labels.append(scale.short(_named(compare.case_of(each, scale.no_case))))
        rows.append(
            {
                "id": each.id,
                "attempt": each.attempt,
                "cell": cell_of[scale.cell_of(each)],
                "case": number,
                "outcome": each.outcome,
                "score": scale.of(each),
                "usd": None if end is None else round(end.spent.money_usd, 8),
                "tokens": None if end is None else end.spent.tokens,
                "seconds": None if end is None else end.duration_s,
                "turns": None if course is None else course.turns,
                "calls": None if course is None else course.tool_calls,
                "group": group_of.get(each.id, -1),
                "message": around(message) if message else "",
            }
        )
    return {name: [row[name] for row in rows] for name in rows[0]}, labels


def _cell(name: str, found: list[Result], scale: _Scale) -> dict[str, Any]:
    by_case: dict[str, list[float]] = {}
    for each in found:
        value = scale.of(each)
        if value is not None:
            by_case.setdefault(compare.case_key(each, scale.no_case), []).append(value)
    means = [mean_of(values) for values in by_case.values()]
    row: dict[str, Any] = {
        "name": scale.short(name) if name else "all episodes",
        "episodes": sum(each.played for each in found),
        "failed": sum(each.outcome == "failed" for each in found),
        "missing": sum(not each.played for each in found),
        "cases": len(means),
        "mean": mean_of(means) if means else None,
        "low": None,  # of the 95 % interval; `None`: too few cases, or numpy or scipy is missing
        "high": None,
    }
    if len(means) < LEAST_CASES:
        return row
    with suppress(MissingDependencyError):
        interval = mean_intervals([means])[0]
        if not interval.error:
            interval = with_unseen(interval, *range_of([*means, scale.failed_as]))
        row |= {"mean": interval.mean, "low": interval.low, "high": interval.high}
    return row


def _verdicts(names: list[str], cells: dict[str, list[Result]], scale: _Scale) -> list[str]:
    """Return a sentence for each cell after the first, up to 12: whether it is better than the first cell."""
    said = []
    lower_is_better = scale.passing.lower_is_better
    options = compare.Options(score=scale.score, lower_is_better=lower_is_better, failed_as=scale.failed_as)
    for name in names[1 : _MOST_CELLS + 1]:
        try:
            found = compare.compare_results(cells[names[0]], cells[name], options, labels=(names[0], name))
        except FleetError as error:
            said.append(f"{name}: not compared with {names[0]}. {error}")
            continue
        difference = found.measures[0].difference
        between = (
            f"{difference.mean:+.3g} (p = {found.chance:.2g})"
            if found.why
            else f"{difference.mean:+.3g} ({difference.low:+.3g} to {difference.high:+.3g})"
        )
        verdict = f"{found.verdict} than {names[0]}"
        if found.verdict == "cannot be told":
            verdict = f"cannot be told from {names[0]}"
        said.append(f"{name}: {verdict} in {scale.score}, {between}, over {counted(found.cases, 'case')}")
    return [printable(scale.redaction.redact_text(each), 2 * _MOST_NAME) for each in said]


def _named(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={compare.setting_word(value)}" for name, value in settings.items())
