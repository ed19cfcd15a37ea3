"""How a comparison is printed, stored, and put into a page of the documentation."""

import sys
import textwrap
from collections.abc import Sequence

from comparing import Row, Table
from sides import ASKS, BENCHMARKS, TURNS, Side

sys.path.append(str(BENCHMARKS))

from measuring import WIDTH, Figure

NOTHING = "-"
HEAD = ("", "median", "quartiles", "x grue", "own CPU", "peak MB", "left")
WIDTHS = (10, 19, 8, 10, 9, 6)


def printed(table: Table) -> str:
    """Return a table as text of at most 80 columns, the fastest first."""
    if table.skipped:
        return "\n".join([table.title, *textwrap.wrap(f"skipped: {table.skipped}", WIDTH - 2)])
    lines = [table.title]
    for first, *others in _columns(table):
        lines.append(f"  {first:16}" + "".join(map(str.rjust, others, WIDTHS)))
    for line in _remarks(table):
        lines += textwrap.wrap(line, WIDTH, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


def notes(tables: Sequence[Table]) -> str:
    """Return what to know before comparing, as text."""
    lines = ["What is not alike:"]
    for note in _notes(tables):
        lines += textwrap.wrap(note, WIDTH, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


def markdown(tables: Sequence[Table]) -> str:
    """Return all of it as Markdown, for docs/performance.md."""
    parts = []
    for table in tables:
        rows = ["| " + " | ".join(cells) + " |" for cells in _columns(table)]
        rows.insert(1, "|" + "---|" * len(_columns(table)[0]))
        below = [f"- {line}" for line in _remarks(table)]
        parts.append("\n".join([f"**{table.title}**", "", *(rows if table.rows else ()), "", *below]))
    parts.append("\n".join(["**What is not alike**", "", *(f"- {note}" for note in _notes(tables))]))
    return "\n\n".join(parts) + "\n"


def stored(table: Table) -> dict[str, object]:
    """Return a table as JSON values."""
    rows = [
        {**row._asdict(), "took": row.took._asdict(), "cpu": row.cpu and row.cpu._asdict()}
        for row in table.rows
    ]
    return {**table._asdict(), "rows": rows, "facts": [fact._asdict() for fact in table.facts]}


def _columns(table: Table) -> list[tuple[str, ...]]:
    """Return the head and the rows, the fastest first, without columns in which nothing stands."""
    rows = [_cells(row) for row in sorted(table.rows, key=lambda row: row.took.median)]
    kept = [column for column in zip(HEAD, *rows, strict=True) if set(column[1:]) != {NOTHING}]
    return list(zip(*kept, strict=True))


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        f"{_number(row.took.median)} {row.took.unit}",
        f"{_number(row.took.low)} .. {_number(row.took.high)}",
        NOTHING if row.ratio is None else f"{row.ratio:.2f}",
        f"{_number(row.cpu.median)} ms" if row.cpu else NOTHING,
        NOTHING if row.peak_mb is None else f"{row.peak_mb:.0f}",
        str(row.left) if row.cpu else NOTHING,
    )


def _remarks(table: Table) -> list[str]:
    if table.skipped:
        return [f"skipped: {table.skipped}"]
    before, after = table.load
    samples = sorted({row.took.samples for row in table.rows})
    return [
        *(f"{name}: not measured: {why}" for name, why in table.failed.items()),
        *(f"{fact.label}: {_spread(fact)}" for fact in table.facts),
        f"{' or '.join(map(str, samples)) or 'no'} samples each; "
        f"load of the machine {before:.1f} before, {after:.1f} after",
    ]


def _notes(tables: Sequence[Table]) -> list[str]:
    asked = {row.name for table in tables if table.name == "ask" for row in table.rows}
    ran = {row.name for table in tables if table.name != "ask" for row in table.rows}
    turns = [f"{_title(side)}: {side.note}" for side in TURNS if side.name in ran]
    return turns + [f"{_title(side)}: {side.note}" for side in ASKS if side.name in asked]


def _title(side: Side) -> str:
    return side.name + (" (ask)" if side in ASKS else "") + (f" [{side.version}]" if side.version else "")


def _spread(fact: Figure) -> str:
    return f"{_number(fact.median)} {fact.unit} ({_number(fact.low)} .. {_number(fact.high)})"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}"
