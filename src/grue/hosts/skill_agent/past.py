"""Read from a trace how far a run got, so that the run can go on."""

from pathlib import Path
from typing import Any

from msgspec import field

from grue import hosting
from grue import messages as m
from grue.hosting import Envelope
from grue.hosts.skill_agent.facts import ActionsPlanned, ApprovalsAsked, RunStarted, StepEnded, StepStarted
from grue.hosts.skill_agent.registry import StepExecutionResult


class RunPast(hosting.Past[RunStarted], kw_only=True):
    """The recorded part of a run."""

    plan: ActionsPlanned | None = None
    plans: int = 0  # replies, including unusable ones
    results: list[StepExecutionResult] = field(default_factory=list)
    begun: int = 0  # the step that was under way when the process ended
    last_turn: int = 0  # which may not have ended
    asked: ApprovalsAsked | None = None  # what the run waits for

    def take_fact(self, envelope: Envelope[Any]) -> None:
        """Update this object from the next envelope of the trace."""
        match envelope.body:
            case m.RunTurn():
                self.last_turn = max(self.last_turn, envelope.turn)
            case ActionsPlanned() as plan:
                self.plan, self.end = plan, None
                self.plans += 1
            case StepStarted(number=number):
                self.begun, self.asked = number, None
            case StepEnded(result=result):
                self.results.append(result)
                self.begun, self.asked = 0, None
            case ApprovalsAsked() as asked:
                self.asked = asked if asked.parked else None


def read_run(path: Path) -> RunPast:
    """Read how far a run got. `path` is its folder or the trace in the folder."""
    needed = (ActionsPlanned, StepEnded)
    return RunPast.read(path, needed=needed, started=RunStarted, over=("finished", "gave_up"))
