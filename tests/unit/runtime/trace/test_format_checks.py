"""Nesting is checked in one pass over the brackets of a body."""

import json
import tracemalloc

import pytest
from growth import assert_linear
from hypothesis import given
from hypothesis import strategies as st

from grue.runtime.trace import format as trace_checks
from grue.runtime.trace.format import MAX_DEPTH, is_deeper

TREES = st.recursive(
    st.text('[]{}"\\', max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.fixed_dictionaries({"[": inner}),
)


def depth_of(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@given(TREES, st.integers(0, 6))
def test_a_body_is_refused_when_it_is_nested_deeper_than_the_limit(tree: object, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_checks, "_CHUNK", 3)
        assert is_deeper(json.dumps(tree).encode(), limit) == (depth_of(tree) > limit)


@pytest.mark.slow
def test_deep_nesting_in_megabytes_of_brackets_is_found_in_time() -> None:
    """Removing one level after the other took a pass over all of them for each level."""
    wide = b"[" * MAX_DEPTH + b",".join([b"[]"] * 2_000_000) + b"]" * MAX_DEPTH
    assert is_deeper(wide, MAX_DEPTH)


def test_a_long_text_among_many_brackets_takes_no_memory() -> None:
    """Each character that a search may go back to takes 120 bytes."""
    body = b"[" * 200 + b"]" * 200 + b'"' + b"{a" * 2**20 + b'"'
    tracemalloc.start()
    try:
        assert not is_deeper(body, MAX_DEPTH)
        assert tracemalloc.get_traced_memory()[1] < len(body)
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_a_text_without_an_end_takes_linear_time() -> None:
    brackets = b"[]" * MAX_DEPTH
    assert_linear(
        lambda body: is_deeper(body, MAX_DEPTH),
        100_000,
        lambda times: brackets + b'"' + b'\\"' * times,
    )
