"""`Judge`: holds the actions of a reply to the policy, to the skill in use, and to what a person decides.

The agent's own actions are tools, too: `agent.write_file`. A reply is judged as a whole before the first of
its actions is carried out.
"""

import time
from collections.abc import Iterable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from grue.hosts.skill_agent.actions import MCP_CALL, ActionRegistry
from grue.hosts.skill_agent.configuration import AgentConfig
from grue.hosts.skill_agent.facts import ApprovalsAsked, PlannedAction, SkillProblem, StepExecutionResult
from grue.hosts.skill_agent.mcp_manager import McpManager
from grue.hosts.skill_agent.skills import Grant, Skills, granted
from grue.messages import ApprovalDecision, ApprovalQuestion, JsonObject, ToolDefinition
from grue.sessions import AskPerson, OwnCall, decisions_about, judge_calls

_ALWAYS = frozenset({"agent.finish", "agent.note", "agent.respond", "agent.use_skill"})
_NOT_NAMED = "the skill {} does not allow this tool"


class JudgedAction(Struct, frozen=True):
    """An action, carried out unless `denied` says why not. `tool` is `None` if there is no such tool."""

    action: PlannedAction
    tool: ToolDefinition | None
    denied: str = ""


class Judgement(Struct, frozen=True):
    """The actions of a reply.

    Attributes:
        asked: The approvals that were asked for; `None`: none were.
        problems: Names in the `allowed-tools` of the skill in use that no tool has, said once a skill.
    """

    actions: tuple[JudgedAction, ...]
    asked: ApprovalsAsked | None = None
    problems: tuple[SkillProblem, ...] = ()


class Judge(Struct, kw_only=True):
    """Judges the actions of replies.

    Attributes:
        decisions: Answers to the questions for which the run was parked.
        waited: Those questions; `None`: the run was not parked.
        warned: The skills of which problems were said.
    """

    config: AgentConfig
    registry: ActionRegistry
    manager: McpManager | None
    skills: Skills
    approve: AskPerson | None
    decisions: tuple[ApprovalDecision, ...] = ()
    waited: ApprovalsAsked | None = None
    warned: set[str] = field(default_factory=set)

    def judge(
        self, turn: int, actions: Sequence[PlannedAction], results: Iterable[StepExecutionResult]
    ) -> Judgement:
        """Judge the actions of a reply, and ask a person where the policy says so.

        Args:
            turn: The reply's turn.
            actions: Those that are not done yet.
            results: What was done before: the last skill that was read is in use.
        """
        tools = [self._tool(action) for action in actions]
        calls = [
            OwnCall(call_id=f"step_{action.step}", tool=tool, arguments=_arguments(action))
            for action, tool in zip(actions, tools, strict=True)
            if tool is not None
        ]
        name, grant = self._skill_in_use(results)
        calls = [
            call if call.denied or not self._forbids(name, grant, call.tool) else _forbidden(call, name)
            for call in judge_calls(calls, self.config.policy, approved=grant.approved)
        ]
        questions = tuple(call.question for call in calls if call.question is not None)
        asked = self._ask(turn, questions) if questions else None
        decided = {each.call_id: each for each in asked.decisions} if asked is not None else {}
        final = {
            call.call_id: call if call.question is None else call.decided(decided.get(call.call_id))
            for call in calls
        }
        judged = (
            _judged(action, tool, final.get(f"step_{action.step}"))
            for action, tool in zip(actions, tools, strict=True)
        )
        return Judgement(tuple(judged), asked, self._problems(name, grant))

    def _ask(self, turn: int, questions: tuple[ApprovalQuestion, ...]) -> ApprovalsAsked:
        """Ask about actions, unless they were decided about while the run was parked."""
        policy, waited = self.config.policy, self.waited
        self.waited = None
        expired = waited is not None and waited.expires_at is not None and waited.expires_at < time.time()
        found = {} if expired else decisions_about(questions, self.decisions)
        rest = tuple(each for each in questions if each.call_id not in found)
        if rest and not expired:
            answer = None if self.approve is None else self.approve(rest)
            if answer is not None:
                found |= decisions_about(rest, answer)
            elif policy.parking:
                expires_at = None if policy.park_for_s is None else time.time() + policy.park_for_s
                return ApprovalsAsked(turn=turn, questions=rest, parked=True, expires_at=expires_at)
        return ApprovalsAsked(turn=turn, questions=questions, decisions=tuple(found.values()))

    def _tool(self, action: PlannedAction) -> ToolDefinition | None:
        if action.type != MCP_CALL:
            return self.registry.types[action.type].definition()
        name = action.params.get("tool_name")
        return self.manager.definition(name) if self.manager is not None and isinstance(name, str) else None

    def _skill_in_use(self, results: Iterable[StepExecutionResult]) -> tuple[str, Grant]:
        """Return the skill that was read last and the tools that it allows; empty: it names none."""
        read = [each.target for each in results if each.action == "use_skill" and each.status == "completed"]
        skill = self.skills.by_name.get(read[-1]) if read else None
        if skill is None or skill.allowed is None:
            return "", Grant()
        own = [kind.definition().name for kind in self.registry.types.values()]
        names = {} if self.manager is None else self.manager.names
        return skill.name, granted(skill, (*own, *names.values()), names)

    def _problems(self, skill: str, grant: Grant) -> tuple[SkillProblem, ...]:
        if not grant.unknown or skill in self.warned:
            return ()
        self.warned.add(skill)
        unknown = ", ".join(grant.unknown)
        return (SkillProblem(problem=f"The skill {skill} allows tools that there are not: {unknown}."),)

    def _forbids(self, name: str, grant: Grant, tool: ToolDefinition) -> bool:
        return bool(name) and self.config.restrict_tools and tool.name not in grant.named | _ALWAYS


def _forbidden(call: OwnCall, skill: str) -> OwnCall:
    return replace(call, denied=_NOT_NAMED.format(skill), question=None)


def _judged(action: PlannedAction, tool: ToolDefinition | None, call: OwnCall | None) -> JudgedAction:
    if call is None:
        return JudgedAction(action, tool)
    if call.arguments != _arguments(action):  # a person has changed them
        changed = call.arguments
        params = {**action.params, "arguments": changed} if action.type == MCP_CALL else changed
        action = replace(action, params=params)
    return JudgedAction(action, tool, call.denied)


def _arguments(action: PlannedAction) -> JsonObject:
    if action.type != MCP_CALL:
        return action.params
    arguments = action.params.get("arguments")
    return arguments if isinstance(arguments, dict) else {}
