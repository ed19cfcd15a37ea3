"""Turn a server's answer to `tools/call` into a `ToolCallResult`, and the result into text for the model.

| the server's result         | `content`, complete, as in the trace  | what the model reads          |
|-----------------------------|---------------------------------------|-------------------------------|
| structured content          | the structured content                | its JSON                      |
| one text block, JSON        | the object or array                   | its JSON                      |
| JSON that is too large      | its JSON text                         | the text, cut                 |
| text blocks only            | the text, blocks joined by newlines   | the text                      |
| other blocks as well        | the list of blocks, unchanged         | a list, each block as follows |
| - text                      |                                       | unchanged                     |
| - image, audio              |                                       | MIME type, size; attached     |
| - resource link             |                                       | URI, name, description        |
| - embedded resource, text   |                                       | URI, MIME type, text          |
| - embedded resource, binary |                                       | URI, type, size; attached     |
| - SVG, or text in base64    |                                       | type, size, the decoded text  |
| - anything else             |                                       | unchanged                     |

If a result has structured content, its text blocks are dropped, because they repeat it. Media are checked
before they are attached: a provider refuses a request because of one broken image, and every later request
would contain that image too. To add a media type, add it to `_SIGNATURES` and `_EXPECTED`.

Source: P25, P41-P44, R6.2, R11.1, R11.2, R11.4, R11.5
"""

from __future__ import annotations

import base64
import bisect
import contextlib
import functools
import json
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec.structs import replace

from grue import messages as m
from grue.policies import MediaKind, TurnLimits
from grue.protocol.json_text import MAX_DEPTH, is_deep, is_repetitive, json_object, json_value
from grue.runtime.large_data import count_of
from grue.runtime.safe_text import printable, well_formed

MAX_ATTACHMENTS = 20  # of a `MediaRoom`: with more, Anthropic limits images to 2,000 pixels a side
_MAX_TEXT_BYTES = 1024 * 1024
_MAX_NAME = 100
_HEAD_CHARS = 64
_ALPHABET = (string.ascii_letters + string.digits + "+/").encode()


_SIGNATURES: tuple[tuple[re.Pattern[bytes], MediaKind, str], ...] = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image", "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image", "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image", "image/gif"),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "image", "image/webp"),
    (re.compile(rb"RIFF.{4}WAVE", re.DOTALL), "audio", "audio/wav"),
    (re.compile(rb"ID3|\xff[\xfb\xf3\xf2]"), "audio", "audio/mpeg"),
    (re.compile(rb"%PDF-"), "file", "application/pdf"),
)

_EXPECTED = {"image": "it is not a PNG, JPEG, GIF or WebP image", "audio": "it is neither WAV nor MP3"}


class MediaRoom:
    """Collects the attachments of one reply's tool results, or the images that the host sends with a turn.

    The turn's earlier attachments have used `used_bytes` of `max_media_bytes`.
    """

    def __init__(self, limits: TurnLimits, used_bytes: int = 0) -> None:
        self.attachments: list[m.Attachment] = []
        self._limits = limits
        self._left = limits.max_media_bytes - used_bytes

    def attach(self, declared: str, data: str, uri: str = "") -> str:
        """Attach base64 data; return why it is not attached, or an empty text. `uri` gives a PDF its name."""
        data = _without_prefix(data)
        found = _sniffed(data[:_HEAD_CHARS])
        if found is None:
            return _EXPECTED.get(declared, "it is not an image, a WAV, an MP3 or a PDF")
        kind, mime = found
        limits, size = self._limits, decoded_bytes(data)
        if kind == "image" and size > limits.max_image_bytes:
            return f"it is larger than max_image_bytes, {limits.max_image_bytes:,}"
        if size > self._left:
            return f"with it the turn would show more than max_media_bytes, {limits.max_media_bytes:,}"
        if len(self.attachments) >= MAX_ATTACHMENTS:
            return f"a reply shows no more than {MAX_ATTACHMENTS}"
        clean = _clean(data)
        if clean is None:
            return "its base64 cannot be read"
        size = decoded_bytes(clean)
        self._left -= size
        name = _file_name(uri) if kind == "file" else ""
        self.attachments.append(m.Attachment(kind=kind, mime=mime, data=clean, bytes=size, name=name))
        return ""


_TEXTUAL = re.compile(
    r"text/|application/(?:json|xml|javascript|yaml|toml|sql)\b|[^;]*\+(?:json|xml)\b", re.IGNORECASE
)


def decoded_bytes(base64_text: str) -> int:
    """Return the decoded size of base64 text in bytes, without decoding what may be megabytes."""
    tail = base64_text[-4:]
    return (len(base64_text) - len(tail) + len(tail.rstrip("="))) * 3 // 4


def _without_prefix(data: str) -> str:
    """Return the base64 in `data`, which some servers send as a data URL."""
    comma = data.find(",", 0, 200) if data.startswith("data:") else -1
    return data[comma + 1 :]


def _sniffed(base64_head: str) -> tuple[MediaKind, str] | None:
    head = "".join(base64_head.split())
    try:
        start = base64.b64decode(head[: len(head) // 4 * 4])
    except ValueError:
        return None
    return next((known[1:] for known in _SIGNATURES if known[0].match(start)), None)


def _clean(data: str) -> str | None:
    """Return base64 as providers take it: padded and without white space; `None` if it is not base64."""
    foreign = data.encode("ascii", "replace").translate(None, _ALPHABET)
    if foreign.strip(b"="):
        data = "".join(data.split())
        foreign = data.encode("ascii", "replace").translate(None, _ALPHABET)
    padding = len(foreign)
    if foreign.strip(b"=") or padding > 2 or not data.endswith("=" * padding):
        return None
    missing = -len(data) % 4
    if missing == 0:
        return data
    return data + "=" * missing if padding == 0 and missing < 3 else None


def _file_name(uri: str) -> str:
    try:
        last = unquote(urlsplit(uri).path.rstrip("/").rpartition("/")[2])
    except ValueError:
        last = ""
    name = re.sub(r"[^\w. -]", "_", printable(last, _MAX_NAME)).strip(". ") or "file"
    return name if name.lower().endswith(".pdf") else f"{name}.pdf"


MAX_JSON_CHARS = 2_000_000  # of a text block that is decoded: decoding more would block the event loop
MAX_JSON_VALUES = 50_000  # lists, objects and commas in it, for the same reason
MAX_ERROR_CHARS = 100_000  # how much is kept of a failed tool's own error text
_LOOK_CHARS = 1000
_ALWAYS_INDENTED = 65_536
_MOST_LEVELS = 40
_NO_SHAPE = bytes(set(range(256)) - set(b'[]{}"'))
_STRINGS = re.compile(rb'(?:"[^"]*")+')
_LONG_LINE = 2000  # JSON with more characters in a line, on average, is indented before it is read by lines
_SMALL_VALUES = 2000
_SMALL_CHARS = 100_000
SKIPPED_AFTER_TIMEOUT = "Skipped: an earlier tool call of this reply timed out"
SKIPPED_AFTER_DEATH = "Skipped: the tool server is no longer running"
NOT_AS_DECIDED = (
    "the call was not sent, because the tool has changed since the call was decided on, or is gone. If it is"
    " still offered, read its description and parameters before you call it again"
)
NOT_STARTED = "not called: the server '{server}' did not start: {reason}"
NAME_SEPARATORS = re.compile(r"[./:]|__")  # that models write between a server's name and its tool's
NOT_USED = "The server '{server}' could not be used: {reason}"
SKIPPED_TOO_LATE = "Skipped: no more tools may be called; give the final answer"
INTERRUPTED = "interrupted; it may have taken effect"  # of a call that was sent and has no result
NOT_CALLED = "not called: the turn ended before"


class JsonText(str):
    """The JSON text of a value that was not decoded because it contains too many values."""

    __slots__ = ()


def why_unknown(name: str, missing: Mapping[m.ServerName, str]) -> str:
    """Return the end of an error text about an unknown tool: why the server in its name is not used.

    `missing`: the reasons, by server. For a name without a server, return those of all missing servers.
    """
    bare = not NAME_SEPARATORS.search(name)
    reasons = [
        f". {NOT_USED.format(server=server, reason=reason)}"
        for server, reason in missing.items()
        if bare or NAME_SEPARATORS.match(name.removeprefix(server))
    ]
    return "".join(reasons).rstrip(".")


def success(content: object) -> m.ToolCallResult:
    """Return the result of a tool that succeeded."""
    return m.ToolCallResult(json_value(content))


def failure(message: str, content: object = None) -> m.ToolCallResult:
    """Return the result of a call that failed."""
    return m.ToolCallResult(json_value(content), is_error=True, error_message=well_formed(message))


def repetitive(value: object) -> m.ToolCallResult | None:
    """Return the result of a call whose tool returned `value`, if that cannot be written; else `None`."""
    why = "the result holds itself, or the same parts so often that it repeats over a million values"
    return call_failed(why) if is_repetitive(value) else None


def recordable(result: m.ToolCallResult) -> m.ToolCallResult:
    """Return `result`, with texts in place of parts that are no JSON or nested too deeply.

    If it is `repetitive`, a field has a wrong type, or a part cannot become a text, return an error.
    """
    try:
        parts = [result.content, *result.blocks]
        refused = repetitive(parts)
        if refused is not None:
            return refused
        fields = msgspec.structs.asdict(result)
        if is_deep(parts) or not _is_json(fields):
            fields |= {"content": json_value(result.content), "blocks": list(map(json_value, result.blocks))}
        return msgspec.convert(fields, m.ToolCallResult)
    except Exception as error:  # noqa: BLE001 - also what a part's own `__str__` raises
        return call_failed(f"its result cannot be recorded: {error}")


def _is_json(value: object) -> bool:
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError):
        return False
    return True


def refuse_deep_schemas(tools: Iterable[m.ToolDefinition]) -> None:
    """Raise `ValueError`, with the tool's name, if a tool's schema is too deep or repetitive for a trace."""
    for tool in tools:
        for schema in (tool.input_schema, tool.output_schema):
            if is_repetitive(schema) or is_deep(schema):
                fault = f"is nested more than {MAX_DEPTH} levels deep, or holds the same parts too often"
                raise ValueError(f"the schema of its tool {tool.tool!r} {fault}")


def timed_out(timeout_s: float) -> m.ToolCallResult:
    """Return the result of a call that did not return within `timeout_s` seconds."""
    return failure(f"Tool call timed out after {timeout_s:g}s")


def call_failed(cause: str) -> m.ToolCallResult:
    """Return the result of a call that failed because of `cause`."""
    return failure(f"Tool call failed: {cause}")


def is_small(value: object, most: int = _SMALL_VALUES) -> bool:
    """Return whether a JSON value holds at most `most` values, itself included, and no long string value."""
    found = [value]
    for part in found:  # the list grows while the loop walks through it
        if isinstance(part, str):
            if len(part) > _SMALL_CHARS:
                return False
        elif isinstance(part, dict | list):
            if len(found) + len(part) > most:
                return False
            found.extend(part.values() if isinstance(part, dict) else part)
    return True


def is_kept_as_text(answer: m.JsonObject) -> bool:
    """Return whether a part of a `tools/call` result is a `JsonText`."""
    texts = [block.get("text") for block in _blocks(answer)]
    return any(isinstance(part, JsonText) for part in (answer.get("structuredContent"), *texts))


def from_mcp(answer: m.JsonObject) -> m.ToolCallResult:
    """Read the result object of `tools/call`, as the table in the module's docstring says."""
    blocks = _blocks(answer)
    structured = answer.get("structuredContent")
    content = structured if structured is not None else _unstructured(blocks)
    sent = answer.get("content")
    if structured is None and not isinstance(sent, list | None):
        return failure("The server's answer is not usable: its content is not a list of blocks", sent)
    beside = [block for block in blocks if block.get("type") != "text"] if structured is not None else []
    if answer.get("isError") is True:
        texts = (block.get("text") for block in blocks if block.get("type") == "text")
        said = "\n".join(str(text) for text in texts if text) or "The tool reported an error"
        said = said if len(said) <= MAX_ERROR_CHARS else _marked(said, MAX_ERROR_CHARS)
        result = failure(said, content)
    else:
        result = success(content)
    return replace(result, blocks=tuple(map(json_object, beside))) if beside else result


def content_blocks(answer: m.JsonObject) -> tuple[m.JsonObject, ...]:
    """Return all content blocks of the result object of `tools/call`, also those that `from_mcp` drops."""
    return tuple(map(json_object, _blocks(answer)))


def _blocks(answer: m.JsonObject) -> list[m.JsonObject]:
    blocks = answer.get("content")
    return [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []


def _unstructured(blocks: list[m.JsonObject]) -> object:
    texts = [block.get("text") for block in blocks if block.get("type") == "text"]
    if len(texts) != len(blocks) or not all(isinstance(text, str) for text in texts):
        return blocks
    if len(texts) != 1:
        return "\n".join(str(text) for text in texts)
    text = str(texts[0])
    if _looks_like_json(text) and len(text) <= MAX_JSON_CHARS and count_of(text, "[{,") <= MAX_JSON_VALUES:
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
    return text


def raw_text(result: m.ToolCallResult) -> str:
    """Return a result as plain text: its blocks' texts; if they have none, its error, else its content."""
    texts = [text for block in result.blocks if isinstance(text := block.get("text"), str)]
    if texts:
        return "\n".join(texts)
    return _plain(result.error_message or result.content)


class Told(NamedTuple):
    """A tool result as text for the model. `whole_chars` is the text's length before a cut; 0: not cut."""

    text: str
    attachments: tuple[m.Attachment, ...]
    whole_chars: int = 0


def told(result: m.ToolCallResult, max_chars: int, room: MediaRoom | None = None, note: str = "") -> Told:
    """Return a result as JSON text for the model, valid also if cut; without `room` nothing is attached."""
    before = len(room.attachments) if room else 0
    shown = replace(result, content=_readable(result.content, room)).to_dict()
    if result.blocks:
        shown["blocks"] = _readable(list(result.blocks), room)
    if note:
        shown = {"note": note, **shown}
    attached = tuple(room.attachments[before:]) if room else ()
    whole = _written(shown)
    text = _bounded(shown, max_chars, whole)
    return Told(text, attached, 0 if text == whole else len(whole))


def told_plainly(
    result: m.ToolCallResult,
    max_chars: int,
    room: MediaRoom | None = None,
    note: str = "",
    *,
    handle: str = "",
    unwraps: bool = True,
) -> Told:
    """Return a result as text for the model. A cut text names `handle`, if given, for `read_result`.

    `unwraps`: as in `whole_text`.
    """
    before = len(room.attachments) if room else 0
    said = "\n".join(filter(None, (note, *_parts(result, room, _plain))))
    attached = tuple(room.attachments[before:]) if room else ()
    if len(said) <= max_chars:
        return Told(said, attached)
    if handle:
        whole, kind = whole_text(result, unwraps=unwraps), _kind_of(result.content, unwraps=unwraps)
        return Told(_referred(whole, note, kind, max_chars, handle), attached, len(whole))
    return Told(_marked(said, max_chars), attached, len(said))


READ_ON = '; read_result with the handle "{handle}" reads all of it'  # how the model can read the rest


def is_referred(content: str, handle: str) -> bool:
    """Return whether the text of a result names this handle for `read_result`."""
    return READ_ON.format(handle=handle) in content


def whole_text(result: m.ToolCallResult, *, unwraps: bool = True) -> str:
    """Return a result's text for `read_result`: text as it is, JSON usually with a line for each value.

    Many servers wrap a text in an object, such as `{"content": "..."}`. With `unwraps`, such a text of
    several lines is returned alone, and the text of an embedded resource after the resource's other members:
    in JSON either would be one line.
    """
    return "\n".join(_parts(result, None, functools.partial(_laid_out, unwraps=unwraps)))


def _parts(result: m.ToolCallResult, room: MediaRoom | None, write: Callable[[object], str]) -> Iterator[str]:
    content = _readable(result.content, room)
    if result.is_error:
        yield f"Error: {result.error_message}"
    if not result.is_error or content not in (None, result.error_message):
        yield write(content)
    if result.blocks:
        yield write(_readable(list(result.blocks), room))


def _unwrapped(content: object) -> object:
    """Return the text of an object whose only member is a text of several lines. Else return `content`."""
    match list(content.values()) if isinstance(content, dict) else ():
        case [str(only)] if "\n" in only:
            return only
    return content


def _apart(block: m.JsonObject, *, unwraps: bool) -> Iterator[object]:
    """Yield a text block's text, or another block. With `unwraps`, that block's `text` comes after it."""
    is_text = block.get("type") == "text"
    if not unwraps:
        yield block.get("text") if is_text else block
        return
    if not is_text:
        yield {name: value for name, value in block.items() if name != "text"}
    if "text" in block:
        yield block["text"]


def _laid_out(content: object, *, unwraps: bool) -> str:
    content = _unwrapped(content) if unwraps else content
    if isinstance(content, list) and content and _readable(content, None) is not content:
        parts = (part for block in content for part in _apart(block, unwraps=unwraps))
        return "\n".join(_laid_out(part, unwraps=unwraps) for part in parts)
    text = _plain(content)
    has_lines = text.count("\n") >= len(text) // _LONG_LINE
    is_text = isinstance(content, str) and (has_lines or not _looks_like_json(text))
    return text if is_text else in_lines(text)


def in_lines(text: str) -> str:
    """Return JSON text with a line for each value; unchanged if it is no JSON, or could become very long."""
    try:
        return msgspec.json.format(text, indent=1) if _may_be_indented(text.encode()) else text
    except (msgspec.DecodeError, RecursionError):
        return text


def _may_be_indented(text: bytes) -> bool:
    """Return whether JSON is short, or has few brackets and levels: 1 MB of arrays could become 500 MB."""
    if len(text) <= _ALWAYS_INDENTED:
        return True
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    shape = text.translate(None, _NO_SHAPE)
    if 2 * shape.count(b'""') < shape.count(b'"'):  # some strings contain brackets
        shape = _STRINGS.sub(b"", shape)
    brackets = shape.translate(None, b'"')
    if len(brackets) > len(text) // 2:
        return False
    for _ in range(_MOST_LEVELS // 2):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")  # removes the innermost one or two levels
    return not brackets


def _looks_like_json(text: str) -> bool:
    return text[:_LOOK_CHARS].lstrip().startswith(("{", "["))


def _kind_of(content: object, *, unwraps: bool) -> str:
    match content:
        case dict() if unwraps and _unwrapped(content) is not content:
            return "the text of a JSON object of 1 member"
        case dict():
            return f"a JSON object of {len(content)} members"
        case list():
            return f"a JSON array of {len(content)} values"
        case str() if _looks_like_json(content):
            return "probably JSON text"
        case _:
            return "text"


def _referred(whole: str, note: str, kind: str, max_chars: int, handle: str) -> str:
    """Cut the middle out of a result's text. A mark tells the model to read the whole text by `handle`."""
    tail = max_chars // 3
    head, end = max_chars - tail, len(whole) - tail
    # Cut at the end of a line, if one is near.
    head = max(whole.rfind("\n", head - head // 10, head), -1) + 1 or head
    newline = whole.find("\n", end, end + tail // 5)
    end = end if newline < 0 else newline + 1
    first, last, lines = (whole.count("\n", 0, at) + 1 for at in (head, end, len(whole)))
    where = f", in lines {first} to {last} of {lines}" if lines > 1 else ""
    mark = f"[cut: {end - head} of {len(whole)} characters{where}, of {kind}{READ_ON.format(handle=handle)}]"
    shown = f"{whole[:head]}… {mark} …{whole[end:]}"
    return f"{note}\n{shown}" if note else shown


def cut_middle(content: str, max_chars: int) -> str:
    """Return a result's text, without its middle if it is too long. JSON stays JSON."""
    if len(content) <= max_chars:
        return content
    try:
        shown = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return without_middle(content, max(0, max_chars))
    cut: m.JsonObject = {}
    room = max(0, max_chars)
    for name, value in (shown if isinstance(shown, dict) else {"content": shown}).items():
        text = _plain(value)
        size = _written_chars(text)
        # `room` and `size` count characters of JSON, where a newline or a quote takes two.
        cut[name] = value if size <= room else without_middle(text, room * len(text) // size)
        room = max(0, room - size)
    return _written(cut)


def without_middle(text: str, kept: int) -> str:
    """Return the text. If it is longer than `kept` characters, replace its middle by a marker."""
    if len(text) <= kept:
        return text
    end = len(text) - kept // 2
    return f"{text[: kept - kept // 2]}… [cut: {len(text) - kept} of {len(text)} characters] …{text[end:]}"


def _bounded(shown: m.JsonObject, max_chars: int, whole: str) -> str:
    if len(whole) <= max_chars:
        return whole
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
    """Return content blocks as the model reads them, without base64. Any other content stays as it is."""
    blocks = content if isinstance(content, list) else ()
    if not all(isinstance(block, dict) and isinstance(block.get("type"), str) for block in blocks):
        return content
    return [_readable_block(block, room) for block in blocks] if isinstance(content, list) else content


def _readable_block(block: m.JsonObject, room: MediaRoom | None) -> m.JsonObject:
    match block:
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return _members(block, "type", "mimeType") | _binary(str(kind), block, data, room)
        case {"type": "resource_link", "uri": str()}:
            return _members(block, "type", "uri", "name", "description")
        case {"type": "resource", "resource": dict(resource)}:
            described = {"type": "resource", **_members(resource, "uri", "mimeType", "text")}
            blob = resource.get("blob")
            return described | (_binary("resource", resource, blob, room) if isinstance(blob, str) else {})
        case _:
            return block


def _binary(kind: str, holder: m.JsonObject, data: str, room: MediaRoom | None) -> m.JsonObject:
    """Return what the model reads for base64 data. With a `room`, attach data that is not text."""
    bare, mime = _without_prefix(data), holder.get("mimeType")
    clean = bare if len(bare) > _MAX_TEXT_BYTES else _clean(bare)
    # Data that is not base64 may be a secret that the trace hides: a replay would get another size.
    described: m.JsonObject = {} if clean is None else {"bytes": decoded_bytes(clean)}
    if room is None:
        return described
    if isinstance(mime, str) and _TEXTUAL.match(mime) and decoded_bytes(data) <= _MAX_TEXT_BYTES:
        with contextlib.suppress(ValueError):
            return described | {"text": base64.b64decode(bare).decode()}
    omitted = room.attach(kind, data, str(holder.get("uri") or ""))
    return described | {"omitted": omitted} if omitted else described


def _members(block: m.JsonObject, *names: str) -> m.JsonObject:
    return {name: block[name] for name in names if name in block}


def _cut(text: str, room: int) -> str:
    """Cut a text whose JSON is longer than `room` to the longest beginning that fits, and mark the cut."""
    if len(text) <= room and _written_chars(text) <= room:
        return text
    lengths = range(1, min(len(text), room) + 1)
    kept = bisect.bisect_right(lengths, room, key=lambda length: _written_chars(text[:length]))
    return _marked(text, kept)


def _marked(text: str, kept: int) -> str:
    return f"{text[:kept]}… [cut: {len(text) - kept} of {len(text)} characters]"


def _plain(content: object) -> str:
    return content if isinstance(content, str) else _written(content)


def _written(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _written_chars(value: object) -> int:
    return len(_written(value))
