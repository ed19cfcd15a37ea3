"""Actions as JSON: a model answers with a list of them, and your program carries them out.

Use this module in a host whose model writes actions into the reply's text instead of calling tools. For a
`ToolPolicy`, an action is a tool of the server `agent`. Actions are carried out after their turn, so the turn
does not record them: record them yourself, with facts such as `StepEnded` in `facts.py`.

```python
class Move(Struct):
    direction: str

actions = ActionTypes()
actions.add("move", Move, lambda params, world: world.move(params.direction), description="Take a step.")
```
"""

import inspect
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import wait
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from grue import AnswerSpec, ToolAnnotations
from grue import messages as m
from grue.errors import MCPConfigError
from grue.runtime.loops.beside_loop import start_in_daemon_thread

AGENT = "agent"  # the server name of actions in the names that policies match: `agent.write_file`

StepStatus: TypeAlias = Literal["completed", "failed", "denied", "skipped", "interrupted"]

_MOST_ACTIONS = 50
_NO_ACTIONS = 'it is not a JSON object {"actions": [{"type": ..., "params": {...}}]}'


class Action(Struct, frozen=True):
    """An action as the model wrote it."""

    type: str
    params: dict[str, Any] = {}


class ActionReply(Struct, frozen=True):
    """The model's reply as actions; `actions` is empty if the reply was unusable."""

    actions: list[Action]
    thought: str = ""


class PlannedAction(Struct, frozen=True, kw_only=True):
    """An action of a reply, as the run records it; `step` is its number in the run, from 1."""

    step: int
    type: str
    params: m.JsonObject

    @property
    def target(self) -> str:
        """The tool, path or name that the action acts on; empty if the action's parameters name none."""
        found = (self.params.get(key) for key in ("tool_name", "path", "name"))
        return next((value for value in found if isinstance(value, str) and value), "")

    def ended(
        self, status: StepStatus, *, output: str = "", error: str = "", artifact: str = ""
    ) -> "StepExecutionResult":
        """Return the result of the action."""
        return StepExecutionResult(
            step=self.step,
            action=self.type,
            target=self.target,
            status=status,
            output=output,
            error=error,
            artifact=artifact,
        )


class StepExecutionResult(Struct, frozen=True, kw_only=True):
    """The result of one action; `action` is `reply` if the model's reply was unusable."""

    step: int
    action: str
    # `interrupted`: the process was killed during the action, which may have had an effect.
    status: StepStatus
    turn: int = 0
    target: str = ""
    output: str = ""  # as the model is shown it; for `respond`, `note` and `finish`, the model's own text
    error: str = ""
    artifact: str = ""  # the file with the whole result, relative to the run folder
    duration_s: float = 0.0
    attempts: int = 1


class ActionType(Struct, frozen=True):
    """A type of action; the fields are the arguments of `ActionTypes.add`."""

    name: str
    params: type[Struct]
    run: Callable[[Any, Any], str] | None  # `None`: the host carries out the action itself
    description: str = ""
    annotations: ToolAnnotations = ToolAnnotations()

    def definition(self) -> m.ToolDefinition:
        """Return the action as a tool that a `ToolPolicy` can judge."""
        return m.ToolDefinition(
            server=m.ServerName(AGENT),
            tool=self.name,
            description=self.description,
            input_schema=msgspec.json.schema(self.params),
            annotations=self.annotations,
            trusted=True,
        )

    def described(self) -> m.JsonObject:
        """Return a description of the type for a prompt, shorter than a JSON Schema."""
        _, parts = msgspec.json.schema_components([self.params])
        properties = parts[self.params.__name__]["properties"]
        params = {
            name: f"{schema.get('type', 'any value')}{', optional' if 'default' in schema else ''}"
            for name, schema in properties.items()
        }
        return {"type": self.name, "params": params, "description": self.description}


class ActionTypes:
    """The types of actions that a model can answer with, by name in `types`."""

    def __init__(self, types: Iterable[ActionType] = ()) -> None:
        self.types = {each.name: each for each in types}

    def add(
        self,
        name: str,
        params: type[Struct],
        run: Callable[[Any, Any], str],
        *,
        description: str = "",
        annotations: ToolAnnotations | None = None,
    ) -> None:
        """Add a type of action. The model writes `name` as an action's `type`. `params` is a msgspec Struct.

        `run` is called with an instance of `params` and the host's context, in a thread of its own. It
        returns the result for the model, or raises `ValueError` or `OSError` with the reason for the failure.
        The `description` is one sentence for the model; default: the first line of the function's docstring.
        The `annotations` `read_only` or `idempotent` allow repeating the action after a failure or a kill.
        """
        if name in self.types:
            raise MCPConfigError(f"There is an action {name!r} already: choose another name.")
        if not (isinstance(params, type) and issubclass(params, Struct)):
            raise MCPConfigError(f"The parameters of the action {name!r} should be a msgspec.Struct.")
        if not callable(run) or inspect.iscoroutinefunction(run) or inspect.isgeneratorfunction(run):
            raise MCPConfigError(f"The action {name!r} wants a plain function, which returns a text.")
        said = description or (run.__doc__ or "").strip().partition("\n")[0]
        kind = ActionType(name, params, run, said, annotations or ToolAnnotations())
        try:
            kind.described()
        except (KeyError, TypeError) as error:
            raise MCPConfigError(
                f"The parameters of the action {name!r} have no JSON Schema of an object: {params.__name__}"
                " should not be array_like, and its fields should be of types that JSON has, such as str."
            ) from error
        self.types[name] = kind

    def answer_spec(self, offered: Iterable[ActionType] | None = None) -> AnswerSpec[ActionReply]:
        """Return the spec of an answer: schema with the types in `offered` (`None`: all), parser with all."""
        return AnswerSpec(self.read, schema=self.schema(offered), name="actions", told=True)

    def schema(self, offered: Iterable[ActionType] | None = None) -> m.JsonObject:
        """Return the JSON Schema of a reply with the types in `offered`; `None`: with all types."""
        kinds = tuple(self.types.values() if offered is None else offered)
        schemas, parts = msgspec.json.schema_components(
            [each.params for each in kinds], ref_template="#/$defs/{name}"
        )
        types = [
            {
                "type": "object",
                "properties": {"type": {"type": "string", "enum": [each.name]}, "params": schema},
                "required": ["type", "params"],
                "additionalProperties": False,
            }
            for each, schema in zip(kinds, schemas, strict=True)
        ]
        actions = {"type": "array", "minItems": 1, "items": {"anyOf": types}}
        return {
            "type": "object",
            "properties": {"thought": {"type": "string"}, "actions": actions},
            "required": ["actions"],
            "additionalProperties": False,
            "$defs": parts,
        }

    def read(self, text: str) -> ActionReply:
        """Return the actions of a reply. The text of a `ValueError` is for the model."""
        try:
            reply: ActionReply = AnswerSpec.of(ActionReply).parse(text)
        except ValueError:
            try:
                reply = ActionReply([AnswerSpec.of(Action).parse(text)])
            except ValueError:
                raise ValueError(_NO_ACTIONS) from None
        if not 0 < len(reply.actions) <= _MOST_ACTIONS:
            raise ValueError(f"it has {len(reply.actions)} actions; there should be 1 to {_MOST_ACTIONS}")
        for number, action in enumerate(reply.actions):
            self.params(action.type, action.params, f"actions[{number}]")
        return reply

    def params(self, name: str, params: dict[str, Any], where: str = "params") -> Any:
        """Return the model's `params` as the Struct of the action `name`, or raise `ValueError`."""
        kind = self.types.get(name)
        if kind is None:
            raise ValueError(f"{where}: there is no action {name!r}; there are {', '.join(self.types)}")
        # A strict schema requires every property, so a model writes `null` for one that it would leave out.
        fields = msgspec.structs.fields(kind.params)
        nullable = {each.encode_name for each in fields if each.required and _admits_null(each.type)}
        given = {key: value for key, value in params.items() if value is not None or key in nullable}
        try:
            return msgspec.convert(given, kind.params, str_keys=True)
        except msgspec.ValidationError as error:
            raise ValueError(f"{where}: {error}") from error

    def carry_out(self, name: str, params: dict[str, Any], context: object, *, timeout_s: float) -> str:
        """Carry out an action and return its result for the model; blocking.

        The function runs in a daemon thread. At the time limit and after Ctrl-C, its result is dropped, but
        the function runs on, because Python cannot stop a thread. Raises `ValueError` for wrong parameters
        or an action without a function, `TimeoutError` at the limit, and whatever else the function raises.
        """
        converted, run = self.params(name, params), self.types[name].run
        if run is None:
            raise ValueError(f"the host carries out {name!r} itself")
        result = start_in_daemon_thread(lambda: str(run(converted, context)))
        if not wait([result], None if timeout_s > threading.TIMEOUT_MAX else timeout_s).done:
            raise TimeoutError(
                f"The action {name} was not done after {timeout_s:.3g} s, when its time was over. It may have"
                " had an effect, and may still have one."
            )
        return result.result()


def _admits_null(kind: Any) -> bool:
    try:
        msgspec.convert(None, kind)
    except msgspec.ValidationError:
        return False
    return True


# --- Actions on the files of a folder ---


# No docstrings here: they would become descriptions in the model's schema.
class FilePath(Struct):  # noqa: D101
    path: str


class FolderPath(Struct):  # noqa: D101
    path: str = "."


class WriteFile(Struct):  # noqa: D101
    path: str
    content: str


def _list_files(params: FolderPath, context: Any) -> str:
    return "\n".join(context.workspace.entries(params.path)) or "The folder is empty."


def _read_file(params: FilePath, context: Any) -> str:
    return str(context.workspace.read(params.path))


def _write_file(params: WriteFile, context: Any) -> str:
    return f"{context.workspace.write(params.path, params.content)} bytes written to {params.path}"


READS = ToolAnnotations(read_only=True, open_world=False)
_WRITES = ToolAnnotations(read_only=False, idempotent=True, open_world=False)

FILE_ACTIONS = (
    ActionType("list_files", FolderPath, _list_files, "List a folder of the workspace.", READS),
    ActionType("read_file", FilePath, _read_file, "Read a text file of the workspace.", READS),
    ActionType(
        "write_file", WriteFile, _write_file, "Write or replace a text file of the workspace.", _WRITES
    ),
)
"""`list_files`, `read_file` and `write_file`, for a context whose `workspace` is a `ConfinedFolder`."""
