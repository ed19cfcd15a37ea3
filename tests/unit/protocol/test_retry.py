"""When to try again, how long to wait."""

from datetime import datetime
from email.utils import format_datetime, formatdate

import pytest
from case_tables import each_case
from hypothesis import given
from hypothesis import strategies as st

from grue.messages import LlmFailure
from grue.protocol.retry import RetryPolicy, kind_of_status, next_delay, retry_after

POLICY = RetryPolicy()


def failed(kind: str, status: int | None = None) -> LlmFailure:
    return LlmFailure(kind=kind, endpoint="e", model="m", message="x", status=status)  # type: ignore[arg-type]


@each_case("status", [408, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529])
def test_these_statuses_are_tried_again(status: int) -> None:
    assert kind_of_status(status, "overloaded") == "unavailable"


@pytest.mark.parametrize("status", [301, 400, 401, 402, 403, 404, 405, 413, 422, 501])
def test_these_statuses_are_final(status: int) -> None:
    assert kind_of_status(status, "please try again") == "refused"


@pytest.mark.parametrize(
    "words",
    [
        "You exceeded your current quota, please check your plan and billing details.",
        "insufficient_quota",
        "Key has reached its spending limit",
        "monthly spend limit reached",
        "Insufficient credits",
        "Your team is out of credits",
        "Budget has been exceeded! Current cost: 10.1, Max budget: 10.0",
        "This request would exceed your credit limit",
    ],
)
def test_a_429_about_money_is_final(words: str) -> None:
    assert kind_of_status(429, words) == "refused"
    assert kind_of_status(429, "Rate limit reached for requests per minute") == "unavailable"


def test_the_required_defaults() -> None:
    assert (
        RetryPolicy(
            max_retries=5,
            initial_delay_s=1.0,
            max_delay_s=60.0,
            exponential_base=2.0,
            jitter_factor=0.1,
            timeout_s=120.0,
        )
        == RetryPolicy()
    )


def test_waits_double_up_to_the_last_retry() -> None:
    waits = [next_delay(POLICY, attempt, failed("unavailable", 503)) for attempt in range(1, 8)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, None, None]


@pytest.mark.parametrize("kind", ["unavailable", "timed_out", "damaged"])
def test_these_failures_are_tried_again(kind: str) -> None:
    assert next_delay(POLICY, 1, failed(kind)) == 1.0


def test_an_endpoint_that_cannot_be_reached_is_tried_once_more_and_soon() -> None:
    assert next_delay(POLICY, 1, failed("unreachable")) == 0.5
    assert next_delay(RetryPolicy(initial_delay_s=0.1), 1, failed("unreachable")) == 0.1
    assert next_delay(POLICY, 2, failed("unreachable")) is None


def test_a_refusal_is_final() -> None:
    assert next_delay(POLICY, 1, failed("refused", 401), retry_after_s=1.0) is None


def test_a_reply_that_is_none_is_asked_for_once_more() -> None:
    assert next_delay(POLICY, 1, failed("invalid_reply")) == 1.0
    assert next_delay(POLICY, 2, failed("invalid_reply")) is None


def test_the_endpoint_says_how_long() -> None:
    assert next_delay(POLICY, 1, failed("unavailable"), retry_after_s=7.5) == 7.5
    assert next_delay(POLICY, 4, failed("unavailable"), retry_after_s=0.0) == 0.0
    assert next_delay(POLICY, 1, failed("unavailable"), retry_after_s=86_400.0) == 60.0


def test_no_retries() -> None:
    assert next_delay(RetryPolicy(max_retries=0), 1, failed("unavailable")) is None


def test_a_wait_too_long_to_count_is_the_longest() -> None:
    policy = RetryPolicy(max_retries=10_000, exponential_base=10.0)
    assert next_delay(policy, 5000, failed("unavailable")) == policy.max_delay_s


@given(
    attempt=st.integers(1, 10_000),
    jitter=st.floats(0, 1),
    base=st.floats(1, 1e6),
    asked=st.none() | st.floats(0, 1e9),
)
def test_a_wait_is_never_negative_and_bounded(
    attempt: int, jitter: float, base: float, asked: float | None
) -> None:
    policy = RetryPolicy(max_retries=10_000, exponential_base=base)
    delay = next_delay(policy, attempt, failed("unavailable"), retry_after_s=asked, jitter=jitter)
    assert delay is not None
    assert 0 <= delay <= policy.max_delay_s * 1.1 + 1e-9
    # Chance never makes a wait shorter than the endpoint asked for.
    assert asked is None or delay >= min(asked, policy.max_delay_s)


def test_retry_after_in_seconds_and_as_a_date() -> None:
    now = 1_700_000_000.0
    assert retry_after("3", now) == 3.0
    assert retry_after(" 1.5 ", now) == 1.5
    assert retry_after(formatdate(now + 90, usegmt=True), now) == 90.0
    assert retry_after(formatdate(now - 90, usegmt=True), now) == 0.0
    assert retry_after(format_datetime(datetime.fromtimestamp(now + 5)), 0.0) is not None  # noqa: DTZ006 - the case


@pytest.mark.parametrize("header", [None, "", "soon", "-3", "Wed, 99 Foo 2026", "1e3", "9" * 40])
def test_an_unreadable_retry_after_says_nothing(header: str | None) -> None:
    assert retry_after(header, 0.0) is None


@given(st.text())
def test_no_retry_after_raises(header: str) -> None:
    delay = retry_after(header, 0.0)
    assert delay is None or delay >= 0


@pytest.mark.parametrize(("jitter", "longer"), [(0.0, 1.0), (0.5, 1.1), (1.0, 1.2)])
@pytest.mark.parametrize(("asked", "base_s"), [(None, 2.0), (3.0, 3.0), (999.0, 8.0)])
def test_chance_lengthens_every_wait_by_its_share(
    jitter: float, longer: float, asked: float | None, base_s: float
) -> None:
    policy = RetryPolicy(initial_delay_s=2.0, max_delay_s=8.0, jitter_factor=0.2)
    delay = next_delay(policy, 1, failed("unavailable"), retry_after_s=asked, jitter=jitter)
    assert delay == pytest.approx(base_s * longer)
