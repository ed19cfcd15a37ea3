"""Decide whether to send a request to an endpoint again, and how long to wait before that.

Come here to change which failures are retried, or the backoff. `kind_of_status` decides whether a retry can
help, and `next_delay` computes the wait from that. The time and the random jitter are arguments.
"""

import math
import re
from datetime import UTC
from typing import assert_never

from msgspec import Struct

from grue.messages import LlmFailure
from grue.vocabulary import FailureKind

RETRYABLE = frozenset({408, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
"""HTTP statuses after which a retry can help. Those from 520 on are a proxy's, about the server behind it."""

_UNREACHABLE_DELAY_S = 0.5

_SPENT = re.compile(
    r"insufficient[_ ](quota|credit|fund|balance)|exceeded your current quota|spend(ing)?[ _-]?limit"
    r"|billing|budget|out of credits|credit limit",
    re.IGNORECASE,
)


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """How often to retry a request, and the time limits of each one; the settings of `[tool.grue.retry]`.

    Attributes:
        max_retries: Most requests after the first one.
        initial_delay_s: Wait before the first retry, in seconds.
        max_delay_s: Longest wait before a retry, without the jitter.
        exponential_base: Factor from one wait to the next.
        jitter_factor: Largest random addition to a wait, as a fraction of it.
        timeout_s: Limit of one request, from the connect to the last byte of the reply.
        connect_timeout_s: Limit of the connect.
        first_byte_timeout_s: Limit from the connect to the first byte of the reply; `None` sets none.
        idle_timeout_s: Limit between two pieces of a streamed reply.
        length_retry_factor: A reply that was cut at its length limit is requested once more, with the limit
            multiplied by this. 1 accepts the cut reply instead.
    """

    max_retries: int = 5
    initial_delay_s: float = 1.0
    max_delay_s: float = 60.0
    exponential_base: float = 2.0
    jitter_factor: float = 0.1
    timeout_s: float = 120.0
    connect_timeout_s: float = 10.0
    first_byte_timeout_s: float | None = None
    idle_timeout_s: float = 60.0
    length_retry_factor: float = 4.0


def kind_of_status(status: int, words: str = "") -> FailureKind:
    """Return the kind of failure that an HTTP status other than 2xx stands for.

    Args:
        status: The status of the reply, or of the error object inside it.
        words: The provider's message and code. They matter for a 429, which can also mean that the credit is
            used up, and then a retry does not help.
    """
    if status not in RETRYABLE or (status == 429 and _SPENT.search(words)):
        return "refused"
    return "unavailable"


def next_delay(
    policy: RetryPolicy,
    attempt: int,
    failure: LlmFailure,
    *,
    retry_after_s: float | None = None,
    jitter: float = 0.0,
) -> float | None:
    """Return the seconds to wait before the next request, or `None` to give up.

    An invalid reply is requested only once more. It may have been cut on its way; but if the endpoint sent a
    web page instead of a completion, it will do so every time. An endpoint that cannot be reached is tried
    once more after half a second: most often its address is wrong, or it does not run.

    Args:
        policy: The limits and the backoff.
        attempt: Requests sent so far.
        failure: How the last request failed.
        retry_after_s: The wait that the endpoint asks for; replaces the backoff, up to `max_delay_s`.
        jitter: A random number from 0 to 1.
    """
    if attempt > min(policy.max_retries, _most_retries(failure.kind)):
        return None
    delay = _backoff(policy, attempt) if retry_after_s is None else retry_after_s
    if failure.kind == "unreachable":
        delay = min(delay, _UNREACHABLE_DELAY_S)
    # The jitter only adds: a request before the time that the endpoint asks for would be refused again.
    return min(delay, policy.max_delay_s) * (1 + policy.jitter_factor * jitter)


def _most_retries(kind: FailureKind) -> float:
    match kind:
        case "refused":
            return 0
        case "invalid_reply" | "unreachable":
            return 1
        case "unavailable" | "timed_out" | "damaged":
            return math.inf
    assert_never(kind)


def _backoff(policy: RetryPolicy, attempt: int) -> float:
    try:
        return policy.initial_delay_s * policy.exponential_base ** (attempt - 1)
    except OverflowError:
        return policy.max_delay_s


def retry_after(header: str | None, now: float) -> float | None:
    """Return the seconds that a `Retry-After` header asks for, or `None` if it cannot be read.

    Args:
        header: A number of seconds, or an HTTP date.
        now: The current time, in seconds since the epoch.
    """
    if header is None:
        return None
    text = header.strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        return float(text)
    try:
        from email.utils import parsedate_to_datetime  # few endpoints name a date, and it takes 6 ms

        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    # HTTP dates are in UTC, also those that do not name a zone.
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, date.timestamp() - now)
