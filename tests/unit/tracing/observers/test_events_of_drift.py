"""What a log tells of tools that are not as they were approved, or not as they should be."""

import pytest
from recorded_turns import Tape

from grue.messages import PrewarmLost, ServerEnded, ServerName, ServerNoted, SessionPrewarmed, ToolDrifted
from grue.tracing.observers.events import EventFeed

A = ServerName("a")
CHANGED = ToolDrifted(server=A, tool="t", change="changed", parts=("description",), refused=True)
REMOVED = ToolDrifted(server=A, tool="u", change="removed")


def test_a_drift_is_told_once_an_episode_though_every_session_notes_it() -> None:
    tape, feed = Tape(), EventFeed("e")
    for turn in (1, 2):
        tape.say(CHANGED, turn=turn)
        tape.say(REMOVED, turn=turn)
    events = [event for envelope in tape.envelopes for event in feed.feed(envelope)]
    assert [(event.level, event.event_type, event.turn, event.message) for event in events] == [
        (
            "warning",
            "mcp_tool_drift",
            1,
            "MCP tool drift: a.t has another description than was approved, so it is not offered",
        ),
        ("warning", "mcp_tool_drift", 1, "MCP tool drift: a.u was approved and is no longer listed"),
    ]
    assert events[0].fields == {
        "tool_name": "a.t",
        "server_name": "a",
        "change": "changed",
        "parts": ["description"],
        "refused": True,
    }


@pytest.mark.parametrize(
    "text", ["t: its output schema is not used: no", "t: arguments of more than 9 bytes: not checked"]
)
def test_a_schema_that_cannot_be_used_is_a_warning(text: str) -> None:
    tape = Tape()
    tape.say(ServerNoted(server=A, kind="bad_schema", text=text))
    (event,) = EventFeed("e").feed(tape.envelopes[0])
    assert (event.level, event.event_type) == ("warning", "mcp_bad_schema")
    assert event.message == f"MCP server 'a', tool {text}"


def test_a_session_lost_before_its_turn_is_a_warning_and_one_that_just_ended_is_nothing() -> None:
    tape, feed = Tape(), EventFeed("e")
    tape.say(
        SessionPrewarmed(server=A),
        PrewarmLost(server=A, cause="its process has ended"),
        ServerEnded(server=A),
    )
    (event,) = [event for envelope in tape.envelopes for event in feed.feed(envelope)]
    assert (event.level, event.event_type) == ("warning", "mcp_spare_lost")
    assert event.message == (
        "MCP session prepared ahead was lost, opening another one: its process has ended"
    )
    assert event.fields == {"server_name": "a", "error": "its process has ended"}


def test_an_elicit_function_that_failed_is_a_warning() -> None:
    tape = Tape()
    tape.say(ServerNoted(server=A, kind="bad_elicit", text="the host could not ask for the input: no window"))
    (event,) = EventFeed("e").feed(tape.envelopes[0])
    assert (event.level, event.event_type) == ("warning", "mcp_bad_elicit")
    assert event.message == (
        "MCP server 'a' got no answer from the user: the host could not ask for the input: no window"
    )
