"""What the doubles do when used wrongly, or told to misbehave; the rest is in the contract suites."""

import pytest

from grue.hosts.zork.chat_messages import FunctionCall, ToolCall
from grue.messages import ToolCallResult
from grue.testing.doubles import THINK, MockLLMClient, MockMCPManager

pytestmark = pytest.mark.anyio


async def test_a_manager_answers_as_the_required_one_before_a_connect_and_for_any_tool() -> None:
    manager = MockMCPManager()
    (schema,) = await manager.get_tool_schemas()
    assert schema["function"]["name"] == THINK
    assert await manager.call_tool(THINK, {}) == ToolCallResult({"default": "result"})
    assert await manager.call_tool("other.tool", {}) == ToolCallResult({"default": "result"})
    assert (manager.connected, manager.call_count) == (False, 2)


async def test_a_manager_refuses_to_connect_as_it_is_told() -> None:
    manager = MockMCPManager()
    manager.connect_error = OSError("no such program")
    with pytest.raises(OSError, match="no such program"):
        await manager.connect_session()
    assert (manager.connected, manager.connect_count) == (False, 0)


async def test_a_tool_answers_as_it_was_last_told() -> None:
    manager = MockMCPManager()
    await manager.connect_session()
    assert await manager.call_tool(THINK, {}) == ToolCallResult({"default": "result"})
    manager.set_timeout(THINK)
    with pytest.raises(TimeoutError, match="after 3s"):
        await manager.call_tool(THINK, {}, timeout_seconds=3)
    manager.set_tool_error(THINK, "no", content=[1])
    assert await manager.call_tool(THINK, {}) == ToolCallResult([1], is_error=True, error_message="no")
    manager.set_tool_result(THINK, {1, 2})
    assert (await manager.call_tool(THINK, {})).content == [1, 2]


async def test_a_tool_that_was_told_what_to_answer_is_listed() -> None:
    manager = MockMCPManager("mind")
    manager.set_tool_result("mind.count", 3)
    await manager.connect_session()
    names = [schema["function"]["name"] for schema in await manager.get_tool_schemas()]
    assert names == ["mind.think", "mind.count"]
    assert (await manager.call_tool("mind.other", {})).content == {"default": "result"}


def test_tool_calls_may_be_given_in_any_form() -> None:
    client = MockLLMClient()
    given = ToolCall("a", "function", FunctionCall(THINK, "{}"))
    client.add_response(
        tool_calls=[
            given,
            {"id": "b", "function": {"name": THINK, "arguments": "{}"}},
            {"name": THINK, "arguments": {"thought": "hm"}},
        ]
    )
    response = client.chat_completions_create(model="m", messages=[])
    assert response.tool_calls == [
        given,
        ToolCall("b", "function", FunctionCall(THINK, "{}")),
        ToolCall("call_mock_2", "function", FunctionCall(THINK, '{"thought": "hm"}')),
    ]
    client.close()


def test_a_client_says_of_tools_what_it_is_told_to() -> None:
    client = MockLLMClient()
    assert client._supports_tool_calling("gpt-4o")
    assert not client._supports_tool_calling("o1-mini"), "as a real client, which goes by the name"
    client.supports_tools = True
    assert client._supports_tool_calling("o1-mini")
    client.supports_tools = False
    assert not client._supports_tool_calling("gpt-4o", None)


def test_a_recorded_request_stays_as_it_was_sent() -> None:
    client = MockLLMClient()
    client.add_response("A door.")
    messages = [{"role": "user", "content": "Look!"}]
    client.chat.completions.create(model="m", messages=messages)
    messages.append({"role": "assistant", "content": "A door."})
    assert client.requests[0]["messages"] == messages[:1]
