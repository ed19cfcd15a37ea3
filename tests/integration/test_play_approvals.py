"""`grue play` with a policy that asks: without a terminal nobody can answer, and the model is told."""

from pathlib import Path

import pytest
from commands import grue

from grue.messages import ToolCalled, ToolDenied
from grue.tracing.reading import read_episode

POLICY = """
[[tool.grue.tool_policy.rules]]
tools = "*"
verdict = "ask"
"""


@pytest.mark.slow
def test_without_a_terminal_every_call_is_denied_and_the_game_goes_on(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(POLICY)
    grue("play", "--offline", "--turns", "10", "--run-dir", "run", cwd=tmp_path)
    bodies = [item.body for item in read_episode(tmp_path / "run").envelopes]
    denied = [body for body in bodies if isinstance(body, ToolDenied)]
    assert denied
    assert {note.reason for note in denied} == {"it needs an approval, and there is no terminal to ask at"}
    assert not [body for body in bodies if isinstance(body, ToolCalled)]
