"""The decision loop: ask the model, carry out its actions, show it the results, until something ends the run.

Come here to change what ends a run, or what follows a failed step. The turns are those of one `Conversation`.
The loop keeps nothing that the trace has not: a run that was killed goes on from `RunPast`.
"""

import math
import time
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import AnswerError, BudgetSpent, Conversation, MCPConfigError, MCPError, Runner, TurnTimedOut
from grue.hosts.skill_agent.actions import ActionRegistry, ActionReply
from grue.hosts.skill_agent.approval import Judge, JudgedAction
from grue.hosts.skill_agent.configuration import RunLimits
from grue.hosts.skill_agent.facts import (
    ActionsPlanned,
    ApprovalsAsked,
    EndReason,
    PlannedAction,
    StepExecutionResult,
)
from grue.hosts.skill_agent.past import RunPast
from grue.hosts.skill_agent.prompt import results_text, resumed_text, task_text
from grue.hosts.skill_agent.steps import INTERRUPTED, StepRunner, ended, is_repeatable
from grue.messages import TextDelta, TurnCompleted

_UNUSABLE = "reply"


class RunEnd(Struct, frozen=True):
    """Why a run ends, and the model's answer if it has given one."""

    reason: EndReason
    detail: str
    answer: str = ""


class LoopParts(Struct, frozen=True, kw_only=True):
    """The parts that the loop uses.

    Attributes:
        stop_on_failure: Whether a failed step ends the run.
        changed_tools: The section `MCP_TOOLS`, if it has changed since the conversation began.
        deadline: When the run's time is over, in monotonic seconds; infinite: never.
        stream: Whether replies are streamed, so that the trace has the text as it arrives.
    """

    registry: ActionRegistry
    runner: Runner
    conversation: Conversation
    judge: Judge
    steps: StepRunner
    limits: RunLimits
    stop_on_failure: bool
    changed_tools: str = ""
    deadline: float = math.inf
    stream: bool = False


class DecisionLoop:
    """Runs a task, or the rest of one.

    Attributes:
        results: What became of the steps so far, in order.
        turns: How many replies were acted upon.
        asked: The approvals for which the run was parked; `None`: it was not.
    """

    def __init__(self, parts: LoopParts, task: str, past: RunPast | None) -> None:
        self.results: list[StepExecutionResult] = [] if past is None else past.results
        self.turns = 0 if past is None else past.plans
        self.asked: ApprovalsAsked | None = None
        self._parts = parts
        self._task = task
        self._plan: ActionsPlanned | None = None if past is None else past.plan
        self._turn = 0 if past is None else past.last_turn
        self._begun = 0 if past is None else past.begun
        self._resumed = past is not None
        # A reply that was paid for, and that the killed process has not acted upon.
        self._answered = past.end if past is not None and isinstance(past.end, TurnCompleted) else None

    def run(self) -> RunEnd:
        """Go on until the run ends.

        Raises:
            KeyboardInterrupt: Ctrl-C. What was recorded is enough to go on later.
        """
        while True:
            end = None if self._plan is None or self._answered else self._carry_out(self._plan)
            end = end or self._limit_reached() or self._next_reply()
            if end is not None:
                return end

    def _limit_reached(self) -> RunEnd | None:
        limits, parts = self._parts.limits, self._parts
        if parts.deadline <= time.monotonic():
            return RunEnd("time_limit", f"the run's time limit of {limits.time_limit_seconds:g} s is reached")
        if self._answered is not None:
            return None
        if self.turns >= limits.max_turns:
            return RunEnd("turn_limit", f"all {limits.max_turns} turns are used up")
        return RunEnd("budget", parts.runner.budget_spent) if parts.runner.budget_spent else None

    def _next_reply(self) -> RunEnd | None:
        """Get the next reply and plan its actions."""
        parts, answered = self._parts, self._answered
        if answered is not None:
            self._answered = None
            self._keep(msgspec.convert(answered.answer, ActionReply))
            return None
        spec = parts.registry.answer_spec()
        request = parts.conversation.request(self._text(), answer=spec, tools=False)
        left_s = None if math.isinf(parts.deadline) else max(0.1, parts.deadline - time.monotonic())
        self._turn += 1
        request = replace(
            request, turn=self._turn, turn_timeout_s=left_s, on_delta=_ignore if parts.stream else None
        )
        try:
            reply: ActionReply = parts.runner.run_turn(request).response
        except AnswerError as error:
            return self._unusable(str(error))
        except TurnTimedOut as error:
            return RunEnd("time_limit", str(error))
        except BudgetSpent as error:
            return RunEnd("budget", str(error))
        except MCPConfigError:
            raise
        except MCPError as error:
            return RunEnd("failed", str(error))
        self._keep(reply)
        return None

    def _text(self) -> str:
        """Return what the user says next: the task, or the results of the last actions."""
        turn = 0 if self._plan is None else self._plan.turn
        done = [each for each in self.results if each.turn == turn]
        text = results_text(done) if done else task_text(self._task)
        if self._resumed:
            self._resumed = False
            return resumed_text(text, self._parts.changed_tools)
        return text

    def _keep(self, reply: ActionReply) -> None:
        """Record the actions of a reply, before anything is done."""
        first = len(self.results) + 1
        actions = tuple(
            PlannedAction(step=number, type=action.type, params=action.params)
            for number, action in enumerate(reply.actions, first)
        )
        self._plan = ActionsPlanned(turn=self._turn, thought=reply.thought, actions=actions)
        self._parts.steps.turn = self._turn
        self._parts.steps.note(self._plan)
        self.turns += 1

    def _unusable(self, error: str) -> RunEnd | None:
        """Make a failed step of a reply that could not be used, also after it was repaired."""
        self._keep(ActionReply([]))
        failed = PlannedAction(step=len(self.results) + 1, type=_UNUSABLE, params={})
        return self._after(self._end(ended(failed, "failed", error=error)))

    def _carry_out(self, plan: ActionsPlanned) -> RunEnd | None:
        """Carry out the actions of a plan that are not done yet."""
        steps, judge = self._parts.steps, self._parts.judge
        steps.turn = plan.turn
        done = [each for each in self.results if each.turn == plan.turn]
        todo = plan.actions[len(done) :]
        for action, result in zip(plan.actions, done, strict=False):
            if _has_finished(result):  # the process was killed before the end was recorded
                return self._finished(action, result, todo)
        judgement = judge.judge(plan.turn, todo, self.results)
        for problem in judgement.problems:
            steps.note(problem)
        if judgement.asked is not None:
            steps.note(judgement.asked)
            if judgement.asked.parked:
                self.asked = judgement.asked
                return RunEnd("parked", f"{len(judgement.asked.questions)} actions wait for an approval")
        for position, judged in enumerate(judgement.actions):
            end = self._step_limit() or self._step(judged)
            if end is not None and end.reason == "step_failed":
                self._skip(todo[position + 1 :])
            if end is not None:
                return end
            if _has_finished(self.results[-1]):
                return self._finished(judged.action, self.results[-1], todo[position + 1 :])
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
            self._end(ended(action, "skipped", error="the run ended before"))

    def _step_limit(self) -> RunEnd | None:
        most = self._parts.limits.max_steps
        if len(self.results) >= most:
            return RunEnd("step_limit", f"all {most} steps are used up")
        return self._limit_reached() if self._parts.deadline <= time.monotonic() else None

    def _step(self, judged: JudgedAction) -> RunEnd | None:
        action = judged.action
        begun, self._begun = self._begun, 0
        if judged.denied:
            self._end(ended(action, "denied", error=f"denied: {judged.denied}"))
            return None
        if begun == action.step and not is_repeatable(judged.tool):
            self._end(ended(action, "interrupted", error=INTERRUPTED))
            return None
        result = self._parts.steps.run(action, judged.tool)
        self.results.append(result)
        return self._after(result)

    def _after(self, result: StepExecutionResult) -> RunEnd | None:
        if result.status != "failed" or not self._parts.stop_on_failure:
            return None
        return RunEnd("step_failed", f"step {result.step}, {result.action}, failed: {result.error}")

    def _end(self, result: StepExecutionResult) -> StepExecutionResult:
        """Record a step that was not carried out."""
        result = self._parts.steps.end(result)
        self.results.append(result)
        return result


def _has_finished(result: StepExecutionResult) -> bool:
    return result.action == "finish" and result.status == "completed"


def _ignore(delta: TextDelta) -> None:
    """Take a piece of a reply. The views of a run read it from the trace."""
    del delta
