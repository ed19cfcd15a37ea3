"""The hosts' own works: what they score, what belongs to their episodes' identity, what they cannot play."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from made_fleets import Attempted, play

from grue.cli.fleet import run_fleet
from grue.cli.run import EXAMPLE
from grue.errors import FleetError
from grue.fleet.attempt import Job
from grue.fleet.folder import CaseFile, EpisodeFolder, FleetFolder
from grue.fleet.identity import Case
from grue.fleet.sweep import read_plan, read_sweep
from grue.fleet.work import contains, find_work
from grue.testing.llm_faults import rate_limited
from grue.testing.llm_replies import LlmReply, error_reply, text_reply
from grue.testing.llm_server import ScriptedLlmServer
from grue.tool_sessions.confined_folder import ConfinedFolder

ID = "0" * 24
TALK = {"offline": True, "mcp": False, "inputs": ["The lamp is in the case.", "What did I say?"]}


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The bundled example of a skill agent, without its server."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EXAMPLE.parent, tmp_path / "agent")
    (tmp_path / "agent" / "workspace" / "report.md").unlink(missing_ok=True)
    return "agent/agent.yaml"


@pytest.mark.slow
def test_one_text_is_a_list_of_one_and_the_same_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = completed("agent_loop", {**TALK, "inputs": "The lamp is in the case."})
    assert settings == completed("agent_loop", {**TALK, "inputs": ["The lamp is in the case."]})
    assert settings["inputs"] == ["The lamp is in the case."]
    sweep = tmp_path / "one.toml"
    sweep.write_text(
        'work = "agent_loop"\n[settings]\noffline = true\nmcp = false\n[grid]\ninputs = ["a", ["b"]]\n'
    )
    assert run_fleet(sweep, tmp_path / "fleet", workers=1)
    sweep.write_text('work = "agent_loop"\n[settings]\ninputs = 5\n')
    with pytest.raises(FleetError, match="inputs: expected `array`, got `int`"):
        read_sweep(sweep)


def played(tmp_path: Path, work: str, settings: dict[str, Any]) -> Attempted:
    job = Job(folder=tmp_path / ID, case=CaseFile(work=work, version="1", settings=settings))
    return play(job)


def completed(work: str, settings: dict[str, Any]) -> dict[str, Any]:
    return find_work(work).completed(Case(settings=settings)).settings


def test_the_skill_agent_is_scored_in_a_workspace_of_its_own(tmp_path: Path, agent: str) -> None:
    settings = completed(
        "skill_agent", {"agent": agent, "offline": True, "mcp": False, "expected": "heating"}
    )
    done = played(tmp_path, "skill_agent", settings)
    assert (done.end.error, done.end.scores["score"], done.committed) == ("", 1.0, True)
    assert done.end.spent.requests == done.end.scores["requests"] > 0
    attempt = tmp_path / ID / "attempt-1"
    written = {path.name for path in (attempt / "workspace").rglob("*") if path.is_file()}
    kept = {path.name for path in (tmp_path / "agent" / "workspace").rglob("*") if path.is_file()}
    assert written > kept == {"ada.csv", "bob.csv", "cleo.csv"}


@pytest.mark.slow
def test_the_skill_agent_goes_on_from_an_interrupted_attempt(tmp_path: Path, agent: str) -> None:
    settings = {"agent": agent, "offline": True, "mcp": False}
    first = played(tmp_path, "skill_agent", settings)
    folder = EpisodeFolder(tmp_path / ID)
    (folder.path / "commit.json").unlink()
    trace = folder.path / "attempt-1" / "trace.jsonl"
    lines = trace.read_bytes().splitlines(keepends=True)
    trace.write_bytes(b"".join(lines[: len(lines) // 2]))
    second = played(tmp_path, "skill_agent", settings)
    assert (second.committed, second.end.scores["score"]) == (True, first.end.scores["score"])
    assert b"EpisodeResumed" in (folder.path / "attempt-2" / "trace.jsonl").read_bytes()


def test_what_the_agent_works_on_makes_its_episode(tmp_path: Path, agent: str) -> None:
    settings = {"agent": agent, "offline": True}
    before = completed("skill_agent", settings)
    yaml = tmp_path / "agent" / "agent.yaml"
    yaml.write_text(yaml.read_text() + "\n# changed\n")
    (tmp_path / "agent" / "workspace" / "notes" / "ada.csv").write_text("day,hours\n")
    assert before["model"] == "grue-offline-script"
    with pytest.raises(FleetError, match="has a user or a password in it"):
        completed("skill_agent", {**settings, "base_url": "http://me:hidden-word@localhost/v1"})
    assert completed("skill_agent", settings)["content"] != before["content"]


@pytest.mark.slow
def test_a_second_sweep_of_a_program_sees_a_changed_workspace(tmp_path: Path, agent: str) -> None:
    file, place = tmp_path / "one.toml", tmp_path / "fleet"
    file.write_text(f'work = "skill_agent"\n[settings]\nagent = "{agent}"\noffline = true\nmcp = false\n')
    sweep = read_sweep(file)
    assert run_fleet(file, place, workers=1)
    assert read_plan(sweep, place).missing == 0
    (tmp_path / "agent" / "workspace" / "notes" / "ada.csv").write_text("day,hours\n")
    assert read_plan(sweep, place).missing == 1
    (tmp_path / "agent" / "workspace" / "notes" / "bob.csv").write_text("day,hours\n")
    assert run_fleet(file, place, workers=1)
    assert len([*FleetFolder(place).episodes()]) == 2


def test_a_workspace_with_the_runs_and_links_in_it_is_copied_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default workspace is the folder of `agent.yaml`, and the default folder of runs is in it."""
    monkeypatch.chdir(tmp_path)
    Path("agent.yaml").write_text("task: Write what you know.\n")
    Path("runs").mkdir()
    Path("runs", "list.txt").write_text("the user's own")
    Path("secret").write_text("not-to-be-read")
    place = tmp_path / "workspace"
    place.mkdir()
    Path("agent.yaml").rename(place / "agent.yaml")
    monkeypatch.chdir(place)
    (place / "notes").mkdir()
    (place / "notes" / "link").symlink_to(tmp_path / "secret")
    (place / "notes" / "gone").symlink_to("nowhere")
    os.mkfifo(place / "pipe")
    fleet = place / "runs" / "sweep"
    settings = completed("skill_agent", {"agent": "agent.yaml", "offline": True, "mcp": False})
    FleetFolder(fleet).write_manifest({})
    (place / "runs" / "20260101-000000").mkdir()
    (place / "runs" / "20260101-000000" / "trace.jsonl").write_text("")
    job = Job(folder=fleet / ID[:2] / ID, case=CaseFile(work="skill_agent", version="1", settings=settings))
    done = play(job)
    assert (done.end.error, done.committed) == ("", True)
    copy = job.folder / "attempt-1" / "workspace"
    assert {path.relative_to(copy).as_posix() for path in copy.rglob("*")} >= {"agent.yaml", "notes/link"}
    assert not list(copy.rglob("trace.jsonl"))
    assert not (copy / "pipe").exists()
    assert [(copy / "notes" / name).is_symlink() for name in ("link", "gone")] == [True, True]
    with pytest.raises(Exception, match=r"outside|link"):
        ConfinedFolder(copy).read("notes/link")
    os.utime(place / "agent.yaml", (1, 1))  # so that everything is read again
    again = completed("skill_agent", {"agent": "agent.yaml", "offline": True, "mcp": False})
    assert again["content"] == settings["content"], "runs make no new episodes"


@pytest.mark.parametrize(
    ("work", "reply", "outcome"),
    [
        ("zork", rate_limited(), "infrastructure"),
        ("zork", text_reply(""), "failed"),
        ("skill_agent", error_reply(401, "wrong key"), "infrastructure"),
        ("skill_agent", error_reply(400, "no such parameter"), "failed"),
    ],
)
def test_an_endpoint_that_cannot_answer_is_no_result(
    tmp_path: Path, agent: str, work: str, reply: LlmReply, outcome: str
) -> None:
    Path("pyproject.toml").write_text("[tool.grue.retry]\nmax_retries = 0\n")
    own: dict[str, Any] = {"turns": 1} if work == "zork" else {"agent": agent}
    with ScriptedLlmServer([reply] * 9) as llm:
        done = played(tmp_path, work, {"mcp": False, "base_url": llm.base_url, "model": "m", **own})
    assert (done.end.outcome, done.committed) == (outcome, outcome == "failed"), done.end.error


@pytest.mark.parametrize(("policy", "outcome"), [("raise", "infrastructure"), ("skip", "scored")])
def test_a_run_without_a_required_server_is_no_result(tmp_path: Path, policy: str, outcome: str) -> None:
    (tmp_path / "empty").mkdir()
    yaml = tmp_path / "agent.yaml"
    yaml.write_text(
        f"task: Say hello.\nworkspace: {tmp_path / 'empty'}\nmcp:\n  on_connect_failure: {policy}\n"
        "  servers:\n    s: {command: /no/such/server}\n"
    )
    done = played(tmp_path, "skill_agent", {"agent": str(yaml), "offline": True})
    assert done.end.outcome == outcome, done.end.error


@pytest.mark.slow
def test_the_agent_loop_is_scored_by_its_last_answer(tmp_path: Path) -> None:
    done = played(tmp_path, "agent_loop", completed("agent_loop", {**TALK, "expected": "lamp"}))
    assert (done.end.error, done.end.scores) == ("", {"score": 1.0, "requests": 2.0, "tool_calls": 0.0})
    assert "lamp" in (tmp_path / ID / "attempt-1" / "answer.txt").read_text()
    shutil.rmtree(tmp_path / ID)
    assert played(tmp_path, "agent_loop", {**TALK, "expected": "sword"}).end.scores["score"] == 0
    assert played(tmp_path, "agent_loop", {**TALK, "expected": 42}).end.scores["score"] == 0
    shutil.rmtree(tmp_path / ID)
    assert played(tmp_path, "agent_loop", TALK).end.scores == {"requests": 2.0, "tool_calls": 0.0}, (
        "an answer of which nothing was expected is no success"
    )


def test_the_projects_model_and_settings_make_the_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base_url = "http://127.0.0.1:9/v1"
    plain = completed("zork", {"base_url": base_url})
    assert (plain["model"], "project" in plain) == ("anthropic/claude-haiku-5.5", False)
    Path("pyproject.toml").write_text('[tool.grue.llm]\nagent_model = "other"\n')
    chosen = completed("zork", {"base_url": base_url})
    assert (chosen["model"], len(chosen["project"])) == ("other", 16)
    assert completed("zork", {"base_url": base_url, "model": "third"})["model"] == "third"


def test_the_agent_loop_keeps_to_the_settings_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text("[tool.grue.budget]\nepisode_requests = 1\n")
    done = played(tmp_path, "agent_loop", completed("agent_loop", TALK))
    assert (done.end.outcome, done.end.kind, done.end.spent.requests) == ("failed", "BudgetSpent", 1)


@pytest.mark.parametrize("work", ["zork", "agent_loop"])
def test_the_tool_lock_makes_the_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("servers.json").write_text('{"mcpServers": {"s": {"command": "true"}}}')
    case = {"offline": True, "mcp_config": "servers.json", **({} if work == "zork" else {"inputs": ["Hi"]})}
    ids = {completed(work, case).get("tool_lock")}
    for servers in ("{}", '{"s": {}}'):
        Path("mcp_tools.lock").write_text(f'{{"version": 1, "servers": {servers}}}')
        ids.add(completed(work, case)["tool_lock"])
    assert len(ids) == 3
    assert "tool_lock" not in completed(work, {**case, "mcp": False})
    Path("mcp_tools.lock").unlink()
    Path("pyproject.toml").write_text('[tool.grue.mcp]\ntool_lock = "refuse"\n')
    if work == "agent_loop":
        with pytest.raises(FleetError, match="There is no tool lock"):
            completed(work, case)


@pytest.mark.parametrize(
    ("work", "settings", "words"),
    [
        ("agent_loop", {**TALK, "inputs": []}, "`inputs` is empty"),
        ("agent_loop", {"offline": True}, "missing required field `inputs`"),
        ("agent_loop", {**TALK, "mcp": True, "mcp_config": "none.json"}, "none.json"),
        ("skill_agent", {"agent": "none.yaml"}, "Cannot read none.yaml: No such file"),
        ("skill_agent", {"agnt": "x"}, "unknown setting 'agnt'. Did you mean 'agent'"),
        ("skill_agent", {"zzz": "x"}, "unknown setting 'zzz'. Settings: seed, "),
        ("zork", {"base_url": "https://openrouter.ai/api/v1"}, "There is no key for https://openrouter.ai"),
        ("zork", {"base_url": "http://me:hidden-word@localhost/v1"}, "has a user or a password in it"),
        ("agent_loop", {**TALK, "base_url": "http://localhost/v1?api_key=x"}, "has 'api_key' in its query"),
        ("zork", {"turns": "many"}, "turns: expected `int`, got `str`"),
    ],
)
def test_what_cannot_be_played_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, settings: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GRUE_API_KEY", "OPENROUTER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(FleetError, match=words):
        completed(work, settings)


@pytest.mark.parametrize(
    ("answer", "expected", "there"),
    [
        ("Canberra it is", "canberra", True),
        ("117", "17", True),
        ("117", 17, False),
        ("17.5", 17, False),
        ("It is 17.", 17, True),
        ("-17", -17, True),
        ("-17", 17, False),
        ("It is 17.", 34 / 2, True),
        ("17.0", 34 / 2, True),
        ("117.0 or 17.5", 34 / 2, False),
        ("2.50 euros", 2.5, False),
    ],
)
def test_an_answer_contains_a_number_as_a_whole(answer: str, expected: str | float, there: bool) -> None:
    assert contains(answer, expected) is there
