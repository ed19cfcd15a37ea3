"""The cost of a completion: as the endpoint reports it, or else by the user's table of prices."""

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.errors import MCPConfigError

_MILLION = 1_000_000


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The price of a model, in USD for a million tokens.

    Attributes:
        input: Tokens sent.
        output: Tokens received, thinking included.
        cached: Tokens sent that the endpoint had in its cache; `None`: the price of other tokens sent.

    Raises:
        MCPConfigError: A price is negative or not a number.
    """

    input: float
    output: float
    cached: float | None = None

    def __post_init__(self) -> None:
        """Refuse a negative price."""
        for name in self.__struct_fields__:
            price = getattr(self, name)
            if price is not None and not 0 <= price < float("inf"):
                raise MCPConfigError(f"Price({name}={price}): a price is a number of USD, 0 or more.")


def price_of(prices: Mapping[str, Price], model: str) -> Price | None:
    """Return the price of a model: that of its name, or of the first pattern (`*`, `?`) that matches it."""
    if model in prices:
        return prices[model]
    return next((price for pattern, price in prices.items() if fnmatchcase(model, pattern)), None)


def with_cost(usage: m.Usage, reported: float | None, price: Price | None) -> m.Usage:
    """Return the usage of a completion with its cost.

    Args:
        usage: As the reply's body says it. A cost in it is kept.
        reported: The cost that the reply's headers say.
        price: The user's price of the model.
    """
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
    """Estimate the cost of a request whose reply is not known.

    Args:
        prompt_bytes: Size of its body.
        bytes_per_token: How many bytes make a token.
        max_tokens: Most tokens of a reply; `None`: no limit is known, so the reply counts as nothing.
        price: The user's price of the model.
    """
    tokens = math.ceil(prompt_bytes / bytes_per_token)
    return with_cost(m.Usage(input_tokens=tokens, output_tokens=max_tokens or 0), None, price)
