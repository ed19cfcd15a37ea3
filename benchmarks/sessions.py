"""What a session costs without a turn: a call, opening and closing it, and lines of many megabytes."""

import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
from measuring import Bar, Effort, Section, figure, interleave, ratio

from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.processes.process_group import ProcessRegistry
from grue.testing import faulty_server
from grue.tool_sessions.server_specs import StdioServer
from grue.transports.mcp.client import McpClient
from grue.transports.mcp.client_options import ClientOptions

PLAIN = Path(__file__).parent / "servers" / "plain_server.py"
CALLS = 200
MEGABYTES = (1, 5, 10, 20)
MB = 1_000_000


def sessions_section(effort: Effort) -> Section:
    """Compare grue's MCP client with the SDK's, alternately in one process."""
    count = min(CALLS, effort.calls)
    sides = {"grue": partial(anyio.run, _ours, count), "sdk": partial(anyio.run, _theirs, count)}
    for side in sides.values():
        side()
    calls: dict[str, list[float]] = {name: [] for name in sides}

    def life(name: str) -> float:
        whole, call = sides[name]()
        calls[name].append(call)
        return whole

    lives = interleave(effort.within(effort.rounds), {name: partial(life, name) for name in sides})
    lines = {
        size: min(anyio.run(_long_line, size) for _ in range(min(2, effort.rounds // 2)))
        for size in MEGABYTES
    }
    return Section(
        name="sessions",
        title="A session with one server",
        measured="Spawn, initialize, list, close of the same server that boots in 30 ms; the round trip of a"
        f" call, out of {count}; and one call whose answer is a line of many megabytes.",
        figures=[
            figure("life cycle, grue", "ms", lives["grue"]),
            figure("life cycle, the SDK's stdio_client", "ms", lives["sdk"]),
            figure("a call, grue", "us", calls["grue"]),
            figure("a call, the SDK's session", "us", calls["sdk"]),
        ],
        facts={f"a line of {size} MB": f"{lines[size] * 1000:.0f} ms" for size in MEGABYTES},
        bars=[
            Bar(
                "time from a server's spawn to its exit, as a ratio to the MCP SDK's",
                ratio(lives["grue"], lives["sdk"]),
                1.0,
                "x",
            ),
            Bar(
                "time of a tool call in an open session, as a ratio to the MCP SDK's",
                ratio(calls["grue"], calls["sdk"]),
                1.0,
                "x",
            ),
            Bar(
                "time of a server's line of 20 MB, as a ratio to two lines of 10 MB",
                lines[20] / (2 * lines[10]),
                1.25,
                "x",
            ),
        ],
    )


async def _ours(calls: int) -> tuple[float, float]:
    server = StdioServer(name="plain", command=sys.executable, args=(str(PLAIN),))
    begun = time.perf_counter()
    async with McpClient(server, ProcessRegistry()) as client:
        tool = (await client.open(10)).tools[0].tool
        took = time.perf_counter() - begun
        call = await _round_trip(lambda: client.call(tool, {"text": "x"}, 10), calls)
        begun = time.perf_counter()
    return (took + time.perf_counter() - begun) * 1000, call


async def _theirs(calls: int) -> tuple[float, float]:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = StdioServerParameters(command=sys.executable, args=[str(PLAIN)])
    begun = time.perf_counter()
    async with stdio_client(server) as (reader, writer), ClientSession(reader, writer) as session:
        await session.initialize()
        tool = (await session.list_tools()).tools[0].name
        took = time.perf_counter() - begun
        call = await _round_trip(lambda: session.call_tool(tool, {"text": "x"}, 10), calls)
        begun = time.perf_counter()
    return (took + time.perf_counter() - begun) * 1000, call


async def _round_trip(call: Callable[[], Awaitable[object]], times: int) -> float:
    await call()
    begun = time.perf_counter()
    for _ in range(times):
        await call()
    return (time.perf_counter() - begun) / times * 1e6


async def _long_line(megabytes: int) -> float:
    command, *args = faulty_server.argv("--huge-result", str(megabytes * MB))
    server = StdioServer(name="huge", command=command, args=tuple(args))
    most = 4 * max(MEGABYTES) * MB
    options = ClientOptions(limits=ProcessLimits(max_line_bytes=most, max_message_bytes=most))
    async with McpClient(server, ProcessRegistry(), options) as client:
        await client.open(10)
        begun = time.perf_counter()
        await client.call("echo", {"text": "x"}, 60)
        return time.perf_counter() - begun
