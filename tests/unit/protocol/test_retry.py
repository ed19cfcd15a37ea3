"""When to try again, how long to wait."""

import time
from datetime import datetime
from email.utils import format_datetime, formatdate

import pytest
from case_tables import each_case
from hypothesis import given
from hypothesis import strategies as st

from grue.messages import LlmFailure
from grue.protocol.retry import RetryPolicy, asked_wait, next_delay, wait_in

POLICY = RetryPolicy()


def failed(kind: str, status: int | None = None, retry_after_s: float | None = None) -> LlmFailure:
    return LlmFailure(
        kind=kind,  # type: ignore[arg-type]
        endpoint="e",
        model="m",
        message="x",
        status=status,
        retry_after_s=retry_after_s,
    )


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
    assert next_delay(POLICY, 1, failed("refused", 401, 1.0)) is None


def test_a_reply_that_is_none_is_asked_for_once_more() -> None:
    assert next_delay(POLICY, 1, failed("invalid_reply")) == 1.0
    assert next_delay(POLICY, 2, failed("invalid_reply")) is None


def test_the_endpoint_says_how_long() -> None:
    assert next_delay(POLICY, 1, failed("unavailable", 429, 7.5)) == 7.5
    assert next_delay(POLICY, 4, failed("unavailable", 429, 0.0)) == 0.0
    assert next_delay(POLICY, 1, failed("unavailable", 429, 432.0)) == 432.0


def test_a_wait_that_is_too_long_is_not_begun() -> None:
    assert next_delay(POLICY, 1, failed("unavailable", 429, 86_400.0)) is None
    assert (
        next_delay(RetryPolicy(max_asked_delay_s=86_400.0), 1, failed("unavailable", 429, 86_400.0))
        == 86_400.0
    )


def test_each_kind_has_its_own_count_and_all_together_have_one() -> None:
    assert next_delay(POLICY, 3, failed("invalid_reply"), of_kind=1) == 1.0
    assert next_delay(POLICY, 3, failed("invalid_reply"), of_kind=2) is None
    assert next_delay(POLICY, 6, failed("invalid_reply"), of_kind=1) is None


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
    delay = next_delay(policy, attempt, failed("unavailable", retry_after_s=asked), jitter=jitter)
    longest = policy.max_delay_s if asked is None else policy.max_asked_delay_s
    if delay is None:
        assert asked is not None
        assert asked > longest
    else:
        assert 0 <= delay <= longest * 1.1 + 1e-9
        # Chance never makes a wait shorter than the endpoint asked for.
        assert asked is None or delay >= asked


def test_an_endpoint_that_always_asks_for_no_wait_gets_no_endless_burst_of_requests() -> None:
    policy = RetryPolicy(max_retries=100)
    at_once = failed("unavailable", retry_after_s=0.0)
    assert [next_delay(policy, attempt, at_once) for attempt in range(1, 9)] == [0, 0, 0, 0, 0, 1, 2, 4]
    assert next_delay(policy, 8, failed("unavailable", retry_after_s=9.0)) == 9


def retry_after(header: str | None, now: float) -> float | None:
    return asked_wait({} if header is None else {"retry-after": header}, now)


def test_retry_after_in_seconds_and_as_a_date() -> None:
    now = 1_700_000_000.0
    assert retry_after("3", now) == 3.0
    assert retry_after(" 1.5 ", now) == 1.5
    assert retry_after("1700000060", now) == 60.0  # seconds since the epoch
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
@pytest.mark.parametrize(("asked", "attempt", "base_s"), [(None, 1, 2.0), (3.0, 1, 3.0), (None, 9, 8.0)])
def test_chance_lengthens_every_wait_by_its_share(
    jitter: float, longer: float, asked: float | None, attempt: int, base_s: float
) -> None:
    policy = RetryPolicy(max_retries=9, initial_delay_s=2.0, max_delay_s=8.0, jitter_factor=0.2)
    delay = next_delay(policy, attempt, failed("unavailable", retry_after_s=asked), jitter=jitter)
    assert delay == pytest.approx(base_s * longer)


@each_case(
    "headers, wait_s",
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "12.382867097855"}, 12.382867097855),
        ({"retry-after": "1m30s"}, 90.0),
        (
            {"x-ratelimit-reset-day": "33011.382867097855", "x-ratelimit-remaining-day": "0"},
            33011.382867097855,
        ),
        ({"x-ratelimit-reset-after": "7", "x-ratelimit-remaining": "0"}, 7.0),
        ({"ratelimit": "limit=100, remaining=0, reset=12"}, 12.0),
        ({"ratelimit": '"default";r=0;t=12'}, 12.0),
        ({"ratelimit": '"default";r=10;t=12'}, None),
        ({"retry-after": "7", "retry-after-ms": "6500"}, 6.5),
        ({"x-ms-retry-after-ms": "1500"}, 1.5),
        ({"x-ratelimit-reset-tokens": "7m12s", "x-ratelimit-remaining-tokens": "0"}, 432.0),
        ({"x-ratelimit-reset-tokens": "6ms", "x-ratelimit-remaining-tokens": "0"}, 0.006),
        ({"x-ratelimit-reset-tokens": "7m12s", "x-ratelimit-remaining-tokens": "12"}, None),
        ({"x-ratelimit-reset-tokens": "7m12s"}, None),
        ({"x-ratelimit-reset": "1700000030000", "x-ratelimit-remaining": "0"}, 30.0),
        ({"x-ratelimit-reset": "1700000030", "x-ratelimit-remaining": "0"}, 30.0),
        ({"x-ratelimit-reset": "1600000000", "x-ratelimit-remaining": "0"}, 0.0),
        ({"x-ratelimit-reset": "soon", "x-ratelimit-remaining": "0"}, None),
        # The clock of this machine is wrong by days.
        ({"date": "Sat, 18 Nov 2023 00:00:00 GMT", "retry-after": "Sat, 18 Nov 2023 00:00:30 GMT"}, 30.0),
        ({"date": "Fri, 10 Nov 2023 00:00:00 GMT", "retry-after": "Fri, 10 Nov 2023 00:00:30 GMT"}, 30.0),
        (
            {
                "date": "Fri, 10 Nov 2023 00:00:00 GMT",
                "x-ratelimit-reset": "2023-11-10T00:00:30Z",
                "x-ratelimit-remaining": "0",
            },
            30.0,
        ),
        ({"date": "today", "x-ratelimit-reset": "1700000030", "x-ratelimit-remaining": "0"}, 30.0),
        (
            {
                "anthropic-ratelimit-tokens-reset": "2023-11-14T22:13:50Z",
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2023-11-14T23:13:50Z",
                "anthropic-ratelimit-requests-remaining": "9",
            },
            30.0,
        ),
    ],
)
def test_the_headers_of_a_refusal_say_how_long(headers: dict[str, str], wait_s: float | None) -> None:
    assert asked_wait(headers, 1_700_000_000.0) == wait_s


def test_a_moment_without_a_zone_is_in_utc_wherever_the_host_is(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"x-ratelimit-reset": "2023-11-14T22:13:50", "x-ratelimit-remaining": "0"}
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "XXX+5")
        time.tzset()
        wait_s = asked_wait(headers, 1_700_000_000.0)
    time.tzset()
    assert wait_s == 30.0


@each_case(
    "words, wait_s",
    [
        ("Please try again in 7m12s. Visit https://x", 432.0),
        ("Please try again in 2.022s.", 2.022),
        ("please try again in 6ms", 0.006),
        ("Please retry after 26 seconds.", 26.0),
        ("Please wait 86400 seconds before retrying.", 86400.0),
        ("try again in 1 hour 5 minutes", 3900.0),
        ('{"retryDelay":"34.5s"}', 34.5),
        ('{"estimated_time":20.0}', 20.0),
        ('{"retry_after":5,"x":1}', 5.0),
        ('{"retry_after_ms": 1500}', 1.5),
        ("Quota will be replenished in 1.10:22:31.", 123_751.0),
        ("Please try again in 1 minute and 30 seconds", 90.0),
        ("wait at least 30 seconds", 30.0),
        ("Your rate limit resets in ~7s.", 7.0),
        ("retry_after: 30 seconds", 30.0),
        ("请 1 分钟后再试", 60.0),
        ("请在30秒后重试", 30.0),
        ("Please try again later", None),
        ("after 3 retries in 2 systems", None),
        ("We retried in 3 regions", None),
        ("", None),
    ],
)
def test_the_words_of_a_refusal_say_how_long(words: str, wait_s: float | None) -> None:
    found = wait_in(words)
    assert found == (None if wait_s is None else pytest.approx(wait_s))


@given(
    st.dictionaries(st.sampled_from(["retry-after", "x-ratelimit-reset", "x-ratelimit-remaining"]), st.text())
)
def test_no_header_and_no_text_raises(headers: dict[str, str]) -> None:
    assert (asked_wait(headers, 0.0) or 0.0) >= 0
    assert (wait_in(" ".join(headers.values())) or 0.0) >= 0
