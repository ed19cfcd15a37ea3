"""Run thousands of episodes: which model, prompt, tool or setting works better, and at what cost?

    def play(case: dict, episode: Episode) -> float: ...

    Fleet("runs/sweep").map(play, [{"model": "a"}, {"model": "b"}], repetitions=20)

Another call of `map` does not play the episodes that have a result; see `docs/guides/fleet.md`.
"""

from grue.fleet.broker import Amount, FleetBudget, Rate, ServerCap
from grue.fleet.driver import Finished, Tally
from grue.fleet.fleet import Fleet, FleetOptions
from grue.fleet.prompts import PromptTable, compare_prompts
from grue.fleet.results import Result
from grue.fleet.scoring import FinishedEpisode
from grue.fleet.sweep import Sweep, read_sweep
from grue.fleet.work import Episode, work
from grue.protocol.turn.prices import Price

__all__ = [
    "Amount",
    "Episode",
    "Finished",
    "FinishedEpisode",
    "Fleet",
    "FleetBudget",
    "FleetOptions",
    "Price",
    "PromptTable",
    "Rate",
    "Result",
    "ServerCap",
    "Sweep",
    "Tally",
    "compare_prompts",
    "read_sweep",
    "work",
]
