"""`Judge`: decides which actions of a reply may be carried out, and asks a person if needed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from grue import ApprovalDecision, ApprovalQuestion
from grue import messages as m
from grue.errors import MCPConfigError
from grue.hosting import OwnCall, ask_about, judge_calls
from grue.hosts.skill_agent.actions import MCP_CALL, OTHER_AGENTS
from grue.hosts.skill_agent.facts import ApprovalsAsked, SkillProblem
from grue.hosts.skill_agent.registry import PlannedAction
from grue.hosts.skill_agent.run import Run
from grue.hosts.skill_agent.skills import Grant, granted
from grue.protocol.tools.policy import definition_digest
from grue.protocol.tools.results import NOT_AS_DECIDED

# The actions that `restrict_tools` never denies.
_ALWAYS = frozenset({"agent.finish", "agent.note", "agent.respond", "agent.use_skill"})

AskPerson: TypeAlias = Callable[[tuple[ApprovalQuestion, ...]], bool | Iterable[ApprovalDecision] | None]
"""Answers questions: `True` or `False` for all of them, or decisions. `None`: nobody can answer now."""


class JudgedAction(Struct, frozen=True):
    """A judged action. `denied`: the reason; empty: allowed. `tool`: `None` if the tool is unknown."""

    action: PlannedAction
    tool: m.ToolDefinition | None
    denied: str = ""


class Judge(Struct, kw_only=True):
    """Judges the actions of a run's replies."""

    run: Run
    approve: AskPerson | None
    decisions: tuple[ApprovalDecision, ...] = ()  # passed to `resume`, for the questions of the parked run
    parked: ApprovalsAsked | None = None  # the questions of the parked run, and until when `decisions` count
    warned: set[str] = field(default_factory=set)  # skills whose unknown tools are recorded

    def definitions(self, actions: Iterable[PlannedAction]) -> dict[str, str]:
        """Return, by tool name, digests of the present definitions of the MCP tools that the actions call."""
        tools = [self._tool(action) for action in actions if action.type == MCP_CALL]
        return {tool.name: definition_digest(tool) for tool in tools if tool is not None}

    def judge(
        self, actions: Sequence[PlannedAction], done: Sequence[PlannedAction], definitions: Mapping[str, str]
    ) -> list[JudgedAction]:
        """Judge a reply's actions before they are carried out, and record questions and decisions.

        If the run has to be parked, `self.run.asked` holds the questions afterwards. `done`: the reply's
        actions whose results an earlier process recorded; they count towards the policy's `max_calls`.
        `definitions`: the digests of the tools' definitions when the reply came. A call whose tool has
        changed since is denied, unless a person is asked about the call.
        """
        run, policy = self.run, self.run.config.policy
        tools = [self._tool(action) for action in actions]
        calls = [
            OwnCall(call_id=f"step_{action.step}", tool=tool, arguments=_arguments(action))
            for action, tool in zip(actions, tools, strict=True)
            if tool is not None
        ]
        made = [tool for action in done if (tool := self._tool(action)) is not None]
        skill, grant = self._skill_in_use()

        def checked(call: OwnCall) -> OwnCall:
            name = call.tool.name
            if call.denied:
                return call
            if skill and run.config.restrict_tools and name not in grant.named | _ALWAYS:
                return replace(call, denied=f"the skill {skill} does not allow this tool", question=None)
            is_outdated = name in definitions and definitions[name] != definition_digest(call.tool)
            return replace(call, denied=NOT_AS_DECIDED) if is_outdated and call.question is None else call

        judged = judge_calls(calls, policy, approved=grant.approved, made=made)
        asked = ask_about(
            tuple(map(checked, judged)),
            policy,
            self.approve,
            given=self.decisions,
            earlier=() if self.parked is None else self.parked.decisions,
            expires_at=None if self.parked is None else self.parked.expires_at,
        )
        if asked.questions:
            self.parked = None
            fact = ApprovalsAsked(
                turn=run.turn,
                questions=asked.questions,
                decisions=asked.decisions,
                parked=asked.parked,
                expires_at=asked.expires_at,
            )
            run.note(fact, run.turn)
            run.asked = fact if asked.parked else None
        final = {call.call_id: call for call in asked.calls}
        return [
            _judged(action, tool, final.get(f"step_{action.step}"))
            for action, tool in zip(actions, tools, strict=True)
        ]

    def _tool(self, action: PlannedAction) -> m.ToolDefinition | None:
        if action.type != MCP_CALL:
            kind = self.run.registry.types.get(action.type)
            # An action is unknown only if another program, with other actions, began the run.
            if kind is None:
                raise MCPConfigError(
                    f"The run has planned the action {action.type!r}, which this program does not have."
                    " Resume it with the actions that it was begun with."
                )
            return kind.definition()
        name, manager = action.params.get("tool_name"), self.run.manager
        return manager.routes.called.get(name) if manager is not None and isinstance(name, str) else None

    def _skill_in_use(self) -> tuple[str, Grant]:
        """Return name and grant of the skill read last; both empty without a skill or `allowed-tools`."""
        run = self.run
        read = [
            step.target for step in run.results if (step.action, step.status) == ("use_skill", "completed")
        ]
        skill = run.skills.by_name.get(read[-1]) if read else None
        if skill is None or skill.allowed is None:
            return "", Grant()
        own = [kind.definition().name for kind in run.registry.types.values()]
        listed = {} if run.manager is None else run.manager.routes.listed
        names = [f"{tool.server}.{tool.tool}" for tool in listed.values()]
        grant = granted(skill, (*own, *names), OTHER_AGENTS)
        if grant.unknown and skill.name not in self.warned:
            self.warned.add(skill.name)
            unknown = ", ".join(grant.unknown)
            problem = f"The skill {skill.name} allows tools that do not exist here: {unknown}."
            if any(name.endswith(f".{each}") for each in grant.unknown for name in names):
                problem += " A tool of a server is allowed by its full name, server.tool."
            run.note(SkillProblem(problem=problem), run.turn)
        return skill.name, grant


def _judged(action: PlannedAction, tool: m.ToolDefinition | None, call: OwnCall | None) -> JudgedAction:
    if call is None:
        return JudgedAction(action, tool)
    # Compare as JSON, because `1 == True` in Python.
    if msgspec.json.encode(call.arguments) != msgspec.json.encode(_arguments(action)):
        changed = call.arguments  # a person has changed them
        params = {**action.params, "arguments": changed} if action.type == MCP_CALL else changed
        action = replace(action, params=params)
    return JudgedAction(action, tool, call.denied)


def _arguments(action: PlannedAction) -> m.JsonObject:
    if action.type != MCP_CALL:
        return action.params
    arguments = action.params.get("arguments")
    return arguments if isinstance(arguments, dict) else {}
