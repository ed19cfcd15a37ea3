"""The parts of a client that are imported after the spawn of its server's process: SDK, schema checks, tasks.

Calls are checked against the tools' schemas, because some servers hang, crash or misbehave on arguments that
their schema refuses. The model gets the fault at once instead, and can correct the call.

A task is a tool call that the server has accepted and answers later. Its states, and what can happen in each:

| state             | what happens                             | then                                      |
|-------------------|------------------------------------------|-------------------------------------------|
| being created     | the call is answered at once             | this answer is the result                 |
|                   | time limit, cancellation                 | `notifications/cancelled`: no task id yet |
| working           | `tasks/get` every `poll_s`: its status   | a `progress` notice                       |
|                   | message has changed                      |                                           |
|                   | `tasks/get` is refused, or not readable  | asked again                               |
|                   | this, `MAX_POLL_ERRORS` times in a row   | `tasks/cancel`; the call is refused       |
| input_required    | the host answers, declines, or cannot be | working (experimental form: as completed) |
|                   | asked (no `elicit`)                      |                                           |
|                   | sampling is declined; other input is not | `tasks/cancel`; the call is refused       |
|                   | offered                                  |                                           |
| completed         | experimental form: `tasks/result`        | the result                                |
| failed            | experimental form: `tasks/result`        | the result, or the call is refused        |
|                   | otherwise                                | the call is refused, with the reason      |
| cancelled         |                                          | the call is refused, with the reason      |
| unknown (expired, | the server answers "no such task"        | the call is refused: the task is lost     |
| server restarted) |                                          |                                           |
| any after created | time limit, cancellation                 | `tasks/cancel`; 1 s to answer it          |
|                   | the connection breaks, the server dies   | `ServerFailed`, as in any call            |
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import ClassVar, Literal

import anyio
from msgspec import Struct, field
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.json_text import MAX_DEPTH, is_deep
from grue.protocol.tools import results as tool_results
from grue.protocol.tools import server_tasks as tasks
from grue.protocol.tools.json_schema import MAX_VALUE_BYTES, Check, NotCheckedError, check_of, reason
from grue.protocol.tools.results import INTERRUPTED
from grue.runtime.loops.host_code import HostCodeFailed
from grue.tool_sessions.failures import ServerFailed, ToolRefusedError, ToolTimedOutError
from grue.tool_sessions.server_requests import Notify
from grue.transports.mcp import sdk

__all__ = ["LOST", "InputSchemas", "OutputSchemas", "TaskOfCall", "sdk"]


class _Schemas(Struct):
    """Checks tools' arguments or results by their schemas. A `bad_schema` notice says what is not checked."""

    _field: ClassVar[Literal["input_schema", "output_schema"]]
    _value: ClassVar[str]  # the name that notices give to the value that is checked

    notify: Notify
    _schemas: Mapping[str, m.JsonObject] = field(default_factory=dict)
    _checks: dict[str, Check | None] = field(default_factory=dict)

    def declare(self, tools: Iterable[m.ToolDefinition]) -> None:
        """Check by the schemas of these tools from now on."""
        before = self._schemas
        declared = {tool.tool: getattr(tool, self._field) for tool in tools}
        self._schemas = {name: schema for name, schema in declared.items() if schema is not None}
        for name in [name for name in self._checks if self._schemas.get(name) != before[name]]:
            del self._checks[name]

    def fault(self, tool: str, value: object) -> str | None:
        """Return the first fault of a tool's arguments or result; `None`: it has none, or is not checked."""
        check = self._check(tool)
        try:
            return None if check is None else check(value)
        except NotCheckedError as error:
            self._too_large(tool, str(error))
        except Exception as error:  # noqa: BLE001 - some faults of a schema show only when it is used
            self._stop_checking(tool, error)
        return None

    def _check(self, tool: str) -> Check | None:
        if tool in self._schemas and tool not in self._checks:
            try:
                self._checks[tool] = check_of(self._schemas[tool])
            except Exception as error:  # noqa: BLE001 - an untrusted schema may make the compiler raise anything
                self._stop_checking(tool, error)
        return self._checks.get(tool)

    def _too_large(self, tool: str, size: str = f"of more than {MAX_VALUE_BYTES} bytes") -> None:
        self.notify("bad_schema", f"{tool}: {self._value} {size}: not checked")

    def _stop_checking(self, tool: str, error: Exception) -> None:
        self._checks[tool] = None
        schema = self._field.replace("_", " ")
        self.notify("bad_schema", f"{tool}: its {schema} is not used: {reason(error)}")


class InputSchemas(_Schemas):
    """The schemas of the arguments. If the arguments of a call cannot be checked, the call is sent anyway."""

    _field, _value = "input_schema", "arguments"


class OutputSchemas(_Schemas):
    """The schemas of the results. If a result cannot be checked, it is accepted."""

    _field, _value = "output_schema", "a result"

    def checked(self, tool: str, answer: m.JsonObject, result: m.ToolCallResult) -> m.ToolCallResult:
        """Return the result, or an error with the same content if it does not match the schema."""
        if result.is_error or self._check(tool) is None:
            return result
        fault: str | None = None
        if answer.get("structuredContent") is None:
            fault = "it has no structured content"
        elif tool_results.is_kept_as_text(answer):
            self._too_large(tool)
        else:
            fault = self.fault(tool, result.content)
            if fault is not None and is_deep(result.content, MAX_DEPTH - 1):
                # In so deep a value, grue has replaced the deepest parts by a text, which may not match.
                self._too_large(tool, f"of {MAX_DEPTH} levels or more")
                fault = None
        if fault is None:
            return result
        message = f"The tool's result is not what its output schema says: {fault}"
        return replace(tool_results.failure(message, result.content), blocks=result.blocks)


_CANCEL_S = 1.0
_INTERNAL_ERROR = -32603
LOST = f"{INTERRUPTED}: its server no longer knows the task"


class TaskOfCall(Struct):
    """Follows one MCP task to its end."""

    task: m.ToolTask
    form: tasks.TaskForm
    ask: Callable[[str, m.JsonObject], Awaitable[m.JsonObject]]  # sends a request; raises as `result` does
    respond: Callable[[m.JsonObject], Awaitable[m.JsonObject]]  # answers questions, by their names
    progress: Callable[[str], None]  # gets each new status message
    _said: str = ""
    _answered: set[str] = field(default_factory=set)
    _refused: int = 0

    async def result(self, *, at_once: bool = False) -> m.JsonObject:
        """Wait for the result and return it, as `tools/call` would have returned it.

        `at_once`: ask for the state now, and not only after the first polling interval. Raises
        `ToolRefusedError`, `ServerFailed` or `HostCodeFailed`.
        """
        try:
            ended = await self._end(0.0 if at_once else self.task.poll_s)
        except (anyio.get_cancelled_exc_class(), ToolRefusedError, HostCodeFailed):
            await self._cancel()
            raise
        if isinstance(ended, tasks.TaskFailed):
            raise ToolRefusedError(ended.reason, code=ended.code)
        return ended.result

    async def _end(self, wait_s: float) -> tasks.TaskFinished | tasks.TaskFailed:
        while True:
            await anyio.sleep(wait_s)
            match await self._state():
                case tasks.WaitFor(poll_s):
                    wait_s = poll_s
                case tasks.AnswerQuestions(questions, poll_s):
                    told = await self.respond(questions)
                    await self.ask("tasks/update", {"taskId": self.task.task_id, "inputResponses": told})
                    self._answered.update(questions)
                    wait_s = poll_s
                case tasks.CollectResult():
                    try:
                        result = await self.ask("tasks/result", {"taskId": self.task.task_id})
                    except ToolRefusedError as refused:
                        return tasks.TaskFailed(str(refused), refused.code)
                    return tasks.TaskFinished(result)
                case tasks.TaskFinished() | tasks.TaskFailed() as ended:
                    return ended

    async def _state(self) -> tasks.TaskMove:
        """Ask for the task's state, and return what to do next. Raises as `result` does."""
        try:
            answer = await self.ask("tasks/get", {"taskId": self.task.task_id})
            move = tasks.next_move(answer, self.form, self._answered)
        except ToolRefusedError as refused:
            if refused.code in tasks.UNKNOWN_TASK:
                return tasks.TaskFailed(f"{LOST}: {refused}", refused.code)
            return self._after_refusal(str(refused), refused.code)
        except ValueError as error:
            return self._after_refusal(str(error), _INTERNAL_ERROR)
        self._refused = 0
        before, self._said = self._said, tasks.status_message(answer)
        if self._said not in ("", before):
            self.progress(self._said)
        return move

    def _after_refusal(self, reason: str, code: int) -> tasks.TaskMove:
        self._refused += 1
        if self._refused < tasks.MAX_POLL_ERRORS:
            return tasks.WaitFor(self.task.poll_s)
        raise ToolRefusedError(
            f"{INTERRUPTED}: its server did not say how its task is doing: {reason}", code=code
        )

    async def _cancel(self) -> None:
        """Tell the server to cancel the MCP task, even while the calling asyncio task is being cancelled."""
        with anyio.move_on_after(_CANCEL_S, shield=True):
            # Suppress errors, because the call has ended already, with an error that says why.
            with contextlib.suppress(ToolRefusedError, ToolTimedOutError, ServerFailed):
                await self.ask("tasks/cancel", {"taskId": self.task.task_id})
