"""Count what the requests of one attempt cost, for its result; the broker counts for the whole fleet."""

import contextlib
import threading
from collections.abc import Iterator, Mapping

from grue.fleet.broker import Amount
from grue.protocol.turn.prices import Price, price_of
from grue.transports.llm.exchange import (
    Permit,
    RequestGate,
    RequestOutcome,
    WantedRequest,
    request_gate,
    set_request_gate,
)

_NETWORK = frozenset({"unreachable", "unavailable", "timed_out"})
_ACCOUNT = frozenset({"key", "credit"})


def may_pass(kind: str, reason: str | None) -> bool:
    """Return whether the network, the endpoint, the key or the account was at fault, not the model."""
    return kind in _NETWORK or reason in _ACCOUNT


class RequestCount:
    """A `RequestGate` that counts the cost of requests, and lets another gate admit them. Thread-safe."""

    def __init__(self, inner: RequestGate | None, prices: Mapping[str, Price]) -> None:
        self._inner = inner
        self._prices = prices
        self._lock = threading.Lock()
        self.spent = Amount()
        self.refused = ""
        self.waiting = 0

    async def admit(self, wanted: WantedRequest) -> Permit | str:
        """Ask the gate `inner`; return a permit whose `settle` counts the cost, or the refusal's reason."""
        permit = await self.admit_only(wanted)
        return permit if isinstance(permit, str) else _Counted(self, permit, wanted.model)

    async def admit_only(self, wanted: WantedRequest) -> Permit | str | None:
        """Ask the gate `inner`, if any. The caller has to count the cost with `add` after the request."""
        with self._lock:
            self.waiting += 1
        permit = None if self._inner is None else await self._inner.admit(wanted)
        with self._lock:  # not reached if this call is cancelled: the request then stays in `waiting`
            self.waiting -= 1
        if isinstance(permit, str):
            self.refused = permit
        return permit

    def add(self, model: str, outcome: RequestOutcome) -> None:
        """Count a request that has ended, with its cost."""
        money = outcome.cost_by(price_of(self._prices, model))
        tokens = (outcome.input_tokens or 0) + (outcome.output_tokens or 0)
        with self._lock:
            self.spent += Amount(int(outcome.sent), tokens, money or 0.0)


class _Counted:
    def __init__(self, count: RequestCount, permit: Permit | None, model: str) -> None:
        self._count = count
        self._permit = permit
        self._model = model

    def settle(self, outcome: RequestOutcome) -> None:
        self._count.add(self._model, outcome)
        if self._permit is not None:
            self._permit.settle(outcome)


@contextlib.contextmanager
def requests_counted(prices: Mapping[str, Price]) -> Iterator[RequestCount]:
    """Count the requests of this process within the block."""
    inner = request_gate()
    count = RequestCount(inner, prices)
    set_request_gate(count)
    try:
        yield count
    finally:
        set_request_gate(inner)
