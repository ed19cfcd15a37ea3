"""The broker's arithmetic: what may start, and what it costs."""

import itertools
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.errors import FleetError
from grue.fleet.broker import (
    Amount,
    Broker,
    FleetBudget,
    Limits,
    NotYet,
    Rate,
    Refused,
)
from grue.protocol.turn.prices import Price
from grue.transports.llm.exchange import RequestOutcome, WantedRequest

PRICES = {"m": Price(input=1.0, output=2.0)}
WANTED = WantedRequest(model="m", prompt_bytes=1000, max_tokens=500)
DONE = RequestOutcome(status=200, input_tokens=200, output_tokens=100)


def granted(broker: Broker, wanted: WantedRequest = WANTED, now: float = 0.0) -> Amount:
    answer = broker.ask(wanted, now)
    assert isinstance(answer, Amount)
    return answer


def test_a_request_reserves_the_most_it_can_cost_and_is_charged_what_it_cost() -> None:
    broker = Broker(Limits(FleetBudget(money_usd=1.0, prices=PRICES)))
    reserved = granted(broker)
    assert reserved == Amount(1, 1500, 0.002)
    assert broker.settle(reserved, DONE, "m", 1.0) == Amount(1, 300, 0.0004)
    assert (broker.spent, broker.reserved) == (Amount(1, 300, 0.0004), Amount(0, 0, 0.0))


def test_a_request_that_is_too_large_for_what_is_left_is_said_with_its_size() -> None:
    answer = Broker(Limits(FleetBudget(tokens=1_250_000)), spent=Amount(1, 1_249_000)).ask(WANTED, 0.0)
    assert isinstance(answer, Refused)
    assert "limit of 1250000 tokens is used up: 1249000 are spent, and the next request may" in answer.why
    assert answer.why.endswith("may cost 1500")


def test_tokens_from_the_cache_are_charged_with_their_own_price() -> None:
    broker = Broker(
        Limits(FleetBudget(money_usd=1.0, prices={"m": Price(input=1.0, output=2.0, cached=0.1)}))
    )
    said = RequestOutcome(status=200, input_tokens=200, output_tokens=100, cached_tokens=100)
    assert broker.settle(granted(broker), said, "m", 1.0).money_usd == pytest.approx(0.00031)


def test_what_the_endpoint_says_it_cost_counts_before_the_price() -> None:
    broker = Broker(Limits(FleetBudget(money_usd=1.0, prices=PRICES)))
    said = RequestOutcome(status=200, input_tokens=1, output_tokens=1, cost_usd=0.5)
    assert broker.settle(granted(broker), said, "m", 1.0).money_usd == 0.5


def test_money_is_never_exceeded_and_a_request_waits_for_one_that_may_cost_less() -> None:
    broker = Broker(Limits(FleetBudget(money_usd=0.003, prices=PRICES)))
    reserved = granted(broker)
    assert broker.ask(WANTED, 0.0) == NotYet(None)
    broker.settle(reserved, DONE, "m", 1.0)
    second = granted(broker, now=1.0)
    broker.settle(second, RequestOutcome(), "m", 2.0)
    answer = broker.ask(WANTED, 2.0)
    assert isinstance(answer, Refused)
    assert "limit of 0.003 US dollars is used up" in answer.why


def test_without_a_price_or_max_tokens_a_budget_in_money_refuses() -> None:
    broker = Broker(Limits(FleetBudget(money_usd=1.0, prices=PRICES)))
    for wanted, missing in (
        (WantedRequest(model="other", prompt_bytes=1, max_tokens=1), "its price"),
        (WantedRequest(model="m", prompt_bytes=1), "max_tokens"),
    ):
        answer = broker.ask(wanted, 0.0)
        assert isinstance(answer, Refused)
        assert missing in answer.why


def test_with_a_limit_on_requests_those_of_unknown_cost_start_until_it_is_reached() -> None:
    broker = Broker(Limits(FleetBudget(money_usd=1.0, requests=2)))
    first, second = granted(broker), granted(broker)
    assert first == Amount(1, 1500, 0.0)
    broker.settle(first, DONE, "m", 1.0)
    broker.settle(second, DONE, "m", 1.0)
    answer = broker.ask(WANTED, 2.0)
    assert isinstance(answer, Refused)
    assert "limit of 2 requests is used up" in answer.why


def test_the_cost_that_the_endpoint_says_counts_where_there_is_no_price() -> None:
    broker = Broker(Limits(FleetBudget(money_usd=1.0, requests=100)))
    said = RequestOutcome(status=200, input_tokens=1, output_tokens=1, cost_usd=1.5)
    broker.settle(granted(broker), said, "m", 1.0)
    answer = broker.ask(WANTED, 2.0)
    assert isinstance(answer, Refused)
    assert "limit of 1 US dollar is used up" in answer.why


def test_a_price_may_be_that_of_a_pattern() -> None:
    broker = Broker(Limits(FleetBudget(money_usd=1.0, prices={"*": Price(input=1.0, output=2.0)})))
    assert granted(broker).money_usd > 0


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda: FleetBudget(money_usd=1.0), "money_usd needs the prices of the models"),
        (lambda: FleetBudget(money_usd=-1.0, requests=1), "money_usd is -1: a limit is a number, 0 or more"),
        (lambda: FleetBudget(requests=-3), "requests is -3"),
        (lambda: Rate(requests_per_minute=0), "requests_per_minute is 0: give a number above 0"),
        (lambda: Rate(concurrency=0), "concurrency is 0"),
        (lambda: FleetBudget(requests=-(10**400)), "requests is -1000"),
        (lambda: FleetBudget(tokens=10**5000), "tokens is an integer of 16,610 bits: a limit is a number"),
        (lambda: Rate(concurrency=-(10**5000)), "concurrency is an integer of 16,610 bits"),
    ],
)
def test_limits_that_cannot_be_kept_are_refused(wrong: Callable[[], object], error: str) -> None:
    with pytest.raises(FleetError, match=re.escape(error)):
        wrong()


def test_fractions_of_a_cent_leave_nothing_for_which_a_request_would_wait_for_ever() -> None:
    broker = Broker(Limits(FleetBudget(money_usd=0.000256, prices={"m": Price(input=0, output=1)})))
    costs = [granted(broker, WantedRequest(model="m", prompt_bytes=0, max_tokens=n)) for n in (100, 128)]
    assert sum(each.money_usd for each in costs) - costs[0].money_usd - costs[1].money_usd > 0
    for each in costs:
        broker.settle(each, RequestOutcome(sent=False), "m", 0.0)
    granted(broker, WantedRequest(model="m", prompt_bytes=0, max_tokens=256))


def test_a_lost_request_is_charged_in_full_and_one_that_was_not_sent_is_free() -> None:
    broker = Broker(Limits(FleetBudget(tokens=10_000)))
    assert broker.settle(granted(broker), RequestOutcome(), "m", 0.0) == Amount(1, 1500)
    assert broker.settle(granted(broker), RequestOutcome(sent=False), "m", 0.0) == Amount()
    assert broker.settle(granted(broker), RequestOutcome(status=500), "m", 0.0) == Amount(1)


def starts(broker: Broker, count: int, now: float, late_s: float = 0.0) -> list[float]:
    """Start so many requests, each as soon as the broker lets it, and then a little late."""
    times = []
    while len(times) < count:
        match broker.ask(WANTED, now):
            case NotYet(after_s):
                assert after_s is not None
                now += after_s + 1e-9
            case Amount():
                times.append(now)
                now += late_s
    return times


def test_no_second_has_more_than_its_share_also_after_a_pause() -> None:
    broker = Broker(Limits(rate=Rate(requests_per_minute=600)), window=1000)
    times = starts(broker, 50, now=0.0) + starts(broker, 50, now=60.0)
    assert all(times[at + 10] - times[at] > 1.0 for at in range(90))
    assert all(later - earlier > 0.025 for earlier, later in itertools.pairwise(times))
    assert times[49] < 5.1


def test_workers_that_start_late_do_not_lower_the_rate() -> None:
    broker = Broker(Limits(rate=Rate(requests_per_minute=600)), window=1000)
    times = starts(broker, 100, now=0.0, late_s=0.06)
    assert times[-1] < 10.3


def test_a_low_rate_is_spaced_evenly() -> None:
    broker = Broker(Limits(rate=Rate(requests_per_minute=30)), window=100)
    assert all(later - earlier > 2.0 for earlier, later in itertools.pairwise(starts(broker, 10, now=0.0)))


def test_tokens_of_a_minute_fill_up_and_unused_ones_come_back() -> None:
    broker = Broker(Limits(rate=Rate(tokens_per_minute=3000)), window=100)
    first = granted(broker)
    granted(broker)
    assert isinstance(broker.ask(WANTED, 0.0), NotYet)
    broker.settle(first, DONE, "m", 1.0)
    assert broker.ask(WANTED, 1.0) == NotYet((1500 - 1200 - 50) / 50)
    granted(broker, now=10.0)


def test_a_request_larger_than_a_minutes_tokens_starts_once_the_allowance_is_full() -> None:
    broker = Broker(Limits(rate=Rate(tokens_per_minute=100)))
    granted(broker)
    answer = broker.ask(WANTED, 60.0)
    assert isinstance(answer, NotYet)


def test_concurrency_doubles_until_an_overload_halves_it() -> None:
    broker = Broker(Limits())
    for _ in range(3):
        under_way = [granted(broker) for _ in range(int(broker.window))]
        assert broker.ask(WANTED, 0.0) == NotYet(None)
        for each in under_way:
            broker.settle(each, DONE, "m", 0.0)
    assert broker.window >= 8
    before = broker.window
    broker.settle(granted(broker), RequestOutcome(status=429, retry_after_s=7.0), "m", 10.0)
    assert broker.window == before / 2
    assert broker.ask(WANTED, 10.0) == NotYet(7.0)
    granted(broker, now=17.0)
    assert broker.overloads == 1


def test_an_overload_slows_the_requests_down_although_concurrency_limited_them_before() -> None:
    broker = Broker(Limits(rate=Rate(concurrency=4)))
    under_way: list[Amount] = []
    for _ in range(50):
        while isinstance(answer := broker.ask(WANTED, 0.0), Amount):
            under_way.append(answer)
        broker.settle(under_way.pop(), DONE, "m", 0.0)
    broker.settle(under_way.pop(), RequestOutcome(status=429), "m", 0.0)
    assert int(broker.window) == 2


def test_a_wait_of_a_year_that_an_endpoint_asks_for_stops_the_workers_for_ten_minutes_only() -> None:
    broker = Broker(Limits())
    broker.settle(granted(broker), RequestOutcome(status=429, retry_after_s=3e7), "m", 10.0)
    assert broker.ask(WANTED, 10.0) == NotYet(600.0)
    granted(broker, now=610.0)


def test_one_overload_of_many_requests_halves_once() -> None:
    broker = Broker(Limits(), window=8)
    under_way = [granted(broker) for _ in range(8)]
    for each in under_way:
        broker.settle(each, RequestOutcome(status=429), "m", 5.0)
    assert broker.window == 4


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3000),
            st.integers(1, 2000),
            st.sampled_from([200, 429, 500, None]),
            st.floats(0, 5),
        ),
        max_size=60,
    )
)
@pytest.mark.slow
def test_no_limit_is_ever_exceeded(requests: list[tuple[int, int, int | None, float]]) -> None:
    budget = FleetBudget(money_usd=0.02, tokens=20_000, requests=12, prices=PRICES)
    broker = Broker(Limits(budget, Rate(concurrency=3)))
    now, under_way = 0.0, []
    for size, max_tokens, status, later in requests:
        answer = broker.ask(WantedRequest(model="m", prompt_bytes=size, max_tokens=max_tokens), now)
        if isinstance(answer, Amount):
            under_way.append((answer, status, size, max_tokens))
        total = broker.spent + broker.reserved
        assert total.money_usd <= 0.02 + 1e-9
        assert total.tokens <= 20_000
        assert total.requests <= 12
        assert len(under_way) <= 3
        now += later
        if under_way and later > 1:
            reserved, answered, prompt, reply = under_way.pop(0)
            outcome = RequestOutcome(status=answered, input_tokens=prompt, output_tokens=reply)
            broker.settle(reserved, outcome, "m", now)
