"""Whole episodes from the command line: what a new user runs first."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from commands import bodies, faulty, group_is_gone, grue, server_pids, trace_of, write_servers
from patient_turns import wait_until

from grue.messages import SessionClosed, SessionOpened
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")


def result(folder: Path) -> dict[str, object]:
    parsed: dict[str, object] = json.loads((folder / "result.json").read_text())
    return parsed


@pytest.mark.slow
def test_the_house_is_won_offline_with_a_fresh_process_every_turn(tmp_path: Path) -> None:
    played = grue("play", "--offline", "--seed", "7", "--run-dir", "run", cwd=tmp_path)
    assert played.returncode == 0, played.stderr
    assert "won: 100 of 100 points" in played.stdout
    assert "scripted, no LLM" in played.stdout
    assert "\x1b" not in played.stdout, "a pipe gets plain text"
    ended = result(tmp_path / "run")
    pids = server_pids(tmp_path / "run")
    assert len(pids) == len(set(pids)) == ended["turns"]
    assert ended["tool_calls"] == len(bodies(tmp_path / "run", "ToolReturned")) > 0
    assert all(group_is_gone(pid, 0) for pid in pids)


def test_p6_p9_every_session_of_an_episode_is_opened_once_and_closed_once(tmp_path: Path) -> None:
    grue("play", "--offline", "--turns", "3", "--run-dir", "run", "--quiet", cwd=tmp_path)
    said = [e.body for e in trace_of(tmp_path / "run").envelopes]
    order = [type(body) for body in said if isinstance(body, SessionOpened | SessionClosed)]
    assert order == [SessionOpened, SessionClosed] * 3
    assert {body.ending for body in said if isinstance(body, SessionClosed)} == {"polite"}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_commands_and_another_seed_another_puzzle(tmp_path: Path) -> None:
    for folder, seed in (("one", "7"), ("two", "7"), ("three", "8")):
        grue("play", "--offline", "--seed", seed, "--run-dir", folder, "--quiet", cwd=tmp_path)
    one, two, three = (result(tmp_path / folder) for folder in ("one", "two", "three"))
    assert (one["commands"], one["score"]) == (two["commands"], two["score"])
    assert one["score"] == three["score"] == 100
    assert one["commands"] != three["commands"]


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("dfrotz") or Path("/usr/games/dfrotz").exists()),
    reason="dfrotz is not installed: apt-get install frotz",
)
def test_real_zork_is_played_twice_alike(tmp_path: Path, zork1: Path) -> None:
    for folder in ("one", "two"):
        played = grue(
            *("play", "--game", str(zork1), "--offline", "--seed", "7", "--run-dir", folder), cwd=tmp_path
        )
        assert played.returncode == 0, played.stderr
    one, two = (result(tmp_path / folder) for folder in ("one", "two"))
    score = one["score"]
    assert isinstance(score, int)
    assert score >= 55
    assert one["tool_calls"]
    assert (one["commands"], score) == (two["commands"], two["score"])
    assert bodies(tmp_path / "one", "EpisodeStarted")[0]["game_hash"] != ""


def test_an_npm_server_is_called_for_real(tmp_path: Path) -> None:
    servers = os.environ.get("GRUE_NPM_SERVERS")
    package = "@modelcontextprotocol/server-sequential-thinking"
    if not servers or not shutil.which("node"):
        pytest.skip(f"set GRUE_NPM_SERVERS to a folder with {package} installed, and have node")
    entry = Path(servers) / "node_modules" / package / "dist" / "index.js"
    config = write_servers(tmp_path / "mcp_config.json", thinking={"command": "node", "args": [str(entry)]})
    played = grue(
        *("play", "--offline", "--seed", "7", "--turns", "12", "--mcp-config", str(config)),
        *("--run-dir", "run"),
        cwd=tmp_path,
    )
    assert played.returncode == 0, played.stderr
    called = bodies(tmp_path / "run", "ToolCalled")
    assert {body["tool"] for body in called} == {"sequentialthinking"}
    returned = bodies(tmp_path / "run", "ToolReturned")
    assert len(returned) == len(called)
    assert not any(body["result"]["is_error"] for body in returned)


@pytest.mark.slow
def test_any_compatible_endpoint_plays_the_same_turn(tmp_path: Path) -> None:
    thought = {"thought": "A gate.", "thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": False}
    answer = text_reply(json.dumps({"thinking": "why not", "action": "north", "new_objective": None}))
    with ScriptedLlmServer([tool_calls_reply(("mind.think", thought)), answer, answer]) as server:
        played = grue(
            *("play", "--base-url", server.base_url, "--model", "any", "--turns", "2"),
            *("--run-dir", "run"),
            cwd=tmp_path,
        )
        asked = [request.body for request in server.requests]
    assert played.returncode == 0, played.stderr
    assert "scripted" not in played.stdout
    assert [len(body["messages"]) for body in asked] == [2, 4, 2]
    assert all(body["tools"] and "response_format" not in body for body in asked)
    assert result(tmp_path / "run")["commands"] == ["north", "north"]


def test_p48_without_tools_the_request_requires_the_answers_shape(tmp_path: Path) -> None:
    """MCP off: no tools, `response_format`, no configuration read, no `mcp` imported."""
    answer = text_reply(json.dumps({"thinking": "why not", "action": "north", "new_objective": None}))
    (tmp_path / "mcp_config.json").write_text("this is not JSON")
    with ScriptedLlmServer([answer]) as server:
        played = grue(
            *("play", "--base-url", server.base_url, "--model", "any", "--turns", "1", "--no-mcp"),
            *("--run-dir", "run"),
            cwd=tmp_path,
            before="import atexit, sys; atexit.register(lambda: print('mcp' in sys.modules))",
        )
        (asked,) = [request.body for request in server.requests]
    assert played.returncode == 0, played.stderr
    assert "tools" not in asked
    assert asked["response_format"]["type"] == "json_schema"
    assert played.stdout.splitlines()[-1] == "False"


@pytest.mark.slow
def test_r2_6_servers_that_are_ignored_and_keys_without_effect_are_named(tmp_path: Path) -> None:
    alone = {**faulty(), "autoApprove": ["*"]}
    config = write_servers(tmp_path / "mcp.json", faulty={**alone, "oauth": {}}, two=alone)
    played = grue(
        *("play", "--offline", "--turns", "1", "--mcp-config", str(config), "--run-dir", "run"), cwd=tmp_path
    )
    assert played.returncode == 0, played.stderr
    said = " ".join(played.stdout.split())
    assert (
        "! only faulty is used; ignored: two MCP server 'faulty': grue does not use the key 'oauth'." in said
    )
    log = (tmp_path / "run" / "episode.log").read_text()
    assert "[WARNING] Turn 0: Only the first MCP server is used, 'faulty'; ignored: two\n" in log


@pytest.mark.slow
def test_json_is_one_object_a_line(tmp_path: Path) -> None:
    played = grue("play", "--offline", "--seed", "7", "--turns", "12", "--json", cwd=tmp_path)
    entries = [json.loads(line) for line in played.stdout.splitlines()]
    assert [entry["type"] for entry in entries] == ["episode", *["turn"] * 12, "end"]
    assert entries[0]["scripted"] is True
    thinking = next(entry for entry in entries if entry.get("tool_calls"))
    assert thinking["tool_calls"][0]["name"] == "mind.think"
    assert entries[-1]["reason"] == "turn_limit"


@pytest.mark.slow
def test_quiet_says_only_how_it_ended(tmp_path: Path) -> None:
    played = grue("play", "--offline", "--turns", "2", "--quiet", cwd=tmp_path)
    lines = played.stdout.split("\n")
    assert lines[0].startswith("turn_limit: ")
    assert lines[2].startswith("To go on: ")
    assert lines[2].endswith(" --turns 4")
    assert len(lines) == 4


@pytest.mark.slow
def test_a_run_folder_is_its_owners_and_complete(tmp_path: Path) -> None:
    grue("play", "--offline", "--turns", "2", "--quiet", cwd=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    assert {path.name for path in folder.iterdir()} == {
        "trace.jsonl",
        "events.jsonl",
        "episode.log",
        "result.json",
    }
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    shown = grue("trace", "show", str(folder), "--width", "100", cwd=tmp_path)
    assert shown.returncode == 0
    assert "SessionOpened" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 100


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    from commands import command, environment

    program = subprocess.Popen(
        command("play", "--offline", "--turns", "5"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.close()
    complaint = program.stderr.read()
    program.stderr.close()
    assert program.wait(60) == 1
    assert "Traceback" not in complaint


@pytest.mark.slow
def test_a_secret_in_the_servers_environment_is_nowhere_in_the_run_folder(tmp_path: Path) -> None:
    secret = 'planted-7c1d9e-/"quoted"-value'
    entry = {**faulty(), "env": {"DEMO_TOKEN": secret}}
    config = write_servers(tmp_path / "mcp_config.json", faulty=entry)
    call = tool_calls_reply(("faulty.environ", {"name": "DEMO_TOKEN"}))
    answer = text_reply(json.dumps({"thinking": f"it is {secret}", "action": "north", "new_objective": None}))
    with ScriptedLlmServer([call, answer]) as server:
        played = grue(
            *("play", "--base-url", server.base_url, "--model", "any", "--turns", "1"),
            *("--mcp-config", str(config), "--run-dir", "run"),
            cwd=tmp_path,
            GRUE_API_KEY="planted-key-4711-0815",
        )
    assert played.returncode == 0, played.stderr
    everything = "".join(path.read_text() for path in (tmp_path / "run").iterdir()) + played.stdout
    assert "[redacted:DEMO_TOKEN]" in everything
    for form in (secret, json.dumps(secret)[1:-1], "planted-key-4711-0815", "planted-7c1d9e"):
        assert form not in everything


NOTE_SPAWNS = """
import atexit, sys

spawned = []

def watch(event, args):
    if event == "subprocess.Popen" and "grue-guard" not in args[1]:
        spawned.append("mcp" in sys.modules)

sys.addaudithook(watch)
atexit.register(lambda: print(spawned, "mcp" in sys.modules, file=sys.stderr))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [(), pytest.param(("--start=after_turn",), marks=pytest.mark.slow)], ids=["plain", "ahead"]
)
def test_cold_the_first_server_starts_before_what_talks_to_it_is_imported(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """So that both start up at the same time."""
    played = grue("play", "--offline", "--turns", "1", *flags, cwd=tmp_path, before=NOTE_SPAWNS)
    assert played.returncode == 0, played.stderr
    spawned, _, imported = played.stderr.strip().splitlines()[-1].rpartition(" ")
    assert json.loads(spawned.lower())[0] is False
    assert imported == "True", "the program is another one by now: look for what it imports"


@pytest.mark.slow
def test_with_spares_beside_each_turn_uses_what_was_started_beside_the_one_before(
    tmp_path: Path,
) -> None:
    played = grue(
        "play", "--offline", "--turns", "3", "--start=beside_turn", "--run-dir", "run", cwd=tmp_path
    )
    assert played.returncode == 0, played.stderr
    opened, spares = ([body["pid"] for body in bodies(tmp_path / "run", kind)] for kind in SESSIONS)
    assert len(opened) == 3
    assert opened[1:] == spares[:2]


@pytest.mark.slow
def test_with_spares_beside_the_next_turns_server_is_ready_before_a_turns_model_has_answered(
    tmp_path: Path,
) -> None:
    def answer(_request: LlmRequest) -> LlmReply:
        wait_until(lambda: (tmp_path / "run" / "trace.jsonl").read_bytes().count(b'"SpareReady"') >= asked())
        return text_reply(json.dumps({"thinking": "why not", "action": "north", "new_objective": None}))

    with ScriptedLlmServer(answer) as server:

        def asked() -> int:
            return len(server.requests)

        played = grue(
            *("play", "--base-url", server.base_url, "--model", "any", "--turns", "2", "--start=beside_turn"),
            *("--run-dir", "run"),
            cwd=tmp_path,
        )
    assert played.returncode == 0, played.stderr
    assert result(tmp_path / "run")["commands"] == ["north", "north"]
    assert len(bodies(tmp_path / "run", "TurnCompleted")) == 2


SESSIONS = ("SessionOpened", "SpareReady")  # the tag of `SessionPrewarmed` on file
