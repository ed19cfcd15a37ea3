"""A message of megabytes is encoded by another encoder than a short one, with the same meaning."""

import json
from typing import Any

import msgspec
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


def test_the_values_of_a_large_message_are_encoded_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    from grue.transports.mcp import message_stream as stream

    params = {"name": "echo", "arguments": {"rows": [{"k": n, "v": f"text {n}"} for n in range(100)]}}
    message = types.JSONRPCRequest(jsonrpc="2.0", id=7, method="tools/call", params=params)
    given: list[Any] = []
    encode = msgspec.json.encode
    monkeypatch.setattr(msgspec.json, "encode", lambda value: given.append(value) or encode(value))
    assert json.loads(stream.encode_large(message)) == json.loads(stream.encode_message(message))
    (fields,) = given
    assert fields["params"] is message.params
