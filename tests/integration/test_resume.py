"""`grue play --resume`: what it takes, what it refuses, and what reads the traces of resumed episodes."""

import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import bodies, start, wait_for_body, write_servers
from typer.testing import CliRunner, Result

from grue.cli.app import app
from grue.config.settings import GameConfiguration
from grue.hosts.servers import think
from grue.hosts.zork.facts import Decided, EpisodeEnded, EpisodeStarted
from grue.hosts.zork.games.house import HouseGame
from grue.hosts.zork.orchestrator import EpisodeSetup, ZorkOrchestratorV2, read_past
from grue.messages import RunTurn
from grue.runtime.trace.recorder import Recorder
from grue.testing import replay
from grue.testing.llm_server import ScriptedLlmServer, text_reply
from grue.tracing.facts import EpisodeResumed
from grue.tracing.observers.run_folder import RunFolder
from grue.tracing.reading import read_episode

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

ANSWER = json.dumps({"thinking": "why not", "action": "north", "new_objective": None})
Run = Callable[..., Result]

FAILS_NOW_AND_THEN = """
import os, sys
from pathlib import Path
count = Path(os.environ["SPAWNS"])
spawned = int(count.read_text() or 0) + 1
count.write_text(str(spawned))
if spawned in [int(n) for n in os.environ["FAILING"].split(",")]:
    sys.exit("spawn %d fails" % spawned)
os.execv(sys.executable, [sys.executable, "-I", os.environ["SERVER"]])
"""


@pytest.fixture
def grue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `grue ARGS` in this process, in an empty folder, without keys."""
    monkeypatch.chdir(tmp_path)
    for name in ("GRUE_API_KEY", "OPENROUTER_API_KEY", "OPENAI_API_KEY", "GRUE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def llm() -> Iterator[ScriptedLlmServer]:
    """An endpoint that answers `north` to everything."""
    with ScriptedLlmServer(lambda _request: text_reply(ANSWER)) as server:
        yield server


def play_offline(grue: Run, folder: str, turns: int, *more: str) -> Path:
    played = grue("play", "--offline", "--seed", "7", "--turns", turns, "--run-dir", folder, "-q", *more)
    assert played.exit_code == 0, played.output
    return Path(folder)


def cut_after(folder: Path, kind: type, turn: int) -> None:
    """Leave the run folder as a kill right after a message of this kind and turn would have."""
    trace = folder / "trace.jsonl"
    lines = trace.read_bytes().splitlines(keepends=True)
    place = next(
        number
        for number, line in enumerate(lines)
        if f'"type":"{kind.__name__}"'.encode() in line and json.loads(line)["body"]["turn"] == turn
    )
    trace.write_bytes(b"".join(lines[: place + 1]) + b'{"seq":')
    with (folder / "events.jsonl").open("ab") as events:
        events.write(b'{"event_ty')
    (folder / "result.json").unlink()


def result_of(folder: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return parsed


def says(result: Result, status: int, *words: str) -> None:
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    for word in words:
        assert word in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "given",
    [
        ("--seed", "7"),
        ("--game", "house"),
        ("--offline",),
        ("--model", "m"),
        ("--base-url", "http://127.0.0.1:9/v1"),
        ("--mcp-config", "mcp.json"),
        ("--no-mcp",),
        ("--run-dir", "other"),
    ],
    ids=lambda given: given[0],
)
def test_options_that_would_make_it_another_episode_are_refused(grue: Run, given: tuple[str, ...]) -> None:
    told = grue("play", "--resume", "run", "--turns", "3", *given)
    says(told, 2, f"--resume uses the options of the first run: remove {given[0]}.")


def test_a_folder_that_is_no_run_is_refused(grue: Run) -> None:
    Path("empty").mkdir()
    Path("other").mkdir()
    Path("other/trace.jsonl").write_text("hello\n")
    says(grue("play", "--resume", "nowhere"), 1, "nowhere")
    says(grue("play", "--resume", "empty"), 1, "Cannot read the trace file empty/trace.jsonl")
    says(grue("play", "--resume", "other"), 1, "is not a grue trace")
    assert [path.name for path in Path("empty").iterdir()] == []


@pytest.mark.slow
def test_an_episode_that_is_still_being_played_is_refused(grue: Run) -> None:
    folder = play_offline(grue, "run", 1)
    before = read_episode(folder).envelopes[-1].seq
    with RunFolder(folder, Recorder(), episode_id=read_episode(folder).header.episode, resume=True):
        says(grue("play", "--resume", "run", "--turns", "2"), 1, "is still being played")
    assert read_episode(folder).envelopes[-1].seq == before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "was not made by `grue play`. Resume it with the program that made it."),
        ({"game": 7}, "does not hold valid options of `grue play`: game: Expected `str`, got `int`."),
    ],
)
def test_an_episode_of_another_host_is_refused(grue: Run, settings: dict[str, Any], words: str) -> None:
    recorder = Recorder()
    started = EpisodeStarted(episode_id="e", game="g", game_hash="h", seed=1, model="m", settings=settings)
    with RunFolder(Path("run"), recorder, episode_id="e"):
        recorder.record(started, sender="host")
    says(grue("play", "--resume", "run"), 2, words)


@pytest.mark.slow
def test_another_version_of_the_game_leaves_everything_as_it_was(
    grue: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = play_offline(grue, "run", 2)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(HouseGame, "fingerprint", "another")
    says(grue("play", "--resume", "run", "--turns", "3"), 2, "another version of it: The House")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("run", ["run", "run/trace.jsonl"])
@pytest.mark.slow
def test_more_turns_and_another_time_limit_may_be_asked_for(grue: Run, run: str) -> None:
    folder = play_offline(grue, "run", 2)
    told = grue("play", "--resume", run, "--turns", "4", "--turn-timeout", "30")
    assert told.exit_code == 0, told.output
    assert "turn_limit: 5 of 100 points, 4 turns" in told.stdout
    limits = [body["limits"]["turn_timeout_s"] for body in bodies(folder, "RunTurn")]
    assert limits == [1800.0, 1800.0, 30.0, 30.0]


@pytest.mark.slow
def test_the_result_and_the_logs_are_of_the_whole_episode(grue: Run) -> None:
    whole = play_offline(grue, "whole", 6)
    folder = play_offline(grue, "run", 6)
    cut_after(folder, Decided, 3)
    assert grue("play", "--resume", "run", "-q").exit_code == 0
    once, twice = result_of(whole), result_of(folder)
    same = ("commands", "score", "turns", "requests", "usage", "tool_calls", "reason", "seed", "scripted")
    assert {name: once[name] for name in same} == {name: twice[name] for name in same}
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    turns = [event["turn"] for event in events]
    assert {*turns} == {*range(7)}
    log = (folder / "episode.log").read_text()
    assert log.endswith("\n")
    assert "[INFO] Turn 0: " in log
    (resumed,) = bodies(folder, "EpisodeResumed")
    assert resumed["turns"] == 3
    trace = read_episode(folder).envelopes
    place = next(number for number, each in enumerate(trace) if isinstance(each.body, EpisodeResumed))
    assert isinstance(trace[place - 1].body, Decided), "nothing comes before it"
    assert trace[place].t >= trace[place - 1].t


@pytest.mark.slow
def test_what_reads_traces_reads_resumed_ones(grue: Run) -> None:
    whole, folder = play_offline(grue, "whole", 5), play_offline(grue, "run", 5)
    cut_after(folder, RunTurn, 4)
    assert grue("play", "--resume", "run", "-q").exit_code == 0
    assert replay(folder) == 6, "five, and the one that was cut off"
    assert grue("trace", "replay", folder).stdout.startswith("identical: 6 turns")
    shown = grue("trace", "show", folder)
    assert (shown.exit_code, "EpisodeResumed" in shown.stdout) == (0, True)
    stats = json.loads(grue("trace", "stats", folder, "--json").stdout)
    assert stats["resumptions"] == 1
    assert "Traceback" not in grue("trace", "diff", whole, folder).output
    page = grue("trace", "html", folder, "--out", "page.html")
    assert (page.exit_code, Path("page.html").stat().st_size > 0) == (0, True)


@pytest.mark.slow
def test_json_and_quiet_output(grue: Run) -> None:
    play_offline(grue, "run", 2)
    entries = [
        json.loads(line)
        for line in grue("play", "--resume", "run", "--turns", "4", "--json").stdout.splitlines()
    ]
    turns = [entry for entry in entries if entry["type"] == "turn"]
    assert [entry["turn"] for entry in turns] == [3, 4]
    assert entries[-1]["type"] == "end"
    assert (entries[-1]["turns"], entries[-1]["reason"]) == (4, "turn_limit")
    quiet = grue("play", "--resume", "run", "--turns", "5", "--quiet").stdout
    assert quiet.startswith("turn_limit: ")
    assert len(quiet.splitlines()) == 3


@pytest.mark.slow
def test_it_is_played_where_it_was_started_whence_ever_it_is_resumed(
    grue: Run, llm: ScriptedLlmServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Settings of the project, the servers' file and what is in it are found as they were."""
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(think.__file__, project / "server.py")
    write_servers(project / "mine.json", mine={"command": sys.executable, "args": ["-I", "server.py"]})
    (project / "pyproject.toml").write_text("[tool.zorkgpt.mcp]\nmax_tool_iterations = 3\n")
    monkeypatch.chdir(project)
    played = grue(
        *("play", "--base-url", llm.base_url, "--model", "m", "--mcp-config", "mine.json"),
        *("--turns", "1", "--run-dir", "../run", "-q"),
    )
    assert played.exit_code == 0, played.output
    monkeypatch.chdir(tmp_path)
    resumed = grue("play", "--resume", "run", "--turns", "2", "-q")
    assert resumed.exit_code == 0, resumed.output
    assert Path.cwd() == tmp_path
    runs = bodies(tmp_path / "run", "RunTurn")
    assert [(run["servers"], run["limits"]["max_tool_iterations"]) for run in runs] == [(["mine"], 3)] * 2
    assert [body["kind"] for body in bodies(tmp_path / "run", "Decided")] == ["answered"] * 2

    # Where that folder is gone it is played in the one that it is resumed from.
    monkeypatch.chdir(project.rename(tmp_path / "moved"))
    assert grue("play", "--resume", "../run", "--turns", "3", "-q").exit_code == 0
    (last,) = bodies(tmp_path / "run", "RunTurn")[2:]
    assert (last["servers"], last["limits"]["max_tool_iterations"]) == (["mine"], 3)


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("dfrotz") or Path("/usr/games/dfrotz").exists()),
    reason="dfrotz is not installed: apt-get install frotz",
)
def test_real_zork_comes_back(
    grue: Run, zork1: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(zork1, project / "zork1.z3")
    monkeypatch.chdir(project)
    options = ("--game", "zork1.z3", "--no-mcp")
    whole = play_offline(grue, "whole", 40, *options)
    folder = play_offline(grue, "run", 40, *options)
    cut_after(folder, RunTurn, 30)
    monkeypatch.chdir(tmp_path)
    told = grue("play", "--resume", "project/run", "-q")
    assert told.exit_code == 0, told.output
    once, twice = result_of(project / whole), result_of(project / folder)
    assert once["score"] > 0
    assert (once["commands"], once["score"]) == (twice["commands"], twice["score"])
    assert bodies(project / whole, "Observed")[-1] == bodies(project / folder, "Observed")[-1]


@pytest.mark.slow
def test_after_ctrl_c_it_goes_on(grue: Run, tmp_path: Path) -> None:
    whole = play_offline(grue, "whole", 9)
    program = start("play", "--offline", "--seed", "7", "--turns", "9", "--run-dir", "run", cwd=tmp_path)
    wait_for_body(tmp_path / "run", "Decided")
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=150)
    assert program.returncode == 130
    folder = tmp_path / "run"
    assert bodies(folder, "EpisodeEnded")[-1]["reason"] == "interrupted"
    assert grue("play", "--resume", "run", "-q").exit_code == 0
    once, twice = result_of(whole), result_of(folder)
    assert (once["commands"], once["score"], twice["turns"]) == (twice["commands"], twice["score"], 9)
    assert [body["turn"] for body in bodies(folder, "Decided")] == [*range(1, 10)]


def flaky(failing: str) -> Path:
    """Write a servers' file whose server fails at these spawns; they are counted in the file `count`."""
    Path("count").write_text("")
    env = {"SPAWNS": str(Path("count").absolute()), "FAILING": failing, "SERVER": think.__file__}
    entry = {"command": sys.executable, "args": ["-c", FAILS_NOW_AND_THEN], "env": env}
    return write_servers(Path("mcp.json"), flaky=entry)


def play_flaky(grue: Run, llm: ScriptedLlmServer, failing: str, turns: int) -> Path:
    played = grue(
        *("play", "--base-url", llm.base_url, "--model", "m", "--mcp-config", flaky(failing)),
        *("--turns", turns, "--run-dir", "run", "-q"),
    )
    assert played.exit_code == 0, played.output
    return Path("run")


@pytest.mark.slow
def test_p27_a_server_that_was_given_up_stays_so(grue: Run, llm: ScriptedLlmServer) -> None:
    folder = play_flaky(grue, llm, "2,3", 3)
    cut_after(folder, Decided, 3)
    config = GameConfiguration(mcp_enabled=True, mcp_config_file="mcp.json")
    again = ZorkOrchestratorV2("e", config, EpisodeSetup(game=HouseGame(), past=read_past(folder)))
    assert again.mcp_manager.is_disabled
    assert grue("play", "--resume", "run", "--turns", "5", "-q").exit_code == 0
    assert Path("count").read_text() == "3", "no spawn since"
    assert [body["kind"] for body in bodies(folder, "Decided")] == ["answered", *["degraded"] * 4]
    disabled = bodies(folder, "McpDisabled")
    assert [body["newly"] for body in disabled] == [True, False, False, False]
    assert len({body["reason"] for body in disabled}) == 1, "the cause is told in every turn"
    assert "tools" not in llm.requests[-1].body
    assert replay(folder) == 5


@pytest.mark.parametrize(
    ("failing", "spawns", "kinds"),
    [("3", "5", ["answered"] * 4), ("3,4", "4", ["answered", "answered", "degraded", "degraded"])],
    ids=["the retry works", "the retry fails"],
)
@pytest.mark.slow
def test_d12_p26_a_resumed_turn_is_never_the_first(
    grue: Run, llm: ScriptedLlmServer, failing: str, spawns: str, kinds: list[str]
) -> None:
    """A server that had worked before the kill is tried twice, and its failure ends nothing."""
    folder = play_flaky(grue, llm, failing, 2)
    cut_after(folder, Decided, 2)
    resumed = grue("play", "--resume", "run", "--turns", "4", "-q")
    assert resumed.exit_code == 0, resumed.output
    assert Path("count").read_text() == spawns
    assert [body["kind"] for body in bodies(folder, "Decided")] == kinds
    said = [type(envelope.body).__name__ for envelope in read_episode(folder).envelopes]
    since = said.index("EpisodeResumed")
    assert (said[since - 1], said.count("EpisodeResumed")) == ("Decided", 1)
    assert "McpInitialized" in said[since:], "the servers' file is read anew"
    log = (folder / "episode.log").read_text()
    assert log.count("MCP session connect failed, retrying") == 1
    assert log.count("MCP retry failed, disabling MCP for episode") == (failing == "3,4")
    assert replay(folder) == 4


@pytest.mark.slow
def test_a_server_that_never_worked_is_tried_as_at_first(grue: Run, llm: ScriptedLlmServer) -> None:
    """R6.1 holds for the first connect of an episode, whichever process makes it; then it may be mended."""
    refused = grue(
        *("play", "--base-url", llm.base_url, "--model", "m", "--mcp-config", flaky("1,2")),
        *("--turns", "2", "--run-dir", "run", "-q"),
    )
    says(refused, 1, "Failed to start MCP server 'flaky'")
    says(grue("play", "--resume", "run", "-q"), 1, "Failed to start MCP server 'flaky'")
    assert grue("play", "--resume", "run", "-q").exit_code == 0
    folder = Path("run")
    assert Path("count").read_text() == "4"
    assert result_of(folder)["turns"] == 2
    reasons = [e.body.reason for e in read_episode(folder).envelopes if isinstance(e.body, EpisodeEnded)]
    assert reasons == ["failed", "failed", "turn_limit"]


@pytest.mark.slow
def test_a_larger_limit_that_a_resume_was_given_holds_for_the_next_one(grue: Run) -> None:
    assert grue("play", "--offline", "--turns", "2", "--run-dir", "run", "--quiet").exit_code == 0
    assert grue("play", "--resume", "run", "--turns", "4", "--quiet").exit_code == 0
    again = grue("play", "--resume", "run", "--quiet")
    assert again.exit_code == 0
    assert json.loads((Path("run") / "result.json").read_text())["turns"] == 4
