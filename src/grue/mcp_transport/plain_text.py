"""Untrusted text made safe to print: a server's words cannot move the cursor or hide themselves."""

import re
import unicodedata

_ESCAPE_SEQUENCE = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # operating system command: titles, links, clipboard
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # control sequence: colours, cursor
    r"|\x1b[ -/]*[0-~]"  # the short ones
)
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def plain_text(text: str) -> str:
    r"""Return `text` without terminal escape sequences, other control characters written out (`\x07`).

    Newlines and tabs stay; `\r\n` becomes `\n`. Formatting characters, such as those that reverse the order
    of writing, and lone surrogates are written out too.
    """
    text = _ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n"))
    if text.isprintable():
        return text
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in _HIDDEN:
        return character
    return ascii(character)[1:-1]
