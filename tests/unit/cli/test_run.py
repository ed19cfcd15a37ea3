"""`grue run` within a process: what is chosen, printed and recorded."""

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from skill_runs import act, finish, scripted

from grue.cli import run as run_module
from grue.cli.run import EXAMPLE, STATUSES, RunOptions, _choose_model, _summary, run_task
from grue.errors import MCPConfigError, TraceError
from grue.hosting import read_episode
from grue.hosts.skill_agent import RunResult, load_config
from grue.messages import CompletionReceived, Usage
from grue.tool_sessions.server_specs import StdioServer


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example without its server, in which the report is not written yet."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EXAMPLE.parent, tmp_path / "agent")
    (tmp_path / "agent" / "workspace" / "report.md").unlink(missing_ok=True)
    path = tmp_path / "agent" / "agent.yaml"
    path.write_text(path.read_text().replace("mcp:\n", "mcp:\n  enabled: false\n"))
    return path


def test_the_example_runs_live(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_task(RunOptions(agent=agent, offline=True, run_dir=Path("run")))
    assert (result.reason, result.model) == ("finished", "grue-offline-script")
    printed = capsys.readouterr().out
    assert "Write the weekly report." in printed
    assert "write_file report.md" in printed
    assert "The trace is in run; to read it: grue trace show run" in printed
    assert (agent.parent / "workspace" / "report.md").exists()


@pytest.mark.slow
def test_json_and_quiet(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_task(RunOptions(agent=agent, offline=True, output="json"))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (lines[0]["type"], lines[-1]["type"]) == ("episode_started", "result")
    run_task(RunOptions(agent=agent, offline=True, run_dir=Path("run"), output="quiet"))
    printed = capsys.readouterr()
    assert printed.out == "report.md: 45.5 hours in 3 projects.\n"
    assert printed.err.startswith("finished: the task is done; 4 turns, 8 steps")


def test_another_task_is_given_up_by_the_script(agent: Path) -> None:
    shutil.rmtree(agent.parent / "skills" / "weekly-report")
    result = run_task(RunOptions(agent=agent, offline=True, output="quiet"))
    assert result.reason == "gave_up"
    assert STATUSES.get(result.reason, 1) == 1


@pytest.mark.slow
def test_a_run_that_was_cut_off_is_resumed_with_its_own_options(
    agent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent.write_text(agent.read_text().replace("max_turns: 20", "max_turns: 2"))
    first = run_task(RunOptions(agent=agent, offline=True, run_dir=Path("my run"), output="quiet"))
    assert STATUSES[first.reason] == 4
    told = capsys.readouterr().err
    assert "The trace is in 'my run'; to read it: grue trace show 'my run'\n" in told
    raised = "first raise max_turns in agent/agent.yaml, then"
    assert f"To go on, {raised}: grue run --resume 'my run'\n" in told
    agent.write_text(agent.read_text().replace("max_turns: 2", "max_turns: 20"))
    result = run_task(RunOptions(resume=Path("my run/trace.jsonl"), output="live"))
    assert result.succeeded
    assert "Resuming" in capsys.readouterr().out
    requests = sum(isinstance(each.body, CompletionReceived) for each in read_episode("my run").envelopes)
    assert requests == result.requests == 4
    with pytest.raises(TraceError, match="it is over"):
        run_task(RunOptions(resume=Path("my run")))


def test_the_default_agent_and_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GRUE_API_KEY", "OPENROUTER_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert run_module._default_agent(RunOptions()) == Path("agent.yaml")
    copy = run_module._default_agent(RunOptions(offline=True))
    assert copy.read_bytes() == EXAMPLE.read_bytes()
    assert run_module._default_agent(RunOptions(offline=True)) == copy, "it is used again, as it is now"
    assert copy.is_relative_to(Path())
    copy.unlink()
    with pytest.raises(
        MCPConfigError, match=r"weekly-report has no agent\.yaml\. Rename or remove the folder"
    ):
        run_module._default_agent(RunOptions(offline=True))
    shutil.rmtree(copy.parent)
    monkeypatch.setattr(run_module, "EXAMPLE", tmp_path / "nowhere" / "agent.yaml")
    with pytest.raises(MCPConfigError, match=r"Cannot write the example into weekly-report"):
        run_module._default_agent(RunOptions(offline=True))
    (tmp_path / "agent.yaml").write_text("instructions: x")
    with pytest.raises(MCPConfigError, match="There is no task"):
        run_task(RunOptions())
    with pytest.raises(MCPConfigError, match="There is no key for"):
        run_task(RunOptions(task="x"))


def test_a_disk_that_is_full_leaves_no_half_of_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_source: Path, target: Path) -> None:
        target.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", full)
        with pytest.raises(MCPConfigError) as refused:
            run_module._default_agent(RunOptions(offline=True))
    assert str(refused.value) == "Cannot write the example into weekly-report: No space left on device."
    assert list(tmp_path.iterdir()) == []
    copy = run_module._default_agent(RunOptions(offline=True))
    assert load_config(copy).task, "the next command finds the whole example"


def test_model_and_endpoint_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.yaml").write_text("mcp: {servers: {s: {command: /nowhere/at/all}}}")
    with scripted(act(finish("ok"))) as (server, _):
        result = run_task(RunOptions(task="x", model="other", base_url=server.base_url, stream=True))
    assert result.model == "other"
    assert "! " in capsys.readouterr().out, "the server that does not start is a problem in the story"


def test_the_live_view_shows_the_whole_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.yaml").write_text("task: x")
    answer = "\n".join(f"{number}. {'item ' * 10}".rstrip() for number in range(20))
    with scripted(act(finish(answer))) as (server, _):
        run_task(RunOptions(base_url=server.base_url))
    first, *others = answer.split("\n")
    assert "\n".join([f"> {first}", *others, "", "finished: "]) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("skills: {folder: nowhere}", "The folder of skills nowhere cannot be read"),
        ("workspace: nowhere", "The workspace nowhere is not a folder"),
        ("limts: {}", "agent.yaml, line 3: unknown key 'limts'"),
    ],
)
def test_a_run_that_cannot_begin_is_a_sentence_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    model = "model: {name: m, base_url: 'http://127.0.0.1:9/v1'}"
    Path("agent.yaml").write_text(f"task: x\n{model}\n{text}\n")
    with pytest.raises(MCPConfigError, match=said):
        run_task(RunOptions(agent=Path("agent.yaml")))
    assert [*tmp_path.glob("runs/*")] == []


def test_offline_npx_takes_nothing_from_the_network() -> None:
    config = load_config(EXAMPLE)
    _choose_model(config, RunOptions(offline=True))
    env = {name: server.env for name, server in config.servers.items() if isinstance(server, StdioServer)}
    assert env == {"think": {}, "files": {"npm_config_offline": "true"}}


def test_ctrl_c_says_how_to_go_on(
    agent: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def press(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("grue.hosts.skill_agent.orchestrator.Orchestrator.run", press)
    with pytest.raises(KeyboardInterrupt):
        run_task(RunOptions(agent=agent, offline=True, run_dir=Path("run"), output="quiet"))
    assert "interrupted. To go on: grue run --resume run\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reason", "first"),
    [
        ("turn_limit", ", first raise max_turns in a.yaml, then"),
        ("step_limit", ", first raise max_steps in a.yaml, then"),
        ("budget", ", first raise the limit in a.yaml, then"),
        ("parked", ""),
    ],
)
def test_after_a_limit_the_summary_says_that_it_has_to_be_raised(reason: Any, first: str) -> None:
    result = RunResult(
        run_id="id", task="x", model="m", reason=reason, detail="why", answer="", responses=(), notes=(),
        steps=(), questions=(), turns=1, requests=1, usage=Usage(), duration_s=1.0
    )  # fmt: skip
    said = _summary(result, Path("run"), Path("a.yaml"))
    assert said.splitlines()[-1] == f"To go on{first}: grue run --resume run"
