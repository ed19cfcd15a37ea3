"""Decide which model of a chain is asked: a pure part of the LLM actor (`actors/llm.py`).

`LlmSettings.then` names the models that are asked if the first one cannot be. The rules:

- The next model is asked if a request has failed for good because its endpoint cannot be reached, answers
  with 5xx or 429, does not answer in time, or breaks its reply off: after its retries, and never after a
  reply was accepted. A refusal (a wrong key, an unknown model, a request that is too long) and a reply that
  cannot be read end the request: another model would hide them.
- A model that could not be asked is left alone for a while (the circuit breaker): 30 s, doubled with each
  failure in a row up to 15 minutes, or as long as its endpoint asks for. After that it is tried again, but
  without retries.
- A turn begins with the first model that is not left alone, and stays with the model that has answered.
- Within a request each model is asked once, those that are left alone last. A request with tools passes over
  models that take none.
"""

from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m

PAUSE_S, LONGEST_PAUSE_S = 30.0, 900.0
"""How long a model is left alone after its first failure, and at most."""

_CANNOT_BE_ASKED = frozenset({"unreachable", "unavailable", "timed_out", "damaged"})
_SHOWN = 300


class Breaker(Struct, frozen=True):
    """How often a model could not be asked in a row, and until when it is left alone.

    Attributes:
        failures: Failures since its last reply.
        until_s: On the event loop's clock.
    """

    failures: int = 0
    until_s: float = 0.0

    def failed(self, failure: m.LlmFailure, now_s: float) -> "Breaker":
        """Return the breaker after a request that failed for good."""
        pause = min(PAUSE_S * 2.0 ** min(self.failures, 10), LONGEST_PAUSE_S)
        return Breaker(self.failures + 1, now_s + max(pause, failure.retry_after_s or 0.0))

    def is_open(self, now_s: float) -> bool:
        """Return whether the model is left alone."""
        return now_s < self.until_s


def moves_on(failure: m.LlmFailure) -> bool:
    """Return whether another model may be asked after this failure."""
    return failure.kind in _CANNOT_BE_ASKED


def first_to_ask(breakers: Sequence[Breaker], now_s: float) -> int:
    """Return the position of the model that a turn begins with."""
    places = range(len(breakers))
    return next((at for at in places if not breakers[at].is_open(now_s)), 0)


def next_to_ask(
    breakers: Sequence[Breaker], now_s: float, tried: Collection[int], usable: Collection[int]
) -> int | None:
    """Return the position of the model to ask after those that were tried; `None`: there is none.

    Args:
        breakers: Of the whole chain.
        now_s: The time.
        tried: The models that this request has been sent to.
        usable: The models that take a request of this kind.
    """
    left = [at for at in range(len(breakers)) if at in usable and at not in tried]
    return min(left, key=lambda at: (breakers[at].is_open(now_s), at), default=None)


def after_all(failures: Sequence[m.LlmFailure]) -> m.LlmFailure:
    """Return the failure of a request that no model of the chain has answered: the last, with the others."""
    *before, last = failures
    if not before:
        return last
    others = "; ".join(f"{each.model} at {each.endpoint}: {each.message[:_SHOWN]}" for each in before)
    return replace(last, message=f"{last.message} (before that {others})")
