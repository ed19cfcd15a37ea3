"""Make untrusted text safe to print in a terminal or a log.

Such text can contain newlines that fake a log line, escape sequences, and marks that reverse the writing
direction. `printable`, `plain_text` and `written_out` escape no backslashes, so they can be applied twice.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from itertools import groupby

ELLIPSIS = "…"

_ESCAPE_SEQUENCE = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # operating system command: titles, links, clipboard
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # control sequence: colours, cursor
    r"|\x1b[ -/]*[0-~]"  # the short escape sequences
)

# An escaped backslash, an escaped surrogate pair, or, as the group, an escaped lone surrogate.
_ESCAPES = re.compile(
    r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, limit: int | None = None) -> str:
    """Return any text as one line of printable characters, cut to `limit` (at least 1) with an ellipsis."""
    if limit is not None:
        # Escaping never shortens a text, so the rest is not needed. It may be megabytes long.
        text = text[: limit + 1]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else _visible(char) for char in text)
    return text if limit is None else clipped(text, limit)


def clipped(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, which ends in an ellipsis if it was longer."""
    return text if len(text) <= limit else text[: limit - 1] + ELLIPSIS


def beginning(text: str, limit: int) -> str:
    """Return the first `limit` characters of a text, and an ellipsis if it was longer."""
    # The ellipsis tells a later redaction that the text, and perhaps a secret, was cut there.
    return text if len(text) <= limit else text[:limit] + ELLIPSIS


def shortened(text: str, limit: int) -> str:
    """Cut the middle out of a text longer than `limit`. Redact it first: a cut secret may be missed."""
    if len(text) <= limit:
        return text
    end = limit // 3
    return f"{text[: limit - 1 - end]}{ELLIPSIS}{text[len(text) - end :]}"


def plain_text(text: str) -> str:
    r"""Return terminal output as `written_out` does, without escape sequences, and with `\n` for `\r\n`."""
    return written_out(_ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n")))


def written_out(text: str) -> str:
    """Return `text` with unprintable characters escaped, unusual spaces as " ", newlines and tabs kept."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else _visible(char) for char in text)


def well_formed(text: str) -> str:
    """Return `text` with U+FFFD in place of lone surrogates, which come, for example, from invalid UTF-8.

    The result is of the class `str` itself, as messages need it, also if `text` is, say, numpy's `str_`.
    """
    text = str.__str__(text)
    if text.isascii():
        return text
    try:
        text.encode()  # fails if there are lone surrogates, and is faster than the conversion below
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def well_formed_escapes(text: str) -> str:
    r"""Return a JSON text with `\ufffd` in place of the escapes of lone surrogates."""
    if "\\u" not in text:
        return text
    return _ESCAPES.sub(lambda found: "\\ufffd" if found[1] else found[0], text)


_MOST_SHOWN = 50_000
_MOST_READ = 2_000_000
_REPEATED = 24
_ROW = 76
_UNIT = re.compile(r"\\u[0-9a-f]{4}|\\U[0-9a-f]{8}|\\.|.", re.DOTALL)
# Characters that count as printable and show nothing.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def shown_whole(value: object) -> list[str] | None:
    r"""Return a JSON value in rows that show all of it, for a person who has to approve it.

    What cannot be seen is escaped. A character that is repeated often is written with its count, such as
    `\(3000 spaces)`. A row that goes on in the next row ends in a backslash. JSON has neither of these forms,
    so they cannot be taken for a part of the value. `None`: it is not JSON, or too long to read.
    """
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return None
    if len(text) > _MOST_READ:
        return None
    text = "".join(char if char.isprintable() and not _BLANK.match(char) else _escaped(char) for char in text)
    pieces = list(_folded(_UNIT.findall(text)))
    if sum(map(len, pieces)) > _MOST_SHOWN:
        return None
    rows = [""]
    for piece in pieces:
        if rows[-1] and len(rows[-1]) + len(piece) > _ROW:
            rows[-1] += "\\"
            rows.append("")
        rows[-1] += piece
    return rows


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _folded(units: list[str]) -> Iterator[str]:
    for unit, same in groupby(units):
        count = sum(1 for _ in same)
        if count <= _REPEATED:
            yield from [unit] * count
        elif unit == " ":
            yield f"\\({count} spaces)"
        else:
            yield f"{unit}\\({count} times)"


def _visible(char: str) -> str:
    if char in _NAMED:
        return _NAMED[char]
    if unicodedata.category(char) == "Zs":
        return " "
    return _escaped(char)


def fault_text(told: str) -> str:
    """Return a validator's message without the words that pydantic puts before it."""
    return told.removeprefix("Value error, ").removeprefix("Assertion failed, ")
