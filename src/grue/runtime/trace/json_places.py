r"""Positions of secrets in a message's JSON, adjusted so that replacing them leaves valid JSON.

Secrets are found in bytes. A span must not begin or end inside an escape (`\"`, `\u0000`). A secret that is
part of a number can only be replaced if the whole number becomes a string.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self


class Found(NamedTuple):
    """A span of bytes that is to be replaced.

    Attributes:
        start: Position of the first byte.
        end: Position after the last byte.
        shown: The replacement.
        rank: If spans overlap, the replacement of the one with the lower rank is used.
        is_number: The span is a whole number, not a part of a string.
    """

    start: int
    end: int
    shown: str
    rank: int
    is_number: bool = False

    def merged(self, other: Self) -> "Found":
        """Return one span for two that overlap."""
        first = min(self, other, key=lambda found: found.rank)
        return first._replace(start=min(self.start, other.start), end=max(self.end, other.end))


def extend_to_escapes(written: bytes, found: Found) -> Found | None:
    r"""Return the span, extended to whole escapes; `None` if it begins in the digits of a `\u` escape."""
    start, end = found.start, found.end
    if b"\\" not in written[max(0, start - _BACK) : start] + written[end - _BACK : end]:
        return found
    if _is_escaped(written, start):
        start -= 1
    elif _unicode_escape_before(written, start):
        return None
    if _is_escaped(written, end):
        end -= 1
    elif back := _unicode_escape_before(written, end):
        end += _BACK - back
    return found._replace(start=start, end=end) if start < end else None


_BACK = 5
r"""Distance from the `u` of a `\u` escape to the character after the escape."""


def _unicode_escape_before(written: bytes, at: int) -> int:
    r"""Return the distance back to the `u` of the `\u` escape that `at` is in; 0: `at` is in none."""
    backs = (back for back in range(1, _BACK) if written[at - back] == ord("u"))
    return next((back for back in backs if _is_escaped(written, at - back)), 0)


def _is_escaped(written: bytes, at: int) -> bool:
    """Return whether the character at `at` is escaped by a backslash before it."""
    first = at
    while first > 0 and written[first - 1] == 0x5C:
        first -= 1
    return (at - first) % 2 == 1


_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|-?[0-9][-+.eE0-9]*', re.DOTALL)
_LONGEST_WORD = 400
"""Length of the longest span that can be part of a number. Regular floats have at most 309 digits."""

_MAY_BE_NO_TEXT = re.compile(rb"[-+.eE0-9]+|[truefalsn]+")


def in_strings_and_numbers(written: bytes, spans: Iterable[Found]) -> Iterator[Found]:
    """Yield the spans in strings, and for a span in a number the whole number."""
    last = -1
    for found in _in_tokens(written, spans):
        if found.start > last:
            yield found
        last = found.start if found.is_number else last


def in_strings(written: bytes, spans: Iterable[Found]) -> Iterator[Found]:
    """Yield the spans in strings."""
    return (found for found in _in_tokens(written, spans) if not found.is_number)


def in_string_values(written: bytes, spans: Iterable[Found]) -> Iterator[Found]:
    """Yield the spans in strings that are neither keys nor the message's tag, which is its first value."""
    tag_end = written.find(b",")
    for found in in_strings(written, spans):
        end = _end_of_text(written, found.end)
        if found.start > tag_end and written[end + 1 : end + 2] != b":":
            yield found


def in_prose(written: bytes, spans: Iterable[Found]) -> Iterator[Found]:
    """Yield the spans in values that are more than one word. A single word may be an enumeration's value."""
    for found in in_string_values(written, spans):
        start, end = written.rfind(b'"', 0, found.start) + 1, _end_of_text(written, found.end)
        if not _WORD.fullmatch(written, start, end):
            yield found


_WORD = re.compile(rb"[A-Za-z_-]*")


def _end_of_text(written: bytes, at: int) -> int:
    end = written.find(b'"', at)
    while _is_escaped(written, end):
        end = written.find(b'"', end + 1)
    return end


def _in_tokens(written: bytes, spans: Iterable[Found]) -> Iterator[Found]:
    """Yield the spans in strings unchanged, and those in numbers as the whole number."""
    tokens = _TOKEN.finditer(written)
    token: re.Match[bytes] | None = None
    for found in spans:
        if found.end - found.start > _LONGEST_WORD or not _MAY_BE_NO_TEXT.fullmatch(
            written, found.start, found.end
        ):
            yield found
            continue
        while token is None or token.end() <= found.start:
            token = next(tokens, None)
            if token is None:
                break
        if token is None or token.start() > found.start:
            continue  # the span is in `true`, `false` or `null`
        if written.startswith(b'"', token.start()):
            yield found
        else:
            yield found._replace(start=token.start(), end=token.end(), is_number=True)
