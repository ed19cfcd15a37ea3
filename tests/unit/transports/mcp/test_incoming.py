"""What the SDK's dispatcher gets to see of a line, and what it does not."""

import json
from typing import Any

import anyio
import pytest
from case_tables import each_case
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from grue.protocol.tools.results import JsonText
from grue.runtime.large_data import CutLineError
from grue.transports.mcp import incoming
from grue.transports.mcp.incoming import MAX_VALUES, refusal_of_cut


def read_message(line: bytes) -> JSONRPCMessage | None:
    return anyio.run(incoming.read_message, line)


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


@pytest.mark.parametrize("length", [1, 20_000])
def test_a_byte_order_mark_does_not_lose_the_answer(length: int) -> None:
    line = b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"result":{"t":"' + b"x" * length + b'"}}'
    assert isinstance(read_message(line), JSONRPCResponse)


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
        b'{"jsonrpc":"2.0","id":7,"result":{"content":[}}',
        b'{"result":{"content":[},"jsonrpc":"2.0","id":7}',
        b'\xef\xbb\xbf{"id":7,"result":[}',
        b'{"id":7,"result":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"id":7,"error":{"code":1,"message":"\\ud800","data":[' + b"1," * MAX_VALUES + b"1]}}",
    ],
    ids=["broken", "id_at_the_end", "mark", "deep", "large_with_a_lone_surrogate"],
)
def test_an_answer_that_cannot_be_decoded_becomes_an_error_for_its_request(line: bytes) -> None:
    message = read_message(line)
    assert isinstance(message, JSONRPCError)
    assert message.id == 7
    assert "not usable" in message.error.message


def test_a_batch_is_an_error_for_the_answer_in_it() -> None:
    notice, answer = (
        b'{"method":"notifications/message","params":{}}',
        b'{"jsonrpc":"2.0","id":7,"result":{}}',
    )
    message = read_message(b"[" + notice + b", 1, " + answer + b"]")
    assert isinstance(message, JSONRPCError)
    assert message.id == 7
    assert "JSON-RPC batch" in message.error.message
    assert read_message(b"[" + notice + b"]") is None


@each_case(
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
        b'{"id":true,"result":null}',
        b'{"id":true,"result":{}}',
        b'{"id":1.5,"result":{}}',
        b'sent {"result":{},"jsonrpc":"2.0","id":7}',
        b'{"method":"x","params":{"a":[},"id":7}',
        b'{"id":007,"result":{}}',
        b'{"id":"\n","result":[}',
        b'{"method":"notifications/progress","params":{"progressToken":1,"progress":1' + b"0" * 400 + b"}}",
    ],
)
def test_noise_is_no_message(line: bytes) -> None:
    assert read_message(line) is None


@pytest.mark.parametrize(
    "unusable",
    [
        b'"result":[' + b"[" * 900 + b"]" * 900 + b"]",
        b'"result":"' + b"x" * 1000 + b'"',
        b'"error":{"code":"' + b"x" * 1000 + b'"}',
        b'"result":1' + b"0" * 5000,
        b'"result":"\\ud800"',
    ],
)
def test_an_unusable_answer_is_shown_in_few_words(unusable: bytes) -> None:
    message = read_message(b'{"id":7,' + unusable + b"}")
    assert isinstance(message, JSONRPCError)
    assert len(message.error.message) < 300
    message.model_dump_json()


def test_a_deep_value_is_given_on_as_deep_as_it_can_be_written() -> None:
    deep = answer(b'{"id":1,"result":{"deep":' + b"[" * 800 + b"]" * 800 + b"}}")
    assert "nested too deeply" in json.dumps(deep)


def large(result: str) -> Any:
    message = read_message(b'{"jsonrpc":"2.0","id":1,"result":' + result.encode() + b"}")
    if isinstance(message, JSONRPCResponse):
        return message.result
    assert isinstance(message, JSONRPCError)
    assert message.id == 1
    return message.error.message


ROWS = json.dumps([{"n": 1}] * MAX_VALUES)


def test_a_large_message_with_few_values_is_read_as_any_other() -> None:
    text = "a, b [c] {d}" * 10_000
    result = {
        "content": [{"type": "text", "text": text}],
        "isError": True,
        "structuredContent": {"n": [1, 2]},
    }
    assert large(json.dumps(result)) == result


def test_structured_content_with_too_many_values_is_kept_as_its_text() -> None:
    result = large(
        f'{{"content":[{{"type":"text","text":"short"}}],"structuredContent":{ROWS},"isError":false}}'
    )
    assert result == {
        "content": [{"type": "text", "text": "short"}],
        "structuredContent": ROWS,
        "isError": False,
    }
    assert isinstance(result["structuredContent"], JsonText)


def test_commas_in_a_text_are_no_values() -> None:
    content = [{"type": "text", "text": ROWS}]
    assert large(json.dumps({"content": content})) == {"content": content}


def test_too_many_blocks_are_one_text_and_so_is_one_with_too_many_values() -> None:
    block = '{"type":"text","text":""}'
    blocks = ",".join([block] * 30_000)
    assert large(f'{{"content":[{blocks}]}}')["content"] == [{"type": "text", "text": f"[{blocks}]"}]
    odd = f'{{"type":"odd","rows":{ROWS}}}'
    content = large(f'{{"content":[{block},{odd}]}}')["content"]
    assert content == [json.loads(block), {"type": "text", "text": odd}]


@pytest.mark.parametrize("result", [f'{{"tools":{ROWS}}}', ROWS])
def test_another_answer_with_too_many_values_is_an_error(result: str) -> None:
    assert "too large" in large(result)


def test_an_error_with_too_many_values_keeps_code_and_message() -> None:
    line = f'{{"id":1,"error":{{"code":-5,"message":"no","data":{ROWS}}}}}'
    message = read_message(line.encode())
    assert isinstance(message, JSONRPCError)
    assert (message.error.code, message.error.message, message.error.data) == (-5, "no", None)


def test_a_request_with_too_many_values_is_no_message() -> None:
    assert read_message(f'{{"id":1,"method":"x","params":{ROWS}}}'.encode()) is None


@pytest.mark.parametrize(
    ("head", "tail", "request_id"),
    [
        ('{"jsonrpc":"2.0","id":3,"result":{"content":', "}}", 3),
        ('{"id": "a-1", "jsonrpc": "2.0", "result": {', "}}", None),
        ('{"id": "a-1", "result": {', "}}", "a-1"),
        ('{"result":{"content":', '}],"jsonrpc":"2.0","id":3}', 3),
        ('{"result":{"content":', '}],"id":3,"jsonrpc":"2.0"} ', 3),
        ('{"result":{"content":', '"id":3}}', None),
        ('{"result":{"content":', r"\"id\":3}", None),
        ('{"jsonrpc":"2.0","id":3,"method":"ping"', "}}", None),
        ('{"jsonrpc":"2.0","id":true,"result":{', "}}", None),
        ('{"id":007,"result":{', "}}", None),
    ],
)
def test_an_answer_that_was_too_long_fails_the_request_that_its_ends_name(
    head: str, tail: str, request_id: object
) -> None:
    error = refusal_of_cut(CutLineError(head.encode(), tail.encode(), 10**8), 1000)
    assert (error and error.id) == request_id
    assert error is None or "100000000 bytes" in error.error.message


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_reading_the_ends_never_raises(head: bytes, tail: bytes) -> None:
    refusal_of_cut(CutLineError(head, tail, 10**8), 1000)


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
