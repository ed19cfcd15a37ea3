"""Decide which scores pass, and which score a failed episode counts with."""

from collections.abc import Iterable

from msgspec import Struct

from grue.errors import FleetError
from grue.fleet.results import Result


class Passing(Struct, frozen=True):
    """Which scores pass. `worst` is the worst one that passes; `None`: not known, so every score passes."""

    worst: float | None = 1.0
    lower_is_better: bool = False

    @classmethod
    def of(cls, scores: Iterable[float], worst: float | None, *, lower_is_better: bool) -> "Passing":
        """Return the rule for `scores`. Without `worst`, only the best passes if all are from 0 to 1."""
        known = list(scores)
        if worst is None and known and all(0 <= score <= 1 for score in known):
            worst = 0.0 if lower_is_better else 1.0
        return cls(worst, lower_is_better)

    def passes(self, score: float) -> bool:
        """Return whether a score passes."""
        if self.worst is None:
            return True
        return score <= self.worst if self.lower_is_better else score >= self.worst


def failed_score(found: Iterable[Result], failed_as: float | None, *, lower_is_better: bool) -> float:
    """Return `failed_as`. If `None`, return 0, or raise `FleetError` if lower is better and one failed."""
    if failed_as is not None:
        return failed_as
    failed = sum(each.outcome == "failed" for each in found) if lower_is_better else 0
    if failed:
        have = "1 episode has" if failed == 1 else f"{failed:,} episodes have"
        raise FleetError(
            f"{have} failed. As lower scores are better, 0 would be a good score for that: say with"
            " --failed-as (failed_as= in Python) which score a failed episode counts with."
        )
    return 0.0


def score_of(result: Result, name: str, failed_as: float) -> float | None:
    """Return the score that an episode counts with; `None`: it has no result, or it lacks this score."""
    if not result.played:
        return None
    return failed_as if result.outcome == "failed" else result.scores.get(name)
