"""The bundled reasoning server as a real process: the official client, older versions, and its ends."""

import json
import signal
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest

from grue.hosts.servers import think

COMMAND = [sys.executable, "-I", "-S", think.__file__]
COMPILED = "import sys; sys.path.append(sys.argv.pop(1)); import think; think.run()"
DEADLINE_S = 150
THOUGHT = {"thought": "Light the lamp.", "thoughtNumber": 1, "totalThoughts": 2, "nextThoughtNeeded": True}
PING = {"jsonrpc": "2.0", "id": "p", "method": "ping"}

pytestmark = pytest.mark.anyio


@contextmanager
def server():
    """A server process whose pipes are ours; gone afterwards, and killed if a test waits on it too long."""
    process = subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    watchdog = threading.Timer(DEADLINE_S, process.kill)
    watchdog.start()
    with process:
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def exchange(process, message):
    process.stdin.write(json.dumps(message).encode() + b"\n")
    return json.loads(process.stdout.readline())


def initialize(process, version):
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": version}}
    return exchange(process, message)["result"]


@asynccontextmanager
async def official_client():
    """A session of the official SDK over its own stdio transport, initialized."""
    mcp = pytest.importorskip("mcp", reason="the SDK's client is not tried: pip install mcp")
    from mcp.client.stdio import stdio_client

    parameters = mcp.StdioServerParameters(command=COMMAND[0], args=COMMAND[1:])
    with anyio.fail_after(DEADLINE_S):
        async with stdio_client(parameters) as (reader, writer), mcp.ClientSession(reader, writer) as session:
            hello = await session.initialize()
            assert hello.protocol_version == think.VERSIONS[-1]
            assert hello.server_info.title == "Think"
            assert hello.instructions == think.INSTRUCTIONS
            yield session


async def test_official_client_lists_and_calls():
    async with official_client() as session:
        (tool,) = (await session.list_tools()).tools
        assert (tool.name, tool.title) == ("think", "Think")
        assert tool.annotations.read_only_hint is True
        assert tool.output_schema == think.OUTPUT_SCHEMA
        # The SDK checks structured content against the listed outputSchema and raises if it does not fit.
        result = await session.call_tool("think", THOUGHT)
        assert result.is_error is False
        assert result.structured_content["thoughtHistoryLength"] == 1
        assert json.loads(result.content[0].text) == result.structured_content
        await session.send_ping()


async def test_official_client_sees_tool_errors_and_protocol_errors():
    async with official_client() as session:
        await session.list_tools()
        refused = await session.call_tool("think", THOUGHT | {"thoughtNumber": 0})
        assert refused.is_error is True
        assert "thoughtNumber must be a whole number" in refused.content[0].text
        from mcp import MCPError

        with pytest.raises(MCPError) as unknown:
            await session.call_tool("thonk", {})
        assert unknown.value.code == -32602
        with pytest.raises(MCPError) as no_prompts:
            await session.list_prompts()
        assert no_prompts.value.code == -32601
        assert (await session.call_tool("think", THOUGHT)).structured_content["thoughtHistoryLength"] == 1


async def test_a_client_that_probes_for_the_newest_protocol_falls_back_at_once():
    mcp = pytest.importorskip("mcp", reason="the SDK's client is not tried: pip install mcp")
    from mcp.client.stdio import stdio_client

    parameters = mcp.StdioServerParameters(command=COMMAND[0], args=COMMAND[1:])
    # A server that stayed silent would cost the SDK's ten seconds here.
    with anyio.fail_after(60):
        async with mcp.Client(stdio_client(parameters), mode="auto") as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["think"]


@pytest.mark.parametrize("version", think.VERSIONS)
def test_every_version_by_raw_lines(version):
    with server() as process:
        assert exchange(process, PING) == {"jsonrpc": "2.0", "id": "p", "result": {}}
        assert initialize(process, version)["protocolVersion"] == version
        process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\r\n\r\nnot json\n')
        assert json.loads(process.stdout.readline())["error"]["code"] == -32700
        call = {"name": "think", "arguments": THOUGHT}
        reply = exchange(process, {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})
        assert json.loads(reply["result"]["content"][0]["text"])["totalThoughts"] == 2
        assert ("structuredContent" in reply["result"]) is (version >= "2025-06-18")
        batch = exchange(process, [PING, PING])
        if version == "2025-03-26":
            assert [reply["result"] for reply in batch] == [{}, {}]
        else:
            assert batch["error"]["code"] == -32600


def test_end_of_input_ends_it_with_status_0_and_not_a_word():
    with server() as process:
        initialize(process, think.VERSIONS[-1])
        out, err = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, out, err) == (0, b"", b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_quietly(number):
    with server() as process:
        initialize(process, think.VERSIONS[-1])
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == -number
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")


def test_a_reader_that_goes_away_ends_it_quietly():
    with server() as process:
        initialize(process, think.VERSIONS[-1])
        process.stdout.close()
        process.stdin.write(json.dumps(PING).encode() + b"\n")
        assert process.wait(DEADLINE_S) == -signal.SIGPIPE
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    "command",
    [COMMAND, [*COMMAND[:3], "-c", COMPILED, str(Path(think.__file__).parent)]],
    ids=["script", "compiled"],
)
@pytest.mark.slow
def test_both_ways_to_start_it(command):
    helped = subprocess.run([*command, "--help"], capture_output=True, timeout=DEADLINE_S, check=True)
    assert helped.stdout.decode() == think.USAGE
    piped = subprocess.run(
        command, input=json.dumps(PING).encode(), capture_output=True, timeout=DEADLINE_S, check=True
    )
    assert json.loads(piped.stdout)["result"] == {}
    wrong = subprocess.run([*command, "--port"], capture_output=True, timeout=DEADLINE_S, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, b"")


def test_boot_loads_neither_grue_nor_anything_heavy(record_property):
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "importtime", think.__file__],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    loaded = {line.rpartition(b"|")[2].strip().decode() for line in done.stderr.splitlines()}
    assert {"json", "signal"} <= loaded
    assert not loaded & {"grue", "site", "typing", "inspect", "dataclasses", "argparse", "asyncio", "logging"}
    started = time.perf_counter()
    with server() as process:
        initialize(process, think.VERSIONS[-1])
        boot_ms = 1000 * (time.perf_counter() - started)
    record_property("boot_ms", boot_ms)
    print(f"spawn to initialize answered: {boot_ms:.1f} ms")
