"""`grue run` as a user runs it: the bundled example without a key, its trace, outputs, and exit status."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from commands import bodies, grue
from doc_blocks import DOCS
from skill_runs import act, call, finish, scripted

from grue.cli.run import EXAMPLE
from grue.testing import faulty_server, replay
from grue.testing.llm_server import ScriptedLlmServer

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

ESCAPES = "\x1b[2Jgone\u202e"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the example was run, with what it has printed."""
    here = tmp_path_factory.mktemp("example")
    shutil.copytree(EXAMPLE.parent, here / "agent")
    agent = here / "agent" / "agent.yaml"
    agent.write_text(agent.read_text().replace("command: npx", "command: grue-no-npx"))
    (here / "agent" / "workspace" / "report.md").unlink(missing_ok=True)
    # As in an activated environment: not every machine has a `python3`.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = grue("run", "agent/agent.yaml", "--offline", "--run-dir", "run", cwd=here, PATH=path)
    (here / "stdout").write_text(done.stdout)
    assert done.returncode == 0, done.stderr
    return here


def agent(folder: Path, llm: ScriptedLlmServer, text: str = "") -> Path:
    path = folder / "agent.yaml"
    (folder / "work").mkdir(exist_ok=True)
    path.write_text(f"model: {{name: m, base_url: '{llm.base_url}'}}\nworkspace: work\n{text}")
    return path


@pytest.mark.slow
def test_the_example_is_solved_without_a_key(ran: Path) -> None:
    said = (ran / "stdout").read_text()
    assert "The model is a script that comes with grue. No LLM is used." in said
    assert "use_skill weekly-report" in said
    assert "mcp_call think" in said
    assert "> report.md: 45.5 hours in 3 projects." in said
    assert "finished: the task is done; 5 turns, 9 steps" in said
    assert "\x1b" not in said, "a pipe gets plain text"
    assert "| roof | 18.5 |" in (ran / "agent" / "workspace" / "report.md").read_text()
    result = json.loads((ran / "run" / "result.json").read_text())
    assert [step["status"] for step in result["steps"]] == ["completed"] * 9
    assert (ran / "run" / result["steps"][5]["artifact"]).is_file()


def test_the_readme_shows_what_the_example_prints(ran: Path) -> None:
    readme = (DOCS / "what-you-see.md").read_text(encoding="utf-8")
    shown = readme.partition("<!-- run:begin -->\n```\n")[2].partition("\n```\n<!-- run:end -->")[0]
    said = [line.rstrip() for line in (ran / "stdout").read_text().splitlines()]
    for line in shown.splitlines()[1:]:
        if line not in ("", "…") and not line.startswith(("finished:", "The trace is in", "  mcp_call")):
            assert line in said


@pytest.mark.slow
def test_the_trace_tools_work_on_its_folder(ran: Path) -> None:
    assert replay(ran / "run") == 5
    shown = grue("trace", "show", "run", cwd=ran)
    assert "skillagent.McpToolCallStarted" in shown.stdout
    assert "step 8: write_file completed" in shown.stdout
    counted = grue("trace", "stats", "run", cwd=ran)
    assert "tool calls  1: 1 returned" in counted.stdout
    assert "ended       finished, 9 steps" in counted.stdout
    assert grue("trace", "html", "run", "-o", "run.html", cwd=ran).returncode == 0
    assert "weekly-report" in (ran / "run.html").read_text()
    assert "identical" in grue("trace", "diff", "run", "run", cwd=ran).stdout
    assert grue("trace", "diagram", "run", cwd=ran).returncode == 0


@pytest.mark.slow
def test_a_run_that_is_over_is_not_resumed(ran: Path) -> None:
    again = grue("run", "--resume", "run", cwd=ran)
    assert again.returncode == 1
    assert "it is over (the task is done)" in again.stderr


@pytest.mark.slow
def test_json_has_an_object_a_line_and_the_result_last(tmp_path: Path) -> None:
    with scripted(act(("note", {"text": "a"}), thought="first"), act(finish("ok"))) as (llm, _):
        path = agent(tmp_path, llm)
        done = grue("run", str(path), "Do it.", "--json", "--stream", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["type"] for line in lines] == [
        "episode_started",
        "actions_planned",
        "step_completed",
        "actions_planned",
        "step_completed",
        "episode_ended",
        "result",
    ]
    assert lines[0]["task"] == "Do it."
    assert lines[1]["thought"] == "first"
    assert (lines[-1]["reason"], lines[-1]["answer"]) == ("finished", "ok")
    (folder,) = (tmp_path / "runs").iterdir()
    assert bodies(folder, "TextDelta"), "replies were streamed"


@pytest.mark.parametrize(
    ("text", "actions", "status", "reason"),
    [
        ("", [finish("no", success=False)], 1, "gave_up"),
        ("on_step_failure: stop", [("read_file", {"path": "nowhere"})], 1, "step_failed"),
        ("limits: {max_turns: 1}", [("note", {"text": "a"})], 4, "turn_limit"),
        ("limits: {requests: 1}", [("note", {"text": "a"})], 4, "budget"),
        (
            "policy: {parking: true, rules: [{tools: agent.write_file, verdict: ask}]}",
            [("write_file", {"path": "a", "content": "b"})],
            3,
            "parked",
        ),
    ],
)
@pytest.mark.slow
def test_the_exit_status_says_how_it_ended(
    tmp_path: Path, text: str, actions: list[tuple[str, dict[str, object]]], status: int, reason: str
) -> None:
    with scripted(act(*actions)) as (llm, _):
        path = agent(tmp_path, llm, text)
        done = grue("run", str(path), "Do it.", "--quiet", "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert done.stdout == ("no\n" if reason == "gave_up" else "")
    assert done.stderr.startswith(f"{reason}: ")
    if reason == "parked":
        assert "To go on: grue run --resume run" in done.stderr
        assert grue("run", "--resume", "run", cwd=tmp_path).returncode == 3, "it waits on"


@pytest.mark.slow
def test_what_cannot_be_used_is_a_sentence(tmp_path: Path) -> None:
    missing = grue("run", "Do it.", cwd=tmp_path)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "Configuration file not found: agent.yaml" in missing.stderr
    (tmp_path / "agent.yaml").write_text("limits: {max_turn: 3}")
    assert "agent.yaml, line 1: unknown key 'limits.max_turn'" in grue("run", "x", cwd=tmp_path).stderr
    (tmp_path / "agent.yaml").write_text("instructions: x")
    assert "There is no task" in grue("run", cwd=tmp_path).stderr
    assert "There is no key for" in grue("run", "Do it.", cwd=tmp_path).stderr


@pytest.mark.slow
def test_texts_of_models_and_tools_are_escaped_and_a_run_without_its_servers_goes_on(tmp_path: Path) -> None:
    command, *args = faulty_server.argv()
    servers = json.dumps({"s": {"command": command, "args": args}})
    replies = (
        act(call("echo", text=ESCAPES), ("respond", {"text": ESCAPES}), thought=ESCAPES),
        act(finish(ESCAPES)),
    )
    with scripted(*replies) as (llm, _):
        path = agent(tmp_path, llm, f"mcp: {{servers: {servers}}}")
        done = grue("run", str(path), f"Do {ESCAPES}.", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
        assert "\u202e" not in done.stdout
        assert done.stdout.count("\\u001b[2Jgone\\u202e") == 5
    with scripted(act(finish())) as (llm, _):
        path = agent(tmp_path, llm, "mcp: {servers: {s: {command: /nowhere/at/all}}}")
        done = grue("run", str(path), "Do it.", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "! " in done.stdout
        assert "Going on with no MCP tools." in " ".join(done.stdout.split())
