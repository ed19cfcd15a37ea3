"""A text that comes in pieces: hold back the end of what has come while it may be the beginning of a secret.

No piece may be shown that others complete to a secret, though none of them holds it. What is held back is
shown with the next piece, or when the text has ended.
"""

import re
from collections.abc import Iterable
from typing import TypeAlias

from grue.runtime.redaction import BEGINNING, TELLING, Redaction
from grue.runtime.secret_forms import Spelling, spellings_of

_HEADERS = tuple(tuple((char,) for char in name) for name in ("authorization", "api-key", "bearer "))
_LINE = r"[^\n\\]*+(?:\\(?!n)[^\n\\]*+)*+"
_OPEN = re.compile(
    rf"""(?ia)(?:(?:authorization|api-key)["'\\]{{0,64}}+[ \t]*+(?:[:=]{_LINE})?|bearer ++[^\s"'\\]*+)\Z"""
)
"""A header, or a bearer token, whose value may go on."""

_NAME = re.compile("(?ia)authorization|api-key|bearer ")
_LONG = 4096
"""Characters of a held-back text from which on it is only asked whether its line ends."""


class TextPieces:
    """One text, as far as it has come.

    Args:
        redaction: Knows the secrets.
    """

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._held = ""
        self._line: list[str] = []
        self._names = _Beginnings(_HEADERS)
        self._secrets = _Beginnings(
            spelling for secret in redaction.secrets for spelling in spellings_of(secret)
        )

    def feed(self, piece: str) -> str:
        """Return what can be shown now that `piece` has come; may be empty."""
        self._names.feed(piece.lower())
        self._secrets.feed(piece)
        if self._line:
            self._line.append(piece)
            if "\n" not in piece and "\\n" not in piece:
                return ""
            piece = "".join(self._line)
            self._line = []
        text = self._held + piece
        shown = self._decided(text)
        self._held = text[shown:]
        if len(self._held) > _LONG:
            self._line, self._held = [self._held], ""
        return text[:shown]

    def end(self) -> str:
        """Return what was held back; the beginning of a secret is not shown though nothing follows it."""
        text = self._held + "".join(self._line)
        self._held, self._line = "", []
        begun = min(self._secrets.longest, len(text))
        return f"{text[:-begun]}{BEGINNING}" if begun >= TELLING else text

    def _decided(self, text: str) -> int:
        """Return how much of the text nothing that follows can make a secret of."""
        end = len(text) - max(self._names.longest, self._secrets.longest)
        for name in _NAME.finditer(text):
            if name.start() >= end:
                break
            if _OPEN.match(text, name.start()):
                end = name.start()
                break
        return end if end == len(text) else self._redaction.whole_up_to(text, max(0, end))


class _Beginnings:
    """Tells how much of the end of a text is the beginning of a form, and not the whole of it."""

    def __init__(self, spellings: Iterable[Spelling]) -> None:
        self._spellings = tuple(spellings)
        longest = (sum(max(map(len, place)) for place in spelling) for spelling in self._spellings)
        self._reach = max(longest, default=0)
        self._firsts: dict[str, list[_Place]] = {}
        for number, spelling in enumerate(self._spellings):
            for form in spelling[0]:
                self._firsts.setdefault(form[0], []).append((form, number, 1))
        self._begun: dict[_Place, int] = {}

    @property
    def longest(self) -> int:
        return max(self._begun.values(), default=0)

    def feed(self, piece: str) -> None:
        if len(piece) > self._reach:
            self._begun, piece = {}, piece[len(piece) - self._reach :]
        for char in piece:
            begun: dict[_Place, int] = {}
            for place, length in self._begun.items():
                if place[0][0] == char:
                    self._go_on(begun, place, length + 1)
            for place in self._firsts.get(char, ()):
                self._go_on(begun, place, 1)
            self._begun = begun

    def _go_on(self, begun: "dict[_Place, int]", place: "_Place", length: int) -> None:
        """Add what follows the first character of a place; at the end of a form there is nothing."""
        form, number, at = place
        rest, spelling = form[1:], self._spellings[number]
        if rest:
            begun[rest, number, at] = max(length, begun.get((rest, number, at), 0))
        elif at < len(spelling):
            for each in spelling[at]:
                begun[each, number, at + 1] = max(length, begun.get((each, number, at + 1), 0))


_Place: TypeAlias = tuple[str, int, int]
"""Where in a form a text has come to: what is left of a character, in which spelling, and what follows it."""
