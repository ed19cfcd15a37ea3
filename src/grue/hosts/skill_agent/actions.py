"""The actions that a model can answer with: their names, parameters, and what carries them out.

Come here to add one. A program adds its own with `ActionRegistry.add`: a Struct for the parameters, and a
function that takes them and an `ActionContext` and returns the result for the model. `mcp_call` is the
exception: the step runner carries it out, because it needs the servers.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct, field

from grue import AnswerSpec, MCPConfigError, ToolAnnotations
from grue.connections import ConfinedFolder
from grue.hosts.skill_agent.skills import Skills
from grue.messages import JsonObject, ServerName, ToolDefinition

AGENT = "agent"
"""The server name of the agent's own actions, in the names that policies match: `agent.write_file`."""

MCP_CALL = "mcp_call"
_MOST_ACTIONS = 50
_NO_ACTIONS = 'it is no JSON object {"actions": [{"type": ..., "params": {...}}]}'


class RawAction(Struct, frozen=True):
    """An action as the model wrote it."""

    type: str
    params: dict[str, Any] = {}


class ActionReply(Struct, frozen=True):
    """The model's reply: one or more actions."""

    actions: list[RawAction]
    thought: str = ""


class ActionContext(Struct, frozen=True, kw_only=True):
    """The things that an action can use: the files of the workspace, and the skills."""

    workspace: ConfinedFolder
    skills: Skills


class McpCall(Struct):
    """Parameters of `mcp_call`. A missing name is a failed step, not an unusable reply."""

    tool_name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)


class Text(Struct):
    """Parameters of `respond` and `note`."""

    text: str


class Finish(Struct):
    """Parameters of `finish`."""

    answer: str
    success: bool = True


class UseSkill(Struct):
    """Parameters of `use_skill`."""

    name: str
    file: str = ""


class FilePath(Struct):
    """Parameters of `read_file`."""

    path: str


class FolderPath(Struct):
    """Parameters of `list_files`."""

    path: str = "."


class WriteFile(Struct):
    """Parameters of `write_file`."""

    path: str
    content: str


class ActionType(Struct, frozen=True):
    """A kind of action.

    Attributes:
        params: The Struct of its parameters.
        run: Returns the result for the model; raises `ValueError` or `OSError` if it fails.
        description: One sentence for the model.
        annotations: Whether it changes something, and whether it may be repeated after a failure.
    """

    name: str
    params: type[Struct]
    run: Callable[[Any, ActionContext], str]
    description: str = ""
    annotations: ToolAnnotations = ToolAnnotations()

    def definition(self) -> ToolDefinition:
        """Return the action as a tool, which a policy judges."""
        return ToolDefinition(
            server=ServerName(AGENT),
            tool=self.name,
            description=self.description,
            input_schema=msgspec.json.schema(self.params),
            annotations=self.annotations,
            trusted=True,
        )


class ActionRegistry:
    """The kinds of actions that a model can answer with. A new one has those of the skill agent."""

    def __init__(self) -> None:
        self.types = {each.name: each for each in _BUILT_IN}

    def add(
        self,
        name: str,
        params: type[Struct],
        run: Callable[[Any, ActionContext], str],
        *,
        description: str = "",
        annotations: ToolAnnotations | None = None,
    ) -> None:
        """Add a kind of action.

        Args:
            name: The `type` that the model writes.
            params: A msgspec Struct.
            run: Called with an instance of it and an `ActionContext`. Returns the result for the model, or
                raises `ValueError` or `OSError` with the reason for the failure.
            description: One sentence for the model; default: the function's docstring.
            annotations: `read_only` or `idempotent` allow that it is repeated after a failure or a kill.

        Raises:
            MCPConfigError: There is an action of that name, or `params` is no Struct.
        """
        if name in self.types:
            raise MCPConfigError(f"There is an action {name!r} already: choose another name.")
        if not (isinstance(params, type) and issubclass(params, Struct)):
            raise MCPConfigError(f"The parameters of the action {name!r} should be a msgspec.Struct.")
        said = description or (run.__doc__ or "").strip().partition("\n")[0]
        self.types[name] = ActionType(name, params, run, said, annotations or ToolAnnotations())

    def answer_spec(self) -> AnswerSpec[ActionReply]:
        """Return what a valid reply is: an object with actions, or a single action."""
        return AnswerSpec(self.read, schema=self.schema(), name="actions")

    def schema(self) -> JsonObject:
        """Return the JSON Schema of a reply."""
        schemas, parts = msgspec.json.schema_components(
            [each.params for each in self.types.values()], ref_template="#/$defs/{name}"
        )
        kinds = [
            {
                "type": "object",
                "properties": {"type": {"type": "string", "enum": [name]}, "params": schema},
                "required": ["type", "params"],
                "additionalProperties": False,
            }
            for name, schema in zip(self.types, schemas, strict=True)
        ]
        actions = {"type": "array", "minItems": 1, "items": {"anyOf": kinds}}
        return {
            "type": "object",
            "properties": {"thought": {"type": "string"}, "actions": actions},
            "required": ["actions"],
            "additionalProperties": False,
            "$defs": parts,
        }

    def read(self, text: str) -> ActionReply:
        """Return the actions of a reply.

        Raises:
            ValueError: It has none, or one that cannot be carried out; the text is for the model.
        """
        try:
            reply: ActionReply = AnswerSpec.of(ActionReply).parse(text)
        except ValueError:
            try:
                reply = ActionReply([AnswerSpec.of(RawAction).parse(text)])
            except ValueError:
                raise ValueError(_NO_ACTIONS) from None
        if not 0 < len(reply.actions) <= _MOST_ACTIONS:
            raise ValueError(f"it has {len(reply.actions)} actions; there should be 1 to {_MOST_ACTIONS}")
        for number, action in enumerate(reply.actions):
            self.params(action.type, action.params, f"actions[{number}]")
        return reply

    def params(self, name: str, params: dict[str, Any], where: str = "params") -> Any:
        """Return the parameters of an action as its Struct.

        Raises:
            ValueError: There is no such action, or the parameters do not fit.
        """
        kind = self.types.get(name)
        if kind is None:
            raise ValueError(f"{where}: there is no action {name!r}; there are {', '.join(self.types)}")
        # A strict schema makes every property required, so `null` is how a model leaves one out.
        given = {key: value for key, value in params.items() if value is not None}
        try:
            return msgspec.convert(given, kind.params)
        except msgspec.ValidationError as error:
            raise ValueError(f"{where}: {error}") from error


def _list_files(params: FolderPath, context: ActionContext) -> str:
    return "\n".join(context.workspace.entries(params.path)) or "The folder is empty."


def _write_file(params: WriteFile, context: ActionContext) -> str:
    return f"{context.workspace.write(params.path, params.content)} bytes written to {params.path}"


_READS = ToolAnnotations(read_only=True, open_world=False)
_WRITES = ToolAnnotations(read_only=False, idempotent=True, open_world=False)

_BUILT_IN = (
    ActionType(MCP_CALL, McpCall, _list_files, "Call a tool of MCP_TOOLS; arguments fit its input_schema."),
    ActionType("respond", Text, lambda params, _: str(params.text), "Tell the user something.", _READS),
    ActionType("note", Text, lambda params, _: str(params.text), "Keep something in mind.", _READS),
    ActionType(
        "use_skill",
        UseSkill,
        lambda params, context: context.skills.text(params.name, params.file),
        "Read a skill of SKILLS before you do what it is about; or a file of it, by its path.",
        _READS,
    ),
    ActionType("list_files", FolderPath, _list_files, "List a folder of the workspace.", _READS),
    ActionType(
        "read_file",
        FilePath,
        lambda params, context: context.workspace.read(params.path),
        "Read a text file of the workspace.",
        _READS,
    ),
    ActionType(
        "write_file", WriteFile, _write_file, "Write or replace a text file of the workspace.", _WRITES
    ),
    ActionType(
        "finish",
        Finish,
        lambda params, _: str(params.answer),
        "End the run with an answer for the user. success is false if the task was not done.",
        _READS,
    ),
)
