"""The broker: decides which request to a model may start now, and adds up what the requests have cost.

The broker is a pure state machine: it gets the time as an argument, and never waits. The rules:

- A request starts only if its reservation, the most that it can cost as far as known, fits into what is left
  of every limit. If it may fit once the real cost of the requests under way is known, the request waits;
  otherwise it is refused. If a worker is lost, its reservations count as spent.
- In a second at most about a sixtieth of `requests_per_minute` starts, as some endpoints count by the second.
  At high rates, the pause between two requests may shrink to a quarter of its average, to catch up.
- The tokens of a request are taken from an allowance, which refills at the rate `tokens_per_minute`.
- The window is the number of requests that may be under way. As in TCP, it starts at two and doubles whenever
  a full window has succeeded (slow start). A status 429, 503 or 529 halves it, at most once a second; from
  then on it grows by one for each full window. It does not grow beyond `concurrency`. After such a status, no
  request starts for at least 1 s, and for as long as `Retry-After` says, up to 10 minutes.
"""

import contextlib
import math
import operator
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import astuple

from grue.errors import FleetError
from grue.field_checks import check_settings, is_usable, shown
from grue.protocol.retry import RetryPolicy
from grue.protocol.turn.prices import Price, price_of
from grue.transports.llm import exchange

# --- Server processes ---
#
# An episode with two servers holds a place for the first while it asks for the second. If every worker did
# that with the last free places, all would wait for ever. So a worker's first server reserves all places that
# its episode needs (`an_episode`). If it wants more, it may be refused after 30 s (`accounts.py`).


class ServerCap(Struct, frozen=True, kw_only=True):
    """The cap on server processes of a machine.

    Attributes:
        at_once: The most server processes at one time; `None`: no cap.
        an_episode: The most server processes that an episode needs at one time.

    Raises:
        FleetError: `an_episode` is larger than `at_once`, or below 1.
        MCPConfigError: A value has a wrong type.
    """

    at_once: int | None = None
    an_episode: int = 1

    def __post_init__(self) -> None:
        check_settings(self, any_number=self.__struct_fields__)
        if self.an_episode < 1 or (self.at_once is not None and self.at_once < self.an_episode):
            raise FleetError(
                f"servers = {self.at_once} and servers_an_episode = {self.an_episode}: an episode needs at"
                " least one place, and all its places have to fit."
            )


class ServerPlaces:
    """The places for server processes on one machine, and the workers that hold them."""

    def __init__(self, cap: ServerCap) -> None:
        self._cap = cap
        self._held: Counter[str] = Counter()

    def wants_too_many(self, worker: str) -> bool:
        """Return whether one more server process would be too many for the episode of this worker."""
        return self._held[worker] >= self._cap.an_episode

    def take(self, worker: str) -> bool:
        """Take a place for a server process of a worker; return `False` if the worker has to wait."""
        if self._cap.at_once is not None:
            claim = self._claim(self._held[worker] + 1)
            others = sum(self._claim(count) for name, count in self._held.items() if name != worker)
            if others + claim > self._cap.at_once:
                return False
        self._held[worker] += 1
        return True

    def leave(self, worker: str) -> None:
        """Free one place of a worker."""
        self._held[worker] -= 1
        if self._held[worker] <= 0:
            del self._held[worker]

    def _claim(self, count: int) -> int:
        """Return how many places a worker with `count` servers claims: 0, or at least `an_episode`."""
        return max(count, self._cap.an_episode) if count else 0


# --- Requests ---

SLOW_START = 2.0
# The share of `requests_per_minute` that is used, because an endpoint's clock may run at another speed.
_MARGIN = 0.95
_CATCH_UP = 4.0  # the pause between two requests may be so many times shorter than the average
_OVERLOADED = frozenset({429, 503, 529})
_LEAST_PAUSE_S = 1.0
# The longest pause. By default, a request fails if the endpoint asks it to wait longer.
_MOST_PAUSE_S = RetryPolicy().max_asked_delay_s


class FleetBudget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on the cost of all requests of a fleet together. `None`: no limit.

    Attributes:
        money_usd: US dollars. A request whose price and `max_tokens` are known starts only if the most that
            it can cost, counting each byte of its prompt as a token, fits into the rest of the limit. A
            request whose price or `max_tokens` is unknown starts only if `requests` is set too; its cost is
            counted afterwards, as far as it is known then.
        tokens: The most tokens of all prompts and replies. A request starts only if its prompt, each byte
            counted as a token, and its `max_tokens`, if known, fit into the rest of the limit.
        prices: Prices by model's name or pattern (`gpt-*`).

    Raises:
        FleetError: A limit is negative or infinite, or `money_usd` is set without `prices` and without
            `requests`.
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
        tokens_per_minute: Tokens of prompts and replies per minute, on average. At the start and after a
            pause, up to a minute's tokens may be used at once.
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
        """`True` if the budget or the rate has a limit. Then each request needs the broker's permission."""
        return (self.budget, self.rate) != (FleetBudget(prices=self.budget.prices), Rate())


class Amount(Struct, frozen=True):
    """A number of requests, their tokens, and their cost in US dollars."""

    requests: int = 0
    tokens: int = 0
    money_usd: float = 0.0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(*map(operator.add, astuple(self), astuple(other)))

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(*map(operator.sub, astuple(self), astuple(other)))


class Costs(Struct, frozen=True):
    """The cost of a fleet's requests so far."""

    spent: Amount = Amount()
    overloads: int = 0  # answers with a status 429, 503 or 529, in this run
    refused: str = ""  # as in `Broker`


class NotYet(Struct, frozen=True):
    """The request must wait: ask again when another request has ended, or after `after_s` seconds, if set."""

    after_s: float | None


class Refused(Struct, frozen=True):
    """The request must not start, now or later. `why` is the reason."""

    why: str


class Broker(Struct):
    """The state of the broker; the module's docstring has its rules."""

    limits: Limits
    spent: Amount = Amount()  # the cost of the settled requests and of earlier runs
    reserved: Amount = Amount()  # the most that the requests under way can cost together
    under_way: int = 0
    window: float = SLOW_START  # how many requests the endpoint seems to take at one time
    overloads: int = 0
    paused_until: float = -math.inf  # monotonic seconds; no request starts before this time
    refused: str = ""  # in words, the used-up limit for which `ask` last refused a request; empty: none
    _slow_start: bool = True
    _short: bool = False  # whether a request had to wait lately for the window or `concurrency`
    _starts: deque[float] = field(default_factory=deque)
    _allowance: float = 0.0
    _allowance_at: float | None = None
    _halved_at: float = -math.inf

    def ask(self, wanted: exchange.WantedRequest, now: float) -> Amount | NotYet | Refused:
        """If a request may start at `now` (monotonic seconds), reserve and return its highest known cost."""
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
        return amount

    def settle(self, reserved: Amount, outcome: exchange.RequestOutcome, model: str, now: float) -> Amount:
        """Replace an ended request's reservation by its cost, and adapt window and pause. Return the cost."""
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
            if self._short and self.window < (self.limits.rate.concurrency or math.inf):
                self.window += step
        return cost

    def most(self, wanted: exchange.WantedRequest) -> Amount | Refused:
        """Return a request's highest cost as far as known (a prompt byte counts as a token), or refuse it."""
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
                spent = f"{_number(used)} {'is' if used == 1 else 'are'} spent"
                if used < most:
                    spent += f", and the next request may cost {_number(wanted)}"
                unit = what.removesuffix("s") if most == 1 else what
                self.refused = f"the fleet's limit of {_number(most)} {unit} is used up: {spent}"
                return Refused(self.refused)
            waits = True
        return NotYet(None) if waits else None

    def _rate_wait(self, now: float) -> float:
        rate = self.limits.rate.requests_per_minute
        if rate is None or not self._starts:
            return 0.0
        between_s = 60 / (rate * _MARGIN)
        many = max(1, round(rate / 60))  # requests a second
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
        if now - self._halved_at >= _LEAST_PAUSE_S:  # requests under way together report the same overload
            self.window = max(1.0, self.window / 2)
            self._halved_at = now
        pause_s = min(max(retry_after_s or 0.0, _LEAST_PAUSE_S), _MOST_PAUSE_S)
        self.paused_until = max(self.paused_until, now + pause_s)

    def _cost(self, reserved: Amount, outcome: exchange.RequestOutcome, model: str) -> Amount:
        if not outcome.sent:
            return Amount()
        if outcome.status is not None and outcome.status >= 400:
            return Amount(1)  # no tokens and no money: an endpoint does not charge for what it refuses
        if outcome.input_tokens is None or outcome.output_tokens is None:
            return reserved
        money = outcome.cost_by(price_of(self.limits.budget.prices, model))
        tokens = outcome.input_tokens + outcome.output_tokens
        return Amount(1, tokens, reserved.money_usd if money is None else money)


# --- The requests of one attempt ---


_NETWORK = frozenset({"unreachable", "unavailable", "timed_out"})
_ACCOUNT = frozenset({"key", "credit"})


def may_pass(kind: str, reason: str | None) -> bool:
    """Return `True` if the network, endpoint, key or account failed, so that a later try may succeed."""
    return kind in _NETWORK or reason in _ACCOUNT


class RequestCount:
    """A `RequestGate` that counts the cost of requests, and lets another gate admit them. Thread-safe."""

    def __init__(self, inner: exchange.RequestGate | None, prices: Mapping[str, Price]) -> None:
        self._inner = inner
        self._prices = prices
        self._lock = threading.Lock()
        self.spent = Amount()
        self.refused = ""
        self.waiting = 0

    async def admit(self, wanted: exchange.WantedRequest) -> exchange.Permit | str:
        """Ask the gate `inner`; return a permit whose `settle` counts the cost, or the refusal's reason."""
        permit = await self.admit_only(wanted)
        return permit if isinstance(permit, str) else _Counted(self, permit, wanted.model)

    async def admit_only(self, wanted: exchange.WantedRequest) -> exchange.Permit | str | None:
        """Return the answer of the gate `inner`; `None`: no gate. The caller counts the cost with `add`."""
        with self._lock:
            self.waiting += 1
        permit = None if self._inner is None else await self._inner.admit(wanted)
        with self._lock:  # not reached if this call is cancelled: the request then stays in `waiting`
            self.waiting -= 1
        if isinstance(permit, str):
            self.refused = permit
        return permit

    def add(self, model: str, outcome: exchange.RequestOutcome) -> None:
        """Count a request that has ended, with its cost."""
        money = outcome.cost_by(price_of(self._prices, model))
        tokens = (outcome.input_tokens or 0) + (outcome.output_tokens or 0)
        with self._lock:
            self.spent += Amount(int(outcome.sent), tokens, money or 0.0)


class _Counted(Struct):
    count: RequestCount
    permit: exchange.Permit | None
    model: str

    def settle(self, outcome: exchange.RequestOutcome) -> None:
        self.count.add(self.model, outcome)
        if self.permit is not None:
            self.permit.settle(outcome)


@contextlib.contextmanager
def requests_counted(prices: Mapping[str, Price]) -> Iterator[RequestCount]:
    """Count the requests of this process within the block."""
    inner = exchange.request_gate()
    count = RequestCount(inner, prices)
    exchange.set_request_gate(count)
    try:
        yield count
    finally:
        exchange.set_request_gate(inner)
