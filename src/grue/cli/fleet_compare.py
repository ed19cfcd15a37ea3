"""`grue fleet compare`: print whether B is better than A, and the figures for that verdict."""

import msgspec

from grue.cli.saying import say
from grue.fleet.compare import Cell, Options, compare


def print_comparison(
    first: str, second: str, options: Options, *, as_json: bool, show_all: bool
) -> bool | None:
    """Compare two cells and print what was found.

    Returns:
        Whether B is worse by the margin of `options`; `None`: there are too few episodes to tell. Without a
        margin: `False`.

    Raises:
        FleetError: A cell cannot be read, or has no case in common with the other one.
        MissingDependencyError: There is a margin, there are cases enough for an interval, and numpy or scipy
            is not installed.
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
        say(found.text(commands=True, everything=show_all))
        if options.margin is not None:
            say(_checked(worse, options.margin))
    return worse if options.margin is not None else False


def _checked(worse: bool | None, margin: float) -> str:
    if worse is None:
        return f"Too few: a loss of {margin:g} or more cannot be ruled out, and is not shown either."
    return f"Worse: B has lost {margin:g} or more." if worse else f"Fine: a loss of {margin:g} is ruled out."
