"""The MCP client over real processes: the faulty server, one fault at a time."""

import json
import math
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace
from notices import Notice, noting
from promises import GUARD_S, cancelled_when, within
from slow_imports import SlowImports
from transport_servers import QUICK, STUBBORN, faulty, shell

from grue.messages import ServerFailure, ToolCallResult
from grue.runtime.processes.descendants import live_members
from grue.runtime.processes.limits import ProcessLimits, ServerExit
from grue.runtime.processes.process_group import ProcessRegistry
from grue.testing.leftovers import assert_nothing_left
from grue.tool_sessions.connection import Listing
from grue.tool_sessions.failures import ServerFailed, ToolRefusedError, ToolTimedOutError
from grue.tool_sessions.server_specs import ServerOptions, StdioServer
from grue.transports.mcp.client import McpClient
from grue.transports.mcp.client_options import ClientOptions
from grue.transports.mcp.library_logs import LOGGERS

pytestmark = pytest.mark.anyio

ECHO = ToolCallResult(content="hi")


class Session:
    """What one use of a client brought: its listing, the result of one call, and the notices."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.listing: Listing
        self.result: object = None
        self.client: McpClient

    def noted(self, kind: str) -> list[str]:
        return [notice.text for notice in self.notices if notice.kind == kind]

    async def run(self, server: StdioServer, *, open_s: float = GUARD_S, call_s: float = GUARD_S) -> None:
        options = ClientOptions(limits=QUICK, on_notice=noting(self.notices))
        with assert_nothing_left(within_s=0):
            async with McpClient(server, ProcessRegistry(), options) as self.client:
                self.listing = await self.client.open(open_s)
                self.result = await self.client.call("echo", {"text": "hi"}, call_s)


@pytest.fixture
async def session() -> Session:
    # The SDK's import is no server's fault, and the descriptors and threads it may keep are no leftovers.
    async with McpClient(faulty(), ProcessRegistry()) as client:
        await client.open(60)
    return Session()


async def failure_of(run: Awaitable[None]) -> ServerFailure:
    with pytest.raises(ServerFailed) as caught:
        await run
    return caught.value.failure


async def test_p8_spawn_initialize_list_call_close(session: Session) -> None:
    await session.run(faulty())
    assert [tool.name for tool in session.listing.tools] == ["faulty.echo", "faulty.fail", "faulty.environ"]
    assert session.listing.protocol_version == "2025-11-25"
    assert session.listing.server_version == "faulty 1.0"
    assert session.result == ECHO
    assert session.client.status.exit == ServerExit(status=0)
    assert session.client.status.ending == "polite"
    assert session.notices == []


async def test_p8_the_messages_come_in_the_protocol_s_order(session: Session, tmp_path: Path) -> None:
    record = tmp_path / "record"
    await session.run(faulty("--record", str(record)))
    sent = [json.loads(line)["method"] for line in record.read_text().splitlines()]
    assert sent == ["initialize", "notifications/initialized", "tools/list", "tools/call"]


@pytest.mark.parametrize(
    "flags",
    [
        ("--noise", "12"),
        ("--flood-stderr", "1000000"),
        ("--grandchild",),
        ("--drip", "0.0001"),
        ("--protocol-version", "2024-11-05"),
        ("--ignore-eof",),
        STUBBORN,
    ],
    ids=" ".join,
)
@pytest.mark.slow
async def test_faults_that_need_not_matter_do_not(flags: tuple[str, ...], session: Session) -> None:
    await session.run(faulty(*flags))
    assert session.result == ECHO
    assert not live_members(session.client.status.pid)


@pytest.mark.slow
async def test_noise_is_told(session: Session) -> None:
    await session.run(faulty("--noise", "6"))
    assert len(session.noted("noise")) == 15  # three answers, and of the six lines the empty one is not told
    assert "Server listening..." in session.noted("noise")


async def test_an_answer_to_no_request_is_told(session: Session) -> None:
    with pytest.raises(ToolTimedOutError):
        await session.run(faulty("--wrong-id"), call_s=0.3)
    (told,) = session.noted("noise")
    assert '"id":"wrong-' in told.replace(" ", "")


@pytest.mark.slow
async def test_invalid_utf8_in_an_answer_is_replaced(session: Session) -> None:
    await session.run(faulty("--invalid-utf8"), call_s=5)
    assert session.result == ToolCallResult(content="\ufffdhi")


@pytest.mark.slow
async def test_logs_and_progress_are_told(session: Session) -> None:
    await session.run(faulty("--chatty"))
    assert session.noted("log") == ["info: working on it"]
    assert session.noted("progress") == ["1/2"]


async def test_p37_all_pages_are_listed_and_malformed_tools_left_out(session: Session) -> None:
    await session.run(faulty("--pages", "3", "--malformed-tool"))
    assert [tool.tool for tool in session.listing.tools] == ["echo", "fail", "environ", "page_2", "page_3"]
    assert len(session.noted("bad_tool")) == 3


async def test_p37_of_two_tools_with_one_name_the_first_counts_and_the_other_is_told(
    session: Session,
) -> None:
    await session.run(faulty("--pages", "2", "--double-tool"))
    assert [tool.tool for tool in session.listing.tools] == ["echo", "fail", "environ", "page_2"]
    assert [*session.listing.tools[0].input_schema["properties"]] == ["text"]
    assert session.noted("bad_tool") == ["echo: listed twice, the first one counts"] * 2


async def test_p37_a_listing_without_end_ends(session: Session) -> None:
    await session.run(faulty("--pages", "2", "--page-loop"))
    assert [tool.tool for tool in session.listing.tools] == ["echo", "fail", "environ", "page_2"]
    assert "repeats the cursor" in session.noted("bad_tool")[-1]
    options = ClientOptions(max_pages=4, on_notice=noting(session.notices))
    async with McpClient(faulty("--pages", "1000"), ProcessRegistry(), options) as client:
        assert len((await client.open(60)).tools) == 6
    assert "more than 4 pages" in session.noted("bad_tool")[-1]


@pytest.mark.parametrize("phase", ["initialize", "list"])
@pytest.mark.slow
async def test_r6_1_a_death_in_opening_has_status_and_last_words(phase: str, session: Session) -> None:
    server = faulty("--exit-at", phase, "--exit-status", "3", "--stderr", "no licence found")
    failure = await failure_of(session.run(server))
    assert failure.phase == phase
    assert failure.exit_status == 3
    assert failure.stderr_tail == "no licence found"
    assert "exit status 3" in failure.cause
    assert "--exit-at" in failure.command
    assert 0 < failure.elapsed_s < 10, "less than the limit"
    assert session.client.status.ending == "died"


async def test_a_start_without_an_answer_names_output_that_is_not_mcp(session: Session) -> None:
    server = StdioServer("sh", ("-c", "echo Listening on port 3000; cat > /dev/null"))
    failure = await failure_of(session.run(server, open_s=1))
    assert failure.cause == (
        "no answer to initialize within 1 s, but output that is not MCP: Listening on port 3000"
    )


@pytest.mark.parametrize(
    ("flags", "phase", "cause"),
    [
        (("--silent-at", "start"), "initialize", "no answer to initialize within 1.5 s"),
        (("--silent-at", "list"), "list", "no answer to tools/list within 1.5 s"),
        (("--stop-reading-after", "initialize"), "list", "no answer to tools/list within 1.5 s"),
        (("--error-at", "initialize"), "initialize", "told to refuse initialize (-32050)"),
        (("--error-at", "list"), "list", "told to refuse list (-32050)"),
        (("--null-at", "initialize"), "initialize", "result is null"),
        (("--null-at", "list"), "list", "result is null"),
        (("--protocol-version", "1999-01-01"), "initialize", "1999-01-01"),
        (("--close-stdout-at", "initialize"), "initialize", "it closed its output"),
        (("--kill-at", "list"), "list", "killed by SIGKILL"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
@pytest.mark.slow
async def test_r6_1_each_failure_to_open_names_its_cause(
    flags: tuple[str, ...], phase: str, cause: str, session: Session
) -> None:
    wait = 1.5 if "within" in cause else 10
    failure = await failure_of(session.run(faulty(*flags), open_s=wait))
    assert (failure.phase, failure.server) == (phase, "faulty")
    assert cause in failure.cause
    assert failure.remedy


async def test_r14_5_a_missing_command_has_its_remedy(session: Session) -> None:
    failure = await failure_of(session.run(StdioServer(name="s", command="npx-not-there", args=("-y", "x"))))
    assert failure.phase == "spawn"
    assert failure.command == "npx-not-there -y x"
    assert "was not found" in failure.cause
    assert "Install npx-not-there" in failure.remedy


async def test_p24_a_timed_out_call_is_cancelled_and_the_session_goes_on(
    session: Session, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    options = ClientOptions(limits=ProcessLimits())
    server = faulty("--slow-call", "0.3", "--record", str(record))
    async with McpClient(server, ProcessRegistry(), options) as client:
        await client.open(60)
        with pytest.raises(ToolTimedOutError, match=r"timed out after 0.1s"):
            await client.call("echo", {"text": "late"}, 0.1)
        assert await client.call("echo", {"text": "hi"}, 60) == ECHO
    sent = [json.loads(line) for line in record.read_text().splitlines()]
    late = next(m["id"] for m in sent if m["method"] == "tools/call")
    cancelled = [m["params"]["requestId"] for m in sent if m["method"] == "notifications/cancelled"]
    assert cancelled == [late]
    written = [m["method"] for m in sent if m["method"] in ("tools/call", "notifications/cancelled")]
    assert written == ["tools/call", "notifications/cancelled", "tools/call"], "in this order (P17)"


@pytest.mark.parametrize("size", [1, 1_000_000])
@pytest.mark.slow
async def test_a_timeout_holds_though_the_server_stops_reading(size: int, session: Session) -> None:
    options = ClientOptions(limits=QUICK)
    async with McpClient(faulty("--stop-reading-after", "list"), ProcessRegistry(), options) as client:
        await client.open(60)
        for _ in range(3):
            with pytest.raises(ToolTimedOutError):
                await client.call("echo", {"text": "x" * size}, 0.2)


@pytest.mark.parametrize("flag", ["--exit-at", "--kill-at"])
@pytest.mark.slow
async def test_a_death_in_a_call_is_seen_before_its_limit(flag: str, session: Session) -> None:
    server = faulty(flag, "call", "--grandchild", "--stderr", "out of memory")
    async with McpClient(server, ProcessRegistry(), ClientOptions(limits=QUICK)) as client:
        await client.open(60)
        failure = await failure_of(_call(client))
        assert (failure.phase, failure.stderr_tail) == ("call", "out of memory")
        again = await failure_of(_call(client))
        assert again.cause == failure.cause


@pytest.mark.slow
async def test_a_closed_output_breaks_the_call_though_the_server_lives(session: Session) -> None:
    failure = await failure_of(session.run(faulty("--close-stdout-at", "call", "--stderr", "oops")))
    assert failure.phase == "call"
    assert failure.cause == "the connection broke during tools/call: it closed its output"
    assert (failure.exit_status, failure.stderr_tail) == (None, "oops")


async def _call(client: McpClient) -> None:
    await client.call("echo", {"text": "hi"}, 60)


@pytest.mark.parametrize(
    ("flag", "words"), [("--error-at", "told to refuse call"), ("--null-at", "result is null")]
)
async def test_r6_4_a_refused_call_costs_only_that_call(flag: str, words: str, session: Session) -> None:
    async with McpClient(faulty(flag, "call"), ProcessRegistry()) as client:
        await client.open(60)
        for _ in range(2):
            with pytest.raises(ToolRefusedError, match=words):
                await client.call("echo", {"text": "hi"}, 60)


async def test_a_server_s_own_code_for_closed_connections_is_a_refusal(session: Session) -> None:
    script = """
read -r line; echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}}'
read -r line; read -r line; echo '{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"Method not found"}}'
read -r line; echo '{"jsonrpc":"2.0","id":3,"error":{"code":-32000,"message":"Connection closed"}}'
cat
"""  # noqa: E501 - one JSON line each
    async with McpClient(shell(script), ProcessRegistry()) as client:
        assert (await client.open(60)).tools == ()
        with pytest.raises(ToolRefusedError, match="Connection closed"):
            await client.call("echo", {}, 60)


@pytest.mark.slow
async def test_lone_surrogates_in_arguments_reach_the_server(session: Session) -> None:
    async with McpClient(faulty(), ProcessRegistry()) as client:
        await client.open(60)
        result = await client.call("echo", {"text": "half \ud800"}, 60)
        assert str(result.content).startswith("half ")
        assert not result.is_error


async def test_a_server_may_have_a_time_of_its_own_to_exit() -> None:
    patient = ClientOptions(limits=ProcessLimits(exit_grace_s=GUARD_S, term_grace_s=GUARD_S))
    hasty = replace(faulty("--ignore-eof"), options=ServerOptions(exit_grace_s=0.05))
    with within(GUARD_S):
        async with McpClient(hasty, ProcessRegistry(), patient) as client:
            await client.open(60)
    assert client.status.ending == "terminated"


def has_read(record: Path, method: str) -> bool:
    return record.exists() and method in record.read_text()


async def test_p9_cancellation_in_the_middle_of_a_call_leaves_nothing(
    session: Session, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    server = faulty("--silent-at", "call", "--grandchild", *STUBBORN, "--record", str(record))
    await cancelled_when(lambda: has_read(record, "tools/call"), lambda: session.run(server))
    assert session.client.status.ending == "killed"
    assert not live_members(session.client.status.pid)


@pytest.mark.parametrize("at", ["initialize", "list"])
async def test_p9_cancellation_while_opening_leaves_nothing(
    at: str, session: Session, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    server = faulty("--silent-at", at, "--record", str(record))
    method = {"initialize": "initialize", "list": "tools/list"}[at]
    await cancelled_when(lambda: has_read(record, method), lambda: session.run(server))
    assert not live_members(session.client.status.pid)


@pytest.mark.slow
async def test_an_exception_in_the_body_leaves_as_it_is(session: Session) -> None:
    async def body() -> None:
        async with McpClient(faulty(), ProcessRegistry()) as client:
            await client.open(60)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await body()


@pytest.mark.slow
async def test_secrets_are_not_in_the_failure(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "sk-0123456789abcdef"
    monkeypatch.setenv("SOME_API_KEY", secret)
    server = faulty("--exit-at", "initialize", "--stderr", f"bad key {secret}")
    with pytest.raises(ServerFailed) as caught:
        await session.run(server)
    assert secret not in str(caught.value)
    assert caught.value.failure.stderr_tail.startswith("bad key [redacted:SOME_API_KEY]")


@pytest.mark.slow
def test_turns_leave_nothing_and_threads_do_not_disturb_each_other() -> None:
    failures: list[BaseException] = []

    async def turn() -> None:
        await Session().run(faulty())

    async def turn_without_check() -> None:
        async with McpClient(faulty(), ProcessRegistry()) as client:
            await client.open(60)
            assert await client.call("echo", {"text": "hi"}, 60) == ECHO

    def work(turn: Callable[[], Awaitable[None]], times: int) -> None:
        try:
            for _ in range(times):
                anyio.run(turn)
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            failures.append(error)

    anyio.run(turn_without_check)
    work(turn, 25)
    with assert_nothing_left():
        threads = [threading.Thread(target=work, args=(turn_without_check, 8)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not failures


@pytest.mark.slow
def test_the_sdk_is_imported_only_after_the_spawn() -> None:
    script = """
import sys
import anyio
from grue.transports.mcp.client import McpClient
from grue.runtime.processes.process_group import ProcessRegistry
from grue.tool_sessions.server_specs import StdioServer

async def main():
    async with McpClient(StdioServer(name="cat", command="cat"), ProcessRegistry()) as client:
        assert client.status.pid
        assert not {"mcp", "mcp_types", "pydantic", "httpx"} & set(sys.modules)

anyio.run(main)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=150)


@pytest.mark.anyio
async def test_r13_3_the_start_up_limit_covers_what_entering_took() -> None:
    async with McpClient(faulty("--silent-at", "initialize"), ProcessRegistry()) as client:
        client._entering_s = 59.9
        with within(10), pytest.raises(ServerFailed, match="no answer to initialize within 60 s"):
            await client.open(60)


async def test_r13_3_importing_the_sdk_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowImports(monkeypatch)
    async with McpClient(faulty(), ProcessRegistry()) as client:
        await client.open(60)
    assert slow.deadlines == [math.inf]


async def test_a_call_that_the_input_schema_refuses_is_answered_before_it_is_sent(tmp_path: Path) -> None:
    said = tmp_path / "said"
    server = faulty("--late", "60", "--record", str(said))
    async with McpClient(server, ProcessRegistry(), ClientOptions(limits=QUICK)) as client:
        await client.open(60)
        with pytest.raises(ToolRefusedError) as caught:
            await client.call("echo", {"text": 5}, 60)
        assert client.status.last_request_id == ""
    assert caught.value.code == -32602
    assert str(caught.value) == (
        "the call was not sent, because its arguments are not what the tool's input schema says:"
        ' $.text: 5 is not of type "string"'
    )
    assert "tools/call" not in said.read_text()


async def test_a_call_that_was_not_sent_has_no_id_though_one_was_sent_before() -> None:
    async with McpClient(faulty(), ProcessRegistry(), ClientOptions(limits=QUICK)) as client:
        await client.open(60)
        await client.call("echo", {"text": "hi"}, 60)
        assert client.status.last_request_id
        with pytest.raises(ToolRefusedError):
            await client.call("echo", {"text": 5}, 60)
        assert client.status.last_request_id == ""


async def test_a_server_with_wrong_schemas_gets_every_call() -> None:
    server = replace(faulty(), options=ServerOptions(check_arguments=False))
    async with McpClient(server, ProcessRegistry(), ClientOptions(limits=QUICK)) as client:
        await client.open(60)
        assert (await client.call("echo", {"text": 5}, 60)).content == "5"


async def test_a_file_without_execute_permission_is_not_called_missing(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text("#!/usr/bin/env python3\n")
    for command, cause, remedy in (
        (script, "is not executable: the file has no execute permission", f"chmod +x {script}"),
        (tmp_path, "is a folder", "Name the program in it"),
    ):
        client = McpClient(StdioServer(name="s", command=str(command)), ProcessRegistry())
        failure = await failure_of(enter(client))
        assert cause in failure.cause
        assert remedy in (failure.remedy or "")


async def enter(client: McpClient) -> None:
    async with client:
        pass


async def test_what_the_sdk_logs_of_a_malformed_notification_is_told_and_reaches_no_logger(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(1)
    for name in ("", *LOGGERS):
        caplog.set_level(1, name)
    secret = "s3cret-of-the-server-" + 100 * "x"
    await session.run(faulty("--malformed-notification", secret))
    assert session.result == ECHO
    assert [text for text in session.noted("noise") if "Failed to validate notification" in text]
    assert not [record for record in caplog.records if record.name in LOGGERS]
    assert secret[:20] not in caplog.text


@pytest.mark.slow
def test_every_logger_of_the_libraries_that_speak_for_a_session_is_known() -> None:
    script = (
        "import logging, grue.transports.mcp.session_parts, grue.transports.mcp.sdk"
        ", grue.transports.mcp.login\n"
        "import grue.transports.mcp.sdk_http, grue.transports.mcp.library_logs as ours\n"
        "named = [name for name, logger in logging.root.manager.loggerDict.items()"
        " if isinstance(logger, logging.Logger)]\n"
        "print(*[name for name in named if name.split('.')[0] in"
        " ('mcp', 'mcp_types', 'client', 'httpx2', 'httpcore2', 'anyio') and name not in ours.LOGGERS])"
    )
    told = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert [name for name in told.split() if not name.startswith(("mcp.server", "mcp.os"))] == []
