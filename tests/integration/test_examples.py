"""The guide to loops and its example: the code shown is the code that runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment, python

from grue import LlmSettings
from grue.messages import AskApproval, CallsDecided, CallTools, TurnCompleted
from grue.testing.actor_harness import TraceWatch
from grue.testing.llm_server import ScriptedLlmServer, text_reply

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLE = DOCS / "examples" / "frame_loop.py"
GUIDE = DOCS / "guides" / "loops.md"


@pytest.mark.slow
def test_the_frame_loop_makes_its_moves_without_a_network() -> None:
    played = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert played.returncode == 0, played.stderr
    told = [line.strip() for line in played.stdout.splitlines() if line.strip()]
    assert told == [f"move {n}: go north" for n in (1, 2, 3)]


def test_the_guide_shows_the_examples_own_code() -> None:
    (shown,) = re.findall(
        r"<!-- frame_loop.py -->\n```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert shown.strip() in EXAMPLE.read_text()


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


def test_every_snippet_of_the_guide_compiles_and_names_what_there_is() -> None:
    import grue

    for code in snippets():
        compile(code, "guide", "exec")
        for names in re.findall(r"^from grue import (.*)$", code, re.MULTILINE):
            assert all(hasattr(grue, name) for name in names.split(", "))


def test_the_guides_batch_goes_on_in_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook, whose cell is run again and whose names stay."""
    (code,) = [code for code in snippets() if "resume=again" in code]
    monkeypatch.chdir(tmp_path)
    recalled, kept = [], []
    with ScriptedLlmServer(lambda _: text_reply("an animal")) as server:
        for _ in range(2):
            names = {
                "llm": LlmSettings(base_url=server.base_url, model="m"),
                "servers": {},
                "texts": ["a cat", "a dog"],
            }
            kept.append(names)
            exec(code, names)
            recalled.append([item.recalled for item in names["items"]])
    assert recalled == [[False, False], [True, True]]
    assert len(server.requests) == 2


@pytest.mark.slow
def test_the_triage_prints_what_the_guide_shows_and_asks_before_it_pays(tmp_path: Path) -> None:
    example = DOCS / "examples" / "triage.py"
    sorted_mails = python("-W", "error", str(example), cwd=tmp_path)
    assert sorted_mails.returncode == 0, sorted_mails.stderr
    guide = (DOCS / "guides" / "hosts.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^\$ \S+ docs/examples/triage\.py\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    assert sorted_mails.stdout == shown
    watch = TraceWatch.of(tmp_path / "triage.jsonl")
    watch.happened(AskApproval, times=1)
    watch.in_order(AskApproval, CallsDecided, CallTools, TurnCompleted)
    code = [line for line in example.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len([line for line in code if not line.strip().startswith(("#", '"""'))]) <= 60


@pytest.mark.slow
def test_the_example_of_testing_an_agent_passes_is_short_and_stands_in_the_guide() -> None:
    example = DOCS / "examples" / "test_my_agent.py"
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(example)],
        cwd=DOCS.parent,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout
    assert "5 passed" in tested.stdout
    code = example.read_text(encoding="utf-8")
    lines = [line for line in code.splitlines() if line.strip() and not line.strip().startswith('"""')]
    assert len(lines) < 40
    guide = (DOCS / "guides" / "agent-loop.md").read_text(encoding="utf-8")
    shown = guide.split("<!-- test_my_agent.py -->\n```python\n")[1].split("```\n")[0]
    assert shown in code
