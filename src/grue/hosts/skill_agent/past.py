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
    """The recorded part of a run.

    Attributes:
        plan: The planned actions of the last reply; `None`: there was no reply.
        plans: Number of replies, including unusable ones.
        begun: Number of the step that was under way when the process ended; 0: no step.
        last_turn: Number of the last turn, which may not have ended.
        asked: The approvals that the run waits for; `None`: it does not wait.
    """

    plan: ActionsPlanned | None = None
    plans: int = 0
    results: list[StepExecutionResult] = field(default_factory=list)
    begun: int = 0
    last_turn: int = 0
    asked: ApprovalsAsked | None = None

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
    """Read how far a run got. `path` is its folder or the trace in the folder.

    Raises:
        TraceError: The trace cannot be read or has no run, the model has finished the run and its result file
            is there, or a message that the resume needs was redacted.
    """
    needed = (ActionsPlanned, StepEnded)
    return RunPast.read(path, needed=needed, started=RunStarted, over=("finished", "gave_up"))
