"""The pytest plugin, as a user's own test run meets it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "testing.md"

LEAVES = """
import subprocess

children = []

def test_it_leaves_a_child(nothing_left):
    children.append(subprocess.Popen(["sleep", "600"]))
"""

LEFT_BY_A_FIXTURE = """
def test_the_endpoint_is_closed_before_the_look(scripted_llm, nothing_left):
    assert scripted_llm([]).base_url
"""

FUNCTIONS = """
from grue.testing.llm_server import text_reply, tool_calls_reply
from grue import LlmSettings, Runner, TurnRequest

def add(x: int, y: int) -> int:
    return x + y

def test_functions_are_tools(function_tools, scripted_llm):
    llm = scripted_llm(tool_calls_reply(("sums.add", {"x": 2, "y": 3})), text_reply("five"))
    runner = Runner(
        llm=LlmSettings(base_url=llm.base_url, model="m"), servers={"sums": function_tools({"add": add})}
    )
    assert runner.run_turn(TurnRequest(system="s", user="u")).tool_calls[0].result.content == 5
"""

LAZY = """
import sys

def test_nothing_of_grue_is_imported():
    face = ("grue.runtime", "grue.runtime.lazy_names", "grue.runtime.version")
    loaded = [name for name in sys.modules if name.startswith("grue.") and "testing" not in name]
    assert not {*loaded} - {*face}
    assert not {"mcp", "httpx", "pydantic", "anyio", "msgspec"} & set(sys.modules)
"""


def run(tmp_path: Path, source: str) -> "subprocess.CompletedProcess[str]":
    """Run a test file in a pytest of its own, which has this plugin and no other."""
    file = tmp_path / "test_of_a_user.py"
    file.write_text(source, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "grue.testing.plugin", str(file)],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def guide_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.slow
def test_the_guide_s_example_passes(tmp_path: Path) -> None:
    outcome = run(tmp_path, guide_blocks()[0])
    assert outcome.returncode == 0, outcome.stdout
    assert "4 passed" in outcome.stdout


@pytest.mark.slow
def test_the_guide_s_example_of_what_a_turn_did_fails_if_a_reply_is_left(tmp_path: Path) -> None:
    (code,) = (block for block in guide_blocks() if "llm.left" in block)
    outcome = run(tmp_path, code + code.replace("test_it", "test_again").replace('"north")', '"north", "x")'))
    assert "1 failed, 1 passed" in outcome.stdout, outcome.stdout
    assert "assert llm.left == 0" in outcome.stdout


@pytest.mark.slow
def test_the_guide_s_example_fails_where_the_server_does_not(tmp_path: Path) -> None:
    outcome = run(tmp_path, guide_blocks()[0].replace('"--silent-at", "call"', ""))
    assert outcome.returncode == 1
    assert "1 failed, 3 passed" in outcome.stdout


def test_the_guide_names_every_flag() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "grue.testing.faulty_server", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    flags = set(re.findall(r"--[a-z][a-z0-9-]+", shown.stdout)) - {"--help"}
    assert flags >= {"--late", "--ask"}
    assert flags <= set(re.findall(r"--[a-z][a-z0-9-]+", GUIDE.read_text(encoding="utf-8")))


@pytest.mark.slow
def test_p9_what_a_test_leaves_is_its_failure(tmp_path: Path) -> None:
    outcome = run(tmp_path, LEAVES)
    found = re.search(r"left behind: process (\d+) \(\S+\s+sleep 600\)", outcome.stdout)
    assert found, outcome.stdout
    assert outcome.returncode == 1
    os.kill(int(found[1]), 9)


@pytest.mark.slow
def test_the_plugin_s_own_fixtures_are_closed_before_the_look(tmp_path: Path) -> None:
    outcome = run(tmp_path, LEFT_BY_A_FIXTURE)
    assert outcome.returncode == 0, outcome.stdout


@pytest.mark.slow
def test_functions_are_tools(tmp_path: Path) -> None:
    outcome = run(tmp_path, FUNCTIONS)
    assert outcome.returncode == 0, outcome.stdout


@pytest.mark.slow
def test_the_plugin_costs_no_imports(tmp_path: Path) -> None:
    outcome = run(tmp_path, LAZY)
    assert outcome.returncode == 0, outcome.stdout
