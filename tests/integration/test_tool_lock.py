"""A server whose tools are not as they were approved, in real turns under each policy."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from transport_servers import faulty
from typed_server import typed_server

from grue import (
    ApprovalQuestion,
    FailurePolicy,
    LlmSettings,
    Runner,
    StdioServer,
    ToolPolicy,
    ToolRule,
    TurnOutcome,
    TurnRequest,
)
from grue.config import tool_lock_file
from grue.config.settings import GameConfiguration
from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import ToolChanged, ToolNotFound
from grue.hosts.zork.agent import ZorkAgent
from grue.hosts.zork.client import LLMClient
from grue.hosts.zork.manager import MCPManager
from grue.messages import (
    AnyMessage,
    ServerNoted,
    SessionOpened,
    ToolCalled,
    ToolDefinition,
    ToolDrifted,
    ToolsChanged,
)
from grue.policies import OnToolDrift
from grue.protocol.tools.lock import ToolLock, lock_of
from grue.protocol.tools.results import NOT_AS_DECIDED
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tracing.facts import Fact
from grue.tracing.observers.events import Event, EventFeed

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

ECHO = tool_calls_reply(("faulty.echo", {"text": "hello"}))
ECHO_TWICE = tool_calls_reply(("faulty.echo", {"text": "hello"}), ("faulty.echo", {"text": "again"}))
DONE = text_reply("done")
FIRST = ["faulty.echo", "faulty.environ", "faulty.fail"]


class Turns:
    """Turns with one runner: their outcomes, what was said, what the model was asked."""

    def __init__(self, server: StdioServer, replies: Any, *, turns: int = 1, **options: Any) -> None:
        self.said: list[AnyMessage | Fact] = []
        self.events: list[Event] = []
        self._feed = EventFeed("e")
        with ScriptedLlmServer(replies) as llm, assert_nothing_left():
            settings = LlmSettings(base_url=llm.base_url, model="m")
            runner = Runner(llm=settings, servers={server.name: server}, **options)
            runner.recorder.add(self._hear)
            with runner:
                self.outcomes: list[TurnOutcome[str]] = [
                    runner.run_turn(TurnRequest(system="s", user="u")) for _ in range(turns)
                ]
            self.asked: list[LlmRequest] = list(llm.requests)

    def _hear(self, envelope: Envelope[Any], line: bytes) -> None:
        self.said.append(envelope.body)
        self.events += self._feed.feed(envelope)

    def drifts(self) -> list[tuple[str, str, tuple[str, ...], bool]]:
        notes = [body for body in self.said if isinstance(body, ToolDrifted)]
        return [(note.tool, note.change, note.parts, note.refused) for note in notes]

    def calls_after_a_change(self) -> list[str]:
        """The tools that were called after the trace says that the server's tools have changed."""
        changes = [at for at, body in enumerate(self.said) if isinstance(body, ToolsChanged)]
        later = self.said[changes[0] :] if changes else []
        return [body.tool for body in later if isinstance(body, ToolCalled)]

    def offered(self) -> list[list[str]]:
        return [[tool["function"]["name"] for tool in ask.body.get("tools", ())] for ask in self.asked]


@pytest.fixture(scope="module")
def listed() -> tuple[ToolDefinition, ...]:
    with ToolClient({"faulty": faulty()}) as client:
        opened = client.connect("faulty")["faulty"]
    assert isinstance(opened, SessionOpened)
    return opened.tools


def lock(*tools: ToolDefinition) -> ToolLock:
    return ToolLock({"faulty": lock_of(tools)})


def policy(on_drift: OnToolDrift) -> FailurePolicy:
    return FailurePolicy(on_tool_drift=on_drift)


@pytest.mark.slow
def test_tools_as_approved_are_offered_without_a_word(listed: tuple[ToolDefinition, ...]) -> None:
    turns = Turns(faulty(), [ECHO, DONE], tool_lock=lock(*listed), policy=policy("refuse"))
    assert turns.offered() == [FIRST, FIRST]
    assert turns.drifts() == []
    assert turns.outcomes[0].tool_calls[0].settlement == "returned"


@pytest.mark.parametrize(
    ("on_drift", "offered", "refused"),
    [("report", FIRST, False), ("refuse", ["faulty.fail"], True)],
)
def test_a_changed_and_an_unknown_tool_when_the_session_opens(
    listed: tuple[ToolDefinition, ...], on_drift: OnToolDrift, offered: list[str], refused: bool
) -> None:
    echo, fail, _environ = listed
    approved = lock(type(echo)(server="faulty", tool="echo", input_schema=echo.input_schema), fail)
    turns = Turns(faulty(), [ECHO, DONE], tool_lock=approved, policy=policy(on_drift))
    assert turns.offered() == [offered, offered]
    assert turns.drifts() == [
        ("echo", "changed", ("description",), refused),
        ("environ", "added", (), refused),
    ]
    (call,) = turns.outcomes[0].tool_calls
    assert call.settlement == ("rejected" if refused else "returned"), "what is not offered is not called"


@pytest.mark.parametrize(
    ("on_drift", "later", "refused"),
    [("report", ["faulty.added", "faulty.echo"], False), ("refuse", [], True)],
)
def test_a_server_that_changes_its_tools_in_the_middle_of_a_turn(
    listed: tuple[ToolDefinition, ...], on_drift: OnToolDrift, later: list[str], refused: bool
) -> None:
    replies = (
        [ECHO_TWICE, DONE]
        if refused
        else [ECHO_TWICE, tool_calls_reply(("faulty.echo", {"words": "hello"})), DONE]
    )
    turns = Turns(faulty("--change-tools"), replies, tool_lock=lock(*listed), policy=policy(on_drift))
    assert turns.offered() == [FIRST, later, later][: len(replies)]
    assert turns.drifts() == [
        ("added", "added", (), refused),
        ("echo", "changed", ("input_schema",), refused),
        ("environ", "removed", (), False),
        ("fail", "removed", (), False),
    ]
    settled = [call.settlement for call in turns.outcomes[0].tool_calls]
    assert settled == ["returned", "rejected", "returned"][: len(settled)]
    assert turns.calls_after_a_change() == ([] if refused else ["echo"])


class Gate:
    """Holds a reply or an approval back until the server has announced that its tools have changed."""

    def __init__(self, recorder: Recorder) -> None:
        self._changed = threading.Event()
        recorder.add(self._hear)

    def _hear(self, envelope: Envelope[Any], line: bytes) -> None:
        if isinstance(envelope.body, ServerNoted) and envelope.body.text.endswith("done: change-tools"):
            self._changed.set()

    def wait(self) -> None:
        assert self._changed.wait(60), "the server has announced nothing"


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("tool", ["echo", "fail"])
def test_a_tool_that_changes_or_goes_while_the_model_thinks_is_not_called(
    listed: tuple[ToolDefinition, ...], tool: str, locked: bool, kept: bool
) -> None:
    recorder = Recorder()
    gate = Gate(recorder)

    def reply(request: LlmRequest) -> Any:
        gate.wait()
        answered = any(message["role"] == "tool" for message in request.body["messages"])
        return DONE if answered else tool_calls_reply((f"faulty.{tool}", {"text": "hello"}))

    options: dict[str, Any] = {"recorder": recorder}
    if locked:
        options |= {"tool_lock": lock(*listed), "policy": policy("refuse")}
    if kept:
        options |= {"keep": "sessions"}
    turns = Turns(faulty("--after-listing", "change-tools"), reply, **options)
    (call,) = turns.outcomes[0].tool_calls
    assert (call.settlement, call.result.error_message) == ("rejected", f"Tool call failed: {NOT_AS_DECIDED}")
    assert turns.offered()[1] == ([] if locked else ["faulty.added", "faulty.echo"])
    assert turns.calls_after_a_change() == []


def test_an_approval_is_for_the_definition_that_the_person_saw_and_the_question_is_asked_anew() -> None:
    recorder = Recorder()
    gate = Gate(recorder)
    asked: list[ApprovalQuestion] = []

    def approve(questions: tuple[ApprovalQuestion, ...]) -> bool:
        gate.wait()
        asked.extend(questions)
        return True

    turns = Turns(
        faulty("--after-listing", "change-tools"),
        [ECHO, tool_calls_reply(("faulty.echo", {"words": "hello"})), DONE],
        recorder=recorder,
        approve=approve,
        tool_policy=ToolPolicy(rules=(ToolRule(verdict="ask"),)),
    )
    first, second = turns.outcomes[0].tool_calls
    assert (first.settlement, second.settlement) == ("rejected", "returned")
    assert [question.input_schema["properties"] for question in asked if question.input_schema] == [
        {"text": {"type": "string"}},
        {"words": {"type": "string"}},
    ]
    assert turns.calls_after_a_change() == ["echo"]


@pytest.mark.parametrize("on_drift", ["ignore", "report", "refuse"])
def test_a_program_s_own_call_keeps_to_what_is_listed_now(
    listed: tuple[ToolDefinition, ...], on_drift: OnToolDrift
) -> None:
    settings = LlmSettings(base_url="http://127.0.0.1:9/v1", model="m")
    said: list[Any] = []
    with Runner(
        llm=settings,
        servers={"faulty": faulty("--change-tools")},
        tool_lock=lock(*listed),
        policy=policy(on_drift),
        keep="sessions",
    ) as runner:
        runner.recorder.add(lambda envelope, _: said.append(envelope.body))
        assert runner.call("faulty.echo", {"text": "hello"}).content == "hello"
        dropped = runner.call("faulty.fail")
        (echo,) = (tool for tool in listed if tool.tool == "echo")
        if on_drift == "refuse":
            with pytest.raises(ToolNotFound):
                runner.call("faulty.echo", {"words": "hello"}, check=True)
        else:
            with pytest.raises(ToolChanged):
                runner.call("faulty.echo", {"words": "hello"}, check=True, definition=echo)
            assert not runner.call("faulty.echo", {"words": "hello"}).is_error
    assert (dropped.error_message or "").startswith("Unknown MCP tool: faulty.fail")
    called = [body.tool for body in said if isinstance(body, ToolCalled)]
    assert called == (["echo"] if on_drift == "refuse" else ["echo", "echo"])


@pytest.mark.slow
def test_to_ignore_drift_is_to_have_no_lock(listed: tuple[ToolDefinition, ...]) -> None:
    turns = Turns(faulty("--change-tools"), [ECHO, DONE], tool_lock=lock(), policy=policy("ignore"))
    assert turns.offered()[0] == FIRST
    assert turns.drifts() == []
    assert Turns(faulty(), [DONE], policy=policy("refuse")).offered() == [FIRST], "no lock, nothing pinned"


@pytest.mark.slow
def test_a_session_notes_a_drift_once_though_it_lists_again() -> None:
    turns = Turns(faulty("--change-tools"), [ECHO, ECHO, DONE], tool_lock=ToolLock())
    assert [tool for tool, *_ in turns.drifts()] == ["echo", "environ", "fail", "added"]


@pytest.mark.slow
def test_every_session_notes_a_drift_and_the_episodes_log_tells_it_once() -> None:
    turns = Turns(faulty(), [DONE, DONE], turns=2, tool_lock=ToolLock())
    assert [tool for tool, *_ in turns.drifts()] == ["echo", "environ", "fail"] * 2
    told = [event for event in turns.events if event.event_type == "mcp_tool_drift"]
    assert [event.fields["tool_name"] for event in told] == ["faulty.echo", "faulty.environ", "faulty.fail"]
    assert {event.level for event in told} == {"warning"}


# --- From the files of a project ---


def project(folder: Path, setting: str, server: StdioServer) -> Path:
    entry = {"command": server.command, "args": list(server.args)}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {server.name: entry}}))
    file = folder / "pyproject.toml"
    file.write_text(
        f'[tool.zorkgpt.mcp]\nenabled = true\nconfig_file = "mcp.json"\ntool_lock = "{setting}"\n'
        '[tool.zorkgpt.llm]\nclient_base_url = "http://127.0.0.1:9/v1"\nagent_model = "gpt-4o"\n'
    )
    return file


@pytest.mark.parametrize(
    ("setting", "offered"), [("refuse", ["faulty.echo"]), ("report", FIRST), ("off", FIRST)]
)
def test_a_project_s_lock_and_setting_hold_for_its_turns(
    tmp_path: Path, listed: tuple[ToolDefinition, ...], setting: str, offered: list[str]
) -> None:
    file = project(tmp_path, setting, faulty())
    tool_lock_file.write(tmp_path / tool_lock_file.FILE_NAME, {"faulty": listed[:1]})
    with ScriptedLlmServer([DONE]) as llm:
        file.write_text(file.read_text().replace("http://127.0.0.1:9/v1", llm.base_url))
        with Runner.from_toml(file) as runner:
            runner.run_turn(TurnRequest(system="s", user="u"))
        (asked,) = llm.requests
    assert [tool["function"]["name"] for tool in asked.body["tools"]] == offered


@pytest.mark.slow
def test_the_zork_agent_keeps_to_the_lock_of_its_manager(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    file = project(tmp_path, "refuse", faulty())
    tool_lock_file.write(tmp_path / tool_lock_file.FILE_NAME, {"faulty": listed[:1]})
    with ScriptedLlmServer([text_reply('{"thinking": "t", "action": "look"}')]) as llm:
        config = GameConfiguration.from_toml(file)
        client = LLMClient(config, base_url=llm.base_url, api_key="none")
        agent = ZorkAgent(config=config, client=client, mcp_manager=MCPManager(config))
        agent.get_action_with_reasoning("It is dark.")
        (asked,) = llm.requests
    assert [tool["function"]["name"] for tool in asked.body["tools"]] == ["faulty.echo"]


@pytest.mark.anyio
async def test_the_manager_s_own_sessions_keep_to_it_too(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    file = project(tmp_path, "refuse", faulty())
    tool_lock_file.write(tmp_path / tool_lock_file.FILE_NAME, {"faulty": listed[:1]})
    manager = MCPManager(GameConfiguration.from_toml(file))
    await manager.connect_session()
    schemas: list[Any] = await manager.get_tool_schemas()
    refused = await manager.call_tool("faulty.fail", {})
    await manager.disconnect_session()
    assert [schema["function"]["name"] for schema in schemas] == ["faulty.echo"]
    assert (refused.error_message or "").startswith("Unknown MCP tool: faulty.fail")


# --- What tools promise and what they give ---

ANSWER = tool_calls_reply(("typed.answer", {}))
TEXT = {"type": "text", "text": "21 degrees"}


@pytest.mark.slow
def test_a_result_that_breaks_its_tool_s_promise_is_told_to_the_model_and_the_turn_goes_on() -> None:
    schema = {"type": "object", "properties": {"celsius": {"type": "number"}}}
    server = typed_server({"content": [TEXT], "structuredContent": {"celsius": "warm"}}, outputSchema=schema)
    turns = Turns(server, [ANSWER, DONE])
    (call,) = turns.outcomes[0].tool_calls
    assert (call.settlement, call.result.is_error) == ("returned", True)
    error, content = turns.asked[1].body["messages"][-1]["content"].split("\n")
    assert error.startswith("Error: ")
    assert error.endswith('$.celsius: "warm" is not of type "number"')
    assert json.loads(content) == {"celsius": "warm"}
    assert turns.outcomes[0].response == "done"


@pytest.mark.slow
def test_a_schema_that_is_none_is_noted_and_nothing_else() -> None:
    server = typed_server({"content": [TEXT]}, outputSchema={"type": "warm"})
    turns = Turns(server, [ANSWER, DONE])
    assert turns.outcomes[0].tool_calls[0].result.content == "21 degrees"
    assert not turns.outcomes[0].tool_calls[0].result.is_error
    (noted,) = [body for body in turns.said if isinstance(body, ServerNoted)]
    assert noted.kind == "bad_schema"
    assert [event.event_type for event in turns.events].count("mcp_bad_schema") == 1


@pytest.mark.slow
def test_an_image_is_in_the_trace_and_not_in_the_conversation() -> None:
    image = {"type": "image", "data": "A" * 60_000, "mimeType": "image/png"}
    turns = Turns(typed_server({"content": [TEXT, image]}), [ANSWER, DONE])
    assert turns.outcomes[0].tool_calls[0].result.content == [TEXT, image]
    told = json.loads(turns.asked[1].body["messages"][-1]["content"])
    described = {"type": "image", "mimeType": "image/png", "bytes": 45_000}
    shown = {**described, "omitted": "it is not a PNG, JPEG, GIF or WebP image"}
    assert told == [TEXT, shown]
