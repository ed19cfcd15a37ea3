"""Real server processes that work on calls as tasks, in both forms that MCP has."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grue import (
    LlmSettings,
    Recorder,
    Runner,
    StdioServer,
    ToolClient,
    ToolPolicy,
    TraceWriter,
    TurnRequest,
)
from grue.errors import ToolCallTimedOut
from grue.messages import (
    JsonObject,
    ServerNoted,
    TaskCreated,
    ToolCalled,
    ToolCallResult,
    ToolReturned,
    ToolTask,
)
from grue.runtime.trace.format import TRACE_FILE
from grue.testing.actor_harness import TraceWatch
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tool_sessions.server_requests import ElicitationRequest

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

FORMS = ("experimental", "extension")
CALL = "tools/call research"
TASK = ToolTask(task_id="task-1", poll_s=0.1, ttl_s=60.0)


def task_server(form: str, states: str, *flags: str) -> StdioServer:
    args = ("-m", "grue.testing.task_server", "--form", form, "--states", states, *flags)
    return StdioServer(name="tasks", command=sys.executable, args=args)


async def one_of_them(request: ElicitationRequest) -> JsonObject:
    assert request.message == "Which one?"
    return {"which": "the first"}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Iterator[str]:
    with assert_nothing_left():
        yield request.param


@pytest.mark.slow
def test_a_task_is_followed_to_its_result(form: str, tmp_path: Path) -> None:
    watch, record = TraceWatch(), tmp_path / "record"
    server = task_server(form, "working,input_required,working,completed", "--record", str(record))
    with ToolClient({"tasks": server}, recorder=watch.recorder, elicit=one_of_them) as client:
        assert [tool.tool for tool in client.tools()] == ["research", "quick"]
        result = client.call("tasks.research", check=True)
        assert client.call("tasks.quick").content == "quick"
    assert '{"which": {"action": "accept", "content": {"which": "the first"}}}' in str(result.content)
    assert watch.bodies(TaskCreated) == [TaskCreated(server="tasks", tool="research", task=TASK)]
    watch.in_order(ToolCalled, TaskCreated, ToolReturned)
    assert "working, asked 1 times" in [each.text for each in watch.bodies(ServerNoted)]
    asked = record.read_text().splitlines()
    assert asked.count(CALL) == 1
    assert ("tasks/result task-1" if form == "experimental" else "tasks/update task-1") in asked


@pytest.mark.slow
def test_a_task_that_never_ends_is_cancelled_and_its_session_goes_on(form: str, tmp_path: Path) -> None:
    record = tmp_path / "record"
    with ToolClient({"tasks": task_server(form, "working", "--record", str(record))}) as client:
        client.connect()
        with pytest.raises(ToolCallTimedOut, match=r"timed out after 0\.5s"):
            client.call("tasks.research", timeout_s=0.5, check=True)
        assert client.call("tasks.quick").content == "quick"
    asked = record.read_text().splitlines()
    assert asked.index("tasks/cancel task-1") < asked.index("tools/call quick")


@pytest.mark.slow
def test_ctrl_c_in_a_question_of_a_task_cancels_the_task(form: str, tmp_path: Path) -> None:
    async def elicit(request: ElicitationRequest) -> JsonObject:
        raise KeyboardInterrupt

    record = tmp_path / "record"
    server = task_server(form, "input_required,completed", "--record", str(record))
    with ToolClient({"tasks": server}, elicit=elicit) as client, pytest.raises(KeyboardInterrupt):
        client.call("tasks.research")
    assert "tasks/cancel task-1" in record.read_text().splitlines()


def model(request: LlmRequest) -> Any:
    """Call the tool, then say what it answered."""
    told = [message["content"] for message in request.messages if message["role"] == "tool"]
    return text_reply(f"The tool said: {told[-1]}") if told else tool_calls_reply(("tasks.research", {}))


def killed_while_it_worked(trace: Path) -> None:
    """Leave of a trace what a process leaves that is killed after the task was created."""
    lines = trace.read_text().splitlines(keepends=True)
    last = next(number for number, line in enumerate(lines) if '"TaskCreated"' in line)
    trace.write_text("".join(lines[: last + 1]))


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.slow
def test_a_resumed_turn_asks_for_the_task_and_does_not_call_again(
    form: str, kept: bool, tmp_path: Path
) -> None:
    record, store = tmp_path / "record", tmp_path / "store"
    folder = tmp_path / "run"
    folder.mkdir()
    server = task_server(form, "working,completed", "--record", str(record), "--store", str(store))

    def runner(llm: ScriptedLlmServer, recorder: Recorder) -> Runner:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        policy = ToolPolicy(parking=True)
        return Runner(llm=settings, servers={"tasks": server}, recorder=recorder, tool_policy=policy)

    with ScriptedLlmServer(model) as llm:
        recorder = Recorder()
        with TraceWriter(folder / TRACE_FILE, episode="e") as writer:
            recorder.add(writer)
            with contextlib.closing(runner(llm, recorder)) as made:
                first = made.run_turn(TurnRequest(system="s", user="u"))
        killed_while_it_worked(folder / TRACE_FILE)
        if not kept:
            store.write_text("{}")
        watch = TraceWatch()
        with contextlib.closing(runner(llm, watch.recorder)) as made:
            outcome = made.resume(folder)
    assert first.tool_calls[0].settlement == outcome.tool_calls[0].settlement == "returned"
    (called,) = watch.bodies(ToolCalled)
    assert called.task == TASK
    assert record.read_text().splitlines().count(CALL) == 1
    result = outcome.tool_calls[0].result
    if kept:
        assert "found after 3 questions" in str(result.content)
    else:
        assert "interrupted; it may have taken effect" in str(result.error_message)


def test_a_tool_server_without_tasks_cannot_be_asked_for_one(tmp_path: Path) -> None:
    """The session's actor meets this when a turn is resumed with another kind of server."""
    import anyio

    from grue.messages import ServerName
    from grue.tool_sessions.connection import finish_task
    from grue.tool_sessions.failures import ToolRefusedError
    from grue.tool_sessions.function_tools import FunctionTools

    async def ask() -> ToolCallResult:
        tools = FunctionTools({"research": lambda: json.dumps(1)})
        async with tools.connect(ServerName("tasks")) as connection:
            return await finish_task(connection, "research", TASK, 1.0)

    with pytest.raises(ToolRefusedError, match="interrupted; it may have taken effect"):
        anyio.run(ask)
