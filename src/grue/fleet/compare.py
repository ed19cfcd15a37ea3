"""Compare two sets of episodes, case by case: is B better than A, is it worse, or is it unclear?

    results of A ─┐                                    ┌─ better | worse   if the interval does not contain 0
                  ├─ pair by case ─ mean of each case ─┤
    results of B ─┘                                    └─ cannot be told   otherwise

The interval is the 95 % confidence interval of the mean difference, B minus A. With fewer than 15 cases (or
groups; see `Options.cluster`), or without numpy and scipy, the sign test decides instead.

The settings that have one value in all episodes of A and another in all of B are compared; the others, except
`base_url`, identify the case. A failed episode counts with the score `failed_as`: leaving it out would favour
the side that fails more often. Episodes without a result or without the score are only counted, as missing.
"""

import contextlib
import json
import math
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from grue import messages as m
from grue.errors import FleetError, MissingDependencyError
from grue.field_checks import check_settings
from grue.fleet import results
from grue.fleet import statistics as stats
from grue.fleet.folder import require_fleet
from grue.fleet.results import Passing, Result
from grue.fleet.statistics import LEAST_CASES, Interval, difference_of, mean_of, sign_test
from grue.runtime.safe_text import shortened, written_out
from grue.runtime.secrets.redaction import Redaction
from grue.tracing.facts import counted

Verdict: TypeAlias = Literal["better", "worse", "cannot be told"]

_SELECTED = re.compile(r"(.*?)(?::([^\W\d][\w.-]*=.*))?", re.DOTALL)
_NEXT_SETTING = re.compile(r",(?=[^\W\d][\w.-]*=)")
_MOST_NAMED = 8
_MOST_CASES = 5
# Settings that do not make cells: episodes that differ only in the seed are in one cell.
_NO_CELL = frozenset({"seed"})

# Settings that are not part of the case: a model's server that is started again may have another port.
NO_CASE = frozenset({"base_url"})
_WIDEST = 70
_TINY = 1e-12
_MISSING = {
    "infrastructure": "given up",
    "unpaid": "not paid for",
    "interrupted": "interrupted or running",
    "damaged": "damaged",
    "unscored": "without this score",
    "earlier": "not in the latest sweep and left out",
}


class Cell(Struct, frozen=True):
    """All episodes of a fleet, or those with the `wanted` settings."""

    fleet: Path
    # values as `setting_word` writes them; `4` means the number, or the text "4" if no episode has the number
    wanted: dict[str, str] = {}

    @classmethod
    def of(cls, written: str, other: "Cell | None" = None) -> "Cell":
        """Parse `DIR` or `DIR:SETTING=VALUE,...`. Without `DIR`, use `other`'s fleet. Raises `FleetError`."""
        match = _SELECTED.fullmatch(written)
        place, settings = (match[1], match[2] or "") if match else (written, "")
        fleet = other.fleet if other is not None and not place else Path(place)
        require_fleet(fleet)
        wanted = {}
        while settings:
            name, _, rest = settings.partition("=")
            wanted[name], end = _first_value(rest)
            settings = rest[end:].removeprefix(",")
        return cls(fleet, wanted)

    @property
    def label(self) -> str:
        """The fleet and the settings as text, in the form that `of` parses."""
        chosen = ",".join(f"{name}={_unbroken(value)}" for name, value in self.wanted.items())
        return f"{self.fleet}:{chosen}" if chosen else str(self.fleet)

    def of_these(self, everything: Sequence[Result]) -> list[Result]:
        """Return the results that have this cell's settings; raises `FleetError` if there are none."""
        results.require_settings(everything, self.wanted, f"{self.label}: the episodes")
        words = [
            {name: setting_word(results.all_settings(each).get(name)) for name in self.wanted}
            for each in everything
        ]
        there = {name: list(dict.fromkeys(row[name] for row in words)) for name in self.wanted}
        wanted = {
            name: value if value in there[name] else setting_word(value)
            for name, value in self.wanted.items()
        }
        found = [each for each, row in zip(everything, words, strict=True) if row == wanted]
        if not found:
            said = " ".join(_said_values(name, values) for name, values in there.items())
            raise FleetError(f"No episode is in {self.label}. {said}".rstrip())
        return found


class Options(Struct, frozen=True, kw_only=True):
    """How to compare. Raises an `MCPError` if a value cannot be used."""

    score: str | None = None  # `None`: `score`, or else the only score without `@` in its name
    lower_is_better: bool = False
    # the score of a failed episode; `None`: 0, but if lower is better, a failed episode raises an error
    failed_as: float | None = None
    passing: float | None = None  # the worst score that passes; `None`: see `Passing.of`
    # cases with equal values of these settings depend on each other and form a group
    cluster: tuple[str, ...] = ()
    margin: float | None = None  # the smallest loss that matters; becomes `Comparison.target`

    def __post_init__(self) -> None:
        check_settings(self, any_number=("failed_as", "passing"), above_0=("margin",))
        for name in ("failed_as", "passing"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise FleetError(f"{name} is {value}: give a finite number.")


class Side(Struct, frozen=True, kw_only=True):
    """One of the two sets of episodes."""

    label: str
    fleet: str = ""  # the folder of its fleet; empty: not known
    episodes: int
    failed: int  # compared episodes that have failed
    missing: dict[str, int]  # number of episodes not compared, by reason (a key of `_MISSING`)
    unpaired: int  # cases that the other side has not played

    @property
    def words(self) -> str:
        """The numbers of episodes, and of cases that the other side lacks, as a text."""
        said = [counted(self.episodes, "episode")]
        if self.failed:
            said.append(f"{self.failed:,} of them failed")
        said += [f"{count:,} {_MISSING.get(name, name)}" for name, count in self.missing.items()]
        if self.unpaired:
            said.append(f"{counted(self.unpaired, 'case')} not on the other side")
        return ", ".join(said)


class Measure(Struct, frozen=True, kw_only=True):
    """A figure, such as the cost: its mean over the cases in A and in B, and their mean difference."""

    name: str
    a: float
    b: float
    difference: Interval


class CaseChange(Struct, frozen=True, kw_only=True):
    """A case: its mean score in A and in B, and the ids of its episodes."""

    case: m.JsonObject
    a: float
    b: float
    a_ids: list[str]
    b_ids: list[str]

    @property
    def difference(self) -> float:
        """The mean score in B minus the mean score in A."""
        return difference_of(self.a, self.b)


class Comparison(Struct, frozen=True, kw_only=True):
    """The result of a comparison. It covers only the cases that both sides have played."""

    a: Side
    b: Side
    compared: dict[str, tuple[Any, Any]]  # settings with one value in A and another in B, with both values
    score: str
    cases: int
    groups: int  # see `Options.cluster`
    verdict: Verdict  # by the interval, or without one by the sign test
    measures: list[Measure]  # the score first, then others that are known and not all 0
    detectable: float  # the smallest true difference found four times out of five; NaN without an interval
    target: float  # the margin, or else the size of the measured difference
    better: int  # groups in which B is better than A
    worse: int
    chance: float  # the p-value of the sign test on `better` and `worse`
    why: str = ""  # why there is no interval, as a sentence
    # further cases that would show a difference of `target`; `None`: none are needed, or too many, or unknown
    more_cases: int | None = None
    more_episodes: int | None = None  # the episodes of these cases, of both sides together
    changes: list[CaseChange] = field(default_factory=list)  # all cases, by B minus A, the smallest first
    lower_is_better: bool = False

    def __str__(self) -> str:
        return self.text()

    def text(self, *, grue: str = "", everything: bool = False) -> str:
        """Return the findings and, if any case differs, the most different cases; of fewer than 15, all.

        `everything`: add all cases that differ. `grue`: how a command calls grue. If it is given, commands
        that show the episodes stand below each listed case that differs.
        """
        heads = ["", "A", "B", "B - A", "95 % interval"]
        rows = [heads, *(_row(each, self.score) for each in self.measures)]
        if self.why:
            rows = [row[:-1] for row in rows]
        said = [*self._sides(), "", *in_columns(rows), "", *verdict_of(self)]
        return written_out("\n".join([*said, *_case_lines(self, grue, everything=everything)]))

    def _sides(self) -> Iterable[str]:
        for name, side in (("A", self.a), ("B", self.b)):
            yield f"{name}: {side.label}: {side.words}"
        for setting, (one, other) in self.compared.items():
            yield f"{setting}: {short_words(one)} in A, {short_words(other)} in B"
        grouped = "" if self.groups == self.cases else f" in {self.groups:,} groups"
        were = "1 case was" if self.cases == 1 else f"{self.cases:,} cases{grouped} were"
        yield f"{were} played on both sides."

    def is_worse(self, margin: float) -> bool | None:
        """Return whether B loses `margin` or more; `None`: it cannot be told."""
        found = _turned(self.measures[0].difference, self.lower_is_better)
        if found.high < 0 and found.mean <= -margin:
            return True
        return False if found.low > -margin else None


def verdict_of(found: Comparison) -> list[str]:
    """Return the findings of a comparison, in sentences."""
    difference = found.measures[0].difference
    if found.why:
        return [*_by_signs(found), found.why]
    between = f"{_signed(difference.low)} to {_signed(difference.high)}"
    if found.verdict != "cannot be told":
        return [f"B is {found.verdict} by {abs(difference.mean):.3g} in {found.score} ({between})."]
    said = [
        f"It cannot be told whether A or B is better in {found.score}: the difference may be anything from"
        f" {between}.",
        f"The smallest difference that {found.cases:,} cases like these find four times out of five is"
        f" {found.detectable:.2g}.",
    ]
    if found.more_cases is not None:
        said.append(
            f"To find one of {found.target:.2g}, add about {counted(found.more_cases, 'case')}, which is"
            f" {counted(found.more_episodes or 0, 'episode')}. Further repetitions of the same cases help"
            " less."
        )
    else:
        part = "half" if difference.error else "a quarter"
        said.append(f"Four times as many cases find {part} of that.")
    return said


def _by_signs(found: Comparison) -> Iterable[str]:
    equal = found.groups - found.better - found.worse
    what = "case" if found.groups == found.cases else "group"
    yield f"B is better in {counted(found.better, what)}, worse in {found.worse:,}, equal in {equal:,}."
    by = f"(p = {found.chance:.2g}, sign test)"
    if found.verdict == "cannot be told":
        what = f"whether A or B is better in {found.score}"
        yield f"It cannot be told {what}: the difference may be chance {by}."
    else:
        yield f"B is {found.verdict} in {found.score}: chance alone seldom gives that {by}."


def _case_lines(found: Comparison, grue: str, *, everything: bool) -> Iterable[str]:
    changed = [each for each in found.changes if each.difference]
    few = found.cases < LEAST_CASES  # with so few cases, show each one, even if it is equal on both sides
    if not changed:
        yield "No case has another mean score in B than in A."
        return
    values = _values_of(each.case for each in found.changes)
    differing = [name for name in values if len(values[name]) > 1] or list(values)
    names = sorted(differing, key=lambda name: -len(values[name]))
    below = [each for each in changed if each.difference < 0]
    above = [each for each in reversed(changed) if each.difference > 0]
    lost, gained = (above, below) if found.lower_is_better else (below, above)
    yield ""
    yield f"{counted(len(lost), 'case')} lost, {len(gained):,} gained, {found.cases - len(changed):,} equal."
    for what, cases in (("lost", lost), ("gained", gained)):
        shown = cases if everything or few else cases[:_MOST_CASES]
        if shown:
            yield f"Those that {what} most:" if len(shown) < len(cases) else f"Those that {what}:"
        for case in shown:
            yield f"  {case.a:.3g} -> {case.b:.3g}  {_words(case, names)}"
            if grue:
                yield f"      A: {grue} {_command(found.a, case.a_ids)}"
                yield f"      B: {grue} {_command(found.b, case.b_ids)}"
        if len(shown) < len(cases):
            where = "--all shows them" if grue else "see this comparison's `changes`"
            yield f"  ... and {len(cases) - len(shown):,} more: {where}."
    if few and (equal := [each for each in found.changes if not each.difference]):
        yield "Those that are equal:"
        yield from (f"  {case.a:.3g}  {_words(case, names)}" for case in equal)


def _words(case: CaseChange, names: Sequence[str]) -> str:
    return ", ".join(f"{name}: {short_words(_bare(case.case.get(name)))}" for name in names)


def _bare(value: object) -> object:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _command(side: Side, ids: Sequence[str]) -> str:
    others = f"   (and {', '.join(each[:10] for each in ids[1:4])}{' ...' if len(ids) > 4 else ''})"
    return f"fleet show {shlex.quote(side.fleet)} {ids[0][:10]}{others if len(ids) > 1 else ''}"


def _row(measure: Measure, score: str) -> list[str]:
    found: Interval = measure.difference
    return [
        score if measure.name == "score" else measure.name,
        f"{measure.a:.3g}",
        f"{measure.b:.3g}",
        _signed(found.mean),
        f"{_signed(found.low)} to {_signed(found.high)}",
    ]


def _signed(value: float) -> str:
    return "0" if value == 0 else f"{value:+.3g}"


def in_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, padded so that its columns are aligned."""
    from grue.tracing.columns import cells, pad

    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(pad(word, width) for word, width in zip(row, widths, strict=True)).rstrip()


def short_words(value: object) -> str:
    """Return a value as one short line, without secrets. A long value is cut in the middle."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = " ".join(Redaction.of_environment().redact_text(text).split())
    return shortened(line, _WIDEST)


def compare(a: Cell, b: Cell, options: Options) -> Comparison:
    """Compare two cells; raises an `MCPError` if they cannot be compared with these options."""
    everything = list(results.results(a.fleet))
    others = everything if b.fleet == a.fleet else list(results.results(b.fleet))
    first, before = results.of_latest_sweep(a.fleet, a.of_these(everything))
    second, before_too = results.of_latest_sweep(b.fleet, b.of_these(others))
    found = compare_results(first, second, options, labels=(a.label, b.label), left_out=(before, before_too))
    return replace(found, a=replace(found.a, fleet=str(a.fleet)), b=replace(found.b, fleet=str(b.fleet)))


def compare_results(
    first: Sequence[Result],
    second: Sequence[Result],
    options: Options,
    *,
    labels: tuple[str, str],
    left_out: tuple[int, int] = (0, 0),
) -> Comparison:
    """Compare two sets of episodes. `left_out`: how many earlier episodes were left out of A and of B."""
    both = (*first, *second)
    score = options.score or _only_score(both)
    results.require_score(both, score)
    failed_as = results.failed_score(both, options.failed_as, lower_is_better=options.lower_is_better)
    compared = _compared(first, second)
    no_case = compared.keys() | NO_CASE
    score_of = partial(results.score_of, name=score, failed_as=failed_as)
    one, other = sides = tuple(_Cases(each, score_of, no_case) for each in (first, second))
    keys = [key for key in one.by_case if key in other.by_case]
    _require_cases(keys, sides, compared, score)
    for side in sides:
        side.keep(keys)
    groups = _groups(keys, options.cluster)
    count = len(set(groups))
    why = _no_interval(count, options)
    measures = _measures(sides, groups, options, bare=bool(why))
    found = _turned(measures[0].difference, options.lower_is_better)
    changes = [*_changes(one, other, no_case)]
    better, worse = _signs(changes, groups, lower_is_better=options.lower_is_better)
    chance = sign_test(better, worse)
    target = options.margin or abs(found.mean)
    if why:
        told: Verdict = "cannot be told"
        if chance < stats.SELDOM:
            told = "better" if better > worse else "worse"
        detectable, more = math.nan, None
    else:
        told, detectable, more = _by_interval(found, target)
    more_cases = None if more is None else round(more * len(keys)) + 1
    episodes_a_case = len([*one.episodes, *other.episodes]) / len(keys)
    return Comparison(
        a=one.side(labels[0], left_out[0]),
        b=other.side(labels[1], left_out[1]),
        compared=compared,
        score=score,
        cases=len(keys),
        groups=count,
        verdict=told,
        better=better,
        worse=worse,
        chance=chance,
        why=why,
        measures=measures,
        detectable=detectable,
        target=target,
        more_cases=more_cases,
        more_episodes=None if more_cases is None else round(more_cases * episodes_a_case),
        changes=sorted(changes, key=lambda each: (each.difference, str(each.case))),
        lower_is_better=options.lower_is_better,
    )


def _by_interval(found: Interval, target: float) -> tuple[Verdict, float, float | None]:
    """Return `verdict`, `detectable`, and `more_cases` divided by the number of cases."""
    widest = max(found.high - found.mean, found.mean - found.low)
    detectable = stats.smallest_detectable(found) if found.error else widest
    if found.low > 0 or found.high < 0:
        return "better" if found.low > 0 else "worse", detectable, None
    more = stats.times_more(replace(found, error=max(found.error, detectable / 3)), target) - 1
    return "cannot be told", detectable, more if 0 < more < 1000 else None


class _Cases:
    """The episodes of one side (A or B) with a result and a score, by case; the others are counted."""

    def __init__(
        self, found: Sequence[Result], score: Callable[[Result], float | None], no_case: AbstractSet[str]
    ) -> None:
        self.by_case: dict[str, list[Result]] = {}
        self.score = score
        self._missing: Counter[str] = Counter()
        self._unpaired = 0
        for result in found:
            if not result.played:
                self._missing[result.outcome] += 1
            elif score(result) is None:
                self._missing["unscored"] += 1
            else:
                self.by_case.setdefault(case_key(result, no_case), []).append(result)

    def keep(self, keys: Sequence[str]) -> None:
        """Leave out the cases that are not in `keys`: the other side has not played them."""
        self._unpaired = len(self.by_case) - len(keys)
        self.by_case = {key: self.by_case[key] for key in keys}

    @property
    def episodes(self) -> list[Result]:
        return [each for found in self.by_case.values() for each in found]

    def side(self, label: str, earlier: int) -> Side:
        return Side(
            label=label,
            episodes=len(self.episodes),
            failed=sum(each.outcome == "failed" for each in self.episodes),
            missing={**({"earlier": earlier} if earlier else {}), **self._missing},
            unpaired=self._unpaired,
        )

    def means(self, of: Callable[[Result], float | None]) -> list[float] | None:
        """Return the mean of a figure in each case; `None` if an episode lacks the figure."""
        means = []
        for found in self.by_case.values():
            known = [value for each in found if (value := of(each)) is not None]
            if len(known) < len(found):
                return None
            means.append(mean_of(known))
        return means


def _no_interval(count: int, options: Options) -> str:
    if count < LEAST_CASES:
        what = f"groups of {', '.join(options.cluster)}" if options.cluster else "cases"
        return (
            f"An interval needs {LEAST_CASES} {what}. More repetitions of the same cases do not help: add"
            " cases."
        )
    try:
        stats.require_libraries()
    except MissingDependencyError as error:
        if options.margin is not None:  # an answer about the margin needs the interval
            raise
        return str(error)
    return ""


def _signs(changes: Sequence[CaseChange], groups: list[int], *, lower_is_better: bool) -> tuple[int, int]:
    gains: defaultdict[int, float] = defaultdict(float)
    for group, each in zip(groups, changes, strict=True):
        gains[group] += -each.difference if lower_is_better else each.difference
    values = gains.values()
    return sum(each > _TINY for each in values), sum(each < -_TINY for each in values)


def _measures(sides: tuple[_Cases, ...], groups: list[int], options: Options, *, bare: bool) -> list[Measure]:
    scores = [side.score(each) or 0.0 for side in sides for each in side.episodes]
    figures: list[tuple[str, list[list[float] | None]]] = [
        ("score", [side.means(side.score) for side in sides]),
        *(passes := _passes(sides, scores, options)),
        *((name, [side.means(of) for side in sides]) for name, of in _BESIDE),
    ]
    known = [
        (name, a, b)
        for name, (a, b) in figures
        if a is not None and b is not None and (name == "score" or any((*a, *b)))
    ]
    between = [list(map(difference_of, a, b)) for _, a, b in known]
    if bare:
        nan = math.nan
        differences = [Interval(mean_of(each), nan, nan, nan, len(set(groups))) for each in between]
    else:
        differences = stats.mean_intervals(between, groups if options.cluster else None)
    least, most = stats.range_of([*scores, options.failed_as or 0.0])
    spans = {"score": most - least} | dict.fromkeys((name for name, _ in passes), 1.0)
    measures = []
    for (name, a, b), each in zip(known, differences, strict=True):
        equal = not each.error and name in spans
        found = stats.with_unseen(each, -spans[name], spans[name]) if equal else each
        measures.append(Measure(name=name, a=mean_of(a), b=mean_of(b), difference=found))
    return measures


_BESIDE: tuple[tuple[str, Callable[[Result], float | None]], ...] = (
    ("money_usd", lambda each: each.end.spent.money_usd if each.end else None),
    ("tokens", lambda each: each.end.spent.tokens if each.end else None),
    ("requests", lambda each: each.end.spent.requests if each.end else None),
    ("seconds", lambda each: each.end.duration_s if each.end else None),
    ("turns", lambda each: each.course.turns if each.course else _if_no_trace(each)),
    ("tool_calls", lambda each: each.course.tool_calls if each.course else _if_no_trace(each)),
)


def _if_no_trace(result: Result) -> float | None:
    """Return 0 for a failed episode, which probably failed before its first turn; otherwise `None`."""
    return 0.0 if result.outcome == "failed" else None


def _passes(
    sides: tuple[_Cases, ...], scores: Sequence[float], options: Options
) -> list[tuple[str, list[list[float] | None]]]:
    passing = Passing.of(scores, options.passing, lower_is_better=options.lower_is_better)
    tries = min(len(found) for side in sides for found in side.by_case.values())
    if passing.worst is None or tries < 2:
        return []

    def of(side: _Cases, chance: Callable[[int, int, int], float]) -> list[float]:
        return [
            chance(sum(passing.passes(side.score(each) or 0.0) for each in found), len(found), tries)
            for found in side.by_case.values()
        ]

    return [
        (f"pass@{tries}", [of(side, stats.pass_at) for side in sides]),
        (f"pass^{tries}", [of(side, stats.pass_all) for side in sides]),
    ]


def _changes(a: _Cases, b: _Cases, no_case: AbstractSet[str]) -> Iterable[CaseChange]:
    means = zip(a.means(a.score) or (), b.means(b.score) or (), strict=True)
    for one, other, (a_mean, b_mean) in zip(a.by_case.values(), b.by_case.values(), means, strict=True):
        yield CaseChange(
            case=case_of(one[0], no_case),
            a=a_mean,
            b=b_mean,
            a_ids=[each.id for each in one],
            b_ids=[each.id for each in other],
        )


def _require_cases(
    keys: Sequence[str], sides: tuple[_Cases, ...], compared: dict[str, Any], score: str
) -> None:
    for side, name in zip(sides, "AB", strict=True):
        if not side.by_case:
            raise FleetError(f"No episode of {name} has the score {score!r}.")
    if not keys:
        one, other = (json.loads(next(iter(side.by_case))) for side in sides)
        raise FleetError(
            f"A and B have no case in common. Compared: {', '.join(compared) or 'nothing'}. A case of A is"
            f" {json.dumps(one)}, one of B is {json.dumps(other)}."
        )


def _compared(first: Sequence[Result], second: Sequence[Result]) -> dict[str, tuple[Any, Any]]:
    sides = [[each.planned for each in side if each.outcome != "damaged"] for side in (first, second)]
    found: dict[str, tuple[Any, Any]] = {}
    for name in dict.fromkeys(name for side in sides for settings in side for name in settings):
        values = [[settings.get(name) for settings in side] for side in sides]
        a, b = ({setting_word(value): value for value in side} for side in values)
        if len(a) == len(b) == 1 and a.keys() != b.keys():
            found[name] = next(iter(a.values())), next(iter(b.values()))
    return found


def case_of(result: Result, no_case: AbstractSet[str]) -> m.JsonObject:
    """Return the settings that identify an episode's case: all except those in `no_case`."""
    return {name: value for name, value in result.planned.items() if name not in no_case}


def case_key(result: Result, no_case: AbstractSet[str]) -> str:
    """Return the settings of `case_of` as JSON with sorted keys: one text for all episodes of a case."""
    case = case_of(result, no_case)
    return msgspec.json.encode(case, order="deterministic").decode()


def _groups(keys: Sequence[str], cluster: Sequence[str]) -> list[int]:
    if not cluster:
        return [*range(len(keys))]
    numbers: dict[str, int] = {}
    groups = []
    for key in keys:
        case = json.loads(key)
        for name in cluster:
            if name not in case:
                raise FleetError(
                    f"The cases have no setting {name!r}; they have {', '.join(case) or 'none'}."
                )
        groups.append(numbers.setdefault(setting_word([case[name] for name in cluster]), len(numbers)))
    return groups


def _only_score(found: Iterable[Result]) -> str:
    names = dict.fromkeys(name for each in found for name in each.scores)
    if "score" in names or not names:
        return "score"
    bare = [name for name in names if "@" not in name]
    if len(bare) == 1:
        return bare[0]
    raise FleetError(f"Which score? The episodes have {', '.join(bare)}: name one with --score.")


def _first_value(written: str) -> tuple[str, int]:
    """Return the first value in `VALUE,SETTING=VALUE,...`, as `setting_word` writes it, and where it ends."""
    if written.startswith(('"', "[", "{")):
        with contextlib.suppress(ValueError, RecursionError):
            value, end = json.JSONDecoder().raw_decode(written)
            if end == len(written) or _NEXT_SETTING.match(written, end):
                return setting_word(value), end
    following = _NEXT_SETTING.search(written)
    end = following.start() if following else len(written)
    return written[:end], end


def _unbroken(word: str) -> str:
    """Return a value in the form that `Cell.of` parses: in quotes if it contains `,NAME=` and is not JSON."""
    broken = _NEXT_SETTING.search(word) and not _is_json(word)
    return json.dumps(word, ensure_ascii=False) if broken else word


def _said_values(name: str, values: Sequence[str]) -> str:
    shown = (repr(word) if _unbroken(word) == word else _unbroken(word) for word in values[:_MOST_NAMED])
    more = f" and {len(values) - _MOST_NAMED} others" if len(values) > _MOST_NAMED else ""
    return f"The values of {name} are {', '.join(shown)}{more}."


def _turned(found: Interval, lower_is_better: bool) -> Interval:
    if not lower_is_better:
        return found
    return replace(found, mean=-found.mean, low=-found.high, high=-found.low)


# --- The cells of a table or a report ---


def cell_axes(settings: Sequence[m.JsonObject], most: int, axes: Sequence[str] = ()) -> list[str]:
    """Return the names of the settings, without `seed`, that split the episodes into at most `most` cells."""
    # If all differing settings make too many cells, take some: those in `axes` first, then those with fewer
    # values. Stop before there are too many cells or, from the second setting on, too few cases in a cell for
    # a confidence interval.
    values = _values_of(settings)
    differing = [name for name in values if len(values[name]) > 1 and name not in _NO_CELL]
    if math.prod(len(values[name]) for name in differing) <= most:
        return differing
    cases = len({setting_word(each) for each in settings})
    taken: list[str] = []
    cells = 1
    for name in sorted(differing, key=lambda name: (name not in axes, len(values[name]))):
        cells *= len(values[name])
        if cells > most or (taken and cases < LEAST_CASES * cells):
            break
        taken.append(name)
    return [name for name in differing if name in taken]


def _values_of(settings: Iterable[m.JsonObject]) -> dict[str, set[str]]:
    """Return the values of each setting, as texts. A setting that an episode lacks has the value `null`."""
    found = list(settings)
    names = dict.fromkeys(name for each in found for name in each)
    return {name: {setting_word(each.get(name)) for each in found} for name in names}


def in_order(values: Iterable[Any]) -> list[tuple[int, float, str]]:
    """Return a sort key for a list of values: numbers come first, then all other values, as texts."""
    return [
        (0, value, "") if isinstance(value, int | float) else (1, 0.0, setting_word(value))
        for value in values
    ]


def setting_word(value: Any) -> str:
    """Return a value as JSON. A text that is not valid JSON itself is returned unchanged, without quotes."""
    if isinstance(value, str) and not _is_json(value):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
