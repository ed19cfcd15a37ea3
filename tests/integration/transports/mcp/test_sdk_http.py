"""A server by URL that says too much: time limits hold, and large answers arrive."""

from typing import Literal

import anyio
import pytest
from faulty_http_server import FLOODS, faulty_http_server
from rows import first_of

from grue.messages import ToolCallResult
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.processes.process_group import ProcessRegistry
from grue.tool_sessions.failures import ServerFailed, ToolTimedOutError
from grue.tool_sessions.notices import ServerNotice
from grue.tool_sessions.server_specs import HttpServer
from grue.transports.mcp.client import McpClient
from grue.transports.mcp.client_options import ClientOptions

pytestmark = pytest.mark.anyio
WAYS = ("", "--events", "--legacy")
GUARD_S = 60.0


async def called(
    url: str, flags: str, call_s: float, notices: list[ServerNotice] | None = None
) -> ToolCallResult:
    transport: Literal["http", "sse"] = "sse" if "--legacy" in flags else "http"
    server = HttpServer(name="far", url=url, transport=transport)
    options = ClientOptions(
        limits=ProcessLimits(max_line_bytes=10_000_000, max_message_bytes=5_000_000),
        on_notice=(notices if notices is not None else []).append,
    )
    async with McpClient(server, ProcessRegistry(), options) as client:
        await client.open(GUARD_S)
        return await client.call("echo", {"text": "hi"}, call_s)


@pytest.mark.parametrize("legacy", first_of(["", "--legacy"]))
@pytest.mark.parametrize("flood", [name for name in FLOODS if name != "endless"])
async def test_a_flood_of_events_does_not_delay_the_limit_of_a_call(flood: str, legacy: str) -> None:
    flags = f"{legacy} --flood {flood}"
    raises = pytest.raises((ToolTimedOutError, ServerFailed))
    with faulty_http_server(*flags.split()) as url, anyio.fail_after(GUARD_S), raises as caught:
        await called(url, flags, 0.5)
    assert isinstance(caught.value, ToolTimedOutError) or flood in ("pings", "logs")


async def test_an_event_without_an_end_ends_the_stream() -> None:
    raises = pytest.raises(ServerFailed, match="a line longer than 10000000 bytes")
    with faulty_http_server("--legacy", "--flood", "endless") as url, anyio.fail_after(GUARD_S), raises:
        await called(url, "--legacy", GUARD_S)


@pytest.mark.parametrize("way", WAYS)
async def test_a_large_answer_arrives_whole(way: str) -> None:
    with faulty_http_server(*f"{way} --huge-result 3000000".split()) as url, anyio.fail_after(GUARD_S):
        result = await called(url, way, GUARD_S)
    assert result == ToolCallResult("hi" + "x" * 3_000_000)


@pytest.mark.parametrize("way", WAYS)
async def test_an_answer_with_too_many_values_arrives_as_its_json_text(way: str) -> None:
    notices: list[ServerNotice] = []
    with faulty_http_server(*f"{way} --rows 1000000".split()) as url, anyio.fail_after(GUARD_S):
        result = await called(url, way, GUARD_S, notices)
    assert isinstance(result.content, str)
    assert result.content == '{"rows": [' + ", ".join(["[]"] * 250_000) + "]}"
    assert [notice.kind for notice in notices] == ["too_large"]
