"""The reply to a request, from nothing but the request."""

import json

import pytest
from offline_play import THINK, ask, history

from grue.hosts.zork.agent import SYSTEM_PROMPT, AgentResponse, answer_spec
from grue.hosts.zork.games.game import Observation
from grue.hosts.zork.orchestrator import Move, context_text
from grue.messages import FINAL_REQUEST
from grue.protocol.chat_wire.strict_schema import strict_schema
from grue.testing.offline.chat_request import BadRequestError
from grue.testing.offline.repertoire import house_playbook

HOUSE = house_playbook(7)
COMMANDS = [step.command for step in HOUSE.steps]
PUZZLE = COMMANDS.index("dial 734")
DONE = {"content": {"thoughtNumber": 1}}
FAILED = {"error": "Tool call timed out after 30s", "content": None}
SHORT = {"type": "object", "properties": {"thought": {"type": "string", "maxLength": 40}}}
TERSE = {"type": "function", "function": {"name": "think", "parameters": SHORT}}
FINAL = {"role": "user", "content": FINAL_REQUEST}


def turn(place, *later, **fields):
    """A request in the turn that the script's command number `place` is for."""
    moves = [Move(command, "Fine.", "Hall", 0) for command in COMMANDS[:place]]
    user = context_text("The House", place + 1, Observation(text="Here you are.", location="Hall"), moves, [])
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": user}, *later]
    return {"model": "any", "messages": messages, **fields}


def shaped(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "Answer", "schema": schema}}}


def after(*results):
    """The messages after so many rounds of thinking before the vault."""
    later = []
    for result in results:
        said = ask(turn(PUZZLE, *later, tools=[THINK]), HOUSE)
        later += history(said, [result])
    return later


def decision(request):
    said = ask(request, HOUSE)
    assert said.calls == ()
    return json.loads(said.content)


def test_a_puzzle_is_thought_about_once_a_reply_then_answered():
    request = turn(PUZZLE, *after(DONE, DONE), tools=[THINK])
    (call,) = ask(request, HOUSE).calls
    assert (call.name, json.loads(call.arguments)["thoughtNumber"]) == ("think__think", 3)

    answer = decision(turn(PUZZLE, *after(DONE, DONE, DONE), tools=[THINK]))
    assert answer["action"] == "dial 734"
    assert answer["thinking"].endswith("(scripted)")


def test_two_calls_can_come_in_one_reply_with_ids_of_their_own():
    said = ask(turn(COMMANDS.index("open teapot"), tools=[THINK]), HOUSE)

    assert len({call.id for call in said.calls}) == 2


@pytest.mark.parametrize(
    "request_",
    [
        turn(PUZZLE),
        turn(PUZZLE, tools=[THINK], tool_choice="none"),
        turn(PUZZLE, tools=[TERSE]),
        turn(PUZZLE, *after(FAILED), tools=[THINK]),
        turn(PUZZLE, *after(DONE), FINAL, tools=[THINK]),
        turn(PUZZLE, *after(DONE), FINAL, **shaped(AgentResponse.model_json_schema())),
        turn(PUZZLE, *after(DONE), FINAL, **shaped(strict_schema(AgentResponse.model_json_schema()))),
        turn(PUZZLE, response_format={"type": "json_object"}),
    ],
    ids=[
        "no tools",
        "choice none",
        "too long",
        "failed",
        "final with tools",
        "final",
        "final strict",
        "json object",
    ],
)
def test_where_thinking_is_no_use_it_answers_at_once(request_):
    answer = decision(request_)

    assert list(answer) == ["thinking", "action", "new_objective"]
    assert answer_spec().parse(json.dumps(answer)).action == "dial 734"


def test_most_turns_need_no_thinking_and_some_bring_an_objective():
    assert decision(turn(0, tools=[THINK]))["new_objective"] is None
    assert "deed" in decision(turn(2, tools=[THINK]))["new_objective"]
    assert decision(turn(2, **shaped(strict_schema(AgentResponse.model_json_schema()))))["new_objective"]


def test_the_tool_is_called_by_the_name_on_offer():
    tool = {**THINK, "function": {**THINK["function"], "name": "think.think"}}

    assert ask(turn(PUZZLE, tools=[tool]), HOUSE).calls[0].name == "think.think"


def test_a_game_without_a_script_is_explored():
    user = context_text("lake", 1, Observation(text="A lake. A path leads north."), [], [])
    request = {"model": "any", "messages": [{"role": "user", "content": user}], "tools": [THINK]}

    assert decision(request)["action"] == "north"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        (shaped({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}), {"n": 1}),
    ],
)
def test_other_conversations_are_answered_politely(fields, expected):
    said = ask({"model": "any", "messages": [{"role": "user", "content": "Who are you?"}], **fields})

    assert said.content is not None
    if expected is None:
        assert said.content.endswith("(scripted)")
    else:
        assert json.loads(said.content) == expected


def test_a_host_that_wants_an_action_gets_one_even_without_a_game():
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": "Well?"}]
    answer = decision({"model": "any", "messages": messages, "tools": [THINK]})

    assert (answer["action"], answer["new_objective"]) == ("look", None)
    assert answer["thinking"].endswith("(scripted)")


def test_a_shape_that_cannot_be_filled_is_refused():
    with pytest.raises(BadRequestError, match="cannot fill this schema") as refused:
        ask(turn(0, **shaped({"not": {}})))
    assert refused.value.param == "response_format"
