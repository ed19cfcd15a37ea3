"""A tool server without a process, with results that a test sets. Use it to test how an agent uses its tools.

```python
cave = FakeToolServer("cave")
cave.answers("look", {"room": "a dark cave"})
cave.times_out("dig")
runner = Runner(llm=..., servers={"cave": cave})
...
assert cave.calls == [("look", {})]
```

A new outcome for a tool replaces the earlier ones, except failures that no call has received yet: after
`fails` and then `answers`, the first call fails and the next one is answered. Timeouts are raised at once.
"""

from collections.abc import Mapping
from typing import Any, Self

import anyio.lowlevel

from grue import messages as m
from grue.policies import ServerPhase
from grue.protocol.tools import results as tool_results
from grue.tool_sessions.connection import ConnectionStatus, Listing
from grue.tool_sessions.failures import ServerFailed, ToolRefusedError, ToolTimedOutError

_INVALID_PARAMS = -32602
_ANY_OBJECT: Mapping[str, Any] = {"type": "object", "properties": {}}


class FakeToolServer:
    """A fake tool server. Pass it to a `Runner` in `servers`.

    Attributes:
        name: The server's name if a test uses it without a `Runner`. A `Runner` uses its key in `servers`.
        calls: Bare name and arguments of every call, in order, failed ones included.
        sessions: How many connections were attempted, failed ones included.
    """

    status = ConnectionStatus()

    def __init__(self, name: str = "fake") -> None:
        self.name = m.ServerName(name)
        self.calls: list[tuple[str, m.JsonObject]] = []
        self.sessions = 0
        self._tools: dict[str, m.ToolDefinition] = {}
        self._outcomes: dict[str, list[m.ToolCallResult | Exception]] = {}
        self._given: set[str] = set()
        self._failures = 0
        self._changed = False

    def __call__(self, note: object) -> Self:
        """Return this object itself, as the connection of a new session."""
        del note
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def answers(
        self, tool: str, *results: object, description: str = "", schema: Mapping[str, Any] | None = None
    ) -> None:
        """Add a tool with results (contents or `ToolCallResult`s), one for each call; the last repeats."""
        told = [
            each if isinstance(each, m.ToolCallResult) else tool_results.success(each) for each in results
        ]
        self._set_outcomes(tool, *(told or [tool_results.success(None)]))
        self._tools[tool] = self._defined(tool, description, _ANY_OBJECT if schema is None else schema)

    def fails(self, tool: str, message: str) -> None:
        """Make a tool return an error result."""
        self._set_outcomes(tool, tool_results.failure(message))

    def refuses(self, tool: str, message: str) -> None:
        """Make the server answer calls of a tool with a JSON-RPC error."""
        self._set_outcomes(tool, ToolRefusedError(message, code=_INVALID_PARAMS))

    def times_out(self, tool: str) -> None:
        """Make calls of a tool time out."""
        self._set_outcomes(tool, TimeoutError())

    def dies(self, tool: str, cause: str = "the server ended during tools/call") -> None:
        """Make the server die when this tool is called."""
        self._set_outcomes(tool, self._failure("call", cause))

    def fails_to_start(self, times: int = 1) -> None:
        """Make the next `times` attempts to connect fail."""
        self._failures = times

    async def open(self, timeout_s: float) -> Listing:
        """Begin a session and return the tools.

        Raises:
            ServerFailed: `fails_to_start` makes this attempt fail.
        """
        del timeout_s
        await anyio.lowlevel.checkpoint()
        self.sessions += 1
        if self._failures:
            self._failures -= 1
            raise self._failure("initialize", "told to fail")
        self._changed = False
        return Listing(tools=self.listed, protocol_version="2025-11-25")

    @property
    def listed(self) -> tuple[m.ToolDefinition, ...]:
        """The tools on offer."""
        return tuple(self._tools.values())

    async def refresh_tools(self, timeout_s: float) -> tuple[m.ToolDefinition, ...] | None:
        """Return the tools if a tool or its outcome was set since the last listing; otherwise `None`."""
        del timeout_s
        changed, self._changed = self._changed, False
        return self.listed if changed else None

    async def call(self, tool: str, arguments: m.JsonObject, timeout_s: float) -> m.ToolCallResult:
        """Record a call and return the tool's next result, or raise its error.

        Raises:
            ToolTimedOutError: The tool's next result was set by `times_out`.
            ToolRefusedError: The tool is not listed, or its next result was set by `refuses`.
            ServerFailed: The tool's next result was set by `dies`.
        """
        await anyio.lowlevel.checkpoint()
        self.calls.append((tool, arguments))
        outcomes = self._outcomes.get(tool)
        if not outcomes:
            raise ToolRefusedError(f"Unknown tool: {tool}", code=_INVALID_PARAMS)
        if len(outcomes) == 1:
            self._given.add(tool)
        outcome = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
        if isinstance(outcome, TimeoutError):
            raise ToolTimedOutError(tool, timeout_s)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _set_outcomes(self, tool: str, *outcomes: m.ToolCallResult | Exception) -> None:
        self._tools.setdefault(tool, self._defined(tool))
        before = () if tool in self._given else self._outcomes.get(tool, ())
        waiting = [each for each in before if isinstance(each, Exception) or each.is_error]
        self._given.discard(tool)
        self._outcomes[tool] = [*waiting, *outcomes]
        self._changed = True

    def _defined(
        self, tool: str, description: str = "", schema: Mapping[str, Any] = _ANY_OBJECT
    ) -> m.ToolDefinition:
        return m.ToolDefinition(
            server=self.name, tool=tool, description=description, input_schema=dict(schema)
        )

    def _failure(self, phase: ServerPhase, cause: str) -> ServerFailed:
        return ServerFailed(m.ServerFailure(server=self.name, phase=phase, command="(fake)", cause=cause))
