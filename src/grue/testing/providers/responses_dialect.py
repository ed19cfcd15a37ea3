"""Translate OpenAI's `/v1/responses` to chat completions and back, and check this format's own rules."""

import itertools
from collections.abc import Container, Iterator, Mapping
from itertools import groupby

from grue.testing.providers import chat_rules as shared
from grue.testing.providers.chat_rules import Json, Owed, given, pieces, words

path = "/responses"
SEALED_REASONING = "reasoning.encrypted_content"

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def to_chat(body: Json) -> Json:
    """Return a request to `/v1/responses` as a chat completions request."""
    chat = given(body, "model", "temperature", "top_p", "parallel_tool_calls", "stream", "user", "metadata")
    said = body.get("input") or []
    items = [{"role": "user", "content": said}] if isinstance(said, str) else said
    instructions = body.get("instructions")
    system = [{"role": "system", "content": instructions}] if instructions is not None else []
    chat["messages"] = [*system, *_messages(items)]
    if "tools" in body:
        chat["tools"] = [shared.chat_tool(tool, "parameters") for tool in body["tools"]]
    if (choice := body.get("tool_choice")) is not None:
        named = isinstance(choice, dict) and choice.get("type") == "function"
        chat["tool_choice"] = {"type": "function", "function": given(choice, "name")} if named else choice
    if (most := body.get("max_output_tokens")) is not None:
        chat["max_completion_tokens"] = most
    if (effort := (body.get("reasoning") or {}).get("effort")) is not None:
        chat["reasoning_effort"] = effort
    if shape := _response_format((body.get("text") or {}).get("format") or {}):
        chat["response_format"] = shape
    return chat


def _response_format(shape: Json) -> Json | None:
    if shape.get("type") == "json_schema":
        named = given(shape, "name", "schema", "strict", "description")
        return {"type": "json_schema", "json_schema": named}
    return {"type": "json_object"} if shape.get("type") == "json_object" else None


def _messages(items: list[Json]) -> Iterator[Json]:
    # Consecutive items that the model wrote become one message.
    for by_model, run in groupby(items, _is_by_model):
        if by_model:
            yield _assistant([*run])
        else:
            yield from _others([*run])


def _is_by_model(item: Json) -> bool:
    return item.get("type") in {"reasoning", "function_call"} or item.get("role") == "assistant"


def _assistant(items: list[Json]) -> Json:
    texts = [_text(item["content"]) for item in items if "content" in item and "role" in item]
    thoughts = [part["text"] for item in items for part in item.get("summary") or ()]
    calls = [
        shared.chat_call(item["call_id"], item["name"], item["arguments"])
        for item in items
        if item.get("type") == "function_call"
    ]
    return shared.assistant_message(texts, thoughts, calls)


def _others(items: list[Json]) -> Iterator[Json]:
    # Images and files in tool results go into a user message: a chat completion's tool result is text.
    waiting: list[Json] = []
    for item in items:
        if item.get("type") == "function_call_output":
            output = item["output"]
            waiting += [] if isinstance(output, str) else [each for each in output if "text" not in each]
            yield {"role": "tool", "tool_call_id": item["call_id"], "content": _text(output)}
            continue
        if waiting:
            yield {"role": "user", "content": _parts(waiting)}
            waiting = []
        role, said = "system" if item["role"] == "developer" else item["role"], item["content"]
        yield {"role": role, "content": said if isinstance(said, str) else _parts(said)}
    if waiting:
        yield {"role": "user", "content": _parts(waiting)}


def _text(said: str | list[Json]) -> str:
    if isinstance(said, str):
        return said
    return "".join(part.get("text") or part.get("refusal") or "" for part in said)


def _parts(parts: list[Json]) -> str | list[Json]:
    return shared.one_or_parts([*map(_part, parts)])


def _part(part: Json) -> Json:
    match part["type"]:
        case "input_image":
            return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
        case "input_file":
            return {"type": "file", "file": given(part, "filename", "file_data")}
        case _:
            return {"type": "text", "text": part["text"]}


def from_chat(completion: Json, request: Json) -> Json:
    """Return a chat completion as a Response, with encrypted reasoning if `request` asks for that."""
    message, finish = shared.first_choice(completion)
    why = _INCOMPLETE.get(finish)
    status = "incomplete" if why else "completed"
    return {
        "id": f"resp_{shared.number_of(message)}",
        "object": "response",
        "created_at": completion.get("created", 0),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": why} if why else None,
        "model": completion.get("model", request.get("model")),
        "output": [*_items(message, status, request.get("include") or ())],
        "usage": _usage(completion.get("usage") or {}),
        **_repeated(request),
    }


def _repeated(request: Json) -> Json:
    # OpenAI repeats these fields of a request in its Response.
    defaults: Json = {
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
    }
    return defaults | given(request, *defaults)


def _items(message: Json, status: str, include: Container[str]) -> Iterator[Json]:
    if reasoning := shared.reasoning_of(message):
        item: Json = {
            "id": f"rs_{shared.number_of(message)}",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": reasoning}],
        }
        yield item | ({"encrypted_content": shared.sealed(reasoning)} if SEALED_REASONING in include else {})
    text, refusal = message.get("content"), message.get("refusal")
    parts = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}] if text else []
    parts += [{"type": "refusal", "refusal": refusal}] if refusal else []
    if parts:
        yield {
            "id": f"msg_{shared.number_of(message)}",
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": parts,
        }
    for number, call in enumerate(message.get("tool_calls") or ()):
        yield {
            "id": f"fc_{shared.number_of(call, number)}",
            "type": "function_call",
            "status": "completed",
            "call_id": call["id"],
            "name": call["function"]["name"],
            "arguments": call["function"]["arguments"],
        }


def _usage(usage: Json) -> Json:
    sent, written = shared.details(usage, "prompt"), shared.details(usage, "completion")
    counted = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    return {
        "input_tokens": counted[0],
        "input_tokens_details": {
            "cached_tokens": sent.get("cached_tokens") or 0,
            "cache_write_tokens": sent.get("cache_write_tokens") or 0,
        },
        "output_tokens": counted[1],
        "output_tokens_details": {"reasoning_tokens": written.get("reasoning_tokens") or 0},
        "total_tokens": usage.get("total_tokens", sum(counted)),
    }


def owed(response: Json) -> dict[str, list[Json]]:
    """Return a reply's reasoning items by the id of each of its calls; without calls, by the reply's id."""
    items = response["output"]
    reasoning = [item for item in items if item["type"] == "reasoning"]
    ids = [item["call_id"] for item in items if item["type"] == "function_call"] or [response["id"]]
    return dict.fromkeys(ids, reasoning) if reasoning else {}


def broken_off() -> bytes:
    """Return the event that reports an error in the middle of a stream."""
    said = {"type": "error", "code": "server_error", "message": shared.BROKEN, "param": None}
    return shared.named_event({**said, "sequence_number": 99})


def events(response: Json, request: Json) -> Iterator[bytes]:
    """Yield the events of a streamed Response."""
    del request
    numbers = itertools.count()

    def event(kind: str, **content: object) -> bytes:
        return shared.named_event({"type": kind, "sequence_number": next(numbers), **content})

    begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    for index, item in enumerate(response["output"]):
        empty, steps = _item(item)
        yield event("response.output_item.added", output_index=index, item=empty)
        for kind, content in steps:
            yield event(f"response.{kind}", output_index=index, item_id=item["id"], **content)
        yield event("response.output_item.done", output_index=index, item=item)
    yield event(f"response.{response['status']}", response=response)


def _item(item: Json) -> tuple[Json, list[tuple[str, Json]]]:
    """Return an output item as a stream first shows it, and the events (kind, content) that fill it in."""
    match item["type"]:
        case "message":
            return {**item, "status": "in_progress", "content": []}, [*_parts_events(item["content"])]
        case "function_call":
            text = item["arguments"]
            steps = [("function_call_arguments.delta", {"delta": piece}) for piece in pieces(text)]
            done = ("function_call_arguments.done", {"arguments": text, "name": item["name"]})
            return {**item, "status": "in_progress", "arguments": ""}, [*steps, done]
        case "reasoning":
            begun = {key: value for key, value in item.items() if key != "encrypted_content"}
            return {**begun, "summary": []}, [*_parts_events(item["summary"])]
        case _:
            return item, []


# By a part's type: prefix of the part's events, prefix of its text's events, the events' field with the
# part's number, the part's field with the text, further fields of the text's events.
_PART_EVENTS: dict[str, tuple[str, str, str, str, Json]] = {
    "output_text": ("content_part", "output_text", "content_index", "text", {"logprobs": []}),
    "refusal": ("content_part", "refusal", "content_index", "refusal", {}),
    "summary_text": ("reasoning_summary_part", "reasoning_summary_text", "summary_index", "text", {}),
}


def _parts_events(parts: list[Json]) -> Iterator[tuple[str, Json]]:
    for number, part in enumerate(parts):
        of_part, of_text, index, field, more = _PART_EVENTS[part["type"]]
        yield f"{of_part}.added", {index: number, "part": {**part, field: ""}}
        for piece in pieces(part[field]):
            yield f"{of_text}.delta", {index: number, "delta": piece, **more}
        yield f"{of_text}.done", {index: number, field: part[field], **more}
        yield f"{of_part}.done", {index: number, "part": part}


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
    """Yield reasons to refuse a request. A repeated tool call needs the reasoning that `owed` has for it."""
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
        where = f"tools[{index}]"
        if "name" not in tool:
            yield f"Missing required parameter: '{where}.name'."
        yield from _unknown(where, tool, _TOOL_FIELDS)
        if tool.get("type") != "function":
            yield f"Invalid value: '{tool.get('type')}'. Supported values are: 'function'. ({where}.type)"
        yield from shared.misspelt(f"{where}.name", tool["name"])
    items = [] if isinstance(body["input"], str) else body["input"]
    for index, item in enumerate(items):
        yield from _check_item(f"input[{index}]", item)
    yield from _pairs(items)
    yield from _reasoning(items, owed, kept=body.get("store") is not False)


def _unknown(where: str, given: Json, known: frozenset[str]) -> Iterator[str]:
    for field in given.keys() - known:
        yield f"Unknown parameter: '{where}.{field}'."


def _check_item(where: str, item: Json) -> Iterator[str]:
    kind = item.get("type", "message")
    if kind not in _ITEM_FIELDS:
        supported = ", ".join(map(repr, _ITEM_FIELDS))
        yield f"Invalid value: '{kind}'. Supported values are: {supported}. ({where}.type)"
        return
    yield from _unknown(where, item, _ITEM_FIELDS[kind])
    if not str(item.get("id", start := _ID_STARTS[kind])).startswith(start):
        yield f"Invalid '{where}.id': '{item['id']}'. Expected an ID that begins with '{start}'."
    if kind == "function_call":
        yield from shared.misspelt(f"{where}.name", item["name"])
    if kind == "message":
        yield from _message(where, item)
    if kind == "function_call_output":
        yield from _check_parts(f"{where}.output", item["output"], _INPUT)


def _message(where: str, item: Json) -> Iterator[str]:
    if item.get("role") not in _PARTS:
        yield (
            f"Invalid value: '{item.get('role')}'. Supported values are: 'assistant', 'system', 'developer', "
            f"and 'user'. ({where}.role)"
        )
        return
    yield from _check_parts(f"{where}.content", item["content"], _PARTS[item["role"]])


def _check_parts(where: str, said: str | list[Json], known: Mapping[str, set[str]]) -> Iterator[str]:
    for number, part in enumerate([] if isinstance(said, str) else said):
        kind = str(part.get("type"))
        if kind not in known:
            supported = ", ".join(map(repr, known))
            place = f"{where}[{number}].type"
            yield f"Invalid value: '{kind}'. Supported values are: {supported}. ({place})"
            return
        yield from _unknown(f"{where}[{number}]", part, frozenset({"type", *known[kind]}))


def _pairs(items: list[Json]) -> Iterator[str]:
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
    """Yield errors: reasoning is changed, unknown, left out before a call, or without its call or answer."""
    # With `kept`, the endpoint stores its replies, so a request may leave out an item's encrypted content.
    sent = {item["id"]: item for group in owed.values() for item in group}
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
        content is not None
        and content != sent.get("encrypted_content")
        and (sent or not shared.is_sealed(content))
    ):
        yield f"The encrypted content for item {item['id']} could not be verified."
    elif sent and item.get("summary") != sent["summary"]:
        yield f"The summary of item {item['id']} does not match the item that was sent."
