"""What a provider would refuse, the scripted model refuses, and names the place."""

import copy
import json

import pytest

from grue.offline.chat_request import BadRequestError, ImagePart, TextPart, read_request, text_of

CALL = {"id": "c1", "type": "function", "function": {"name": "a.b", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "a.b", "parameters": {"type": "object"}}}
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
    assert read_request(request_body).model == "any"


@pytest.mark.parametrize(
    ("param", "request_body"),
    [
        (None, b"no json"),
        (None, b"\xff"),
        (None, b"[" * 100_000),
        (None, b"[]"),
        (None, b'{"model": "any"}'),
        ("messages", b'{"model": "any", "messages": []}'),
        ("model", body(model="")),
        (None, body(top_z=1)),
        ("temperature", body(temperature=3)),
        ("max_tokens", body(max_tokens=0)),
        ("n", body(n=2)),
        ("stream", body(stream=True)),
        ("messages[0].role", body({"role": "wizard", "content": "x"})),
        ("messages[0].content", body({"role": "user", "content": ""})),
        ("messages[0].content", body({"role": "user", "content": []})),
        ("messages[0].content[0].text", body({"role": "user", "content": [{"type": "text", "text": ""}]})),
        ("messages[1].content", body(USER, {"role": "assistant", "content": None})),
        ("messages[1].content", body(USER, {"role": "assistant", "content": ""})),
        ("messages[1].tool_calls", body(USER, {"role": "assistant", "content": "x", "tool_calls": []})),
        ("messages[1].tool_calls", body(USER, {"role": "assistant", "tool_calls": [CALL, CALL]}, ANSWERED)),
        ("messages[4].tool_calls", body(USER, ASKED, ANSWERED, USER, ASKED, ANSWERED)),
        ("messages[1].tool_calls[0].id", body(USER, call(id=""), ANSWERED)),
        ("messages[1].tool_calls[0].type", body(USER, call(type="method"), ANSWERED)),
        (
            "messages[1].tool_calls[0].function.arguments",
            body(USER, call(function={"name": "x", "arguments": "{not"}), ANSWERED),
        ),
        (
            "messages[1].tool_calls[0].function.arguments",
            body(USER, call(function={"name": "x", "arguments": "[]"}), ANSWERED),
        ),
        ("messages", body(USER, ASKED)),
        ("messages[2]", body(USER, ASKED, USER)),
        ("messages[1].tool_call_id", body(USER, ANSWERED)),
        ("messages[3].tool_call_id", body(USER, ASKED, ANSWERED, ANSWERED)),
        ("messages[2].content", body(USER, ASKED, {**ANSWERED, "content": ""})),
        ("messages", body(*[MARKED] * 5)),
        ("tools", body(tools=[])),
        ("tools", body(tools=None)),
        ("tools", body(tools=[TOOL, TOOL])),
        ("tools[0].type", body(tools=[{**TOOL, "type": "x"}])),
        (
            "tools[0].function.parameters",
            body(tools=[{"type": "function", "function": {"name": "a", "parameters": {}}}]),
        ),
        ("tool_choice", body(tool_choice="auto")),
        ("tool_choice", body(tools=[TOOL], tool_choice="required")),
        ("parallel_tool_calls", body(parallel_tool_calls=True)),
        ("messages", body(response_format={"type": "json_object"})),
        ("response_format.type", body(response_format={"type": "xml"})),
        ("response_format.json_schema.name", body(response_format=strict(SHAPE, name="An answer"))),
        ("response_format", body(response_format=strict({"type": "string"}))),
        ("response_format", body(response_format=strict({**SHAPE, "additionalProperties": True}))),
        ("response_format", body(response_format=strict({**SHAPE, "required": ["a"]}))),
        (
            "response_format",
            body(
                response_format=strict(
                    {**SHAPE, "$defs": {"b": {"type": "array", "items": {"type": "object"}}}}
                )
            ),
        ),
    ],
)
def test_what_providers_refuse_is_refused(param, request_body):
    with pytest.raises(BadRequestError) as refused:
        read_request(request_body)

    assert refused.value.param == param
    assert str(refused.value)


def test_an_unanswered_call_is_named():
    with pytest.raises(BadRequestError, match=r"each of them; these have none: c1$"):
        read_request(body(USER, ASKED))


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

    assert read_request(request_body)
    with pytest.raises(BadRequestError, match="does not match pattern") as refused:
        read_request(request_body, strict_names=True)
    assert refused.value.param == param


def test_encoded_names_are_taken_on_demand():
    encoded = copy.deepcopy(TOOL)
    encoded["function"]["name"] = "a__b"

    assert read_request(body(tools=[encoded]), strict_names=True).offered[0].name == "a__b"


def test_the_text_of_a_message_leaves_pictures_out():
    assert text_of((TextPart("a"), ImagePart({"url": "data:"}), TextPart("b"))) == "ab"
    assert text_of(None) == ""
