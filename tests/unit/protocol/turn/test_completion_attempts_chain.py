"""Which model of a chain is asked: each row fails if its rule is broken."""

from typing import get_args

import pytest
from case_tables import each_case
from msgspec.structs import replace

from grue.messages import LlmFailure
from grue.policies import FailureKind
from grue.protocol.turn.completion_attempts import Breaker, after_all, moves_on
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings

OPEN, CLOSED, OVER = Breaker(1, 100.0), Breaker(), Breaker(2, 5.0)


def failure(
    kind: FailureKind = "unavailable", retry_after_s: float | None = None, at: str = "a"
) -> LlmFailure:
    return LlmFailure(
        kind=kind, endpoint=f"http://{at}", model=at, message=f"{at} is down", retry_after_s=retry_after_s
    )


def test_the_next_model_is_asked_only_if_one_cannot_be() -> None:
    kinds = {kind: moves_on(failure(kind)) for kind in get_args(FailureKind)}
    assert kinds == {
        "refused": False,
        "invalid_reply": False,
        "unreachable": True,
        "unavailable": True,
        "timed_out": True,
        "damaged": True,
    }


def test_a_model_is_left_alone_longer_each_time_and_as_long_as_its_endpoint_asks() -> None:
    breaker, pauses = Breaker(), []
    for _ in range(7):
        breaker = breaker.failed(failure(), 10.0)
        pauses.append(breaker.until_s - 10.0)
    assert pauses == [30.0, 60.0, 120.0, 240.0, 480.0, 900.0, 900.0]
    assert breaker.failures == 7
    asked_to_wait = Breaker().failed(failure(retry_after_s=3600.0), 10.0)
    assert (asked_to_wait.is_open(3609.0), asked_to_wait.is_open(3610.0)) == (True, False)
    assert Breaker().failed(failure(retry_after_s=31_536_000.0), 0.0).until_s == 86_400.0, "a year by mistake"
    assert Breaker(2000).failed(failure(), 0.0).until_s == 900.0


def chain_of(breakers: list[Breaker], usable: set[int]) -> LlmEndpoint:
    """Return the first endpoint of a chain in which only the `usable` ones take tools."""
    names = [f"{'gpt-4o' if at in usable else 'o1-mini'}:{at}" for at in range(len(breakers))]
    first, *others = (LlmSettings(base_url="http://127.0.0.1:1/v1", model=name) for name in names)
    endpoint = LlmEndpoint(replace(first, then=tuple(others)))
    for each, breaker in zip(endpoint.chain, breakers, strict=True):
        each.breaker = breaker
    return endpoint


@each_case(
    "breakers, usable, first",
    [
        ([CLOSED, CLOSED], {0, 1}, 0),
        ([OPEN, CLOSED], {0, 1}, 1),
        ([OVER, CLOSED], {0, 1}, 0),
        ([OPEN, OPEN, OVER], {0, 1, 2}, 2),
        ([OPEN, OPEN], {0, 1}, 0),
        ([OPEN], {0}, 0),
        ([OPEN, CLOSED, CLOSED], {0, 2}, 2),
        ([OPEN, CLOSED], {0}, 0),
        ([CLOSED, CLOSED], set(), 0),
    ],
)
def test_a_turn_begins_with_the_first_usable_model_that_is_not_left_alone(
    breakers: list[Breaker], usable: set[int], first: int
) -> None:
    endpoint = chain_of(breakers, usable)
    assert endpoint.chain.index(endpoint.first(10.0, tools=True)) == first


@each_case(
    "breakers, tried, usable, following",
    [
        ([OPEN, CLOSED, CLOSED], {0}, {0, 1, 2}, 1),
        ([OPEN, OPEN, CLOSED], {0}, {0, 1, 2}, 2),
        ([OPEN, OPEN, OPEN], {0}, {0, 1, 2}, 1),
        ([CLOSED, OPEN], {1}, {0, 1}, 0),
        ([OPEN, CLOSED], {0}, {0}, None),
        ([OPEN, CLOSED], {0, 1}, {0, 1}, None),
        ([CLOSED], {0}, {0}, None),
    ],
)
def test_each_model_is_asked_once_those_that_are_left_alone_last(
    breakers: list[Breaker], tried: set[int], usable: set[int], following: int | None
) -> None:
    endpoint = chain_of(breakers, usable)
    found = endpoint.after([endpoint.chain[at] for at in tried], 10.0, tools=True)
    assert found is (None if following is None else endpoint.chain[following])


def test_the_last_failure_tells_of_the_others() -> None:
    assert after_all([failure()]) == failure()
    assert after_all([failure(at="a"), failure(at="b")]).message == (
        "b is down (before that a at http://a: a is down)"
    )


@pytest.mark.parametrize("now", [0.0, 4.9])
def test_a_breaker_is_open_until_its_time(now: float) -> None:
    assert OVER.is_open(now)
    assert not OVER.is_open(5.0)
