"""A Hypothesis strategy for damage to files: flipped bits, cut ends, moved lines, odd bytes and values."""

import re
from collections.abc import Callable

from hypothesis import strategies as st

Damage = Callable[[bytes], bytes]

_VALUES = re.compile(rb'(?<=:)(-?[0-9][0-9.e+-]*|"[^"\\]*")')
_ODD_VALUES = (
    *(b"0", b"-1", b"1e308", b"-1e308", b"1e999", b"9" * 30, b"9" * 4300, b"9" * 5000, b"null", b"true"),
    *(b'""', b"[]", b"{}", b'"\\ud800"', b'"\\u0000"', b'"\xff"'),
    *(b"[" * depth + b"]" * depth for depth in (120, 240, 700, 990, 5000)),
    *(b'{"a":' * depth + b"1" + b"}" * depth for depth in (120, 240, 990)),
)
_ODD_BYTES = (b"\0", b"\xff", b"\n", b"\r\n", b"\xed\xa0\x80", b"{", b'"', b"\x1f\x8b\x08\0", b"[" * 3000)

_places = st.floats(0, 1, exclude_max=True)


def _flip(place: float, bit: int) -> Damage:
    def flipped(content: bytes) -> bytes:
        at = int(place * len(content))
        return content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :] if content else content

    return flipped


def _cut(place: float) -> Damage:
    return lambda content: content[: int(place * len(content))]


def _insert(place: float, odd: bytes) -> Damage:
    def inserted(content: bytes) -> bytes:
        at = int(place * len(content))
        return content[:at] + odd + content[at:]

    return inserted


def _replace(place: float, odd: bytes) -> Damage:
    def replaced(content: bytes) -> bytes:
        found = list(_VALUES.finditer(content))
        if not found:
            return odd
        start, end = found[int(place * len(found))].span()
        return content[:start] + odd + content[end:]

    return replaced


def _move_line(place: float, to: float, *, again: bool) -> Damage:
    def moved(content: bytes) -> bytes:
        lines = content.splitlines(keepends=True)
        if not lines:
            return content
        line = lines[int(place * len(lines))] if again else lines.pop(int(place * len(lines)))
        lines.insert(int(to * (len(lines) + 1)), line)
        return b"".join(lines)

    return moved


def _drop_line(place: float) -> Damage:
    def dropped(content: bytes) -> bytes:
        lines = content.splitlines(keepends=True)
        at = int(place * len(lines))
        return b"".join(lines[:at] + lines[at + 1 :])

    return dropped


def damage() -> st.SearchStrategy[Damage]:
    """Return a strategy for functions that damage the content of a text file."""
    return st.one_of(
        st.builds(_flip, _places, st.integers(0, 7)),
        st.builds(_cut, _places),
        st.builds(_insert, _places, st.sampled_from(_ODD_BYTES)),
        st.builds(_insert, _places, st.binary(min_size=1, max_size=40)),
        st.builds(_replace, _places, st.sampled_from(_ODD_VALUES)),
        st.builds(_move_line, _places, _places, again=st.booleans()),
        st.builds(_drop_line, _places),
    )
