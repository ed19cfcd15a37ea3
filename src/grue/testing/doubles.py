"""Mocks of `MCPManager` and `LLMClient` of `grue.hosts.zork`, for tests of code that uses these classes.

```python
from grue.testing.doubles import MockLLMClient, MockMCPManager

manager = MockMCPManager()
manager.set_tool_result("thoughtbox.think", {"nextThoughtNeeded": False})

client = MockLLMClient()
client.add_response(tool_calls=[{"name": "thoughtbox.think", "arguments": {"thought": "A door."}}])
client.add_response(content='{"thinking": "A door.", "action": "open door"}')

agent = ZorkAgent(config=config, client=client, mcp_manager=manager)
assert agent.get_action_with_reasoning("West of House")["action"] == "open door"
assert manager.call_count == 1
assert client.requests[1]["messages"][-1]["role"] == "tool"
```
"""

import asyncio
import copy
import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from grue import messages as m
from grue.errors import MCPError
from grue.hosts.zork.chat_messages import FunctionCall, LLMResponse, ToolCall
from grue.protocol.chat_wire.profiles import supports_tool_calling
from grue.protocol.tools import results as tool_results

THINK = "thoughtbox.think"  # the tool that a `MockMCPManager` lists by default
_THOUGHT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "thought": {"type": "string", "description": "Your current thinking step"},
        "thoughtNumber": {"type": "integer", "minimum": 1},
        "nextThoughtNeeded": {"type": "boolean"},
    },
    "required": ["thought", "thoughtNumber", "nextThoughtNeeded"],
}


class MockMCPManager:
    """A manager without a server, which returns the results that a test sets.

    It lists the tool `SERVER_NAME.think`, the tools that `add_tool` has added, and every tool for which a
    result was set. A tool without a set result returns `{"default": "result"}`, even if it is not listed.
    Calls are answered whether a session is open or not.

    Attributes:
        is_disabled: Set it to simulate a manager that has disabled MCP.
        calls: Name and arguments of each call.
        connect_error: Raised by `connect_session` while it is set.
    """

    def __init__(self, server_name: str = "thoughtbox") -> None:
        self.server_name = server_name
        self.is_disabled = False
        self.connected = False
        self.connect_count = 0
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.connect_error: Exception | None = None
        self.tool_results: dict[str, object] = {}
        self._schemas: dict[str, dict[str, Any]] = {}
        self.add_tool(f"{server_name}.think", "Structured reasoning", _THOUGHT)

    @property
    def call_count(self) -> int:
        """Number of tool calls so far, failed ones included."""
        return len(self.calls)

    def add_tool(
        self, tool_name: str, description: str = "", parameters: Mapping[str, Any] | None = None
    ) -> None:
        """List a tool; `parameters` is a JSON Schema, which by default accepts any object."""
        function = {
            "name": tool_name,
            "description": description,
            "parameters": dict(parameters or {"type": "object", "properties": {}}),
        }
        self._schemas[tool_name] = {"type": "function", "function": function}

    def set_tool_result(self, tool_name: str, result: object) -> None:
        """Make a tool return `result`: a `ToolCallResult`, or its content."""
        if tool_name not in self._schemas:
            self.add_tool(tool_name)
        self.tool_results[tool_name] = result

    def set_tool_error(self, tool_name: str, message: str, content: object = None) -> None:
        """Make a tool return an error result."""
        self.set_tool_result(tool_name, tool_results.failure(message, content))

    def set_timeout(self, tool_name: str) -> None:
        """Make calls of a tool raise `TimeoutError`, without waiting."""
        self.set_tool_result(tool_name, TimeoutError())

    async def connect_session(self) -> None:
        """Open a session, or raise `connect_error`."""
        if self.connect_error is not None:
            raise self.connect_error
        self.connected = True
        self.connect_count += 1

    async def disconnect_session(self) -> None:
        """Close the session."""
        self.connected = False

    async def get_tool_schemas(self) -> list[dict[str, Any]]:
        """Return the tools in OpenAI's format."""
        return list(self._schemas.values())

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any], timeout_seconds: float | None = None
    ) -> m.ToolCallResult:
        """Record a call and return the tool's result.

        Raises:
            TimeoutError: The tool's result was last set by `set_timeout`.
        """
        self.calls.append((tool_name, copy.deepcopy(arguments)))
        await asyncio.sleep(0)
        result = self.tool_results.get(tool_name, {"default": "result"})
        if isinstance(result, TimeoutError):
            raise TimeoutError(f"Tool call timed out after {timeout_seconds}s")
        return result if isinstance(result, m.ToolCallResult) else tool_results.success(result)


class MockLLMClient:
    """A client without a model, which returns the responses that a test adds, in order.

    Attributes:
        requests: The arguments of each `create` call so far.
        supports_tools: The result of `_supports_tool_calling`; `None`: decide by the model's name.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.supports_tools: bool | None = None
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.chat_completions_create))
        self._responses: list[LLMResponse | Exception] = []
        self._made = 0

    def add_response(
        self,
        content: str | None = None,
        tool_calls: Sequence[ToolCall | Mapping[str, Any]] | None = None,
        finish_reason: str | None = None,
        model: str = "mock",
        usage: dict[str, int] | None = None,
    ) -> None:
        """Add a response. `finish_reason` `None`: `tool_calls` if there are calls, otherwise `stop`."""
        # Tool calls are `ToolCall`s, OpenAI's dicts, or `{"name": ..., "arguments": ...}` with JSON text or
        # an object; a missing id is made up.
        calls = [self._tool_call(call) for call in tool_calls or ()]
        self._responses.append(
            LLMResponse(
                content=content,
                model=model,
                usage=usage,
                tool_calls=calls or None,
                finish_reason=finish_reason or ("tool_calls" if calls else "stop"),
            )
        )

    def add_error(self, error: Exception) -> None:
        """Add an error in place of a response; for an HTTP status, set the error's `status_code`."""
        self._responses.append(error)

    def chat_completions_create(self, **kwargs: Any) -> LLMResponse:
        """Record the request, and return the next response or raise the next error.

        Raises:
            MCPError: No response is left.
        """
        self.requests.append(copy.deepcopy(kwargs))  # the program may go on with the same list of messages
        if len(self.requests) > len(self._responses):
            raise MCPError(f"MockLLMClient has no response for request {len(self.requests)}: add one.")
        response = self._responses[len(self.requests) - 1]
        if isinstance(response, Exception):
            raise response
        return response

    def close(self) -> None:
        """Do nothing."""

    def _supports_tool_calling(self, model: str, config: object = None) -> bool:
        del config
        return supports_tool_calling(model) if self.supports_tools is None else self.supports_tools

    def _tool_call(self, call: ToolCall | Mapping[str, Any]) -> ToolCall:
        if isinstance(call, ToolCall):
            return call
        self._made += 1
        function = call.get("function", call)
        arguments = function.get("arguments", {})
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call_id = call.get("id") or f"call_mock_{self._made}"
        return ToolCall(id=call_id, type="function", function=FunctionCall(function["name"], text))
