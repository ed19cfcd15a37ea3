"""Which redirects are followed, and why others are not."""

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

import httpx2

from grue.runtime.processes.limits import ProcessLimits
from grue.tool_sessions.failures import WireFault
from grue.tool_sessions.server_specs import HttpServer
from grue.transports.mcp.sdk_http import _Client, _Head

SERVER = HttpServer(name="far", url="https://far.example/mcp")


@pytest.mark.parametrize(
    ("method", "target", "cause"),
    [
        ("POST", "https://far.example/other", None),
        ("GET", "https://far.example/other", "it would turn the request into a GET"),
        ("POST", "https://other.example/mcp", "what is sent is meant for the configured address only"),
        ("POST", "https://eve@far.example/mcp", "what is sent is meant for the configured address only"),
    ],
)
def test_only_a_redirect_to_the_same_server_by_the_same_method_is_followed(
    method: str, target: str, cause: str | None
) -> None:
    async def judged() -> object:
        stream: Any = SimpleNamespace(transport="http")
        request = httpx2.Request("POST", SERVER.url)
        response = httpx2.Response(307, request=request)
        response.next_request = httpx2.Request(method, target)
        async with _Client(stream, SERVER, ProcessLimits()) as client:
            return await client._judge(request, response, _Head(id=1, method="tools/call"))

    found = anyio.run(judged)
    if cause is None:
        assert isinstance(found, httpx2.Response)
    else:
        assert isinstance(found, WireFault)
        assert found.cause.endswith(cause)
