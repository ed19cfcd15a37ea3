"""Find credentials that nobody has registered as secrets: values of authorisation headers, bearer tokens.

It finds them in plain text, in JSON, and in JSON within a string, as UTF-8 bytes. All searches take linear
time and constant memory, because every repetition in the regular expressions is possessive or bounded.
"""

import re
from collections.abc import Iterator

_NAME = b"(?:authorization|api-key)"
_SCHEME = b"(?:bearer|basic|token|digest|negotiate|apikey)"
_BLANK = rb"(?:[ \t]|\\{1,64}+t)"

# The characters of a credential, and their JSON escapes: a slash as `\/`, a plus sign as `\u002B`.
_SIGNS = rb"a-z._~+/=:;|!$%&*@#^-"
_VALUE = rb"(?:[0-9%b]|\\{1,64}+/|\\{1,64}+u[0-9a-f]{4})" % _SIGNS
_QUOTES = rb"""["'\\]{0,64}+"""

_HEADER = re.compile(
    rb"(?i)%(name)b%(quotes)b%(blank)b*+[:=]%(blank)b*+%(quotes)b(?:%(scheme)b%(blank)b++)?+"
    rb"(?!%(scheme)b(?:[\s\\\"']|\Z))(?=%(value)b{6})"
    % {b"name": _NAME, b"quotes": _QUOTES, b"blank": _BLANK, b"scheme": _SCHEME, b"value": _VALUE}
)
_BEARER = re.compile(
    rb"(?i)bearer ++(?=%b{12})(?=sk-|(?:[%b]++|\\{1,64}+/)*+(?:[0-9]|\\{1,64}+u[0-9a-f]{4}))"
    % (_VALUE, _SIGNS)
)
"""Without a header name the value must look like a token, because prose may contain "bearer of"."""

_FIELD = re.compile(rb'(?i)"[a-z-]{0,40}%b"\s{0,8}:\s{0,8}"(?:%b +)?' % (_NAME, _SCHEME))
"""A header as a member of a JSON object. Its value must be a string; other values are not credentials."""

# Long values are matched in steps. A single match over megabytes would block all other threads meanwhile.
_VALUE_STEP = re.compile(rb"(?i)(?:[0-9%b]{1,4096}+|\\{1,64}+/|\\{1,64}+u[0-9a-f]{4}){1,64}+" % _SIGNS)
_TEXT_STEP = re.compile(rb'(?:[^"\\]{1,4096}+|\\.){1,64}+', re.DOTALL)
_NEXT_VALUE = re.compile(rb"(?i),?+%b{1,64}+(?=%b{12})" % (_BLANK, _VALUE))
"""Another value after the first one. Some schemes have several, such as `Signature=`."""

_SHORTEST = 6
MAX_HEADER_BYTES = 512
"""Longest distance in bytes from the start of a header's name to the first byte of its value."""


def may_contain_credentials(written: bytes) -> bool:
    """Return whether there may be a credential. Cheap; it has false positives but no false negatives."""
    lowered = written.lower()
    return b"authorization" in lowered or b"api-key" in lowered or b"bearer " in lowered


def authorisations(
    written: bytes, start: int, end: int, *, in_json: bool
) -> tuple[Iterator[tuple[int, int]], ...]:
    """Return, for each way to write them, start and end of each value, in order.

    Its header begins at a position from `start` to before `end`.

    Args:
        written: UTF-8 text.
        start: First position of a header.
        end: The position after the last one.
        in_json: `written` is JSON. A value then ends at the end of its JSON string.
    """
    headers = tuple(_of_kind(kind, written, start, end, in_json) for kind in (_HEADER, _BEARER))
    return (_fields(written, start, end), *headers) if in_json else headers


def _fields(written: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    at, limit = start, end + MAX_HEADER_BYTES
    while (found := _FIELD.search(written, at, limit)) and found.start() < end:
        value = found.end()
        at = _end_of_run(_TEXT_STEP, written, value)
        if at - value >= _SHORTEST:
            yield value, at


def _of_kind(
    kind: re.Pattern[bytes], written: bytes, start: int, end: int, in_json: bool
) -> Iterator[tuple[int, int]]:
    at, limit = start, end + MAX_HEADER_BYTES
    while (found := kind.search(written, at, limit)) and found.start() < end:
        at = value = found.end()
        if not (in_json and crosses_strings(written, found.start(), value)):
            at = _end_of_values(written, value)
            yield value, at


def _end_of_values(written: bytes, at: int) -> int:
    at = _end_of_run(_VALUE_STEP, written, at)
    while more := _NEXT_VALUE.match(written, at):
        at = _end_of_run(_VALUE_STEP, written, more.end())
    return at


def _end_of_run(step: re.Pattern[bytes], written: bytes, at: int) -> int:
    while more := step.match(written, at):
        at = more.end()
    return at


def crosses_strings(written: bytes, start: int, end: int) -> bool:
    """Return whether a JSON string begins or ends between two positions. `start` must not be in an escape."""
    at = start
    while (at := written.find(b'"', at, end)) >= 0:
        before = written[start:at]
        if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
            return True
        at += 1
    return False
