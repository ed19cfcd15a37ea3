"""Count what an episode has spent on its model, and compute what the next turn may spend."""

from typing import TypeVar

from msgspec import Struct

from grue import messages as m
from grue.errors import BudgetSpent
from grue.policies import Budget


class Spent(Struct, frozen=True, kw_only=True):
    """The requests, tokens and cost of the finished turns of an episode."""

    requests: int = 0
    usage: m.Usage = m.Usage()

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.usage.input_tokens + self.usage.output_tokens

    def plus(self, requests: int, usage: m.Usage) -> "Spent":
        """Return the total with one more turn added."""
        return Spent(requests=self.requests + requests, usage=self.usage + usage)

    def reached(self, episode: Budget) -> str:
        """Return a sentence that names the limit that is reached, or an empty text if none is."""
        for limit, spent, what in (
            (episode.requests, self.requests, "requests"),
            (episode.tokens, self.tokens, "tokens"),
            (episode.cost_usd, self.usage.cost_usd or 0.0, "USD"),
        ):
            if limit is not None and spent >= limit:
                return f"the episode's budget is spent: {spent:g} of {limit:g} {what}"
        return ""

    def left(self, episode: Budget, turn: Budget) -> Budget:
        """Return the budget of a turn: its own or the rest of the episode's, whichever is less.

        Raises:
            BudgetSpent: The episode's budget is spent.
        """
        reached = self.reached(episode)
        if reached:
            advice = "Raise the limit in Runner(budget=...) or [tool.grue.budget]."
            raise BudgetSpent(f"No further turn can be run: {reached}.\n{advice}")
        cost = self.usage.cost_usd or 0.0
        return Budget(
            requests=_lesser(turn.requests, episode.requests, self.requests),
            tokens=_lesser(turn.tokens, episode.tokens, self.tokens),
            cost_usd=_lesser(turn.cost_usd, episode.cost_usd, cost),
        )


N = TypeVar("N", int, float)


def _lesser(own: N | None, of_all: N | None, spent: N) -> N | None:
    left = None if of_all is None else of_all - spent
    return min((limit for limit in (own, left) if limit is not None), default=None)
