"""A tool server made of Python functions. It needs no process and produces the same messages as any other.

The schemas that the model sees and the checks of a call's arguments are made from the functions' annotations
and the descriptions from their docstrings (`function_parameters.py`).

A plain function runs in a daemon thread, so that a slow one does not block the event loop. At its time limit
the call fails and the thread is abandoned, because Python cannot stop a thread; a `ToolContext` tells the
function so. An abandoned thread does not keep the program alive. A coroutine function runs in the session's
task and is cancelled at its limit.
"""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar, overload

import anyio
import msgspec
from msgspec import Struct

from grue import messages as m
from grue.errors import MCPConfigError
from grue.field_checks import check_settings
from grue.policies import NoticeKind, ToolAnnotations
from grue.protocol.tools import results as tool_results
from grue.runtime.actor import Note
from grue.runtime.loops.beside_loop import call_in_daemon_thread
from grue.runtime.loops.host_code import HostCodeFailed, ends_the_task, single
from grue.tool_sessions.connection import ConnectionStatus, Listing
from grue.tool_sessions.failures import ToolRefusedError, ToolTimedOutError
from grue.tool_sessions.function_parameters import Parameters, ToolContext, read_docstring
from grue.tool_sessions.host_tools import HostFunctions, InvalidArgumentsError

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "__grue_tool__"


class ToolSettings(Struct, frozen=True, kw_only=True):
    """The arguments of `@tool`.

    Attributes:
        name: The tool's bare name; `None`: the function's name.
        description: What the model reads; `None`: the docstring up to its first section.
        timeout_s: Time limit of a call; `None`: the turn's.
        annotations: What the tool does, for the tool policy; `None`: nothing is known.
    """

    name: str | None = None
    description: str | None = None
    timeout_s: float | None = None
    annotations: ToolAnnotations | None = None

    def __post_init__(self) -> None:
        """Check types and ranges."""
        check_settings(self, above_0=("timeout_s",))


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
    annotations: ToolAnnotations | None = None,
) -> Callable[[F], F]: ...


def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
    annotations: ToolAnnotations | None = None,
) -> F | Callable[[F], F]:
    """Mark a function as a tool that `FunctionTools` can serve, and return the same function.

    The parameters' types become the schema that the model sees, and their descriptions come from the
    docstring (Google, NumPy or Sphinx style), from `Annotated[T, "text"]`, `msgspec.Meta` or pydantic's
    `Field`. A parameter of the type `ToolContext` is for progress and cancellation.

    ```python
    @tool
    def look(
        direction: Annotated[Literal["north", "south"], "Where to look."],
        far: Annotated[bool, "Whether to use the telescope."] = False,
    ) -> str:
        \"\"\"Look in a direction.\"\"\"
        ...

    runner = Runner(llm=..., servers={"eyes": FunctionTools([look])})
    ```

    Args:
        function: A plain function, a coroutine function, or a method.
        name: The tool's bare name; `None`: the function's name.
        description: What the model reads; `None`: the docstring up to its first section.
        timeout_s: Time limit of a call in seconds; `None`: the turn's. A smaller limit of the turn wins.
        annotations: What the tool does, such as `ToolAnnotations(read_only=True)`. A tool policy matches and
            trusts them, since they are the host's own. `None`: MCP's defaults, which assume the worst.
    """
    if function is not None and not callable(function):
        raise MCPConfigError(
            f"tool wants a function, not {function!r:.60}. Options go by name: tool(name='...')."
        )
    settings = ToolSettings(name=name, description=description, timeout_s=timeout_s, annotations=annotations)

    def mark(marked: F) -> F:
        setattr(marked, _ATTRIBUTE, settings)
        return marked

    return mark if function is None else mark(function)


def settings_of(function: Callable[..., Any]) -> ToolSettings | None:
    """Return the arguments of this function's `@tool`; `None` if it has none."""
    settings = getattr(function, _ATTRIBUTE, None)
    return settings if isinstance(settings, ToolSettings) else None


_INVALID_PARAMS = -32602
_RESULTS = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)

CatchAll: TypeAlias = Callable[[str, m.JsonObject], Any]
"""Serves calls of tools that were never listed: `(bare name, arguments) -> result`, plain or coroutine."""


class _Function(Struct, frozen=True):
    """One function as a tool."""

    tool: str
    description: str
    parameters: Parameters
    call: Callable[..., Any]
    timeout_s: float | None
    annotations: ToolAnnotations | None


class FunctionTools(HostFunctions):
    """A tool server made of functions. Pass it to a `Runner` in place of an MCP server.

    Args:
        functions: Functions by tool name; or functions alone, each with the name that `@tool` gives it or its
            own. Each parameter must be usable as a keyword argument and be annotated with a type that msgspec
            or pydantic supports. A parameter of the type `ToolContext` is not shown to the model. Of a
            function marked with `@tool`, the model reads the docstring up to its first section; of a plain
            one, its first paragraph.
        catch_all: Called with the bare name and the arguments of a tool that is not listed; `None`: such a
            call is refused. The model learns of such tools only from its instructions.

    Raises:
        MCPConfigError: A function has a parameter that JSON cannot express, has no name, or has the name of
            another one.

    Source: L7
    """

    def __init__(
        self,
        functions: Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]] = (),
        *,
        catch_all: CatchAll | None = None,
    ) -> None:
        _refuse_what_is_no_list(functions)
        self.functions = dict(functions) if isinstance(functions, Mapping) else _by_name(functions)
        for name, function in self.functions.items():
            _refuse_what_cannot_be_called(name, function)
        self.catch_all = catch_all
        self._served = {name: _function(name, function) for name, function in self.functions.items()}

    def connect(
        self,
        server: m.ServerName,
        before_calls: Callable[[], Awaitable[object]] | None = None,
        note: Note | None = None,
    ) -> "FunctionConnection":
        """Make the connection for one session.

        Args:
            server: The server name of its tools.
            before_calls: Awaited at the start of each batch; `None`: nothing is awaited.
            note: Records what functions report through their `ToolContext`; `None`: it is dropped.
        """
        return FunctionConnection(server, self._served, self.catch_all, before_calls, note)


class FunctionConnection:
    """One session with functions; a `ToolConnection`."""

    status = ConnectionStatus()

    def __init__(
        self,
        server: m.ServerName,
        functions: Mapping[str, _Function],
        catch_all: CatchAll | None = None,
        before_calls: Callable[[], Awaitable[object]] | None = None,
        note: Note | None = None,
    ) -> None:
        self._server = server
        self._functions = functions
        self._catch_all = catch_all
        self._before_calls = before_calls
        self._note = note
        self._converted: tuple[m.JsonObject, dict[str, Any]] | None = None
        self._boxed = False

    def runs_in(self, box: str, *, enforced: bool) -> None:
        """Say that all that the functions do is done by programs in a box, and in words in which."""
        self.status = ConnectionStatus(box=box)
        self._boxed = enforced

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        pass

    @property
    def listing(self) -> Listing:
        """The functions as tools."""
        tools = tuple(
            m.ToolDefinition(
                server=self._server,
                tool=function.tool,
                description=function.description,
                input_schema=function.parameters.schema,
                annotations=function.annotations,
                boxed=self._boxed,
            )
            for function in self._functions.values()
        )
        return Listing(tools=tools, protocol_version="", serves_unlisted=self._catch_all is not None)

    async def open(self, timeout_s: float) -> Listing:
        """List the functions as tools."""
        del timeout_s
        return self.listing

    async def refresh_tools(self, timeout_s: float) -> None:
        """Await `before_calls`. Returns `None`, since functions never change.

        The session calls this at the start of each batch, before its first call is recorded.
        """
        del timeout_s
        if self._before_calls is not None:
            await self._before_calls()

    async def refusal(self, tool: str, arguments: m.JsonObject) -> str | None:
        """Return why a function does not take the arguments; `None`: it does, or it is unknown."""
        if tool not in self._functions:
            return None
        try:
            self._converted = arguments, self._given(tool, arguments)
        except ToolRefusedError as error:
            return str(error)
        return None

    async def call(self, tool: str, arguments: m.JsonObject, timeout_s: float) -> m.ToolCallResult:
        """Call a function. An exception that it raises, `SystemExit` included, becomes an error result.

        A `KeyboardInterrupt`, or a BaseException class of the user's own, ends the turn, which raises it.

        Raises:
            ToolTimedOutError: The function took longer than `timeout_s`, or than its own limit. A plain
                function continues in its thread, and its result is dropped.
            ToolRefusedError: The function does not exist, or the arguments do not match its annotations.
        """
        function = self._functions.get(tool)
        if function is not None and function.timeout_s is not None:
            timeout_s = min(timeout_s, function.timeout_s)
        context = ToolContext(self._server, tool, timeout_s, self._notify)
        call = self._bound(tool, function, arguments, context)
        finished = False
        try:
            with anyio.move_on_after(timeout_s):
                result = await _result_of(call)
                finished = True
                return result
        finally:
            context._end(cancelled=not finished)  # noqa: SLF001 - the other half of one pair
        raise ToolTimedOutError(tool, timeout_s)

    def _bound(
        self, tool: str, function: _Function | None, arguments: m.JsonObject, context: ToolContext
    ) -> functools.partial[Any]:
        """Return the call with its converted arguments."""
        converted, self._converted = self._converted, None
        # Validators of the user's own should run once a call.
        checked = converted is not None and converted[0] is arguments
        given = converted[1] if converted is not None and checked else self._given(tool, arguments)
        if function is None:
            assert self._catch_all is not None, "only a catch-all takes any tool"
            return functools.partial(self._catch_all, tool, arguments)
        if function.parameters.context is not None:
            given[function.parameters.context] = context
        return functools.partial(function.call, **given)

    def _given(self, tool: str, arguments: m.JsonObject) -> dict[str, Any]:
        """Return the arguments as the function takes them; raises `ToolRefusedError`."""
        function = self._functions.get(tool)
        if function is None:
            if self._catch_all is None:
                raise ToolRefusedError(f"Unknown tool: {tool}", code=_INVALID_PARAMS)
            return arguments
        try:
            return function.parameters.convert(arguments)
        except InvalidArgumentsError as error:
            raise ToolRefusedError(f"invalid arguments: {error}", code=_INVALID_PARAMS) from error

    def _notify(self, kind: NoticeKind, text: str) -> None:
        if self._note is not None:
            self._note(m.ServerNoted(server=self._server, kind=kind, text=text), sender=self._server)


async def _result_of(call: functools.partial[Any]) -> m.ToolCallResult:
    try:
        if inspect.iscoroutinefunction(call.func):
            value = await call()
        else:
            value = await call_in_daemon_thread(functools.partial(_in_thread, call))
            if inspect.isawaitable(value):
                value = await value
        if isinstance(value, m.ToolCallResult):
            return value
        return tool_results.success(msgspec.to_builtins(value, enc_hook=_encodable))
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


def _encodable(value: object) -> object:
    """Return a replacement for a value that msgspec cannot encode: a pydantic model's fields, or the text."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else str(value)


def _by_name(functions: Iterable[Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    named: dict[str, Callable[..., Any]] = {}
    for function in functions:
        _refuse_what_cannot_be_called(f"{function!r:.60}", function)
        settings = settings_of(function)
        own_name: str = getattr(function, "__name__", "")
        name = settings.name if settings is not None and settings.name else own_name
        if not name or name == "<lambda>":
            raise MCPConfigError(
                f"{function!r} has no name that a tool could have. Give it one with `@tool(name=...)`, or"
                " pass FunctionTools a dictionary of functions by name."
            )
        if name in named:
            raise MCPConfigError(f"Two functions have the tool name '{name}'. Rename one: `@tool(name=...)`.")
        named[name] = function
    return named


def _refuse_what_is_no_list(functions: object) -> None:
    if callable(functions) or isinstance(functions, str) or not isinstance(functions, Iterable):
        name = getattr(functions, "__name__", "function")
        raise MCPConfigError(f"FunctionTools wants a list of functions: FunctionTools([{name}]).")


def _refuse_what_cannot_be_called(name: str, function: object) -> None:
    if not callable(function):
        raise MCPConfigError(
            f"FunctionTools: {name} is not a function. Pass functions,"
            " FunctionTools([add, divide]), or a dictionary of functions by tool name."
        )


def _function(name: str, function: Callable[..., Any]) -> _Function:
    settings = settings_of(function)
    docs = read_docstring(inspect.getdoc(function))
    description = docs.summary if settings is None else docs.description
    return _Function(
        tool=name,
        description=description if settings is None or settings.description is None else settings.description,
        parameters=Parameters(name, function, docs.parameters),
        call=function,
        timeout_s=settings.timeout_s if settings else None,
        annotations=settings.annotations if settings else None,
    )
