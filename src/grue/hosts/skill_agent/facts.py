"""The facts that the skill agent records: its servers, steps and skills, and how a run begins and ends.

Each fact about MCP is an event, too, with the name that programs which read `events.jsonl` expect.
"""

from typing import ClassVar, Literal, TypeAlias

import msgspec

from grue import facts
from grue.actions import PlannedAction, StepExecutionResult, StepStatus
from grue.approvals import ApprovalDecision, ApprovalQuestion
from grue.facts import EventFact, Fact, LogLevel, LogLine, Severity, counted, register_facts
from grue.messages import JsonObject

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


class McpServersConnected(EventFact, frozen=True, kw_only=True, tag="skillagent.McpServersConnected"):
    """The servers are connected, or those that could be. `tools` has the names that calls use."""

    event: ClassVar[str] = "mcp_servers_connected"

    servers: tuple[str, ...]
    tools: tuple[str, ...]

    def summary(self) -> str:
        """Return how many tools there are, and of which servers."""
        return f"{counted(len(self.tools), 'tool')} from {', '.join(self.servers) or 'no server'}"


class McpConnectionFailed(EventFact, frozen=True, kw_only=True, tag="skillagent.McpConnectionFailed"):
    """A server could not be connected.

    Attributes:
        server: The server; empty if the failure concerns none, as when the package `mcp` is absent.
        goes_on_with: The servers that are used without it.
    """

    event: ClassVar[str] = "mcp_connection_failed"
    level: ClassVar[LogLevel] = "warning"

    server: str
    error: str
    goes_on_with: tuple[str, ...] = ()

    def summary(self) -> str:
        """Return the error and what follows."""
        error = " ".join(self.error.splitlines())
        return f"{error} Going on with {', '.join(self.goes_on_with) or 'no MCP tools'}."


class McpServerAbsent(McpConnectionFailed, frozen=True, kw_only=True, tag="skillagent.McpServerAbsent"):
    """A server that may be absent could not be connected. The run goes on as if it were not configured."""

    level: ClassVar[LogLevel] = "info"


class McpToolShadowed(EventFact, frozen=True, kw_only=True, tag="skillagent.McpToolShadowed"):
    """Two servers have a tool of the same name. The bare name means the one of `server`."""

    event: ClassVar[str] = "mcp_tool_shadowed"
    level: ClassVar[LogLevel] = "warning"

    tool: str
    server: str
    shadowed: str

    def summary(self) -> str:
        """Return both servers and the names to use."""
        return (
            f"{self.server} and {self.shadowed} both have a tool {self.tool!r}: {self.tool} means that of"
            f" {self.server}, and {self.shadowed}.{self.tool} the other one"
        )


class McpServersDisconnected(EventFact, frozen=True, kw_only=True, tag="skillagent.McpServersDisconnected"):
    """The servers were disconnected. `error` says what failed in it; the run goes on regardless."""

    event: ClassVar[str] = "mcp_servers_disconnected"

    error: str = ""

    def summary(self) -> str:
        """Return the error, if there was one."""
        return f"MCP servers disconnected{f': {self.error}' if self.error else ''}"


class _CallFact(EventFact, frozen=True, kw_only=True):
    """Base of the facts about a call. `number` is that of its step; `tool_name` is as the model wrote it."""

    turn: int
    number: int
    tool_name: str


class McpToolCallStarted(_CallFact, frozen=True, kw_only=True, tag="skillagent.McpToolCallStarted"):
    """A tool is called."""

    event: ClassVar[str] = "mcp_tool_call_started"

    server_name: str


class McpToolCallCompleted(_CallFact, frozen=True, kw_only=True, tag="skillagent.McpToolCallCompleted"):
    """A tool has given a result; `status` is `failed` if the result is an error."""

    event: ClassVar[str] = "mcp_tool_call_completed"

    server_name: str
    status: StepStatus
    duration_s: float
    artifact: str = ""


class McpToolCallFailed(_CallFact, frozen=True, kw_only=True, tag="skillagent.McpToolCallFailed"):
    """A tool gave no result: it timed out, its server died, or there was nothing to call."""

    event: ClassVar[str] = "mcp_tool_call_failed"
    level: ClassVar[LogLevel] = "warning"

    error: str


class SkillProblem(EventFact, frozen=True, kw_only=True, tag="skillagent.SkillProblem"):
    """A skill was left out, or names tools that do not exist."""

    event: ClassVar[str] = "skill_problem"
    level: ClassVar[LogLevel] = "warning"

    problem: str

    def summary(self) -> str:
        """Return the problem."""
        return self.problem


class _TurnFact(Fact, frozen=True, kw_only=True):
    """Base of the facts about the actions of a turn, which are carried out after it."""

    between_turns: ClassVar[bool] = True

    turn: int


class ActionsPlanned(_TurnFact, frozen=True, kw_only=True, tag="skillagent.ActionsPlanned"):
    """The actions of a reply, before the first of them is carried out."""

    thought: str
    actions: tuple[PlannedAction, ...]

    def summary(self) -> str:
        """Return the types of the actions."""
        return ", ".join(f"{each.step} {each.type}" for each in self.actions) or "no usable reply"

    def headline(self) -> str:
        """Return the types of the actions."""
        return ", ".join(each.type for each in self.actions)

    def log_lines(self) -> tuple[LogLine, ...]:
        """Return `actions_planned`."""
        return (LogLine("info", "actions_planned", f"Actions: {self.summary()}", self.log_fields()),)


class StepStarted(_TurnFact, frozen=True, kw_only=True, tag="skillagent.StepStarted"):
    """An action is carried out. It is on file before anything happens."""

    number: int
    action: str
    target: str

    def summary(self) -> str:
        """Return number, action and target."""
        return f"step {self.number}: {self.action} {self.target}".rstrip()

    def log_lines(self) -> tuple[LogLine, ...]:
        """Return nothing: the logs have the end of the step."""
        return ()


class StepEnded(_TurnFact, frozen=True, kw_only=True, tag="skillagent.StepEnded"):
    """The result of an action."""

    result: StepExecutionResult

    def summary(self) -> str:
        """Return number, status, and the error or the beginning of the output."""
        result = self.result
        said = result.error or result.output
        return f"step {result.step}: {result.action} {result.status}{f': {_short(said)}' if said else ''}"

    def severity(self) -> Severity:
        """Return how serious the status is."""
        severities: dict[StepStatus, Severity] = {"completed": "good", "failed": "fail", "skipped": "quiet"}
        return severities.get(self.result.status, "warn")

    def mark(self) -> str:
        """Return the status if the action was not completed."""
        return "" if self.result.status in ("completed", "skipped") else f"step {self.result.status}"

    def log_lines(self) -> tuple[LogLine, ...]:
        """Return `step_completed`, or `step_failed` and the like."""
        level: LogLevel = "info" if self.result.status in ("completed", "skipped") else "warning"
        fields: JsonObject = msgspec.to_builtins(self.result)
        return (LogLine(level, f"step_{self.result.status}", self.summary(), fields),)


class ApprovalsAsked(_TurnFact, frozen=True, kw_only=True, tag="skillagent.ApprovalsAsked"):
    """The policy asked about actions. `parked`: the run ends, and waits for decisions until `expires_at`."""

    questions: tuple[ApprovalQuestion, ...]
    decisions: tuple[ApprovalDecision, ...] = ()
    parked: bool = False
    expires_at: float | None = None

    def summary(self) -> str:
        """Return the names of the tools, and what was decided."""
        decided = {each.call_id: each.verdict for each in self.decisions}
        said = (f"{each.name}: {decided.get(each.call_id, 'no answer')}" for each in self.questions)
        return f"{', '.join(said)}{' (parked)' if self.parked else ''}"


class RunStarted(facts.EpisodeStarted, frozen=True, kw_only=True, tag="EpisodeStarted"):
    """A run begins with a task."""

    task: str

    @property
    def title(self) -> str:
        """The beginning of the task."""
        return _short(self.task)


class RunEnded(facts.EpisodeEnded, frozen=True, kw_only=True, tag="EpisodeEnded"):
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
