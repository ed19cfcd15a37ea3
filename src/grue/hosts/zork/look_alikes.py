"""Call the methods of a program's LLM client and MCP manager, of whatever class, and read their results."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast, get_args

from msgspec.structs import replace

from grue import messages as m
from grue.errors import LLMError
from grue.policies import FailureKind
from grue.protocol.chat_wire.failures import (
    MAX_WORDS,
    Fault,
    kind_of,
    overflow_of,
    reason_of,
    reason_of_fault,
)
from grue.protocol.chat_wire.profiles import ToolSupportPolicy, checked_support
from grue.protocol.tools import results as tool_results
from grue.runtime.loops.beside_loop import call_in_daemon_thread
from grue.runtime.safe_text import beginning, printable
from grue.runtime.secrets.redaction import Redaction


def completion_body(response: object) -> m.JsonObject:
    """Return a client's answer, an `LLMResponse` or an SDK's object or dict, as a chat completion's body."""
    dump = getattr(response, "model_dump", None)
    plain = dump() if callable(dump) else response
    if isinstance(plain, dict) and "choices" in plain:
        return plain
    choices = _listed(response, "choices")
    choice = choices[0] if choices else response
    message = member(choice, "message") if choices else response
    calls: list[m.JsonObject] = []
    for call in _listed(message, "tool_calls"):
        function = member(call, "function")
        named = {"name": member(function, "name"), "arguments": member(function, "arguments")}
        calls.append({"id": member(call, "id"), "function": named})
    said = {"content": member(message, "content"), "tool_calls": calls}
    return {
        "choices": [{"message": said, "finish_reason": member(choice, "finish_reason")}],
        "model": member(response, "model"),
        "usage": member(response, "usage"),
    }


def completion_failure(error: Exception, client: object, model: str) -> m.LlmFailure:
    """Return an `LlmFailure` for an exception of a client."""
    told = getattr(error, "failure", None)
    if isinstance(told, m.LlmFailure):
        return told
    status = _status(error)
    words = str(error) or type(error).__name__
    return foreign_failure(
        Fault(kind=_kind(error, status, words), message=words, status=status), client, model
    )


def tool_result(answer: object) -> m.ToolCallResult:
    """Convert the return value of a manager's `call_tool` to a `ToolCallResult`."""
    if isinstance(answer, Mapping) or not (hasattr(answer, "content") and hasattr(answer, "is_error")):
        return tool_results.success(answer)
    if answer.is_error is True:
        message = getattr(answer, "error_message", None) or "The tool reported an error"
        result = tool_results.failure(str(message), answer.content)
    else:
        result = tool_results.success(answer.content)
    return replace(result, blocks=answer.blocks) if isinstance(answer, m.ToolCallResult) else result


def accepts(function: Callable[..., Any], parameter: str) -> bool:
    """Return whether a function accepts an argument named `parameter`, or cannot be inspected."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    return parameter in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def member(holder: object, name: str) -> Any:
    """Return the value of a mapping's key or of an object's attribute; `None` if it is missing."""
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _listed(holder: object, name: str) -> Sequence[Any]:
    value = member(holder, name)
    return value if isinstance(value, list | tuple) else ()


def _kind(error: Exception, status: int | None, words: str) -> FailureKind:
    if isinstance(error, LLMError) and error.kind in get_args(FailureKind):
        return cast("FailureKind", error.kind)
    if status is not None:
        return kind_of(reason_of(status, words))
    if isinstance(error, TimeoutError) or "timeout" in type(error).__name__.lower():
        return "timed_out"
    return "unreachable" if isinstance(error, ConnectionError) else "unavailable"


def _status(error: Exception) -> int | None:
    for holder in (error, getattr(error, "response", None)):
        for name in ("status_code", "status"):
            status = getattr(holder, name, None)
            if isinstance(status, int) and not isinstance(status, bool):
                return status
    return None


def foreign_failure(fault: Fault, client: object, model: str) -> m.LlmFailure:
    """Convert a client's fault to an `LlmFailure`; redact the client's key and the environment's secrets."""
    redaction, key = Redaction.of_environment(), getattr(client, "api_key", None)
    if isinstance(key, str):
        redaction.hide("api_key", key)
    message = redaction.redact_text(beginning(fault.message, 4 * MAX_WORDS))
    reason = reason_of_fault(fault)
    return m.LlmFailure(
        kind=fault.kind,
        endpoint=type(client).__name__,
        model=model,
        message=printable(message, MAX_WORDS),
        status=fault.status,
        overflow=overflow_of(fault.message) if reason == "too_long" else None,
        reason=reason,
        retry_after_s=fault.retry_after_s,
    )


def own_methods(cls: type, names: Iterable[str]) -> Mapping[str, Callable[..., Any]]:
    """Return a class's methods for `is_overridden`; called at import, before a program can replace one."""
    return {name: vars(cls)[name] for name in names}


def is_overridden(instance: object, methods: Mapping[str, Callable[..., Any]]) -> bool:
    """Return whether one of `methods` is overridden in a subclass, or replaced in the class or object."""
    return any(
        getattr(getattr(instance, name, None), "__func__", None) is not method
        for name, method in methods.items()
    )


METHOD = "_supports_tool_calling"


async def asked_of_client(
    client: Any, model: str, config: ToolSupportPolicy | None, *, endpoint: str
) -> m.ToolSupportChecked:
    """Let the client's `_supports_tool_calling`, if any, decide about tools, unless `config` forces them."""
    method = getattr(client, METHOD, None)
    forced = config is not None and config.mcp_force_tool_support
    if forced or not callable(method):
        return checked_support(model, endpoint, forced=forced)
    options = {"config": config} if config is not None and accepts(method, "config") else {}
    try:
        said = await called(functools.partial(method, model, **options))
    except Exception as error:  # noqa: BLE001 - any exception of a foreign client counts as no
        words = Fault(kind="unavailable", message=f"{type(error).__name__}: {error}")
        told = foreign_failure(words, client, model).message
        said, reason = False, f"the client's {METHOD} raised {told}"
    else:
        reason = f"the client's {METHOD} says so"
    return m.ToolSupportChecked(
        model=model, endpoint=endpoint, supported=bool(said), by="client", reason="" if said else reason
    )


async def called(call: "functools.partial[Any]") -> object:
    """Call a method of the program, in a thread if it is not a coroutine function; return its result."""
    if inspect.iscoroutinefunction(call.func):
        return await call()
    said = await call_in_daemon_thread(call)
    return await said if inspect.isawaitable(said) else said
