"""`Run`: the state of one run of the skill agent, which the parts of the agent share."""

import math
import time

from msgspec import Struct, field

from grue import Recorder, Runner
from grue.actions import ActionRegistry, StepExecutionResult
from grue.facts import Fact
from grue.hosts.skill_agent.configuration import AgentConfig
from grue.hosts.skill_agent.facts import ApprovalsAsked
from grue.hosts.skill_agent.mcp_manager import McpManager, McpToolInfo
from grue.skills import Skills
from grue.traces import RunFolder


class Run(Struct, kw_only=True):
    """One run.

    Attributes:
        began: When it began, in monotonic seconds; earlier if it was resumed.
        folder: The run folder; `None`: nothing is written.
        manager: The connected servers; `None`: there are none.
        stream: Whether replies are streamed.
        turn: Number of the turn whose actions are carried out; 0: the first reply is not there yet.
        turns: How many replies were acted upon.
        results: The results of the steps so far, in order.
        asked: The approvals for which the run is parked; `None`: it is not.
    """

    run_id: str
    task: str
    began: float
    config: AgentConfig
    registry: ActionRegistry
    recorder: Recorder
    runner: Runner
    skills: Skills
    folder: RunFolder | None = None
    manager: McpManager | None = None
    stream: bool = False
    turn: int = 0
    turns: int = 0
    results: list[StepExecutionResult] = field(default_factory=list)
    asked: ApprovalsAsked | None = None

    @property
    def left_s(self) -> float:
        """How much of the run's time is left, in seconds; infinite without a limit."""
        limit_s = self.config.limits.time_limit_seconds
        return math.inf if limit_s is None else self.began + limit_s - time.monotonic()

    @property
    def tools(self) -> list[McpToolInfo]:
        """The tools of the connected servers."""
        return [] if self.manager is None else self.manager.tools

    def note(self, fact: Fact, turn: int = 0) -> None:
        """Record a fact."""
        self.recorder.record(fact, sender="host", turn=turn)
