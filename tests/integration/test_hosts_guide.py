"""The guide to hosts and its example: a host of public names only, which is interrupted and resumed."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from commands import environment, grue

from grue import LlmSettings
from grue.errors import LLMError
from grue.hosting import read_episode
from grue.testing.llm_server import ScriptedLlmServer
from grue.tracing.facts import EpisodeResumed

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLE = DOCS / "examples" / "note_sorter.py"
GUIDE = DOCS / "guides" / "hosts.md"


@pytest.fixture(scope="module")
def sorter() -> ModuleType:
    spec = importlib.util.spec_from_file_location("note_sorter", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_runs_by_itself(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), str(tmp_path / "run")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == "garden   water the tomatoes"


def test_it_goes_on_where_it_was_interrupted(tmp_path: Path, sorter: ModuleType) -> None:
    asked: list[str] = []

    def broken(request):
        asked.append(request.messages[-1]["content"])
        if len(asked) == 3:
            raise KeyError("the model is down")
        return sorter.scripted(request)

    with ScriptedLlmServer(broken) as server:
        llm = LlmSettings(base_url=server.base_url, model="m")
        with pytest.raises(LLMError):
            sorter.sort_notes(llm, tmp_path / "run")
        asked_before = len(asked)
        assert sorter.sort_notes(llm, tmp_path / "run") == ["home", "garden", "office", "health"]
    assert asked[asked_before:] == list(sorter.NOTES[2:])
    bodies = [envelope.body for envelope in read_episode(tmp_path / "run").envelopes]
    assert [body.folder for body in bodies if isinstance(body, sorter.Sorted)] == [
        "home",
        "garden",
        "office",
        "health",
    ]
    assert [body.turns for body in bodies if isinstance(body, EpisodeResumed)] == [2]


def test_an_answer_that_was_paid_for_is_used(tmp_path: Path, sorter: ModuleType) -> None:
    """Killed between the end of a turn and the host's fact."""
    with ScriptedLlmServer(sorter.scripted) as server:
        llm = LlmSettings(base_url=server.base_url, model="m")
        sorter.sort_notes(llm, tmp_path / "run")
        trace = tmp_path / "run" / "trace.jsonl"
        lines = trace.read_text().splitlines(keepends=True)
        ends = [n for n, line in enumerate(lines) if '"type":"TurnCompleted"' in line]
        trace.write_text("".join(lines[: ends[1] + 1]))
        before = len(server.requests)
        assert sorter.sort_notes(llm, tmp_path / "run") == ["home", "garden", "office", "health"]
        assert len(server.requests) == before + 2


def test_its_trace_is_read_where_it_is_not_installed(tmp_path: Path, sorter: ModuleType) -> None:
    with ScriptedLlmServer(sorter.scripted) as server:
        sorter.sort_notes(LlmSettings(base_url=server.base_url, model="m"), tmp_path / "run")
    shown = grue("trace", "show", "run", "--kind", "sorted", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert 'note "pay the rent", folder "home"' in shown.stdout
    stats = json.loads(grue("trace", "stats", "run", "--json", cwd=tmp_path).stdout)
    assert stats["turns"]["outcomes"] == {"answered": 4}
    assert stats["ending"]["reason"] == "done"
    assert "identical" in grue("trace", "replay", "run", cwd=tmp_path).stdout
    log = (tmp_path / "run" / "events.jsonl").read_text()
    assert "notesorter.Sorted: pay the rent -> home" in log


def test_the_guide_shows_the_examples_own_code() -> None:
    shown = re.findall(
        r"<!-- note_sorter.py -->\n```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(shown) == 2
    for code in shown:
        assert code.strip() in EXAMPLE.read_text()


def test_the_guide_names_the_public_modules() -> None:
    named = set(re.findall(r"`(grue[\w.]*)`", GUIDE.read_text().split("## Facts")[0]))
    public = {
        line.split()[0] for line in (DOCS.parent / "tests/unit/public_api.txt").read_text().splitlines()
    }
    assert public <= named
