"""The decision loop: ask the model, carry out its actions, show it the results, until something ends the run.

The trace has the whole state of the loop, so a run that was killed can be resumed. The start of a step is
written before its action begins, so a resumed run knows which action may have had an effect.
"""

import math
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import Conversation, MCPError
from grue import messages as m
from grue.errors import AnswerError, BudgetSpent, MCPConfigError, TurnTimedOut
from grue.hosting import ConfinedFolder
from grue.hosts.skill_agent import facts
from grue.hosts.skill_agent.actions import MCP_CALL, ActionContext, McpCall
from grue.hosts.skill_agent.approval import Judge, JudgedAction
from grue.hosts.skill_agent.prompt import SILENT, changed_tools, last_list, next_text, results_text
from grue.hosts.skill_agent.registry import ActionReply, PlannedAction, StepExecutionResult, StepStatus
from grue.hosts.skill_agent.run import Run, RunPast, error_text
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.policy import hints_of

INTERRUPTED = "the process was killed in this step; it may have had an effect, and is not repeated"


class StepRunner:
    """Carries out the actions of a run one by one, and records the start and the result of each."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._context = ActionContext(workspace=ConfinedFolder(run.config.workspace), skills=run.skills)

    def carry_out(self, action: PlannedAction, tool: m.ToolDefinition | None) -> StepExecutionResult:
        """Carry out an action. After a failure, try again if the settings and the tool allow it."""
        run, began = self._run, time.monotonic()
        started = facts.StepStarted(
            turn=run.turn, number=action.step, action=action.type, target=action.target
        )
        run.note(started, run.turn)
        retries = run.config.retries if run.config.on_step_failure == "retry" and _is_repeatable(tool) else 0
        for attempt in range(1, retries + 2):  # noqa: B007 - the variable is used after the loop
            result = self._call_tool(action, tool) if action.type == MCP_CALL else self._act(action)
            if result.status != "failed" or run.left_s <= 0:
                break
        return self.end(replace(result, attempts=attempt, duration_s=_since(began)))

    def end(self, result: StepExecutionResult) -> StepExecutionResult:
        """Record an action's result in the current turn, and return the result."""
        run = self._run
        result = replace(result, turn=run.turn)
        run.note(facts.StepEnded(turn=run.turn, result=result), run.turn)
        run.results.append(result)
        return result

    def _act(self, action: PlannedAction) -> StepExecutionResult:
        run = self._run
        try:
            output = run.registry.carry_out(
                action.type, action.params, self._context, timeout_s=max(run.left_s, 0.0)
            )
        except Exception as error:  # noqa: BLE001 - a program's own action may raise anything: the step fails
            return action.ended("failed", error=self.cut(error_text(error)))
        shown = output if action.type in SILENT else self.cut(output)
        artifact = "" if shown == output else self._keep(action, "txt", output.encode("utf-8", "replace"))
        return action.ended("completed", output=shown, artifact=artifact)

    def _call_tool(self, action: PlannedAction, tool: m.ToolDefinition | None) -> StepExecutionResult:
        run = self._run
        try:
            call: McpCall = run.registry.params(MCP_CALL, action.params)
        except ValueError as error:  # only in a resumed run, if an older grue accepted these parameters
            return action.ended("failed", error=self.cut(str(error)))
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
        run.note(facts.McpToolCallStarted(**about), run.turn)
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
        run.note(facts.McpToolCallCompleted(**about, status=status, artifact=artifact), run.turn)
        shown = self.cut(result.raw_text)
        told = {"error": shown} if result.is_error else {"output": shown}
        return action.ended(status, artifact=artifact, **told)

    def _failed(
        self, action: PlannedAction, about: dict[str, Any], error: str, lasted_s: float = 0.0
    ) -> StepExecutionResult:
        failed = facts.McpToolCallFailed(**about, error=error, duration_ms=round(lasted_s * 1000, 3))
        self._run.note(failed, self._run.turn)
        return action.ended("failed", error=self.cut(error))

    def cut(self, text: str) -> str:
        """Return a text without its middle if it is longer than the model may be shown."""
        return tool_results.without_middle(text, self._run.config.limits.result_chars)

    def _keep(self, action: PlannedAction, kind: str, content: bytes) -> str:
        """Write a result to a file, and return the file's name; "" if there is no run folder."""
        folder = self._run.folder
        name = f"{action.step:04}-{(action.target or action.type)[:60]}.{kind}"
        return "" if folder is None else folder.keep(f"artifacts/{name.replace('/', '_')}", content)


def _is_repeatable(tool: m.ToolDefinition | None) -> bool:
    # `hints_of` sets `idempotent` for read-only tools, too.
    return hints_of(None if tool is None else tool.annotations).idempotent


def _since(began: float) -> float:
    return round(time.monotonic() - began, 6)


_UNUSABLE = "reply"


class RunEnd(Struct, frozen=True):
    """Why a run ended, and the model's answer; the answer is empty if the model gave none."""

    reason: facts.EndReason
    detail: str
    answer: str = ""


class DecisionLoop:
    """Carries out a run, or the rest of a resumed run."""

    def __init__(self, run: Run, conversation: Conversation, judge: Judge, past: RunPast | None) -> None:
        self._run = run
        self._conversation = conversation
        self._judge = judge
        self._steps = StepRunner(run)
        said = (each.text for each in conversation.history if isinstance(each, m.UserText))
        self._shown = last_list(conversation.system, said)
        self._plan: facts.ActionsPlanned | None = None if past is None else past.plan
        self._last_turn = 0 if past is None else past.last_turn
        self._begun = 0 if past is None else past.begun
        self._resumed = past is not None
        # The last reply, if the earlier process was killed before it could record the reply's actions.
        self._answered = past.end if past is not None and isinstance(past.end, m.TurnCompleted) else None

    def run(self) -> RunEnd:
        """Ask the model and carry out its actions until the run ends; return why it ended."""
        while True:
            end = None if self._plan is None or self._answered else self._carry_out(self._plan)
            end = end or self._limit_reached() or self._next_reply()
            if end is not None:
                return end

    def _limit_reached(self) -> RunEnd | None:
        run, limits = self._run, self._run.config.limits
        if run.left_s <= 0 or self._answered is not None:
            return self._time_over()
        if run.turns >= limits.max_turns:
            return RunEnd("turn_limit", f"the limit on turns, {limits.max_turns}, is used up")
        return RunEnd("budget", run.runner.budget_spent) if run.runner.budget_spent else self._steps_used()

    def _steps_used(self) -> RunEnd | None:
        most = self._run.config.limits.max_steps
        used = len(self._run.results) >= most
        return RunEnd("step_limit", f"the limit on steps, {most}, is used up") if used else None

    def _time_over(self) -> RunEnd | None:
        limit_s = self._run.config.limits.time_limit_seconds
        if limit_s is None or self._run.left_s > 0:
            return None
        return RunEnd("time_limit", f"the run's time limit of {limit_s:g} s is reached")

    def _next_reply(self) -> RunEnd | None:
        run, answered = self._run, self._answered
        if answered is not None:
            self._answered = None
            self._keep(
                msgspec.convert(answered.answer, ActionReply),
                outdated=bool(changed_tools(run.tools, self._shown)),
            )
            return None
        request = self._conversation.request(
            self._text(), answer=run.registry.answer_spec(run.offered), tools=False
        )
        self._last_turn += 1
        request = replace(
            request,
            turn=self._last_turn,
            turn_timeout_s=None if math.isinf(run.left_s) else max(0.1, run.left_s),
            on_delta=(lambda _: None) if run.stream else None,  # switches streaming on
        )
        try:
            reply: ActionReply = run.runner.run_turn(request).response
        except AnswerError as error:
            # The last line of the error is advice for programmers. The model gets the lines before it.
            return self._unusable(str(error).rpartition("\n")[0])
        except TurnTimedOut as error:
            return self._time_over() or RunEnd("time_limit", str(error))
        except BudgetSpent as error:
            return RunEnd("budget", str(error))
        except MCPConfigError:
            raise
        except MCPError as error:
            return RunEnd("failed", str(error))
        self._keep(reply)
        return None

    def _text(self) -> str:
        turn = 0 if self._plan is None else self._plan.turn
        done = [each for each in self._run.results if each.turn == turn]
        text = results_text(done) if done else f"TASK:\n{self._run.task}"
        changed = changed_tools(self._run.tools, self._shown)
        self._shown = changed or self._shown
        resumed, self._resumed = self._resumed, False
        return next_text(text, changed, resumed=resumed)

    def _keep(self, reply: ActionReply, *, outdated: bool = False) -> None:
        """Number and record a reply's actions. `outdated`: tools have changed since the model saw them."""
        run = self._run
        run.turn = self._last_turn
        actions = tuple(
            PlannedAction(step=number, type=action.type, params=action.params)
            for number, action in enumerate(reply.actions, len(run.results) + 1)
        )
        definitions = self._judge.definitions(actions)
        self._plan = facts.ActionsPlanned(
            turn=run.turn,
            thought=reply.thought,
            actions=actions,
            definitions=dict.fromkeys(definitions, "") if outdated else definitions,
        )
        run.note(self._plan, run.turn)
        run.turns += 1

    def _unusable(self, error: str) -> RunEnd | None:
        """Record a failed step for a reply that cannot be used; return why the run ends, if it does."""
        self._keep(ActionReply([]))
        failed = PlannedAction(step=len(self._run.results) + 1, type=_UNUSABLE, params={})
        return self._after(self._steps.end(failed.ended("failed", error=self._steps.cut(error))))

    def _carry_out(self, plan: facts.ActionsPlanned) -> RunEnd | None:
        run = self._run
        run.turn = plan.turn
        done = [each for each in run.results if each.turn == plan.turn]
        todo = plan.actions[len(done) :]
        for action, result in zip(plan.actions, done, strict=False):
            # An earlier process may have been killed after the action `finish`, before it recorded the end.
            if _has_finished(result):
                return self._finished(action, result, todo)
        judged = self._judge.judge(todo, plan.actions[: len(done)], plan.definitions)
        if run.asked is not None:
            return RunEnd("parked", f"actions that wait for an approval: {len(run.asked.questions)}")
        for position, each in enumerate(judged):
            end = self._steps_used() or self._time_over() or self._step(each)
            if end is not None and end.reason == "step_failed":
                self._skip(todo[position + 1 :])
            if end is not None:
                return end
            if _has_finished(run.results[-1]):
                return self._finished(each.action, run.results[-1], todo[position + 1 :])
        return None

    def _finished(
        self, action: PlannedAction, result: StepExecutionResult, rest: Sequence[PlannedAction]
    ) -> RunEnd:
        self._skip(rest)
        if action.params.get("success") is False:
            return RunEnd("gave_up", "the model says that it could not do the task", result.output)
        return RunEnd("finished", "the task is done", result.output)

    def _skip(self, actions: Sequence[PlannedAction]) -> None:
        for action in actions:
            self._steps.end(action.ended("skipped", error="the run ended before"))

    def _step(self, judged: JudgedAction) -> RunEnd | None:
        action = judged.action
        begun, self._begun = self._begun, 0
        if begun == action.step and (judged.denied or not _is_repeatable(judged.tool)):
            self._steps.end(action.ended("interrupted", error=INTERRUPTED))
            return None
        if judged.denied:
            self._steps.end(action.ended("denied", error=f"denied: {judged.denied}"))
            return None
        return self._after(self._steps.carry_out(action, judged.tool))

    def _after(self, result: StepExecutionResult) -> RunEnd | None:
        """Return why the run ends after this step; `None`: the run goes on."""
        if result.status != "failed" or self._run.config.on_step_failure != "stop":
            return None
        failed = RunEnd("step_failed", f"step {result.step}, {result.action}, failed: {result.error}")
        return self._time_over() or failed


def _has_finished(result: StepExecutionResult) -> bool:
    return result.action == "finish" and result.status == "completed"
