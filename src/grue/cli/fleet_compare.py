"""`grue fleet compare`: print whether B is better than A, and what it rests on."""

import msgspec

from grue.cli.saying import say, shown_path
from grue.fleet.compare import CaseChange, Cell, Comparison, Options, compare, setting_word, short_words
from grue.fleet.statistics import LEAST_CASES

_MOST_CASES = 5


def print_comparison(
    first: str, second: str, options: Options, *, as_json: bool, show_all: bool
) -> bool | None:
    """Compare two cells and print what was found.

    Returns:
        Whether B is worse by the margin of `options`; `None`: there are too few episodes to tell. Without a
        margin: `False`.

    Raises:
        FleetError: A cell cannot be read, or has no case in common with the other one.
        MissingDependencyError: There is a margin, and numpy or scipy is not installed.
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
    for line in str(found).splitlines():
        say(line)
    # Of few cases, each is shown: nobody has to add up what they say.
    _print_cases(found, a, b, everything=everything or found.groups < LEAST_CASES)


def _print_cases(found: Comparison, a: Cell, b: Cell, *, everything: bool) -> None:
    changed = [each for each in found.changes if each.difference]
    names = _telling(found.changes)
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
            _print_case(case, names, a, b)
        if len(shown) < len(cases):
            say(f"  ... and {len(cases) - len(shown):,} more: --all shows them.")
    if found.groups < LEAST_CASES and (equal := [each for each in found.changes if not each.difference]):
        say("Those that are equal:")
        for case in equal:
            say(f"  {case.a:.3g}  {_words(case, names)}")


def _telling(cases: list[CaseChange]) -> list[str]:
    """Return the settings by which cases differ: those with the most values, such as a question, first."""
    values: dict[str, set[str]] = {}
    for case in cases:
        for name, value in case.case.items():
            values.setdefault(name, set()).add(setting_word(value))
    differing = [name for name in values if len(values[name]) > 1] or list(values)
    return sorted(differing, key=lambda name: -len(values[name]))


def _words(case: CaseChange, names: list[str]) -> str:
    return ", ".join(f"{name}: {short_words(_bare(case.case.get(name)))}" for name in names)


def _bare(value: object) -> object:
    """Return the only text of a list, such as the one input of a conversation; else the value."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _print_case(case: CaseChange, names: list[str], a: Cell, b: Cell) -> None:
    say(f"  {case.a:.3g} -> {case.b:.3g}  {_words(case, names)}")
    for name, cell, ids in (("A", a, case.a_ids), ("B", b, case.b_ids)):
        say(f"      {name}: grue fleet show {shown_path(cell.fleet)} {ids[0][:10]}{_others(ids)}")


def _others(ids: list[str]) -> str:
    return (
        ""
        if len(ids) == 1
        else f"   (and {', '.join(each[:10] for each in ids[1:4])}{' ...' if len(ids) > 4 else ''})"
    )


def _checked(worse: bool | None, margin: float) -> str:
    if worse is None:
        return f"Too few: a loss of {margin:g} or more cannot be ruled out, and is not shown either."
    return f"Worse: B has lost {margin:g} or more." if worse else f"Fine: a loss of {margin:g} is ruled out."
