"""The facts that the skill agent records: its servers, steps and skills, and how a run begins and ends.

Each fact about MCP is an event, too, with the name that programs which read `events.jsonl` expect.
"""

from typing import ClassVar, Literal, TypeAlias

from grue import hosting
from grue.hosting import (
    ActionsPlanned,
    ApprovalsAsked,
    EventFact,
    Fact,
    LogLevel,
    McpConnectionFailed,
    McpServerAbsent,
    McpServersConnected,
    McpServersDisconnected,
    McpToolCallCompleted,
    McpToolCallFailed,
    McpToolCallStarted,
    McpToolShadowed,
    StepEnded,
    StepStarted,
    register_facts,
)

EndReason: TypeAlias = Literal[
    "finished",
    "gave_up",
    "parked",
    "turn_limit",
    "step_limit",
    "time_limit",
    "budget",
    "step_failed",
    "failed",
    "interrupted",
]
"""Why a run ended. `gave_up`: the model says that it could not do the task. `step_failed`: the configuration
says that a failed step ends the run. `failed`: the model could not be asked."""

_SHORT = 80


class SkillProblem(EventFact, frozen=True, kw_only=True, tag="skillagent.SkillProblem"):
    """A skill was left out, or names tools that do not exist."""

    event: ClassVar[str] = "skill_problem"
    level: ClassVar[LogLevel] = "warning"

    problem: str

    def summary(self) -> str:
        """Return the problem."""
        return self.problem


class RunStarted(hosting.EpisodeStarted, frozen=True, kw_only=True, tag="EpisodeStarted"):
    """A run begins with a task."""

    task: str

    @property
    def title(self) -> str:
        """The beginning of the task."""
        return _short(self.task)


class RunEnded(hosting.EpisodeEnded, frozen=True, kw_only=True, tag="EpisodeEnded"):
    """A run ends. `turns` are the replies that were acted upon."""

    reason: EndReason
    steps: int

    @property
    def failed(self) -> bool:
        """Whether failures ended the run."""
        return self.reason in ("failed", "step_failed")

    @property
    def result(self) -> str:
        """How many steps there were."""
        return f"{self.steps} steps"


def _short(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"


FACTS: tuple[type[Fact], ...] = (
    McpServersConnected,
    McpConnectionFailed,
    McpServerAbsent,
    McpToolShadowed,
    McpServersDisconnected,
    McpToolCallStarted,
    McpToolCallCompleted,
    McpToolCallFailed,
    SkillProblem,
    ActionsPlanned,
    StepStarted,
    StepEnded,
    ApprovalsAsked,
)

register_facts("skillagent", RunStarted, RunEnded, *FACTS)
