"""Redact a text that arrives in pieces: hold back its end while that may be the beginning of a secret.

A secret may be split over several pieces, none of which contains it. So the end of a piece that may be the
beginning of a secret is held back. It is shown with the next piece, or when the text has ended.
"""

import re
from collections.abc import Iterable
from typing import TypeAlias

from grue.runtime.secrets.redaction import CUT_PLACEHOLDER, MIN_BEGINNING_BYTES, Redaction
from grue.runtime.secrets.secret_forms import Spelling, spellings_of

_HEADERS = tuple(tuple((char,) for char in name) for name in ("authorization", "api-key", "bearer "))
_LINE = r"[^\n\\]*+(?:\\(?!n)[^\n\\]*+)*+"
_OPEN = re.compile(
    rf"""(?ia)(?:(?:authorization|api-key)["'\\]{{0,64}}+[ \t]*+(?:[:=]{_LINE})?|bearer ++[^\s"'\\]*+)\Z"""
)
"""An authorisation header or a bearer token at the end of the text. Its value may continue."""

_NAME = re.compile("(?ia)authorization|api-key|bearer ")
_LONG = 4096
"""Length of a held-back text above which it is not searched again until its line ends. Without this, a long
line in small pieces would take quadratic time."""


class TextPieces:
    """One text that arrives in pieces.

    Args:
        redaction: The secrets.
    """

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._held = ""
        self._line: list[str] = []
        self._names = _BeginningMatcher(_HEADERS)
        self._secrets = _BeginningMatcher(
            spelling for secret in redaction.secrets for spelling in spellings_of(secret)
        )

    def feed(self, piece: str) -> str:
        """Add a piece. Return the text that can be shown now; it may be empty."""
        self._names.feed(piece.lower())
        self._secrets.feed(piece)
        if self._line:
            self._line.append(piece)
            if "\n" not in piece and "\\n" not in piece:
                return ""
            piece = "".join(self._line)
            self._line = []
        text = self._held + piece
        shown = self._safe_length(text)
        self._held = text[shown:]
        if len(self._held) > _LONG:
            self._line, self._held = [self._held], ""
        return text[:shown]

    def end(self) -> str:
        """Return the text that was held back. The beginning of a secret at its end is replaced."""
        text = self._held + "".join(self._line)
        self._held, self._line = "", []
        begun = min(self._secrets.longest, len(text))
        return f"{text[:-begun]}{CUT_PLACEHOLDER}" if begun >= MIN_BEGINNING_BYTES else text

    def _safe_length(self, text: str) -> int:
        """Return the length of the part that cannot become a secret, whatever follows."""
        end = len(text) - max(self._names.longest, self._secrets.longest)
        for name in _NAME.finditer(text):
            if name.start() >= end:
                break
            if _OPEN.match(text, name.start()):
                end = name.start()
                break
        return end if end == len(text) else self._redaction.safe_cut(text, max(0, end))


class _BeginningMatcher:
    """Finds the longest end of a text that is the beginning of a form, but not all of it."""

    def __init__(self, spellings: Iterable[Spelling]) -> None:
        self._spellings = tuple(spellings)
        longest = (sum(max(map(len, forms)) for forms in spelling) for spelling in self._spellings)
        self._reach = max(longest, default=0)
        self._firsts: dict[str, list[_State]] = {}
        for number, spelling in enumerate(self._spellings):
            for form in spelling[0]:
                self._firsts.setdefault(form[0], []).append((form, number, 1))
        self._states: dict[_State, int] = {}

    @property
    def longest(self) -> int:
        return max(self._states.values(), default=0)

    def feed(self, piece: str) -> None:
        if len(piece) > self._reach:
            self._states, piece = {}, piece[len(piece) - self._reach :]
        for char in piece:
            states: dict[_State, int] = {}
            for state, length in self._states.items():
                if state[0][0] == char:
                    self._advance(states, state, length + 1)
            for state in self._firsts.get(char, ()):
                self._advance(states, state, 1)
            self._states = states

    def _advance(self, states: "dict[_State, int]", state: "_State", length: int) -> None:
        """Add the states that follow after one more character. At the end of a form there are none."""
        form, number, at = state
        rest, spelling = form[1:], self._spellings[number]
        if rest:
            states[rest, number, at] = max(length, states.get((rest, number, at), 0))
        elif at < len(spelling):
            for each in spelling[at]:
                states[each, number, at + 1] = max(length, states.get((each, number, at + 1), 0))


_State: TypeAlias = tuple[str, int, int]
"""A state of the match: the rest of the current character's form, the number of the spelling, and the next
position in that spelling."""
