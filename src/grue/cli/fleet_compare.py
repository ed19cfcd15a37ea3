"""`grue fleet compare`: print whether B is better than A, and what it rests on."""

import json

import msgspec

from grue.cli.saying import say, shown_path
from grue.fleet.compare import CaseChange, Cell, Comparison, Measure, Options, Side, compare
from grue.fleet.statistics import Interval

_MOST_CASES = 5
_WIDEST = 70
_MISSING = {
    "infrastructure": "given up",
    "unpaid": "not paid for",
    "interrupted": "interrupted or running",
    "damaged": "damaged",
    "unscored": "without this score",
}


def print_comparison(
    first: str, second: str, options: Options, *, as_json: bool, show_all: bool
) -> bool | None:
    """Compare two cells and print what was found.

    Returns:
        Whether B is worse by the margin of `options`; `None`: there are too few episodes to tell. Without a
        margin: `False`.

    Raises:
        FleetError: A cell cannot be read, or there are too few cases.
        MissingDependencyError: numpy or scipy is not installed.
    """
    a = Cell.of(first)
    b = Cell.of(second, a)
    found = compare(a, b, options)
    worse = (
        None
        if options.margin is None
        else found.is_worse(options.margin, lower_is_better=options.lower_is_better)
    )
    if as_json:
        say(msgspec.json.encode({**msgspec.to_builtins(found), "worse": worse}).decode())
    else:
        _print(found, a, b, everything=show_all)
        if options.margin is not None:
            say(_checked(worse, options.margin))
    return worse if options.margin is not None else False


def _print(found: Comparison, a: Cell, b: Cell, *, everything: bool) -> None:
    for name, side in (("A", found.a), ("B", found.b)):
        say(f"{name}: {side.label}: {_side(side)}")
    for setting, (one, other) in found.compared.items():
        say(f"{setting}: {_short(one)} in A, {_short(other)} in B")
    grouped = "" if found.groups == found.cases else f" in {found.groups:,} groups"
    say(f"{found.cases:,} cases{grouped} were played on both sides.")
    say()
    rows = [["", "A", "B", "B - A", "95 % interval"], *(_row(each, found.score) for each in found.measures)]
    widths = [max(len(row[at]) for row in rows) for at in range(5)]
    for row in rows:
        say("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())
    say()
    for sentence in verdict_of(found):
        say(sentence)
    _print_cases(found, a, b, everything=everything)


def verdict_of(found: Comparison) -> list[str]:
    """Return the findings, in sentences."""
    difference = found.measures[0].difference
    between = f"{_signed(difference.low)} to {_signed(difference.high)}"
    if found.verdict != "cannot be told":
        return [f"B is {found.verdict} by {abs(difference.mean):.3g} in {found.score} ({between})."]
    said = [
        f"It cannot be told whether A or B is better in {found.score}: the difference may be anything from"
        f" {_signed(difference.low)} to {_signed(difference.high)}.",
        f"The smallest difference that {found.cases:,} cases like these find four times out of five is"
        f" {found.detectable:.2g}.",
    ]
    if found.more_cases is not None:
        said.append(
            f"To find one of {found.target:.2g}, add about {found.more_cases:,} cases, which is"
            f" {found.more_episodes:,} episodes. Further repetitions of the same cases help less."
        )
    else:
        said.append("Four times as many cases find half of that.")
    return said


def _print_cases(found: Comparison, a: Cell, b: Cell, *, everything: bool) -> None:
    changed = [each for each in found.changes if each.difference]
    if not changed:
        say("No case has another mean score in B than in A.")
        return
    lost = [each for each in changed if each.difference < 0]
    gained = [each for each in reversed(changed) if each.difference > 0]
    say()
    say(f"{len(lost):,} cases lost, {len(gained):,} gained, {found.cases - len(changed):,} are equal.")
    for what, cases in (("lost", lost), ("gained", gained)):
        shown = cases if everything else cases[:_MOST_CASES]
        if shown:
            say(f"Those that {what} most:" if len(shown) < len(cases) else f"Those that {what}:")
        for case in shown:
            _print_case(case, a, b)


def _print_case(case: CaseChange, a: Cell, b: Cell) -> None:
    say(f"  {case.a:.3g} -> {case.b:.3g}  {_short(case.case)}")
    for name, cell, ids in (("A", a, case.a_ids), ("B", b, case.b_ids)):
        say(f"      {name}: grue fleet show {shown_path(cell.fleet)} {ids[0][:10]}{_others(ids)}")


def _others(ids: list[str]) -> str:
    return (
        ""
        if len(ids) == 1
        else f"   (and {', '.join(each[:10] for each in ids[1:4])}{' ...' if len(ids) > 4 else ''})"
    )


def _side(side: Side) -> str:
    said = [f"{side.episodes:,} episodes"]
    if side.failed:
        said.append(f"{side.failed:,} of them failed")
    said += [f"{count:,} {_MISSING.get(name, name)}" for name, count in side.missing.items()]
    if side.unpaired:
        said.append(f"{side.unpaired:,} cases are not on the other side")
    return ", ".join(said)


def _row(measure: Measure, score: str) -> list[str]:
    found: Interval = measure.difference
    name = score if measure.name == "score" else measure.name
    return [
        name,
        f"{measure.a:.3g}",
        f"{measure.b:.3g}",
        _signed(found.mean),
        f"{_signed(found.low)} to {_signed(found.high)}",
    ]


def _signed(value: float) -> str:
    return "0" if value == 0 else f"{value:+.3g}"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = " ".join(text.split())
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 1]}…"


def _checked(worse: bool | None, margin: float) -> str:
    if worse is None:
        return f"Too few: a loss of {margin:g} or more cannot be ruled out, and is not shown either."
    return f"Worse: B has lost {margin:g} or more." if worse else f"Fine: a loss of {margin:g} is ruled out."
