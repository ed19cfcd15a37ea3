"""Story files, read without an interpreter: small ones built here, byte by byte."""

import struct
import tracemalloc
from pathlib import Path

import pytest

from grue.errors import GameError
from grue.hosts.zork.games.zmachine import object_names, open_story

_ROWS = ("abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", " \n0123456789.,!?_#'\"/\\-:()")


def z_characters(text: str) -> list[int]:
    characters: list[int] = []
    for mark in text:
        if mark == " ":
            characters.append(0)
        elif mark == "*":  # stands for the first abbreviation here
            characters += [1, 0]
        elif mark == "@":  # not in any row: ten bits of ZSCII
            characters += [5, 6, ord(mark) >> 5, ord(mark) & 31]
        else:
            row = next(row for row, marks in enumerate(_ROWS) if mark in marks)
            characters += [3 + row] * (row > 0) + [_ROWS[row].index(mark) + 6]
    return characters


def z_string(text: str) -> bytes:
    characters = z_characters(text)
    characters += [5] * (-len(characters) % 3)
    words = [a << 10 | b << 5 | c for a, b, c in zip(*[iter(characters)] * 3, strict=True)]
    words[-1] |= 0x8000
    return struct.pack(f">{len(words)}H", *words)


def story_with(names: list[str], *, version: int = 3, abbreviation: str = "House") -> bytes:
    """Lay out a header, one abbreviation, an object table and the property tables, in this order."""
    spelled = z_string(abbreviation)
    abbreviations = 64 + len(spelled)
    objects = abbreviations + 2
    early = version == 3
    entry_bytes, pointer_at = (9, 7) if early else (14, 12)
    first = objects + (31 if early else 63) * 2
    tables = [
        (struct.pack("B", len(name) // 2) + name) for name in (z_string(n) if n else b"" for n in names)
    ]
    entries, at = b"", first + entry_bytes * len(names)
    for table in tables:
        entries += bytes(pointer_at) + struct.pack(">H", at)
        at += len(table)
    header = bytearray(64)
    header[0] = version
    struct.pack_into(">H", header, 0x0A, objects)
    struct.pack_into(">H", header, 0x18, abbreviations)
    body = spelled + struct.pack(">H", 32) + bytes(first - objects) + entries + b"".join(tables)
    return bytes(header) + body


@pytest.mark.parametrize("version", [3, 5, 8])
def test_names_are_decoded(version: int) -> None:
    names = ["West of *", "Dam #3", "leaflet", "you@here", "East-West Passage", ""]
    assert object_names(story_with(names, version=version)) == {
        "West of House",
        "Dam #3",
        "leaflet",
        "you@here",
        "East-West Passage",
    }


def test_names_that_cannot_be_read_are_none() -> None:
    story = story_with(["Kitchen"])
    assert object_names(story_with(["Kitchen"], version=2)) == frozenset()
    assert object_names(story[:-1]) == frozenset()
    assert object_names(story[:64]) == frozenset()
    assert object_names(story_with(["*"], abbreviation="a\nb")) == frozenset()


def test_a_story_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "tiny.z3"
    path.write_bytes(story_with(["Kitchen"]))
    story = open_story(path)
    assert (story.path, story.version, story.names) == (path.resolve(), 3, {"Kitchen"})
    assert len(story.digest) == 64


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "it has 0 bytes"),
        (b"\x03" + bytes(40), "it has 41 bytes"),
        (b"FORM" + bytes(100), "Blorb"),
        (b"Hello, this is a text file." * 4, "first byte should be the version, 1 to 8, and is 72"),
        (bytes(100), "and is 0"),
        (b"\x08" + bytes((1 << 20) + 1), "more than any version can address"),
        (b"\x03" + bytes(0x19) + b"\xff\xff" + bytes(100), "says 131070 bytes, but there are 128"),
        (b"\x05" + bytes(0x19) + b"\x00\x40" + bytes(100), "says 256 bytes, but there are 128"),
        (b"\x08" + bytes(0x19) + b"\x00\x40" + bytes(100), "says 512 bytes, but there are 128"),
    ],
)
def test_what_is_no_story_is_refused_with_the_reason(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "bad.z3"
    path.write_bytes(content)
    with pytest.raises(GameError, match=fault) as caught:
        open_story(path)
    assert str(path) in str(caught.value)


def test_a_large_file_is_refused_without_reading_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "disk.dat"
    with path.open("wb") as file:
        file.write(b"\x05" + bytes(63))
        file.truncate(1 << 26)
    tracemalloc.start()
    try:
        with pytest.raises(GameError, match="more than any version can address"):
            open_story(path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 23


def test_what_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(GameError, match=r"absent\.z3: No such file"):
        open_story(tmp_path / "absent.z3")
    with pytest.raises(GameError, match="Is a directory"):
        open_story(tmp_path)


def test_names_that_repeat_a_long_abbreviation_are_cut() -> None:
    names = object_names(story_with(["*" * 100] * 50, abbreviation="a" * 300))
    longest = max(map(len, names))
    assert longest < 1000
