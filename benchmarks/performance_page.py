"""Fill docs/performance.md, and draw its pictures, from the results that the benchmarks have written.

    make bench bench-peers                              measure grue, and other frameworks
    .venv/bin/python benchmarks/scales.py               measure how costs grow
    .venv/bin/python benchmarks/performance_page.py     write the page

The tables are between `<!-- NAME:begin -->` and `<!-- NAME:end -->`. If a file of results is missing, its
tables stay as they are. The tables of limits (bars) and of times are filled if every section was measured
within one day. With `--bars` they are always filled, and the table of limits names the missing sections.
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
TIMES = {
    "turn": "",
    "cold": "",
    "episode": "",
    "boots": "server boots in 0.6 s, model replies in 300 ms",
    "one_shot": "http, ",
    "boxes": "",
    "fleet": "",
    "traces": "",
}
"""Sections of `run.py` whose times the page shows, and how the labels of those begin that it shows."""


class Shown(NamedTuple):
    """How the page shows the results of a curve.

    Attributes:
        title: Title of the plot.
        size: Label of the x axis, such as `iterations`.
        plotted: The lines in the plot: a line's label, by the result's name.
        columns: The results in the table's columns (time, own CPU, memory; "" for none), by the row's label.
        unit: Unit of the y axis.
        log: Whether both axes of the plot are logarithmic.
    """

    title: str
    size: str
    plotted: Mapping[str, str]
    columns: Mapping[str, tuple[str, str, str]] = {"": ("wall_ms", "cpu_ms", "peak_mb")}
    unit: str = "ms"
    log: bool = True


_TIMES = {"wall_ms": "time", "cpu_ms": "own CPU"}

SHOWN = {
    "iterations": Shown("A turn of many iterations", "iterations", _TIMES, log=False),
    "history": Shown("A turn with a long history", "bytes of history", _TIMES),
    "result": Shown("A long result of a function tool", "bytes of the result", _TIMES),
    "server_result": Shown("A long result of a server's tool", "bytes of the result", _TIMES),
    "agents": Shown(
        "Agents at once, function tools",
        "agents at once",
        {"grue_wall_ms": "grue", "bare_wall_ms": "bare httpx and anyio"},
        {"": ("grue_wall_ms", "", "grue_peak_mb"), "bare loop": ("bare_wall_ms", "", "bare_peak_mb")},
        log=False,
    ),
    "servers": Shown("Agents at once, a server process each", "agents at once", _TIMES, log=False),
    "turns": Shown(
        "Turns in one process",
        "turns so far",
        {"memory_mb": "resident", "malloc_mb": "in use by malloc"},
        {"": ("wall_ms", "cpu_ms", "memory_mb")},
        unit="MB",
        log=False,
    ),
}


def main() -> None:
    """Draw the pictures and fill the page, as far as there are results."""
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
        SystemExit: The page has no such markers, or has them more than once.
    """
    marked = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
    page, count = marked.subn(lambda place: f"{place[1]}{text}\n{place[2]}", page)
    if count != 1:
        raise SystemExit(f"{PAGE.name} has {count} places called {name}; one is wanted.")
    return page


def _from_results(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the tables of limits and of times, each as (name, text)."""
    if not path.exists():
        return
    sections: dict[str, list[Entry]] = {}
    for entry in loaded(path):
        sections.setdefault(entry["name"], []).append(entry)
    missing = [name for name in SECONDS if name not in sections]
    if sections and (not missing or "--bars" in sys.argv):
        yield "bars", _bars([sections[name] for name in SECONDS if name in sections], missing)
        if shown := [sections[name][-1] for name in TIMES if name in sections]:
            yield "times", _times(shown)


def _bars(sections: Sequence[Sequence[Entry]], missing: Sequence[str]) -> str:
    """Return the table of all limits, with the time of each measurement and the load on the machine then."""
    entries = [entry for section in sections for entry in section]
    newest = max(entries, key=lambda entry: str(entry["at"]))
    rows = [
        (section[0]["name"], bars[-1].label, *_verdict(bars), *_when(section, newest["source"]))
        for section in sections
        for bars in _bars_of(section)
    ]
    table = _table(("section", "what", "measured", "bar", "verdict", "when, UTC", "load"), rows)
    day = min(entry["at"] for entry in entries)[:10]
    below = [
        f"Measured on {day} on one machine: {_machine(newest)} The load is the machine's load average over a "
        "minute when the measurement of the row began. If a row has several figures, they come from several "
        "runs, and the bar is met only if each of them meets it."
    ]
    if any(entry["source"] != newest["source"] for entry in entries):
        below.append("Rows with a * were measured before the last change of the code.")
    if missing:
        below.append(f"Not measured on that day: {', '.join(missing)}.")
    return "\n\n".join([table, *below])


def _bars_of(section: Sequence[Entry]) -> list[list[Bar]]:
    """Return a list for each limit of a section: the limit with the value of each run."""
    bars: dict[str, list[Bar]] = {}
    for entry in section:
        for values in entry["bars"]:
            bars.setdefault(values["label"], []).append(_bar(values))
    return list(bars.values())


def _verdict(bars: Sequence[Bar]) -> tuple[str, str, str]:
    measured = ", ".join(bar.measured for bar in bars)
    return measured, bars[-1].bound, "met" if all(bar.met for bar in bars) else "**missed**"


def _when(section: Sequence[Entry], newest: str) -> tuple[str, str]:
    """Return when a section's runs began (`*`: with other code), and the machine's load at these times."""
    times = [entry["at"][11:] + ("" if entry["source"] == newest else "*") for entry in section]
    return ", ".join(times), ", ".join(str(entry["load"][0]) for entry in section)


def _times(sections: Sequence[Entry]) -> str:
    """Return the table of times and memory."""
    rows = []
    for section in sections:
        for item in section["figures"]:
            if item["label"].startswith(TIMES[section["name"]]):
                median, low, high = (_rounded(item[key]) for key in ("median", "low", "high"))
                rows.append((section["name"], item["label"], f"{median} {item['unit']}", f"{low} .. {high}"))
        facts = section["facts"].items()
        rows += [(section["name"], label, value, "") for label, value in facts if "peak memory" in label]
    return _table(("section", "what", "median", "quartiles"), rows)


def _from_peers(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the tables that compare grue with other frameworks, as `make bench-peers` has written them."""
    if path.exists():
        results = json.loads(path.read_text(encoding="utf-8"))
        tables = [loaded_table(table) for table in results["tables"]]
        when = f"Measured {results['at']} UTC. " if "at" in results else ""
        yield "peers", f"{markdown(tables, results['versions'])}\n{when}{_machine(results)}"


def _from_scales(path: Path) -> Iterator[tuple[str, str]]:
    """Draw every curve; yield a table with the results of each curve's smallest and largest size."""
    if not path.exists():
        return
    results = json.loads(path.read_text(encoding="utf-8"))
    lines = []
    for name, curve in results["curves"].items():
        shown, sizes, rows = SHOWN[name], curve["sizes"], curve["rows"]
        picture = line_plot(
            shown.title,
            Axis(shown.size, shown.log),
            Axis(shown.unit, shown.log),
            sizes,
            {label: [row[key] for row in rows] for key, label in shown.plotted.items()},
        )
        drawn = f"pictures/perf-{name.replace('_', '-')}.svg"
        (DOCS / drawn).write_text(picture, encoding="utf-8")
        size = f"{number(sizes[0])} .. {number(sizes[-1])} {shown.size}"
        for side, keys in shown.columns.items():
            ends = [f"{_rounded(rows[0][key])} .. {_rounded(rows[-1][key])}" if key else "" for key in keys]
            title = f"[{shown.title}]({drawn})" + (f": {side}" if side else "")
            lines.append((title, size, *ends))
    days = sorted(curve["at"] for curve in results["curves"].values() if "at" in curve)
    when = f"Measured {days[0]} UTC. " if days else ""
    loads = sorted(curve["load"] for curve in results["curves"].values())
    below = f"{when}Load average of the machine: {loads[0]} to {loads[-1]}. {_machine(results)}"
    heads = ("what", "size", "time, ms", "own CPU, ms", "peak memory, MB")
    yield "scales", f"{_table(heads, lines)}\n\n{below}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    texts = heads.index("what") + 1
    lines = [heads, ["---"] * texts + ["---:"] * (len(heads) - texts), *rows]
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
