"""The rules of OpenAI's `/v1/responses` beyond those of every format, with messages like OpenAI's."""

import re
from collections.abc import Iterator, Mapping

from grue.testing.providers.chat_shapes import Json, Owed, is_sealed, words

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LEAST_OUTPUT = 16

_FIELDS = words(
    "model input instructions max_output_tokens max_tool_calls metadata parallel_tool_calls prompt store "
    "previous_response_id prompt_cache_key prompt_cache_retention reasoning safety_identifier service_tier "
    "stream stream_options temperature text tool_choice tools top_logprobs top_p truncation include user "
    "background conversation context_management moderation prompt_cache_options"
)
_MOVED = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}
_MOVED |= {"max_completion_tokens": "max_output_tokens", "reasoning_effort": "reasoning.effort"}
_ITEM_FIELDS = {
    kind: words(f"type {fields}")
    for kind, fields in {
        "message": "role content id status phase",
        "function_call": "call_id name arguments id status",
        "function_call_output": "call_id output id status",
        "reasoning": "id summary content encrypted_content status",
    }.items()
}
_ID_STARTS = {"message": "msg", "function_call": "fc", "reasoning": "rs", "function_call_output": "fc"}
_TOOL_FIELDS = frozenset({"type", "name", "description", "parameters", "strict", "defer_loading"})
_INPUT = {
    "input_text": {"text"},
    "input_image": {"image_url", "detail", "file_id"},
    "input_file": {"filename", "file_data", "file_id", "file_url", "detail"},
}
_PARTS = {
    "assistant": {"output_text": {"text", "annotations", "logprobs"}, "refusal": {"refusal"}},
    "user": _INPUT,
    "system": {"input_text": {"text"}},
    "developer": {"input_text": {"text"}},
}


def refusals(body: Json, owed: Owed) -> Iterator[str]:
    """Yield why the request is refused.

    Args:
        body: The request.
        owed: The reasoning that it must repeat.
    """
    for field in body.keys() - _FIELDS:
        if field in _MOVED:
            yield (
                f"Unsupported parameter: '{field}'. In the Responses API, this parameter has moved to "
                f"'{_MOVED[field]}'."
            )
        yield f"Unknown parameter: '{field}'."
    if not body.get("input"):
        yield "Missing required parameter: 'input'."
    most = body.get("max_output_tokens")
    if most is not None and most < _LEAST_OUTPUT:
        yield (
            "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= "
            f"{_LEAST_OUTPUT}, but got {most} instead."
        )
    for index, tool in enumerate(body.get("tools") or ()):
        yield from _tool(f"tools[{index}]", tool)
    items = [] if isinstance(body["input"], str) else body["input"]
    for index, item in enumerate(items):
        yield from _item(f"input[{index}]", item)
    yield from _pairs(items)
    yield from _reasoning(items, owed, kept=body.get("store") is not False)


def _tool(where: str, tool: Json) -> Iterator[str]:
    if "name" not in tool:
        yield f"Missing required parameter: '{where}.name'."
    yield from _unknown(where, tool, _TOOL_FIELDS)
    if tool.get("type") != "function":
        yield f"Invalid value: '{tool.get('type')}'. Supported values are: 'function'. ({where}.type)"
    yield from _name(where, tool["name"])


def _name(where: str, name: str) -> Iterator[str]:
    if not _NAME.fullmatch(name):
        yield (
            f"Invalid '{where}.name': string does not match pattern. "
            "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        )


def _unknown(where: str, given: Json, known: frozenset[str]) -> Iterator[str]:
    for field in given.keys() - known:
        yield f"Unknown parameter: '{where}.{field}'."


def _item(where: str, item: Json) -> Iterator[str]:
    kind = item.get("type", "message")
    if kind not in _ITEM_FIELDS:
        supported = ", ".join(map(repr, _ITEM_FIELDS))
        yield f"Invalid value: '{kind}'. Supported values are: {supported}. ({where}.type)"
        return
    yield from _unknown(where, item, _ITEM_FIELDS[kind])
    if not str(item.get("id", start := _ID_STARTS[kind])).startswith(start):
        yield f"Invalid '{where}.id': '{item['id']}'. Expected an ID that begins with '{start}'."
    if kind == "function_call":
        yield from _name(where, item["name"])
    if kind == "message":
        yield from _message(where, item)
    if kind == "function_call_output":
        yield from _parts(f"{where}.output", item["output"], _INPUT)


def _message(where: str, item: Json) -> Iterator[str]:
    if item.get("role") not in _PARTS:
        yield (
            f"Invalid value: '{item.get('role')}'. Supported values are: 'assistant', 'system', 'developer', "
            f"and 'user'. ({where}.role)"
        )
        return
    yield from _parts(f"{where}.content", item["content"], _PARTS[item["role"]])


def _parts(where: str, said: str | list[Json], known: Mapping[str, set[str]]) -> Iterator[str]:
    for number, part in enumerate([] if isinstance(said, str) else said):
        kind = str(part.get("type"))
        if kind not in known:
            supported = ", ".join(map(repr, known))
            place = f"{where}[{number}].type"
            yield f"Invalid value: '{kind}'. Supported values are: {supported}. ({place})"
            return
        yield from _unknown(f"{where}[{number}]", part, frozenset({"type", *known[kind]}))


def _pairs(items: list[Json]) -> Iterator[str]:
    """Check that every call has an output after it, and every output a call before it."""
    waiting: list[str] = []
    for item in items:
        if item.get("type") == "function_call":
            waiting.append(item["call_id"])
        elif item.get("type") == "function_call_output":
            if item["call_id"] not in waiting:
                yield f"No tool call found for function call output with call_id {item['call_id']}."
                return
            waiting.remove(item["call_id"])
    for call_id in waiting:
        yield f"No tool output found for function call {call_id}."


def _reasoning(items: list[Json], owed: Owed, *, kept: bool) -> Iterator[str]:
    """Check that reasoning is repeated unchanged. It is required before its calls, and optional elsewhere.

    With `kept`, the endpoint stores its replies, so that an item's id is enough.
    """
    # Reasoning that was sent in another format has no ids.
    sent = {item["id"]: item for group in owed.values() for item in group if "id" in item}
    run: list[str] = []
    for item, following in zip(items, [*items[1:], {}], strict=False):
        kind = item.get("type")
        if kind == "reasoning":
            run.append(item["id"])
            yield from _sealed(item, sent.get(item["id"], {}), kept=kept)
            if following.get("type") not in {"reasoning", "function_call"} and not _is_answer(following):
                yield f"Item '{item['id']}' of type 'reasoning' was provided without its following item."
        elif kind == "function_call":
            for wanted in owed.get(item["call_id"], ()):
                if wanted["id"] not in run:
                    yield (
                        f"Item '{item.get('id', item['call_id'])}' of type 'function_call' was provided "
                        f"without its required 'reasoning' item: '{wanted['id']}'."
                    )
        elif not _is_answer(item):
            run = []


def _is_answer(item: Json) -> bool:
    return item.get("role") == "assistant"


def _sealed(item: Json, sent: Json, *, kept: bool) -> Iterator[str]:
    content = item.get("encrypted_content")
    if content is None and not (kept and sent):
        yield (
            f"Item with id '{item['id']}' not found. Items are not persisted when `store` is set to false. "
            "Try again with `store` set to true, or remove this item from your input."
        )
    elif (
        content is not None and content != sent.get("encrypted_content") and (sent or not is_sealed(content))
    ):
        yield f"The encrypted content for item {item['id']} could not be verified."
    elif sent and item.get("summary") != sent["summary"]:
        yield f"The summary of item {item['id']} does not match the item that was sent."
