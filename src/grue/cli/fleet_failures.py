"""`grue fleet failures` groups failed episodes by cause; `grue fleet score` scores finished episodes."""

import shlex
import sys
from pathlib import Path

import msgspec

from grue.cli.saying import say, say_json
from grue.errors import TraceError
from grue.fleet.compare import short_words
from grue.fleet.course import read_said
from grue.fleet.failures import WORDS, FailureGroup, group_failures, trace_command
from grue.fleet.folder import require_fleet
from grue.fleet.passing import Passing
from grue.fleet.results import Result, latest_results, require_score
from grue.fleet.scoring import ScoreTally, read_scoring, score_fleet
from grue.runtime.safe_text import shortened
from grue.tracing.facts import counted

_MOST_EXAMPLES = 3
_MOST_TEXT = 240


def print_failures(
    directory: Path,
    *,
    score: str,
    passing: float | None,
    lower_is_better: bool = False,
    as_json: bool,
    show_all: bool,
) -> None:
    """Print the failed episodes, grouped by what went wrong, each group with commands that open traces."""
    require_fleet(directory)
    latest, earlier = latest_results(directory)
    lacking = require_score(latest, score)
    found = {each.id: each for each in latest}
    scores = [each.scores[score] for each in latest if score in each.scores]
    passes = Passing.of(scores, passing, lower_is_better=lower_is_better)
    groups = group_failures(latest, score, passes)

    def commands(group: FailureGroup) -> list[str]:
        return [shlex.join(trace_command(found[each.id], directory)) for each in group.episodes]

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
        examples = group.episodes if show_all else group.examples(_MOST_EXAMPLES)
        differ = len({each.text for each in group.episodes}) > 1
        for each in examples:
            if differ:
                say(f"    {shortened(' '.join(each.text.split()), _MOST_TEXT)}")
            for line in _said(found[each.id], directory):
                say(f"    {line}")
            say(f"    {shlex.join(trace_command(found[each.id], directory))}")
        if len(examples) < len(group.episodes):
            say(f"    ... and {len(group.episodes) - len(examples):,} more: --all names them.")
    if passes.worst is None and scores:
        say()
        say(f"Which {score} passes? Say it with --pass, and those {beyond} it are grouped too.")


def _said(result: Result, directory: Path) -> list[str]:
    try:
        said = read_said(result.run(directory))
    except TraceError:
        return []
    expected = result.settings.get("expected")
    wanted = "" if expected is None else f"   (expected: {short_words(expected)})"
    return [
        *([f"Q: {short_words(said.question)}"] if said.question else ()),
        *([f"A: {short_words(said.answer)}{wanted}"] if said.answer else ()),
    ]


def score_episodes(directory: Path, scorers: str, *, again: bool) -> bool:
    """Score a fleet's finished episodes; return whether all scorers succeeded and the budget sufficed."""
    require_fleet(directory)
    scoring = read_scoring(scorers)
    names = ", ".join(f"{name}@{scorer.version}" for name, scorer in scoring.scorer.items())

    def watch(tally: ScoreTally) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{tally.done:,}/{tally.total:,} scored, {tally.failed:,} failed\x1b[K")
            sys.stderr.flush()

    def clear() -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")

    try:
        tally = score_fleet(directory, scoring, again=again, watch=watch)
    except KeyboardInterrupt:
        clear()
        say("Interrupted. The scores so far are kept; the same command computes the others.", err=True)
        raise
    clear()
    before = f"; {tally.before:,} had a score" if tally.before else ""
    say(f"{names}: {tally.done:,} of {counted(tally.total, 'episode')} scored{before}.")
    if tally.spent.requests:
        spent = tally.spent
        say(f"  spent {counted(spent.requests, 'request')}, {spent.tokens:,} tokens, ${spent.money_usd:,.2f}")
    for count, what in (
        (tally.unfinished, "without a result yet"),
        (
            tally.without_trace,
            "without a trace: the work has written none, or the sweep's `keep` has removed it",
        ),
        (
            tally.unpaid,
            "not scored, because the budget has refused a request; it counts all runs of scorers here",
        ),
        (tally.failed, "could not be scored:"),
    ):
        if count:
            say(f"  {count:,} {what}")
    for trouble in tally.troubles:
        say(f"    {trouble}")
    return not tally.failed and not tally.unpaid
