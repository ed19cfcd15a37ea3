"""Events of a server by URL: a large one is read beside the SDK, which gets a stand-in for it."""

import json
from collections.abc import AsyncIterator

import pytest

pytest.importorskip("mcp_types", reason="MCP servers need the extra: pip install 'grue[mcp]'")
pytestmark = pytest.mark.anyio


class Source:
    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk

    async def aclose(self) -> None: ...


@pytest.mark.parametrize("size", [10, 2**20], ids=["small", "large"])
async def test_an_event_keeps_its_id_whatever_its_size(size: int) -> None:
    """Without the id a stream that breaks off after it is not resumed where it was."""
    from grue.transports.mcp.sdk_http import FilteredEvents

    said = {"jsonrpc": "2.0", "id": 7, "result": {"text": "x" * size}}
    written = b"event: message\nid: 42\nretry: 10\ndata: " + json.dumps(said).encode() + b"\n\n"
    events = FilteredEvents(Source(written), 7, {}, lambda *_: None, (2**22, 2**23))
    lines = b"".join([event async for event in events]).splitlines()
    assert [line for line in lines if not line.startswith(b"data:") and line] == [
        b"event: message",
        b"id: 42",
        b"retry: 10",
    ]


async def test_a_byte_order_mark_before_the_first_event_does_not_lose_it() -> None:
    from grue.transports.mcp.sdk_http import FilteredEvents

    source = Source(b"\xef\xbb\xbfdata: 1\n\n", b"data: 2\n\n")
    events = FilteredEvents(source, 7, {}, lambda *_: None, (2**22, 2**23))
    assert b"".join([event async for event in events]) == b"data: 1\n\ndata: 2\n\n"


def test_a_batch_that_the_sdk_cannot_parse_is_an_error_for_its_answer() -> None:
    import pydantic
    from mcp_types import jsonrpc_message_adapter

    from grue.transports.mcp.sdk_http import refusal_in

    with pytest.raises(pydantic.ValidationError) as unparsed:
        jsonrpc_message_adapter.validate_json('[{"jsonrpc": "2.0", "id": 7, "result": {}}]', by_name=False)
    refusal = refusal_in(unparsed.value)
    assert refusal is not None
    assert (refusal.id, "JSON-RPC batch" in refusal.error.message) == (7, True)


def test_an_array_in_a_message_of_the_server_is_no_batch() -> None:
    import pydantic
    from mcp_types import jsonrpc_message_adapter

    from grue.transports.mcp.sdk_http import refusal_in

    request = '{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": [{"id": 1}]}'
    with pytest.raises(pydantic.ValidationError) as unparsed:
        jsonrpc_message_adapter.validate_json(request, by_name=False)
    assert refusal_in(unparsed.value) is None
