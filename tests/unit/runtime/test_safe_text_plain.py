from case_tables import each_case
from hypothesis import given
from hypothesis import strategies as st

from grue.runtime.safe_text import plain_text


@each_case(
    "raw, shown",
    [
        ("plain", "plain"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("dos\r\nlines", "dos\nlines"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07shown", "shown"),
        ("\x1b]8;;http://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b(Bcharset", "charset"),
        ("bell\x07", "bell\\u0007"),
        ("over\rwritten", "over\\rwritten"),
        ("rever\u202esed", "rever\\u202esed"),
        ("half \ud800", "half \\ud800"),
        ("ünïcödé 🕯", "ünïcödé 🕯"),
    ],
)
def test_control_characters_are_removed_or_written_out(raw: str, shown: str) -> None:
    assert plain_text(raw) == shown


@given(st.text(st.characters(codec=None) | st.sampled_from("\x1b[]0;m\x07\x9b")))
def test_the_result_has_nothing_that_moves_a_cursor(raw: str) -> None:
    shown = plain_text(raw)
    assert all(c in "\n\t" or c.isprintable() or c.isspace() or ord(c) > 0x9F for c in shown)
    assert not set(shown) & {"\x1b", "\r", "\x08", "\x9b", "\u202e"}
    shown.encode()  # no lone surrogates
