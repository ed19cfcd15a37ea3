"""Decide whether to send a request to an endpoint again, and how long to wait before that."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from msgspec import Struct

from grue import messages as m
from grue.field_checks import OwnKeywords, check_settings
from grue.policies import FailureKind

_UNREACHABLE_DELAY_S = 0.5
_MOST_RETRIES: dict[FailureKind, int] = {"refused": 0, "invalid_reply": 1, "unreachable": 1}
"""How often, at most, these kinds are retried. The last two most often mean that the base URL is wrong."""

_UNIT_S = {"ms": 0.001, "milli": 0.001, "s": 1.0, "m": 60.0, "mi": 60.0, "h": 3600.0, "d": 86400.0}
_UNIT_S |= {"秒": 1.0, "分": 60.0, "小": 3600.0}
# The patterns are strings, as in `chat_wire/failures.py`: `re` compiles them at their first use.
_AMOUNT = r"(\d{1,9}(?:\.\d{1,18})?) ?(ms|milli|mi|[smhd秒分小])"
_DURATION = (
    r"((?:\d{1,9}(?:\.\d{1,18})? ?"
    r"(?:milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)[ ,]{0,2}(?:and )?){1,4})"
    r"(?![a-z])"
)
_NAMED_WAIT = (
    r"(?:again|retry|retrying|wait|available|allowed|resets?)(?: your request)?"
    rf'(?:[ _](?:in|after|for|at least))?(?: about)? ?:? ?~?{_DURATION}|"retry_?delay" ?: ?"{_DURATION}'
    r"|(\d{1,6} ?(?:秒钟?|分钟|小时))(?:之?后|再)"
)
_CLOCK_WAIT = r"(?:again|retry|replenished|resets?) (?:in|after) (?:(\d{1,3})\.)?(\d{1,2}):(\d{2}):(\d{2})\b"
"""A wait as Azure's gateway writes it: `days.hours:minutes:seconds`, or without the days."""

_DRAFTED = r"\b(?:r|remaining) ?= ?0\b[^,\n]{0,20}[;,] ?(?:t|reset) ?= ?(\d{1,9})\b"
_NUMBERED_WAIT = (
    r'"(?:estimated_time|retry_?after(?:_s|_?seconds|(_?ms))?)" ?: ?"?(\d{1,8}(?:\.\d{1,18})?)"?\s*[,}]'
)


_TAKEN_AT_ITS_WORD = 5
"""After this many failures, a wait that the endpoint asks for is at least the backoff of the failures since
then. An endpoint that always says `Retry-After: 0` would otherwise get hundreds of requests a second."""

_ABOVE_0 = (
    *("exponential_base", "length_retry_factor"),
    *("timeout_s", "connect_timeout_s", "first_byte_timeout_s", "idle_timeout_s"),
)


class RetryPolicy(Struct, metaclass=OwnKeywords, frozen=True, kw_only=True):
    """How often to retry a request, and the time limits of each request.

    The table `[tool.grue.retry]` sets `timeout_s` (there `timeout_seconds`) and the fields above it (there
    without `_s`). The fields below it are set in code.

    Attributes:
        max_retries: The most retries of a request. Sending it in another form after a refusal does not count.
        initial_delay_s: First wait of the backoff, in seconds.
        max_delay_s: Longest wait of the backoff, without the jitter.
        max_asked_delay_s: Longest wait that an endpoint may ask for. If it asks for a longer one, such as a
            day, the request fails at once, because a request before that time would be refused too.
        exponential_base: Factor from one wait to the next.
        jitter_factor: Largest random addition to a wait, as a fraction of the wait.
        timeout_s: Limit of one request, from the connect to the last byte of the reply.
        connect_timeout_s: Limit of the connect.
        first_byte_timeout_s: Limit from the start of the connect to the reply's first byte; `None`: no limit.
        idle_timeout_s: Limit between two pieces of a streamed reply.
        length_retry_factor: If a reply is cut at the limit of the endpoint's profile, and the user has set no
            limit, it is requested once more, with at most this many times the limit. 1: no such request.
    """

    max_retries: int = 5
    initial_delay_s: float = 1.0
    max_delay_s: float = 60.0
    max_asked_delay_s: float = 600.0
    exponential_base: float = 2.0
    jitter_factor: float = 0.1
    timeout_s: float = 120.0
    connect_timeout_s: float = 10.0
    first_byte_timeout_s: float | None = None
    idle_timeout_s: float = 60.0
    length_retry_factor: float = 4.0

    def __post_init__(self) -> None:
        check_settings(self, above_0=_ABOVE_0)


def next_delay(
    policy: RetryPolicy,
    attempt: int,
    failure: m.LlmFailure,
    *,
    of_kind: int | None = None,
    jitter: float = 0.0,
) -> float | None:
    """Return the seconds to wait before the next request, or `None` to give up.

    `attempt` requests have failed so far (those sent again in another form do not count), `of_kind` of them
    in the same way as the last; only these use up the retries of that kind. `jitter`: random, from 0 to 1.
    """
    of_kind = attempt if of_kind is None else of_kind
    if attempt > policy.max_retries or of_kind > _MOST_RETRIES.get(failure.kind, math.inf):
        return None
    delay = failure.retry_after_s
    if delay is None:
        delay = backoff(policy, of_kind)
    elif delay > policy.max_asked_delay_s:
        return None
    elif attempt > _TAKEN_AT_ITS_WORD:
        delay = max(delay, backoff(policy, attempt - _TAKEN_AT_ITS_WORD))
    if failure.kind == "unreachable":
        delay = min(delay, _UNREACHABLE_DELAY_S)
    # The jitter never shortens the delay: a request before the delay is over would be refused again.
    return delay * (1 + policy.jitter_factor * jitter)


def backoff(policy: RetryPolicy, attempt: int) -> float:
    """Return the seconds to wait after failure number `attempt`, from 1, without the jitter."""
    try:
        delay = policy.initial_delay_s * policy.exponential_base ** (attempt - 1)
    except OverflowError:
        return policy.max_delay_s
    return min(delay, policy.max_delay_s)


def asked_wait(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that headers (names in lower case) ask to wait, or `None`; `now`: epoch seconds."""
    # This machine's clock may be wrong, so measure a wait from the reply's own `date`, if it has one.
    sent = _moment(_http_date, headers.get("date", ""))
    now = now if sent is None else sent
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        milliseconds = _number(headers.get(name))
        if milliseconds is not None:
            return milliseconds / 1000
    named = _until(headers.get("retry-after", ""), now, _http_date)
    if named is not None:
        return named
    spent = [
        _until(value, now, datetime.fromisoformat)
        for name, value in headers.items()
        if "ratelimit" in name
        and "reset" in name
        and _number(headers.get(name.removesuffix("-after").replace("reset", "remaining"))) == 0
    ]
    # The header `RateLimit` of an IETF draft: `limit=9, remaining=0, reset=12`, or newer: `"all";r=0;t=12`.
    drafted = re.search(_DRAFTED, headers.get("ratelimit", ""), re.IGNORECASE)
    spent.append(float(drafted[1]) if drafted else None)
    return max((wait for wait in spent if wait is not None), default=None)


def wait_in(words: str) -> float | None:
    """Return the wait in seconds that an endpoint's text names, such as `in 7m12s`; `None`: it names none."""
    found = re.search(_NAMED_WAIT, words, re.IGNORECASE)
    if found is not None:
        return _seconds(next(group for group in found.groups() if group))
    clock = re.search(_CLOCK_WAIT, words, re.IGNORECASE)
    if clock is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    numbered = re.search(_NUMBERED_WAIT, words, re.IGNORECASE)
    return float(numbered[2]) / (1000 if numbered[1] else 1) if numbered else None


def _seconds(duration: str) -> float:
    amounts = re.findall(_AMOUNT, duration, re.IGNORECASE)
    return sum(float(amount) * _UNIT_S[unit.lower()] for amount, unit in amounts)


def _until(value: str, now: float, read_date: Callable[[str], datetime]) -> float | None:
    """Return the wait in seconds that a header's `value` names; `None`: it cannot be read."""
    number, text = _number(value), value.strip()
    if number is not None:
        # Up to 1e8 a duration in seconds; else a time since the epoch, above 1e11 in milliseconds.
        moment = number / 1000 if number > 1e11 else number
        return max(0.0, moment - now) if moment > 1e8 else moment
    if re.fullmatch(_DURATION, text, re.IGNORECASE):
        return _seconds(text)
    date = _moment(read_date, text)
    return None if date is None else max(0.0, date - now)


def _moment(read: Callable[[str], datetime], text: str) -> float | None:
    """Return a date in seconds since the epoch (UTC if it names no time zone); `None`: it cannot be read."""
    try:
        date = read(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    text = (text or "").strip()
    return float(text) if re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,18})?", text) else None


def _http_date(text: str) -> datetime:
    # imported here, because most programs never read a date in a header, and the import takes 6 ms
    from email.utils import parsedate_to_datetime

    return parsedate_to_datetime(text)
