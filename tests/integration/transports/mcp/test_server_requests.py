"""What servers do beside answering: change their tools, ask the model, ask the person, ask for roots."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import anyio
import hostile_server
import pytest

from grue import (
    Budget,
    LlmSettings,
    Runner,
    StdioServer,
    ToolClient,
    TurnLimits,
    TurnOutcome,
    TurnRequest,
)
from grue.errors import TraceError
from grue.messages import AnyMessage, ServerNoted, SessionClosed, SessionOpened, ToolsChanged
from grue.runtime.processes.process_group import ProcessRegistry
from grue.runtime.trace.recorder import Envelope
from grue.testing import faulty_server
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tool_sessions.server_requests import Declined, ElicitationRequest
from grue.tool_sessions.server_specs import ServerOptions
from grue.tracing.facts import Fact
from grue.tracing.reading import open_episode
from grue.tracing.replay import replay
from grue.transports.mcp.client import McpClient
from grue.transports.mcp.client_options import ClientOptions

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

ECHO = tool_calls_reply(("faulty.echo", {"text": "hello"}))


class Turn:
    """One turn against a faulty server: its outcome, what was said, what the model was asked."""

    def __init__(
        self, *flags: str, replies: list[Any], roots: tuple[str, ...] | None = None, **options: Any
    ) -> None:
        command, *args = faulty_server.argv(*flags)
        server = StdioServer(
            name="faulty", command=command, args=tuple(args), options=ServerOptions(roots=roots)
        )
        self.said: list[AnyMessage | Fact] = []
        with ScriptedLlmServer(replies) as llm, assert_nothing_left():
            runner = Runner(
                llm=LlmSettings(base_url=llm.base_url, model="m"), servers={"faulty": server}, **options
            )
            runner.recorder.add(self._hear)
            with runner:
                self.outcome: TurnOutcome[str] = runner.run_turn(TurnRequest(system="s", user="u"))
            self.asked: list[LlmRequest] = list(llm.requests)
            self.spent = runner.spent

    def _hear(self, envelope: Envelope[Any], line: bytes) -> None:
        self.said.append(envelope.body)


def read_by_server(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def answers_to_server(path: Path) -> list[dict[str, Any]]:
    return [line for line in read_by_server(path) if "method" not in line]


@pytest.mark.slow
def test_new_tools_are_offered_after_the_batch_in_which_they_are_announced() -> None:
    added = tool_calls_reply(("faulty.added", {}))
    turn = Turn("--change-tools", replies=[ECHO, added, text_reply("done")])
    changed = [body for body in turn.said if isinstance(body, ToolsChanged)]
    assert [[tool.tool for tool in body.tools] for body in changed] == [["echo", "added"]]
    offered = [[tool["function"]["name"] for tool in request.body["tools"]] for request in turn.asked]
    assert offered[0] == ["faulty.echo", "faulty.environ", "faulty.fail"]
    assert offered[1] == offered[2] == ["faulty.added", "faulty.echo"]
    assert turn.outcome.tool_calls[-1].settlement == "returned"


@pytest.mark.slow
def test_sampling_is_off_by_default(tmp_path: Path) -> None:
    log = tmp_path / "log"
    turn = Turn("--ask", "sampling", "--record", str(log), replies=[ECHO, text_reply("done")])
    (hello, *_) = read_by_server(log)
    assert "sampling" not in hello["params"]["capabilities"]
    assert "error" in answers_to_server(log)[0]
    assert len(turn.asked) == 2


@pytest.mark.slow
def test_sampling_goes_to_the_model_in_a_conversation_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    turn = Turn(
        *("--ask", "sampling", "--record", str(log)),
        replies=[ECHO, text_reply("Hello to you."), text_reply("done")],
        limits=TurnLimits(max_samplings=1),
    )
    assert turn.outcome.response == "done"
    messages = [request.body["messages"] for request in turn.asked]
    assert messages[1] == [{"role": "user", "content": "Hello?"}]
    assert len(messages[2]) == 4, "the turn's own conversation knows nothing of it"
    assert turn.spent.requests == turn.outcome.requests == 3, "but it is paid for"
    assert turn.spent.usage == turn.outcome.usage
    (answer,) = answers_to_server(log)
    assert answer["result"]["content"] == {"type": "text", "text": "Hello to you."}


@pytest.mark.slow
def test_sampling_is_bounded_for_the_turn(tmp_path: Path) -> None:
    log = tmp_path / "log"
    turn = Turn(
        *("--ask", "sampling", "--record", str(log)),
        replies=[ECHO, text_reply("Hello to you."), ECHO, text_reply("done")],
        limits=TurnLimits(max_samplings=1),
    )
    assert turn.outcome.response == "done"
    first, second = answers_to_server(log)
    assert "result" in first
    assert second["error"]["message"] == "the limit of sampling requests in this turn is used up: 1"


def test_sampling_counts_in_the_turns_budget(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    turn = Turn(
        *("--ask", "sampling"),
        replies=[ECHO, text_reply("Hello to you."), text_reply("done")],
        limits=TurnLimits(max_samplings=9, budget=Budget(tokens=30)),
        trace=trace,
    )
    assert (turn.outcome.kind, turn.outcome.reason) == ("forced", "budget")
    (replayed,) = replay(open_episode(trace))
    assert (replayed.end, replayed.divergence) == ("finished", None)


@pytest.mark.slow
def test_elicitation_is_declined_where_nobody_is_there_to_ask(tmp_path: Path) -> None:
    log = tmp_path / "log"
    Turn("--ask", "elicitation", "--record", str(log), replies=[ECHO, text_reply("done")])
    (hello, *_) = read_by_server(log)
    assert "elicitation" not in hello["params"]["capabilities"]
    assert "error" in answers_to_server(log)[0]


@pytest.mark.parametrize("accepts", [True, False])
@pytest.mark.slow
def test_elicitation_asks_the_person_behind_the_host(tmp_path: Path, accepts: bool) -> None:
    log = tmp_path / "log"
    asked: list[ElicitationRequest] = []

    async def elicit(request: ElicitationRequest) -> dict[str, object] | Declined:
        asked.append(request)
        return {"name": "Ada"} if accepts else Declined("no time")

    Turn("--ask", "elicitation", "--record", str(log), replies=[ECHO, text_reply("done")], elicit=elicit)
    assert asked[0].message == "Your name?"
    assert asked[0].server == "faulty"
    assert asked[0].schema is not None
    (answer,) = answers_to_server(log)
    wanted = {"action": "accept", "content": {"name": "Ada"}} if accepts else {"action": "decline"}
    assert answer["result"] == wanted


@pytest.mark.parametrize("left_by", [SystemExit, asyncio.CancelledError, ValueError])
@pytest.mark.slow
def test_an_elicit_callback_that_fails_answers_the_server_and_the_turn_goes_on(
    tmp_path: Path, left_by: type[BaseException]
) -> None:
    async def elicit(request: ElicitationRequest) -> Declined:
        raise left_by

    log = tmp_path / "log"
    turn = Turn(
        "--ask", "elicitation", "--record", str(log), replies=[ECHO, text_reply("done")], elicit=elicit
    )
    assert turn.outcome.kind == "answered"
    (answer,) = answers_to_server(log)
    assert "error" in answer or answer["result"] == {"action": "decline"}


async def _tells_a_secret(request: ElicitationRequest) -> Any:
    raise OSError("no route to postgres://me:pw@db")


def _is_no_coroutine_function(request: ElicitationRequest) -> Any:
    return {"name": "Ada"}


async def _returns_nothing(request: ElicitationRequest) -> Any:
    return None


@pytest.mark.parametrize(
    ("elicit", "words"),
    [
        (_tells_a_secret, "no route to postgres:"),
        (_is_no_coroutine_function, "wants a coroutine function"),
        (_returns_nothing, "returns a dict or Declined(reason), not NoneType"),
    ],
)
@pytest.mark.slow
def test_why_an_elicit_callback_failed_is_told_to_the_trace_and_not_to_the_server(
    tmp_path: Path, elicit: Any, words: str
) -> None:
    log = tmp_path / "log"
    asking = ("--ask", "elicitation", "--record", str(log))
    turn = Turn(*asking, replies=[ECHO, text_reply("done")], elicit=elicit)
    (answer,) = answers_to_server(log)
    assert answer["error"]["message"] == "the user could not be asked"
    assert [body.kind for body in turn.said if isinstance(body, ServerNoted) and words in body.text] == [
        "bad_elicit"
    ]


@pytest.mark.slow
def test_ctrl_c_in_an_elicit_callback_ends_the_turn_after_its_session_was_closed() -> None:
    async def elicit(request: ElicitationRequest) -> Declined:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # `Turn` looks for a process that is left
        Turn("--ask", "elicitation", replies=[ECHO, text_reply("done")], elicit=elicit)


@pytest.mark.slow
def test_ctrl_c_in_an_elicit_callback_ends_the_call_of_a_tool_client() -> None:
    async def elicit(request: ElicitationRequest) -> Declined:
        raise KeyboardInterrupt

    command, *args = faulty_server.argv("--ask", "elicitation")
    server = StdioServer(name="faulty", command=command, args=tuple(args))
    with (
        assert_nothing_left(),
        ToolClient({"faulty": server}, elicit=elicit) as client,
        pytest.raises(KeyboardInterrupt),
    ):
        client.call("faulty.echo", {"text": "hello"})


def test_the_pages_that_a_refusal_sends_the_user_to_are_in_its_text() -> None:
    pages = '[{"mode":"url","elicitationId":"1","url":"https://log.in/x","message":"Log in"},7]'
    error = f'{{"code":-32042,"message":"Not yet","data":{{"elicitations":{pages}}}}}'
    command, *args = hostile_server.argv("--say", f'call={{"jsonrpc":"2.0","id":ID,"error":{error}}}')
    with ToolClient({"far": StdioServer(command=command, args=tuple(args))}) as client:
        said = client.call("far.echo", {"text": "hello"}).error_message
    assert said == "Tool call failed: Not yet\nLog in: https://log.in/x"


def test_roots_come_from_the_servers_options(tmp_path: Path) -> None:
    log = tmp_path / "log"
    Turn(
        *("--ask", "roots", "--record", str(log)),
        replies=[ECHO, text_reply("done")],
        roots=("file:///srv/data",),
    )
    (answer,) = answers_to_server(log)
    assert answer["result"] == {"roots": [{"uri": "file:///srv/data"}]}


@pytest.mark.slow
def test_pings_are_answered_and_unknown_requests_refused(tmp_path: Path) -> None:
    for what, member in (("ping", "result"), ("nonsense", "error")):
        log = tmp_path / what
        turn = Turn("--ask", what, "--record", str(log), replies=[ECHO, text_reply("done")])
        assert member in answers_to_server(log)[0]
        assert turn.outcome.response == "done"


@pytest.mark.slow
def test_logs_and_progress_are_traced_and_extend_no_limit() -> None:
    turn = Turn("--chatty", replies=[ECHO, text_reply("done")])
    kinds = {body.kind for body in turn.said if isinstance(body, ServerNoted)}
    assert {"log", "progress"} <= kinds


@pytest.mark.parametrize(("accepts", "greeting"), [(True, "Hello Ada"), (False, "Hello stranger")])
@pytest.mark.slow
def test_a_server_that_knows_only_the_newest_revision_is_used_all_the_same(
    accepts: bool, greeting: str
) -> None:
    import sys

    import modern_server

    async def elicit(request: ElicitationRequest) -> dict[str, object] | Declined:
        assert request.message == "Your name?"
        return {"name": "Ada"}

    said: list[Any] = []
    server = StdioServer(name="modern", command=sys.executable, args=("-I", str(modern_server.__file__)))
    call = tool_calls_reply(("modern.greet", {}))
    with ScriptedLlmServer([call, text_reply("done")]) as llm, assert_nothing_left():
        runner = Runner(
            llm=LlmSettings(base_url=llm.base_url, model="m"),
            servers={"modern": server},
            elicit=elicit if accepts else None,
        )
        runner.recorder.add(lambda envelope, _: said.append(envelope.body))
        outcome = runner.run_turn(TurnRequest(system="s", user="u"))
    assert outcome.tool_calls[0].result.content == greeting
    assert [body.protocol_version for body in said if isinstance(body, SessionOpened)] == ["2026-07-28"]


async def _raises(request: ElicitationRequest) -> Any:
    raise TimeoutError("the form was open too long")


async def _nests(request: ElicitationRequest) -> Any:
    return {"name": {"first": "Ada"}}


@pytest.mark.parametrize(
    ("elicit", "words"),
    [(_raises, "the form was open too long"), (_nests, "content.name.str: Input should be a valid string")],
)
def test_an_elicit_callback_that_fails_fails_only_the_call_of_a_newest_server(
    elicit: Any, words: str
) -> None:
    import modern_server

    server = StdioServer(name="modern", command=sys.executable, args=("-I", str(modern_server.__file__)))
    with assert_nothing_left(), ToolClient({"modern": server}, elicit=elicit) as client:
        for _ in range(2):  # the session goes on
            said = client.call("modern.greet").error_message or ""
            assert said.endswith(f"the host could not ask for the input that it wants: {words}")


@pytest.mark.slow
def test_what_a_server_writes_to_stderr_is_in_the_trace_of_a_good_turn_too() -> None:
    turn = Turn("--stderr", "warming up \x1b[31mslowly", replies=[ECHO, text_reply("done")])
    (closed,) = [body for body in turn.said if isinstance(body, SessionClosed)]
    assert closed.stderr_tail == "warming up slowly"


_LISTS_LATE = """
import json, sys
listings = ["echo", None, "another"]
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("id") is None:
        continue
    told = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] == "initialize":
        server = {"name": "late", "version": "1"}
        abilities = {"tools": {"listChanged": True}}
        told["result"] = {"protocolVersion": "2025-06-18", "capabilities": abilities, "serverInfo": server}
    elif asked["method"] == "tools/list":
        name = listings.pop(0)
        told["result"] = {"tools": [{"name": name, "inputSchema": {"type": "object"}}]}
        if name is None:
            del told["result"]
            told["error"] = {"code": -32603, "message": "busy"}
    else:
        changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        print(json.dumps(changed))
        told["result"] = {"content": []}
    print(json.dumps(told), flush=True)
"""


@pytest.mark.anyio
async def test_a_changed_listing_that_was_refused_is_asked_for_again(tmp_path: Path) -> None:
    program = tmp_path / "late.py"
    program.write_text(_LISTS_LATE)
    server = StdioServer(name="late", command=sys.executable, args=("-I", str(program)))
    async with McpClient(server, ProcessRegistry()) as client:
        assert [tool.tool for tool in (await client.open(60)).tools] == ["echo"]
        await client.call("echo", {}, 60)
        assert await client.refresh_tools(60) is None, "it is refused"
        changed = await client.refresh_tools(60)
        assert [tool.tool for tool in changed or ()] == ["another"]
        assert await client.refresh_tools(60) is None, "nothing has changed since"


@pytest.mark.anyio
async def test_a_changed_listing_that_a_cancelled_caller_did_not_get_is_asked_for_again(
    tmp_path: Path,
) -> None:
    program = tmp_path / "late.py"
    program.write_text(_LISTS_LATE.replace('"echo", None, ', '"echo", '))
    server = StdioServer(name="late", command=sys.executable, args=("-I", str(program)))
    async with McpClient(server, ProcessRegistry()) as client:
        await client.open(60)
        await client.call("echo", {}, 60)
        with anyio.CancelScope() as cancelled:
            cancelled.cancel()
            await client.refresh_tools(60)
        assert cancelled.cancelled_caught
        changed = await client.refresh_tools(60)
        assert [tool.tool for tool in changed or ()] == ["another"]


@pytest.mark.anyio
async def test_a_changed_listing_that_takes_too_long_is_told_with_its_limit(tmp_path: Path) -> None:
    program = tmp_path / "late.py"
    program.write_text(_LISTS_LATE)
    server = StdioServer(name="late", command=sys.executable, args=("-I", str(program)))
    told: list[str] = []
    options = ClientOptions(on_notice=lambda _, text: told.append(text))
    async with McpClient(server, ProcessRegistry(), options) as client:
        await client.open(60)
        await client.call("echo", {}, 60)
        assert await client.refresh_tools(0) is None
    assert told == ["listing its tools again failed: no answer within 0 s"]


_NESTED_ANSWERS = """
import json, sys
nested = "[" * 700 + "]" * 700
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("id") is None:
        continue
    told = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] == "initialize":
        server = {"name": "nested", "version": "1"}
        abilities = {"tools": {}}
        told["result"] = {"protocolVersion": "2025-06-18", "capabilities": abilities, "serverInfo": server}
    elif asked["method"] == "tools/list":
        told["result"] = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    else:
        for number in range(301):
            member = ("result", "error", "id")[number % 3]
            wrong = json.dumps({"jsonrpc": "2.0", "id": asked["id"] if number % 2 else 9000 + number})
            print(f'{wrong[:-1]}, "{member}": {nested}}}')
        told["result"] = {"content": [{"type": "text", "text": "hello"}]}
    print(json.dumps(told), flush=True)
"""


@pytest.mark.slow
def test_hundreds_of_unusable_answers_that_are_nested_deeply_fail_one_call(tmp_path: Path) -> None:
    program = tmp_path / "nested.py"
    program.write_text(_NESTED_ANSWERS)
    server = StdioServer(name="faulty", command=sys.executable, args=("-I", str(program)))
    with ScriptedLlmServer([ECHO, text_reply("done")]) as llm, assert_nothing_left():
        runner = Runner(llm=LlmSettings(base_url=llm.base_url, model="m"), servers={"faulty": server})
        seen: list[Any] = []
        runner.recorder.add(lambda envelope, _: seen.append(envelope.body))
        outcome: TurnOutcome[str] = runner.run_turn(TurnRequest(system="s", user="u"))
    assert outcome.kind == "answered"
    assert outcome.tool_calls[0].result.is_error
    assert "not usable" in (outcome.tool_calls[0].result.error_message or "")


_PROGRESS = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    told = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] == "initialize":
        server = {"name": "dig", "version": "1"}
        told["result"] = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": server}
    else:
        told["result"] = {"tools": [{"name": "dig", "inputSchema": {"type": "object"}}]}
    if asked["method"] == "tools/call":
        token = asked["params"]["_meta"]["progressToken"]
        noted = {"jsonrpc": "2.0", "method": "notifications/progress"}
        for metre in range(50):
            print(json.dumps({**noted, "params": {"progressToken": token, "progress": metre}}))
        told["result"] = {"content": []}
    print(json.dumps(told), flush=True)
"""


@pytest.mark.anyio
async def test_a_trace_that_cannot_be_written_ends_no_session_however_many_notices_come(
    tmp_path: Path,
) -> None:
    program = tmp_path / "dig.py"
    program.write_text(_PROGRESS)
    server = StdioServer(name="dig", command=sys.executable, args=("-I", str(program)))
    noted: list[str] = []

    def full(kind: str, text: str) -> None:
        noted.append(text)
        raise TraceError("Cannot write the trace file.")

    async with McpClient(server, ProcessRegistry(), ClientOptions(on_notice=full)) as client:
        await client.open(60)
        assert (await client.call("dig", {}, 60)).content == ""
    assert noted == ["0"]
