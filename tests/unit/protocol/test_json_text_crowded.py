"""How many values a JSON text holds: the quick look and the close one say the same."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.protocol import json_text
from grue.protocol.json_text import is_crowded

VALUES = st.recursive(
    st.none() | st.integers() | st.text('",[]{}\\ax'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('",[{a'), inner),
)


@given(VALUES, st.integers(0, 20))
@pytest.mark.slow
def test_punctuation_in_texts_is_not_counted(value: object, most: int) -> None:
    text = json.dumps(value)
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "_", text)
    crowded = len(text) > most and sum(map(outside.count, "_[{,")) > most
    assert is_crowded(text, most) == crowded
    assert is_crowded(text.encode(), most) == crowded


def test_a_long_text_is_not_searched_character_by_character(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "_IN_TEXT", None)  # it would be an error to use it
    assert not is_crowded(json.dumps({"text": "x" * 1_000_000}))
