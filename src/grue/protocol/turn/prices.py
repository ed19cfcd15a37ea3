"""The cost of a completion, and what is left of an episode's budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.errors import BudgetSpent, MCPConfigError
from grue.field_checks import ByName, check_settings, is_usable, shown
from grue.policies import Budget

_MILLION = 1_000_000


class Price(Struct, metaclass=ByName, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The price of a model, in USD for a million tokens.

    Attributes:
        input: Price of the tokens that are sent.
        output: Price of the tokens that are received, thinking included.
        cached: Price of the sent tokens that the endpoint had in its cache; `None`: the same as `input`.
        batch: The fraction of these prices that a request in a batch costs.

    Raises:
        MCPConfigError: A price or `batch` is negative, not a number, or 2**63 or more.
    """

    input: float
    output: float
    cached: float | None = None
    batch: float = 0.5

    def __post_init__(self) -> None:
        check_settings(self, any_number=self.__struct_fields__)
        for name in self.__struct_fields__:
            price = getattr(self, name)
            if price is not None and not is_usable(price, above_0=False):
                words = "a price is a number of USD, 0 or more and less than 2**63"
                raise MCPConfigError(f"Price({name}={shown(price)}): {words}.")

    @property
    def in_batches(self) -> Price:
        """The price of requests that the provider answers later, in a batch."""
        cached = None if self.cached is None else self.cached * self.batch
        return replace(
            self, input=self.input * self.batch, output=self.output * self.batch, cached=cached, batch=1.0
        )


def price_of(prices: Mapping[str, Price], model: str) -> Price | None:
    """Return a model's price, by its name or the first pattern (`*`, `?`) that fits; `None`: none fits."""
    if model in prices:
        return prices[model]
    return next((price for pattern, price in prices.items() if fnmatchcase(model, pattern)), None)


def with_cost(usage: m.Usage, reported: float | None, price: Price | None) -> m.Usage:
    """Return `usage` with its own cost, else with `reported` (by an HTTP header), else by `price`, if any."""
    if usage.cost_usd is not None:
        return usage
    if reported is None and price is not None:
        cached = min(usage.cached_tokens, usage.input_tokens)
        cached_price = price.input if price.cached is None else price.cached
        fresh = (usage.input_tokens - cached) * price.input
        reported = (fresh + cached * cached_price + usage.output_tokens * price.output) / _MILLION
    return usage if reported is None else replace(usage, cost_usd=reported)


def most_usage(
    prompt_bytes: int, bytes_per_token: float, max_tokens: int | None, price: Price | None
) -> m.Usage:
    """Estimate a request's tokens and cost if its reply has `max_tokens` tokens; `None`: without a reply."""
    tokens = math.ceil(prompt_bytes / bytes_per_token)
    return with_cost(m.Usage(input_tokens=tokens, output_tokens=max_tokens or 0), None, price)


class Spent(Struct, frozen=True, kw_only=True):
    """Requests, tokens and cost of an episode's ended turns, of one turn, or of a part of a turn."""

    requests: int = 0
    usage: m.Usage = m.Usage()

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.usage.input_tokens + self.usage.output_tokens

    def plus(self, requests: int, usage: m.Usage) -> Spent:
        """Return the total with these requests and this usage added."""
        return Spent(requests=self.requests + requests, usage=self.usage + usage)

    def less(self, other: Spent) -> Spent:
        """Return this total minus `other`. The cost is `None` only if both costs are."""
        mine, theirs = self.usage, other.usage
        known = mine.cost_usd is not None or theirs.cost_usd is not None
        cost = (mine.cost_usd or 0.0) - (theirs.cost_usd or 0.0) if known else None
        counts = (name for name in m.Usage.__struct_fields__ if name != "cost_usd")
        left = {name: getattr(mine, name) - getattr(theirs, name) for name in counts}
        return Spent(requests=self.requests - other.requests, usage=m.Usage(**left, cost_usd=cost))

    def reached(self, episode: Budget) -> str:
        """Return a sentence that names the first limit that is reached; empty if no limit is."""
        for limit, spent, what in (
            (episode.requests, self.requests, "requests"),
            (episode.tokens, self.tokens, "tokens"),
            (episode.cost_usd, self.usage.cost_usd or 0.0, "USD"),
        ):
            if limit is not None and spent >= limit:
                return f"the episode's budget is spent: {spent:.12g} of {limit:.12g} {what}"
        return ""

    def check(self, episode: Budget, what: str = "No further turn can be run") -> None:
        """Raise `BudgetSpent`, whose text begins with `what`, if the episode's budget is spent."""
        reached = self.reached(episode)
        if reached:
            advice = "Raise the limit in Runner(budget=...) or [tool.grue.budget]."
            raise BudgetSpent(f"{what}: {reached}.\n{advice}")

    def left(self, episode: Budget, turn: Budget) -> Budget:
        """Return the budget `turn`, limited to what is left of `episode`; `BudgetSpent`: nothing is left."""
        self.check(episode)
        return Budget(
            requests=_lesser(turn.requests, episode.requests, self.requests),
            tokens=_lesser(turn.tokens, episode.tokens, self.tokens),
            cost_usd=_lesser(turn.cost_usd, episode.cost_usd, self.usage.cost_usd or 0.0),
        )


N = TypeVar("N", int, float)


def _lesser(own: N | None, of_all: N | None, spent: N) -> N | None:
    left = None if of_all is None else of_all - spent
    return min((limit for limit in (own, left) if limit is not None), default=None)
