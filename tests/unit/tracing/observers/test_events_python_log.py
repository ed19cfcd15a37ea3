"""The episode's events as records of a logger."""

import logging

import pytest
from recorded_turns import Called, Play, Tape

from grue.hosts.zork.facts import McpInitFailed, McpInitialized
from grue.messages import RunTurn
from grue.tracing.observers import events
from grue.tracing.observers.events import Event, LoggerObserver


def test_records_carry_the_required_extra(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="zork")
    tape = Tape(LoggerObserver(logging.getLogger("zork"), episode_id="ep-1"))
    run = RunTurn(turn=3, system="s", user="u", servers=("thoughtbox",))
    Play(tape, run, [[Called("thoughtbox.think", '{"n": 1}', outcome="timeout")], "look"])
    call = next(record for record in caplog.records if vars(record)["event_type"] == "mcp_tool_call")
    assert (call.levelname, call.getMessage()) == ("INFO", "MCP tool call: thoughtbox.think")
    extra = {name: vars(call)[name] for name in ("tool_name", "arguments", "iteration", "episode_id", "turn")}
    assert extra == {
        "tool_name": "thoughtbox.think",
        "arguments": {"n": 1},
        "iteration": 1,
        "episode_id": "ep-1",
        "turn": 3,
    }
    assert [record.levelname for record in caplog.records if record.levelno > logging.INFO] == ["WARNING"]


def test_levels_are_the_loggers_methods_and_percent_signs_are_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="zork")
    tape = Tape(LoggerObserver(logging.getLogger("zork")))
    tape.say(McpInitialized(server="a"), McpInitFailed(error="100 %s of %d"))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "MCP Manager initialized"),
        ("ERROR", "Failed to initialize MCP Manager: 100 %s of %d"),
    ]


@pytest.mark.parametrize("name", ["name", "args", "message", "asctime", "levelname", "exc_info"])
def test_names_that_logging_reserves_get_an_underscore(name: str, caplog: pytest.LogCaptureFixture) -> None:
    event = Event(
        at=0.0, level="info", event_type="x", message="m", episode_id="e", turn=1, fields={name: "value"}
    )
    logging.getLogger("zork").warning("m", extra=events._extra(event))
    assert vars(caplog.records[0])[f"{name}_"] == "value"
