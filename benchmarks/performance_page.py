"""Fill docs/performance.md, and draw its pictures, from what the benchmarks have written.

    make bench bench-peers                              measure, side by side
    .venv/bin/python benchmarks/scales.py               measure what grows with what
    .venv/bin/python benchmarks/performance_page.py     show

Tables stand between `<!-- NAME:begin -->` and `<!-- NAME:end -->`. A file of figures that is not there leaves
its tables as they are. A run of some parts (`run.py --only fleet,fleet_rate`) fills the tables of these parts
and leaves the others. Each table says when it was measured and under which load. The table of all bars is
filled when every section has been measured within one day; with `--bars` it is filled in any case, and names
the sections that are missing.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from measuring import Bar
from plan import SECONDS
from plots import Axis, line_plot, number
from results import Entry, loaded

sys.path.append(str(Path(__file__).parent / "peers"))

from tables import loaded as loaded_table
from tables import markdown

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PAGE = DOCS / "performance.md"
SECTIONS = (
    *("turn", "cold", "episode", "boots", "one_shot", "map"),
    *("frames", "boxes", "fleet", "fleet_rate", "traces"),
)
"""Of `run.py`, those whose figures the page shows."""


class Shown(NamedTuple):
    """How a curve is shown.

    Attributes:
        title: Of the plot.
        size: What the sizes are.
        columns: Headings of the table, by the figure's name.
        plotted: Names of the curves in the plot, by the figure's name.
        unit: Of what is plotted.
        log: Whether both axes of the plot are logarithmic.
    """

    title: str
    size: str
    columns: Mapping[str, str]
    plotted: Mapping[str, str]
    unit: str = "ms"
    log: bool = True


_BY_SIZE = {
    "wall_ms": "time, ms",
    "cpu_ms": "own CPU, ms",
    "peak_mb": "peak memory, MB",
    "sent_kb": "sent to the model, kB",
    "trace_kb": "trace, kB",
}
_TIMES = {"wall_ms": "time", "cpu_ms": "own CPU"}

SHOWN = {
    "iterations": Shown("A turn of many iterations", "iterations", _BY_SIZE, _TIMES, log=False),
    "history": Shown("A turn with a long history", "bytes of history", _BY_SIZE, _TIMES),
    "result": Shown("A long result of a function tool", "bytes of the result", _BY_SIZE, _TIMES),
    "server_result": Shown("A long result of a server's tool", "bytes of the result", _BY_SIZE, _TIMES),
    "agents": Shown(
        "Agents at once, function tools",
        "agents at once",
        {
            "grue_wall_ms": "grue, ms",
            "bare_wall_ms": "bare loop, ms",
            "grue_peak_mb": "grue, peak MB",
            "bare_peak_mb": "bare loop, peak MB",
        },
        {"grue_wall_ms": "grue", "bare_wall_ms": "bare httpx and anyio"},
        log=False,
    ),
    "servers": Shown(
        "Agents at once, a server process each",
        "agents at once",
        {"wall_ms": "time, ms", "cpu_ms": "own CPU, ms", "peak_mb": "peak memory, MB"},
        _TIMES,
        log=False,
    ),
    "turns": Shown(
        "Turns in one process",
        "turns so far",
        {
            "wall_ms": "a turn, ms",
            "cpu_ms": "own CPU, ms",
            "memory_mb": "resident, MB",
            "malloc_mb": "in use by malloc, MB",
            "malloc_free_mb": "kept free by it, MB",
            "thousand_blocks": "Python, 1,000 blocks",
            "descriptors": "descriptors",
            "threads": "threads",
            "processes": "processes",
        },
        {"memory_mb": "resident", "malloc_mb": "in use by malloc"},
        unit="MB",
        log=False,
    ),
}


def main() -> None:
    """Draw what there are figures for, and fill the page."""
    page = PAGE.read_text(encoding="utf-8")
    for name, text in (
        *_from_results(HERE / "results.json"),
        *_from_peers(HERE / "peers" / "results.json"),
        *_from_scales(HERE / "scales.json"),
    ):
        page = filled(page, name, text)
    PAGE.write_text(page, encoding="utf-8")


def filled(page: str, name: str, text: str) -> str:
    """Return the page with `text` between the markers of `name`.

    Raises:
        SystemExit: The page has not exactly one such place.
    """
    marked = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
    page, count = marked.subn(lambda place: f"{place[1]}{text}\n{place[2]}", page)
    if count != 1:
        raise SystemExit(f"{PAGE.name} has {count} places called {name}; one is wanted.")
    return page


def _from_results(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the table of all bars, and a table of figures for each section that the page shows."""
    if not path.exists():
        return
    sections: dict[str, list[Entry]] = {}
    for entry in loaded(path):
        sections.setdefault(entry["name"], []).append(entry)
    missing = [name for name in SECONDS if name not in sections]
    if sections and (not missing or "--bars" in sys.argv):
        yield "bars", _bars([sections[name] for name in SECONDS if name in sections], missing)
    for name, entries in sections.items():
        if name in SECTIONS:
            yield name, _figures(entries)


def _bars(sections: Sequence[Sequence[Entry]], missing: Sequence[str]) -> str:
    """Return the table of all bars, each with when and under which load it was measured."""
    entries = [entry for section in sections for entry in section]
    newest = max(entries, key=lambda entry: str(entry["at"]))
    rows = [
        (bars[-1].label, *_verdict(bars), *_when(section, newest["source"]))
        for section in sections
        for bars in _bars_of(section)
    ]
    table = _table(("what", "measured", "bar", "verdict", "when, UTC", "load"), rows)
    day = min(entry["at"] for entry in entries)[:10]
    below = [
        f"Measured on {day} on one machine: {_machine(newest)} If a row compares two "
        "sides, their measurements alternate. The rows were measured one after the other. The load is the "
        "machine's load average over a minute when the measurement of the row began. If a row has several "
        "figures, they come from several runs, and the bar is met only if each of them meets it."
    ]
    if any(entry["source"] != newest["source"] for entry in entries):
        below.append("Rows with a * were measured before the last change of the code.")
    if missing:
        below.append(f"Not measured on that day: {', '.join(missing)}.")
    return "\n\n".join([table, *below])


def _bars_of(section: Sequence[Entry]) -> list[list[Bar]]:
    """Return each bar of a section, as each run has measured it."""
    bars: dict[str, list[Bar]] = {}
    for entry in section:
        for values in entry["bars"]:
            bars.setdefault(values["label"], []).append(_bar(values))
    return list(bars.values())


def _verdict(bars: Sequence[Bar]) -> tuple[str, str, str]:
    measured = ", ".join(bar.measured for bar in bars)
    return measured, bars[-1].bound, "met" if all(bar.met for bar in bars) else "**missed**"


def _when(section: Sequence[Entry], newest: str) -> tuple[str, str]:
    """Return the times of day of a section's runs, and the load when each began."""
    times = [entry["at"][11:] + ("" if entry["source"] == newest else "*") for entry in section]
    return ", ".join(times), ", ".join(str(entry["load"][0]) for entry in section)


def _figures(section: Sequence[Entry]) -> str:
    """Return the figures of a section's last run, its facts, and the bars and the load of all its runs."""
    last = section[-1]
    figures = [
        (item["label"], item["unit"], *(_rounded(item[key]) for key in ("median", "low", "high")))
        for item in last["figures"]
    ]
    heads = ("what", "unit", "median", "lower quartile", "upper quartile")
    below = [f"- {label}: {value}" for label, value in last["facts"].items()]
    for bars in _bars_of(section):
        measured, bound, verdict = _verdict(bars)
        below.append(f"- {bars[-1].label}: {measured} (bar: {bound}): {verdict}")
    below += [
        f"- measured {entry['at']} UTC, in {entry['took_s']} s; load average of the machine "
        f"{entry['load'][0]} before, {entry['load'][1]} after"
        for entry in section
    ]
    if len(section) > 1:
        below.append(f"- the table shows the last of these {len(section)} runs")
    return "\n\n".join([*([_table(heads, figures)] if figures else []), "\n".join(below)])


def _from_peers(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the comparison with other frameworks, as their own run shows it."""
    if path.exists():
        results = json.loads(path.read_text(encoding="utf-8"))
        tables = [loaded_table(table) for table in results["tables"]]
        when = f"Measured {results['at']} UTC. " if "at" in results else ""
        yield "peers", f"{markdown(tables, results['versions'])}\n{when}{_machine(results)}"


def _from_scales(path: Path) -> Iterator[tuple[str, str]]:
    """Draw every curve; yield its table."""
    if not path.exists():
        return
    for name, curve in json.loads(path.read_text(encoding="utf-8"))["curves"].items():
        shown, sizes, rows = SHOWN[name], curve["sizes"], curve["rows"]
        picture = line_plot(
            shown.title,
            Axis(shown.size, shown.log),
            Axis(shown.unit, shown.log),
            sizes,
            {label: [row[key] for row in rows] for key, label in shown.plotted.items()},
        )
        (DOCS / "pictures" / f"perf-{name.replace('_', '-')}.svg").write_text(picture, encoding="utf-8")
        lines = [
            (number(size), *(_rounded(row[key]) for key in shown.columns))
            for size, row in zip(sizes, rows, strict=True)
        ]
        when = f"Measured {curve['at']} UTC. " if "at" in curve else ""
        load = f"{when}Load average of the machine: {curve['load']}."
        yield name, f"{_table((shown.size, *shown.columns.values()), lines)}\n\n{load}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *("---:" for _ in heads[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _machine(results: Mapping[str, Any]) -> str:
    return f"{results['cores']} cores, {results['system']}, Python {results['python']}."


def _bar(values: Mapping[str, Any]) -> Bar:
    return Bar(**{name: values[name] for name in Bar._fields})


def _rounded(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"


if __name__ == "__main__":
    main()
