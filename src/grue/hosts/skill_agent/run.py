"""The state of one run of the skill agent, and how to read from a trace how far a run got."""

import math
import time
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from grue import MCPError, Recorder, Runner, hosting
from grue import messages as m
from grue.hosting import Envelope, Fact, RunFolder
from grue.hosts.skill_agent.actions import MCP_CALL
from grue.hosts.skill_agent.configuration import AgentConfig
from grue.hosts.skill_agent.facts import ActionsPlanned, ApprovalsAsked, RunStarted, StepEnded, StepStarted
from grue.hosts.skill_agent.mcp_manager import McpManager, McpToolInfo
from grue.hosts.skill_agent.registry import ActionType, ActionTypes, StepExecutionResult
from grue.hosts.skill_agent.skills import USE_SKILL, Skills


class Run(Struct, kw_only=True):
    """The state of one run, which the parts of the agent share."""

    run_id: str
    task: str
    began: float  # by `time.monotonic`, minus the time that a resumed run lasted before
    config: AgentConfig
    registry: ActionTypes
    recorder: Recorder
    runner: Runner
    skills: Skills
    folder: RunFolder | None = None
    manager: McpManager | None = None
    stream: bool = False
    turn: int = 0  # the turn whose actions are carried out
    turns: int = 0  # replies, including unusable ones
    results: list[StepExecutionResult] = field(default_factory=list)
    asked: ApprovalsAsked | None = None  # the approvals for which the run is parked

    @property
    def left_s(self) -> float:
        """Seconds left of the run's time; infinite without a limit."""
        limit_s = self.config.limits.time_limit_seconds
        return math.inf if limit_s is None else self.began + limit_s - time.monotonic()

    @property
    def tools(self) -> list[McpToolInfo]:
        """The tools of the connected servers."""
        return [] if self.manager is None else self.manager.tools

    @property
    def offered(self) -> list[ActionType]:
        """The actions to offer: `mcp_call` only if there are tools, `use_skill` only if there are skills."""
        empty = {
            name for name, some in ((MCP_CALL, self.tools), (USE_SKILL.name, self.skills.by_name)) if not some
        }
        return [each for name, each in self.registry.types.items() if name not in empty]

    def note(self, fact: Fact | m.ServerNoted, turn: int = 0) -> None:
        """Record a fact or a note about a server; turn 0 stands for no turn."""
        self.recorder.record(fact, sender="host", turn=turn)


def error_text(error: Exception) -> str:
    """Return an exception's text, after the name of its class if the text may be unclear without it."""
    try:
        said = str(error).encode("utf-8", "replace").decode()
    except Exception:  # noqa: BLE001 - `__str__` of a program's own class may fail
        said = ""
    is_clear = said and isinstance(error, ValueError | OSError | MCPError | ImportError)
    return said if is_clear else f"{type(error).__name__}: {said}"


class RunPast(hosting.Past[RunStarted], kw_only=True):
    """The recorded part of a run."""

    plan: ActionsPlanned | None = None
    plans: int = 0  # turns with a reply, also an unusable one
    results: list[StepExecutionResult] = field(default_factory=list)
    begun: int = 0  # the step that was under way when the process ended
    last_turn: int = 0  # the number of the last turn that began; it may not have ended
    asked: ApprovalsAsked | None = None  # the approvals for which the run was parked

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
