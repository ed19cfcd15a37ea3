"""Traces are read, replayed and resumed in a process where their host cannot be imported."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from commands import grue

pytestmark = pytest.mark.slow

WITHOUT_ZORK = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("grue.hosts.zork", "grue.hosts.zork.games")):
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("played")
    done = grue("play", "--offline", "--turns", "3", "--run-dir", "run", "--quiet", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture
def without(run: Path) -> Callable[..., CompletedProcess[str]]:
    def command(*args: str) -> "CompletedProcess[str]":
        done = grue("trace", *args, cwd=run.parent, before=WITHOUT_ZORK)
        assert done.returncode == 0, done.stderr
        return done

    return command


def test_the_host_is_absent(run: Path) -> None:
    done = grue("play", "--offline", cwd=run.parent, before=WITHOUT_ZORK)
    assert (
        "ImportError: grue.hosts.zork" in done.stderr or "ImportError: grue.hosts.zork.games" in done.stderr
    )


def test_show_prints_unknown_facts_as_data(without: Callable[..., CompletedProcess[str]], run: Path) -> None:
    shown = without("show", "run").stdout
    assert 'action "open mailbox"' in shown or "Decided  " in shown
    assert "Observed" in shown
    assert "tools from" in shown
    written = [json.loads(line) for line in without("show", "run", "--json").stdout.splitlines()]
    recorded = [json.loads(line) for line in (run / "trace.jsonl").read_text().splitlines()[1:]]
    assert len(written) == len(recorded)
    for ours, theirs in zip(written, recorded, strict=True):
        if ours["from"] == "host":
            assert ours["body"].items() >= theirs["body"].items()
    assert "Decided" in without("show", "run", "--kind", "decid").stdout


def test_stats_count_the_same_turns(without: Callable[..., CompletedProcess[str]], run: Path) -> None:
    here = json.loads(grue("trace", "stats", "run", "--json", cwd=run.parent).stdout)
    there = json.loads(without("stats", "run", "--json").stdout)
    for part in ("turns", "model", "tools", "servers", "hosted", "messages"):
        assert there[part] == here[part]
    assert there["ending"]["reason"] == here["ending"]["reason"] == "turn_limit"
    assert "turn_limit" in without("stats", "run").stdout


@pytest.mark.parametrize("command", [("diff", "run", "run"), ("replay", "run")])
def test_diff_and_replay_find_no_difference(
    without: Callable[..., CompletedProcess[str]], command: tuple[str, ...]
) -> None:
    assert "identical" in without(*command).stdout


def test_the_page_and_the_diagrams_are_drawn(
    without: Callable[..., CompletedProcess[str]], run: Path, tmp_path: Path
) -> None:
    without("html", "run", "--out", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert '"Decided"' in page
    assert "RunTurn" in without("diagram", "run").stdout
    assert "sequenceDiagram" in without("diagram", "run", "--mermaid").stdout


def test_a_trace_of_format_1_is_read_too(without: Callable[..., CompletedProcess[str]]) -> None:
    old = Path(__file__).parents[1] / "unit" / "tracing" / "format_1.jsonl"
    assert "Decided" in without("show", str(old)).stdout


def test_completed_turns_are_found_for_a_resume(run: Path) -> None:
    code = f"{WITHOUT_ZORK}\nfrom grue.engine.batch import CompletedTurns\n"
    code += f"print(len(CompletedTurns({str(run)!r})._known))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"


def test_the_schema_knows_no_games(without: Callable[..., CompletedProcess[str]]) -> None:
    schema = without("schema").stdout
    assert "EpisodeStarted" in schema
    assert "RunTurn" in schema
    for word in ('"game', '"score', '"Decided"', '"Observed"'):
        assert word not in schema
