"""A function's parameters: their JSON Schema, and the conversion of a call's arguments.

msgspec reads most types: numbers, texts, lists, enums, dates, Structs, dataclasses, TypedDicts, their unions.
pydantic reads a parameter that mentions it (a model, `Annotated[..., Field(...)]`), and one that msgspec
cannot read, such as a union of two dataclasses. It is imported only then, because the import takes a tenth of
a second.

Descriptions are read from the function's docstring, in the three forms in use: Google (`Args:` and indented
`name (type): text`), NumPy (`Parameters` over dashes and `name : type` over indented text) and Sphinx
(`:param type name: text`). Anything else is part of the description. It never raises: from a docstring in
another form it reads no parameter descriptions.
"""

import asyncio
import contextlib
import copy
import dataclasses
import functools
import inspect
import re
import threading
import time
import typing
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType, NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.errors import MCPConfigError, MCPError
from grue.policies import NoticeKind
from grue.runtime.safe_text import beginning, plain_text
from grue.tool_sessions.host_tools import InvalidArgumentsError

if TYPE_CHECKING:
    from grue.tool_sessions.pydantic_parameters import PydanticParameter


_PYDANTIC = frozenset(("pydantic", "pydantic_core", "pydantic_settings", "annotated_types"))
_DEEPEST = 20
_REF = "#/$defs/{name}"


class _Omitted:
    """Stands for an argument that pydantic reads and that was not given."""


_OMITTED = _Omitted()


class Parameters:
    """The parameters of one function.

    Attributes:
        schema: The JSON Schema of the arguments.
        context: Name of the parameter that receives the `ToolContext`; `None`: there is none.

    Raises:
        MCPConfigError: A parameter cannot be given by name, or JSON cannot express its type.
    """

    def __init__(self, tool: str, function: Callable[..., Any], descriptions: Mapping[str, str]) -> None:
        self.context: str | None = None
        self._tool = tool
        self._by_pydantic: dict[str, PydanticParameter] = {}
        fields: list[tuple[str, Any, Any]] = []
        texts: dict[str, str] = {}
        for parameter in _signature(tool, function).parameters.values():
            if _is_context(parameter.annotation):
                self._take_context(parameter)
                continue
            fields.append(self._field(parameter))
            text = _own_text(parameter.annotation) or descriptions.get(parameter.name, "")
            if text:
                texts[parameter.name] = text
        self._struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        self.schema = self._schema(texts)

    def convert(self, arguments: m.JsonObject) -> dict[str, Any]:
        """Return the arguments as the function's annotations want them.

        Raises:
            InvalidArgumentsError: They do not match.
        """
        try:
            given = msgspec.structs.asdict(msgspec.convert(arguments, self._struct))
        except msgspec.ValidationError as error:
            raise InvalidArgumentsError(str(error)) from error
        for name, parameter in self._by_pydantic.items():
            given[name] = parameter.default() if given[name] is _OMITTED else parameter.convert(given[name])
        return given

    def _take_context(self, parameter: inspect.Parameter) -> None:
        if self.context is not None:
            raise MCPConfigError(
                f"The function behind the tool '{self._tool}' has two ToolContext parameters."
            )
        self._require_name(parameter)
        self.context = parameter.name

    def _require_name(self, parameter: inspect.Parameter) -> None:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise MCPConfigError(
                f"The function behind the tool '{self._tool}' has the parameter '{parameter}', which cannot "
                "be given by name. Use plain or keyword-only parameters."
            )

    def _field(self, parameter: inspect.Parameter) -> tuple[str, Any, Any]:
        self._require_name(parameter)
        kind = Any if parameter.annotation is parameter.empty else parameter.annotation
        required = parameter.default is parameter.empty
        fault = None if _is_field_info(parameter.default) or mentions_pydantic(kind) else _fault(kind)
        if fault is None and not _is_field_info(parameter.default) and not mentions_pydantic(kind):
            return parameter.name, kind, msgspec.NODEFAULT if required else _default(parameter.default)
        reader = self._pydantic(parameter, kind, fault)
        self._by_pydantic[parameter.name] = reader
        omitted = msgspec.field(default_factory=lambda: _OMITTED)
        return parameter.name, Any, msgspec.NODEFAULT if reader.required else omitted

    def _pydantic(
        self, parameter: inspect.Parameter, kind: Any, fault: TypeError | None
    ) -> "PydanticParameter":
        pydantic_parameters = _pydantic_parameters()
        try:
            found: PydanticParameter = pydantic_parameters.PydanticParameter(
                parameter.name, kind, parameter.default
            )
        except TypeError as error:
            raise MCPConfigError(
                f"The tool '{self._tool}' has a parameter that cannot be offered to a model:"
                f" {fault or error}. Annotate it with a type that JSON can express."
            ) from error
        return found

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
                # pydantic has put the docstring of the model's class here, which says what the model is. What
                # the parameter is for matters more.
                properties[name]["description"] = text
            properties[name].setdefault("description", text)
        if components:
            own["$defs"] = components
        return own


def mentions_pydantic(kind: Any, depth: int = 0) -> bool:
    """Return whether a type is made of anything that pydantic or `annotated_types` defines."""
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
        parts += _hints(kind)
    return any(mentions_pydantic(part, depth + 1) for part in parts if part is not kind)


def _is_pydantic(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _PYDANTIC


def _is_field_info(default: object) -> bool:
    return _is_pydantic(type(default)) and type(default).__name__ == "FieldInfo"


def _hints(kind: Any) -> list[Any]:
    try:
        return list(typing.get_type_hints(kind, include_extras=True).values())
    except (NameError, TypeError, SyntaxError):
        return []


def _pydantic_parameters() -> ModuleType:
    from grue.tool_sessions import pydantic_parameters

    return pydantic_parameters


def _signature(tool: str, function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except (NameError, SyntaxError, TypeError, ValueError) as error:
        raise MCPConfigError(f"The signature of the tool '{tool}' cannot be read: {error}.") from error


def _is_context(annotation: Any) -> bool:
    members = [part for part in typing.get_args(annotation) if part is not NoneType] or [annotation]
    return all(isinstance(part, type) and issubclass(part, ToolContext) for part in members)


def _own_text(annotation: Any) -> str:
    """Return the text in `Annotated[T, "text"]`; empty if there is none."""
    if typing.get_origin(annotation) is not Annotated:
        return ""
    return next((part for part in annotation.__metadata__ if isinstance(part, str)), "")


def _fault(kind: Any) -> TypeError | None:
    """Return why msgspec cannot read a type, or `None` if it can."""
    try:
        msgspec.json.Decoder(kind)
        msgspec.json.schema_components([kind])
    except TypeError as error:
        return error
    return None


def _default(value: object) -> object:
    # Python evaluates a default once. Copy a mutable one for each call: a function may modify it, and the
    # next turn must not see that.
    if isinstance(value, list | dict | set | bytearray):
        return msgspec.field(default_factory=functools.partial(copy.deepcopy, value))
    try:
        msgspec.to_builtins(value)
    except TypeError:  # JSON cannot express it: use it, but do not show it in the schema
        return msgspec.field(default_factory=lambda: value)
    return value


_NOTICE_CHARS = 500
_MAX_NOTICES = 500
"""Most notices of one call. A function that reports in a tight loop would fill the trace."""

ContextNotify: TypeAlias = Callable[[NoticeKind, str], None]


class ToolCancelled(MCPError):  # noqa: N818 - named as the event, like the other cancellations
    """Raised by `ToolContext.raise_if_cancelled`; the call's result is no longer wanted."""


class ToolContext:
    """One call of a function tool: its time limit, whether it was cancelled, and where it reports progress.

    Give a function a parameter of this type, with any name. The model does not see the parameter. All methods
    can be called from the function's own thread.

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
        server: The server's name.
        tool: The tool's bare name.
    """

    def __init__(self, server: m.ServerName, tool: str, timeout_s: float, notify: ContextNotify) -> None:
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
        """Whether the call has timed out or was cancelled, so that its result is dropped."""
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
        """Sleep, but wake up at once if the call is cancelled. For plain functions; it blocks the thread.

        Returns:
            Whether the call was cancelled.
        """
        return self._cancelled.wait(timeout_s)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report how far the call is. It is shown as a server's own progress is.

        Args:
            done: The part that is done, in any unit.
            total: The whole, in the same unit; `None`: unknown.
            message: What is being done now.
        """
        share = f"{done:g}" if total is None else f"{done:g}/{total:g}"
        self._send("progress", f"{share} {message}" if message else share)

    def log(self, text: str) -> None:
        """Write a line to the trace. It is shown as a server's log messages are."""
        self._send("log", text)

    def _send(self, kind: NoticeKind, text: str) -> None:
        shown = plain_text(beginning(text, _NOTICE_CHARS))[:_NOTICE_CHARS]
        if threading.get_ident() == self._loop_thread:
            self._deliver(kind, shown)
        elif not self.cancelled:
            # The loop delivers these in order, and before the function's result, which takes the same way.
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._deliver, kind, shown)

    def _deliver(self, kind: NoticeKind, text: str) -> None:
        if self._over:
            return  # a thread that was abandoned; the call has been answered
        self._notices += 1
        if self._notices < _MAX_NOTICES:
            self._notify(kind, text)
        elif self._notices == _MAX_NOTICES:
            self._notify(
                "too_large", f"{self.tool}: more than {_MAX_NOTICES} notices; further ones are left out"
            )

    def _end(self, *, cancelled: bool) -> None:
        """End the call, in the event loop. Later notices are dropped."""
        self._over = True
        if cancelled:
            self._cancelled.set()


_PARAMETERS = frozenset(
    (
        "args",
        "arguments",
        "params",
        "parameters",
        "keyword args",
        "keyword arguments",
        "keyword parameters",
        "other parameters",
    )
)
_OTHERS = frozenset(
    (
        "attributes",
        "example",
        "examples",
        "note",
        "notes",
        "raises",
        "references",
        "return",
        "returns",
        "see also",
        "source",
        "todo",
        "warning",
        "warnings",
        "warns",
        "yield",
        "yields",
    )
)
_UNDERLINE = re.compile(r"-{3,}\s*")
_FIELD = re.compile(r":(?P<field>[a-z]+)(?:\s+(?P<about>[^:\n]+))?:(?:\s+(?P<text>.*)|\s*)")
_PARAMETER_FIELDS = frozenset(("param", "parameter", "arg", "argument", "key", "keyword"))
_FIELDS = _PARAMETER_FIELDS | {"raise", "raises", "except", "return", "returns", "rtype", "type", "yields"}
_ITEM = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?:\((?:[^()]|\([^()]*\))*\))?\s*:(?:\s+(?P<text>.*)|\s*)")
_NAMES = re.compile(r"(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")


class Docs(Struct, frozen=True):
    """The parts of a docstring.

    Attributes:
        description: The text before the first section.
        parameters: The description of each parameter that has one, in one line.
    """

    description: str
    parameters: Mapping[str, str]

    @property
    def summary(self) -> str:
        """The first paragraph of the description, in one line."""
        return _one_line(self.description.split("\n\n")[0])


def read_docstring(docstring: str | None) -> Docs:
    """Read a docstring; `None` is an empty one."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    description: list[str] = []
    parameters: dict[str, str] = {}
    position = next((at for at in range(len(lines)) if _begins_section(lines, at)), len(lines))
    description = lines[:position]
    while position < len(lines):
        end = next((at for at in range(position + 1, len(lines)) if _begins_section(lines, at)), len(lines))
        for name, text in _items(lines[position:end]):
            parameters.setdefault(name, text)
        position = end
    return Docs("\n".join(description).strip(), {name: text for name, text in parameters.items() if text})


def _begins_section(lines: list[str], at: int) -> bool:
    line = lines[at]
    if _heading(line) or _is_underlined(lines, at):
        return True
    field = _FIELD.fullmatch(line)
    return field is not None and field["field"] in _FIELDS


def _heading(line: str) -> str:
    """Return the name of the Google section that a line begins; empty if it begins none."""
    name = line.rstrip().removesuffix(":").lower()
    known = name in _PARAMETERS or name in _OTHERS
    return name if known and line.rstrip().endswith(":") else ""


def _is_underlined(lines: list[str], at: int) -> bool:
    below = lines[at + 1] if at + 1 < len(lines) else ""
    return lines[at].strip().lower() in _PARAMETERS | _OTHERS and _UNDERLINE.fullmatch(below) is not None


def _items(section: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the parameters that a section describes; none if it is about something else."""
    head = section[0]
    field = _FIELD.fullmatch(head)
    if field is not None and field["field"] in _FIELDS:
        if field["field"] in _PARAMETER_FIELDS and field["about"]:
            # `:param int steps: text` has the type before the name.
            name = field["about"].split()[-1].lstrip("*")
            yield name, _one_line(" ".join((field["text"] or "", *section[1:])))
    elif _heading(head) in _PARAMETERS:
        yield from _google_items(section[1:])
    elif _is_underlined(section, 0) and head.strip().lower() in _PARAMETERS:
        yield from _numpy_items(section[2:])


def _google_items(block: list[str]) -> Iterator[tuple[str, str]]:
    base = next((_indent(line) for line in block if line.strip()), 0)
    name, texts = "", list[str]()
    for line in block:
        if line.strip() and _indent(line) < base:
            break  # text after the section that no heading begins
        item = _ITEM.fullmatch(line.strip()) if _indent(line) == base else None
        if item is None:
            texts.append(line)
            continue
        if name:
            yield name, _one_line(" ".join(texts))
        name, texts = item["name"], [item["text"] or ""]
    if name:
        yield name, _one_line(" ".join(texts))


def _numpy_items(block: list[str]) -> Iterator[tuple[str, str]]:
    names, texts = list[str](), list[str]()
    for line in block:
        item = _NAMES.fullmatch(line.rstrip()) if line.strip() and not _indent(line) else None
        if item is None:
            texts.append(line)
            continue
        yield from ((name, _one_line(" ".join(texts))) for name in names)
        names = [name.strip().lstrip("*") for name in item["names"].split(",")]
        texts = []
    yield from ((name, _one_line(" ".join(texts))) for name in names)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _one_line(text: str) -> str:
    return " ".join(text.split())
