"""How a comparison is printed, stored, and put into a page of the documentation."""

import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from comparing import Row, Table
from sides import ASKS, BENCHMARKS, TURNS, Side

sys.path.append(str(BENCHMARKS))

from measuring import WIDTH, Bar, Figure

NOTHING = "-"
HEAD = ("", "median", "quartiles", "x grue", "own CPU", "peak MB", "left")
WIDTHS = (10, 19, 8, 10, 9, 6)
HEAD_OF_PAGE = {
    "": "side",
    "median": "time, median",
    "quartiles": "time, quartiles",
    "x grue": "time, as a ratio to grue's",
    "own CPU": "CPU of the host process",
    "peak MB": "peak memory, MB",
    "left": "turns after which a server still ran",
}


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


def bars(tables: Sequence[Table]) -> list[Bar]:
    """Return the bars of docs/performance.md that need a peer."""
    rows = {row.name: row for table in tables if table.name == "ask" for row in table.rows}
    autogen = rows.get("autogen-core")
    if autogen is None or autogen.ratio is None:
        return []
    return [
        Bar(
            "an ask between two actors: autogen-core's time, as a ratio to grue's",
            autogen.ratio,
            3.0,
            "x",
            at_least=True,
        )
    ]


def versions() -> dict[str, str]:
    """Return what is pinned of each peer, by its name."""
    return {side.name: side.version for side in (*TURNS, *ASKS) if side.version}


def notes(tables: Sequence[Table]) -> str:
    """Return what to know before comparing, as text."""
    lines = ["How the sides differ:"]
    for note in _notes(tables, versions()):
        lines += textwrap.wrap(note, WIDTH, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


def markdown(tables: Sequence[Table], measured: Mapping[str, str]) -> str:
    """Return all of it as Markdown, for docs/performance.md; `measured` is the version of each peer.

    The turns of all servers are one table, with a row for each side. A table that was skipped is left out.
    """
    tables = [table for table in tables if not table.skipped]
    turns = [table for table in tables if table.name != "ask"]
    parts = ["\n".join(_turns_of_page(turns))] if turns else []
    for table in tables:
        if table.name == "ask":
            head, *cells = _columns(table)
            parts.append("\n".join(_rows_of_page([HEAD_OF_PAGE.get(each, each) for each in head], cells)))
    remarks = [[each[0].upper() + each[1:] for each in _remarks(table)] for table in tables]
    titled = zip(tables, remarks, strict=True)
    parts.append("\n".join(f"- {table.title}: {'. '.join(each)}." for table, each in titled))
    if held := [_verdict(bar) for bar in bars(tables)]:
        parts.append("\n".join(held))
    differ = [f"- {note}" for note in _notes(tables, measured)]
    parts.append("\n".join(["How the sides differ:", "", *differ]))
    return "\n\n".join(parts) + "\n"


def _turns_of_page(tables: Sequence[Table]) -> list[str]:
    """Return one table of all turns, ordered by the first; CPU, memory and `left` are those of the first."""
    first, *_ = tables
    rows = [{row.name: row for row in table.rows} for table in tables]
    names = [row.name for row in sorted(first.rows, key=lambda row: row.took.median)]
    head = ["side"]
    for table in tables:
        head += [table.title, "ratio to grue"]
    lines = []
    for name in names:
        line = [name]
        for by_name in rows:
            row = by_name.get(name)
            line += [
                _spread(row.took) if row else NOTHING,
                f"{row.ratio:.3f}" if row and row.ratio is not None else NOTHING,
            ]
        lines.append([*line, *_cells(rows[0][name])[4:]])
    return _rows_of_page([*head, *(HEAD_OF_PAGE[each] for each in HEAD[4:])], lines)


def _rows_of_page(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return [lines[0], "|" + "---|" * len(head), *lines[1:]]


def stored(table: Table) -> dict[str, object]:
    """Return a table as JSON values."""
    rows = [
        {**row._asdict(), "took": row.took._asdict(), "cpu": row.cpu and row.cpu._asdict()}
        for row in table.rows
    ]
    return {**table._asdict(), "rows": rows, "facts": [fact._asdict() for fact in table.facts]}


def loaded(values: Mapping[str, Any]) -> Table:
    """Return the table that was stored."""
    rows = [
        Row(**{**row, "took": Figure(**row["took"]), "cpu": row["cpu"] and Figure(**row["cpu"])})
        for row in values["rows"]
    ]
    facts = [Figure(**fact) for fact in values["facts"]]
    return Table(**{**values, "rows": rows, "facts": facts})


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
        NOTHING if row.ratio is None else f"{row.ratio:.3f}",
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
        *_ahead_of_grue(table),
        *(f"{name}: not measured: {why}" for name, why in table.failed.items()),
        *(f"{fact.label} {_spread(fact)}" for fact in table.facts),
        f"each side has {' or '.join(map(str, samples)) or 'no'} samples; the machine's load average was "
        f"{before:.1f} before the measurement and {after:.1f} after it",
    ]


def _ahead_of_grue(table: Table) -> list[str]:
    """Say where others do better than grue with its default settings, or that nobody does."""
    ours = next((row for row in table.rows if row.name == "grue"), None)
    others = [row for row in table.rows if row.name.partition(",")[0] not in ("grue", "grue-ahead")]
    if ours is None or not others:
        return []
    better = {
        "time": [row.name for row in others if row.ratio is not None and row.ratio < 1],
        "CPU of the host process": [
            row.name for row in others if row.cpu and ours.cpu and row.cpu.median < ours.cpu.median
        ],
        "peak memory": [
            row.name
            for row in others
            if row.peak_mb is not None and ours.peak_mb is not None and row.peak_mb < ours.peak_mb
        ],
    }
    told = [f"{', '.join(names)} ({what})" for what, names in better.items() if names]
    return [f"better than grue are {'; '.join(told)}" if told else "no other side is better than grue"]


def _verdict(bar: Bar) -> str:
    verdict = "met" if bar.met else "**missed**"
    return f'The bar for "{bar.label}" is {bar.bound}. Measured: {bar.measured}: {verdict}.'


def _notes(tables: Sequence[Table], versions: Mapping[str, str]) -> list[str]:
    asked = {row.name for table in tables if table.name == "ask" for row in table.rows}
    ran = {row.name for table in tables if table.name != "ask" for row in table.rows}
    turns = [f"{_title(side, versions)}: {side.note}" for side in TURNS if side.name in ran]
    return turns + [f"{_title(side, versions)}: {side.note}" for side in ASKS if side.name in asked]


def _title(side: Side, versions: Mapping[str, str]) -> str:
    version = versions.get(side.name) if side.venv else None
    return side.name + (" (ask)" if side in ASKS else "") + (f" [{version}]" if version else "")


def _spread(fact: Figure) -> str:
    return f"{_number(fact.median)} {fact.unit} ({_number(fact.low)} .. {_number(fact.high)})"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}"
