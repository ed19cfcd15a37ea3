"""A dictionary of Python functions as a tool server: no process, the same messages.

Arguments are checked against the functions' annotations, by msgspec; the schemas that the model sees come
from the same annotations. A plain function runs in a worker thread, so that a slow one neither blocks the
loop nor outlasts its time limit; a coroutine function runs in the session's task and is cancelled at the
limit.
"""

import asyncio
import copy
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.to_thread
import msgspec

from grue.errors import MCPConfigError
from grue.messages import JsonObject, ServerName, ToolCallResult, ToolDefinition
from grue.protocol import tool_results
from grue.runtime.host_code import HostCodeFailed, ends_the_task, single
from grue.tool_sessions.connection import Listing
from grue.tool_sessions.failures import ToolRefusedError, ToolTimedOutError

_INVALID_PARAMS = -32602
_RESULTS = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)


class FunctionTools:
    """A tool server made of functions; give it to a `Runner` where an MCP server would go (L).

    Args:
        functions: By tool name. Parameters must be annotated with types that msgspec can read and be
            acceptable by keyword; the docstring's first paragraph becomes the description.

    Raises:
        MCPConfigError: A function has parameters that cannot be offered to a model.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self.functions = dict(functions)
        self._arguments = {name: _arguments_type(name, function) for name, function in functions.items()}
        self._schemas = {name: _schema(name, arguments) for name, arguments in self._arguments.items()}

    def connect(
        self, server: ServerName, before_calls: Callable[[], Awaitable[object]] | None = None
    ) -> "FunctionConnection":
        """Make the connection for one session.

        Args:
            server: The name that its tools are listed under.
            before_calls: Awaited before the calls of each batch; `None`: nothing is waited for.
        """
        tools = tuple(
            ToolDefinition(
                server=server,
                tool=name,
                description=_description(function),
                input_schema=self._schemas[name],
            )
            for name, function in self.functions.items()
        )
        return FunctionConnection(tools, self.functions, self._arguments, before_calls)


class FunctionConnection:
    """One session with a dictionary of functions; a `ToolConnection`."""

    alive = True
    pid = None
    exit = None
    ending = None
    stderr_tail = ""

    def __init__(
        self,
        tools: tuple[ToolDefinition, ...],
        functions: Mapping[str, Callable[..., Any]],
        arguments: Mapping[str, type[msgspec.Struct]],
        before_calls: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._tools = tools
        self._before_calls = before_calls
        self._functions = functions
        self._arguments = arguments

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        pass

    async def open(self, timeout_s: float) -> Listing:
        """List the functions as tools."""
        del timeout_s
        return Listing(tools=self._tools, protocol_version="")

    async def refresh_tools(self, timeout_s: float) -> None:
        """Functions stay as they are; a batch begins with this question, and what it has to wait for."""
        del timeout_s
        if self._before_calls is not None:
            await self._before_calls()

    async def call(self, tool: str, arguments: JsonObject, timeout_s: float) -> ToolCallResult:
        """Call a function; what it raises is an error result, a `SystemExit` included.

        A `KeyboardInterrupt`, or a BaseException of the user's own, ends the turn, which raises it.

        Raises:
            ToolTimedOutError: It took longer than `timeout_s`; a plain function goes on in its thread, and
                what it returns is dropped.
            ToolRefusedError: There is no such function, or the arguments do not fit its annotations.
        """
        if tool not in self._arguments:
            raise ToolRefusedError(f"Unknown tool: {tool}", code=_INVALID_PARAMS)
        try:
            given = msgspec.convert(arguments, self._arguments[tool])
        except msgspec.ValidationError as error:
            raise ToolRefusedError(f"invalid arguments: {error}", code=_INVALID_PARAMS) from error
        call = functools.partial(self._functions[tool], **msgspec.structs.asdict(given))
        try:
            with anyio.fail_after(timeout_s):
                return await _result_of(call)
        except TimeoutError as error:
            raise ToolTimedOutError(tool, timeout_s) from error


async def _result_of(call: functools.partial[Any]) -> ToolCallResult:
    try:
        if inspect.iscoroutinefunction(call.func):
            value = await call()
        else:
            value = await anyio.to_thread.run_sync(_in_thread, call, abandon_on_cancel=True)
            if inspect.isawaitable(value):
                value = await value
        if isinstance(value, ToolCallResult):
            return value
        return tool_results.success(msgspec.to_builtins(value, enc_hook=str))
    except BaseException as raised:
        error = single(raised)
        # Whatever the user's function raises is its result, but for what says that the program is to end.
        if ends_the_task(raised) or not isinstance(error, _RESULTS):
            raise
        return tool_results.call_failed(f"{type(error).__name__}: {error}")


def _in_thread(call: functools.partial[Any]) -> Any:
    try:
        return call()
    except BaseException as error:
        # On its way into the event loop a StopIteration or a GeneratorExit would become something else.
        raise HostCodeFailed(error) from error


def _arguments_type(name: str, function: Callable[..., Any]) -> type[msgspec.Struct]:
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in _signature(name, function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise MCPConfigError(
                f"The function behind the tool '{name}' has the parameter '{parameter}', which cannot be "
                "given by name. Use plain or keyword-only parameters."
            )
        kind = Any if parameter.annotation is parameter.empty else parameter.annotation
        if parameter.default is parameter.empty:
            fields.append((parameter.name, kind))
        else:
            fields.append((parameter.name, kind, _default(parameter.default)))
    return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)


def _signature(name: str, function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except (NameError, SyntaxError, TypeError, ValueError) as error:
        raise MCPConfigError(f"The signature of the tool '{name}' cannot be read: {error}.") from error


def _default(value: object) -> object:
    # Python evaluates a default once; a function that changes its own must not meet it in the next turn.
    mutable = isinstance(value, list | dict | set | bytearray)
    return msgspec.field(default_factory=functools.partial(copy.deepcopy, value)) if mutable else value


def _schema(name: str, arguments: type[msgspec.Struct]) -> JsonObject:
    try:
        (schema,), components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    except TypeError as error:
        raise MCPConfigError(
            f"The tool '{name}' has a parameter that cannot be offered to a model: {error}. Annotate it with "
            "a type that JSON can express."
        ) from error
    key = schema["$ref"].rsplit("/", 1)[-1]
    own: JsonObject = {word: value for word, value in components.pop(key).items() if word != "title"}
    if components:
        own["$defs"] = components
    return own


def _description(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
