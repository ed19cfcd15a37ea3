"""Find a tool for thinking among the tools on offer, by names and schemas, and make arguments to call it."""

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from grue import messages as m
from grue.testing.offline.chat_request import Function
from grue.testing.offline.playbook import Thought
from grue.testing.offline.schema_instances import UnsatisfiableError, minimal

_THOUGHTFUL: Final = re.compile(r"thought|think|reason|reflect|ponder", re.IGNORECASE)
_HARMLESS: Final = re.compile(r"\becho\b|(?<![a-z])echo(?![a-z])", re.IGNORECASE)


class ThinkingTool(Struct, frozen=True):
    """A tool that takes a thought. `carrier` is the name of the argument for the thought's text."""

    name: str
    parameters: m.JsonObject
    carrier: str

    def arguments(self, thought: Thought, number: int, total: int) -> m.JsonObject:
        """Return arguments for thought `number` of `total` in the turn; raises `UnsatisfiableError`."""
        names = {_plain(name): name for name in self._properties()}
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

    def _properties(self) -> m.JsonObject:
        properties = self.parameters.get("properties")
        return properties if isinstance(properties, dict) else {}


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
        try:
            tool.arguments(sample, 1, 1)
        except UnsatisfiableError:
            continue
        return tool
    return None


def _extras(thought: Thought) -> Iterable[m.JsonObject]:
    if thought.revises is not None:
        yield {"isrevision": True, "revisesthought": thought.revises}
    if thought.branches_from is not None:
        yield {"branchfromthought": thought.branches_from, "branchid": f"instead-of-{thought.branches_from}"}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())
