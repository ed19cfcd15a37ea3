"""Check a Z-machine story file and read the names of its objects, without running it.

The names are needed to recognise rooms: a room's heading in the game's text is the name of an object. Offsets
are those of the Z-Machine Standards Document 1.1, sections 11 (header), 12 (objects) and 3 (text).
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from grue.errors import GameError

_HEADER_BYTES: Final = 64
_MOST_BYTES: Final = 1 << 20  # twice what the largest version can address
_OBJECT_TABLE: Final = 0x0A
_ABBREVIATIONS: Final = 0x18
_LENGTH: Final = 0x1A
_ALPHABETS: Final = (
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    " \n0123456789.,!?_#'\"/\\-:()",
)
_LONGEST_NAME: Final = 255  # z-characters; bounds the reading of a damaged table


class StoryFile(Struct, frozen=True):
    """A story file that has been checked.

    Attributes:
        path: Its absolute path.
        version: The Z-machine's version, 1 to 8.
        digest: SHA-256 of its bytes, in hexadecimal.
        names: Names of its objects; empty for versions 1 and 2, and if the table is damaged.
    """

    path: Path
    version: int
    digest: str
    names: frozenset[str]


def open_story(path: Path) -> StoryFile:
    """Read a story file and check that it is complete.

    Raises:
        GameError: The file does not exist, is not a Z-machine story, or is truncated.
    """
    try:
        story = path.read_bytes()
    except OSError as error:
        raise GameError(f"Cannot read the story file {path}: {error.strerror}.") from error
    fault = _fault(story)
    if fault is not None:
        raise GameError(f"{path} is not a Z-machine story file that can be played: {fault}.")
    return StoryFile(path.resolve(), story[0], hashlib.sha256(story).hexdigest(), object_names(story))


def _fault(story: bytes) -> str | None:
    if len(story) < _HEADER_BYTES:
        return f"it has {len(story)} bytes, and the header alone takes {_HEADER_BYTES}"
    if story.startswith(b"FORM"):
        return "it is a Blorb archive; extract the story (.z1 to .z8) from it"
    if not 1 <= story[0] <= 8:
        return f"its first byte should be the version, 1 to 8, and is {story[0]}"
    if len(story) > _MOST_BYTES:
        return f"it has {len(story)} bytes, more than any version can address"
    declared = _word(story, _LENGTH) * (2 if story[0] <= 3 else 4 if story[0] <= 5 else 8)
    if declared > len(story):
        return f"its header says {declared} bytes, but there are {len(story)}: it has been cut short"
    return None


def object_names(story: bytes) -> frozenset[str]:
    """Decode the short names of all objects, printable ones only."""
    if story[0] < 3:
        return frozenset()
    try:
        return frozenset(name for name in _names(story) if name and name.isprintable())
    except IndexError:
        return frozenset()


def _names(story: bytes) -> Iterator[str]:
    early = story[0] == 3
    entry_bytes, pointer_at = (9, 7) if early else (14, 12)
    entry = _word(story, _OBJECT_TABLE) + (31 if early else 63) * 2
    first_properties = len(story)
    # The table does not state its length; it ends where the first object's properties begin.
    while entry + entry_bytes <= first_properties:
        properties = _word(story, entry + pointer_at)
        first_properties = min(first_properties, properties)
        if story[properties]:
            yield _decode(story, properties + 1)
        entry += entry_bytes


def _word(story: bytes, at: int) -> int:
    return story[at] << 8 | story[at + 1]


def _z_characters(story: bytes, at: int) -> Iterator[int]:
    for offset in range(at, at + _LONGEST_NAME, 2):
        word = _word(story, offset)
        yield from (word >> 10 & 31, word >> 5 & 31, word & 31)
        if word & 0x8000:
            return


def _decode(story: bytes, at: int, *, within_abbreviation: bool = False) -> str:
    text, alphabet = "", 0
    characters = _z_characters(story, at)
    for character in characters:
        shift, alphabet = alphabet, 0
        if character >= 6 and (shift, character) == (2, 6):
            text += chr(next(characters, 0) << 5 | next(characters, 0))
        elif character >= 6:
            text += _ALPHABETS[shift][character - 6]
        elif character >= 4:
            alphabet = character - 3
        elif character == 0:
            text += " "
        elif not within_abbreviation:
            entry = _word(story, _ABBREVIATIONS) + 2 * (32 * (character - 1) + next(characters, 0))
            text += _decode(story, 2 * _word(story, entry), within_abbreviation=True)
    return text
