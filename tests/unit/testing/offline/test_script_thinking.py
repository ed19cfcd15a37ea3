"""Which tools are for thinking, and arguments that their schemas accept."""

import pytest
from case_tables import each_case

from grue.hosts.servers import think
from grue.testing.offline.chat_request import Function
from grue.testing.offline.repertoire import Thought
from grue.testing.offline.script import thinking_tool

# As the npm server documents it: sequential-thinking 0.6 and later, with bounds; earlier ones without.
SEQUENTIAL = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "thought": {"type": "string", "description": "Your current thinking step"},
        "nextThoughtNeeded": {"type": "boolean", "description": "Whether another thought step is needed"},
        "thoughtNumber": {"type": "integer", "minimum": 1, "maximum": 9007199254740991},
        "totalThoughts": {"type": "integer", "minimum": 1, "maximum": 9007199254740991},
        "isRevision": {"type": "boolean"},
        "revisesThought": {"type": "integer", "minimum": 1},
        "branchFromThought": {"type": "integer", "minimum": 1},
        "branchId": {"type": "string"},
        "needsMoreThoughts": {"type": "boolean"},
    },
    "required": ["thought", "nextThoughtNeeded", "thoughtNumber", "totalThoughts"],
}
SNAKE = {
    "type": "object",
    "properties": {
        "reasoning": {"type": "string"},
        "thought_number": {"type": "integer"},
        "mode": {"type": "string", "enum": ["fast", "slow"]},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "context": {"type": "object", "properties": {"depth": {"type": "integer"}}, "required": ["depth"]},
        "loud": {"type": "boolean"},
    },
    "required": ["reasoning", "thought_number", "mode", "tags", "context", "loud"],
    "additionalProperties": False,
}
ECHO = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
FILE = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["path", "content"],
}
SUM = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
    "required": ["a", "b"],
}
PLAIN = Thought("A window that is ajar is a door with less pride.")


def function(name, parameters):
    return Function(name, parameters)


@each_case("schema", [think.INPUT_SCHEMA, SEQUENTIAL, SNAKE, ECHO])
@each_case("thought", [PLAIN, Thought("No.", revises=1), Thought("Or.", branches_from=1)])
def test_arguments_are_valid(schema, thought):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install mcp")
    tool = thinking_tool([function("echo" if schema is ECHO else "t", schema)])
    assert tool is not None
    arguments = tool.arguments(thought, 2, 3)

    jsonschema.validate(arguments, schema)
    assert arguments[tool.carrier] == thought.text


@pytest.mark.parametrize("schema", [think.INPUT_SCHEMA, SEQUENTIAL], ids=["think", "npm"])
def test_thoughts_are_numbered_and_the_last_one_says_so(schema):
    tool = thinking_tool([function("sequential-thinking__sequentialthinking", schema)])
    assert tool is not None

    assert tool.arguments(PLAIN, 1, 2) == {
        "thought": PLAIN.text,
        "thoughtNumber": 1,
        "totalThoughts": 2,
        "nextThoughtNeeded": True,
    }
    assert tool.arguments(PLAIN, 2, 2)["nextThoughtNeeded"] is False
    revision = tool.arguments(Thought("No.", revises=1), 2, 2)
    assert (revision["isRevision"], revision["revisesThought"]) == (True, 1)
    branch = tool.arguments(Thought("Or.", branches_from=1), 2, 2)
    assert (branch["branchFromThought"], branch["branchId"]) == (1, "instead-of-1")


def test_a_tool_without_words_for_it_is_not_told_of_a_revision():
    half = {**SNAKE, "properties": {**SNAKE["properties"], "is_revision": {"type": "boolean"}}}
    tool = thinking_tool([function("ponder", half)])
    assert tool is not None

    assert tool.arguments(Thought("No.", revises=1), 2, 3) == {
        "reasoning": "No.",
        "thought_number": 2,
        "mode": "fast",
        "tags": ["No."],
        "context": {"depth": 1},
        "loud": False,
    }


@each_case(
    "offered, chosen",
    [
        ({"think__think": think.INPUT_SCHEMA}, "think__think"),
        ({"think.think": think.INPUT_SCHEMA}, "think.think"),
        ({"fs__write_file": FILE, "everything__get-sum": SUM}, None),
        ({"everything__echo": ECHO, "everything__get-sum": SUM}, "everything__echo"),
        ({"everything__echo": ECHO, "st__sequentialthinking": SEQUENTIAL}, "st__sequentialthinking"),
        ({"reflect": ECHO}, "reflect"),
        ({"speak": ECHO}, None),
        ({"think": {"type": "object"}}, None),
        ({"think": {"type": "object", "properties": [], "required": "thought"}}, None),
        ({"thoughtbox": {"type": "object", "properties": {"op": {"enum": ["a"]}}, "required": ["op"]}}, None),
        ({"think": {**ECHO, "properties": {"message": {"type": "string", "pattern": "^a+$"}}}}, None),
        ({"think": {**SEQUENTIAL, "not": {}}, "wise.thinker": SNAKE}, "wise.thinker"),
        ({}, None),
    ],
)
def test_a_thinking_tool_is_told_by_its_schema_and_called_as_it_is_offered(offered, chosen):
    tool = thinking_tool([function(name, schema) for name, schema in offered.items()])

    assert (tool.name if tool else None) == chosen
