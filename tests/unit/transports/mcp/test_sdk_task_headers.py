"""The headers that requests about a task carry, which the SDK's own stamp does not set."""

from typing import Any, cast

import anyio
import mcp_types as types
import pytest
from case_tables import each_case

from grue.messages import ServerName
from grue.tool_sessions.server_requests import Abilities
from grue.transports.mcp import sdk
from grue.transports.mcp.message_stream import MessageStream


def sent_headers(welcome: Any, method: str, params: dict[str, Any]) -> dict[str, str]:
    """What is sent with a request in a session that was welcomed like this."""
    sent: list[dict[str, Any]] = []

    async def send(_method: str, _params: Any, options: dict[str, Any]) -> dict[str, Any]:
        sent.append(options)
        return {}

    async def ask() -> None:
        link = sdk.Link(
            cast("MessageStream", object()), lambda _kind, _text: None, Abilities(), server=ServerName("s")
        )
        link._session.adopt(welcome)
        patch.setattr(link._dispatcher, "send_raw_request", send)
        await link.request(method, params)

    with pytest.MonkeyPatch.context() as patch:
        anyio.run(ask)
    headers: dict[str, str] = sent[0]["headers"]
    return headers


MODERN = types.DiscoverResult.model_validate(
    {"supportedVersions": ["2026-07-28"], "capabilities": {}, "ttlMs": 0, "cacheScope": "private"}
)
EARLIER = types.InitializeResult.model_validate(
    {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
)


@each_case("method", ["tasks/get", "tasks/update", "tasks/cancel"])
def test_load_balancers_find_the_server_of_a_task_by_its_name(method: str) -> None:
    headers = sent_headers(MODERN, method, {"taskId": "task-1"})
    assert (headers["mcp-name"], headers["mcp-method"]) == ("task-1", method)


def test_an_earlier_revision_has_no_such_header() -> None:
    assert "mcp-name" not in sent_headers(EARLIER, "tasks/get", {"taskId": "task-1"})
