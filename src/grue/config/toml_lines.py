"""Find the line on which a setting of a TOML file stands, for errors.

The parser of the standard library keeps no lines. So the file's beginnings are parsed: the line after the
longest beginning that does not have the setting is its line, whatever form the file is written in.
"""

import tomllib
from typing import TypeAlias

Keys: TypeAlias = tuple[str | int, ...]
"""What leads to a value: names of tables and keys, and positions in lists, from 0."""

_MAX_CHARS = 1_000_000
_MAX_PARSES = 300
"""A file that is longer, or needs more steps, is not searched: each step parses a part of it."""


def line_of(text: str, keys: Keys) -> int | None:
    """Return the one-based line on which a value's definition begins, or that of the nearest value around it.

    Args:
        text: The whole file, which is valid TOML.
        keys: What leads to the value.

    Returns:
        `None`: not even the first of the keys is there, or the file is too long.
    """
    if len(text) > _MAX_CHARS:
        return None
    while keys and not _has(tomllib.loads(text), keys):
        keys = keys[:-1]
    if not keys:
        return None
    return _Search(text.replace("\r\n", "\n").split("\n"), keys).line()


class _Search:
    """Halves the file until only the line is left; gives up after `_MAX_PARSES`."""

    def __init__(self, lines: list[str], keys: Keys) -> None:
        self._lines = lines
        self._keys = keys
        self._parses_left = _MAX_PARSES

    def line(self) -> int | None:
        """Return the line after the longest beginning without the value."""
        before, with_it = 0, len(self._lines)
        while self._parses_left:
            middle = (before + with_it) // 2
            # A beginning that ends within a value cannot be parsed, and the next one is tried.
            for end in (*range(middle, before, -1), *range(middle + 1, with_it)):
                found = self._is_in(end)
                if found is not None or not self._parses_left:
                    break
            else:
                return before + 1
            before, with_it = (before, end) if found else (end, with_it)
        return None

    def _is_in(self, end: int) -> bool | None:
        """Return whether the first `end` lines have the value; `None`: they are not a whole document."""
        self._parses_left -= 1
        try:
            return _has(tomllib.loads("\n".join(self._lines[:end])), self._keys)
        except (ValueError, RecursionError):
            return None


def _has(document: object, keys: Keys) -> bool:
    for key in keys:
        match document:
            case dict() if key in document:
                document = document[key]
            case list() if isinstance(key, int) and key < len(document):
                document = document[key]
            case _:
                return False
    return True
