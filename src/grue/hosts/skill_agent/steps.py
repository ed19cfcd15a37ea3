"""`StepRunner`: carries out one action at a time, and records what became of it.

A step is on file before anything happens, so that a run that was killed knows which action may have had an
effect.
"""

import time
from collections.abc import Callable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import MCPError, Recorder
from grue.facts import Fact
from grue.hosts.skill_agent.actions import MCP_CALL, ActionContext, ActionRegistry, McpCall
from grue.hosts.skill_agent.configuration import AgentConfig
from grue.hosts.skill_agent.facts import (
    McpToolCallCompleted,
    McpToolCallFailed,
    McpToolCallStarted,
    PlannedAction,
    StepEnded,
    StepExecutionResult,
    StepStarted,
    StepStatus,
)
from grue.hosts.skill_agent.mcp_manager import McpManager
from grue.hosts.skill_agent.prompt import cut
from grue.messages import ToolDefinition
from grue.sessions import hints_of
from grue.traces import RunFolder

INTERRUPTED = "the process was killed in this step; it may have had an effect, and is not repeated"
_TARGETS = ("tool_name", "path", "name")


class StepParts(Struct, frozen=True, kw_only=True):
    """The parts that steps use.

    Attributes:
        manager: The connected servers; `None`: there are none.
        folder: Where whole results are written; `None`: nowhere.
        left_s: Returns how much of the run's time is left, in seconds; infinite without a limit.
    """

    config: AgentConfig
    registry: ActionRegistry
    context: ActionContext
    manager: McpManager | None
    recorder: Recorder
    folder: RunFolder | None
    left_s: Callable[[], float]


class StepRunner:
    """Carries out actions.

    Attributes:
        turn: Number of the turn whose actions are carried out.
    """

    def __init__(self, parts: StepParts) -> None:
        self.turn = 0
        self._parts = parts

    def run(self, action: PlannedAction, tool: ToolDefinition | None) -> StepExecutionResult:
        """Carry out an action, again if the configuration says so and it cannot have had an effect.

        Raises:
            KeyboardInterrupt: Ctrl-C. The step is not recorded as ended.
        """
        self.note(
            StepStarted(turn=self.turn, number=action.step, action=action.type, target=target_of(action))
        )
        config, began = self._parts.config, time.monotonic()
        tries = 1 + (config.retries if config.on_step_failure == "retry" and is_repeatable(tool) else 0)
        for attempt in range(1, tries + 1):  # noqa: B007 - it is used after the loop
            result = self._call_tool(action) if action.type == MCP_CALL else self._act(action)
            if result.status != "failed" or self._parts.left_s() <= 0:
                break
        result = replace(result, attempts=attempt, duration_s=round(time.monotonic() - began, 6))
        return self.end(result)

    def end(self, result: StepExecutionResult) -> StepExecutionResult:
        """Record what became of an action, and return it with its turn."""
        result = replace(result, turn=self.turn)
        self.note(StepEnded(turn=self.turn, result=result))
        return result

    def note(self, fact: Fact) -> None:
        """Record a fact of the current turn."""
        self._parts.recorder.record(fact, sender="host", turn=self.turn)

    def _act(self, action: PlannedAction) -> StepExecutionResult:
        parts = self._parts
        try:
            params = parts.registry.params(action.type, action.params)
            output = parts.registry.types[action.type].run(params, parts.context)
        except (ValueError, OSError, MCPError) as error:
            return ended(action, "failed", error=str(error))
        whole = str(output)
        shown = cut(whole, parts.config.limits.result_chars)
        artifact = "" if shown == whole else self._keep(action, "txt", whole.encode("utf-8", "replace"))
        return ended(action, "completed", output=shown, artifact=artifact)

    def _call_tool(self, action: PlannedAction) -> StepExecutionResult:
        parts, manager = self._parts, self._parts.manager
        call: McpCall = parts.registry.params(MCP_CALL, action.params)
        if manager is None or not call.tool_name:
            missing = "mcp_call needs a tool_name." if manager is not None else "No MCP server is connected."
            return self._failed(action, call, missing)
        tool = manager.definition(call.tool_name)
        server = "" if tool is None else tool.server
        name = {"tool_name": call.tool_name, "server_name": server}
        self.note(McpToolCallStarted(turn=self.turn, number=action.step, **name))
        began = time.monotonic()
        try:
            limit_s = min(parts.config.tool_call_timeout_s, max(parts.left_s(), 0.001))
            result = manager.call_tool(call.tool_name, call.arguments, limit_s)
        except MCPError as error:
            return self._failed(action, call, str(error))
        artifact = self._keep(action, "json", msgspec.json.encode(result))
        status: StepStatus = "failed" if result.is_error else "completed"
        self.note(
            McpToolCallCompleted(
                turn=self.turn,
                number=action.step,
                **name,
                status=status,
                duration_s=round(time.monotonic() - began, 6),
                artifact=artifact,
            )
        )
        shown = cut(result.raw_text, parts.config.limits.result_chars)
        told = {"error": shown} if result.is_error else {"output": shown}
        return ended(action, status, artifact=artifact, **told)

    def _failed(self, action: PlannedAction, call: McpCall, error: str) -> StepExecutionResult:
        failed = McpToolCallFailed(turn=self.turn, number=action.step, tool_name=call.tool_name, error=error)
        self.note(failed)
        return ended(action, "failed", error=error)

    def _keep(self, action: PlannedAction, kind: str, content: bytes) -> str:
        """Write a whole result to a file, and return its name in the run folder."""
        folder = self._parts.folder
        name = f"{action.step:04}-{(target_of(action) or action.type)[:60]}.{kind}"
        return "" if folder is None else folder.keep(f"artifacts/{name.replace('/', '_')}", content)


def ended(
    action: PlannedAction, status: StepStatus, *, output: str = "", error: str = "", artifact: str = ""
) -> StepExecutionResult:
    """Return what became of an action."""
    return StepExecutionResult(
        step=action.step,
        action=action.type,
        target=target_of(action),
        status=status,
        output=output,
        error=error,
        artifact=artifact,
    )


def is_repeatable(tool: ToolDefinition | None) -> bool:
    """Return whether a call can be made again though it may have run: it changes nothing, or nothing further.

    A server's own word is enough here: what it does in two calls it could have done in one.
    """
    hints = hints_of(None if tool is None else tool.annotations)
    return hints.read_only or hints.idempotent


def target_of(action: PlannedAction) -> str:
    """Return what an action is about: a tool, a path, a skill; empty if nothing in particular."""
    found = (action.params.get(key) for key in _TARGETS)
    return next((value for value in found if isinstance(value, str) and value), "")
