"""The rules of strict providers for a chat completions request; and functions that the formats share.

No provider has all of these rules, but every provider should accept a request that keeps all of them.
"""

import base64
import binascii
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

Json: TypeAlias = dict[str, Any]

# The exceptions that code for well-formed bodies raises if a body is malformed.
MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError)

# The reasoning of earlier replies, by the id of each tool call that followed it: a request with the call has
# to repeat the reasoning unchanged (see `echo_reasoning`). Reasoning without a call: by the reply's id.
Owed: TypeAlias = Mapping[str, Sequence[Json]]
_SIGNED = "scripted-"
_SEALED = "gAAAA"


class Refusal(Struct, frozen=True, kw_only=True):
    """The refusal of a request: the HTTP status and the error message."""

    status: int = 400
    words: str


def words(text: str) -> frozenset[str]:
    """Return the set of the words in a text."""
    return frozenset(text.split())


def first_choice(completion: Json) -> tuple[Json, str]:
    """Return the assistant's message of a completion, and its finish reason (`stop` if it names none)."""
    choice = completion["choices"][0]
    return choice["message"], choice.get("finish_reason") or "stop"


def reasoning_of(message: Json) -> str:
    """Return a message's reasoning, from either of the two fields that providers use."""
    return str(message.get("reasoning_content") or message.get("reasoning") or "")


def details(usage: Json, which: str) -> Json:
    """Return the `prompt` or `completion` details of a usage object; empty if missing."""
    found: Json = usage.get(f"{which}_tokens_details") or {}
    return found


def given(body: Json, *names: str) -> Json:
    """Return the named fields of `body` that are present and not null."""
    return {name: body[name] for name in names if body.get(name) is not None}


def one_or_parts(parts: list[Json]) -> str | list[Json]:
    """Return the content of a chat message: a string for one text without a cache marker, else a list."""
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        return str(parts[0]["text"])
    return parts


def assistant_message(texts: list[str], thoughts: list[str], calls: list[Json]) -> Json:
    """Return the assistant's message with these texts, reasoning and tool calls."""
    message: Json = {"role": "assistant", "content": "".join(texts) if texts else None}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    return message | ({"tool_calls": calls} if calls else {})


def chat_call(call_id: str, name: str, arguments: str) -> Json:
    """Return a tool call in the form of chat completions; `arguments` is JSON text."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chat_completion(message: Mapping[str, object], finish_reason: str, usage: Mapping[str, object]) -> Json:
    """Return a chat completion with one choice."""
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
    named = {"id": "chatcmpl-scripted", "object": "chat.completion", "created": 0, "model": "scripted"}
    return {**named, "choices": [choice], "usage": usage}


def chat_tool(tool: Json, parameters: str) -> Json:
    """Return a tool in the form of chat completions; `tool[parameters]` is its schema."""
    function = {"name": tool.get("name"), "parameters": tool.get(parameters), **given(tool, "description")}
    return {"type": "function", "function": function | ({"strict": True} if tool.get("strict") else {})}


def number_of(*said: object) -> str:
    """Return a digest of the arguments: 24 hexadecimal digits."""
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:24]


def signature_of(thinking: str) -> str:
    """Return a digest that stands for Anthropic's signature of a thinking block."""
    return _SIGNED + number_of("thinking", thinking)


def sealed(reasoning: str) -> str:
    """Encode reasoning so that it looks encrypted, as providers return it. `is_sealed` detects a change."""
    text = base64.urlsafe_b64encode(reasoning.encode()).decode()
    return f"{_SEALED}{number_of('sealed', reasoning)}.{text}"


def is_sealed(text: str) -> bool:
    """Return whether `sealed` has made this text and nobody has changed it since."""
    try:
        return sealed(base64.urlsafe_b64decode(text.partition(".")[2]).decode()) == text
    except (ValueError, binascii.Error):
        return False


PIECES = 12  # largest number of pieces that a text is split into
_LEAST_PIECE = 4
BROKEN = "The upstream broke off."  # the message of an error in the middle of a stream


def pieces(text: str) -> list[str]:
    """Split a text into at most `PIECES` pieces, all but the last of the same length."""
    size = max(_LEAST_PIECE, -(-len(text) // PIECES))
    return [text[start : start + size] for start in range(0, len(text), size)]


def event_of(content: object, name: str = "") -> bytes:
    """Return a server-sent event as bytes; without the line `event:` if `name` is empty."""
    line = f"event: {name}\n" if name else ""
    try:
        # Do not escape characters to ASCII, so that a chunk can end in the middle of a character.
        data = json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        data = json.dumps(content).encode()
    return b"%bdata: %b\n\n" % (line.encode(), data)


def named_event(content: Json) -> bytes:
    """Return a server-sent event whose name is the field `type` of its content."""
    return event_of(content, content["type"])


_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.DOTALL)
_BEGINNINGS = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    "application/pdf": re.compile(rb"%PDF-"),
    "wav": re.compile(rb"RIFF.{4}WAVE", re.DOTALL),
    "mp3": re.compile(rb"ID3|\xff[\xfb\xf3\xf2]"),
}


def _url(where: str, url: str, expected: str, max_base64: int) -> Iterator[str]:
    if url.startswith("https://"):
        return
    found = _DATA_URL.fullmatch(url)
    if found is None or not found[1].startswith(expected):
        yield f"Invalid '{where}': expected a base64-encoded data URL of '{expected}'."
        return
    if found[1].startswith("image/") and len(found[2]) > max_base64:
        yield f"{where}: image exceeds the maximum: {len(found[2])} bytes > {max_base64} bytes"
    yield from _data(where, found[1], found[2])


def _data(where: str, media_type: str, data: str) -> Iterator[str]:
    beginning = _BEGINNINGS.get(media_type)
    if beginning is None:
        supported = "'image/jpeg', 'image/png', 'image/gif' or 'image/webp'"
        yield f"{where}: media_type: Input should be {supported}"
        return
    try:
        head = base64.b64decode(data, validate=True)[:16]
    except ValueError:
        yield f"{where}: invalid base64 data"
        return
    if not beginning.match(head):
        yield f"{where}: the data was specified as {media_type}, but appears to be something else."


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FIELDS = words(
    "model messages tools tool_choice parallel_tool_calls response_format temperature top_p top_k min_p "
    "max_tokens max_completion_tokens presence_penalty frequency_penalty stop seed n stream stream_options "
    "user metadata reasoning reasoning_effort usage"
)
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (0, math.inf),
    "min_p": (0, 1),
    "max_tokens": (1, math.inf),
    "max_completion_tokens": (1, math.inf),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "n": (1, 1),
}
_INTEGERS = frozenset({"top_k", "max_tokens", "max_completion_tokens", "n"})


class ProviderRules(Struct, frozen=True, kw_only=True):
    """Rules and limits that only some providers have.

    Attributes:
        strict_names: Tool names must match `^[a-zA-Z0-9_-]{1,64}$`.
        cache_markers: How many content parts may have `cache_control`; 0: the field is refused as unknown.
        tools_with_history: A request with tool results in its history must have `tools`.
        max_description_chars: Longest description of a tool; `None`: no limit.
        echo_reasoning: A chat completions request must repeat the reasoning that came with its tool calls.
            (In the other formats, a request must do so in any case.)
        developer_role: Messages may have the role `developer`.
        known_fields_only: Top-level fields that are not in a fixed list are refused.
        images, audio, files: User messages may have such parts.
        max_image_base64: Longest base64 text of an image, in characters.
    """

    strict_names: bool = False
    cache_markers: int = 4
    tools_with_history: bool = False
    max_description_chars: int | None = None
    echo_reasoning: bool = False
    developer_role: bool = False
    known_fields_only: bool = False
    images: bool = True
    audio: bool = True
    files: bool = True
    max_image_base64: int = 10 * 1024 * 1024


def refusal_of(body: Json, rules: ProviderRules) -> str | None:
    """Return why a strict provider refuses the request, or `None`."""
    try:
        return next(_refusals(body, rules), None)
    except (AttributeError, KeyError, TypeError) as error:
        return f"Invalid request: a field has the wrong type ({error})."


def _refusals(body: Json, rules: ProviderRules) -> Iterator[str]:
    messages = body.get("messages")
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield "you must provide a model parameter"
    if not isinstance(messages, list) or not messages or not all(isinstance(item, dict) for item in messages):
        yield "Invalid 'messages': expected a non-empty array of objects."
        return
    for index, message in enumerate(messages):
        yield from _message(f"messages[{index}]", message, rules)
    yield from _order(messages)
    yield from _markers(messages, rules)
    yield from _tools(body, messages, rules)
    yield from _response_format(body, messages)
    yield from _settings(body, rules)
    if "stream_options" in body and not body.get("stream"):
        yield "The 'stream_options' parameter is only allowed when 'stream' is enabled."


def _message(where: str, message: Json, rules: ProviderRules) -> Iterator[str]:
    role, content = message.get("role"), message.get("content")
    if role not in {"system", "user", "assistant", "tool"} and not (
        rules.developer_role and role == "developer"
    ):
        yield f"Invalid value: '{role}'. Supported values: 'system', 'assistant', 'user', 'tool'. ({where})"
    if "cache_control" in message:
        yield f"Unknown parameter: '{where}.cache_control'."
    if content is None and not (role == "assistant" and message.get("tool_calls")):
        yield f"Invalid value for 'content': expected a string, got null. ({where})"
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    if content == [] or any(isinstance(text, str) and not text.strip() for text in texts):
        yield f"{where}: text content blocks must be non-empty"
    if role == "tool" and not isinstance(content, str):
        yield f"Invalid type for '{where}.content': expected a string."
    for number, part in enumerate(content if isinstance(content, list) else ()):
        yield from _part(f"{where}.content[{number}]", part, role, rules)
    if "tool_calls" in message and not message["tool_calls"]:
        yield f"Invalid '{where}.tool_calls': empty array. Expected an array with minimum length 1."
    for number, call in enumerate(message.get("tool_calls") or ()):
        yield from _call(f"{where}.tool_calls[{number}]", call, rules)


def _part(where: str, part: Json, role: object, rules: ProviderRules) -> Iterator[str]:
    if part.get("type") == "text":
        return
    if role != "user":
        yield f"Invalid value: '{part.get('type')}'. Supported values are: 'text'. ({where}.type)"
    match part:
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            if not rules.images:
                yield f"Invalid content type. image_url is only supported by certain models. ({where})"
            yield from _url(where, url, "image/", rules.max_image_base64)
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": "wav" | "mp3" as form}}:
            if not rules.audio:
                yield f"This model does not support audio input. ({where})"
            yield from _data(where, str(form), data)
        case {"type": "file", "file": {"filename": str(name), "file_data": str(url)}} if name:
            if not rules.files:
                yield f"This model does not support file content. ({where})"
            yield from _url(where, url, "application/pdf", rules.max_image_base64)
        case {"type": kind}:
            yield f"Invalid value: '{kind}'. Supported values are: 'text', 'image_url'... ({where}.type)"
        case _:
            yield f"Missing required parameter: '{where}.type'."


def _call(where: str, call: Json, rules: ProviderRules) -> Iterator[str]:
    function = call.get("function", {})
    if not call.get("id") or call.get("type") != "function":
        yield f"Missing required parameter: '{where}.id' or '{where}.type'."
    yield from _name(f"{where}.function.name", function.get("name"), rules)
    try:
        arguments = json.loads(function.get("arguments", ""))
    except (TypeError, ValueError):
        arguments = None
    if not isinstance(arguments, dict):
        yield f"Invalid '{where}.function.arguments': expected a JSON object in a string."


def _name(where: str, name: object, rules: ProviderRules) -> Iterator[str]:
    if not isinstance(name, str) or not name:
        yield f"Invalid '{where}': empty string. Expected a string with minimum length 1."
    elif rules.strict_names:
        yield from misspelt(where, name)


def misspelt(where: str, name: str) -> Iterator[str]:
    """Yield why a tool's name is refused, if it does not match `_NAME`."""
    if not _NAME.fullmatch(name):
        yield (
            f"Invalid '{where}': string does not match pattern. "
            "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        )


def _order(messages: list[Json]) -> Iterator[str]:
    open_ids: list[str] = []
    seen: set[str] = set()
    for index, message in enumerate([*messages, {}]):
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in open_ids:
                yield (
                    f"messages[{index}]: messages with role 'tool' must be a response to a preceding message "
                    "with 'tool_calls'."
                )
                return
            open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            yield (
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                "'tool_call_id'. The following tool_call_ids did not have response messages: "
                f"{', '.join(open_ids)}"
            )
        open_ids = [call.get("id", "") for call in message.get("tool_calls") or ()]
        if seen & set(open_ids) or len(set(open_ids)) < len(open_ids):
            yield f"messages[{index}]: duplicate tool call ids"
        seen |= set(open_ids)


def _markers(messages: list[Json], rules: ProviderRules) -> Iterator[str]:
    contents = [message.get("content") for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    marked = sum("cache_control" in part for part in parts)
    if marked and not rules.cache_markers:
        yield "Unknown parameter: 'messages[0].content[0].cache_control'."
    elif marked > rules.cache_markers:
        yield (
            f"A maximum of {rules.cache_markers} blocks with cache_control may be provided. Found {marked}."
        )


def _tools(body: Json, messages: list[Json], rules: ProviderRules) -> Iterator[str]:
    if "tools" not in body:
        for field in ("tool_choice", "parallel_tool_calls"):
            if field in body:
                yield f"Invalid value for '{field}': '{field}' is only allowed when 'tools' are specified."
        if rules.tools_with_history and any(message.get("role") == "tool" for message in messages):
            yield "Requests which include `tool_use` or `tool_result` blocks must define tools."
        return
    tools = body["tools"]
    if not isinstance(tools, list) or not tools:
        yield "Invalid 'tools': empty array. Expected an array with minimum length 1."
        return
    for index, tool in enumerate(tools):
        yield from _tool(f"tools[{index}]", tool, rules)
    if len({tool["function"]["name"] for tool in tools}) < len(tools):
        yield "Tool names must be unique."


def _tool(where: str, tool: Json, rules: ProviderRules) -> Iterator[str]:
    function = tool.get("function", {})
    if tool.get("type") != "function":
        yield f"Invalid value: '{tool.get('type')}'. Supported values are: 'function'. ({where}.type)"
    yield from _name(f"{where}.function.name", function.get("name"), rules)
    length, limit = len(function.get("description", "")), rules.max_description_chars
    if limit is not None and length > limit:
        yield (
            f"Invalid '{where}.function.description': string too long. Expected a string with "
            f"maximum length {limit}, but got a string with length {length} instead."
        )
    parameters = function.get("parameters", {})
    if parameters.get("type") != "object" or "properties" not in parameters:
        name = function.get("name")
        yield f"Invalid schema for function '{name}': In context=(), object schema missing properties."
    if function.get("strict"):
        yield from _strict("()", parameters, f"function '{function.get('name')}'")


def _settings(body: Json, rules: ProviderRules) -> Iterator[str]:
    unknown = body.keys() - _FIELDS if rules.known_fields_only else ()
    for field in sorted(unknown):
        yield f"Unknown parameter: '{field}'."
    for field, (least, most) in _RANGES.items():
        value = body.get(field)
        if value is None:
            continue
        wanted = int if field in _INTEGERS else int | float
        if isinstance(value, bool) or not isinstance(value, wanted):
            yield f"Invalid type for '{field}': expected a number."
        elif not least <= value <= most:
            yield f"Invalid '{field}': expected a value from {least} to {most}, but got {value} instead."


def _response_format(body: Json, messages: list[Json]) -> Iterator[str]:
    if "response_format" not in body:
        return
    kind = (body["response_format"] or {}).get("type")
    if kind not in {"text", "json_object", "json_schema"}:
        yield f"Invalid value: '{kind}'. Supported values are: 'json_object', 'json_schema', and 'text'."
    if kind == "json_object" and not any("json" in _text(message).lower() for message in messages):
        yield "'messages' must contain the word 'json' to use 'response_format' of type 'json_object'."
    if "tools" in body and body.get("tool_choice") != "none":
        yield "Invalid 'response_format': it cannot be combined with tools that may be called."
    shape = (body["response_format"] or {}).get("json_schema", {})
    if kind == "json_schema" and not _NAME.fullmatch(shape.get("name") or ""):
        yield "Invalid 'response_format.json_schema.name': string does not match pattern."
    if shape.get("strict"):
        if shape["schema"].get("type") != "object":
            yield "Invalid schema for response_format: In context=(), schema must be of type 'object'."
        yield from _strict("()", shape["schema"])


def _text(message: Json) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    return " ".join(str(part.get("text") or "") for part in parts)


def _strict(where: str, schema: object, of: str = "response_format") -> Iterator[str]:
    if isinstance(schema, list):
        for item in schema:
            yield from _strict(where, item, of)
    if not isinstance(schema, dict):
        return
    broken = f"Invalid schema for {of}: In context={where}"
    if "default" in schema and "type" in schema:
        yield f"{broken}, 'default' is not permitted."
    kinds = schema.get("type")
    if isinstance(schema.get("properties"), dict) or "object" in (
        kinds if isinstance(kinds, list) else [kinds]
    ):
        if schema.get("additionalProperties") is not False:
            yield f"{broken}, 'additionalProperties' is required to be supplied and to be false."
        if set(schema.get("required", ())) != set(schema.get("properties", ())):
            yield (
                f"{broken}, 'required' is required to be supplied and to be an array including every key in "
                "properties."
            )
    for key, value in schema.items():
        if key in {"properties", "$defs"} and isinstance(value, dict):
            for name, member in value.items():
                yield from _strict(f"('{key}', '{name}')", member, of)
        elif key in {"items", "anyOf"}:
            yield from _strict(f"('{key}')", value, of)
