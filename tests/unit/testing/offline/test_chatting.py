"""The scripted model of `grue chat --offline`: what it calls, and what it says."""

from typing import Any

import msgspec
import pytest

from grue.messages import FINAL_REQUEST
from grue.testing.offline.chat_request import ChatRequest
from grue.testing.offline.chatting import reply_in_chat

THINK = {
    "type": "object",
    "properties": {"thought": {"type": "string"}, "thoughtNumber": {"type": "integer"}},
    "required": ["thought"],
}
ADD = {"type": "object", "properties": {"x": {"type": "integer"}}}


def request(*messages: Any, tools: bool = True) -> ChatRequest:
    offered = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in (("mcp__mind__think", THINK), ("tools.add", ADD))
    ]
    said = [
        {"role": "user", "content": each} if isinstance(each, str) else {"role": each[0], "content": each[1]}
        for each in messages
    ]
    body = {"model": "m", "messages": said, **({"tools": offered} if tools else {})}
    return msgspec.convert(body, ChatRequest)


def test_it_makes_the_calls_that_are_spelled_out() -> None:
    calls = reply_in_chat(request('call tools.add {"x": 1}\nand then\ncall mcp.mind.think')).calls
    assert [(call.name, call.arguments) for call in calls] == [
        ("tools.add", '{"x": 1}'),
        ("mcp__mind__think", "{}"),
    ]
    assert len({call.id for call in calls}) == 2


def test_the_names_of_mcp_tools_may_be_written_without_their_prefix() -> None:
    assert reply_in_chat(request("call mind.think")).calls[0].name == "mcp__mind__think"
    assert "I have no tool think." in (reply_in_chat(request("call think")).content or "")


def test_arguments_that_are_no_json_are_passed_on() -> None:
    assert reply_in_chat(request("call tools.add {x")).calls[0].arguments == "{x"


def test_it_thinks_with_a_thinking_tool() -> None:
    (call,) = reply_in_chat(request("think about doors")).calls
    assert call.name == "mcp__mind__think"
    assert msgspec.json.decode(call.arguments)["thought"] == "doors"
    assert "no tool to think with" in (reply_in_chat(request("think about x", tools=False)).content or "")


def test_it_says_so_if_a_thought_is_too_long_for_the_tool() -> None:
    limited = {**THINK, "properties": {"thought": {"type": "string", "maxLength": 40}}}
    tool = {"type": "function", "function": {"name": "think", "parameters": limited}}
    said = [{"role": "user", "content": "think about " + "x" * 41}]
    reply = reply_in_chat(msgspec.convert({"model": "m", "messages": said, "tools": [tool]}, ChatRequest))
    assert reply.content == "My tool think does not take this thought. (scripted)"


def test_it_repeats_what_the_tools_have_said() -> None:
    once = reply_in_chat(request("call tools.add", ("assistant", None), ("tool", '{"content": 3}')))
    assert once.content == 'The tool says: {"content": 3} (scripted)'
    twice = reply_in_chat(request("call tools.add", ("tool", "a"), ("tool", "b" * 1000)))
    assert twice.content is not None
    assert twice.content.splitlines()[1] == "- a"
    assert len(twice.content) < 400


IMAGE = [{"type": "text", "text": "[Returned by the tool call a:]"}, {"type": "image_url"}]


@pytest.mark.parametrize("added", [IMAGE, FINAL_REQUEST])
def test_a_user_message_of_grues_own_is_not_taken_for_the_users(added: Any) -> None:
    shown = ("call tools.add", ("assistant", None), ("tool", "3"), ("user", added))
    assert reply_in_chat(request(*shown)).content == "The tool says: 3 (scripted)"
    said = reply_in_chat(request(*shown, ("assistant", "3"), "what did I say?"))
    assert said.content == "You have said (scripted):\n- call tools.add"


@pytest.mark.parametrize("names", [("a.größe", "a.gräße"), ("a.read_all", "a.readall")])
@pytest.mark.parametrize("wanted", [0, 1])
def test_of_tools_with_similar_names_the_named_one_is_called(names: tuple[str, str], wanted: int) -> None:
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in names]
    said = [{"role": "user", "content": f'call {names[wanted]} {{"text": "a\u2028b"}}'}]
    (call,) = reply_in_chat(
        msgspec.convert({"model": "m", "messages": said, "tools": tools}, ChatRequest)
    ).calls
    assert (call.name, call.arguments) == (names[wanted], '{"text": "a\u2028b"}')


def test_it_knows_what_was_said() -> None:
    said = reply_in_chat(request("my name is Ada", ("assistant", "hm"), "what did I say?"))
    assert said.content == "You have said (scripted):\n- my name is Ada"
    assert "first thing" in (reply_in_chat(request("What did I say?")).content or "")


@pytest.mark.parametrize("messages", [("hello",), (("system", "x"),), ("",)])
def test_to_everything_else_it_says_what_it_is(messages: tuple[Any, ...]) -> None:
    assert "a script that stands in for a model" in (reply_in_chat(request(*messages)).content or "")


def test_a_tool_that_is_not_offered_is_named() -> None:
    said = reply_in_chat(request("call files.read {}")).content
    assert said == "I have no tool files.read. I have: mcp__mind__think, tools.add. (scripted)"
