"""`grue fleet status`, `table`, `compare`, `show`, `failures` and `export`, and `grue trace query`."""

import json
import math
import shlex
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from grue.cli.runs import RUNS, holds, of_batch, traces_in
from grue.cli.saying import GRUE, reader_may_leave, say, say_json, shown_argument, shown_path
from grue.errors import FleetError, TraceError
from grue.fleet import compare
from grue.fleet import export as exports
from grue.fleet.accounts import read_ledger
from grue.fleet.course import read_said
from grue.fleet.failures import WORDS, FailureGroup, group_failures, trace_command
from grue.fleet.folder import MANIFEST, TRACE, FleetFolder, Manifest, require_fleet
from grue.fleet.results import Passing, Result, latest_results, require_score, require_settings, results
from grue.fleet.statistics import mean_of
from grue.runtime.safe_text import ELLIPSIS, printable, shortened
from grue.runtime.trace.format import TRACE_FILE
from grue.tracing.columns import cut
from grue.tracing.facts import counted
from grue.tracing.marks import read_marks
from grue.tracing.reading import open_episode

_OUTCOMES = {"infrastructure": "not played", "unpaid": "not played"}
_LAST_COLUMNS = {"n": "count", "episode": "id"}
_WIDEST = 28
_MOST_ROWS = 24


def print_status(directory: Path, *, as_json: bool) -> None:
    """Print how many episodes of a fleet are done. Reads only files, so the fleet may be running."""
    folder, manifest = _opened(directory)
    outcomes: Counter[str] = Counter()
    versions: Counter[str] = Counter()
    models: Counter[str] = Counter()
    found, earlier = latest_results(directory)
    for result in found:
        outcome = result.outcome if result.end is None else result.end.outcome
        outcomes[_OUTCOMES.get(outcome, outcome)] += 1
        if outcome in ("scored", "failed") and result.end is not None:
            versions[result.grue] += 1
            models[result.end.model] += 1
    spent = read_ledger(folder)
    counts = {
        "work": manifest.work,
        "total": manifest.total,
        "earlier": earlier,
        "scored": outcomes["scored"],
        "failed": outcomes["failed"],
        "not_played": outcomes["not played"],
        "interrupted_or_running": outcomes["interrupted"],
        "damaged": outcomes["damaged"],
        "requests": spent.requests,
        "tokens": spent.tokens,
        "money_usd": round(spent.money_usd, 6),
        "versions": dict(versions),
        "models": {name or "unknown": count for name, count in models.items()},
    }
    if as_json:
        say_json(counts)
        return
    _say_outcomes(directory, manifest, outcomes)
    if earlier:
        say(f"  {counted(earlier, 'other episode')} in the folder: not in the latest sweep, and not counted")
    if spent.requests:
        say(f"  spent {counted(spent.requests, 'request')}, {spent.tokens:,} tokens, ${spent.money_usd:,.2f}")
    for name, several in (("versions of grue", versions), ("answering models", models)):
        if len([value for value in several if value]) > 1:  # an empty value is not known
            mixed = ", ".join(f"{value or 'unknown'} ({count:,})" for value, count in several.most_common())
            say(f"  several {name}: {mixed}")


def _say_outcomes(directory: Path, manifest: Manifest, outcomes: Counter[str]) -> None:
    done = outcomes["scored"] + outcomes["failed"]
    # If the list of the latest run's episodes cannot be read, `outcomes` counts those of earlier runs too.
    if outcomes.total() > manifest.total:
        count = f"{counted(done, 'episode')} of {manifest.work} done"
        said = f"{count}; the latest run was about {manifest.total:,}."
    else:
        said = f"{done:,} of {counted(manifest.total, 'episode')} of {manifest.work} done."
    say(f"{shown_path(directory)}: {said}")
    say(f"  scored {outcomes['scored']:,}, failed {outcomes['failed']:,}")
    if outcomes["not played"] or outcomes["interrupted"]:
        running = f"interrupted or running {outcomes['interrupted']:,}"
        say(f"  tried without a result {outcomes['not played']:,}, {running}")
    if outcomes["damaged"]:
        say(f"  damaged {outcomes['damaged']:,}: `grue fleet retry` plays them again")


def print_table(directory: Path, by: Sequence[str] | None, *, as_json: bool, every: bool = False) -> None:
    """Print mean scores, one row per combination of the settings `by`; `None`: choose some that differ."""
    _, manifest = _opened(directory)
    found, earlier = (list(results(directory)), 0) if every else latest_results(directory)
    require_settings(found, by or ())
    done = [each for each in found if each.outcome == "scored"]
    failed = sum(each.outcome == "failed" for each in found)
    damaged = [each.error for each in found if each.outcome == "damaged"]
    settings = [each.settings for each in done]
    differing = compare.cell_axes(settings, sys.maxsize)
    chosen = differing if as_json else compare.cell_axes(settings, _MOST_ROWS, manifest.axes)
    axes = list(by) if by is not None else chosen
    cells: dict[tuple[str, ...], dict[str, list[float]]] = {}
    first: dict[tuple[str, ...], str] = {}
    for result in sorted(done, key=lambda each: compare.in_order(each.settings.get(axis) for axis in axes)):
        key = tuple(compare.setting_word(result.settings.get(axis)) for axis in axes)
        scores = cells.setdefault(key, {})
        first.setdefault(key, result.id)
        for name, value in result.scores.items():
            if "@" not in name or (result.end is not None and name in result.end.scores):
                scores.setdefault(name, []).append(value)
    rows = [
        {
            **dict(zip(axes, key, strict=True)),
            # A setting and a score may have the same name, such as `turns` in Zork.
            **{f"{name} (score)" if name in axes else name: _statistics(scores[name]) for name in scores},
        }
        for key, scores in cells.items()
    ]
    if as_json:
        say_json(rows)
        return
    _print_rows(axes, rows, [id_[:10] for id_ in first.values()])
    if rows:
        say(f"An episode of each row is named; to see it: {GRUE} fleet show {shown_argument(directory)} ID")
    if by is None and (left := [name for name in differing if name not in axes]):
        say(f"Each row is a mean over {', '.join(left)}. A row for each: --by {','.join(differing)}")
    if earlier:
        say(
            f"{counted(earlier, 'episode')} not in the latest sweep, and not in the table; --all counts them."
        )
    if failed:
        say(f"{counted(failed, 'failed episode')}, not in the table.")
    if unplayed := sum(not each.played and each.outcome != "damaged" for each in found):
        say(f"{counted(unplayed, 'episode')} without a result, not in the table.")
    if damaged:
        say(f"{counted(len(damaged), 'damaged episode')}, not in the table: {damaged[0]}")


def print_comparison(
    first: str, second: str, options: compare.Options, *, as_json: bool, show_all: bool
) -> bool | None:
    """Compare two sets of episodes, A and B, each as `DIR:SETTING=VALUE,...`; the default DIR of B is A's.

    Return whether B is worse than A by `options.margin` or more; `None`: unclear. `False` without a margin.
    """
    a = compare.Cell.of(first)
    b = compare.Cell.of(second, a)
    found = compare.compare(a, b, options)
    worse = None if options.margin is None else found.is_worse(options.margin)
    with reader_may_leave():
        if as_json:
            say_json({**msgspec.to_builtins(found), "is_worse": worse})
        else:
            say(found.text(grue=GRUE, everything=show_all))
            if options.margin is not None:
                say(_checked(worse, options.margin))
    return worse if options.margin is not None else False


def _checked(worse: bool | None, margin: float) -> str:
    if worse is None:
        return f"Too few: a loss of {margin:g} or more cannot be ruled out, and is not shown either."
    return f"Worse: B has lost {margin:g} or more." if worse else f"Fine: a loss of {margin:g} is ruled out."


def print_episode(directory: Path, beginning: str) -> None:
    """Print the case, the attempts and the scores of the episode whose id begins with `beginning`."""
    episode = _opened(directory)[0].find(beginning)
    case, commit = episode.case, episode.commit
    say(f"episode {episode.id}")
    if case is not None:
        say(f"  case: {json.dumps(case.settings)}, repetition {case.repetition}")
    marks = read_marks(episode.path)
    numbers = {number for number, _ in episode.attempts()}
    # If the committed attempt's folder was deleted (see `FleetOptions.keep`), the commit has its result.
    for number in sorted(numbers if commit is None else {*numbers, commit.attempt}):
        attempt = episode.path / f"attempt-{number}"
        end = commit.end if commit is not None and commit.attempt == number else episode.end_of(attempt)
        if end is None:
            say(f"  attempt {number}: interrupted, or it still runs")
        else:
            scores = ", ".join(score_text(name, value) for name, value in end.scores.items())
            what = scores or f"{end.outcome} {end.error}".rstrip()
            say(f"  attempt {number}: {what}, {end.duration_s:.1f} s")
        for mark in marks:
            if mark.attempt == number:
                say(f"    {score_text(mark.name, mark.score)}  {' '.join(mark.reason.split())}".rstrip())
        if (attempt / TRACE).is_file():
            say(f"    {GRUE} trace show {shown_argument(attempt)}")


def _say_columns(rows: Sequence[Sequence[str]]) -> None:
    for line in compare.in_columns(rows):
        say(line)


def score_text(name: str, value: float) -> str:
    """Return a score as text, such as `accuracy 0.75`."""
    return f"{name} {value:.4g}"


def _opened(directory: Path) -> tuple[FleetFolder, Manifest]:
    require_fleet(directory)
    folder = FleetFolder(directory)
    return folder, folder.read_manifest()


def _statistics(values: list[float]) -> dict[str, float]:
    count = len(values)
    # Divide first: the deviation of the scores themselves may be too large for a float.
    error = statistics.stdev([value / math.sqrt(count) for value in values]) if count > 1 else 0.0
    return {"mean": mean_of(values), "standard_error": error, "n": count}


def _print_rows(axes: list[str], rows: list[dict[str, Any]], ids: list[str]) -> None:
    if not rows:
        say("No episode has a score yet.")
        return
    names = list(dict.fromkeys(name for row in rows for name in row if name not in axes))
    # A setting or a score may have the name of one of the last two columns.
    last = (f"{name} ({of})" if name in (*axes, *names) else name for name, of in _LAST_COLUMNS.items())
    header = [*map(printable, [*axes, *names]), *last]
    lines = [
        [
            *(printable(_without_beginning_of_path(row[axis]), _WIDEST) for axis in axes),
            *(_cell(row.get(name)) for name in names),
            str(max((row[name]["n"] for name in names if name in row), default=0)),
            id_,
        ]
        for row, id_ in zip(rows, ids, strict=True)
    ]
    _say_columns([header, *lines])


def _without_beginning_of_path(word: str) -> str:
    return ELLIPSIS + word[1 - _WIDEST :] if word.startswith("/") and len(word) > _WIDEST else word


def _cell(found: Mapping[str, float] | None) -> str:
    if found is None:
        return "-"
    spread = f" ± {found['standard_error']:.2g}" if found["n"] > 1 else ""
    return f"{found['mean']:.4g}{spread}"


_MOST_EXAMPLES = 3
_MOST_TEXT = 240


def print_failures(
    directory: Path, *, score: str, passing: float | None, lower_is_better: bool, as_json: bool, every: bool
) -> None:
    """Print the failed episodes, grouped by what went wrong, each group with commands that show them."""
    require_fleet(directory)
    latest, earlier = latest_results(directory)
    lacking = require_score(latest, score)
    found = {each.id: each for each in latest}
    scores = [each.scores[score] for each in latest if score in each.scores]
    passes = Passing.of(scores, passing, lower_is_better=lower_is_better)
    groups = group_failures(latest, score, passes)

    def command(id_: str) -> str:
        return f"{GRUE} {shlex.join(trace_command(found[id_], directory))}"

    def commands(group: FailureGroup) -> list[str]:
        return [command(each.id) for each in group.episodes]

    if as_json:
        say_json([{**msgspec.to_builtins(group), "commands": commands(group)} for group in groups])
        return
    count = sum(len(group.episodes) for group in groups)
    beyond = "above" if lower_is_better else "below"
    failed = "failed or missing"
    if passes.worst is not None:
        failed = f"failed, missing, or with a {score} {beyond} {passes.worst:g}"
    say(f"{count:,} of {counted(len(found), 'episode')} {failed}.")
    if lacking:
        say(lacking)
    if earlier:
        say(f"{counted(earlier, 'other episode')} in the folder: not in the latest sweep, and not counted.")
    for group in groups:
        say()
        text = f": {group.text}" if group.text else ""
        say(f"{len(group.episodes):,} x {WORDS[group.kind]}{text}")
        examples = group.episodes if every else group.examples(_MOST_EXAMPLES)
        differ = len({each.text for each in group.episodes}) > 1
        for each in examples:
            if differ:
                say(f"    {shortened(' '.join(each.text.split()), _MOST_TEXT)}")
            for line in _said(found[each.id], directory):
                say(f"    {line}")
            say(f"    {command(each.id)}")
        if len(examples) < len(group.episodes):
            say(f"    ... and {len(group.episodes) - len(examples):,} more: --all names them.")
    if passes.worst is None and scores:
        say()
        say(f"Which {score} passes? Say it with --pass, and those {beyond} it are grouped too.")


def _said(result: Result, directory: Path) -> list[str]:
    try:
        question, answer = read_said(result.run(directory))
    except TraceError:
        return []
    expected = result.settings.get("expected")
    wanted = "" if expected is None else f"   (expected: {compare.short_words(expected)})"
    return [
        *([f"Q: {compare.short_words(question)}"] if question else ()),
        *([f"A: {compare.short_words(answer)}{wanted}"] if answer else ()),
    ]


_WIDEST_VALUE = 60
_TABLE = "episodes.parquet"


def export_fleet(directory: Path, target: Path | None, form: str, score: str) -> None:
    """Write a fleet's episodes in another format, and print what was written."""
    require_fleet(directory)
    place, episodes = target or directory / "export", exports.fleet_episodes(directory)
    if form == "parquet":
        done = exports.export_tables(episodes, place)
    else:
        if lacking := require_score(results(directory), score):
            say(lacking, err=True)
        export = exports.export_samples if form == "samples" else exports.export_trajectories
        done = export(episodes, place, score=score)
    one = {name: "trajectory" if name == "trajectories" else name[:-1] for name in done.rows}
    counts = ", ".join(counted(count, one[name]) for name, count in done.rows.items())
    say(f"Wrote {shown_path(place)}: {counts}.")
    _say_rest(done)


def print_query(sql: str, places: Sequence[Path], *, as_json: bool) -> None:
    """Print the rows that a query finds: as a table with long values cut, or as JSON Lines without cuts."""
    exported = [place for place in places if (place / _TABLE).is_file()]
    others = [place for place in places if place not in exported]
    answer = exports.query(sql, chain.from_iterable(_episodes(place) for place in others), exported)
    if as_json:
        for row in answer.rows:
            say_json(dict(zip(answer.columns, row, strict=True)))
    else:
        _say_columns([answer.columns, *([_word(value) for value in row] for row in answer.rows)])
    _say_rest(answer.read)


def _episodes(place: Path) -> Iterator[exports.EpisodeRow]:
    if (place / MANIFEST).is_file():
        yield from exports.fleet_episodes(place)
    elif place.is_file() or (place / TRACE_FILE).is_file():
        open_episode(place)  # raises if the file is no trace
        yield exports.run_episode(place)
    else:
        found = [*traces_in(place), *traces_in(place / RUNS)]
        fleets = [each for each in chain(place.glob("*"), (place / RUNS).glob("*")) if holds(each, MANIFEST)]
        if not found and not fleets:
            fault = f"In {place} there is no fleet, no run folder and no trace.{of_batch(place)}"
            raise FleetError(fault)
        for fleet in sorted(fleets):
            yield from exports.fleet_episodes(fleet)
        yield from map(exports.run_episode, found)


def _word(value: object) -> str:
    if isinstance(value, float):
        value = f"{value:.3f}" if 1e5 <= abs(value) < 1e12 else f"{value:.6g}"  # keep a time's milliseconds
    text = "" if value is None else str(value)
    return cut(printable(" ".join(text.split()), 4 * _WIDEST_VALUE), _WIDEST_VALUE)


def _say_rest(done: exports.Exported) -> None:
    if done.without_trace:
        say(f"{counted(done.without_trace, 'episode')} without a trace.", err=True)
    if done.left_out:
        say(
            f"{counted(done.left_out, 'reply')} gave no sample: a secret was replaced in what the model got,"
            " or the conversation began elsewhere.",
            err=True,
        )
    for trouble in done.troubles:
        say(trouble, err=True)
    if done.damaged > len(done.troubles):
        say(f"{counted(done.damaged - len(done.troubles), 'more damaged trace')}.", err=True)
