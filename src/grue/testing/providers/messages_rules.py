"""The rules of Anthropic's `/v1/messages` beyond those of every format, with messages like Anthropic's."""

import re
from collections.abc import Iterator, Mapping

from grue.testing.providers.chat_shapes import Json, Owed, signature_of, words
from grue.testing.providers.messages_dialect import THINKING

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


def admission(headers: Mapping[str, str]) -> tuple[int, str] | None:
    """Return status and message for headers without a key or a version; `None` if both are there."""
    if not headers.get("x-api-key") and not headers.get("authorization"):
        return 401, "x-api-key header is required"
    if not headers.get("anthropic-version"):
        return 400, "anthropic-version: header is required"
    return None


def refusals(body: Json, owed: Owed) -> Iterator[str]:
    """Yield why the request is refused.

    Args:
        body: The request.
        owed: The thinking that it must repeat.
    """
    for field in ("model", "messages", "max_tokens"):
        if field not in body:
            yield f"{field}: Field required"
    yield from _extra("", body, _FIELDS)
    messages = body["messages"]
    if not isinstance(messages, list) or not messages:
        yield "messages: at least one message is required"
    yield from _settings(body)
    for index, message in enumerate(messages):
        yield from _message(f"messages.{index}", message)
    yield from _order(messages)
    for index, tool in enumerate(body.get("tools") or ()):
        yield from _tool(f"tools.{index}", tool)
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
        if choice["type"] in {"any", "tool"}:
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
    for number, block in enumerate(_blocks(message)):
        kind = block.get("type")
        if kind not in _ALLOWED[role]:
            yield f"{where}.content.{number}: `{kind}` blocks are not allowed in `{role}` messages"
            return
        yield from _extra(f"{where}.content.{number}.{kind}.", block, _BLOCK_FIELDS[kind])
        yield from _block(f"{where}.content.{number}.{kind}", block)
        yield from _inside(f"{where}.content.{number}.{kind}", block)


def _inside(where: str, block: Json) -> Iterator[str]:
    """Check the blocks inside a tool result."""
    content = block.get("content")
    for number, each in enumerate(content if isinstance(content, list) else ()):
        kind = each.get("type")
        if kind not in _IN_RESULT:
            yield f"{where}.content.{number}: Input tag '{kind}' does not match any of the expected tags"
            return
        yield from _extra(f"{where}.content.{number}.{kind}.", each, _BLOCK_FIELDS[kind])
        yield from _block(f"{where}.content.{number}.{kind}", each)


def _block(where: str, block: Json) -> Iterator[str]:
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
    """Check that each call is answered at the beginning of the next message, and each result has a call."""
    if messages[0].get("role") != "user":
        yield 'messages: first message must use the "user" role'
    if messages[-1].get("role") == "assistant":
        yield (
            "This model does not support assistant message prefill. "
            "The conversation must end with a user message."
        )
    waiting: list[str] = []
    for index, message in enumerate(messages):
        blocks = _blocks(message)
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


def _blocks(message: Json) -> list[Json]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _calls(message: Json) -> list[str]:
    return [block["id"] for block in _blocks(message) if block["type"] == "tool_use"]


def _results(message: Json) -> list[Json]:
    return [block for block in _blocks(message) if block["type"] == "tool_result"]


def _tool(where: str, tool: Json) -> Iterator[str]:
    yield from _extra(f"{where}.custom.", tool, _TOOL_FIELDS)
    if not _NAME.fullmatch(tool.get("name", "")):
        yield f"{where}.custom.name: String should match pattern '^{_NAME.pattern}$'"
    if (tool.get("input_schema") or {}).get("type") != "object":
        yield f"{where}.custom.input_schema.type: Input should be 'object'"


def _markers(body: Json) -> int:
    system = body.get("system")
    marked = [body, *(body.get("tools") or ()), *(system if isinstance(system, list) else ())]
    for message in body["messages"]:
        marked += _blocks(message)
        for result in _results(message):
            marked += result["content"] if isinstance(result.get("content"), list) else ()
    return sum(bool(each.get("cache_control")) for each in marked)


def _thinking(messages: list[Json], owed: Owed) -> Iterator[str]:
    """Check that thinking is repeated unchanged. It is required before its calls, and optional elsewhere."""
    sent = [block for blocks in owed.values() for block in blocks]
    for index, message in enumerate(messages):
        blocks = _blocks(message)
        for number, block in enumerate(blocks):
            if block["type"] == "thinking" and block not in sent and not _genuine(block):
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


def _genuine(block: Json) -> bool:
    return bool(block["signature"] == signature_of(block["thinking"]))
