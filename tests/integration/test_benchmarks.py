"""The benchmarks run: every part once or twice, nothing said about time."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PLAIN_SERVER = (sys.executable, "-I", "-S", str(BENCHMARKS / "servers" / "plain_server.py"))

pytest.importorskip("mcp")


def python(*args: str | Path) -> str:
    run = subprocess.run((sys.executable, *args), capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


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


def test_every_part_runs_and_is_stored(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    printed = python(BENCHMARKS / "run.py", "--quick", "--out", out)

    assert max(len(line) for line in printed.splitlines()) <= 80
    stored = out.read_text()
    sections = {section["name"]: section for section in json.loads(stored)["sections"]}
    assert (
        " ".join(sections) == "turn episode frames sessions cold import version ask record long agents many"
    )
    labels = [figure["label"] for figure in sections["turn"]["figures"]]
    assert labels[:3] == ["grue", "hand-written script", "blocking pipes and sockets"]
    assert all(figure["median"] > 0 for name in ("turn", "ask") for figure in sections[name]["figures"])
    (_, loaded) = sections["import"]["bars"]
    assert (loaded["value"], loaded["met"]) == (0, True)
    assert str(BENCHMARKS.parent) not in stored, "results name no machine's folders"
    assert sections["episode"]["facts"] == {"spares lost, and replaced by a spawn": "0"}
    assert all(section["load"] >= 0 for section in sections.values())


def test_curves_are_measured_and_shown(tmp_path: Path) -> None:
    figures = tmp_path / "benchmarks" / "scales.json"
    shutil.copytree(BENCHMARKS, figures.parent, ignore=shutil.ignore_patterns("*.json", "peers"))
    page = tmp_path / "docs" / "performance.md"
    (page.parent / "pictures").mkdir(parents=True)
    page.write_text((BENCHMARKS.parent / "docs" / "performance.md").read_text())

    python(BENCHMARKS / "scales.py", "--quick", "--only", "iterations,turns", "--out", figures)
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


def test_peers_are_compared_without_any_peer(tmp_path: Path) -> None:
    out, page = tmp_path / "results.json", tmp_path / "page.md"
    sides = ("--only", "grue,sdk-script", "--parts", "plain,ask", "--quick")
    printed = python(BENCHMARKS / "peers" / "run.py", *sides, "--out", out, "--markdown", page)

    assert max(len(line) for line in printed.splitlines()) <= 80
    turns, asks = json.loads(out.read_text())["tables"]
    assert sorted(row["name"] for row in turns["rows"]) == ["grue", "sdk-script"]
    assert all(row["took"]["median"] > 0 and row["left"] == 0 for row in turns["rows"])
    assert [row["name"] for row in asks["rows"]] == ["grue", "grue, no trace"]
    assert turns["failed"] == asks["failed"] == {}
    assert "| sdk-script |" in page.read_text()
    assert str(BENCHMARKS.parent) not in out.read_text() + page.read_text() + printed


def test_an_unknown_part_is_refused() -> None:
    command = (sys.executable, BENCHMARKS / "run.py", "--only", "nonsense")
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert "no such part: nonsense" in run.stderr
