"""The actions of the skill agent: their parameters, and the functions that carry them out.

To add an action, add a row to `_BUILT_IN`. `mcp_call` has no function: `StepRunner` carries it out.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field

from grue.hosting import ConfinedFolder
from grue.hosts.skill_agent.registry import FILE_ACTIONS, READS, ActionType, ActionTypes
from grue.hosts.skill_agent.skills import USE_SKILL, Skills

MCP_CALL = "mcp_call"

OTHER_AGENTS = {
    "Edit": "agent.write_file",
    "Glob": "agent.list_files",
    "LS": "agent.list_files",
    "MultiEdit": "agent.write_file",
    "Read": "agent.read_file",
    "Skill": "agent.use_skill",
    "Write": "agent.write_file",
}
"""Names in `allowed-tools` that stand for other agents' tools, each with the action that it allows."""


class ActionContext(Struct, frozen=True, kw_only=True):
    """The second argument of an action's function: the folder for files, and the skills."""

    workspace: ConfinedFolder
    skills: Skills


# The following classes have no docstrings, because these would become descriptions in the model's schema.
class McpCall(Struct, forbid_unknown_fields=True):  # noqa: D101
    # Unknown fields are forbidden, because a model may write an argument of the tool beside `arguments`. The
    # tool would then run without this argument.
    # A missing `tool_name` is accepted, so that only this step fails, and not the whole reply.
    tool_name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)


class Text(Struct):  # noqa: D101
    text: str


class Finish(Struct):  # noqa: D101
    answer: str
    success: bool = True


_BUILT_IN = (
    ActionType(MCP_CALL, McpCall, None, "Call a tool of MCP_TOOLS; arguments fit its input_schema."),
    ActionType("respond", Text, lambda params, _: str(params.text), "Tell the user something.", READS),
    ActionType("note", Text, lambda params, _: str(params.text), "Keep something in mind.", READS),
    USE_SKILL,
    *FILE_ACTIONS,
    ActionType(
        "finish",
        Finish,
        lambda params, _: str(params.answer),
        "End the run with an answer for the user. success is false if the task was not done.",
        READS,
    ),
)


class ActionRegistry(ActionTypes):
    """The types of actions that a model can answer with; by default, those of the skill agent."""

    def __init__(self, types: Iterable[ActionType] = _BUILT_IN) -> None:
        super().__init__(types)
