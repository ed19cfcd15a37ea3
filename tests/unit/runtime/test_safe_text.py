"""Untrusted text on one line of a terminal."""

import contextlib
import json
import re
import unicodedata

import pytest
from case_tables import each_case
from hypothesis import given
from hypothesis import strategies as st

from grue.runtime.safe_text import printable, shortened, shown_whole, well_formed

ANY_TEXT = st.text(st.characters(codec=None), max_size=80)


@each_case(
    "text, shown",
    [
        ("", ""),
        ("open the mailbox", "open the mailbox"),
        ("café 漢字 🏮", "café 漢字 🏮"),
        ("a\nb\r\n\tc", "a\\nb\\r\\n\\tc"),
        ("\x1b[31mred\x1b[0m", "\\u001b[31mred\\u001b[0m"),
        ("\x9b2J\x7f\x00", "\\u009b2J\\u007f\\u0000"),
        ("ab\u202eexe.txt", "ab\\u202eexe.txt"),
        ("line\u2028break", "line\\u2028break"),
        ("no\u00a0break", "no break"),
        ("\ud800", "\\ud800"),
        ("tag\U000e0041", "tag\\U000e0041"),
        (r"C:\new", r"C:\new"),
    ],
)
def test_what_is_not_printable_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(ANY_TEXT)
def test_no_control_character_survives(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert not [char for char in shown if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]
    shown.encode()


@given(ANY_TEXT, st.none() | st.integers(1, 100))
def test_applying_it_twice_changes_nothing(text: str, limit: int | None) -> None:
    once = printable(text, limit)
    assert printable(once, limit) == once


@given(ANY_TEXT, st.integers(1, 100))
def test_a_limit_keeps_the_beginning_and_says_that_it_cut(text: str, limit: int) -> None:
    whole, shown = printable(text), printable(text, limit)
    if len(whole) <= limit:
        assert shown == whole
    else:
        assert shown == whole[: limit - 1] + "…"


def test_a_limit_does_not_read_what_it_cuts_off() -> None:
    assert printable("x" * 10_000_000, 5) == "xxxx…"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("plain\n\x00", "plain\n\x00"),
        ("café 漢字 🏮", "café 漢字 🏮"),
        ("\udc80", "\ufffd"),
        ("a \ud83c lantern", "a \ufffd lantern"),
        ("\ud83c\udfee", "🏮"),
        ("\udfee\ud83c", "\ufffd\ufffd"),
        ("\ufeffmarked", "\ufeffmarked"),
    ],
)
def test_what_is_no_character_is_replaced_and_nothing_else(text: str, shown: str) -> None:
    assert well_formed(text) == shown


@given(text=ANY_TEXT)
def test_a_well_formed_text_can_be_encoded_and_stays_as_it_is(text: str) -> None:
    once = well_formed(text)
    once.encode("utf-8")
    assert well_formed(once) == once
    with contextlib.suppress(UnicodeEncodeError):
        text.encode("utf-8")
        assert once == text


SHOWN = [
    "a" * 25,
    " " * 24,
    " " * 25,
    "\\n" * 40,
    "\n" * 40,
    "\\(30 spaces)",
    "\u3000\ufe0f\u202e\ud800",
    "é" * 200,
]
UNIT = re.compile(r"\\\((\d+) spaces\)|(\\u[0-9a-f]{4}|\\[^(]|[^\\])(?:\\\((\d+) times\))?")


@pytest.mark.parametrize("text", SHOWN)
def test_a_value_that_is_shown_whole_can_be_read_back(text: str) -> None:
    rows = shown_whole({"x": text})
    assert rows is not None
    assert all(row.isprintable() for row in rows)
    whole = "".join(row.removesuffix("\\") for row in rows[:-1]) + rows[-1]
    unfolded = UNIT.sub(lambda unit: " " * int(unit[1] or 0) + (unit[2] or "") * int(unit[3] or 1), whole)
    assert json.loads(unfolded) == {"x": text}


def test_what_is_too_long_or_no_json_is_not_shown() -> None:
    assert shown_whole({"x": "ab" * 40_000}) is None
    assert shown_whole({"x": " " * 3_000_000}) is None
    assert shown_whole({"x": object()}) is None


@given(st.text(max_size=60), st.integers(min_value=3, max_value=40))
def test_a_shortened_text_keeps_its_beginning_and_its_end(text: str, limit: int) -> None:
    short = shortened(text, limit)
    if len(text) <= limit:
        assert short == text
    else:
        assert len(short) == limit
        end = limit // 3
        assert text.startswith(short[: limit - 1 - end])
        assert short[limit - 1 - end] == "…"
        assert text[len(text) - end :] == short[limit - end :]
