"""What the SDK's dispatcher gets to see of a line, and what it does not."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from grue.mcp_transport.sdk import read_message


def answer(line: bytes) -> Any:
    message = read_message(line)
    assert isinstance(message, JSONRPCResponse)
    return message.result


def test_the_four_kinds_of_message_are_read() -> None:
    assert isinstance(read_message(b'{"jsonrpc":"2.0","id":1,"method":"ping"}'), JSONRPCRequest)
    assert isinstance(read_message(b'{"jsonrpc":"2.0","method":"notifications/x"}'), JSONRPCNotification)
    assert answer(b'{"jsonrpc":"2.0","id":1,"result":{"a":1}}') == {"a": 1}
    error = read_message(b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}')
    assert isinstance(error, JSONRPCError)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (b'{"t": "caf\xff"}', {"t": "caf\ufffd"}),
        (b'{"t": "\\ud800"}', {"t": "\ud800"}),
        (b'{"big": 123456789012345678901234567890}', {"big": 123456789012345678901234567890}),
    ],
)
def test_a_fault_inside_a_text_does_not_lose_the_answer(result: bytes, expected: dict[str, Any]) -> None:
    assert answer(b'{"jsonrpc":"2.0","id":1,"result":' + result + b"}") == expected


def test_nan_does_not_lose_the_answer() -> None:
    assert str(answer(b'{"jsonrpc":"2.0","id":1,"result":{"n": NaN}}')["n"]) == "nan"


@pytest.mark.parametrize(
    "members", [b'"result":null', b'"result":[1]', b'"result":"x"', b'"error":"x"', b'"x":1']
)
def test_an_unusable_answer_becomes_an_error_for_its_request(members: bytes) -> None:
    message = read_message(b'{"jsonrpc":"2.0","id":7,' + members + b"}")
    assert isinstance(message, JSONRPCError)
    assert message.id == 7
    assert "not usable" in message.error.message


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"Listening...",
        b"\xff\xfe",
        b"[1]",
        b"null",
        b"7",
        b'{"x":1}',
        b"[" * 200_000,
        b'{"id":[],"r":1}',
    ],
)
def test_noise_is_no_message(line: bytes) -> None:
    assert read_message(line) is None


@given(
    st.binary()
    | st.dictionaries(
        st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error"]),
        st.none()
        | st.integers()
        | st.text()
        | st.lists(st.integers())
        | st.dictionaries(st.text(), st.text()),
    ).map(lambda value: json.dumps(value).encode())
)
def test_reading_never_raises(line: bytes) -> None:
    read_message(line)
