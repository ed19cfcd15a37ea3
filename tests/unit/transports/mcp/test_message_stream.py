"""A message is encoded as one line, whatever its arguments hold."""

import json
from typing import Any

import pytest

types = pytest.importorskip("mcp_types", reason="MCP servers need the extra: pip install 'grue[mcp]'")


@pytest.mark.parametrize(
    "arguments",
    [{"text": "é\n" * 9, "n": [1, 2.5, None, True, 2**70], "o": {"a": {}}}, {"text": "\ud800"}, {}],
)
def test_a_message_is_one_line_with_the_same_values(arguments: dict[str, Any]) -> None:
    from grue.transports.mcp.message_stream import encode_message

    params = {"name": "echo", "arguments": arguments}
    message = types.JSONRPCRequest(jsonrpc="2.0", id=7, method="tools/call", params=params)
    line = encode_message(message)
    assert json.loads(line) == {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    assert b"\n" not in line
