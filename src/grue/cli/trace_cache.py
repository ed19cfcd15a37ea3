"""`grue trace cache`: print how much of each prompt repeats an earlier prompt, and the first difference."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from grue.cli.trace import print_lines, table_width
from grue.runtime.safe_text import printable
from grue.tracing.columns import cut
from grue.tracing.facts import counted
from grue.tracing.prompt_cache import CachedPrompt, CacheReport, cache_report, told
from grue.tracing.reading import open_episode
from grue.tracing.show import printable_json

_HEADINGS = ("turn", "request", "message", "tokens", "bytes", "repeats", "cached", "again")


def cache(file: Path, *, as_json: bool, width: int | None = None) -> None:
    """Print the report on a trace's prompts, as a table or as one JSON object."""
    reader = open_episode(file)
    report = cache_report(reader.header.episode, reader)
    as_table = render(report, table_width(width))
    print_lines([printable_json(msgspec.json.encode(report))] if as_json else as_table)


def render(report: CacheReport, width: int | None = None) -> Iterator[str]:
    """Yield the report's lines: a row for each request, the differences between prompts, and the sums."""
    yield printable(f"Prompts of {report.episode}", 200)
    rows = [_HEADINGS, *map(_row, report.prompts)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    for row in rows:
        line = "  ".join(cell.rjust(wide) for cell, wide in zip(row, widths, strict=True))
        yield line if width is None else cut(line, width)
    for prompt in report.prompts:
        if prompt.broken is not None:
            yield ""
            yield from _break(prompt)
    yield ""
    yield from _sums(report)


def _row(prompt: CachedPrompt) -> tuple[str, ...]:
    counted = prompt.input_tokens
    return (
        str(prompt.turn),
        str(prompt.request),
        str(prompt.seq),
        f"{counted:,}" if counted else "-",
        f"{prompt.prompt_bytes:,}" if prompt.whole else f"{prompt.prompt_bytes:,}+",
        f"{prompt.share:.0%}",
        f"{prompt.cached_tokens / counted:.0%}" if counted else "-",
        f"{prompt.broken.tokens:,}" if prompt.broken is not None else "",
    )


def _break(prompt: CachedPrompt) -> Iterator[str]:
    broken = prompt.broken
    assert broken is not None, "it is a break"
    words = told(prompt)
    yield f"{words[:1].upper()}{words[1:]}."
    if broken.before or broken.now:
        yield f"  before: {broken.before}"
        yield f"  now:    {broken.now}"


def _sums(report: CacheReport) -> Iterator[str]:
    totals = report.totals
    yield (
        f"{counted(totals.requests, 'request')}, {totals.input_tokens:,} tokens in prompts: about"
        f" {totals.repeated_tokens:,} were a repetition, {totals.cached_tokens:,} were billed as cached"
    )
    if totals.breaks:
        verb = "request breaks" if totals.breaks == 1 else "requests break"
        yield f"{totals.breaks} {verb} off: about {totals.paid_again:,} tokens were paid again"
    else:
        yield "No request breaks off"
    if any(not prompt.whole for prompt in report.prompts):
        yield "+: the trace does not hold what was said before; that part is neither counted nor compared"
