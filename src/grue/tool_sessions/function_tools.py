"""A tool server made of Python functions. It needs no process and produces the same messages as any other.

msgspec checks the arguments against the functions' annotations; the schemas that the model sees are made from
the same annotations.

A plain function runs in a worker thread, so that a slow one does not block the event loop. At its time limit
the call fails and the thread is abandoned, because Python cannot stop a thread. A coroutine function runs in
the session's task and is cancelled at its limit.
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
from grue.tool_sessions.connection import ConnectionStatus, Listing
from grue.tool_sessions.failures import ToolRefusedError, ToolTimedOutError

_INVALID_PARAMS = -32602
_RESULTS = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)


class FunctionTools:
    """A tool server made of functions. Pass it to a `Runner` in place of an MCP server.

    Args:
        functions: The functions by tool name. Each parameter must be usable as a keyword argument and be
            annotated with a type that msgspec supports. The docstring's first paragraph becomes the tool's
            description.

    Raises:
        MCPConfigError: A function has a parameter that JSON cannot express.

    Source: L
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
            server: The server name of its tools.
            before_calls: Awaited at the start of each batch; `None`: nothing is awaited.
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

    status = ConnectionStatus()

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
        """Await `before_calls`. Returns `None`, since functions never change.

        The session calls this at the start of each batch, before its first call is recorded.
        """
        del timeout_s
        if self._before_calls is not None:
            await self._before_calls()

    async def call(self, tool: str, arguments: JsonObject, timeout_s: float) -> ToolCallResult:
        """Call a function. An exception that it raises, `SystemExit` included, becomes an error result.

        A `KeyboardInterrupt`, or a BaseException class of the user's own, ends the turn, which raises it.

        Raises:
            ToolTimedOutError: The function took longer than `timeout_s`. A plain function continues in its
                thread, and its result is dropped.
            ToolRefusedError: The function does not exist, or the arguments do not match its annotations.
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
        # An exception of the user's function is its result, unless it asks for the program to end.
        if ends_the_task(raised) or not isinstance(error, _RESULTS):
            raise
        return tool_results.call_failed(f"{type(error).__name__}: {error}")


def _in_thread(call: functools.partial[Any]) -> Any:
    try:
        return call()
    except BaseException as error:
        # A future cannot carry a StopIteration, and a GeneratorExit would end the awaiting coroutine. Wrap
        # every exception so that it reaches the event loop unchanged.
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
    # Python evaluates a default once. Copy a mutable one for each call: a function may modify it, and the
    # next turn must not see that.
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
