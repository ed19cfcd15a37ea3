"""The episode's events as JSON Lines."""

import json
from pathlib import Path

import pytest
from recorded_turns import Called, Play, Tape

from grue.errors import TraceError
from grue.hosts.zork.facts import McpInitFailed, McpInitialized
from grue.messages import RunTurn
from grue.tracing.observers.run_folder import JsonLog


def test_each_event_is_a_flat_object_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = JsonLog(path, episode_id="ep-1")
    tape = Tape(log)
    tape.say(McpInitialized(server="thoughtbox"))
    run = RunTurn(turn=3, system="s", user="u", servers=("thoughtbox",))
    Play(tape, run, [[Called("thoughtbox.think", '{"n": 1}', content=["a"], took_s=0.25)], "look"])
    log.close()
    first, *events = [json.loads(line) for line in path.read_text().splitlines()]
    assert first == {
        "event_type": "mcp_manager_init",
        "level": "info",
        "message": "MCP Manager initialized",
        "time": "2026-09-21T14:13:20.000Z",
        "episode_id": "ep-1",
        "turn": 0,
    }
    (result,) = [event for event in events if event["event_type"] == "mcp_tool_result"]
    assert result == {
        "event_type": "mcp_tool_result",
        "level": "info",
        "message": "MCP tool result: thoughtbox.think",
        "time": "2026-09-21T14:13:20.250Z",
        "episode_id": "ep-1",
        "turn": 3,
        "tool_name": "thoughtbox.think",
        "server_name": "thoughtbox",
        "result_type": "list",
        "result_length": 5,
        "is_error": False,
        "duration_ms": 250.0,
        "iteration": 1,
    }


def test_an_event_is_in_the_file_before_the_next_message(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tape = Tape(JsonLog(path))
    for count in (1, 2):
        tape.say(McpInitFailed(error="line\nbreak"))
        assert path.read_bytes().count(b"\n") == count
    assert path.stat().st_mode & 0o777 == 0o600


def test_secrets_are_gone_before_an_event_is_written(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tape = Tape(JsonLog(path))
    tape.recorder.hide("API_KEY", "s3cr3t-value")
    tape.say(McpInitFailed(error="refused s3cr3t-value"))
    assert json.loads(path.read_text())["error"] == "refused [redacted:API_KEY]"


def test_an_unwritable_log_says_which_and_why(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").mkdir()
    with pytest.raises(TraceError, match=r"event log .*events\.jsonl: Is a directory"):
        JsonLog(tmp_path / "events.jsonl")


def test_a_closed_log_refuses_to_lose_an_event(tmp_path: Path) -> None:
    log = JsonLog(tmp_path / "events.jsonl")
    log.close()
    with pytest.raises(TraceError, match="Bad file descriptor"):
        Tape(log).say(McpInitFailed(error="x"))
