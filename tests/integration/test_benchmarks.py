"""The benchmarks run: every part once or twice, nothing said about time."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest
from commands import forked, with_forked_children

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PLAIN_SERVER = (sys.executable, "-I", "-S", str(BENCHMARKS / "servers" / "plain_server.py"))

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")


HANG_S = 600
"""A quick run of all sections takes half a minute alone; other tests run beside it."""


def python(*args: str | Path) -> str:
    return ended((sys.executable, *args))


def forked_run(*args: str | Path, children: bool = True) -> str:
    """Run a benchmark in a fork, and in forks what it measures; no figure of a quick run means anything."""
    return ended(forked(*map(str, args), before=with_forked_children() if children else ""))


def ended(command: Sequence[str | Path]) -> str:
    run = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


pytestmark = [pytest.mark.slow, pytest.mark.timeout(720)]


class Ran(NamedTuple):
    """What a run has printed, and the file that it has written."""

    printed: str
    out: Path


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    out = tmp_path_factory.mktemp("run") / "results.json"
    return Ran(forked_run(BENCHMARKS / "run.py", "--quick", "--out", out), out)


@pytest.fixture(scope="module")
def quick_peers(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    out = tmp_path_factory.mktemp("peers") / "results.json"
    sides = ("--only", "grue,grue-ahead,sdk-script", "--parts", "plain,ask", "--quick")
    to = ("--out", out, "--markdown", out.with_name("page.md"))
    # In a fork, a worker would not be above the server of which it is told whether it is left.
    return Ran(forked_run(BENCHMARKS / "peers" / "run.py", *sides, *to, children=False), out)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A copy of the page, and beside it of the benchmarks, without figures."""
    figures = shutil.ignore_patterns("*.json", ".venvs", "__pycache__")
    shutil.copytree(BENCHMARKS, tmp_path / "benchmarks", ignore=figures)
    copied = tmp_path / "docs" / "performance.md"
    (copied.parent / "pictures").mkdir(parents=True)
    copied.write_text((BENCHMARKS.parent / "docs" / "performance.md").read_text())
    return copied


def between(page: Path, name: str) -> str:
    """What stands between the markers of `name`."""
    return page.read_text().partition(f"<!-- {name}:begin -->\n")[2].partition(f"<!-- {name}:end -->")[0]


def test_the_hand_written_script_plays_a_turn() -> None:
    pipe = subprocess.PIPE
    command = (sys.executable, BENCHMARKS / "servers" / "chat_server.py")
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as chat:
        assert chat.stdout is not None
        url = f"http://127.0.0.1:{chat.stdout.readline().strip()}/v1"
        try:
            assert python(BENCHMARKS / "sdk_script.py", url, "calls-3", *PLAIN_SERVER) == "done\n"
        finally:
            chat.communicate()


def test_every_part_runs_and_is_stored(quick_run: Ran) -> None:
    assert max(len(line) for line in quick_run.printed.splitlines()) <= 80
    stored = quick_run.out.read_text()
    sections = {section["name"]: section for section in json.loads(stored)["sections"]}
    assert list(sections) == SECTIONS
    labels = [figure["label"] for figure in sections["turn"]["figures"]]
    assert labels[:3] == ["grue", "hand-written script", "blocking pipes and sockets"]
    assert all(figure["median"] > 0 for name in ("turn", "ask") for figure in sections[name]["figures"])
    (_, loaded) = sections["import"]["bars"]
    assert (loaded["value"], loaded["met"]) == (0, True)
    assert str(BENCHMARKS.parent) not in stored, "results name no machine's folders"
    assert sections["episode"]["facts"] == {"spares lost, and replaced by a spawn": "0"}
    assert all(min(section["load"]) >= 0 for section in sections.values())
    limits = {bar["label"]: bar["limit"] for section in sections.values() for bar in section["bars"]}
    assert limits.items() >= BARS.items()
    dropped = {name: sections[name]["bars"][-1] for name in ("boots", "one_shot")}
    assert [(bar["value"], bar["limit"]) for bar in dropped.values()] == [(0, 0), (0, 0)]
    assert {bar["label"]: bar["met"] for bar in sections["many"]["bars"]} == {
        f"many turns in one process: growth of {what}": True for what in HELD
    }


SECTIONS = [
    *("turn", "cold", "agents", "boots", "one_shot", "map", "episode", "import", "version", "ask", "record"),
    *(
        "boxes",
        "sessions",
        "manager",
        "long",
        "talk",
        "window",
        "many",
        "frames",
        "traces",
        "fleet",
        "fleet_rate",
        "large",
        "results",
    ),
]
BARS = {
    "time of a turn, as a ratio to the hand-written script's": 1.05,
    "peak memory of a process that runs turns": 80,
    "time of the first turn of a new process, as a ratio to the script's": 1.10,
    "many agents at once: throughput, as a ratio to a bare httpx loop's": 0.9,
    "server that boots in 0.05 s, presumed listings: turn time above the least possible": 10,
    'server that boots in 0.05 s, start="beside_turn": turn time, as a ratio to the least possible': 1.03,
    'time of a turn with start="after_turn", as a ratio to the script\'s': 0.2,
}
"""Bars of docs/performance.md, by what they are called."""

HELD = [
    "memory in use by malloc",
    "Python's memory blocks",
    "resident memory that is not free",
    "open descriptors",
    "threads",
    "child processes",
]
"""What the bars about many turns tell, in their order."""

LEAKING = """
import json, os, subprocess, sys, threading, time
sys.path.insert(0, {benchmarks!r})
from scale_worker import held
from scaling import grown
kept = []
before = held()
{leak}
print(json.dumps([bar.label for bar in grown(before, held()) if not bar.met]))
"""
LEAKS = {
    "nothing": ("pass", []),
    "memory": ("kept += [bytes(1000) for _ in range(1000)]", ["memory in use by malloc"]),
    "objects": ("kept += [object() for _ in range(4000)]", ["Python's memory blocks"]),
    "much memory": (
        "kept += [b'x' * 100_000 for _ in range(100)]",
        ["memory in use by malloc", "resident memory that is not free"],
    ),
    "a descriptor": ("os.dup(0)", ["open descriptors"]),
    "a thread": ("threading.Thread(target=time.sleep, args=(1,), daemon=True).start()", ["threads"]),
    "a process": ("kept.append(subprocess.Popen(['sleep', '1']))", ["child processes"]),
}


@pytest.mark.skipif(sys.platform != "linux", reason="only there is all of it told")
@pytest.mark.parametrize(("leak", "missed"), LEAKS.values(), ids=LEAKS)
def test_each_thing_that_grows_misses_its_own_bar(leak: str, missed: list[str]) -> None:
    told = json.loads(python("-W", "ignore", "-c", LEAKING.format(benchmarks=str(BENCHMARKS), leak=leak)))
    assert told == [f"many turns in one process: growth of {what}" for what in missed]


def test_the_page_shows_a_run_of_all_parts(quick_run: Ran, page: Path) -> None:
    run = json.loads(quick_run.out.read_text())
    sections = {section["name"]: section for section in run["sections"]}
    sections["turn"]["bars"][0]["value"] = 1.0641
    results = page.parents[1] / "benchmarks" / "results.json"
    results.write_text(json.dumps(run))
    python(results.with_name("performance_page.py"))

    bars = between(page, "bars")
    at, load = sections["turn"]["at"], sections["turn"]["load"]
    row = f"1.064 x | at most 1.05 x | **missed** | {at[11:]} | {load[0]} |\n"
    assert f"| time of a turn, as a ratio to the hand-written script's | {row}" in bars
    assert f"Measured on {run['sections'][0]['at'][:10]} on one machine" in bars
    assert all(f"| {bar['label']} |" in bars for section in run["sections"] for bar in section["bars"])
    times = between(page, "times")
    for name in ("turn", "cold", "episode"):
        assert all(f"| {name} | {figure['label']} |" in times for figure in sections[name]["figures"])
    name = "peak memory of the hand-written script"
    assert f"| turn | {name} | {sections['turn']['facts'][name]} |" in times

    # Runs of some sections do not take the place of a table with all bars, unless they are told to.
    results.write_text(json.dumps({"sections": [sections["frames"] | {"figures": []}]}))
    python(results.with_name("performance_page.py"))
    assert between(page, "bars") == bars
    python(results.with_name("performance_page.py"), "--bars")
    assert "Not measured on that day: turn, cold, " in between(page, "bars")
    assert '| frames | 60 Hz loop, keep="nothing": lateness that turns add to a frame' in between(
        page, "bars"
    )
    assert between(page, "times") == times


def test_curves_are_measured_and_shown(page: Path) -> None:
    figures = page.parents[1] / "benchmarks" / "scales.json"
    forked_run(BENCHMARKS / "scales.py", "--quick", "--only", "iterations,turns", "--out", figures)
    python(figures.parent / "performance_page.py")

    curves = json.loads(figures.read_text())["curves"]
    assert [row["trace_kb"] > 0 for row in curves["iterations"]["rows"]] == [True, True]
    assert f"{curves['turns']['rows'][1]['memory_mb']:.3g} |" in page.read_text()
    pictures = {path.name for path in (page.parent / "pictures").iterdir()}
    assert pictures == {"perf-iterations.svg", "perf-turns.svg"}


def test_a_plot_is_svg_with_its_curves_named() -> None:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        plots = importlib.import_module("plots")
    finally:
        sys.path.remove(str(BENCHMARKS))
    axes = plots.Axis("bytes", log=True), plots.Axis("ms", log=True)
    picture = plots.line_plot("A & B", *axes, [1, 1000], {"one": [2, 30], "<two>": [3, 3]})
    root = ET.fromstring(picture)
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"A & B", "bytes", "ms", "one", "<two>", "1k", "100"} <= texts
    # Halfway between 1 and 1000 on a logarithmic axis is 10 ** 1.5.
    scale = plots.Scale(1, 1000, 0, 300, log=True)
    assert (scale.at(1), scale.at(10), scale.at(1000)) == (0, 100, 300)
    assert plots.Scale(0, 10, 0, 300, log=False).ticks() == [0, 2, 4, 6, 8, 10]


def test_peers_are_compared_without_any_peer(quick_peers: Ran) -> None:
    printed, out = quick_peers
    assert max(len(line) for line in printed.splitlines()) <= 80
    turns, asks = json.loads(out.read_text())["tables"]
    rows = {row["name"]: row for row in turns["rows"]}
    assert [*rows] == ["grue", "grue-ahead", "sdk-script"]
    assert all(row["took"]["median"] > 0 for row in rows.values())
    assert (rows["grue"]["left"], rows["sdk-script"]["left"]) == (0, 0)
    assert [row["name"] for row in asks["rows"]] == ["grue", "grue, no trace"]
    assert turns["failed"] == asks["failed"] == {}
    markdown = out.with_name("page.md").read_text()
    assert "| sdk-script |" in markdown
    assert str(BENCHMARKS.parent) not in out.read_text() + markdown + printed


def test_the_page_shows_the_peers_and_who_is_ahead(quick_peers: Ran, page: Path) -> None:
    run = json.loads(quick_peers.out.read_text())
    turns, asks = run["tables"]
    ours, ahead, script = turns["rows"]
    ours["peak_mb"], ours["cpu"]["median"] = 70, 10.0
    script |= {"ratio": 0.9961, "peak_mb": 60}
    script["cpu"]["median"] = 12.0
    ahead["ratio"] = 0.1
    peer = {**asks["rows"][0], "name": "autogen-core", "ratio": 2.9981, "peak_mb": 1000}
    asks["rows"].append(peer)
    run["versions"] = {"autogen-core": "autogen-core 0.0.1"}
    (page.parents[1] / "benchmarks" / "peers" / "results.json").write_text(json.dumps(run))
    python(page.parents[1] / "benchmarks" / "performance_page.py")

    shown = between(page, "peers")
    assert re.search(r"^\| sdk-script \|.*\| 0\.996 \|", shown, re.MULTILINE)
    assert re.search(r"^\| grue-ahead \|", shown, re.MULTILINE)
    assert ": Better than grue are sdk-script (time); sdk-script (peak memory). " in shown
    assert "between two actors in one process: No other side is better than grue. " in shown
    assert "as a ratio to grue's\" is at least 3 x. Measured: 2.998 x: **missed**." in shown
    assert "- autogen-core (ask) [autogen-core 0.0.1]: " in shown


def test_an_unknown_part_is_refused() -> None:
    command = (sys.executable, BENCHMARKS / "run.py", "--only", "nonsense")
    run = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert run.returncode == 2
    assert "no such part: nonsense" in run.stderr
