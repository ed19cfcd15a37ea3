"""Tool servers without an agent: sessions that live from one blocking call to the next."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import anyio
import pytest
from msgspec.structs import replace
from promises import within
from rows import first_of
from transport_servers import QUICK, STUBBORN, faulty

from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import MCPConfigError, MCPError, MCPServerStartupError
from grue.messages import JsonObject, OpenSession, ServerFailure, ServerNoted, SessionOpened
from grue.policies import TurnLimits
from grue.runtime.trace.recorder import Recorder
from grue.testing.fake_tools import FakeToolServer
from grue.testing.leftovers import assert_nothing_left
from grue.tool_sessions.server_requests import ElicitationRequest
from grue.tool_sessions.server_specs import ServerOptions, StdioServer


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with assert_nothing_left():
        yield


def client(*flags: str, **more: object) -> ToolClient:
    return ToolClient({"faulty": faulty(*flags)}, process_limits=QUICK, **more)  # type: ignore[arg-type]


def test_a_call_connects_and_the_session_stays_for_the_next() -> None:
    with client() as tools:
        assert tools.call("faulty.echo", {"text": "one"}).content == "one"
        assert tools.call("faulty.echo", {"text": "two"}).content == "two"
        assert tools.closed == {}
        assert [tool.name for tool in tools.tools()] == ["faulty.echo", "faulty.fail", "faulty.environ"]
    assert tools.closed["faulty"].ending == "polite"


def test_a_client_is_used_in_one_block_at_a_time() -> None:
    """A second block took the place of the first, whose servers went on after both."""
    with client() as tools:
        with pytest.raises(RuntimeError, match="in a `with` block already"), tools:
            pass
        assert tools.call("faulty.echo", {"text": "one"}).content == "one"
    with tools:
        assert tools.call("faulty.echo", {"text": "two"}).content == "two"


@pytest.mark.slow
def test_servers_connect_at_once_and_one_that_fails_sinks_no_other() -> None:
    servers = {f"s{number}": faulty() for number in range(4)}
    servers["bad"] = faulty("--exit-at", "start", "--stderr", "no disk")
    said: list[type] = []
    recorder = Recorder()
    recorder.add(lambda envelope, _: said.append(type(envelope.body)))
    with ToolClient(servers, recorder=recorder) as tools:
        outcomes = tools.connect()
        assert said[:5] == [OpenSession] * 5, "each is asked before any has answered"
        assert list(outcomes) == list(servers)
        assert sum(isinstance(outcome, SessionOpened) for outcome in outcomes.values()) == 4
        failure = outcomes["bad"]
        assert isinstance(failure, ServerFailure)
        assert failure.stderr_tail == "no disk"


@pytest.mark.slow
def test_r6_4_whatever_becomes_of_a_call_is_a_result() -> None:
    with client("--silent-at", "call") as tools:
        result = tools.call("faulty.echo", {"text": "hi"}, timeout_s=0.2)
        assert result.error_message == "Tool call timed out after 0.2s"
        unknown = tools.call("faulty.nope", {})
        assert unknown.error_message is not None
        assert unknown.error_message.endswith("Available tools: faulty.echo, faulty.fail, faulty.environ")
    slow = replace(faulty("--silent-at", "call"), options=ServerOptions(call_timeout_s=0.2))
    with ToolClient({"faulty": slow}, process_limits=QUICK) as tools:
        result = tools.call("faulty.echo", {"text": "hi"}, timeout_s=60)
        assert result.error_message == "Tool call timed out after 0.2s", "the server's own limit"
    with client("--exit-at", "call", "--exit-status", "7") as tools:
        results = [tools.call("faulty.echo", {"text": "hi"}) for _ in range(2)]
    assert "exit status 7" in (results[0].error_message or "")
    assert results[1].is_error


@pytest.mark.slow
def test_after_a_death_connecting_again_is_a_new_session() -> None:
    with client("--exit-at", "call") as tools:
        assert tools.call("faulty.echo", {"text": "hi"}).is_error
        again = tools.connect("faulty")["faulty"]
        assert isinstance(again, SessionOpened)


def test_r6_1_a_server_that_does_not_start_says_why() -> None:
    broken = client("--exit-at", "start", "--stderr", "no disk")
    with broken, pytest.raises(MCPServerStartupError, match="no disk"):
        broken.call("faulty.echo", {"text": "x"})


def test_names_that_are_none_are_told() -> None:
    with client() as tools:
        with pytest.raises(MCPError, match=r"SERVER\.TOOL"):
            tools.call("echo", {})
        with pytest.raises(MCPError, match="Configured: faulty"):
            tools.call("other.echo", {})
        with pytest.raises(KeyError):
            tools.connect("other")
    with pytest.raises(MCPConfigError, match="dot"):
        ToolClient({"a.b": faulty()})


def test_changed_tools_are_seen() -> None:
    fake = FakeToolServer("cave")
    fake.answers("look", "dark")
    with ToolClient({"cave": fake}) as tools:
        assert tools.call("cave.look", {}).content == "dark"
        fake.answers("dig", "a hole")
        assert tools.tool("cave.dig") is None, "nothing was asked of the server since"
        tools.call("cave.look", {})
        assert tools.call("cave.dig", {}).content == "a hole"
    assert fake.sessions == 1


def test_notes_and_messages_are_recorded_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTY_API_KEY", "sk-very-secret-value")
    kept: list[bytes] = []
    kinds: list[str] = []

    def keep(envelope: object, line: bytes) -> None:
        kept.append(line)
        body = envelope.body  # type: ignore[attr-defined]
        if isinstance(body, ServerNoted):
            kinds.append(body.kind)

    recorder = Recorder()
    recorder.add(keep)
    with client("--chatty", recorder=recorder) as tools:
        assert tools.call("faulty.environ", {"name": "FAULTY_API_KEY"}).content == "sk-very-secret-value"
    assert kinds == ["log", "progress"]
    assert b"ToolReturned" in b"".join(kept)
    assert b"sk-very-secret-value" not in b"".join(kept)


@pytest.mark.slow
def test_a_server_reaches_the_person_only_where_there_is_one() -> None:
    async def elicit(request: ElicitationRequest) -> JsonObject:
        return {"name": f"asked: {request.message}"}

    with client("--ask", "elicitation", elicit=elicit) as tools:
        answer = tools.call("faulty.echo", {"text": "hi"}).content
        assert answer == {"result": {"action": "accept", "content": {"name": "asked: Your name?"}}}
    with client("--ask", "elicitation") as tools:
        refused = tools.call("faulty.echo", {"text": "hi"}).content
        assert refused == {"error": {"code": -32600, "message": "Elicitation not supported"}}


def test_it_is_closed_once_and_cannot_be_used_outside_its_block() -> None:
    tools = client()
    with pytest.raises(RuntimeError, match="with"):
        tools.call("faulty.echo", {"text": "hi"})
    with tools:
        tools.connect()
        tools.close()
        tools.close()
    with pytest.raises(RuntimeError, match="with"):
        tools.connect()


@pytest.mark.slow
def test_calls_from_several_threads_are_served_one_at_a_time() -> None:
    results: dict[int, object] = {}

    def work(number: int) -> None:
        results[number] = tools.call("faulty.echo", {"text": str(number)}).content

    with client() as tools:
        tools.connect()
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {number: str(number) for number in range(8)}


def test_it_works_where_an_event_loop_runs() -> None:
    async def host() -> object:
        with client() as tools:
            return tools.call("faulty.echo", {"text": "hi"}).content

    assert anyio.run(host) == "hi"


INTERRUPTED = """
import sys
from grue.tool_sessions.server_specs import StdioServer
from grue.engine.outside_turns.tool_client import ToolClient

command, *args = sys.argv[1:]
try:
    with ToolClient({"faulty": StdioServer(name="faulty", command=command, args=tuple(args))}) as client:
        client.connect()
        print("connected", flush=True)
        client.call("faulty.echo", {"text": "hi"})
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def host(server: StdioServer) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", INTERRUPTED, server.command, *server.args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.slow
@pytest.mark.parametrize("presses", first_of([2, 1]))
def test_p9_ctrl_c_ends_a_call_and_its_server(presses: int) -> None:
    with host(faulty("--silent-at", "call", *STUBBORN, "--grandchild")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "connected\n"
        with within(3):
            for _ in range(presses):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGINT)
            assert process.stdout.readline() == "interrupted\n"
            assert process.wait(60) == 0


@pytest.mark.slow
def test_limits_are_those_given() -> None:
    with client("--silent-at", "call", limits=TurnLimits(tool_call_timeout_s=0.2)) as tools:
        assert tools.call("faulty.echo", {"text": "hi"}).is_error
    limits = TurnLimits(server_startup_timeout_s=0.3)
    with client("--silent-at", "initialize", limits=limits) as tools:
        outcome = tools.connect()["faulty"]
    assert isinstance(outcome, ServerFailure)
    assert "no answer to initialize within 0." in outcome.cause, "less what the spawn took"
    limits = TurnLimits(startup_timeouts_s={"faulty": 0.3})
    with client("--silent-at", "initialize", limits=limits) as tools:
        outcome = tools.connect()["faulty"]
    assert isinstance(outcome, ServerFailure)
    assert "raise startup_timeouts_s in these TurnLimits" in outcome.remedy, (
        "not that of the server's options"
    )


@pytest.mark.slow
def test_a_forked_child_that_leaves_the_block_ends_as_it_wanted_to() -> None:
    with client() as tools:
        tools.call("faulty.echo", {"text": "one"})
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                tools.__exit__(None, None, None)
                status = 7
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert tools.call("faulty.echo", {"text": "two"}).content == "two"
