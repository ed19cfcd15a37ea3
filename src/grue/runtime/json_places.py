r"""Where in a message's JSON something was found, and which of it can be replaced.

What is found is found in bytes. For the rest to stay JSON, a place must not end within an escape (`\"`,
`\u0000`), and what stands outside of texts, a number, has to become a text as a whole.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self


class Found(NamedTuple):
    """Where something stands that is to be replaced.

    Attributes:
        start: The first byte.
        end: The one behind the last.
        shown: What is shown instead.
        rank: Of places that overlap, the one with the lower rank says what is shown.
        is_number: It is a number, not a part of a text.
    """

    start: int
    end: int
    shown: str
    rank: int
    is_number: bool = False

    def united(self, other: Self) -> "Found":
        """Return one place for two that overlap."""
        named = min(self, other, key=lambda found: found.rank)
        return named._replace(start=min(self.start, other.start), end=max(self.end, other.end))


def whole_escapes(written: bytes, found: Found) -> Found | None:
    r"""Return the place so that it splits no escape; `None` if it begins among the digits of a `\u`."""
    start, end = found.start, found.end
    if b"\\" not in written[max(0, start - _BACK) : start] + written[end - _BACK : end]:
        return found
    if _opens_escape(written, start):
        start -= 1
    elif _opened_before(written, start):
        return None
    if _opens_escape(written, end):
        end -= 1
    elif back := _opened_before(written, end):
        end += _BACK - back
    return found._replace(start=start, end=end) if start < end else None


_BACK = 5
r"""How far behind the `u` of a `\u` escape the next character stands."""


def _opened_before(written: bytes, at: int) -> int:
    r"""Return how far before `at` stands the `u` of a `\u` escape that is not over; 0: there is none."""
    backs = (back for back in range(1, _BACK) if written[at - back] == ord("u"))
    return next((back for back in backs if _opens_escape(written, at - back)), 0)


def _opens_escape(written: bytes, at: int) -> bool:
    """Say whether a backslash before `at` makes an escape of what stands there."""
    first = at
    while first > 0 and written[first - 1] == 0x5C:
        first -= 1
    return (at - first) % 2 == 1


_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|-?[0-9][-+.eE0-9]*', re.DOTALL)
_LONGEST_WORD = 400
"""No number is longer than 309 digits before the point and a few behind it, unless somebody means harm."""

_MAY_BE_NO_TEXT = re.compile(rb"[-+.eE0-9]+|[truefalsn]+")


def with_numbers(written: bytes, places: Iterable[Found]) -> Iterator[Found]:
    """Yield the places in texts, and for one in a number all of it."""
    last = -1
    for found in _placed(written, places):
        if found.start > last:
            yield found
        last = found.start if found.is_number else last


def in_texts(written: bytes, places: Iterable[Found]) -> Iterator[Found]:
    """Yield the places in texts."""
    return (found for found in _placed(written, places) if not found.is_number)


def in_values(written: bytes, places: Iterable[Found]) -> Iterator[Found]:
    """Yield the places in texts that are neither keys nor the message's tag, its first value."""
    tag_end = written.find(b",")
    for found in in_texts(written, places):
        end = _end_of_text(written, found.end)
        if found.start > tag_end and written[end + 1 : end + 2] != b":":
            yield found


def in_sentences(written: bytes, places: Iterable[Found]) -> Iterator[Found]:
    """Yield the places in texts that are more than one word, as what a message has to say in fixed words."""
    for found in in_values(written, places):
        start, end = written.rfind(b'"', 0, found.start) + 1, _end_of_text(written, found.end)
        if not _WORD.fullmatch(written, start, end):
            yield found


_WORD = re.compile(rb"[A-Za-z_-]*")


def _end_of_text(written: bytes, at: int) -> int:
    end = written.find(b'"', at)
    while _opens_escape(written, end):
        end = written.find(b'"', end + 1)
    return end


def _placed(written: bytes, places: Iterable[Found]) -> Iterator[Found]:
    """Yield the places in texts as they are, and those in numbers as the whole number."""
    tokens = _TOKEN.finditer(written)
    token: re.Match[bytes] | None = None
    for found in places:
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
            continue  # it is `true`, `false` or `null`
        if written.startswith(b'"', token.start()):
            yield found
        else:
            yield found._replace(start=token.start(), end=token.end(), is_number=True)
