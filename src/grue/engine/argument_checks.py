"""Check the arguments of a `Runner` or a `ToolClient` before a turn meets a wrong one."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from grue.errors import MCPConfigError
from grue.protocol.tools.lock import ToolLock
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.trace.recorder import Recorder

S = TypeVar("S", bound=Struct)

_FORMS: dict[str, tuple[Any, str]] = {
    "recorder": (Recorder, 'recorder=Recorder(); to write a trace, trace="runs"'),
    "trace": (str | os.PathLike, 'trace="runs" or trace="bot.jsonl"'),
    "approve": (Callable, "approve=function, which is called with the questions"),
    "elicit": (Callable, "elicit=function, which is called with the server's question"),
    "process_limits": (ProcessLimits, "process_limits=ProcessLimits(...)"),
    "tool_lock": (ToolLock, "tool_lock=ToolLock(...)"),
}
"""The kind of each argument, and how to write it. `None` is the default of each."""


def refuse_other_kinds(**given: object) -> None:
    """Refuse an argument of another kind than it is meant for.

    Args:
        given: By name; the names are those of `_FORMS`.

    Raises:
        MCPConfigError: It says which argument, and how to write it.
    """
    for argument, value in given.items():
        kind, form = _FORMS[argument]
        if value is not None and not isinstance(value, kind):
            raise MCPConfigError(f"{argument}= wants {form}, not {type(value).__name__} {value!r:.60}.")


def settings_or_default(argument: str, given: S | None, default: S) -> S:
    """Return `given` after checking its kind and the types of its fields; `None`: the default.

    Args:
        argument: The argument's name, for the error.
        given: What the program passed.
        default: Its class is the kind that is wanted.

    Raises:
        MCPConfigError: It is something else, or a field has a value of another type.
    """
    if given is None:
        return default
    kind = type(default)
    if not isinstance(given, kind):
        raise MCPConfigError(
            f"{argument}= wants {kind.__name__}(...), not {type(given).__name__} {given!r:.60}."
        )
    check_fields(argument, given)
    return given


def check_fields(argument: str, given: Struct) -> None:
    """Check the types of the fields of plain data.

    Raises:
        MCPConfigError: A field has a value of another type.
    """
    kind = type(given)
    try:
        msgspec.convert(msgspec.to_builtins(given), kind)
    except (msgspec.ValidationError, TypeError) as error:
        fault, _, place = str(error).partition(" - at `$")
        raise MCPConfigError(
            f"{argument}={kind.__name__}(...): {place.rstrip('`').lstrip('.') or 'a field'}: {fault}."
        ) from error
