"""Translate Anthropic's `/v1/messages` to chat completions and back, and check this format's own rules."""

import json
import re
from collections.abc import Iterator, Mapping

from grue.testing.providers import chat_rules as shared
from grue.testing.providers.chat_rules import Json, Owed, Refusal, given, pieces, words

path = "/messages"
THINKING = frozenset({"thinking", "redacted_thinking"})

_CHOICES = {"auto": "auto", "none": "none", "any": "required"}
_STOPS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def to_chat(body: Json) -> Json:
    """Return a request to `/v1/messages` as a chat completions request."""
    chat = given(body, "model", "temperature", "top_p", "top_k", "max_tokens", "stream")
    chat["messages"] = [*_messages(body.get("messages") or [])]
    if (system := body.get("system")) is not None:
        content = system if isinstance(system, str) else shared.one_or_parts([_part(each) for each in system])
        chat["messages"].insert(0, {"role": "system", "content": content})
    if "tools" in body:
        chat["tools"] = [shared.chat_tool(tool, "input_schema") for tool in body["tools"]]
    if choice := body.get("tool_choice"):
        named = {"type": "function", "function": {"name": choice.get("name")}}
        chat["tool_choice"] = _CHOICES.get(choice["type"], named)
        if "disable_parallel_tool_use" in choice:
            chat["parallel_tool_calls"] = not choice["disable_parallel_tool_use"]
    if "stop_sequences" in body:
        chat["stop"] = body["stop_sequences"]
    if user := (body.get("metadata") or {}).get("user_id"):
        chat["user"] = user
    return {**chat, **_output(body.get("output_config") or {}), **_reasoning(body.get("thinking") or {})}


def _output(config: Json) -> Json:
    chat: Json = {}
    if shape := config.get("format"):
        named = {"name": "output", "schema": shape["schema"], "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": named}
    if effort := config.get("effort"):
        chat["reasoning_effort"] = effort
    return chat


def _reasoning(thinking: Json) -> Json:
    match thinking:
        case {"type": "enabled", "budget_tokens": budget}:
            return {"reasoning": {"max_tokens": budget}}
        case {"type": "disabled"}:
            return {"reasoning": {"enabled": False}}
        case {"type": _}:
            return {"reasoning": {"enabled": True}}
        case _:
            return {}


def _messages(messages: list[Json]) -> Iterator[Json]:
    for message in messages:
        blocks = _blocks_of(message)
        if message["role"] == "assistant":
            yield _assistant(blocks)
        else:
            yield from _user(message["role"], blocks)


def _user(role: str, blocks: list[Json]) -> Iterator[Json]:
    # Images and documents in tool results go into a later message: a chat completion's tool result is text.
    parts: list[Json] = []
    for block in blocks:
        if block["type"] != "tool_result":
            parts.append(_part(block))
            continue
        said = block.get("content") or ""
        inside = [{"type": "text", "text": said}] if isinstance(said, str) else said
        text = "".join(part["text"] for part in inside if part["type"] == "text")
        parts += [_part(part) for part in inside if part["type"] != "text"]
        yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": text}
    if parts:
        yield {"role": role, "content": shared.one_or_parts(parts)}


def _part(block: Json) -> Json:
    if block["type"] == "text":
        return {"type": "text", "text": block["text"], **given(block, "cache_control")}
    source = block.get("source") or {}
    if block["type"] == "document":
        url = f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "file", "file": {"filename": block.get("title") or "document", "file_data": url}}
    url = source.get("url") or f"data:{source.get('media_type')};base64,{source.get('data')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _assistant(blocks: list[Json]) -> Json:
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    thoughts = [block["thinking"] for block in blocks if block["type"] == "thinking"]
    calls = []
    for block in blocks:
        if block["type"] == "tool_use":
            arguments = json.dumps(block["input"], ensure_ascii=False, separators=(",", ":"))
            calls.append(shared.chat_call(block["id"], block["name"], arguments))
    return shared.assistant_message(texts, thoughts, calls)


def from_chat(completion: Json, request: Json) -> Json:
    """Return a chat completion as a Message."""
    message, finish = shared.first_choice(completion)
    content = [*_blocks(message)]
    refusal = message.get("refusal")
    stop = "refusal" if refusal else _STOPS.get(finish, finish)
    if stop == "end_turn" and message.get("tool_calls"):
        stop = "tool_use"
    explained = {"type": "refusal", "category": None, "explanation": refusal}
    return {
        "id": f"msg_{shared.number_of(message)}",
        "type": "message",
        "role": "assistant",
        "model": completion.get("model", request.get("model")),
        "content": content,
        "stop_reason": stop,
        "stop_sequence": (request.get("stop_sequences") or [None])[0] if stop == "stop_sequence" else None,
        "stop_details": explained if stop == "refusal" else None,
        "usage": _usage(completion.get("usage") or {}),
    }


def _blocks(message: Json) -> Iterator[Json]:
    if thinking := shared.reasoning_of(message):
        yield {"type": "thinking", "thinking": thinking, "signature": shared.signature_of(thinking)}
    if hidden := message.get("redacted_thinking"):
        yield {"type": "redacted_thinking", "data": hidden}
    if message.get("content"):
        yield {"type": "text", "text": message["content"], "citations": None}
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function["arguments"] or "{}"
        try:
            parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
        except ValueError:
            parsed = arguments
        yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": parsed}


def _usage(usage: Json) -> Json:
    sent, written = shared.details(usage, "prompt"), shared.details(usage, "completion")
    read, created = sent.get("cached_tokens") or 0, sent.get("cache_write_tokens") or 0
    # Unlike in chat completions, tokens read from or written to the cache are not part of the input tokens.
    counted = {
        "input_tokens": max(0, usage.get("prompt_tokens", 0) - read - created),
        "output_tokens": usage.get("completion_tokens", 0),
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": read,
    }
    if "reasoning_tokens" in written:
        counted["output_tokens_details"] = {"thinking_tokens": written["reasoning_tokens"]}
    return counted


def error(status: int, said: Json) -> Json:
    """Return an error in Anthropic's shape. Its type follows from `status`, or at 200 from `said["code"]`."""
    code = said.get("code")
    status = code if status == 200 and isinstance(code, int) else status
    kind = _ERROR_TYPES.get(
        status, "api_error" if status >= 500 or status == 200 else "invalid_request_error"
    )
    inner = {"type": kind, "message": said.get("message")}
    return {"type": "error", "error": inner, "request_id": f"req_{shared.number_of(said)}"}


def owed(message: Json) -> dict[str, list[Json]]:
    """Return a reply's thinking blocks by the id of each of its calls; without calls, by the reply's id."""
    blocks = message["content"]
    thinking = [block for block in blocks if block["type"] in THINKING]
    ids = [block["id"] for block in blocks if block["type"] == "tool_use"] or [message["id"]]
    return dict.fromkeys(ids, thinking) if thinking else {}


def broken_off() -> bytes:
    """Return the event that reports an error in the middle of a stream."""
    return shared.named_event(
        {"type": "error", "error": {"type": "overloaded_error", "message": shared.BROKEN}}
    )


def events(message: Json, request: Json) -> Iterator[bytes]:
    """Yield the events of a streamed Message."""
    del request
    usage = message["usage"]
    begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None, "stop_details": None}
    yield shared.named_event(
        {"type": "message_start", "message": {**begun, "usage": {**usage, "output_tokens": 1}}}
    )
    yield shared.named_event({"type": "ping"})
    for index, block in enumerate(message["content"]):
        empty, deltas = _block(block)
        yield shared.named_event({"type": "content_block_start", "index": index, "content_block": empty})
        for delta in deltas:
            yield shared.named_event({"type": "content_block_delta", "index": index, "delta": delta})
        yield shared.named_event({"type": "content_block_stop", "index": index})
    ended = given(message, "stop_reason", "stop_sequence", "stop_details")
    yield shared.named_event(
        {"type": "message_delta", "delta": {"stop_sequence": None, **ended}, "usage": usage}
    )
    yield shared.named_event({"type": "message_stop"})


def _block(block: Json) -> tuple[Json, list[Json]]:
    """Return a content block as it is at the start of its stream, and the deltas that complete it."""
    match block:
        case {"type": "text", "text": text}:
            return {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(text)]
        case {"type": "thinking", "thinking": text, "signature": signature}:
            thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(text)]
            proof = {"type": "signature_delta", "signature": signature}
            return {**block, "thinking": "", "signature": ""}, [*thoughts, proof]
        case {"type": "tool_use", "input": given_input}:
            text = (
                given_input if isinstance(given_input, str) else json.dumps(given_input, ensure_ascii=False)
            )
            # Anthropic sends an empty fragment first.
            fragments = ["", *pieces(text)]
            return {**block, "input": {}}, [
                {"type": "input_json_delta", "partial_json": each} for each in fragments
            ]
        case _:
            return block, []


MAX_CACHE_MARKERS = 4

_ID = re.compile(r"[a-zA-Z0-9_-]+")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_LEAST_BUDGET = 1024

_FIELDS = words(
    "model messages system max_tokens stop_sequences temperature top_p top_k thinking output_config stream "
    "tools tool_choice metadata service_tier container inference_geo cache_control speed diagnostics"
)
_TOOL_FIELDS = words(
    "name description input_schema cache_control type strict defer_loading allowed_callers input_examples "
    "eager_input_streaming"
)
_BLOCK_FIELDS = {
    kind: words(f"type {fields}")
    for kind, fields in {
        "text": "text cache_control citations",
        "image": "source cache_control",
        "document": "source cache_control citations context title",
        "tool_use": "id name input cache_control caller",
        "tool_result": "tool_use_id content is_error cache_control",
        "thinking": "thinking signature",
        "redacted_thinking": "data",
    }.items()
}
_IN_RESULT = frozenset({"text", "image", "document"})
_ALLOWED = {
    "user": frozenset({"text", "image", "document", "tool_result"}),
    "assistant": frozenset({"text", "tool_use", *THINKING}),
}


def admission(headers: Mapping[str, str]) -> Refusal | None:
    """Return a refusal if the API key or version header is missing, else `None`."""
    if not headers.get("x-api-key") and not headers.get("authorization"):
        needed = "x-api-key header is required (the scripted endpoint takes any: api_key='test')"
        return Refusal(status=401, words=needed)
    if not headers.get("anthropic-version"):
        return Refusal(words="anthropic-version: header is required")
    return None


def refusals(body: Json, owed: Owed) -> Iterator[str]:
    """Yield reasons to refuse a request. A repeated tool call needs the thinking that `owed` has for it."""
    missing = [field for field in ("model", "messages", "max_tokens") if field not in body]
    yield from (f"{field}: Field required" for field in missing)
    if missing:
        return
    yield from _extra("", body, _FIELDS)
    messages = body["messages"]
    if not isinstance(messages, list) or not messages:
        yield "messages: at least one message is required"
    yield from _settings(body)
    for index, message in enumerate(messages):
        yield from _message(f"messages.{index}", message)
    yield from _order(messages)
    for index, tool in enumerate(body.get("tools") or ()):
        where = f"tools.{index}.custom"
        yield from _extra(f"{where}.", tool, _TOOL_FIELDS)
        if not _NAME.fullmatch(tool.get("name", "")):
            yield f"{where}.name: String should match pattern '^{_NAME.pattern}$'"
        if (tool.get("input_schema") or {}).get("type") != "object":
            yield f"{where}.input_schema.type: Input should be 'object'"
    if not body.get("tools") and any(_calls(message) or _results(message) for message in messages):
        yield "Requests which include `tool_use` or `tool_result` blocks must define tools"
    if (marked := _markers(body)) > MAX_CACHE_MARKERS:
        yield f"A maximum of {MAX_CACHE_MARKERS} blocks with cache_control may be provided. Found {marked}."
    yield from _thinking(messages, owed)


def _extra(where: str, given: Json, known: frozenset[str]) -> Iterator[str]:
    for field in given.keys() - known:
        yield f"{where}{field}: Extra inputs are not permitted"


def _settings(body: Json) -> Iterator[str]:
    most, temperature = body["max_tokens"], body.get("temperature", 1)
    thinking, choice = body.get("thinking") or {}, body.get("tool_choice") or {"type": "auto"}
    if not isinstance(most, int) or most < 1:
        yield "max_tokens: Input should be greater than or equal to 1"
    if not 0 <= temperature <= 1:
        yield "temperature: range: 0..1"
    if choice["type"] not in {"auto", "none", "any", "tool"}:
        yield f"tool_choice: Input tag '{choice['type']}' does not match any of the expected tags"
    if thinking.get("type") == "enabled":
        budget = thinking.get("budget_tokens", 0)
        if budget < _LEAST_BUDGET:
            yield f"thinking.enabled.budget_tokens: Input should be greater than or equal to {_LEAST_BUDGET}"
        if budget >= most:
            yield "`max_tokens` must be greater than `thinking.budget_tokens`."
        if temperature != 1:
            yield "`temperature` may only be set to 1 when thinking is enabled."
    if thinking.get("type") in {"enabled", "adaptive"} and choice["type"] in {"any", "tool"}:
        yield "Thinking may not be enabled when tool_choice forces tool use."


def _message(where: str, message: Json) -> Iterator[str]:
    role = message.get("role")
    if role == "system":
        yield (
            'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, '
            'not "system" as an input message role.'
        )
    if role not in _ALLOWED:
        yield f"{where}.role: Input should be 'user' or 'assistant'"
        return
    yield from _extra(f"{where}.", message, frozenset({"role", "content"}))
    if not message.get("content"):
        yield f"{where}: {role} messages must have non-empty content"
    refusal = f"`{{}}` blocks are not allowed in `{role}` messages"
    yield from _check_content(where, _blocks_of(message), _ALLOWED[role], refusal)


def _check_content(where: str, blocks: list[Json], allowed: frozenset[str], refusal: str) -> Iterator[str]:
    for number, block in enumerate(blocks):
        kind, place = block.get("type"), f"{where}.content.{number}"
        if kind not in allowed:
            yield f"{place}: {refusal.format(kind)}"
            return
        yield from _extra(f"{place}.{kind}.", block, _BLOCK_FIELDS[kind])
        yield from _check_block(f"{place}.{kind}", block)
        if isinstance(inside := block.get("content"), list):
            refused = "Input tag '{}' does not match any of the expected tags"
            yield from _check_content(f"{place}.{kind}", inside, _IN_RESULT, refused)


def _check_block(where: str, block: Json) -> Iterator[str]:
    match block:
        case {"type": "image" | "document", "source": {"type": "base64"} as source}:
            yield from _extra(f"{where}.source.base64.", source, words("type media_type data"))
        case {"type": "image" | "document"}:
            yield f"{where}.source: Field required"
        case {"type": "text", "text": str(text)} if not text.strip():
            yield "messages: text content blocks must be non-empty"
        case {"type": "tool_use", "input": given} if not isinstance(given, dict):
            yield f"{where}.input: Input should be a valid dictionary"
        case {"type": "tool_use", "name": name} if not _NAME.fullmatch(name):
            yield f"{where}.name: String should match pattern '^{_NAME.pattern}$'"
        case {"type": "tool_use", "id": of} | {"type": "tool_result", "tool_use_id": of} if not _ID.fullmatch(
            of
        ):
            yield f"{where}.id: String should match pattern '^{_ID.pattern}$'"


def _order(messages: list[Json]) -> Iterator[str]:
    if messages[0].get("role") != "user":
        yield 'messages: first message must use the "user" role'
    if messages[-1].get("role") == "assistant":
        yield (
            "This model does not support assistant message prefill. "
            "The conversation must end with a user message."
        )
    waiting: list[str] = []
    for index, message in enumerate(messages):
        blocks = _blocks_of(message)
        answered = [
            block["tool_use_id"] for block in blocks[: len(waiting)] if block["type"] == "tool_result"
        ]
        if missing := [called for called in waiting if called not in answered]:
            yield (
                f"messages.{index - 1}: `tool_use` ids were found without `tool_result` blocks immediately "
                f"after: {', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` "
                "block in the next message."
            )
        for number, result in enumerate(blocks):
            if result["type"] == "tool_result" and result["tool_use_id"] not in waiting:
                yield (
                    f"messages.{index}.content.{number}: unexpected `tool_use_id` found in `tool_result` "
                    f"blocks: {result['tool_use_id']}. Each `tool_result` block must have a corresponding "
                    "`tool_use` block in the previous message."
                )
        waiting = _calls(message)
        if len(set(waiting)) < len(waiting):
            yield "messages: `tool_use` ids must be unique"


def _blocks_of(message: Json) -> list[Json]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _calls(message: Json) -> list[str]:
    return [block["id"] for block in _blocks_of(message) if block["type"] == "tool_use"]


def _results(message: Json) -> list[Json]:
    return [block for block in _blocks_of(message) if block["type"] == "tool_result"]


def _markers(body: Json) -> int:
    system = body.get("system")
    marked = [body, *(body.get("tools") or ()), *(system if isinstance(system, list) else ())]
    for message in body["messages"]:
        marked += _blocks_of(message)
        for result in _results(message):
            marked += result["content"] if isinstance(result.get("content"), list) else ()
    return sum(bool(each.get("cache_control")) for each in marked)


def _thinking(messages: list[Json], owed: Owed) -> Iterator[str]:
    # Thinking that came with tool calls must be sent back unchanged.
    sent = [block for blocks in owed.values() for block in blocks]
    for index, message in enumerate(messages):
        blocks = _blocks_of(message)
        for number, block in enumerate(blocks):
            if block["type"] != "thinking" or block in sent:
                continue
            if block["signature"] != shared.signature_of(block["thinking"]):
                yield f"messages.{index}.content.{number}: Invalid `signature` in `thinking` block"
        wanted = next((owed[called] for called in _calls(message) if called in owed), ())
        if blocks[: len(wanted)] == [*wanted]:
            continue
        if not any(block["type"] in THINKING for block in blocks):
            yield (
                f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
                f"`{blocks[0]['type']}`. When `thinking` is enabled, a final `assistant` message must start "
                "with a thinking block (preceding the lastmost set of `tool_use` and `tool_result` blocks)."
            )
        else:
            yield (
                f"messages.{index}.content: `thinking` or `redacted_thinking` blocks in the latest assistant "
                "message cannot be modified. These blocks must remain as they were in the original response."
            )
