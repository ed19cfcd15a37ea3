"""What an episode has spent, and what that leaves for a turn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.errors import BudgetSpent
from grue.messages import Usage
from grue.policies import Budget
from grue.protocol.turn.prices import Spent

SPENT = Spent(requests=3, usage=Usage(input_tokens=70, output_tokens=30, cost_usd=0.5))


def test_turns_add_up() -> None:
    spent = Spent().plus(1, Usage(input_tokens=1, cost_usd=0.25)).plus(2, Usage(output_tokens=2))
    assert spent == Spent(requests=3, usage=Usage(input_tokens=1, output_tokens=2, cost_usd=0.25))
    assert spent.tokens == 3


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (Budget(), ""),
        (Budget(requests=4, tokens=101, cost_usd=0.51), ""),
        (Budget(requests=3), "the episode's budget is spent: 3 of 3 requests"),
        (Budget(tokens=90), "the episode's budget is spent: 100 of 90 tokens"),
        (Budget(cost_usd=0.5), "the episode's budget is spent: 0.5 of 0.5 USD"),
        (Budget(requests=0), "the episode's budget is spent: 3 of 0 requests"),
    ],
)
def test_which_limit_is_reached(budget: Budget, words: str) -> None:
    assert SPENT.reached(budget) == words
    if words:
        with pytest.raises(BudgetSpent, match=words):
            SPENT.left(budget, Budget())


@pytest.mark.parametrize(
    ("episode", "turn", "left"),
    [
        (Budget(), Budget(), Budget()),
        (Budget(), Budget(requests=5), Budget(requests=5)),
        (Budget(requests=10), Budget(), Budget(requests=7)),
        (Budget(requests=10), Budget(requests=5), Budget(requests=5)),
        (Budget(tokens=150, cost_usd=0.75), Budget(tokens=200), Budget(tokens=50, cost_usd=0.25)),
    ],
)
def test_a_turn_may_spend_the_lesser_of_its_own_and_what_is_left(
    episode: Budget, turn: Budget, left: Budget
) -> None:
    assert SPENT.left(episode, turn) == left


def test_a_large_number_of_tokens_is_written_with_all_its_digits() -> None:
    spent = Spent(usage=Usage(input_tokens=1_234_567, cost_usd=0.1 + 0.2))
    assert spent.reached(Budget(tokens=1_000_000)).endswith("1234567 of 1000000 tokens")
    assert spent.reached(Budget(cost_usd=0.3)).endswith("0.3 of 0.3 USD")


def test_a_cost_that_nobody_told_is_none() -> None:
    assert Spent(requests=1).left(Budget(cost_usd=1.0), Budget()) == Budget(cost_usd=1.0)


@given(
    episode=st.integers(1, 50),
    turn=st.integers(1, 20),
    uses=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=20),
)
def test_what_is_left_is_never_more_than_there_was(
    episode: int, turn: int, uses: list[tuple[int, int]]
) -> None:
    spent, budget = Spent(), Budget(requests=episode)
    for requests, tokens in uses:
        if spent.reached(budget):
            assert spent.requests >= episode
            return
        left = spent.left(budget, Budget(requests=turn)).requests
        assert left is not None
        assert 0 < left <= min(turn, episode - spent.requests)
        spent = spent.plus(min(requests, left), Usage(input_tokens=tokens))
    assert spent.requests <= episode


def test_tokens_add_up_within_63_bits_whatever_an_endpoint_reports() -> None:
    """Python refuses to print an integer of over 4,300 digits."""
    absurd = Usage(input_tokens=10**4299, output_tokens=-(10**4299), cost_usd=1e308)
    total = Spent().plus(1, absurd).plus(1, absurd).usage
    assert (total.input_tokens, total.output_tokens) == (2**63 - 1, -(2**63))
    assert f"{total}"
