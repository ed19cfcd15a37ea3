"""Ask a client whether a model can call tools, through its `_supports_tool_calling`.

Source: R12, P13
"""

import functools
import inspect
from typing import Any

from grue import messages as m
from grue.hosting import Fault, ToolSupportPolicy, call_in_daemon_thread, checked_support
from grue.hosts.zork.look_alikes import accepts, foreign_failure

METHOD = "_supports_tool_calling"


async def asked_of_client(
    client: Any, model: str, config: ToolSupportPolicy | None, *, endpoint: str
) -> m.ToolSupportChecked:
    """Return whether the model may be offered tools.

    The configuration decides if it forces tool support; otherwise the client's method; otherwise the model's
    name. The method is called with the model, and with `config` if it accepts one. It may block or be
    asynchronous. If it raises, the model is offered no tools, and the result has the reason.

    Args:
        client: Any client.
        model: The model.
        config: If its `mcp_force_tool_support` is set, nothing is checked; `None` forces nothing.
        endpoint: The name of the endpoint in the result.

    Source: R12.4
    """
    method = getattr(client, METHOD, None)
    forced = config is not None and config.mcp_force_tool_support
    if forced or not callable(method):
        return checked_support(model, endpoint, forced=forced)
    options = {"config": config} if config is not None and accepts(method, "config") else {}
    try:
        said = await _called(functools.partial(method, model, **options), method)
    except Exception as error:  # noqa: BLE001 - any exception of a foreign client counts as no
        words = Fault(kind="unavailable", message=f"{type(error).__name__}: {error}")
        told = foreign_failure(words, client, model).message
        said, reason = False, f"the client's {METHOD} raised {told}"
    else:
        reason = f"the client's {METHOD} says so"
    return m.ToolSupportChecked(
        model=model, endpoint=endpoint, supported=bool(said), by="client", reason="" if said else reason
    )


async def _called(call: "functools.partial[Any]", method: Any) -> object:
    if inspect.iscoroutinefunction(method):
        return await call()
    said = await call_in_daemon_thread(call)
    return await said if inspect.isawaitable(said) else said
