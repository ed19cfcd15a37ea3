"""Find out whether an interpreter prints bold and underlined words, by playing a tiny story in it.

`dfrotz` 2.54, which Debian 12 has, prints neither: a story of version 4 or later loses its room names and
every other word in these styles. Other releases may print them, so the program is tried; its version is not
read. Stories of versions 1 to 3 have no styles.

Offsets and opcodes are those of the Z-Machine Standards Document 1.1, sections 11 (header), 3 (text) and 15.
"""

import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

FIRST_VERSION_WITH_STYLES: Final = 4

_CODE_AT: Final = 0x240  # after the header (64 bytes) and the table of 240 global variables
_LONGEST_S: Final = 20.0  # it needs 10 ms
_BOLD, _ITALIC, _ROMAN = 2, 4, 0
_WORDS: Final = ("bold", "underlined")


def prints_styled_words(program: str) -> bool:
    """Return whether `program`, which takes dfrotz's options, prints bold and underlined words.

    A program that cannot be started or does not end counts as one that does not. The answer is kept until the
    program's file changes.
    """
    try:
        changed = Path(program).stat().st_mtime_ns
    except OSError:
        return False
    return _try(program, changed)


@cache
def _try(program: str, changed: int) -> bool:
    del changed  # part of the cache's key: an upgrade of the package is noticed
    with tempfile.TemporaryDirectory(prefix="grue-game-") as folder:
        story = Path(folder) / "styles.z5"
        story.write_bytes(styled_story())
        command = [program, "-m", "-p", "-q", "-w", "80", "-h", "25", "-R", folder, str(story)]
        try:
            ran = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LONGEST_S, check=False
            )
        except (OSError, subprocess.SubprocessError):
            return False
    return all(word.encode() in ran.stdout for word in _WORDS)


def styled_story() -> bytes:
    """Return a story of version 5 that prints one bold and one underlined word, and ends."""
    bold, underlined = (b"\xb2" + _z_string(word) for word in _WORDS)  # 0xB2: print
    roman = _style(_ROMAN) + b"\xbb"  # 0xBB: new_line
    code = _style(_BOLD) + bold + roman + _style(_ITALIC) + underlined + roman + b"\xba"  # 0xBA: quit
    size = _CODE_AT + len(code) + -len(code) % 4
    header = bytearray(64)
    header[0] = 5
    # Initial program counter, dictionary, objects, global variables, static memory, abbreviations.
    for at, value in (
        (0x04, _CODE_AT),
        (0x06, _CODE_AT),
        (0x08, 64),
        (0x0A, 64),
        (0x0C, 64),
        (0x0E, _CODE_AT),
    ):
        struct.pack_into(">H", header, at, value)
    struct.pack_into(">H", header, 0x18, 64)
    struct.pack_into(">H", header, 0x1A, size // 4)
    return (bytes(header).ljust(_CODE_AT, b"\0") + code).ljust(size, b"\0")


def _style(style: int) -> bytes:
    return bytes((0xF1, 0x7F, style))  # set_text_style with one small constant


def _z_string(word: str) -> bytes:
    characters = [ord(letter) - ord("a") + 6 for letter in word]
    characters += [5] * (-len(characters) % 3)
    words = [a << 10 | b << 5 | c for a, b, c in zip(*[iter(characters)] * 3, strict=True)]
    words[-1] |= 0x8000
    return struct.pack(f">{len(words)}H", *words)
