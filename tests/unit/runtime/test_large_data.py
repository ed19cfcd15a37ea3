"""Large data is worked on in steps, with the same result as in one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.runtime import large_data
from grue.runtime.large_data import buffer_of, count_of, find_in, joined


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_data, "STEP", 7)
    monkeypatch.setattr(large_data, "sleep", lambda _: None)


@given(st.text('[{,"xé'), st.sampled_from(["[{,", '"', ""]))
def test_counting_is_the_same(text: str, marks: str) -> None:
    expected = sum(text.count(mark) for mark in marks)
    assert count_of(text, marks) == count_of(text.encode(), marks) == expected


@given(st.binary(max_size=40), st.binary(min_size=1, max_size=9), st.integers(0, 40))
def test_finding_is_the_same(data: bytes, wanted: bytes, start: int) -> None:
    for each in (data, data + wanted + data):
        assert find_in(each, wanted, start) == each.find(wanted, start)


@given(st.lists(st.binary(max_size=20)))
def test_joining_is_the_same(parts: list[bytes]) -> None:
    assert joined(*parts) == b"".join(parts)
    assert joined(*map(memoryview, parts)) == b"".join(parts)


@pytest.mark.parametrize("written", [0, 10, 1000, 1500])
def test_a_buffer_holds_what_was_written_whatever_room_it_had(written: int) -> None:
    out = buffer_of(1000)
    out.write(b"x" * written)
    out.truncate()
    assert out.getvalue() == b"x" * written
