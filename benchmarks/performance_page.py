"""Fill docs/performance.md, and draw its pictures, from what the benchmarks have written.

    make bench bench-peers                              measure, side by side
    .venv/bin/python benchmarks/scales.py               measure what grows with what
    .venv/bin/python benchmarks/performance_page.py     show

Tables stand between `<!-- NAME:begin -->` and `<!-- NAME:end -->`. A file of figures that is not there leaves
its tables as they are. A run of some parts (`run.py --only fleet,fleet_rate`) fills the tables of these parts
and leaves the others, and the table of all bars, which is one run's.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from measuring import Bar
from plots import Axis, line_plot, number

sys.path.append(str(Path(__file__).parent / "peers"))

from tables import loaded, markdown

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PAGE = DOCS / "performance.md"
SECTIONS = ("turn", "cold", "episode", "boots", "one_shot", "map", "frames", "fleet", "fleet_rate")
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
    results = json.loads(path.read_text(encoding="utf-8"))
    bars = [_bar(values) for section in results["sections"] for values in section["bars"]]
    rows = [(bar.label, bar.measured, bar.bound, "met" if bar.met else "**missed**") for bar in bars]
    if results["whole"]:
        yield "bars", _table(("what", "measured", "bar", "verdict"), rows) + f"\n\n{_machine(results)}"
    for section in results["sections"]:
        if section["name"] in SECTIONS:
            yield section["name"], _figures(section)


def _figures(section: Mapping[str, Any]) -> str:
    """Return the figures of a section, and below them its facts, its bars and the load."""
    figures = [
        (item["label"], item["unit"], *(_rounded(item[key]) for key in ("median", "low", "high")))
        for item in section["figures"]
    ]
    heads = ("what", "unit", "median", "a quarter below", "a quarter above")
    facts = [f"- {label}: {value}" for label, value in section["facts"].items()]
    facts += [_bar_in_words(_bar(values)) for values in section["bars"]]
    below = [*facts, f"- load average of the machine: {section['load']}"]
    return f"{_table(heads, figures)}\n\n" + "\n".join(below)


def _from_peers(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the comparison with other frameworks, as their own run shows it."""
    if path.exists():
        results = json.loads(path.read_text(encoding="utf-8"))
        tables = [loaded(table) for table in results["tables"]]
        yield "peers", f"{markdown(tables, results['versions'])}\n{_machine(results)}"


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
        load = f"Load average of the machine: {curve['load']}."
        yield name, f"{_table((shown.size, *shown.columns.values()), lines)}\n\n{load}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *("---:" for _ in heads[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _machine(results: Mapping[str, Any]) -> str:
    return f"{results['cores']} cores, {results['system']}, Python {results['python']}."


def _bar(values: Mapping[str, Any]) -> Bar:
    return Bar(**{name: values[name] for name in Bar._fields})


def _bar_in_words(bar: Bar) -> str:
    return f"- bar: {bar.label}: {bar.measured}, {bar.bound}: {'met' if bar.met else '**missed**'}"


def _rounded(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"


if __name__ == "__main__":
    main()
