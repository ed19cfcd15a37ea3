"""The broker: decides which request to a model may start now, and adds up what the requests have cost.

The broker is a pure state machine: it gets the time as an argument, and never waits.

The rules:

- A request starts only if its reservation fits into what is left of every limit of the budget. A reservation
  is the most that the request can cost, as far as it is known. If the reservation may fit once the requests
  under way have ended and their real cost is known, the request waits; otherwise it is refused.
- In each second about a sixtieth of `requests_per_minute` starts, because some endpoints count by the
  second. Within a second, the time between two requests may be as short as a quarter of the average, so that
  a busy machine that has sent some requests late can catch up.
- The tokens of a request are taken from an allowance, which refills at the rate `tokens_per_minute`.
- The window is the number of requests that may be under way. As in TCP, it starts at two and doubles whenever
  a full window of requests has succeeded (slow start). A status 429, 503 or 529 halves the window. From then
  on the window grows by one whenever a full window of requests has succeeded. After such a status, no request
  starts for at least 1 s, and for as long as `Retry-After` says, up to 10 minutes. (Some headers say a year.)
- If a worker is lost, its reservations count as spent, since its requests may have been sent and charged.
"""

import math
from collections import deque
from typing import TypeAlias

from msgspec import Struct, field

from grue.errors import FleetError
from grue.field_checks import check_settings, is_usable, shown
from grue.fleet.server_places import ServerCap
from grue.protocol.retry import RetryPolicy
from grue.protocol.turn.prices import Price, price_of
from grue.transports.llm.exchange import RequestOutcome, WantedRequest

SLOW_START = 2.0
# The share of `requests_per_minute` that is used, because an endpoint's clock may run at another speed.
_MARGIN = 0.95
_CATCH_UP = 4.0  # how many times shorter than the average the pause between two requests may be
_OVERLOADED = frozenset({429, 503, 529})
_LEAST_PAUSE_S = 1.0
# If the endpoint asks for a longer wait, that request fails. Other requests start after this pause.
_MOST_PAUSE_S = RetryPolicy().max_asked_delay_s


class FleetBudget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on the cost of all requests of a fleet together. `None`: no limit.

    Attributes:
        money_usd: US dollars. A request starts only if the most that it can cost fits into the rest. One
            whose price or `max_tokens` is unknown starts only if `requests` is set too, and is counted
            afterwards.
        tokens: The most tokens of all prompts and replies.
        prices: Prices by model's name or pattern (`gpt-*`).

    Raises:
        FleetError: A limit is negative or infinite, or `money_usd` is set without `prices` and `requests`.
        MCPConfigError: A value has a wrong type.
    """

    money_usd: float | None = None
    tokens: int | None = None
    requests: int | None = None
    prices: dict[str, Price] = {}

    def __post_init__(self) -> None:
        check_settings(self, any_number=("money_usd", "tokens", "requests"))
        for name in ("money_usd", "tokens", "requests"):
            limit = getattr(self, name)
            if limit is not None and not is_usable(limit, above_0=False):
                raise FleetError(f"{name} is {_number(limit)}: a limit is a number, 0 or more.")
        if self.money_usd is not None and not self.prices and self.requests is None:
            raise FleetError(
                "money_usd needs the prices of the models (prices.MODEL = { input, output }, in dollars per"
                " million tokens), or `requests` beside it, which limits what has no price."
            )


class Rate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on the rate of a fleet's requests. `None`: as fast as the endpoint takes them.

    Attributes:
        tokens_per_minute: On average; at the start and after a pause, a minute's tokens may be used at once.
        concurrency: The most requests under way at one time.

    Raises:
        FleetError: A value is 0, negative or infinite.
        MCPConfigError: A value has a wrong type.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    concurrency: int | None = None

    def __post_init__(self) -> None:
        check_settings(self, any_number=self.__struct_fields__)
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not is_usable(value, above_0=True):
                raise FleetError(f"{name} is {_number(value)}: give a number above 0.")


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else shown(value)


class Limits(Struct, frozen=True):
    """The limits of a fleet: its budget, its request rate, and the number of server processes per machine."""

    budget: FleetBudget = FleetBudget()
    rate: Rate = Rate()
    servers: ServerCap = ServerCap()

    @property
    def on_requests(self) -> bool:
        """Whether a budget or a rate is set, so that the broker has to be asked before each request."""
        return (self.budget, self.rate) != (FleetBudget(prices=self.budget.prices), Rate())


class Amount(Struct, frozen=True):
    """A number of requests, their tokens, and their cost in US dollars."""

    requests: int = 0
    tokens: int = 0
    money_usd: float = 0.0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(
            self.requests + other.requests, self.tokens + other.tokens, self.money_usd + other.money_usd
        )

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(
            self.requests - other.requests, self.tokens - other.tokens, self.money_usd - other.money_usd
        )


class Costs(Struct, frozen=True):
    """The cost of a fleet's requests so far."""

    spent: Amount = Amount()
    overloads: int = 0  # answers with a status 429, 503 or 529
    refused: str = ""  # as in `Broker`


class Granted(Struct, frozen=True):
    """The request may start now. `reserved` is the most that it can cost, as far as it is known."""

    reserved: Amount


class NotYet(Struct, frozen=True):
    """The request must wait: ask again when another request has ended, or after `after_s` seconds, if set."""

    after_s: float | None


class Refused(Struct, frozen=True):
    """The request must not start, now or later. `why` is a sentence."""

    why: str


Answer: TypeAlias = Granted | NotYet | Refused


class Broker(Struct):
    """The state of the broker; the module's docstring has its rules."""

    limits: Limits
    spent: Amount = Amount()  # of the settled requests, also of earlier runs
    reserved: Amount = Amount()  # the most that the requests under way can cost together
    under_way: int = 0
    window: float = SLOW_START  # how many requests the endpoint seems to take at one time
    overloads: int = 0
    paused_until: float = -math.inf  # monotonic seconds; no request starts before
    refused: str = ""  # why `ask` refused a request last; empty: it never did
    _slow_start: bool = True
    _short: bool = False
    _starts: deque[float] = field(default_factory=deque)
    _allowance: float = 0.0
    _allowance_at: float | None = None
    _halved_at: float = -math.inf

    def ask(self, wanted: WantedRequest, now: float) -> Answer:
        """Return whether a request may start at `now` (monotonic seconds), and if so, reserve its cost."""
        amount = self.most(wanted)
        if isinstance(amount, Refused):
            return amount
        blocked = self._over_total(amount)
        if blocked is not None:
            return blocked
        wait_s = max(self.paused_until - now, self._rate_wait(now), self._tokens_wait(amount.tokens, now))
        if wait_s > 0:
            return NotYet(wait_s)
        most = min(self.window, self.limits.rate.concurrency or math.inf)
        if self.under_way >= max(1, int(most)):
            self._short = True
            return NotYet(None)
        self._start(amount, now)
        return Granted(amount)

    def settle(self, reserved: Amount, outcome: RequestOutcome, model: str, now: float) -> Amount:
        """Replace an ended request's reservation by its cost, which is returned; adapt window and pause."""
        cost = self._cost(reserved, outcome, model)
        self.spent += cost
        self.under_way -= 1
        # With no request under way, nothing is reserved. A rounding error that remains could block a request.
        self.reserved = self.reserved - reserved if self.under_way else Amount()
        self._allowance += reserved.tokens - cost.tokens
        if outcome.status in _OVERLOADED:
            self._slow_down(outcome.retry_after_s, now)
        elif outcome.status is not None and outcome.status < 400:
            step = 1.0 if self._slow_start else 1.0 / max(1.0, self.window)
            # Grow the window only if it was full lately: otherwise nobody knows if the endpoint takes more.
            if self._short:
                self.window += step
        return cost

    def most(self, wanted: WantedRequest) -> Amount | Refused:
        """Return the most that a request can cost, as far as it is known; a byte of the prompt is a token."""
        limits = self.limits
        price = price_of(limits.budget.prices, wanted.model)
        tokens = wanted.prompt_bytes + (wanted.max_tokens or 0)
        if limits.budget.money_usd is None:
            return Amount(1, tokens)
        if price is None or wanted.max_tokens is None:
            if limits.budget.requests is not None:
                return Amount(1, tokens)
            missing = "its price" if price is None else "max_tokens"
            return Refused(
                f"the fleet has a limit in money, and {missing} is not known for {wanted.model}, so that a"
                " request could cost anything; a limit on requests beside it would let it start"
            )
        money = (wanted.prompt_bytes * price.input + wanted.max_tokens * price.output) / 1e6
        return Amount(1, tokens, money)

    def _over_total(self, amount: Amount) -> NotYet | Refused | None:
        waits = False
        for name, what in (("requests", "requests"), ("tokens", "tokens"), ("money_usd", "US dollars")):
            most: float | None = getattr(self.limits.budget, name)
            used, reserved, wanted = (getattr(each, name) for each in (self.spent, self.reserved, amount))
            if most is None or used + reserved + wanted <= most:
                continue
            if used + wanted > most:
                spent = f"{_number(used)} are spent"
                if used < most:
                    spent += f", and the next request may cost {_number(wanted)}"
                self.refused = f"the fleet's limit of {_number(most)} {what} is used up: {spent}"
                return Refused(self.refused)
            waits = True
        return NotYet(None) if waits else None

    def _rate_wait(self, now: float) -> float:
        rate = self.limits.rate.requests_per_minute
        if rate is None or not self._starts:
            return 0.0
        between_s = 60 / (rate * _MARGIN)
        # `many` is the number of requests a second, at least 1. If it is above 1, the pause between two of
        # them may be shorter than the average, so that the rate is reached although some start late.
        many = max(1, round(rate / 60))
        soonest = self._starts[-1] + (between_s if many == 1 else between_s / _CATCH_UP)
        while len(self._starts) > many:
            self._starts.popleft()
        if len(self._starts) == many:
            soonest = max(soonest, self._starts[0] + many * between_s)
        return soonest - now

    def _tokens_wait(self, tokens: int, now: float) -> float:
        rate = self.limits.rate.tokens_per_minute
        if rate is None:
            return 0.0
        if self._allowance_at is None:
            self._allowance = rate
        else:
            self._allowance = min(rate, self._allowance + (now - self._allowance_at) * rate / 60)
        self._allowance_at = now
        # A request of more tokens than `rate` starts when the allowance is full, and makes it negative.
        short = min(tokens, rate) - self._allowance
        return short / (rate / 60)

    def _start(self, amount: Amount, now: float) -> None:
        self.reserved += amount
        self.under_way += 1
        self._short = self._short and self.under_way > self.window / 2
        if self.limits.rate.tokens_per_minute is not None:
            self._allowance -= amount.tokens
        if self.limits.rate.requests_per_minute is not None:
            self._starts.append(now)

    def _slow_down(self, retry_after_s: float | None, now: float) -> None:
        self.overloads += 1
        self._slow_start = False
        if now - self._halved_at >= _LEAST_PAUSE_S:
            # Requests that were under way together report the same overload, so halve the window at most
            # once a second.
            self.window = max(1.0, self.window / 2)
            self._halved_at = now
        pause_s = min(max(retry_after_s or 0.0, _LEAST_PAUSE_S), _MOST_PAUSE_S)
        self.paused_until = max(self.paused_until, now + pause_s)

    def _cost(self, reserved: Amount, outcome: RequestOutcome, model: str) -> Amount:
        if not outcome.sent:
            return Amount()
        if outcome.status is not None and outcome.status >= 400:
            return Amount(1)  # no tokens and no money: an endpoint does not charge for what it refuses
        if outcome.input_tokens is None or outcome.output_tokens is None:
            return reserved
        money = outcome.cost_by(price_of(self.limits.budget.prices, model))
        tokens = outcome.input_tokens + outcome.output_tokens
        return Amount(1, tokens, reserved.money_usd if money is None else money)
