"""A tool server made of Python functions, which a turn uses like any other tool server.

Annotations determine the schemas that the model sees, and how arguments are checked: by msgspec, or by
pydantic for its own types and those that msgspec cannot read, such as a union of two dataclasses.

A plain function runs in a daemon thread, so that a slow one does not block the event loop. Python cannot stop
a thread. So when a call's time limit has passed, the call fails, but its thread may run on.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import functools
import inspect
import json
import re
import sys
import threading
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise, takewhile
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias, TypeVar, Union, overload

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.errors import MCPConfigError, MCPError, TraceError
from grue.field_checks import WHERE_TO_DEFINE, check_settings, shown
from grue.policies import NoticeKind, ToolAnnotations
from grue.protocol.json_text import json_value, plain_value
from grue.protocol.tools import results as tool_results
from grue.runtime.actor import Note
from grue.runtime.loops.beside_loop import call_in_daemon_thread
from grue.runtime.loops.host_code import HostCodeFailed, ends_the_task, in_words, single
from grue.runtime.processes.process_group import ProcessRegistry
from grue.runtime.safe_text import beginning, plain_text
from grue.tool_sessions.connection import ConnectionStatus, Listing
from grue.tool_sessions.failures import ToolRefusedError, ToolTimedOutError
from grue.tool_sessions.host_tools import BeforeCalls, HostTools, InvalidArgumentsError, is_mutable
from grue.tool_sessions.server_requests import Notify

if TYPE_CHECKING:
    from grue.tool_sessions.pydantic_parameters import PydanticParameter


_PYDANTIC = frozenset(("pydantic", "pydantic_core", "pydantic_settings", "annotated_types"))
_DEEPEST = 20
_REF = "#/$defs/{name}"
_OMITTED = object()  # stands for an argument that a call has left out, if pydantic reads the parameter


class Parameters:
    """The parameters of one function: each must be usable by name, and JSON must express its type, if any."""

    def __init__(self, tool: str, function: Callable[..., Any], descriptions: Mapping[str, str]) -> None:
        self.context: str | None = None  # name of the parameter for the `ToolContext`
        self._tool = tool
        self._by_pydantic: dict[str, PydanticParameter] = {}
        self._none_by_default: set[str] = set()  # parameters such as `x: int = None`; models send `null`
        fields: list[tuple[str, Any, Any]] = []
        texts: dict[str, str] = {}
        for parameter in _signature(tool, function).parameters.values():
            if _is_context(parameter.annotation):
                if self.context is not None:
                    raise MCPConfigError(
                        f"The function behind the tool '{tool}' has two ToolContext parameters."
                    )
                self._require_name(parameter)
                self.context = parameter.name
                continue
            fields.append(self._field(parameter))
            annotated = getattr(parameter.annotation, "__metadata__", ())  # of `Annotated[T, "text"]`
            own_text = next((part for part in annotated if isinstance(part, str)), "")
            if text := own_text or descriptions.get(parameter.name, ""):
                texts[parameter.name] = text
        self._struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        self.schema = self._schema(texts)

    def convert(self, arguments: m.JsonObject) -> dict[str, Any]:
        """Convert arguments to the types of the function's annotations; raises `InvalidArgumentsError`."""
        # Leave out `null` if it is the default: the parameter's type may not allow it.
        stated = {
            name: value
            for name, value in arguments.items()
            if value is not None or name not in self._none_by_default
        }
        try:
            # `str_keys`: JSON has no other keys than texts, and a parameter may be a `dict[int, str]`.
            given = msgspec.structs.asdict(msgspec.convert(stated, self._struct, str_keys=True))
            for name, parameter in self._by_pydantic.items():
                omitted = given[name] is _OMITTED
                given[name] = parameter.default() if omitted else parameter.convert(given[name])
        except InvalidArgumentsError:
            raise
        except msgspec.ValidationError as error:
            raise InvalidArgumentsError(str(error)) from error
        except Exception as error:  # raised by a validator or a default factory of the host
            raise InvalidArgumentsError(in_words(error)) from error
        return given

    def _require_name(self, parameter: inspect.Parameter) -> None:
        by_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if not by_name or parameter.name.startswith("__"):  # msgspec refuses a field such as `__name`
            raise MCPConfigError(
                f"The function behind the tool '{self._tool}' has the parameter '{parameter}', which cannot "
                "be given by name. Use plain or keyword-only parameters."
            )

    def _field(self, parameter: inspect.Parameter) -> tuple[str, Any, Any]:
        self._require_name(parameter)
        kind = Any if parameter.annotation is parameter.empty else parameter.annotation
        required = parameter.default is parameter.empty
        default_kind = type(parameter.default)
        has_field_info = default_kind.__name__ == "FieldInfo" and _is_pydantic(default_kind)
        of_pydantic = has_field_info or mentions_pydantic(kind)
        fault = None if of_pydantic else _fault(kind)
        if not of_pydantic and fault is None:
            if parameter.default is None:
                self._none_by_default.add(parameter.name)
            return parameter.name, kind, msgspec.NODEFAULT if required else _default(parameter.default)
        reader = self._pydantic(parameter, kind, fault)
        self._by_pydantic[parameter.name] = reader
        omitted = msgspec.field(default_factory=lambda: _OMITTED)
        return parameter.name, Any, msgspec.NODEFAULT if reader.required else omitted

    def _pydantic(
        self, parameter: inspect.Parameter, kind: Any, fault: TypeError | None
    ) -> PydanticParameter:
        from grue.tool_sessions.pydantic_parameters import PydanticParameter

        try:
            return PydanticParameter(parameter.name, kind, parameter.default)
        except TypeError as error:
            why = str(fault or error).rpartition("\n\n")[2]  # without msgspec's advice about hooks
            raise MCPConfigError(
                f"The tool '{self._tool}' has the parameter '{parameter.name}', which cannot be offered to a"
                f" model: {why.rstrip('.')}. Annotate it with a type that JSON can express."
            ) from error

    def _schema(self, texts: Mapping[str, str]) -> m.JsonObject:
        (schema,), components = msgspec.json.schema_components([self._struct], ref_template=_REF)
        key = schema["$ref"].rsplit("/", 1)[-1]
        own: m.JsonObject = {word: value for word, value in components.pop(key).items() if word != "title"}
        properties: dict[str, Any] = own["properties"]  # type: ignore[assignment]  # always an object
        for name, parameter in self._by_pydantic.items():
            properties[name], components = parameter.add_schema(components)
        for name, text in texts.items():
            parameter_read = self._by_pydantic.get(name)
            if parameter_read is not None and not parameter_read.described:
                # Replace a description that pydantic has taken from the docstring of the parameter's class.
                properties[name]["description"] = text
            properties[name].setdefault("description", text)
        if components:
            own["$defs"] = components
        return own


def mentions_pydantic(kind: Any, depth: int = 0) -> bool:
    """Return whether a type, a part of it or its metadata is from `_PYDANTIC`, or has pydantic's hooks."""
    if depth > _DEEPEST:
        return False
    if isinstance(kind, type) and any(_is_pydantic(base) for base in kind.__mro__):
        return True
    if hasattr(kind, "__pydantic_core_schema__") or hasattr(kind, "__get_pydantic_core_schema__"):
        return True
    parts = [*getattr(kind, "__metadata__", ()), *typing.get_args(kind)]
    if any(_is_pydantic(type(part)) for part in parts):
        return True
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind) or hasattr(kind, "_field_defaults"):
        with contextlib.suppress(NameError, TypeError, SyntaxError):
            parts += typing.get_type_hints(kind, include_extras=True).values()
    return any(mentions_pydantic(part, depth + 1) for part in parts if part is not kind)


def _is_pydantic(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _PYDANTIC


def _signature(tool: str, function: Callable[..., Any]) -> inspect.Signature:
    try:
        signature = inspect.signature(function, eval_str=True)
        given = signature.parameters.values()
        kinds = _evaluated({each.name: each.annotation for each in given}, function)
        return signature.replace(parameters=[each.replace(annotation=kinds[each.name]) for each in given])
    except (NameError, SyntaxError, TypeError, ValueError) as error:
        advice = f" {WHERE_TO_DEFINE}" if isinstance(error, NameError) else ""
        raise MCPConfigError(
            f"The signature of the tool '{tool}' cannot be read: {error}.{advice}"
        ) from error


def _evaluated(annotations: dict[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """Evaluate names in quotes inside annotations, as in `list["Place"]`, which `signature` leaves."""

    def holder() -> None: ...

    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if isinstance(function, type):
        names = getattr(sys.modules.get(function.__module__), "__dict__", {})
    else:
        called = function if hasattr(function, "__globals__") else type(function).__call__
        names = getattr(called, "__globals__", {})
    holder.__annotations__ = annotations
    return typing.get_type_hints(holder, names, include_extras=True)


def _is_context(annotation: Any) -> bool:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _is_context(parts[0])
    if origin in (Union, UnionType):
        return all(_is_context(part) for part in parts if part is not NoneType)
    return isinstance(annotation, type) and issubclass(annotation, ToolContext)


def _fault(kind: Any) -> TypeError | None:
    """Return why msgspec cannot decode the type `kind` or write its JSON schema; `None` if it can."""
    try:
        msgspec.json.Decoder(kind)
        msgspec.json.schema_components([kind])
    except TypeError as error:
        return error
    return None


def _default(value: object) -> object:
    if is_mutable(value):
        return msgspec.field(default_factory=functools.partial(copy.deepcopy, value))
    try:
        json.dumps(msgspec.to_builtins(value), allow_nan=False)
    except (TypeError, ValueError):
        # JSON cannot express the default. Use it for calls, but leave it out of the schema.
        return msgspec.field(default_factory=lambda: value)
    return value


_NOTICE_CHARS = 500
_MAX_NOTICES = 500  # most notices that are recorded of one call: a tight loop could fill the trace


class ToolCancelled(MCPError):  # noqa: N818 - named as the event, like the other cancellations
    """Raised by `ToolContext.raise_if_cancelled` if the call's result will not be used any more."""


class ToolContext:
    """One call of a function tool: its time limit, whether it was cancelled, and where it reports progress.

    Give a function a parameter of this type, with any name. The model does not see the parameter. All methods
    can be called from the function's own thread. At most 500 reports of a call are recorded, each cut to 500
    characters.

    ```python
    @tool
    def dig(depth_m: int, context: ToolContext) -> str:
        for metre in range(depth_m):
            context.raise_if_cancelled()
            context.progress(metre, depth_m)
            ...
    ```

    A coroutine function is cancelled at its time limit like any task. A plain function runs in a thread, and
    Python cannot stop a thread: it should look at `cancelled` from time to time, or wait with `wait`.

    Attributes:
        tool: The tool's bare name.
    """

    def __init__(self, server: m.ServerName, tool: str, timeout_s: float, notify: Notify) -> None:
        self.server = server
        self.tool = tool
        self._deadline = time.monotonic() + timeout_s
        self._notify = notify
        self._notices = 0
        self._over = False
        self._cancelled = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()

    @property
    def cancelled(self) -> bool:
        """`True` if the call has timed out or was cancelled. Its result will then be dropped."""
        return self._cancelled.is_set()

    @property
    def remaining_s(self) -> float:
        """Seconds until the call's time limit; 0 once it has passed."""
        return max(0.0, self._deadline - time.monotonic())

    def raise_if_cancelled(self) -> None:
        """Raise `ToolCancelled` if the call has timed out or was cancelled."""
        if self.cancelled:
            raise ToolCancelled(f"The call of {self.server}.{self.tool} was cancelled.")

    def wait(self, timeout_s: float) -> bool:
        """Block this thread for `timeout_s`, or until `cancelled` becomes true. Return `cancelled`."""
        return self._cancelled.wait(timeout_s)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report the progress of the call, which is shown like the progress of an MCP server.

        Args:
            done: The part that is done, in any unit.
            total: The whole, in the same unit; `None`: unknown.
            message: What is being done now.
        """
        share = f"{done:g}" if total is None else f"{done:g}/{total:g}"
        self._send("progress", f"{share} {message}" if message else share)

    def log(self, text: str) -> None:
        """Write a line to the trace. The line is shown in the same way as a log message of an MCP server."""
        self._send("log", text)

    def _send(self, kind: NoticeKind, text: str) -> None:
        shown = plain_text(beginning(text, _NOTICE_CHARS))[:_NOTICE_CHARS]
        if threading.get_ident() == self._loop_thread:
            self._deliver(kind, shown)
        elif not self.cancelled:
            # The call's result is sent by `call_soon_threadsafe` later, so the loop gets this notice first.
            with contextlib.suppress(RuntimeError):  # the event loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._deliver, kind, shown)

    def _deliver(self, kind: NoticeKind, text: str) -> None:
        if self._over:
            return  # The call has ended, although its thread may still run.
        self._notices += 1
        if self._notices <= _MAX_NOTICES:
            self._notify(kind, text)
        elif self._notices == _MAX_NOTICES + 1:
            self._notify(
                "too_large", f"{self.tool}: more than {_MAX_NOTICES} notices; further ones are left out"
            )

    def _end(self, *, cancelled: bool) -> None:
        """Mark the call as ended: later reports are dropped. Call this in the event loop's thread."""
        self._over = True
        if cancelled:
            self._cancelled.set()


_PARAMETERS = re.compile(r"(keyword )?(args|arguments|parameters)|other parameters|params")
"""The titles of the sections of a docstring that describe parameters."""

_OTHERS = re.compile(
    r"attributes|examples?|notes?|raises|references|returns?|see also|source|todo|warnings?|warns|yields?"
)
_UNDERLINE = re.compile(r"-{3,}\s*")
_FIELD = re.compile(r":(?P<field>[a-z]+)(?:\s+(?P<about>[^:\n]+))?:(?:\s+(?P<text>.*)|\s*)")
_PARAMETER_FIELDS = frozenset(("param", "parameter", "arg", "argument", "key", "keyword"))
_FIELDS = _PARAMETER_FIELDS | {"raise", "raises", "except", "return", "returns", "rtype", "type", "yields"}
_ITEM = re.compile(r"\*{0,2}(?P<names>\w+)\s*(?:\((?:[^()]|\([^()]*\))*\))?\s*:(?:\s+(?P<text>.*)|\s*)")
_NAMES = re.compile(r"(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")


class Docs(Struct, frozen=True):
    """The parts of a docstring that become descriptions."""

    description: str  # the text before the first section
    parameters: Mapping[str, str]  # the parameters' descriptions by name, each in one line

    @property
    def summary(self) -> str:
        """The first paragraph of the description, in one line."""
        return _one_line(self.description.split("\n\n")[0])


def read_docstring(docstring: str | None) -> Docs:
    """Return the parts of a docstring; `None` counts as an empty docstring."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    begins = [at for at in range(len(lines)) if _begins_section(lines, at)]
    parameters: dict[str, str] = {}
    for begin, end in pairwise((*begins, len(lines))):
        for name, text in _items(lines[begin:end]):
            parameters.setdefault(name, text)
    description = "\n".join(lines[: begins[0]] if begins else lines).strip()
    return Docs(description, {name: text for name, text in parameters.items() if text})


def _begins_section(lines: list[str], at: int) -> bool:
    line = lines[at]
    if _heading(line) or _is_underlined(lines, at):
        return True
    field = _FIELD.fullmatch(line)
    return field is not None and field["field"] in _FIELDS


def _is_title(text: str) -> bool:
    return bool(_PARAMETERS.fullmatch(text) or _OTHERS.fullmatch(text))


def _heading(line: str) -> str:
    """Return the title if a line begins a section in Google's form, such as `Args:`; otherwise empty."""
    title, colon, rest = line.rstrip().lower().rpartition(":")
    return title if colon and not rest and _is_title(title) else ""


def _is_underlined(lines: list[str], at: int) -> bool:
    below = lines[at + 1] if at + 1 < len(lines) else ""
    return _is_title(lines[at].strip().lower()) and _UNDERLINE.fullmatch(below) is not None


def _items(section: list[str]) -> Iterator[tuple[str, str]]:
    head = section[0]
    field = _FIELD.fullmatch(head)
    if field is not None and field["field"] in _FIELDS:
        if field["field"] in _PARAMETER_FIELDS and field["about"]:
            # `:param int steps: text` has the type before the name.
            name = field["about"].split()[-1].lstrip("*")
            yield name, _one_line(" ".join((field["text"] or "", *section[1:])))
    elif _PARAMETERS.fullmatch(_heading(head)):
        base = next((_indent(line) for line in section[1:] if line.strip()), 0)
        # A line with less indentation ends the section, even if it is no heading.
        block = takewhile(lambda line: not line.strip() or _indent(line) >= base, section[1:])
        yield from _described_in(block, _ITEM, base)
    elif _is_underlined(section, 0) and _PARAMETERS.fullmatch(head.strip().lower()):
        yield from _described_in(section[2:], _NAMES, 0)


def _described_in(block: Iterable[str], item: re.Pattern[str], indent: int) -> Iterator[tuple[str, str]]:
    """Yield names and descriptions. Each begins with a line that `item` matches, indented by `indent`."""
    names, texts = list[str](), list[str]()
    for line in block:
        found = item.fullmatch(line.strip()) if line.strip() and _indent(line) == indent else None
        if found is None:
            texts.append(line)
            continue
        yield from ((name, _one_line(" ".join(texts))) for name in names)
        names = [name.strip().lstrip("*") for name in found["names"].split(",")]
        texts = [found.groupdict().get("text") or ""]
    yield from ((name, _one_line(" ".join(texts))) for name in names)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _one_line(text: str) -> str:
    return " ".join(text.split())


F = TypeVar("F", bound=Callable[..., Any])
_ATTRIBUTE = "__grue_tool__"


class ToolSettings(Struct, frozen=True, kw_only=True):
    """The arguments of `@tool`. The docstring of `tool` describes them."""

    name: str | None = None
    description: str | None = None
    timeout_s: float | None = None
    annotations: ToolAnnotations | None = None

    def __post_init__(self) -> None:
        check_settings(self, above_0=("timeout_s",))


_UNMARKED = ToolSettings()


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
    def look(direction: Annotated[Literal["north", "south"], "Where to look."]) -> str:
        \"\"\"Look in a direction.\"\"\"
        ...

    runner = Runner(llm=..., servers={"eyes": FunctionTools([look])})
    ```

    Args:
        function: A plain function, a coroutine function, or a method in its class.
        name: The tool's bare name; `None`: the function's name. In a dictionary of functions, the key is the
            name.
        description: What the model reads; `None`: the docstring up to its first section.
        timeout_s: Time limit of a call in seconds, unless the turn's is smaller; `None`: the turn's.
        annotations: What the tool does, such as `ToolAnnotations(read_only=True)`. A tool policy trusts these
            annotations, because they are the host's own. `None`: MCP's defaults, which assume the worst.
    """
    if function is not None and not callable(function):
        raise MCPConfigError(
            f"tool wants a function, not {shown(function)}. Options go by name: tool(name='...')."
        )
    settings = ToolSettings(name=name, description=description, timeout_s=timeout_s, annotations=annotations)

    def mark(marked: F) -> F:
        try:
            setattr(marked, _ATTRIBUTE, settings)
        except AttributeError as error:
            raise MCPConfigError(
                f"{shown(marked)} cannot be marked with tool: a bound method and a built-in function keep no"
                " settings. Mark the method in its class, or write a function that calls it."
            ) from error
        return marked

    return mark if function is None else mark(function)


def settings_of(function: Callable[..., Any]) -> ToolSettings | None:
    """Return the arguments of this function's `@tool`; `None` if the function is not marked with `@tool`."""
    settings = getattr(function, _ATTRIBUTE, None)
    return settings if isinstance(settings, ToolSettings) else None


_INVALID_PARAMS = -32602
_RESULTS = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)
CatchAll: TypeAlias = Callable[[str, m.JsonObject], Any]  # called with the bare name and the arguments


class _Function(Struct, frozen=True):
    definition: m.ToolDefinition  # without the server's name
    parameters: Parameters
    call: Callable[..., Any]
    timeout_s: float | None


class FunctionTools(HostTools):
    """A tool server made of functions. Pass it to a `Runner` in place of an MCP server.

    Args:
        functions: Functions by tool name; or a list of functions, each with the name that `@tool` gives it,
            or else its own. Each parameter must be usable as a keyword argument; if it has a type, msgspec or
            pydantic must support this type. The model reads the `description` of `@tool`, or by default the
            docstring up to its first section; of a function without `@tool`, only the first paragraph.
        catch_all: Called with the bare name and the arguments of a tool that is not listed; `None`: such a
            call is refused. The model can know of such tools only from the host's instructions.

    Raises:
        MCPConfigError: For example, a function has no name, or a parameter whose type JSON cannot express.

    Source: L7
    """

    def __init__(
        self,
        functions: Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]] = (),
        *,
        catch_all: CatchAll | None = None,
    ) -> None:
        given: object = functions
        if callable(given) or isinstance(given, str) or not isinstance(given, Iterable):
            called = getattr(given, "__name__", "function")
            raise MCPConfigError(f"FunctionTools wants a list of functions: FunctionTools([{called}]).")
        self.functions = dict(functions) if isinstance(functions, Mapping) else _by_name(functions)
        for name, function in self.functions.items():
            if not isinstance(name, str) or not name:
                raise MCPConfigError(
                    f"FunctionTools: in functions=, a tool's name is a text, not {shown(name)}."
                )
            _refuse_what_cannot_be_called(name, function)
        if catch_all is not None:
            _refuse_what_cannot_be_called("catch_all=", catch_all)
        self.catch_all = catch_all
        self.served = {name: _function(name, function) for name, function in self.functions.items()}

    def connect(
        self,
        server: m.ServerName,
        registry: ProcessRegistry | None = None,
        before_calls: BeforeCalls = None,
        note: Note | None = None,
    ) -> FunctionConnection:
        """Make the connection for one session. Its `refresh_tools` awaits `before_calls`."""
        del registry  # functions that start processes, as those of `ShellTool` do, already have it
        return FunctionConnection(self, server, before_calls, note)


class FunctionConnection(Struct, eq=False):
    """One session with functions; a `ToolConnection`."""

    tools: FunctionTools
    server: m.ServerName
    before_calls: BeforeCalls
    note: Note | None
    status: ConnectionStatus = ConnectionStatus()
    _converted: tuple[m.JsonObject, dict[str, Any]] | None = None
    _boxed: bool = False

    def runs_in(self, box: str, *, enforced: bool) -> None:
        """Declare that all that the functions do is start programs in a box. `box` describes it in words."""
        self.status = ConnectionStatus(box=box)
        self._boxed = enforced

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        pass

    @property
    def listing(self) -> Listing:
        """The functions as tools."""
        definitions = (function.definition for function in self.tools.served.values())
        tools = tuple(replace(each, server=self.server, boxed=self._boxed) for each in definitions)
        return Listing(tools=tools, protocol_version="", serves_unlisted=self.tools.catch_all is not None)

    async def open(self, timeout_s: float) -> Listing:
        """Return `listing`."""
        del timeout_s
        return self.listing

    async def refresh_tools(self, timeout_s: float) -> None:
        """Await `before_calls`. The list of functions never changes."""
        del timeout_s
        if self.before_calls is not None:
            await self.before_calls()

    async def refusal(self, tool: str, arguments: m.JsonObject) -> str | None:
        """Return why the function `tool` refuses the arguments; `None`: it accepts them, or is unknown."""
        if tool not in self.tools.served:
            return None
        try:
            self._converted = arguments, self._given(tool, arguments)
        except ToolRefusedError as error:
            return str(error)
        return None

    async def call(self, tool: str, arguments: m.JsonObject, timeout_s: float) -> m.ToolCallResult:
        """Call a function; raises `ToolTimedOutError` or `ToolRefusedError`."""
        function = self.tools.served.get(tool)
        if function is not None and function.timeout_s is not None:
            timeout_s = min(timeout_s, function.timeout_s)
        context = ToolContext(self.server, tool, timeout_s, self._notify)
        call = self._bound(tool, function, arguments, context)
        finished = False
        try:
            with anyio.move_on_after(timeout_s):
                result = await _result_of(call)
                finished = True
                return result
        finally:
            context._end(cancelled=not finished)  # noqa: SLF001 - not public, because users must not call it
        raise ToolTimedOutError(tool, timeout_s)

    def _bound(
        self, tool: str, function: _Function | None, arguments: m.JsonObject, context: ToolContext
    ) -> functools.partial[Any]:
        converted, self._converted = self._converted, None
        # Use what `refusal` has converted, so that the user's validators do not run twice.
        checked = converted is not None and converted[0] is arguments
        given = converted[1] if converted is not None and checked else self._given(tool, arguments)
        if function is None:
            assert self.tools.catch_all is not None, "only a catch-all takes any tool"
            return functools.partial(self.tools.catch_all, tool, given)
        if function.parameters.context is not None:
            given[function.parameters.context] = context
        return functools.partial(function.call, **given)

    def _given(self, tool: str, arguments: m.JsonObject) -> dict[str, Any]:
        function = self.tools.served.get(tool)
        own: dict[str, Any] = msgspec.to_builtins(arguments)  # a copy, because the function may change it
        if function is None:
            if self.tools.catch_all is None:
                raise ToolRefusedError(f"Unknown tool: {tool}", code=_INVALID_PARAMS)
            return own
        try:
            return function.parameters.convert(own)
        except InvalidArgumentsError as error:
            raise ToolRefusedError(f"invalid arguments: {error}", code=_INVALID_PARAMS) from error

    def _notify(self, kind: NoticeKind, text: str) -> None:
        if self.note is None:
            return
        # A callback of the event loop could not raise it. The call's settlement, which follows, raises it.
        with contextlib.suppress(TraceError):
            self.note(m.ServerNoted(server=self.server, kind=kind, text=text), sender=self.server)


async def _result_of(call: functools.partial[Any]) -> m.ToolCallResult:
    try:
        if inspect.iscoroutinefunction(call.func):
            return _as_result(await call())
        # Not one of anyio's 40 threads: with more slow functions at once, some would time out unbegun.
        own = anyio.CapacityLimiter(1)
        returned = await call_in_daemon_thread(functools.partial(_in_thread, call), limiter=own)
        return _as_result(await returned) if inspect.isawaitable(returned) else returned
    except BaseException as raised:
        error = single(raised)
        # Only a cancellation of this task and exceptions such as KeyboardInterrupt propagate.
        if ends_the_task(raised) or not isinstance(error, _RESULTS):
            raise
        return tool_results.call_failed(in_words(error))


def _as_result(value: Any) -> m.ToolCallResult:
    returned = [value.content, value.blocks] if isinstance(value, m.ToolCallResult) else value
    refused = tool_results.repetitive(returned)
    if refused is not None:
        return refused
    plain = msgspec.to_builtins(value, enc_hook=_plain)
    if isinstance(value, m.ToolCallResult):
        blocks = tuple(map(json_value, plain.pop("blocks") or ()))
        parts: dict[str, Any] = {name: json_value(part) for name, part in plain.items()}
        # `convert` refuses a field of a wrong type, with which the trace could not be read.
        return msgspec.convert(parts | {"blocks": blocks}, m.ToolCallResult)
    return tool_results.success(plain)


def _plain(value: Any) -> object:
    if isinstance(value, Iterator):
        raise TypeError("the tool returned a generator or another iterator; it should return a list")
    return plain_value(value)


def _in_thread(call: functools.partial[Any]) -> Any:
    """Return the call's result, or the awaitable that the function has returned."""
    try:
        # Make the result here, too: this may call code of the host that blocks, such as a lazy `__str__`.
        value = call()
        return value if inspect.isawaitable(value) else _as_result(value)
    except BaseException as error:
        # Wrap it: a StopIteration would become a RuntimeError, a KeyboardInterrupt would stop the event loop.
        raise HostCodeFailed(error) from error


def _by_name(functions: Iterable[Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    named: dict[str, Callable[..., Any]] = {}
    for function in functions:
        _refuse_what_cannot_be_called(shown(function), function)
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


def _refuse_what_cannot_be_called(name: str, function: object) -> None:
    if not callable(function):
        raise MCPConfigError(
            f"FunctionTools: {name} is not a function. Pass functions,"
            " FunctionTools([add, divide]), or a dictionary of functions by tool name."
        )
    if getattr(getattr(function, "register", None), "__module__", "") == "functools":
        raise MCPConfigError(
            f"FunctionTools: {name} is a singledispatch function, which takes its first argument by position"
            " only. Pass a plain function that calls it."
        )
    while isinstance(function, functools.partial):
        function = function.func
    called = function if inspect.isroutine(function) else type(function).__call__
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise MCPConfigError(
            f"FunctionTools: {name} is a generator function, and nobody would read what it yields."
            " Return a list of the values."
        )


def _function(name: str, function: Callable[..., Any]) -> _Function:
    settings = settings_of(function) or _UNMARKED
    documented = function
    # A partial's own docstring explains `functools.partial`.
    while isinstance(documented, functools.partial) and documented.__doc__ == functools.partial.__doc__:
        documented = documented.func
    docs = read_docstring(inspect.getdoc(documented))
    description = docs.summary if settings is _UNMARKED else docs.description
    parameters = Parameters(name, function, docs.parameters)
    definition = m.ToolDefinition(
        server=m.ServerName(""),
        tool=name,
        description=description if settings.description is None else settings.description,
        input_schema=parameters.schema,
        annotations=settings.annotations,
    )
    return _Function(definition, parameters, function, settings.timeout_s)
