"""What editors and type checkers know of `grue`, whose names are imported at their first use."""

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
