"""What a completion costs: reported, computed, or unknown."""

import pytest

from grue.errors import MCPConfigError
from grue.messages import Usage
from grue.protocol.turn.prices import Price, most_usage, price_of, with_cost

PRICE = Price(input=2.0, output=10.0, cached=0.5)
USED = Usage(input_tokens=1_000_000, output_tokens=100_000, cached_tokens=400_000)


@pytest.mark.parametrize(
    ("usage", "reported", "price", "cost"),
    [
        (USED, None, None, None),
        (USED, 0.25, PRICE, 0.25),
        (USED, None, PRICE, 0.6 * 2 + 0.4 * 0.5 + 1.0),
        (USED, None, Price(input=2.0, output=10.0), 3.0),
        (Usage(input_tokens=10, cached_tokens=1_000_000), None, Price(input=1.0, output=0.0), 0.00001),
        (Usage(cost_usd=0.5), 0.25, PRICE, 0.5),
        (Usage(cost_usd=0.0), None, PRICE, 0.0),
    ],
)
def test_the_body_counts_before_the_headers_and_these_before_the_table(
    usage: Usage, reported: float | None, price: Price | None, cost: float | None
) -> None:
    assert with_cost(usage, reported, price).cost_usd == (None if cost is None else pytest.approx(cost))


def test_a_price_is_found_by_name_and_then_by_pattern() -> None:
    other = Price(input=1.0, output=1.0)
    prices = {"claude-*": PRICE, "claude-haiku": other}
    assert price_of(prices, "claude-haiku") == other
    assert price_of(prices, "claude-opus") == PRICE
    assert price_of(prices, "gpt") is None


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf"), 10**400])
def test_a_price_that_is_no_amount_is_refused(price: float) -> None:
    with pytest.raises(MCPConfigError, match="a price is a number of USD"):
        Price(input=price, output=1.0)


def test_a_request_whose_reply_is_not_known_counts_as_the_longest_reply() -> None:
    price = Price(input=2.0, output=10.0)
    assert most_usage(1_000, 4.0, 50, price) == Usage(
        input_tokens=250, output_tokens=50, cost_usd=(250 * 2.0 + 50 * 10.0) / 1_000_000
    )
    assert most_usage(1_001, 4.0, None, None) == Usage(input_tokens=251)
