"""Large data is worked on in steps, with the same result as in one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.runtime import large_data
from grue.runtime.large_data import count_of


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_data, "STEP", 7)
    monkeypatch.setattr(large_data, "sleep", lambda _: None)


@given(st.text('[{,"xé'), st.sampled_from(["[{,", '"', ""]))
def test_counting_is_the_same(text: str, marks: str) -> None:
    expected = sum(text.count(mark) for mark in marks)
    assert count_of(text, marks) == count_of(text.encode(), marks) == expected
