"""A message of megabytes is encoded by another encoder than a short one, with the same meaning."""

import json
from time import perf_counter
from typing import Any

import pytest

types = pytest.importorskip("mcp_types", reason="MCP servers need the extra: pip install 'grue[mcp]'")


@pytest.mark.parametrize(
    "arguments", [{"text": "é\n" * 9, "n": [1, 2.5, None, True], "o": {"a": {}}}, {"text": "\ud800"}, {}]
)
def test_both_encoders_write_the_same_message(arguments: dict[str, Any]) -> None:
    from grue.transports.mcp.message_stream import encode_large, encode_message

    params = {"name": "echo", "arguments": arguments}
    message = types.JSONRPCRequest(jsonrpc="2.0", id=7, method="tools/call", params=params)
    assert json.loads(encode_large(message)) == json.loads(encode_message(message))
    assert b"\n" not in encode_large(message)


def test_a_message_of_many_values_is_encoded_faster_than_by_pydantic() -> None:
    from grue.transports.mcp.message_stream import encode_large, encode_message

    params = {"name": "echo", "arguments": {"rows": [{"k": n, "v": f"text {n}"} for n in range(20_000)]}}
    message = types.JSONRPCRequest(jsonrpc="2.0", id=7, method="tools/call", params=params)
    best = {encode_large: 9.0, encode_message: 9.0}
    for encode in [*best] * 5:
        begun = perf_counter()
        encode(message)
        best[encode] = min(best[encode], perf_counter() - begun)
    assert best[encode_large] < best[encode_message]
