"""Decode a server's bytes to a message of the SDK. Decoding never raises, whatever the bytes are.

- If the id of an unusable or cut answer can be read, the answer becomes an error for its request, which then
  does not wait for its timeout.
- A tool result with more than `MAX_VALUES` values keeps its large parts as JSON text. Decoding them would
  block every thread of the host, and take many times the memory. Any other result of this size becomes an
  error. Requests and notifications of this size are dropped.
"""

import codecs
import json
import math
import re
from typing import Any, Literal

import mcp_types as types
import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from grue.protocol.json_text import MAX_DEPTH, json_value
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.results import JsonText
from grue.runtime.large_data import CutLineError, count_of
from grue.runtime.loops.beside_loop import aside

MAX_VALUES = tool_results.MAX_JSON_VALUES

_SMALL_BYTES = 16_384
_SHOWN_CHARS = 200
_MAX_BLOCKS = 1000
_MAX_DIGITS = 4300
_CHECK_DEPTH_FROM = 100
_DEPTH = MAX_DEPTH + 20  # most levels of a message, whose content may have `MAX_DEPTH` levels itself
_BATCH = (
    "The server sent its answer in a JSON-RPC batch, an array of messages. MCP no longer has batches, and"
    " grue reads none: the server has to send each message by itself."
)
_ID = rb'"id"\s*:\s*(-?[0-9]{1,18}|"[^"\\]{1,100}")'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID_AT_START = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb'\s*,\s*"(?:result|error)"')
_RESULT_AT_START = re.compile(rb'\s*\{\s*"(?:result|error)"')
_ID_AT_END = re.compile(rb"[{,]\s*" + _ID + rb"\s*(?:,\s*" + _VERSION + rb"\s*)?\}\s*$")


def without_mark(text: bytes) -> bytes:
    """Return UTF-8 text without the byte order mark that programs in .NET may write before it."""
    return text.removeprefix(codecs.BOM_UTF8)


async def read_message(line: bytes) -> types.JSONRPCMessage | None:
    """Return the message of a line, an error in place of an unusable answer, or `None` for anything else."""
    line = without_mark(line)
    if len(line) <= _SMALL_BYTES:
        value = _decode(line)
    else:
        # A thread helps: most of the work is in `json_value`, which is Python code, so other threads can run.
        value = await aside(_decode_partly if values_in(line) > MAX_VALUES else _decode, line)
    return _refusal_of_text(line) if value is None else _message_of(value)


def refusal_of_cut(cut: CutLineError, limit: int) -> types.JSONRPCError | None:
    """Return the error to deliver in place of a line that is too long; `None`: it has no answer's id."""
    found = _ID_AT_START.match(cut.head) or _ID_AT_END.search(cut.tail)
    if found is None:
        return None
    text = (
        f"The server's answer is too large: {cut.size} bytes, and at most {limit} are read"
        " (ProcessLimits.max_message_bytes). Ask for less at a time."
    )
    return _refusal(_decode(found[1]), text)


def refusal_of(value: object) -> types.JSONRPCError | None:
    """Return the error to deliver in place of an unusable answer, or of the first answer in a batch (array).

    `None`: `value` is not an answer, or its id cannot be read.
    """
    if isinstance(value, list):
        answers = (each for each in value if isinstance(each, dict) and "method" not in each)
        return next((found for each in answers if (found := _refusal(each.get("id"), _BATCH))), None)
    if not isinstance(value, dict) or "method" in value:
        return None
    member = "error" if "error" in value else "result"
    return _refusal(
        value.get("id"), f"The server's answer is not usable: {member} is {_shown(value.get(member))}"
    )


def _refusal_of_text(line: bytes) -> types.JSONRPCError | None:
    """Return the error to deliver in place of an answer that cannot be decoded, if it begins as one."""
    # A line of a log may end as an answer does, so an id at the end counts only if the line begins as one.
    found = _ID_AT_START.match(line) or (_RESULT_AT_START.match(line) and _ID_AT_END.search(line))
    if not found:
        return None
    text = "The server's answer is not usable: it is not JSON, or too deeply nested"
    return _refusal(_decode(found[1]), text)


def values_in(text: bytes) -> int:
    """Estimate the number of values in a JSON text. Brackets and commas in strings count too."""
    return count_of(text, "[{,")


def _refusal(request_id: object, text: str) -> types.JSONRPCError | None:
    if isinstance(request_id, bool) or not isinstance(request_id, int | str):
        return None
    error = types.ErrorData(code=types.INTERNAL_ERROR, message=text)
    try:
        return types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error)
    except ValueError:  # the id is not valid Unicode
        return None


def _shown(value: object) -> str:
    match value:
        case None | bool() | float():
            return json.dumps(value)
        case int():
            return json.dumps(value) if value.bit_length() < _MAX_DIGITS else "a number"
        case str():
            return json.dumps(value[:_SHOWN_CHARS])
        case dict():
            return f"an object with {len(value)} members"
        case _:
            return "an array"


def _message_of(value: object) -> types.JSONRPCMessage | None:
    if not isinstance(value, dict):
        return refusal_of(value)
    value.setdefault("jsonrpc", "2.0")
    try:
        message = types.jsonrpc_message_adapter.validate_python(value, by_name=False)
    except (ValueError, RecursionError):
        return refusal_of(value)
    return message if is_usable(message) else None


def is_usable(message: types.JSONRPCMessage) -> bool:
    """Return whether the SDK can handle a message: a huge number in a progress notification crashes it."""
    if not isinstance(message, types.JSONRPCNotification) or message.method != "notifications/progress":
        return True
    params = message.params if isinstance(message.params, dict) else {}
    given = (params.get(name) for name in ("progress", "total"))
    try:
        return all(math.isfinite(float(value)) for value in given if isinstance(value, int | float))
    except OverflowError:
        return False


def _decode(line: bytes) -> object:
    try:
        value: object = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        value = _decode_damaged(line)
        if value is None:
            return None
    # Limit the nesting, because code that walks the value later recurses once per level.
    if count_of(line, "[{") > _CHECK_DEPTH_FROM:
        return json_value(value, depth=_DEPTH)
    return value


def _decode_damaged(line: bytes) -> object:
    """Decode JSON even with invalid UTF-8, a NaN or a lone surrogate; `None`: it is no JSON, or too deep."""
    text = line.decode("utf-8", "replace")
    try:
        return json.loads(
            text, parse_int=lambda digits: int(digits) if len(digits) <= _MAX_DIGITS else digits
        )
    except (ValueError, RecursionError):
        return None


class _Undecoded(Struct):
    jsonrpc: str = "2.0"
    id: int | str | None = None
    method: str | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class _Result(Struct):
    content: list[Raw] | UnsetType = UNSET
    structuredContent: Raw | UnsetType = UNSET  # noqa: N815 - as the protocol spells it
    isError: bool | UnsetType = UNSET  # noqa: N815 - likewise


class _Text(Struct):
    type: Literal["text"]
    text: str


class _Error(Struct):
    code: int
    message: str


def _decode_partly(line: bytes) -> object:
    """Decode an answer, except large parts of a tool result. Any other kind of result becomes an error.

    `None`: the line is not an answer.
    """
    try:
        envelope = msgspec.json.decode(line, type=_Undecoded)
    except (ValueError, RecursionError):
        return None
    if envelope.method is not UNSET:
        return None
    answer: dict[str, Any] = {"jsonrpc": envelope.jsonrpc, "id": envelope.id}
    try:
        if isinstance(envelope.error, Raw):
            error = msgspec.json.decode(envelope.error, type=_Error)
            return {**answer, "error": {"code": error.code, "message": error.message}}
        if isinstance(envelope.result, Raw):
            result = msgspec.json.decode(envelope.result, type=_Result)
            if result.content is not UNSET or result.structuredContent is not UNSET:
                return {**answer, "result": _result_of(result)}
    except (ValueError, RecursionError):
        pass
    text = f"The server's answer is too large: it has more than {MAX_VALUES} values"
    return {**answer, "error": {"code": types.INTERNAL_ERROR, "message": text}}


def _result_of(result: _Result) -> dict[str, Any]:
    members: dict[str, Any] = {}
    if isinstance(result.structuredContent, Raw):
        written = bytes(result.structuredContent)
        small = values_in(written) <= MAX_VALUES
        members["structuredContent"] = _decode(written) if small else _json_text(written)
    if isinstance(result.content, list):
        members["content"] = _blocks(result.content)
    if result.isError is not UNSET:
        members["isError"] = result.isError
    return members


def _blocks(blocks: list[Raw]) -> list[object]:
    if len(blocks) <= _MAX_BLOCKS:
        return [_block(bytes(block)) for block in blocks]
    written = b"[" + b",".join(bytes(block) for block in blocks) + b"]"
    return [{"type": "text", "text": _json_text(written)}]


def _block(written: bytes) -> object:
    if values_in(written) <= MAX_VALUES:
        return _decode(written)
    try:
        # The block may be one long text with many commas, which `values_in` has counted as values.
        return msgspec.to_builtins(msgspec.json.decode(written, type=_Text))
    except (ValueError, RecursionError):
        return {"type": "text", "text": _json_text(written)}


def _json_text(written: bytes) -> JsonText:
    return JsonText(written.decode("utf-8", "replace"))
