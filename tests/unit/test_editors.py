"""What editors and type checkers know of `grue`, whose names are imported at their first use."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import grue

SOURCE = Path(grue.__file__).parents[1]


def completed(text: str, folder: Path) -> set[str]:
    jedi: Any = pytest.importorskip("jedi", reason="pip install jedi completes names as editors do")
    project = jedi.Project(folder, added_sys_path=[str(SOURCE)])
    # Another environment would be a process, which a forked child of a later test would wait for at its exit.
    here = jedi.api.environment.InterpreterEnvironment()
    return {each.name for each in jedi.Script(text, project=project, environment=here).complete()}


def test_an_editor_completes_every_public_name(tmp_path: Path) -> None:
    assert set(grue.__all__) <= completed("import grue\ngrue.", tmp_path)


@pytest.mark.slow
def test_an_editor_completes_what_a_runner_and_an_outcome_have(tmp_path: Path) -> None:
    text = "from grue import Runner, TurnRequest\nrunner = Runner(llm=None)\n"
    assert {"run_turn", "conversation", "map"} <= completed(f"{text}runner.", tmp_path)
    assert {"response", "tool_calls"} <= completed(f"{text}runner.run_turn(TurnRequest(user='u')).", tmp_path)


@pytest.mark.slow
def test_pyright_knows_the_type_of_every_public_name(tmp_path: Path) -> None:
    pytest.importorskip("pyright", reason="pip install pyright checks types as editors do; it needs npm once")
    program = tmp_path / "program.py"
    names = [name for name in grue.__all__ if name != "__version__"]
    shown = "".join(f"reveal_type(grue.{name})\n" for name in names)
    program.write_text(f"import grue\n{shown}grue.no_such_name\n")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(SOURCE)]}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [*command, "-p", str(tmp_path)], capture_output=True, text=True, timeout=240, check=False
    )
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright could not be loaded from npm: {done.stderr[-200:]}")
    told = json.loads(done.stdout)["generalDiagnostics"]
    (error,) = (each for each in told if each["severity"] == "error")
    assert "no_such_name" in error["message"]
    types = [each["message"] for each in told if each["severity"] == "information"]
    assert len(types) == len(names)
    assert not [message for message in types if "Unknown" in message.replace("[Unknown]", "")]
