"""When to ask an endpoint again, and how long to wait before.

Pure: time and chance come in as arguments. Whether another try can help is settled where a failure gets its
kind (`kind_of_status`); `next_delay` only reads the kind.
"""

import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Literal

from msgspec import Struct

from grue.messages import LlmFailure

FailureKind = Literal["refused", "unavailable", "timed_out", "invalid_reply", "damaged", "unreachable"]

RETRYABLE = frozenset({408, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
"""HTTP statuses after which another try can help; from 520 on, proxies speak of the server behind them."""

_SPENT = re.compile(
    r"insufficient[_ ](quota|credit|fund|balance)|exceeded your current quota|spend(ing)?[ _-]?limit"
    r"|billing|budget|out of credits|credit limit",
    re.IGNORECASE,
)


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """How often and how patiently to try; the defaults are those of `[tool.zorkgpt.retry]`.

    Attributes:
        max_retries: Further requests after the first.
        initial_delay_s: Wait before the first of them.
        max_delay_s: Longest wait.
        exponential_base: Factor from one wait to the next.
        jitter_factor: Largest share that chance adds to a wait.
        timeout_s: For one request, from the connect to the last byte of the reply.
        connect_timeout_s: For the connect.
        first_byte_timeout_s: From the connect to the first byte of the reply; `None`: no limit of its own.
        idle_timeout_s: Between two pieces of a streamed reply.
        length_retry_factor: How much larger the limit on a reply's length becomes where a reply was cut by
            it, which is tried once; 1: such a reply is taken as it is.
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
    """Return what an HTTP status other than 2xx means.

    Args:
        status: The status, of the reply or of the error within it.
        words: The provider's message and code: a 429 can mean a limit that no waiting lifts.
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

    A reply that is none is asked for once more: it may have been cut on its way, whereas a web page in its
    place will be there the next time too.

    Args:
        policy: How often, how long.
        attempt: Requests sent so far.
        failure: What became of the last one.
        retry_after_s: What the endpoint asks for; it replaces the backoff, up to `max_delay_s`.
        jitter: Chance, from 0 to 1.
    """
    if failure.kind == "refused" or attempt > policy.max_retries:
        return None
    if failure.kind == "invalid_reply" and attempt > 1:
        return None
    delay = _backoff(policy, attempt) if retry_after_s is None else retry_after_s
    # Chance only adds: less than what the endpoint asks for would be refused again.
    return min(delay, policy.max_delay_s) * (1 + policy.jitter_factor * jitter)


def _backoff(policy: RetryPolicy, attempt: int) -> float:
    try:
        return policy.initial_delay_s * policy.exponential_base ** (attempt - 1)
    except OverflowError:
        return policy.max_delay_s


def retry_after(header: str | None, now: float) -> float | None:
    """Return the seconds that a `Retry-After` header asks for, or `None` where it says nothing readable.

    Args:
        header: Seconds, or an HTTP date.
        now: Seconds since the epoch.
    """
    if header is None:
        return None
    text = header.strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    # A date without a zone is read as the UTC that HTTP dates are in.
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, date.timestamp() - now)
