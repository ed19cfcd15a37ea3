"""The injected function: what it gets, what the model reads of its results and errors, what a test sees."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field

from grue import FailurePolicy, FunctionTools, LlmSettings, StdioServer, TurnLimits
from grue.errors import MCPConfigError
from grue.hosts.agent_loop import AgentLoop, ToolStarted
from grue.messages import ToolDefinition
from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply

Call = tuple[str, dict[str, Any] | str]


def told(invoke: Callable[..., Any], *calls: Call, **how: Any) -> tuple[list[str], AgentLoop]:
    """What the model reads of each call, and the loop after an input with these calls."""
    with ScriptedLlmServer([tool_calls_reply(*calls), text_reply("done")]) as llm:
        with AgentLoop(LlmSettings(base_url=llm.base_url, model="m"), invoke_mcp_tool=invoke, **how) as loop:
            assert loop.run("go") == "done"
        messages = llm.requests[-1].messages
    return [message["content"] for message in messages if message["role"] == "tool"], loop


def test_it_gets_every_mcp_call_listed_or_not_with_parsed_arguments() -> None:
    got: list[tuple[str, object]] = []

    def invoke(name: str, arguments: dict[str, Any]) -> str:
        got.append((name, arguments))
        return "hello"

    calls: tuple[Call, ...] = (
        ("mcp.files.read", {"path": "a", "lines": [1, 2]}),
        ("mcp.other.thing", ""),
        ("mcp__web__get", '{"url": "x"}'),
    )
    read, loop = told(invoke, *calls, mcp_tools=["files.read"])
    assert got == [
        ("files.read", {"path": "a", "lines": [1, 2]}),
        ("other.thing", {}),
        ("web.get", {"url": "x"}),
    ]
    assert read == ["hello"] * 3
    assert [(call.name, call.result, call.error) for call in loop.mcp_calls] == [
        (name, "hello", None) for name, _ in got
    ]


def test_a_coroutine_function_will_do() -> None:
    async def invoke(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, **arguments}

    read, loop = told(invoke, ("mcp.files.read", {"n": 1}))
    assert read == ['{"name":"files.read","n":1}']
    assert loop.mcp_calls[0].result == {"name": "files.read", "n": 1}


def test_the_calls_are_those_of_the_last_input() -> None:
    replies = [
        tool_calls_reply(("mcp.files.read", {"n": 1}), ("mcp.files.read", {"n": 2})),
        text_reply("one"),
        tool_calls_reply(("mcp.files.read", {"n": 3})),
        text_reply("two"),
        text_reply("three"),
    ]
    with ScriptedLlmServer(replies) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with AgentLoop(settings, invoke_mcp_tool=lambda _, arguments: arguments["n"]) as loop:
            made = [[call.result for call in loop.mcp_calls] for text in "abc" if loop.run(text)]
    assert made == [[1, 2], [3], []]


def test_settings_may_name_the_servers_in_whose_place_it_is() -> None:
    servers = {"files": StdioServer(command="no-such-program")}
    policy = FailurePolicy(first_connects={"mcp.files": "disable"})
    limits = TurnLimits(startup_timeouts_s={"mcp.files": 5})
    call = ("mcp.files.read", {})
    read, _ = told(lambda *_: "text", call, servers=servers, policy=policy, limits=limits)
    assert read == ["text"]


def test_what_it_does_to_its_arguments_is_not_seen_elsewhere() -> None:
    events: list[Any] = []

    def invoke(_: str, arguments: dict[str, Any]) -> None:
        arguments["paths"].append("b")
        arguments.clear()

    replies = [tool_calls_reply(("mcp.files.read", {"paths": ["a"]})), text_reply("done")]
    with ScriptedLlmServer(replies) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with AgentLoop(settings, invoke_mcp_tool=invoke, on_event=events.append) as loop:
            loop.run("Read them.")
    assert [call.arguments for call in loop.mcp_calls] == [{"paths": ["a"]}]
    assert [event.arguments for event in events if isinstance(event, ToolStarted)] == [{"paths": ["a"]}]


async def fails_later(name: str, arguments: dict[str, Any]) -> None:
    raise FileNotFoundError(f"{name}: no such file")


def fails(name: str, arguments: dict[str, Any]) -> None:
    raise FileNotFoundError(f"{name}: no such file")


@pytest.mark.parametrize("invoke", [fails, fails_later])
def test_what_it_raises_is_an_error_text_and_a_test_has_the_exception(invoke: Callable[..., Any]) -> None:
    read, loop = told(invoke, ("mcp.files.read", {}), ("mcp.files.read", {"path": "b"}))
    error = "Tool call failed: FileNotFoundError: files.read: no such file"
    assert read == [f"Error: {error}"] * 2
    assert loop.last_outcome is not None
    assert [call.result.error_message for call in loop.last_outcome.tool_calls] == [error] * 2
    assert [str(call.error) for call in loop.mcp_calls] == ["files.read: no such file"] * 2
    assert all(call.error and call.error.__traceback__ for call in loop.mcp_calls)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("{not json", "Tool call failed: the arguments are not valid JSON: Expecting property name"),
        ("[1]", "Tool call failed: the arguments must be a JSON object, not list"),
        ('{"a": 1} {"b": 2}', "Tool call failed: the arguments are more than one JSON object"),
    ],
)
def test_arguments_that_cannot_be_read_never_reach_it(arguments: str, error: str) -> None:
    read, loop = told(lambda *_: "never", ("mcp.files.read", arguments))
    assert error in read[0]
    assert loop.mcp_calls == ()


class SdkResult(BaseModel):
    """As the SDK's `CallToolResult`: snake case in Python, camel case in JSON."""

    content: list[dict[str, Any]]
    is_error: bool = Field(default=False, serialization_alias="isError")


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"content": [{"type": "text", "text": "hi"}]}, "hi"),
        ({"content": [{"type": "text", "text": "no"}], "isError": True}, "Error: no"),
        (SdkResult(content=[{"type": "text", "text": "hi"}]), "hi"),
        (SdkResult(content=[{"type": "text", "text": "no"}], is_error=True), "Error: no"),
        ({"content": "plain"}, '{"content":"plain"}'),
        ({"content": [1]}, '{"content":[1]}'),
        (None, "null"),
        (object, "<class 'object'>"),
    ],
)
def test_an_mcp_result_is_read_as_one_and_anything_else_is_the_content(value: object, read: str) -> None:
    assert told(lambda *_: value, ("mcp.files.read", {}))[0] == [read]


def test_the_listed_tools_are_offered_however_they_are_written() -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    listed = [
        "files.list",
        {"name": "mcp.files.read", "description": "Read.", "inputSchema": schema},
        ToolDefinition(server="files", tool="write", description="Write.", input_schema=schema),
    ]
    with (
        ScriptedLlmServer([text_reply("done")]) as llm,
        AgentLoop(
            LlmSettings(base_url=llm.base_url, model="m"), invoke_mcp_tool=fails, mcp_tools=listed
        ) as loop,
    ):
        loop.run("go")
        functions = [tool["function"] for tool in llm.requests[0].body["tools"]]
    assert [(each["name"], each["description"]) for each in functions] == [
        ("mcp.files.list", ""),
        ("mcp.files.read", "Read."),
        ("mcp.files.write", "Write."),
    ]
    for read_or_write in functions[1:]:
        assert read_or_write["parameters"]["properties"] == schema["properties"]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"invoke_mcp_tool": "fs.read"}, "invoke_mcp_tool is a function"),
        ({"invoke_mcp_tool": fails, "mcp_tools": "files.read"}, "wants a list of tools, not 'files.read'"),
        ({"invoke_mcp_tool": fails, "mcp_tools": {"name": "x"}}, "wants a list of tools"),
        ({"servers": [FunctionTools([fails])]}, "servers= wants the servers by name"),
        ({"tools": fails}, "tools= wants a list of functions"),
        ({"invoke_mcp_tool": fails, "mcp_tools": [{"title": "x"}]}, "is not a tool. Write a name"),
        ({"invoke_mcp_tool": fails, "mcp_tools": [{"name": "x", "inputSchema": "y"}]}, "is not a tool."),
        ({"invoke_mcp_tool": fails, "mcp_tools": ["mcp."]}, "is not a tool. Write a name"),
        ({"mcp_tools": ["fs.read"]}, "mcp_tools= lists the tools of invoke_mcp_tool="),
        ({"mcp_tools": None}, "mcp_tools= lists the tools of invoke_mcp_tool="),
    ],
)
def test_what_cannot_be_used_is_refused_when_the_loop_is_made(how: dict[str, Any], says: str) -> None:
    with pytest.raises(MCPConfigError, match=says):
        AgentLoop(LlmSettings(base_url="http://localhost:1", model="m"), **how)
