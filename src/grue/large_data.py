"""Work on megabytes in steps of a few milliseconds, so that other threads can run in between.

A call into C keeps the interpreter until it returns. A thread that searches, copies or encodes 60 MB in one
call blocks the event loop for 50 ms, though it runs beside it. The functions here do the same in a Python
loop of short calls: the interpreter switches threads between two of them. Memory that is written for the
first time costs most, about a millisecond per megabyte, so a copy is a long call too.
"""

from io import BytesIO
from itertools import islice
from secrets import token_hex
from types import NoneType
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

STEP = 2**20
"""Bytes or characters of one step."""

LONG = 131_072
"""Size of a message's JSON in bytes from which it is handled in a thread."""

VERY_LONG = 16 * 2**20
"""Characters of a text from which its message is encoded in steps. Actors read no longer texts. Up to there,
one call is quicker, and in the event loop nothing is gained by letting other threads run in between."""

_MOST_NODES = 1000
_PLAIN = frozenset((NoneType, bool, int, float))


def count_of(data: str | bytes, marks: str) -> int:
    """Return how often the characters of `marks`, which are ASCII, stand in `data`."""
    if isinstance(data, str):
        return sum([data.count(mark, at, at + STEP) for at in range(0, len(data), STEP) for mark in marks])
    codes = marks.encode()
    return sum([data.count(code, at, at + STEP) for at in range(0, len(data), STEP) for code in codes])


def find_in(data: bytes, wanted: bytes, start: int = 0) -> int:
    """Return where `wanted` stands at or after `start`; -1: nowhere."""
    for at in range(start, len(data), STEP):
        found = data.find(wanted, at, at + STEP + len(wanted) - 1)
        if found >= 0:
            return found
    return -1


def joined(*parts: bytes | memoryview) -> bytes:
    """Return the parts as one; copies each byte once."""
    if sum(map(len, parts)) <= STEP:
        return b"".join(parts)
    out = BytesIO()
    for part in parts:
        write_to(out, part)
    return out.getvalue()


def write_to(out: BytesIO, part: bytes | memoryview) -> None:
    """Append to `out`."""
    if len(part) <= STEP:
        out.write(part)
        return
    view = memoryview(part)
    # The generator is Python code, so threads can switch before each piece.
    out.writelines(view[at : at + STEP] for at in range(0, len(view), STEP))


def encode(encoder: msgspec.json.Encoder, body: Any) -> bytes:
    """Return what `encoder.encode(body)` would, in steps if a text of the body is very long."""
    rest = begin_encoding(encoder, body)
    return encoder.encode(body) if rest is None else rest.finish()


def begin_encoding(encoder: msgspec.json.Encoder, body: Any) -> "UnfinishedJson | None":
    """Encode all but the very long texts of a body; `None` if it has none.

    The rest of the work takes milliseconds per megabyte. It can be done later and in another thread, whatever
    happens to the body meanwhile: texts cannot change.

    Raises:
        UnicodeEncodeError: A text has a lone surrogate.
    """
    if not _has_long_text(body):
        return None
    texts: dict[str, str] = {}
    written = encoder.encode(_without_texts(msgspec.to_builtins(body), texts))
    for text in texts.values():
        if not text.isascii():
            _check_unicode(text)
    return UnfinishedJson(encoder, written, texts)


class UnfinishedJson(Struct, frozen=True):
    """The JSON of a body with a name in place of each very long text, and the texts by name."""

    encoder: msgspec.json.Encoder
    written: bytes
    texts: dict[str, str]

    def finish(self) -> bytes:
        """Return the whole JSON."""
        out, at = BytesIO(), 0
        for name, text in self.texts.items():
            mark = self.encoder.encode(name)
            start = self.written.index(mark, at)
            out.write(self.written[at : start + 1])
            for place in range(0, len(text), STEP):
                out.write(memoryview(self.encoder.encode(text[place : place + STEP]))[1:-1])
            at = start + len(mark) - 1
        out.write(self.written[at:])
        return out.getvalue()


def _check_unicode(text: str) -> None:
    for place in range(0, len(text), STEP):
        text[place : place + STEP].encode()


def _has_long_text(body: object) -> bool:
    """Return whether a very long text is in a body; looks at most at `_MOST_NODES` values, breadth first.

    It runs for every message that is recorded, so it makes no calls into Python code.
    """
    queue = [body]
    for node in islice(queue, _MOST_NODES):
        kind = type(node)
        if kind is str:
            if len(node) >= VERY_LONG:  # type: ignore[arg-type]  # it is a text
                return True
        elif kind in _PLAIN:
            pass
        elif isinstance(node, Struct):
            queue += astuple(node)
        elif isinstance(node, dict):
            queue += node.values() if len(node) <= _MOST_NODES else ()
        elif isinstance(node, list | tuple):
            queue += node[:_MOST_NODES]
    return False


def _without_texts(value: Any, texts: dict[str, str]) -> Any:
    """Return a JSON value with a name in place of each long text, which is added to `texts` under it."""
    match value:
        case str() if len(value) >= VERY_LONG:
            name = token_hex(16)
            texts[name] = value
            return name
        case dict():
            return {key: _without_texts(item, texts) for key, item in value.items()}
        case list() | tuple():
            return [_without_texts(item, texts) for item in value]
        case _:
            return value
