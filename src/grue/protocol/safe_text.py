r"""Untrusted text, made fit for one line of a terminal or a log.

What a model, a tool or a game writes may hold newlines that fake a log line, escape sequences that move the
cursor, and marks that turn the direction of writing. Here such characters are written out (`\n`, `\u001b`);
nothing is dropped, so that a reader sees what was sent.

Backslashes stay as they are. The functions can therefore be applied twice without harm, and the JSON text of
a value stays that JSON text.
"""

import re
import unicodedata

ELLIPSIS = "…"

_ESCAPE_SEQUENCE = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # operating system command: titles, links, clipboard
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # control sequence: colours, cursor
    r"|\x1b[ -/]*[0-~]"  # the short ones
)

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, limit: int | None = None) -> str:
    """Return `text` as one line of printable characters.

    Args:
        text: Anything, lone surrogates included.
        limit: Most characters to return, at least 1; what is longer ends in an ellipsis.
    """
    if limit is not None:
        # No character becomes shorter, so what lies beyond the limit cannot matter; it may be megabytes.
        text = text[: limit + 1]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else _visible(char) for char in text)
    if limit is not None and len(text) > limit:
        return text[: limit - 1] + ELLIPSIS
    return text


def beginning(text: str, limit: int) -> str:
    """Return the first `limit` characters of a text; an ellipsis behind them marks a cut.

    By that mark a secret that was cut is recognised by its beginning: what is cut before secrets are taken
    out of it has to be cut like this.
    """
    return text if len(text) <= limit else text[:limit] + ELLIPSIS


def plain_text(text: str) -> str:
    r"""Return `text` in its lines, without terminal escape sequences, control characters written out.

    Newlines and tabs stay; `\r\n` becomes `\n`. For what a program wrote to a terminal: its colours mean
    nothing here, and are dropped rather than shown.
    """
    return written_out(_ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n")))


def written_out(text: str) -> str:
    """Return `text` in its lines, with what is not printable written out. Nothing is dropped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else _visible(char) for char in text)


def well_formed(text: str) -> str:
    """Return `text` with U+FFFD for lone surrogates, which are no characters and cannot be encoded.

    They come from bytes that were no text: a file's name, a program's output.
    """
    try:
        text.encode()  # says the same as the next line, and costs a tenth of it
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _visible(char: str) -> str:
    if char in _NAMED:
        return _NAMED[char]
    if unicodedata.category(char) == "Zs":
        return " "
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def cells(text: str) -> int:
    """Return how many columns of a terminal printable `text` takes."""
    return len(text) if text.isascii() else sum(map(_char_cells, text))


def _char_cells(char: str) -> int:
    if unicodedata.category(char) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def cut(text: str, width: int) -> str:
    """Return the beginning of printable `text` that fits into `width` columns; an ellipsis marks a cut."""
    if cells(text) <= width:
        return text
    end, room = 0, width - 1
    # It is too long, so there is a character at which the room runs out.
    while (room := room - _char_cells(text[end])) >= 0:
        end += 1
    return text[:end] + ELLIPSIS if width > 0 else ""


def pad(text: str, width: int) -> str:
    """Return printable `text` with spaces behind it, up to `width` columns."""
    return text + " " * (width - cells(text))
