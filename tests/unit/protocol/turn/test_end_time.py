"""How a turn's limit is divided: most of it is for the work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.policies import TurnLimits
from grue.protocol.turn.end import kept_for_closing


@pytest.mark.parametrize(
    ("limit_s", "teardown_s", "kept_s"),
    [
        (None, None, 0.0),
        (None, 3.0, 0.0),
        (8.0, None, 0.5),
        (4.0, None, 0.4),
        (0.5, None, 0.05),
        (8.0, 3.0, 3.0),
        (8.0, 5.0, 4.0),
        (8.0, 0.0, 0.0),
    ],
)
def test_what_is_kept_of_a_limit(limit_s: float | None, teardown_s: float | None, kept_s: float) -> None:
    assert kept_for_closing(TurnLimits(turn_timeout_s=limit_s, teardown_s=teardown_s)) == pytest.approx(
        kept_s
    )


@given(st.floats(0.01, 1e6))
def test_by_default_at_least_nine_tenths_are_for_the_work(limit_s: float) -> None:
    kept_s = kept_for_closing(TurnLimits(turn_timeout_s=limit_s))
    assert 0 < kept_s <= 0.5
    assert kept_s <= limit_s / 10 * 1.000001
