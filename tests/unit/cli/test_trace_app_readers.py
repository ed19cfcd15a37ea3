"""`grue trace replay`, `diff` and `diagram`: what they print, and what they say of it."""

from pathlib import Path

import pytest
from episode_scenes import SCENES
from recorded_turns import Play, Tape
from trace_files import TraceFile
from typer.testing import CliRunner

from grue.cli.app import app
from grue.cli.trace import changes_from, diagram, diff, replay
from grue.errors import MCPConfigError, TraceError
from grue.messages import RunTurn
from grue.tracing.changes import Changes
from grue.tracing.columns import cells


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    SCENES["timeout"](path)
    return path


def test_an_identical_replay_says_so(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(trace.parent, Changes())
    assert capsys.readouterr().out.startswith("identical: 2 turns, ")
    assert replay(trace, Changes(), turn=2)
    assert capsys.readouterr().out.startswith("identical: 1 turn, ")


def test_a_replay_that_differs_says_where(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not replay(trace, changes_from(after_timeout="continue"))
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("Turn 1 differs")
    assert told[-1].startswith("different in 1 of 2 turns")


def test_a_turn_that_is_not_there_is_an_error(trace: Path) -> None:
    with pytest.raises(TraceError, match="has no turn 9"):
        replay(trace, Changes(), turn=9)
    with pytest.raises(TraceError, match="has no turn 9"):
        diagram(trace, turn=9)
    for command in ("diagram", "replay", "show"):
        assert CliRunner().invoke(app, ["trace", command, str(trace), "--turn", "9"]).exit_code == 1


def test_changes_are_read_from_words(tmp_path: Path) -> None:
    system = tmp_path / "system.txt"
    system.write_text("You win.")
    settings = ["first_connect=disable", "connect_retries = 2", "budget.tokens=5", "turn_timeout_s=null"]
    assert changes_from(settings, max_iterations=3, after_timeout="force", system=system) == Changes(
        policy={"first_connect": "disable", "connect_retries": 2, "after_timeout": "force"},
        limits={"budget": {"tokens": 5}, "turn_timeout_s": None, "max_tool_iterations": 3},
        system="You win.",
    )
    assert not changes_from()
    with pytest.raises(MCPConfigError, match="there is no field x"):
        changes_from(["x=\udcff"])


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("after_timeout=sulk", "Invalid enum value 'sulk'"),
        ("nonsense=1", "no field nonsense"),
        ("max_tool_iterations", "max_tool_iterations: Expected `int`"),
        ("max_tool_iterations.x=1", "Expected `int`"),
    ],
)
def test_a_change_that_cannot_be_is_an_error(setting: str, says: str) -> None:
    with pytest.raises(MCPConfigError, match=says):
        changes_from([setting])


def test_instructions_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(MCPConfigError, match=r"Cannot read .*: No such file"):
        changes_from(system=tmp_path / "absent.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(MCPConfigError, match="it is not UTF-8"):
        changes_from(system=tmp_path / "binary")


@pytest.mark.slow
def test_two_traces_are_held_against_each_other(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same, other, cut = (tmp_path / f"{name}.jsonl" for name in ("same", "other", "cut"))
    SCENES["timeout"](same)
    assert diff(trace, same)
    assert capsys.readouterr().out == "The traces are identical, except for numbers, times and ids.\n"
    SCENES["timeout-force"](other)
    assert not diff(trace, other)
    assert "more difference" in capsys.readouterr().out
    assert not diff(trace, other, every=True)
    assert "And in turn 1:" in capsys.readouterr().out
    cut.write_bytes(trace.read_bytes()[:-20])
    assert not diff(trace, cut)
    assert capsys.readouterr().out.endswith(
        "The last line of B was cut short: it is being written, or its writer was killed.\n"
    )


def test_a_diagram_is_text_or_mermaid(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diagram(trace, turn=1)
    text = capsys.readouterr().out.splitlines()
    assert text[0] == "── Turn 1 ──"
    assert max(map(cells, text)) <= 80
    diagram(trace, as_mermaid=True)
    drawn = capsys.readouterr().out
    assert drawn.startswith("sequenceDiagram\n")
    assert "Turn 2" in drawn


@pytest.mark.parametrize(
    ("answers", "line"),
    [
        (("12", "21"), 'answer: {"action":"12"} -> {"action":"21"}'),
        (("\x1b[31m12", "21"), r'answer: {"action":"\u001b[31m12"} -> {"action":"21"}'),
        (("x" * 9_000 + "A", "x" * 9_000 + "B"), f'answer: …{"x" * 30}A"}} -> …{"x" * 30}B"}}'),
    ],
    ids=["short", "escaped", "long"],
)
def test_the_last_line_of_a_diff_has_the_two_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answers: tuple[str, str], line: str
) -> None:
    paths = (tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    for path, answer in zip(paths, answers, strict=True):
        Play(Tape(TraceFile(path)), RunTurn(turn=1, system=answer[-1], user="u"), [answer])
    assert not diff(*paths)
    assert capsys.readouterr().out.splitlines()[-1] == line
