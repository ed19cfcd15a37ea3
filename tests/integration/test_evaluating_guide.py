"""The newcomer's example of docs/guides/evaluating.md, run as pasted: one file, and its commands."""

import hashlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import environment, forked
from doc_blocks import DOCS

from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply

pytestmark = [pytest.mark.slow, pytest.mark.timeout(560), pytest.mark.xdist_group("fleet")]

GUIDE = (DOCS / "guides" / "evaluating.md").read_text(encoding="utf-8")
FLEET = (DOCS / "guides" / "fleet.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent


def block(language: str, at: int = 0, *, guide: str = GUIDE) -> str:
    """Return the code of a block of the guide."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    return [str(code) for its, code in found if its == language][at]


def reckon(request: LlmRequest) -> LlmReply:
    """Add two numbers: mostly right if asked for steps. Prompt and question decide, not chance."""
    system, question = (str(message["content"]) for message in request.messages[:2])
    a, b = map(int, re.findall(r"\d+", question))
    luck = hashlib.sha256(f"{a}+{b} {system}".encode()).digest()[0] / 256
    right = luck < (0.9 if "step" in system else 0.4)
    return text_reply(str(a + b if right else a - b))


@pytest.fixture
def endpoint() -> Iterator[str]:
    with ScriptedLlmServer(reckon) as server:
        yield server.base_url


def run(folder: Path, command: str, status: int = 0) -> str:
    program, *words = shlex.split(command)
    line = forked("grue", *words) if program == "grue" else [BIN / program, *words]
    done = subprocess.run(line, cwd=folder, env=environment(), capture_output=True, text=True, timeout=500)
    assert done.returncode == status, (command, done.stdout, done.stderr)
    return done.stdout


def recall(request: LlmRequest) -> LlmReply:
    """Answer: rightly only if asked for steps."""
    system, question = (str(message["content"]) for message in request.messages[:2])
    right = {"17": "42", "64": "83", "Australia": "Canberra"}
    answer = next(answer for word, answer in right.items() if word in question)
    return text_reply(f"It is {answer}." if "step" in system or answer == "42" else "I do not know.")


def test_two_prompts_are_compared_by_a_sweep_alone(tmp_path: Path) -> None:
    """The sweep of docs/guides/fleet.md with its commands, and again at a server with another port."""
    guide = FLEET[FLEET.index("### Two prompts, the same questions") :]
    play, table, compare = block("", guide=guide).strip().splitlines()
    for _ in range(2):
        with ScriptedLlmServer(recall) as server:
            sweep = block("toml", guide=guide).replace("http://127.0.0.1:11434/v1", server.base_url)
            (tmp_path / "prompts.toml").write_text(sweep)
            run(tmp_path, f"{play} --workers 1")
        rows = [line.split() for line in run(tmp_path, table).splitlines()[1:3]]
        assert [row[-2] for row in rows] == ["3", "3"], rows
        said = run(tmp_path, compare)
        assert "3 cases were played on both sides." in said
        assert "B is better in 2 cases, worse in 0, equal in 1." in said
        assert "  0 -> 1  inputs: What is 64 + 19?, expected: 83" in said
    assert "3 not in the latest sweep and left out" in said


def test_the_guide_leads_from_nothing_to_an_answer(tmp_path: Path, endpoint: str) -> None:
    program = block("python", 2)
    lines = [line for line in program.splitlines() if line.strip()]
    assert len(lines) <= 15, "ten, with two imports, the guard and the table"
    (tmp_path / "sums.py").write_text(program.replace("http://127.0.0.1:11434/v1", endpoint))
    play, compare, report = block("").strip().splitlines()
    run(tmp_path, play)
    said = run(tmp_path, compare)
    assert re.search(r"^B is better by 0\.\d+ in score \(\+", said, re.MULTILINE), said
    assert "30 cases were played on both sides" in said
    assert "300 episodes" in run(tmp_path, report)
    assert (tmp_path / "runs" / "sums" / "report.html").stat().st_size < 500_000
    ci, score = block("", 1).strip(), block("", 2).strip().splitlines()
    assert "Fine: a loss of 0.05 is ruled out" in run(tmp_path, ci)
    turned = ci.replace("plain", "x").replace("steps", "plain").replace("x", "steps")
    assert "Worse" in run(tmp_path, turned, status=1)
    scorers = re.sub(r"\[scorer\.polite\].*?\n\n", "", block("toml"), flags=re.DOTALL)
    (tmp_path / "scorers.toml").write_text(scorers)
    (tmp_path / "my_scorers.py").write_text(
        "def length(finished):\n    return len(finished.answer), 'so long'\n"
    )
    assert "300 of 300 episodes scored" in run(tmp_path, score[0])
    assert "brief" in run(tmp_path, score[1])
    failures = run(tmp_path, block("", 3).strip())
    assert "with a score below 1" in failures
    assert "grue trace show" in failures
    export, tools, prompts = block("", 4).strip().splitlines()
    assert "300 episodes, 300 turns, 0 calls, 300 requests" in run(tmp_path, export)
    assert run(tmp_path, tools).split() == ["tool", "n", "s"]
    assert len(run(tmp_path, prompts).splitlines()) == 3
    samples, trajectories = block("", 5).strip().splitlines()
    assert "300 samples" in run(tmp_path, samples)
    assert "300 trajectories" in run(tmp_path, trajectories)
