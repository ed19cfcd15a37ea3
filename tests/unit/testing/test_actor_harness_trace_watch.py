"""Assertions about traces: what they accept, and what their failures show."""

from pathlib import Path

import pytest

from grue import LlmSettings, Runner, TraceWriter, TurnRequest
from grue.messages import (
    CallTools,
    McpDisabled,
    OpenSession,
    RunTurn,
    ServerName,
    ServerNoted,
    SessionOpened,
    ToolReturned,
    TurnCompleted,
)
from grue.testing.actor_harness import TraceWatch
from grue.testing.fake_tools import FakeToolServer
from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("watched") / "trace.jsonl"


@pytest.fixture(scope="module")
def watch(trace_file: Path) -> TraceWatch:
    """A turn with one tool call."""
    watch = TraceWatch()
    writer = TraceWriter(trace_file, episode="watched")
    watch.recorder.add(writer)
    cave = FakeToolServer("cave")
    cave.answers("look", {"room": "\x1b[31ma dark cave"})
    with ScriptedLlmServer([tool_calls_reply(("cave.look", {})), text_reply("north")]) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        Runner(llm=settings, servers={"cave": cave}, recorder=watch.recorder).run_turn(
            TurnRequest(system="s", user="u")
        )
    writer.close()
    return watch


def test_what_happened_is_returned(watch: TraceWatch) -> None:
    assert watch.happened(SessionOpened, server="cave").server == "cave"
    assert watch.happened(ToolReturned, times=1).call_id
    watch.happened(McpDisabled, times=0)
    watch.never(McpDisabled)
    watch.never(SessionOpened, server="mine")
    assert len(watch.bodies(RunTurn, TurnCompleted)) == 2


def test_a_field_that_a_message_does_not_have_is_refused(watch: TraceWatch) -> None:
    with pytest.raises(TypeError, match="ToolReturned has no field 'calid'; it has "):
        watch.never(ToolReturned, calid="call_1")
    with pytest.raises(TypeError, match="SessionOpened has no field 'name'"):
        watch.happened(SessionOpened, times=0, name="cave")


def test_order_and_causes_hold(watch: TraceWatch) -> None:
    watch.in_order(RunTurn, OpenSession, SessionOpened, CallTools, ToolReturned, TurnCompleted)
    watch.caused_by(ToolReturned, CallTools)
    watch.caused_by(ToolReturned, RunTurn)


def test_a_failure_says_what_was_recorded_instead(watch: TraceWatch) -> None:
    with pytest.raises(AssertionError, match=r"SessionOpened\(server='mine'\) happened 0 times") as caught:
        watch.happened(SessionOpened, server="mine")
    assert "agent" in str(caught.value)
    assert "SessionOpened" in str(caught.value).splitlines()[1]
    with pytest.raises(AssertionError, match="ToolReturned happened 1 times, not 2 times"):
        watch.happened(ToolReturned, times=2)
    with pytest.raises(AssertionError, match="CallTools happened 1 times, not never"):
        watch.never(CallTools)
    with pytest.raises(AssertionError, match="no CallTools after ToolReturned"):
        watch.in_order(ToolReturned, CallTools)
    with pytest.raises(AssertionError, match=r"OpenSession was not caused by CallTools, but .* RunTurn"):
        watch.caused_by(OpenSession, CallTools)
    with pytest.raises(AssertionError, match="McpDisabled did not happen"):
        watch.caused_by(McpDisabled, RunTurn)


def test_text_of_tools_cannot_reach_the_terminal(watch: TraceWatch) -> None:
    with pytest.raises(AssertionError) as caught:
        watch.happened(McpDisabled)
    assert "a dark cave" in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_a_trace_without_messages_says_so() -> None:
    with pytest.raises(AssertionError, match="no messages"):
        TraceWatch().happened(RunTurn)


def test_a_trace_file_can_be_watched(watch: TraceWatch, trace_file: Path) -> None:
    read = TraceWatch.of(trace_file)
    read.in_order(RunTurn, TurnCompleted)
    assert [each.seq for each in read.envelopes] == [each.seq for each in watch.envelopes]


def test_a_field_of_a_message_may_be_called_kind() -> None:
    watch = TraceWatch()
    watch.recorder.record(ServerNoted(server=ServerName("cave"), kind="log", text="hm"), sender="cave")
    assert watch.happened(ServerNoted, kind="log").text == "hm"
    watch.never(ServerNoted, kind="bad_tool")
