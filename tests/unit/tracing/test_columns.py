"""Text in columns, where some characters take two columns or none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.runtime.safe_text import printable
from grue.tracing.columns import cells, cut, pad

ANY_TEXT = st.text(st.characters(codec=None), max_size=80)


def test_wide_characters_take_two_columns_and_marks_none() -> None:
    assert cells("ab") == 2
    assert cells("漢字") == 4
    assert cells("e\u0301") == 1


@given(ANY_TEXT, st.integers(0, 60))
@pytest.mark.slow
def test_a_cut_text_fits_and_a_padded_one_fills(text: str, width: int) -> None:
    shown = cut(printable(text), width)
    assert cells(shown) <= width
    assert cells(pad(shown, width)) == width


def test_a_text_that_fits_is_not_cut() -> None:
    assert cut("漢字", 4) == "漢字"
    assert cut("漢字", 3) == "漢…"
    assert cut("漢字", 2) == "…"
    assert cut("ab", 0) == ""
