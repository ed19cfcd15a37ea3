"""Turn a server's answer to `tools/call` into a `ToolCallResult`, and that into text for the conversation.

Images, audio and files are checked in `media.py`.

Everything in a `ToolCallResult` is a JSON value. What JSON cannot express (NaN, lone surrogates, bytes, other
Python objects) is replaced when the result is made, so that later code can encode it without an error.

| the server's result         | `content`, complete, as in the trace  | what the model reads          |
|-----------------------------|---------------------------------------|-------------------------------|
| structured content          | the structured content                | its JSON                      |
| one text block, JSON        | the object or array                   | its JSON                      |
| either with too many values | its JSON text                         | the beginning of the text     |
| text blocks only            | the text, blocks joined by newlines   | the text                      |
| other blocks as well        | the list of blocks, unchanged         | a list, each block as follows |
| - text                      |                                       | unchanged                     |
| - image, audio              |                                       | MIME type, size; attached     |
| - resource link             |                                       | URI, name, description        |
| - embedded resource, text   |                                       | URI, MIME type, text          |
| - embedded resource, binary |                                       | URI, type, size; attached     |
| - SVG, or text in base64    |                                       | the same, and the text        |
| - anything else             |                                       | unchanged                     |

The text is cut to a size. With a handle, under which the whole result can be read (`built_in.py`), the model
gets its beginning and its end, and between them how much there is of what kind. The base64 of these block
types is never part of it. An attachment is sent as an image, audio or file if the endpoint accepts it; one
that cannot be attached is marked `omitted`, with the reason. If a result has structured content, its text
blocks are dropped, because they repeat it. Its other blocks are kept in `ToolCallResult.blocks` and described
in the same way.

Source: P43, P44
"""

import bisect
import json

import msgspec
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.json_text import json_object, json_value
from grue.protocol.tools.media import MediaRoom, known_bytes, text_in
from grue.runtime.large_data import count_of
from grue.runtime.safe_text import well_formed

MAX_JSON_CHARS = 2_000_000
MAX_JSON_VALUES = 50_000
"""A text block that is longer, or has more values, is not decoded: that would block the event loop."""

MAX_ERROR_CHARS = 100_000
"""Longest `error_message` of a failed tool; `content` has the complete text."""

_LOOK_CHARS = 1000
_LONG_LINE = 2000
"""JSON text with longer lines than that, on average, is laid out before it is read by lines."""

_SMALL_VALUES = 2000
_SMALL_CHARS = 100_000

SKIPPED_AFTER_TIMEOUT = "Skipped: an earlier tool call of this reply timed out"
SKIPPED_AFTER_DEATH = "Skipped: the tool server is no longer running"
NOT_AS_DECIDED = (
    "the call was not sent, because the tool has changed since the call was decided on, or is gone. If it is"
    " still offered, read its description and parameters before you call it again"
)
NOT_STARTED = "not called: the server '{server}' did not start: {reason}"
SKIPPED_TOO_LATE = "Skipped: no more tools may be called; give the final answer"
INTERRUPTED = "interrupted; it may have taken effect"
"""Answers a call that was sent, in a turn that ended before the result arrived."""
NOT_CALLED = "not called: the turn ended before"


class JsonText(str):
    """The JSON text of a value that was not decoded because it contains too many values."""

    __slots__ = ()


def success(content: object) -> m.ToolCallResult:
    """Return the result of a tool that succeeded.

    Source: R11.1, P41
    """
    return m.ToolCallResult(json_value(content))


def failure(message: str, content: object = None) -> m.ToolCallResult:
    """Return the result of a call that failed; `message` says why.

    Source: R11.2, R11.4, P42
    """
    return m.ToolCallResult(json_value(content), is_error=True, error_message=well_formed(message))


def timed_out(timeout_s: float) -> m.ToolCallResult:
    """Return the result of a call that did not return within `timeout_s` seconds.

    Source: P25
    """
    return failure(f"Tool call timed out after {timeout_s:g}s")


def call_failed(cause: str) -> m.ToolCallResult:
    """Return the result of a call that failed before the tool could answer, as when the server died.

    Source: R6.2
    """
    return failure(f"Tool call failed: {cause}")


def is_small(value: object, most: int = _SMALL_VALUES) -> bool:
    """Return whether a JSON value has at most `most` nested values, so that walking through it is quick."""
    found = [value]
    for part in found:  # the list grows while it is walked through
        if isinstance(part, str):
            if len(part) > _SMALL_CHARS:
                return False
        elif isinstance(part, dict | list):
            if len(found) + len(part) > most:
                return False
            found.extend(part.values() if isinstance(part, dict) else part)
    return True


def is_kept_as_text(answer: m.JsonObject) -> bool:
    """Return whether part of this `tools/call` result was left as JSON text because of its many values."""
    blocks = answer.get("content")
    texts = (
        [block.get("text") for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    )
    return any(isinstance(part, JsonText) for part in (answer.get("structuredContent"), *texts))


def from_mcp(answer: m.JsonObject) -> m.ToolCallResult:
    """Read the result object of `tools/call`.

    The content is the first of these that the result has: the structured content; the parsed JSON of a single
    text block that is an object or array; the text, if all blocks are text; the list of blocks.
    """
    blocks = answer.get("content")
    blocks = [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    structured = answer.get("structuredContent")
    content = structured if structured is not None else _unstructured(blocks)
    beside = [block for block in blocks if block.get("type") != "text"] if structured is not None else []
    if answer.get("isError") is True:
        result = failure(_error_text(blocks) or "The tool reported an error", content)
    else:
        result = success(content)
    return replace(result, blocks=tuple(map(json_object, beside))) if beside else result


def content_blocks(answer: m.JsonObject) -> tuple[m.JsonObject, ...]:
    """Return all content blocks of the result object of `tools/call`, also those that `from_mcp` drops."""
    blocks = answer.get("content")
    return (
        tuple(json_object(each) for each in blocks if isinstance(each, dict))
        if isinstance(blocks, list)
        else ()
    )


def _unstructured(blocks: list[m.JsonObject]) -> object:
    texts = [block.get("text") for block in blocks if block.get("type") == "text"]
    if len(texts) != len(blocks) or not all(isinstance(text, str) for text in texts):
        return blocks
    if len(texts) != 1:
        return "\n".join(str(text) for text in texts)
    text = str(texts[0])
    if text[:_LOOK_CHARS].lstrip().startswith(("{", "[")) and _is_readable(text):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _is_readable(text: str) -> bool:
    """Return whether a JSON text is short enough, and has few enough values, to be decoded."""
    return len(text) <= MAX_JSON_CHARS and count_of(text, "[{,") <= MAX_JSON_VALUES


def _error_text(blocks: list[m.JsonObject]) -> str:
    text = "\n".join(
        str(block["text"]) for block in blocks if block.get("type") == "text" and block.get("text")
    )
    # The content keeps the complete text.
    return text if len(text) <= MAX_ERROR_CHARS else _marked(text, MAX_ERROR_CHARS)


def raw_text(result: m.ToolCallResult) -> str:
    """Return the text of a result's content blocks; without any, its error or its content as JSON."""
    texts = [text for block in result.blocks if isinstance(text := block.get("text"), str)]
    if texts:
        return "\n".join(texts)
    said = result.content if result.blocks else result.error_message or result.content
    return said if isinstance(said, str) else _written(said)


def history_text(result: m.ToolCallResult, max_chars: int) -> str:
    """Return the JSON text of `result` for the conversation, cut to `max_chars`.

    Blocks other than text are described as in the module's table. If the result is too large, its content
    becomes text: the beginning, and a marker that says how much was cut. The model thus always reads valid
    JSON. Markers and braces are not counted in `max_chars`.

    Source: R11.5, P44
    """
    return told(result, max_chars)[0]


def told(
    result: m.ToolCallResult, max_chars: int, room: MediaRoom | None = None, note: str = ""
) -> tuple[str, tuple[m.Attachment, ...]]:
    """Return the text for the conversation, as `history_text` does, and the attachments that go with it.

    Args:
        result: The result of a call.
        max_chars: Longest text, in characters.
        room: Collects the attachments of all results of a reply; `None` attaches nothing.
        note: What else the model has to know about the call, if anything.
    """
    before = len(room.attachments) if room else 0
    shown = replace(result, content=_readable(result.content, room)).to_dict()
    if result.blocks:
        shown["blocks"] = _readable(list(result.blocks), room)
    if note:
        shown = {"note": note, **shown}
    attached = tuple(room.attachments[before:]) if room else ()
    return _bounded(shown, max_chars), attached


def told_plainly(
    result: m.ToolCallResult,
    max_chars: int,
    room: MediaRoom | None = None,
    note: str = "",
    *,
    handle: str = "",
) -> tuple[str, tuple[m.Attachment, ...]]:
    """Return the text for the conversation, with a tool's text as it is, and the attachments that go with it.

    Content that is no text is JSON, as the module's table says. A failure begins with `Error: `, and its
    content follows.

    Args:
        result: The result of a call.
        max_chars: Longest text, in characters; markers are not counted.
        room: Collects the attachments of all results of a reply; `None` attaches nothing.
        note: What else the model has to know about the call, if anything.
        handle: A result that is too long is told by reference, with this handle; empty: it is cut.
    """
    before = len(room.attachments) if room else 0
    content = _readable(result.content, room)
    parts = [note, f"Error: {result.error_message}" if result.is_error else ""]
    if not result.is_error or content not in (None, result.error_message):
        parts.append(content if isinstance(content, str) else _written(content))
    if result.blocks:
        parts.append(_written(_readable(list(result.blocks), room)))
    attached = tuple(room.attachments[before:]) if room else ()
    said = "\n".join(part for part in parts if part)
    if len(said) <= max_chars:
        return said, attached
    if handle:
        return _referred(whole_text(result), note, _kind_of(content), max_chars, handle), attached
    return _marked(said, max_chars), attached


READ_ON = '; read_result with the handle "{handle}" reads all of it'
"""What a result that is told by reference says to the model."""


def is_referred(content: str, handle: str) -> bool:
    """Return whether the text of a result names this handle for `read_result`."""
    return READ_ON.format(handle=handle) in content


def whole_text(result: m.ToolCallResult) -> str:
    """Return the text that `read_result` reads of a result: text as it is, JSON with a line for each value.

    Base64 is not part of it. An error begins with `Error: `.
    """
    content = _readable(result.content, None)
    parts = [f"Error: {result.error_message}"] if result.is_error else []
    if not result.is_error or content not in (None, result.error_message):
        parts.append(_laid_out(content))
    if result.blocks:
        parts.append(_laid_out(_readable(list(result.blocks), None)))
    return "\n".join(parts)


def _laid_out(content: object) -> str:
    """Return the lines of a content: of JSON, also in a text that has few lines, one for each value."""
    if isinstance(content, list) and content and _readable(content, None) is not content:
        texts = (block.get("text") if block.get("type") == "text" else block for block in content)
        return "\n".join(map(_laid_out, texts))
    text = content if isinstance(content, str) else _written(content)
    is_text = isinstance(content, str) and not (
        text[:_LOOK_CHARS].lstrip().startswith(("{", "[")) and text.count("\n") < len(text) // _LONG_LINE
    )
    if is_text:
        return text
    try:
        return msgspec.json.format(text, indent=1)
    except (msgspec.DecodeError, RecursionError):
        return text


def _kind_of(content: object) -> str:
    match content:
        case dict():
            return f"a JSON object of {len(content)} members"
        case list():
            return f"a JSON array of {len(content)} values"
        case str() if content[:_LOOK_CHARS].lstrip().startswith(("{", "[")):
            return "probably JSON text"
        case _:
            return "text"


def _referred(whole: str, note: str, kind: str, max_chars: int, handle: str) -> str:
    """Return the beginning and the end of a text, and between them how to read the rest."""
    tail = max_chars // 3
    head, end = max_chars - tail, len(whole) - tail
    # A whole line more is worth a few characters less.
    head = max(whole.rfind("\n", head - head // 10, head), -1) + 1 or head
    newline = whole.find("\n", end, end + tail // 5)
    end = end if newline < 0 else newline + 1
    first, last, lines = (whole.count("\n", 0, at) + 1 for at in (head, end, len(whole)))
    where = f", in lines {first} to {last} of {lines}" if lines > 1 else ""
    mark = f"[cut: {end - head} of {len(whole)} characters{where}, of {kind}{READ_ON.format(handle=handle)}]"
    shown = f"{whole[:head]}… {mark} …{whole[end:]}"
    return f"{note}\n{shown}" if note else shown


def cut_middle(content: str, max_chars: int) -> str:
    """Return the text of a result, as `told` or `told_plainly` makes it, with its middle left out.

    Of a JSON object the middle of its long members is left out, so that it stays one.

    A beginning alone would lose the totals and the errors that many tools print last. Markers and braces are
    not counted in `max_chars`.
    """
    if len(content) <= max_chars:
        return content
    try:
        shown = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return without_middle(content, max(0, max_chars))
    cut: m.JsonObject = {}
    room = max(0, max_chars)
    for name, value in (shown if isinstance(shown, dict) else {"content": shown}).items():
        text = value if isinstance(value, str) else _written(value)
        size = _written_chars(text)
        # Newlines and quotes take two characters in JSON, so fewer of them fit.
        cut[name] = value if size <= room else without_middle(text, room * len(text) // size)
        room = max(0, room - size)
    return _written(cut)


def without_middle(text: str, kept: int) -> str:
    """Return a text without its middle, with a marker that says how much was cut; a short one unchanged.

    Args:
        text: Any text.
        kept: How many characters are kept; the marker is not counted.
    """
    if len(text) <= kept:
        return text
    end = len(text) - kept // 2
    return f"{text[: kept - kept // 2]}… [cut: {len(text) - kept} of {len(text)} characters] …{text[end:]}"


def _bounded(shown: m.JsonObject, max_chars: int) -> str:
    """Return an object's JSON text; each member in turn is cut to the room that the ones before it left."""
    if not any(isinstance(value, str) and len(value) > max_chars for value in shown.values()):
        text = _written(shown)
        if len(text) <= max_chars:
            return text
    cut: m.JsonObject = {}
    room = max_chars
    for name, value in shown.items():
        if isinstance(value, str):
            cut[name] = _cut(value, room)
        else:
            written = _written(value)
            cut[name] = _cut(written, room) if len(written) > room else value
        room = max(0, room - _written_chars(cut[name]))
    return _written(cut)


def _readable(content: object, room: MediaRoom | None) -> object:
    """Return content without base64 in its blocks; only a list whose items all have a `type` has blocks."""
    if not isinstance(content, list):
        return content
    if not all(isinstance(block, dict) and isinstance(block.get("type"), str) for block in content):
        return content
    return [_readable_block(block, room) for block in content]


def _readable_block(block: m.JsonObject, room: MediaRoom | None) -> m.JsonObject:
    match block:
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return _members(block, "type", "mimeType") | _binary(str(kind), block, data, room)
        case {"type": "resource_link", "uri": str()}:
            return _members(block, "type", "uri", "name", "description")
        case {"type": "resource", "resource": dict(resource)}:
            return {"type": "resource", **_readable_resource(resource, room)}
        case _:
            return block


def _readable_resource(resource: m.JsonObject, room: MediaRoom | None) -> m.JsonObject:
    described = _members(resource, "uri", "mimeType", "text")
    blob = resource.get("blob")
    return described | _binary("resource", resource, blob, room) if isinstance(blob, str) else described


def _binary(kind: str, holder: m.JsonObject, data: str, room: MediaRoom | None) -> m.JsonObject:
    """Return the text that replaces base64 for the model, and attach the decoded file if possible."""
    size = known_bytes(data)
    described: m.JsonObject = {} if size is None else {"bytes": size}
    if room is None:
        return described
    if (text := text_in(holder.get("mimeType"), data)) is not None:
        return described | {"text": text}
    omitted = room.attach(kind, data, str(holder.get("uri") or ""))
    return described | {"omitted": omitted} if omitted else described


def _members(block: m.JsonObject, *names: str) -> m.JsonObject:
    return {name: block[name] for name in names if name in block}


def _cut(text: str, room: int) -> str:
    """Keep as much of the beginning as fits into `room` characters when it is encoded as JSON."""
    if len(text) <= room and _written_chars(text) <= room:
        return text
    lengths = range(1, min(len(text), room) + 1)
    kept = bisect.bisect_right(lengths, room, key=lambda length: _written_chars(text[:length]))
    return _marked(text, kept)


def _marked(text: str, kept: int) -> str:
    return f"{text[:kept]}… [cut: {len(text) - kept} of {len(text)} characters]"


def _written(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _written_chars(value: object) -> int:
    return len(_written(value))
