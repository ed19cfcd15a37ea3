"""The scripted model: a function from request to reply, without state."""

import contextlib
import hashlib
import re
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.testing.offline.chat_request import BadRequestError, ChatRequest, Function, text_of
from grue.testing.offline.repertoire import Playbook, Situation, Step, Thought, explore, read_standing
from grue.testing.offline.schema_instances import UnsatisfiableError, minimal
from grue.testing.providers.chat_rules import chat_call, chat_completion

MODEL: Final = "grue-offline-script"  # the model's name in every reply, whatever name the request has

# The base URL to configure. No request is sent to it: the script answers instead.
OFFLINE_URL: Final = "http://offline.invalid/v1"
_SCRIPTED: Final = "(scripted)"
_NO_GAME: Final = (
    "I am a script that stands in for a model: I play text adventures, and this is none that I know."
)


class FunctionCall(Struct, frozen=True):
    """A tool call. `name` is spelled as in the request; `arguments` is text, which should be JSON."""

    id: str
    name: str
    arguments: str


class Reply(Struct, frozen=True):
    """The model's reply: a text, or tool calls."""

    content: str | None = None
    calls: tuple[FunctionCall, ...] = ()


def reply(request: ChatRequest, playbook: Playbook | None = None) -> Reply:
    """Answer with the playbook's next command, or one that `explore` finds."""
    # If a thinking tool is offered, the first replies of a turn may call it with the step's thoughts instead.
    # Outside a game, the answer is `_NO_GAME`. Raises `BadRequestError` if no answer fits the schema.
    situation = read_standing(request)
    if situation is None:
        return Reply(content=_answer_without_game(request))
    step = (playbook and playbook.step_for(situation)) or explore(situation)
    tool = thinking_tool(request.offered)
    if tool is not None and not situation.settled and situation.rounds < len(step.rounds):
        with contextlib.suppress(UnsatisfiableError):  # the tool may limit the length of a thought
            return Reply(calls=_think(tool, step, situation))
    return Reply(content=_in_shape(request, _decision(step.why, step.command, step.objective)))


def _think(tool: "ThinkingTool", step: Step, situation: Situation) -> tuple[FunctionCall, ...]:
    total, done = sum(map(len, step.rounds)), situation.rounds
    first = sum(map(len, step.rounds[:done])) + 1  # thoughts are numbered from 1 in each turn
    return tuple(
        FunctionCall(
            id=f"call_offline_{situation.turn}_{number}",
            name=tool.name,
            arguments=msgspec.json.encode(tool.arguments(thought, number, total)).decode(),
        )
        for number, thought in enumerate(step.rounds[done], first)
    )


def _decision(why: str, command: str, objective: str | None = None) -> m.JsonObject:
    return {"thinking": f"{why} {_SCRIPTED}", "action": command, "new_objective": objective}


def _answer_without_game(request: ChatRequest) -> str:
    instructions = (text_of(each.content) for each in request.messages if each.role == "system")
    shape = request.response_format
    if (shape is not None and shape.type != "text") or any('"action"' in text for text in instructions):
        return _in_shape(request, _decision(_NO_GAME, "look"))
    return f"{_NO_GAME} {_SCRIPTED}"


def _in_shape(request: ChatRequest, decision: m.JsonObject) -> str:
    named = None if request.response_format is None else request.response_format.json_schema
    if named is None:
        return msgspec.json.encode(decision).decode()
    try:
        return msgspec.json.encode(minimal(named.schema, wishes=decision, text=_SCRIPTED)).decode()
    except UnsatisfiableError as error:
        words = f"The offline script cannot fill this schema: {error}."
        raise BadRequestError(words, param="response_format", code="unsupported_value") from error


def completion(body: bytes, said: Reply) -> m.JsonObject:
    """Return the completion for a request, with estimated token counts. Its id is made from the request."""
    message: m.JsonObject = {"role": "assistant", "content": said.content, "refusal": None}
    if said.calls:
        message["tool_calls"] = [chat_call(call.id, call.name, call.arguments) for call in said.calls]
    prompt = _tokens(len(body))
    written = _tokens(len(said.content or "") + sum(len(call.name + call.arguments) for call in said.calls))
    usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
    finish = "tool_calls" if said.calls else "stop"
    named = {"id": f"offline-{hashlib.sha256(body).hexdigest()[:24]}", "model": MODEL}
    return chat_completion(message, finish, usage) | named


def _tokens(characters: int) -> int:
    # English has about four characters a token.
    return max(1, characters // 4)


# --- Thinking ---


_THOUGHTFUL: Final = re.compile(r"thought|think|reason|reflect|ponder", re.IGNORECASE)
_HARMLESS: Final = re.compile(r"(?<![a-z])echo(?![a-z])", re.IGNORECASE)


class ThinkingTool(Struct, frozen=True):
    """A tool that takes a thought. `carrier` is the name of the argument for the thought's text."""

    name: str
    parameters: m.JsonObject
    carrier: str

    def arguments(self, thought: Thought, number: int, total: int) -> m.JsonObject:
        """Return arguments for thought `number` of `total`, or raise `UnsatisfiableError` if none fit."""
        properties = self.parameters.get("properties")
        listed = properties if isinstance(properties, dict) else {}
        names = {re.sub(r"[^a-z]", "", name.lower()): name for name in listed}
        wished: m.JsonObject = {
            "thoughtnumber": number,
            "totalthoughts": total,
            "nextthoughtneeded": number < total,
        }
        for extra in _extras(thought):
            if extra.keys() <= names.keys():
                wished |= extra
        wishes = {names[plain]: value for plain, value in wished.items() if plain in names}
        made = minimal(self.parameters, wishes={**wishes, self.carrier: thought.text}, text=thought.text)
        if not isinstance(made, dict) or made.get(self.carrier) != thought.text:
            raise UnsatisfiableError("the thought does not fit")
        return made


def thinking_tool(functions: Iterable[Function]) -> ThinkingTool | None:
    """Return the tool to think with: preferably one that takes a thought, else an echo tool, else `None`."""
    found = [tool for function in functions if (tool := _as_thinking_tool(function))]
    return min(found, key=lambda tool: _HARMLESS.search(tool.name) is not None, default=None)


def _as_thinking_tool(function: Function) -> ThinkingTool | None:
    properties = function.parameters.get("properties")
    required = function.parameters.get("required")
    named = list(properties) if isinstance(properties, dict) else []
    asked = [name for name in named if isinstance(required, list) and name in required]
    carriers = [name for name in named if _THOUGHTFUL.search(name)]
    if _THOUGHTFUL.search(function.name) or _HARMLESS.search(function.name):
        carriers += asked
    sample = Thought("A thought, to see whether it fits.")
    for carrier in carriers:
        tool = ThinkingTool(function.name, function.parameters, carrier)
        with contextlib.suppress(UnsatisfiableError):
            tool.arguments(sample, 1, 1)
            return tool
    return None


def _extras(thought: Thought) -> Iterable[m.JsonObject]:
    if thought.revises is not None:
        yield {"isrevision": True, "revisesthought": thought.revises}
    if thought.branches_from is not None:
        yield {"branchfromthought": thought.branches_from, "branchid": f"instead-of-{thought.branches_from}"}
