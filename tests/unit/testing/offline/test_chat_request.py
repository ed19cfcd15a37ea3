"""The scripted model refuses every request that a provider would refuse, and says why."""

import copy
import json
import re

import pytest
from case_tables import each_case

from grue.testing.offline.chat_request import BadRequestError, Part, decode_body, read_request, text_of

CALL = {"id": "c1", "type": "function", "function": {"name": "a.b", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "a.b", "parameters": {"type": "object", "properties": {}}}}
USER = {"role": "user", "content": "hello"}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ANSWERED = {"role": "tool", "tool_call_id": "c1", "content": "{}"}
MARKED = {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}
SHAPE = {
    "type": "object",
    "properties": {"a": {"type": ["string", "null"]}, "b": {"anyOf": [{"$ref": "#/$defs/b"}]}},
    "required": ["a", "b"],
    "additionalProperties": False,
    "$defs": {"b": {"type": "array", "items": {"type": "integer"}}},
}
OPEN_SHAPE = {**SHAPE, "additionalProperties": True}
EMPTY_TEXT = "messages[{}]: text content blocks must be non-empty"


def body(*messages, **fields):
    return json.dumps({"model": "any", "messages": list(messages) or [USER]} | fields).encode()


def call(**changes):
    return {"role": "assistant", "tool_calls": [CALL | changes]}


def strict(schema, name="Answer"):
    return {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": schema}}


@pytest.mark.parametrize(
    "request_body",
    [
        body({"role": "system", "content": "Play."}, {"role": "developer", "content": "Well."}, USER),
        body(USER, ASKED, ANSWERED, USER, tools=[TOOL], tool_choice="auto", parallel_tool_calls=True),
        body(USER, ASKED, ANSWERED, USER, tools=[TOOL], tool_choice="none", response_format=strict(SHAPE)),
        body(*[MARKED] * 4, temperature=0.7, top_p=1, top_k=40, min_p=0, max_tokens=100, stop=["x"], seed=1),
        body({"role": "user", "content": "Answer in JSON."}, response_format={"type": "json_object"}),
        body(response_format={"type": "text"}, stream=False, max_completion_tokens=1),
        body(USER, {"role": "assistant", "content": "Hm.", "reasoning_content": "..."}, USER),
    ],
)
def test_what_providers_take_is_taken(request_body):
    assert read_request(decode_body(request_body)).model == "any"


@each_case(
    "said, request_body",
    [
        ("not parse", b"no json"),
        ("not parse", b"\xff"),
        ("not parse", b"[" * 100_000),
        ("not parse", b"[]"),
        ("Invalid 'messages'", b'{"model": "any"}'),
        ("Invalid 'messages'", b'{"model": "any", "messages": []}'),
        ("model parameter", body(model="")),
        ("Unknown parameter: 'top_z'", body(top_z=1)),
        ("Invalid 'temperature'", body(temperature=3)),
        ("Invalid 'max_tokens'", body(max_tokens=0)),
        ("Invalid 'n'", body(n=2)),
        ("Invalid value: 'wizard'", body({"role": "wizard", "content": "x"})),
        (EMPTY_TEXT.format(0), body({"role": "user", "content": ""})),
        (EMPTY_TEXT.format(0), body({"role": "user", "content": []})),
        (
            EMPTY_TEXT.format(0),
            body({"role": "user", "content": [{"type": "text", "text": ""}]}),
        ),
        ("got null. (messages[1])", body(USER, {"role": "assistant", "content": None})),
        (
            EMPTY_TEXT.format(1),
            body(USER, {"role": "assistant", "content": ""}),
        ),
        (
            "Invalid 'messages[1].tool_calls'",
            body(USER, {"role": "assistant", "content": "x", "tool_calls": []}),
        ),
        ("messages[1]: duplicate", body(USER, {"role": "assistant", "tool_calls": [CALL, CALL]}, ANSWERED)),
        ("messages[4]: duplicate", body(USER, ASKED, ANSWERED, USER, ASKED, ANSWERED)),
        ("'messages[1].tool_calls[0].id'", body(USER, call(id=""), ANSWERED)),
        ("'messages[1].tool_calls[0].type'", body(USER, call(type="method"), ANSWERED)),
        (
            "Invalid 'messages[1].tool_calls[0].function.arguments'",
            body(USER, call(function={"name": "x", "arguments": "{not"}), ANSWERED),
        ),
        (
            "Invalid 'messages[1].tool_calls[0].function.arguments'",
            body(USER, call(function={"name": "x", "arguments": "[]"}), ANSWERED),
        ),
        ("did not have response messages: c1", body(USER, ASKED)),
        ("did not have response messages: c1", body(USER, ASKED, USER)),
        ("messages[1]: messages with role 'tool'", body(USER, ANSWERED)),
        ("messages[3]: messages with role 'tool'", body(USER, ASKED, ANSWERED, ANSWERED)),
        (
            EMPTY_TEXT.format(2),
            body(USER, ASKED, {**ANSWERED, "content": ""}),
        ),
        ("maximum of 4 blocks", body(*[MARKED] * 5)),
        ("Invalid 'tools'", body(tools=[])),
        ("Invalid 'tools'", body(tools=None)),
        ("Tool names must be unique", body(tools=[TOOL, TOOL])),
        ("tools[0].type", body(tools=[{**TOOL, "type": "x"}])),
        (
            "Invalid schema for function 'a'",
            body(tools=[{"type": "function", "function": {"name": "a", "parameters": {}}}]),
        ),
        ("'tool_choice' is only allowed", body(tool_choice="auto")),
        ("Invalid request: Invalid enum value 'required'", body(tools=[TOOL], tool_choice="required")),
        ("'parallel_tool_calls' is only allowed", body(parallel_tool_calls=True)),
        ("contain the word 'json'", body(response_format={"type": "json_object"})),
        ("Invalid value: 'xml'", body(response_format={"type": "xml"})),
        ("response_format.json_schema.name", body(response_format=strict(SHAPE, name="An answer"))),
        ("must be of type 'object'", body(response_format=strict({"type": "string"}))),
        (
            "'additionalProperties' is required",
            body(response_format=strict({**SHAPE, "additionalProperties": True})),
        ),
        ("'required' is required", body(response_format=strict({**SHAPE, "required": ["a"]}))),
        (
            "'additionalProperties' is required",
            body(
                response_format=strict(
                    {**SHAPE, "$defs": {"b": {"type": "array", "items": {"type": "object"}}}}
                )
            ),
        ),
    ],
)
def test_what_providers_refuse_is_refused(said, request_body):
    with pytest.raises(BadRequestError) as refused:
        read_request(decode_body(request_body))

    assert said in str(refused.value)


def test_an_unanswered_call_is_named():
    with pytest.raises(BadRequestError, match=r"did not have response messages: c1$"):
        read_request(decode_body(body(USER, ASKED)))


@pytest.mark.parametrize(
    ("param", "messages"),
    [
        ("tools[0].function.name", [USER]),
        ("messages[1].tool_calls[0].function.name", [USER, ASKED, ANSWERED]),
    ],
)
def test_names_that_openai_refuses_are_refused_on_demand(param, messages):
    tools = [] if len(messages) > 1 else [TOOL]
    request_body = body(*messages, **({"tools": tools} if tools else {}))

    assert read_request(decode_body(request_body))
    with pytest.raises(BadRequestError, match=re.escape(f"Invalid '{param}': string does not match")):
        read_request(decode_body(request_body), strict_names=True)


def test_encoded_names_are_taken_on_demand():
    encoded = copy.deepcopy(TOOL)
    encoded["function"]["name"] = "a__b"

    assert read_request(decode_body(body(tools=[encoded])), strict_names=True).offered[0].name == "a__b"


def test_the_text_of_a_message_leaves_pictures_out():
    assert text_of((Part("text", "a"), Part("image_url"), Part("text", "b"))) == "ab"
    assert text_of(None) == ""
