r"""Make untrusted text safe to print in a terminal or a log.

Text from a model, a tool or a game can contain newlines that fake a log line, escape sequences that move the
cursor, and marks that reverse the writing direction. `printable` and `written_out` replace such characters by
their escapes (`\n`, `\u001b`). They drop nothing, so that a reader sees what was sent.

Backslashes are not escaped. The functions can therefore be applied twice, and JSON text stays valid JSON
text.
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
        text: Any text, lone surrogates included.
        limit: Most characters to return, at least 1; a longer text is cut and ends in an ellipsis.
    """
    if limit is not None:
        # No character becomes shorter, so the text beyond the limit, which may be megabytes, is not needed.
        text = text[: limit + 1]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else _visible(char) for char in text)
    if limit is not None and len(text) > limit:
        return text[: limit - 1] + ELLIPSIS
    return text


def beginning(text: str, limit: int) -> str:
    """Return the first `limit` characters of a text, with an ellipsis if it was cut.

    Use this to cut a text that is redacted afterwards. A secret may be cut in the middle; the redaction
    recognises the beginning of a secret only before this ellipsis.
    """
    return text if len(text) <= limit else text[:limit] + ELLIPSIS


def plain_text(text: str) -> str:
    r"""Return `text` without terminal escape sequences and with its other control characters escaped.

    Newlines and tabs stay; `\r\n` becomes `\n`. Use this for the output of a program that was written for a
    terminal: its colours mean nothing here, so their escape sequences are dropped.
    """
    return written_out(_ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n")))


def written_out(text: str) -> str:
    """Return `text` with unprintable characters escaped; newlines and tabs stay, and nothing is dropped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else _visible(char) for char in text)


def well_formed(text: str) -> str:
    """Return `text` with U+FFFD in place of lone surrogates, which cannot be encoded.

    Lone surrogates come from bytes that are not valid text, as in a file's name or a program's output.
    """
    if text.isascii():
        return text
    try:
        text.encode()  # finds the same errors as the line below at a tenth of the cost
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
