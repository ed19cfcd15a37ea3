"""Find what authorises a request though nobody named it: values of authorisation headers, bearer tokens.

In text, in JSON and in JSON within a text, as UTF-8 bytes. Everything here takes linear time, and no memory
that grows with the text: what is repeated is possessive or bounded.
"""

import re
from collections.abc import Iterator

_NAME = b"(?:authorization|api-key)"
_SCHEME = b"(?:bearer|basic|token|digest|negotiate|apikey)"
_BLANK = rb"(?:[ \t]|\\{1,64}+t)"

# What a credential is made of, and how JSON writers escape that: a slash as `\/`, a plus sign as `\u002B`.
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
"""Without the header's name, only what looks like a token: prose may say 'bearer of' something."""

_FIELD = re.compile(rb'(?i)"[a-z-]{0,40}%b"\s{0,8}:\s{0,8}"(?:%b +)?' % (_NAME, _SCHEME))
"""A header in an object of the message itself, its value a text; values of other kinds are no credentials."""

# Runs are taken in steps, for a single one over megabytes would hold the interpreter for as long.
_VALUE_STEP = re.compile(rb"(?i)(?:[0-9%b]{1,4096}+|\\{1,64}+/|\\{1,64}+u[0-9a-f]{4}){1,64}+" % _SIGNS)
_TEXT_STEP = re.compile(rb'(?:[^"\\]{1,4096}+|\\.){1,64}+', re.DOTALL)
_NEXT_VALUE = re.compile(rb"(?i),?+%b{1,64}+(?=%b{12})" % (_BLANK, _VALUE))
"""Some schemes have several values, such as `Signature=`."""

_SHORTEST = 6
REACH = 512
"""Bytes from the beginning of a header's name to where it is certain that it is one."""


def may_authorise(written: bytes) -> bool:
    """Say whether there may be such a value; cheap, and never too seldom."""
    lowered = written.lower()
    return b"authorization" in lowered or b"api-key" in lowered or b"bearer " in lowered


def authorisations(written: bytes, start: int, end: int, *, in_json: bool) -> Iterator[tuple[int, int]]:
    """Yield where values are whose header begins within `start` and `end`.

    Args:
        written: UTF-8 text.
        start: First byte that a header may begin with.
        end: The one behind the last such byte.
        in_json: `written` is JSON; a value in a text of it does not reach beyond that text.
    """
    limit = min(end + REACH, len(written))
    for kind in (_FIELD, _HEADER, _BEARER) if in_json else (_HEADER, _BEARER):
        at = start
        while (found := kind.search(written, at, limit)) and found.start() < end:
            at, value = found.end(), found.end()
            if kind is _FIELD:
                at = _end_of_run(_TEXT_STEP, written, value)
                if at - value >= _SHORTEST:
                    yield value, at
            elif not (in_json and crosses_texts(written, found.start(), value)):
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


def crosses_texts(written: bytes, start: int, end: int) -> bool:
    """Say whether a text of the JSON ends between two places, the first of which is no part of an escape."""
    at = start
    while (at := written.find(b'"', at, end)) >= 0:
        before = written[start:at]
        if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
            return True
        at += 1
    return False
