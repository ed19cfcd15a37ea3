"""The broker's rate over a minute of virtual time: many clients at an endpoint of 20 requests a second.

`benchmarks/fleet_rate.py` does the same with real processes, sockets and clocks.
"""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable

import pytest

from grue.fleet.broker import Amount, Broker, FleetBudget, Limits, NotYet, Rate, Refused
from grue.transports.llm.exchange import RequestOutcome, WantedRequest

CLIENTS, A_SECOND, SECONDS, FIRST_S = 64, 20, 60.0, 10.0
WANTED = WantedRequest(model="m", prompt_bytes=100, max_tokens=10)


class Minute:
    """Clients that send one request after another, and an endpoint that counts the last second."""

    def __init__(self, limits: Limits, seed: int) -> None:
        self.broker = Broker(limits)
        self.now = 0.0
        self.arrived: list[float] = []
        self.refused: list[float] = []
        self.given_up = 0
        self._asks_at = 0.0
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._waiting: deque[int] = deque(range(CLIENTS))
        self._window: deque[float] = deque()

    def run(self) -> None:
        self._ask()
        while self._events and self._events[0][0] < SECONDS:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def _at(self, after_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + after_s, next(self._numbers), event))

    def _ask(self) -> None:
        """Let the waiting clients ask, each until it has to wait."""
        while self._waiting:
            match self.broker.ask(WANTED, self.now):
                case Amount():
                    self._waiting.popleft()
                    self._at(self._random.uniform(0.0, 0.02), self._arrive)
                case NotYet(after_s):
                    if after_s is not None and self._asks_at <= self.now:
                        self._asks_at = self.now + after_s + 1e-6
                        self._at(after_s + 1e-6, self._ask)
                    return
                case _:
                    self._waiting.popleft()
                    self.given_up += 1

    def _arrive(self) -> None:
        while self._window and self._window[0] <= self.now - 1.0:
            self._window.popleft()
        status = 429 if len(self._window) >= A_SECOND else 200
        if status == 429:
            self.refused.append(self.now)
        else:
            self.arrived.append(self.now)
            self._window.append(self.now)
        self._at(self._random.uniform(0.3, 2.0) if status == 200 else 0.01, lambda: self._settle(status))

    def _settle(self, status: int) -> None:
        amount = self.broker.most(WANTED)
        assert not isinstance(amount, Refused)
        self.broker.settle(amount, RequestOutcome(status=status), "m", self.now)
        self._waiting.append(0)
        self._ask()


@pytest.mark.parametrize("seed", range(5))
def test_the_rate_is_used_and_hardly_ever_exceeded(seed: int) -> None:
    minute = Minute(Limits(rate=Rate(requests_per_minute=60 * A_SECOND)), seed)
    minute.run()
    late = [at for at in minute.arrived if at > FIRST_S]
    late_refused = [at for at in minute.refused if at > FIRST_S]
    assert len(late) > 0.9 * A_SECOND * (SECONDS - FIRST_S)
    assert len(late_refused) < 0.01 * len(late)


@pytest.mark.parametrize("seed", range(5))
def test_the_requests_of_the_budget_are_used_up_and_none_more(seed: int) -> None:
    limits = Limits(FleetBudget(requests=700), Rate(requests_per_minute=60 * A_SECOND))
    minute = Minute(limits, seed)
    minute.run()
    assert len(minute.arrived) + len(minute.refused) == 700
    assert minute.given_up == CLIENTS


def test_without_a_known_rate_the_429s_slow_the_clients_down() -> None:
    minute = Minute(Limits(rate=Rate(concurrency=CLIENTS)), seed=1)
    minute.run()
    late_refused = [at for at in minute.refused if at > FIRST_S]
    assert len(late_refused) < 0.1 * len(minute.arrived)
    assert len(minute.arrived) > 0.5 * A_SECOND * SECONDS
