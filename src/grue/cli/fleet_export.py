"""`grue fleet export` writes episodes for other programs; `grue trace query` runs SQL queries on them."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from grue.cli.fleet_view import say_columns
from grue.cli.runs import RUNS, holds, of_batch, traces_in
from grue.cli.saying import say, say_json, shown_path
from grue.errors import FleetError
from grue.fleet import export as exports
from grue.fleet.folder import MANIFEST, require_fleet
from grue.fleet.results import require_score, results
from grue.runtime.safe_text import printable
from grue.runtime.trace.format import TRACE_FILE
from grue.tracing.columns import cut
from grue.tracing.facts import counted
from grue.tracing.reading import open_episode

_WIDEST = 60
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
        say_columns([answer.columns, *([_word(value) for value in row] for row in answer.rows)])
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
    return cut(printable(" ".join(text.split()), 4 * _WIDEST), _WIDEST)


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
