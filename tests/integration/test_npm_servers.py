"""The reference servers from npm: listed, called and provoked, by a session and by a whole turn."""

import base64
import json
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from promises import within
from real_servers import bounded, npm_server, over_http
from transport_servers import QUICK

from grue import LlmSettings, Runner, TurnLimits, TurnOutcome, TurnRequest
from grue.engine.outside_turns.tool_client import ToolClient
from grue.messages import JsonObject, ServerNoted, SessionOpened
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import LlmReply, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tool_sessions.server_requests import Declined, ElicitationRequest
from grue.tool_sessions.server_specs import McpServer, StdioServer

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
pytestmark = pytest.mark.slow

LIMITS = TurnLimits(server_startup_timeout_s=20.0, tool_call_timeout_s=10.0)
ROOT = "file:///srv/adventure"
PNG = b"\x89PNG\r\n\x1a\n"
LISTED = {
    "sequential-thinking": {"sequentialthinking"},
    "everything": {"echo", "get-sum", "get-tiny-image", "trigger-long-running-operation"},
    "filesystem": {"read_text_file", "write_file", "list_directory", "edit_file"},
    "memory": {"create_entities", "create_relations", "read_graph", "search_nodes"},
}
THOUGHT = {"thought": "A gate.", "thoughtNumber": 1, "totalThoughts": 2, "nextThoughtNeeded": True}
LAMP = {"name": "lamp", "entityType": "thing", "observations": ["made of brass"]}


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with assert_nothing_left():
        yield


@pytest.fixture(params=["stdio", "http"])
def everything(request: pytest.FixtureRequest, _nothing_left: None) -> Iterator[McpServer]:
    """The server that has something of everything, reached either way; the client has one root.

    Left early, this server asks a client that has gone for its roots, and lives on until it is told to end.
    """
    if request.param == "stdio":
        yield npm_server("everything", roots=(ROOT,))
    else:
        with over_http("everything", roots=(ROOT,)) as server:
            yield server


class Notes:
    """What servers do beside answering, as the trace has it."""

    def __init__(self) -> None:
        self.heard: list[ServerNoted] = []
        self.recorder = Recorder()
        self.recorder.add(self._hear)

    def _hear(self, envelope: Envelope[Any], line: bytes) -> None:
        if isinstance(envelope.body, ServerNoted):
            self.heard.append(envelope.body)

    def of(self, kind: str) -> list[str]:
        return [note.text for note in self.heard if note.kind == kind]


def session(*servers: McpServer, limits: ProcessLimits | None = None, **options: Any) -> ToolClient:
    by_name = {server.name: server for server in servers}
    return ToolClient(by_name, limits=LIMITS, process_limits=limits or QUICK, **options)


def refusal(client: ToolClient, tool: str, arguments: JsonObject) -> str:
    """The error of a call that has to fail."""
    result = client.call(tool, arguments)
    assert result.is_error, result
    assert result.error_message
    return result.error_message


@bounded
def test_all_of_them_start_at_once_list_their_tools_and_leave_politely(tmp_path: Path) -> None:
    servers = [
        npm_server("sequential-thinking"),
        npm_server("everything"),
        npm_server("filesystem", str(tmp_path)),
        npm_server("memory", MEMORY_FILE_PATH=str(tmp_path / "memory.jsonl")),
    ]
    with session(*servers, limits=ProcessLimits(exit_grace_s=10.0)) as client:
        for name, outcome in client.connect().items():
            assert isinstance(outcome, SessionOpened), outcome
            assert {tool.tool for tool in outcome.tools} >= LISTED[name]
            assert all(tool.input_schema["type"] == "object" for tool in outcome.tools)
            assert outcome.protocol_version == "2025-11-25"
        schema = client.tool("sequential-thinking.sequentialthinking")
        assert schema is not None
        assert schema.output_schema is not None
    ends = {name: (closed.ending, closed.exit_status) for name, closed in client.closed.items()}
    assert ends == dict.fromkeys(LISTED, ("polite", 0))


@bounded
def test_everything_answers_with_text_and_structured_content(everything: McpServer) -> None:
    with session(everything) as client:
        assert client.call("everything.echo", {"message": "Überall ☃"}).content == "Echo: Überall ☃"
        assert client.call("everything.get-sum", {"a": 2, "b": 3}).content == "The sum of 2 and 3 is 5."
        weather = client.call("everything.get-structured-content", {"location": "Chicago"})
    assert weather.content == {"temperature": 36, "conditions": "Light rain / drizzle", "humidity": 82}


@bounded
def test_everything_answers_with_images_and_resources(everything: McpServer) -> None:
    with session(everything) as client:
        image = blocks(client, "everything.get-tiny-image")
        assert [block["type"] for block in image] == ["text", "image", "text"]
        assert base64.b64decode(image[1]["data"]).startswith(PNG)
        assert image[1]["mimeType"] == "image/png"
        for kind, member in (("Text", "text"), ("Blob", "blob")):
            asked = {"resourceType": kind, "resourceId": 7}
            (_, embedded, _) = blocks(client, "everything.get-resource-reference", asked)
            resource = embedded["resource"]
            assert (embedded["type"], resource["mimeType"]) == ("resource", "text/plain")
            assert resource["uri"] == f"demo://resource/dynamic/{kind.lower()}/7"
            text = resource[member]
            text = text if kind == "Text" else base64.b64decode(text).decode()
            assert text.startswith("Resource 7: This is a ")
        links = blocks(client, "everything.get-resource-links", {"count": 2})[1:]
        assert [(link["type"], link["name"]) for link in links] == [
            ("resource_link", "Blob Resource 1"),
            ("resource_link", "Text Resource 2"),
        ]
        annotated = blocks(
            client, "everything.get-annotated-message", {"messageType": "error", "includeImage": True}
        )
        assert [block["annotations"]["priority"] for block in annotated] == [1, 0.5]


def blocks(client: ToolClient, tool: str, arguments: JsonObject | None = None) -> list[dict[str, Any]]:
    """The content of an answer that is not text alone."""
    result = client.call(tool, arguments or {})
    assert not result.is_error, result
    assert isinstance(result.content, list)
    return result.content


@bounded
def test_everything_refuses_what_is_wrong_and_goes_on(everything: McpServer) -> None:
    with session(everything) as client:
        assert '"message" is a required property' in refusal(client, "everything.echo", {})
        wrong = refusal(client, "everything.get-structured-content", {"location": "Atlantis"})
        assert "is not one of" in wrong
        own = refusal(client, "everything.get-resource-reference", {"resourceType": "Text", "resourceId": -1})
        assert own == "Invalid resourceId: -1. Must be a finite positive integer."
        unknown = refusal(client, "everything.nope", {})
        assert unknown.startswith("Unknown MCP tool: everything.nope. Available tools: everything.echo, ")
        assert client.call("everything.echo", {"message": "on"}).content == "Echo: on"


@bounded
def test_progress_is_traced_and_a_call_that_lasts_too_long_is_given_up(everything: McpServer) -> None:
    notes = Notes()
    with session(everything, recorder=notes.recorder) as client:
        long = {"duration": 0.4, "steps": 4}
        done = client.call("everything.trigger-long-running-operation", long)
        assert done.content == "Long running operation completed. Duration: 0.4 seconds, Steps: 4."
        assert notes.of("progress") == ["1/4", "2/4", "3/4", "4/4"]
        longer = {"duration": 60, "steps": 600}
        with within(2, "progress extended the limit"):
            late = client.call("everything.trigger-long-running-operation", longer, timeout_s=0.5)
        assert late.error_message == "Tool call timed out after 0.5s"
        assert notes.of("progress")[4:6] == ["1/600", "2/600"]
        assert client.call("everything.echo", {"message": "on"}).content == "Echo: on"


def official_listing() -> set[str]:
    """What the official SDK's own client lists."""
    from mcp.client.session import ClientSession
    from mcp.client.stdio import StdioServerParameters, stdio_client

    server = npm_server("everything")

    async def names() -> set[str]:
        parameters = StdioServerParameters(command=server.command, args=list(server.args))
        async with stdio_client(parameters, errlog=nowhere) as streams, ClientSession(*streams) as client:
            await client.initialize()
            return {tool.name for tool in (await client.list_tools()).tools}

    with Path(os.devnull).open("w") as nowhere:
        return anyio.run(names)


def test_everything_lists_what_the_official_client_lists() -> None:
    with session(npm_server("everything")) as client:
        listed = {tool.tool for tool in client.tools()}
    assert listed == official_listing()
    assert len(listed) == 13


@bounded
def test_everything_works_on_a_task(everything: McpServer) -> None:
    notes = Notes()
    with session(everything, recorder=notes.recorder, elicit=which_of_them) as client:
        found = client.call("everything.simulate-research-query", {"topic": "python", "ambiguous": True})
        assert str(found.content).startswith("# Research Report: python (snake)")
        late = client.call("everything.simulate-research-query", {"topic": "lamps"}, timeout_s=0.5)
        assert late.error_message == "Tool call timed out after 0.5s"
        tasks: Any = client.request("everything", "tasks/list")["tasks"]
        assert [task["status"] for task in tasks] == ["completed", "cancelled"]
    assert notes.of("progress")


async def which_of_them(request: ElicitationRequest) -> JsonObject | Declined:
    assert "multiple interpretations" in request.message
    return {"interpretation": "snake"}


@bounded
def test_the_server_is_told_that_a_call_is_cancelled(tmp_path: Path) -> None:
    log = tmp_path / "input.jsonl"
    server = npm_server("everything")
    script = f"tee {shlex.quote(str(log))} | exec {shlex.join([server.command, *server.args])}"
    with session(StdioServer(name="everything", command="sh", args=("-c", script))) as client:
        long = {"duration": 60, "steps": 1}
        late = client.call("everything.trigger-long-running-operation", long, timeout_s=0.2)
        assert late.is_error
        assert client.call("everything.echo", {"message": "on"}).content == "Echo: on"
        said = [json.loads(line) for line in log.read_text().splitlines()]
    (call, *_) = [message for message in said if message["method"] == "tools/call"]
    (cancelled,) = [message for message in said if message["method"] == "notifications/cancelled"]
    assert cancelled["params"]["requestId"] == call["id"]


@bounded
def test_everything_asks_the_person_and_for_the_roots(everything: McpServer) -> None:
    asked: list[ElicitationRequest] = []

    async def elicit(request: ElicitationRequest) -> JsonObject | Declined:
        asked.append(request)
        return {"name": "Ada", "check": True} if len(asked) == 1 else Declined("no more")

    with session(everything, elicit=elicit) as client:
        accepted, declined = (
            str(client.call("everything.trigger-elicitation-request", {}).content) for _ in range(2)
        )
        roots = client.call("everything.get-roots-list", {})
    assert asked[0].message == "Please provide inputs for the following fields:"
    assert asked[0].schema is not None
    assert asked[0].schema["properties"]["integer"]["default"] == 42
    assert "- Name: Ada\n- Agreed to terms: true\n" in accepted
    assert '"action": "decline"' in declined
    assert f"URI: {ROOT}\n" in str(roots.content)


@bounded
def test_the_filesystem_server_works_on_real_files(tmp_path: Path) -> None:
    (tmp_path / "egg.png").write_bytes(PNG)
    note = tmp_path / "note.txt"
    with session(npm_server("filesystem", str(tmp_path))) as client:
        written = client.call("filesystem.write_file", {"path": str(note), "content": "a brass lamp\n"})
        assert not written.is_error
        assert note.read_text() == "a brass lamp\n"
        edits = [{"oldText": "brass", "newText": "dim"}]
        assert not client.call("filesystem.edit_file", {"path": str(note), "edits": edits}).is_error
        read = client.call("filesystem.read_text_file", {"path": str(note)})
        assert read.content == {"content": "a dim lamp\n"}
        listed = client.call("filesystem.list_directory", {"path": str(tmp_path)})
        assert listed.content == {"content": "[FILE] egg.png\n[FILE] note.txt"}
        media = client.call("filesystem.read_media_file", {"path": str(tmp_path / "egg.png")})
    image = {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}
    assert media.content == {"content": [image]}


@bounded
def test_the_filesystem_server_keeps_to_its_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "secret.txt"
    inside.mkdir()
    outside.write_text("not for you")
    with session(npm_server("filesystem", str(inside))) as client:
        for path in (outside, inside / ".." / "secret.txt"):
            denied = refusal(client, "filesystem.read_text_file", {"path": str(path)})
            assert denied.startswith("Access denied - path outside allowed directories")
        missing = refusal(client, "filesystem.read_text_file", {"path": str(inside / "none")})
        assert missing.startswith("ENOENT")
        assert "the call was not sent" in refusal(client, "filesystem.read_text_file", {"path": 7})
    nowhere = session(npm_server("filesystem", str(tmp_path / "none")))
    with nowhere:
        failure = nowhere.connect()["filesystem"]
    assert not isinstance(failure, SessionOpened)
    assert failure.exit_status == 1
    assert str(tmp_path / "none") in failure.stderr_tail


@bounded
def test_the_filesystem_server_takes_its_folders_from_the_roots(tmp_path: Path) -> None:
    server = npm_server("filesystem", roots=(tmp_path.as_uri(),))
    with session(server) as client:
        deadline = time.monotonic() + 60
        # It asks for them once the session is initialized, while it already answers.
        while str(tmp_path) not in str(client.call("filesystem.list_allowed_directories", {}).content):
            assert time.monotonic() < deadline, "it never asked for the roots"


@bounded
def test_the_memory_server_remembers_from_session_to_session(tmp_path: Path) -> None:
    server = npm_server("memory", MEMORY_FILE_PATH=str(tmp_path / "memory.jsonl"))
    relation = {"from": "lamp", "to": "house", "relationType": "lies in"}
    with session(server) as client:
        house = {"name": "house", "entityType": "place", "observations": []}
        created = client.call("memory.create_entities", {"entities": [LAMP, house]})
        assert created.content == {"entities": [LAMP, house]}
        assert not client.call("memory.create_relations", {"relations": [relation]}).is_error
        sword = {"observations": [{"entityName": "sword", "contents": ["glows"]}]}
        assert refusal(client, "memory.add_observations", sword) == "Entity with name sword not found"
        assert "the call was not sent" in refusal(client, "memory.create_entities", {"entities": [{}]})
    with session(server) as client:
        graph = {"entities": [LAMP, house], "relations": [relation]}
        assert client.call("memory.read_graph", {}).content == graph
        found = client.call("memory.search_nodes", {"query": "brass"}).content
        assert isinstance(found, dict)
        assert found["entities"] == [LAMP]


@bounded
def test_thoughts_are_counted_for_one_session() -> None:
    server = npm_server("sequential-thinking")
    for _ in range(2):
        with session(server) as client:
            for length in (1, 2):
                counted = client.call("sequential-thinking.sequentialthinking", THOUGHT).content
                assert isinstance(counted, dict)
                assert counted["thoughtHistoryLength"] == length
            wrong = refusal(client, "sequential-thinking.sequentialthinking", {"thought": "A gate."})
            assert "the call was not sent" in wrong


def turn(
    server: McpServer, calls: Sequence[tuple[str, JsonObject]], *more: LlmReply, **options: Any
) -> tuple[TurnOutcome[str], list[str]]:
    """One turn whose model makes these calls at once; its outcome, and what the model was told of each."""
    asked = tool_calls_reply(*((f"{server.name}.{tool}", arguments) for tool, arguments in calls))
    with ScriptedLlmServer([asked, *more, text_reply("done")]) as llm:
        runner = Runner(
            llm=LlmSettings(base_url=llm.base_url, model="m"),
            servers={server.name: server},
            process_limits=QUICK,
            **options,
        )
        outcome = runner.run_turn(TurnRequest(system="s", user="u"))
        told = [message["content"] for message in llm.requests[-1].messages if message["role"] == "tool"]
    return outcome, told


def check_turn(server: McpServer, tool: str, arguments: JsonObject, says: str, wrong: JsonObject) -> None:
    outcome, told = turn(server, [(tool, arguments), (tool, wrong), ("nope", {})], limits=LIMITS)
    assert (outcome.kind, outcome.response) == ("answered", "done")
    assert [call.settlement for call in outcome.tool_calls] == ["returned", "rejected", "rejected"]
    assert [call.result.is_error for call in outcome.tool_calls] == [False, True, True]
    assert says in told[0]
    assert "the call was not sent" in told[1]
    assert "nope" in told[2]


@bounded
def test_a_turn_with_thoughts() -> None:
    server = npm_server("sequential-thinking")
    check_turn(server, "sequentialthinking", THOUGHT, '"thoughtHistoryLength":1', {"thought": "A gate."})


@bounded
def test_a_turn_with_everything(everything: McpServer) -> None:
    check_turn(everything, "echo", {"message": "hello"}, "Echo: hello", {"message": 7})


@bounded
def test_a_turn_with_files(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("a brass lamp")
    server = npm_server("filesystem", str(tmp_path))
    note = {"path": str(tmp_path / "note.txt")}
    check_turn(server, "read_text_file", note, "a brass lamp", {"path": None})


@bounded
def test_a_turn_with_memories(tmp_path: Path) -> None:
    server = npm_server("memory", MEMORY_FILE_PATH=str(tmp_path / "memory.jsonl"))
    check_turn(server, "create_entities", {"entities": [LAMP]}, "made of brass", {"entities": 7})


@bounded
def test_in_a_turn_everything_asks_the_model(everything: McpServer) -> None:
    limits = TurnLimits(server_startup_timeout_s=20.0, max_samplings=1)
    ask = ("trigger-sampling-request", {"prompt": "Where is the lamp?", "maxTokens": 50})
    outcome, told = turn(everything, [ask], text_reply("In the house."), limits=limits)
    assert [call.settlement for call in outcome.tool_calls] == ["returned"]
    assert "In the house." in told[0]


@bounded
def test_in_a_turn_a_call_that_lasts_too_long_is_given_up(everything: McpServer) -> None:
    notes = Notes()
    limits = TurnLimits(server_startup_timeout_s=20.0, tool_call_timeout_s=0.5)
    long = ("trigger-long-running-operation", {"duration": 60, "steps": 600})
    echo = ("echo", {"message": "hello"})
    outcome, told = turn(everything, [echo, long, echo], limits=limits, recorder=notes.recorder)
    assert [call.settlement for call in outcome.tool_calls] == ["returned", "timed_out", "skipped"]
    assert "timed out after 0.5s" in told[1]
    lasted_s = outcome.tool_calls[1].duration_s
    assert lasted_s is not None
    assert lasted_s < 30, "progress extends no limit"
    assert "1/600" in notes.of("progress")


@bounded
def test_prompts_resources_templates_and_completions_are_read_through_a_runner(everything: McpServer) -> None:
    llm = LlmSettings(base_url="http://127.0.0.1:9/v1", model="never asked")
    notes = Notes()
    with Runner(
        llm=llm,
        servers={"everything": everything},
        limits=LIMITS,
        process_limits=QUICK,
        recorder=notes.recorder,
        keep="sessions",
    ) as runner:
        assert runner.call("everything.echo", {"message": "hi"}, check=True).blocks == (
            {"type": "text", "text": "Echo: hi"},
        )
        prompts = {str(prompt["name"]) for prompt in runner.request_all("everything", "prompts/list")}
        assert "simple-prompt" in prompts
        prompt = runner.request("everything", "prompts/get", {"name": "simple-prompt"})
        assert prompt["messages"]
        resources = runner.request_all("everything", "resources/list")
        uri = str(resources[0]["uri"])
        assert runner.request("everything", "resources/read", {"uri": uri})["contents"]
        assert runner.request_all("everything", "resources/templates/list")
        runner.request("everything", "resources/subscribe", {"uri": uri})
        runner.request("everything", "resources/unsubscribe", {"uri": uri})
