"""`StepRunner`: carries out one action at a time, and records its result.

A step is on file before anything happens, so that a run that was killed knows which action may have had an
effect.
"""

import time
from typing import Any

import msgspec
from msgspec.structs import replace

from grue import messages as m
from grue.hosting import (
    ConfinedFolder,
    McpToolCallCompleted,
    McpToolCallFailed,
    McpToolCallStarted,
    PlannedAction,
    StepEnded,
    StepExecutionResult,
    StepStarted,
    StepStatus,
    hints_of,
)
from grue.hosting import results as tool_results
from grue.hosts.skill_agent.actions import MCP_CALL, ActionContext, McpCall
from grue.hosts.skill_agent.run import Run, error_text

INTERRUPTED = "the process was killed in this step; it may have had an effect, and is not repeated"


class StepRunner:
    """Carries out actions."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._context = ActionContext(workspace=ConfinedFolder(run.config.workspace), skills=run.skills)

    def carry_out(self, action: PlannedAction, tool: m.ToolDefinition | None) -> StepExecutionResult:
        """Carry out an action, again if the configuration says so and it cannot have had an effect.

        Raises:
            KeyboardInterrupt: Ctrl-C. The step is not recorded as ended.
        """
        run, began = self._run, time.monotonic()
        started = StepStarted(turn=run.turn, number=action.step, action=action.type, target=action.target)
        run.note(started, run.turn)
        retries = run.config.retries if run.config.on_step_failure == "retry" and is_repeatable(tool) else 0
        for attempt in range(1, retries + 2):  # noqa: B007 - it is used after the loop
            result = self._call_tool(action, tool) if action.type == MCP_CALL else self._act(action)
            if result.status != "failed" or run.left_s <= 0:
                break
        return self.end(replace(result, attempts=attempt, duration_s=_since(began)))

    def end(self, result: StepExecutionResult) -> StepExecutionResult:
        """Record the result of an action, and return it with its turn."""
        run = self._run
        result = replace(result, turn=run.turn)
        run.note(StepEnded(turn=run.turn, result=result), run.turn)
        run.results.append(result)
        return result

    def _act(self, action: PlannedAction) -> StepExecutionResult:
        run = self._run
        try:
            output = run.registry.carry_out(
                action.type, action.params, self._context, timeout_s=max(run.left_s, 0.0)
            )
        except Exception as error:  # noqa: BLE001 - an action may be a program's own; it fails, and the run goes on
            return action.ended("failed", error=error_text(error))
        shown = tool_results.without_middle(output, run.config.limits.result_chars)
        artifact = "" if shown == output else self._keep(action, "txt", output.encode("utf-8", "replace"))
        return action.ended("completed", output=shown, artifact=artifact)

    def _call_tool(self, action: PlannedAction, tool: m.ToolDefinition | None) -> StepExecutionResult:
        run = self._run
        call: McpCall = run.registry.params(MCP_CALL, action.params)
        about: dict[str, Any] = {
            "turn": run.turn,
            "number": action.step,
            "tool_name": call.tool_name,
            "server_name": "" if tool is None else tool.server,
            "arguments": call.arguments,
        }
        if run.manager is None:
            return self._failed(action, about, "No MCP server is connected.")
        if not call.tool_name:
            return self._failed(action, about, "mcp_call needs a tool_name.")
        run.note(McpToolCallStarted(**about), run.turn)
        began = time.monotonic()
        try:
            limit_s = min(run.config.tool_call_timeout_s, max(run.left_s, 0.001))
            result = run.manager.call_tool(
                call.tool_name, call.arguments, limit_s, turn=run.turn, definition=tool
            )
        except Exception as error:  # noqa: BLE001 - the call has failed, and the run goes on
            return self._failed(action, about, error_text(error), _since(began))
        artifact = self._keep(action, "json", msgspec.json.encode(result))
        status: StepStatus = "failed" if result.is_error else "completed"
        about |= {"is_error": result.is_error, "duration_ms": round(_since(began) * 1000, 3)}
        run.note(McpToolCallCompleted(**about, status=status, artifact=artifact), run.turn)
        shown = tool_results.without_middle(result.raw_text, run.config.limits.result_chars)
        told = {"error": shown} if result.is_error else {"output": shown}
        return action.ended(status, artifact=artifact, **told)

    def _failed(
        self, action: PlannedAction, about: dict[str, Any], error: str, lasted_s: float = 0.0
    ) -> StepExecutionResult:
        failed = McpToolCallFailed(**about, error=error, duration_ms=round(lasted_s * 1000, 3))
        self._run.note(failed, self._run.turn)
        return action.ended("failed", error=error)

    def _keep(self, action: PlannedAction, kind: str, content: bytes) -> str:
        """Write a whole result to a file, and return its name in the run folder."""
        folder = self._run.folder
        name = f"{action.step:04}-{(action.target or action.type)[:60]}.{kind}"
        return "" if folder is None else folder.keep(f"artifacts/{name.replace('/', '_')}", content)


def is_repeatable(tool: m.ToolDefinition | None) -> bool:
    """Return whether a call can be made again though it may have run: it changes nothing, or nothing further.

    The server's annotation is trusted here: a server that lies about it could do the same harm in one call.
    """
    return hints_of(None if tool is None else tool.annotations).idempotent  # a read-only tool is


def _since(began: float) -> float:
    return round(time.monotonic() - began, 6)
