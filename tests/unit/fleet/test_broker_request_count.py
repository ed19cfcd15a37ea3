"""What the requests of an attempt cost, with and without a broker."""

import anyio
import pytest

from grue.fleet.broker import Amount, Price, RequestCount, requests_counted
from grue.transports.llm.exchange import (
    Permit,
    RequestOutcome,
    WantedRequest,
    permit_for,
    request_gate,
)

WANTED = WantedRequest(model="m", prompt_bytes=10)
PRICES = {"m": Price(input=1.0, output=2.0, cached=0.1)}


class Gate:
    """A gate that grants as told, and notes what was settled."""

    def __init__(self, refused: str = "") -> None:
        self.refused = refused
        self.settled: list[RequestOutcome] = []

    async def admit(self, wanted: WantedRequest) -> Permit | str:
        return self.refused or self

    def settle(self, outcome: RequestOutcome) -> None:
        self.settled.append(outcome)


def test_tokens_and_money_are_counted_and_the_broker_hears_of_them() -> None:
    gate = Gate()
    count = RequestCount(gate, PRICES)
    outcomes = [
        RequestOutcome(status=200, input_tokens=100, output_tokens=10),
        RequestOutcome(status=200, input_tokens=1, output_tokens=1, cost_usd=0.5),
        RequestOutcome(status=200, input_tokens=100, output_tokens=10, cached_tokens=90),
        RequestOutcome(status=429),
        RequestOutcome(sent=False),
    ]
    for outcome in outcomes:
        permit = anyio.run(count.admit, WANTED)
        assert not isinstance(permit, str)
        permit.settle(outcome)
    assert count.spent == Amount(4, 222, pytest.approx(0.500159))
    assert gate.settled == outcomes


def test_a_refusal_costs_nothing() -> None:
    count = RequestCount(Gate("no"), PRICES)
    assert anyio.run(count.admit, WANTED) == "no"
    assert count.spent == Amount()


def test_the_requests_of_a_block_are_counted_without_any_gate() -> None:
    with requests_counted({}) as count:
        for permit in (anyio.run(permit_for, WANTED), anyio.run(permit_for, WANTED)):
            assert permit is not None
            assert not isinstance(permit, str)
            permit.settle(RequestOutcome(status=200, input_tokens=2, output_tokens=3))
    assert (count.spent, request_gate()) == (Amount(2, 10), None)
