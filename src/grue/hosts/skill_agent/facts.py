# ruff: noqa: D102 - `Fact` says what its methods return
"""The facts that the skill agent records: its servers, steps and skills, and how a run begins and ends.

Programs look for the names of events in `events.jsonl`, so a name must not change.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Struct

from grue import ApprovalDecision, ApprovalQuestion, hosting
from grue import messages as m
from grue.hosting import Envelope, Fact, LogLine, Severity, register_facts
from grue.hosts.skill_agent.registry import PlannedAction, StepExecutionResult, StepStatus
from grue.runtime.safe_text import clipped

LogLevel: TypeAlias = Literal["info", "warning", "error"]

EndReason: TypeAlias = Literal[
    "finished", "gave_up", "parked", "turn_limit", "step_limit", "time_limit", "budget", "step_failed",
    "failed", "interrupted",
]  # fmt: skip
"""Why a run ended. `gave_up`: the model says that it could not do the task. `step_failed`: the configuration
says that a failed step ends the run. `failed`: an error, such as one in asking the model, ended the run."""

_SHORT = 80


class EventFact(Fact, frozen=True, kw_only=True):
    """Base of the facts that are logged as one event each, with the name `event` and the level `level`."""

    between_turns: ClassVar[bool] = True
    event: ClassVar[str] = ""
    level: ClassVar[LogLevel] = "info"

    def severity(self) -> Severity:
        severities: dict[LogLevel, Severity] = {"error": "fail", "warning": "warn"}
        return severities.get(self.level, "")

    def mark(self) -> str:
        return "" if self.level == "info" else self.event.replace("_", " ")

    def log_lines(self) -> tuple[LogLine, ...]:
        return (LogLine(self.level, self.event, self.summary(), self.log_fields()),)


class _TurnFact(Fact, frozen=True, kw_only=True):
    """Base of the facts about a turn's actions, which the host carries out after the turn."""

    between_turns: ClassVar[bool] = True

    turn: int


class ActionsPlanned(_TurnFact, frozen=True, kw_only=True, tag="skillagent.ActionsPlanned"):
    """The actions of a reply. Recorded before the first of them is carried out."""

    thought: str
    actions: tuple[PlannedAction, ...]
    # By tool name: the digest of the definition of each MCP tool that is called. All digests are empty if
    # tools have changed since the model saw them: then a call is made only if a person approves it.
    definitions: dict[str, str] = msgspec.field(default_factory=dict)

    def summary(self) -> str:
        return ", ".join(f"{each.step} {each.type}" for each in self.actions) or "no usable reply"

    def headline(self) -> str:
        return ", ".join(each.type for each in self.actions)

    def log_lines(self) -> tuple[LogLine, ...]:
        return (LogLine("info", "actions_planned", f"Actions: {self.summary()}", self.log_fields()),)


class StepStarted(_TurnFact, frozen=True, kw_only=True, tag="skillagent.StepStarted"):
    """An action begins. Recorded before the action is carried out."""

    number: int
    action: str
    target: str

    def summary(self) -> str:
        return f"step {self.number}: {self.action} {self.target}".rstrip()

    def log_lines(self) -> tuple[LogLine, ...]:
        """Return nothing: `StepEnded` logs the step."""
        return ()


class StepEnded(_TurnFact, frozen=True, kw_only=True, tag="skillagent.StepEnded"):
    """The result of an action."""

    result: StepExecutionResult

    def summary(self) -> str:
        result = self.result
        said = clipped(result.error or result.output, _SHORT)
        return f"step {result.step}: {result.action} {result.status}{f': {said}' if said else ''}"

    def severity(self) -> Severity:
        severities: dict[StepStatus, Severity] = {"completed": "good", "failed": "fail", "skipped": "quiet"}
        return severities.get(self.result.status, "warn")

    def mark(self) -> str:
        return "" if self.result.status in ("completed", "skipped") else f"step {self.result.status}"

    def log_lines(self) -> tuple[LogLine, ...]:
        level: LogLevel = "info" if self.result.status in ("completed", "skipped") else "warning"
        fields: m.JsonObject = msgspec.to_builtins(self.result)
        return (LogLine(level, f"step_{self.result.status}", self.summary(), fields),)


class ApprovalsAsked(_TurnFact, frozen=True, kw_only=True, tag="skillagent.ApprovalsAsked"):
    """Actions needed approval. If `parked`, the run ended before all `questions` were answered."""

    questions: tuple[ApprovalQuestion, ...]
    decisions: tuple[ApprovalDecision, ...] = ()
    parked: bool = False
    expires_at: float | None = None  # Unix time until which missing answers can be given

    def summary(self) -> str:
        decided = {each.call_id: each.verdict for each in self.decisions}
        said = (f"{each.name}: {decided.get(each.call_id, 'no answer')}" for each in self.questions)
        return f"{', '.join(said)}{' (parked)' if self.parked else ''}"


class McpServersConnected(EventFact, frozen=True, kw_only=True, tag="skillagent.McpServersConnected"):
    """The servers of the run that could be connected, and their tools."""

    event: ClassVar[str] = "mcp_servers_connected"

    servers: tuple[str, ...]
    tools: tuple[str, ...]
    tool_count: int = 0

    def summary(self) -> str:
        tools = "1 tool" if len(self.tools) == 1 else f"{len(self.tools)} tools"
        return f"{tools} from {', '.join(self.servers) or 'no server'}"


class McpConnectionFailed(EventFact, frozen=True, kw_only=True, tag="skillagent.McpConnectionFailed"):
    """A server could not be connected. If `server_name` is empty, no server could."""

    event: ClassVar[str] = "mcp_connection_failed"
    level: ClassVar[LogLevel] = "warning"

    server_name: str = ""
    error: str
    goes_on_with: tuple[str, ...] = ()  # the servers that were connected

    def summary(self) -> str:
        error = " ".join(self.error.splitlines())
        return f"{error} Going on with {', '.join(self.goes_on_with) or 'no MCP tools'}."


class McpServerAbsent(McpConnectionFailed, frozen=True, kw_only=True, tag="skillagent.McpServerAbsent"):
    """An optional server could not be connected. The run goes on without it."""

    level: ClassVar[LogLevel] = "info"


class McpToolShadowed(EventFact, frozen=True, kw_only=True, tag="skillagent.McpToolShadowed"):
    """Two servers have a tool of the same name. The bare name does not call the tool of `shadowed`."""

    event: ClassVar[str] = "mcp_tool_shadowed"
    level: ClassVar[LogLevel] = "warning"

    tool: str
    server: str
    shadowed: str

    def summary(self) -> str:
        return (
            f"{self.server} and {self.shadowed} both have a tool {self.tool!r}: {self.tool} means that of"
            f" {self.server}, and {self.shadowed}.{self.tool} the other one"
        )


class McpServersDisconnected(EventFact, frozen=True, kw_only=True, tag="skillagent.McpServersDisconnected"):
    """The servers were disconnected at the end of the run. If that failed, `error` says why."""

    event: ClassVar[str] = "mcp_servers_disconnected"

    servers: tuple[str, ...] = ()
    error: str = ""

    def summary(self) -> str:
        error = f": {self.error}" if self.error else ""
        return f"{', '.join(self.servers) or 'MCP servers'} disconnected{error}"


class _CallFact(EventFact, frozen=True, kw_only=True):
    """Base of the facts about a call of an MCP tool. `tool_name` is what the model wrote."""

    turn: int
    number: int = msgspec.field(default=0, name="step")  # 0 in old traces
    tool_name: str
    server_name: str = ""  # empty if no connected server has such a tool
    arguments: m.JsonObject = msgspec.field(default_factory=dict)

    @property
    def _name(self) -> str:
        named = self.tool_name.startswith(f"{self.server_name}.") or not self.server_name
        name = self.tool_name if named else f"{self.server_name}.{self.tool_name}"
        return clipped(name, _SHORT) or "mcp_call"


class McpToolCallStarted(_CallFact, frozen=True, kw_only=True, tag="skillagent.McpToolCallStarted"):
    """A tool is called."""

    event: ClassVar[str] = "mcp_tool_call_started"

    def summary(self) -> str:
        return f"step {self.number}: calling {self._name}"


class McpToolCallCompleted(_CallFact, frozen=True, kw_only=True, tag="skillagent.McpToolCallCompleted"):
    """A tool call has returned a result; `status` is `failed` if the result is an error."""

    event: ClassVar[str] = "mcp_tool_call_completed"

    status: StepStatus
    is_error: bool = False
    duration_ms: float = 0.0
    artifact: str = ""

    def summary(self) -> str:
        kept = f", in {self.artifact}" if self.artifact else ""
        result = "an error" if self.is_error else "a result"
        return f"step {self.number}: {self._name} gave {result} after {self.duration_ms / 1000:.3g} s{kept}"


class McpToolCallFailed(_CallFact, frozen=True, kw_only=True, tag="skillagent.McpToolCallFailed"):
    """A call gave no result, for example because it timed out, had no `tool_name`, or its server died."""

    event: ClassVar[str] = "mcp_tool_call_failed"
    level: ClassVar[LogLevel] = "warning"

    error: str
    duration_ms: float = 0.0

    def summary(self) -> str:
        return f"step {self.number}: {self._name} failed: {' '.join(self.error.splitlines())}"


class SkillProblem(EventFact, frozen=True, kw_only=True, tag="skillagent.SkillProblem"):
    """A skill was left out or names tools that do not exist, or a server's skills cannot be listed."""

    event: ClassVar[str] = "skill_problem"
    level: ClassVar[LogLevel] = "warning"

    problem: str

    def summary(self) -> str:
        return self.problem


class RunStarted(hosting.EpisodeStarted, frozen=True, kw_only=True, tag="EpisodeStarted"):
    """A run begins with a task. `time_limit_s` is the limit for the whole run."""

    title_is_content: ClassVar[bool] = True

    task: str
    time_limit_s: float | None = None

    @property
    def title(self) -> str:
        return clipped(self.task, _SHORT)


class RunEnded(hosting.EpisodeEnded, frozen=True, kw_only=True, tag="EpisodeEnded"):
    """A run ends. `turns` is the number of turns with a reply, also an unusable one."""

    reason: EndReason
    steps: int

    @property
    def failed(self) -> bool:
        return self.reason in ("failed", "step_failed")

    @property
    def result(self) -> str:
        return "1 step" if self.steps == 1 else f"{self.steps} steps"


FACTS: tuple[type[Fact], ...] = (
    McpServersConnected, McpConnectionFailed, McpServerAbsent, McpToolShadowed, McpServersDisconnected,
    McpToolCallStarted, McpToolCallCompleted, McpToolCallFailed,
    SkillProblem, ActionsPlanned, StepStarted, StepEnded, ApprovalsAsked,
)  # fmt: skip

register_facts("skillagent", RunStarted, RunEnded, *FACTS)


class FactEvents(Struct):
    """An observer that calls `on_event(name, fields)` for each log event of a fact of one of `kinds`."""

    on_event: Callable[[str, m.JsonObject], object]
    kinds: tuple[type[Fact], ...]

    def __call__(self, envelope: Envelope[Any], _line: bytes) -> None:
        if isinstance(envelope.body, self.kinds):
            for event in envelope.body.log_lines():
                self.on_event(event.event, event.fields)
