"""Sort the tool calls of a reply by server, and record how each was settled.

Come here to change which calls are rejected before they reach a server, or what a record says about a call.
`turn_tools.py` decides when calls are sent.
"""

from collections.abc import Iterable, Mapping
from typing import assert_never

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue.messages import (
    BatchId,
    JsonObject,
    OpenTask,
    ServerCall,
    ServerDied,
    ServerName,
    ServerNoted,
    Settlement,
    ToolCall,
    ToolCallRecord,
    ToolCallResult,
    ToolDefinition,
    ToolDenied,
    ToolMessage,
    ToolRejected,
    ToolReturned,
    ToolSkipped,
    ToolTask,
    ToolTimedOut,
)
from grue.protocol import tool_results
from grue.protocol.tool_arguments import MAX_CHARS, read_arguments
from grue.protocol.tool_media import MediaRoom
from grue.protocol.tool_names import split_unlisted
from grue.protocol.tool_policy import CallTerms
from grue.vocabulary import SettlementKind


class Rejected(Struct, frozen=True):
    """A call that is answered without asking a server; the model reads `error`."""

    call: ToolCall
    error: str


class ValidCall(Struct, frozen=True):
    """A call that its server can take: it serves the tool, and the arguments are an object.

    Attributes:
        task: The server has the call already, as this task.
    """

    call: ToolCall
    tool: ToolDefinition
    arguments: JsonObject
    task: ToolTask | None = None


class Run(Struct, frozen=True):
    """Consecutive calls to one server, sent to its session as one batch.

    Attributes:
        parallel: May be under way together with other such runs, of other servers. It has one call only, so
            that the turn can still skip the next one after a timeout.
    """

    server: ServerName
    calls: tuple[ServerCall, ...]
    parallel: bool = False


def without_doubles(
    tools: tuple[ToolDefinition, ...],
) -> tuple[tuple[ToolDefinition, ...], tuple[ServerNoted, ...]]:
    """Drop tools whose name is already taken; return the others, and a note for each that was dropped.

    The listing of one server has no duplicates. Two servers clash only if a host's own manager lists tools
    under another server's name.
    """
    first: dict[str, ToolDefinition] = {}
    notes = [
        ServerNoted(
            server=tool.server,
            kind="bad_tool",
            text=f"{tool.name}: left out, because the server '{first[tool.name].server}' lists that name too",
        )
        for tool in tools
        if first.setdefault(tool.name, tool) is not tool
    ]
    return tuple(first.values()), tuple(notes)


def tool_of(
    name: str, listed: Mapping[str, ToolDefinition], serving_unlisted: tuple[ServerName, ...]
) -> ToolDefinition | None:
    """Return the tool that a call names; `None` if no server serves it.

    Nothing is known of a tool that its server does not list, so it gets a definition without annotations.
    """
    tool = listed.get(name)
    found = split_unlisted(name, serving_unlisted) if tool is None else None
    if found is None:
        return tool
    return _unlisted(ServerName(found[0]), found[1])


def _unlisted(server: ServerName, tool: str) -> ToolDefinition:
    return ToolDefinition(server=server, tool=tool, input_schema={"type": "object"})


def open_call(call: ToolCall, task: OpenTask) -> ValidCall:
    """Return a call that its server has already, as it was sent; its tool need not be listed any more."""
    return ValidCall(call, _unlisted(task.server, task.call.tool), task.call.arguments, task.call.task)


def read_calls(
    calls: tuple[ToolCall, ...],
    tools: tuple[ToolDefinition, ...],
    serving_unlisted: tuple[ServerName, ...] = (),
) -> tuple[tuple[ValidCall, ...], tuple[Rejected, ...]]:
    """Return the valid calls in order, and those that name an unknown tool or have unreadable arguments.

    Args:
        calls: The calls of one reply.
        tools: The tools of all open sessions.
        serving_unlisted: The servers whose tools need not be listed.

    Source: R5.3, R6.4, R8.3
    """
    listed = {tool.name: tool for tool in tools}
    known = ", ".join(listed)
    valid: list[ValidCall] = []
    rejected: list[Rejected] = []
    room = MAX_CHARS
    for call in calls:
        tool = tool_of(call.name, listed, serving_unlisted)
        if tool is None:
            error = f"Unknown MCP tool: {call.name}. Available tools: {known}"
            rejected.append(Rejected(call, error))
            continue
        arguments = read_arguments(call.arguments, room)
        room -= len(call.arguments)
        if isinstance(arguments, str):
            rejected.append(Rejected(call, f"Tool call failed: {arguments}"))
            continue
        valid.append(ValidCall(call, tool, arguments))
    return tuple(valid), tuple(rejected)


def runs_of(calls: Iterable[tuple[ValidCall, CallTerms]]) -> tuple[Run, ...]:
    """Group consecutive calls to one server; a call that may run in parallel is a run of its own."""
    runs: list[tuple[ServerName, bool, list[ServerCall]]] = []
    for valid, terms in calls:
        server = valid.tool.server
        if not runs or terms.parallel or runs[-1][:2] != (server, False):
            runs.append((server, terms.parallel, []))
        call = ServerCall(
            call_id=valid.call.call_id, tool=valid.tool.tool, arguments=valid.arguments, task=valid.task
        )
        runs[-1][2].append(call)
    return tuple(Run(server, tuple(served), parallel) for server, parallel, served in runs)


def record(
    call: ToolCall,
    iteration: int,
    settlement: SettlementKind,
    result: ToolCallResult,
    duration_s: float | None = None,
) -> ToolCallRecord:
    """Return the record of a call that came with reply number `iteration`."""
    return ToolCallRecord(
        call_id=call.call_id,
        name=call.name,
        arguments=call.arguments,
        iteration=iteration,
        settlement=settlement,
        result=result,
        duration_s=duration_s,
    )


def record_settlement(
    call: ToolCall, iteration: int, event: Settlement, changed: JsonObject | None = None
) -> ToolCallRecord:
    """Return the record of a call that `event` settles.

    Args:
        call: The call as the model made it.
        iteration: Number of the reply that asked for it.
        event: How it ended.
        changed: The arguments that were sent instead of the model's.
    """
    settled = _record_settlement(call, iteration, event)
    return settled if changed is None else replace(settled, changed_arguments=changed)


def _record_settlement(call: ToolCall, iteration: int, event: Settlement) -> ToolCallRecord:
    match event:
        case ToolReturned(result=result):
            return record(call, iteration, "returned", result, event.duration_s)
        case ToolTimedOut(timeout_s=timeout_s):
            return record(call, iteration, "timed_out", tool_results.timed_out(timeout_s), event.duration_s)
        case ServerDied(failure=failure):
            return record(call, iteration, "died", tool_results.call_failed(failure.cause), event.duration_s)
        case ToolSkipped(reason=reason):
            return record(call, iteration, "skipped", tool_results.failure(reason))
        case _:
            assert_never(event)


def reject(
    rejected: tuple[Rejected, ...], iteration: int, batch: BatchId
) -> tuple[tuple[ToolRejected, ...], tuple[ToolCallRecord, ...]]:
    """Return the notes and records of rejected calls; each has its own error text."""
    notes = tuple(
        ToolRejected(batch=batch, call_id=item.call.call_id, name=item.call.name, error=item.error)
        for item in rejected
    )
    return notes, tuple(
        record(item.call, iteration, "rejected", tool_results.failure(item.error)) for item in rejected
    )


def deny(
    denied: tuple[tuple[ToolCall, str], ...], iteration: int, batch: BatchId
) -> tuple[tuple[ToolDenied, ...], tuple[ToolCallRecord, ...]]:
    """Return the notes and records of denied calls, each with the reason that the model reads."""
    notes = tuple(
        ToolDenied(batch=batch, call_id=call.call_id, name=call.name, reason=reason)
        for call, reason in denied
    )
    return notes, tuple(
        record(call, iteration, "denied", tool_results.failure(f"Tool call denied: {reason}"))
        for call, reason in denied
    )


def skip(
    calls: tuple[ToolCall, ...], iteration: int, batch: BatchId, reason: str
) -> tuple[tuple[ToolSkipped, ...], tuple[ToolCallRecord, ...]]:
    """Return the notes and records of calls that are not sent to their server, all for the same `reason`."""
    notes = tuple(ToolSkipped(batch=batch, call_id=call.call_id, reason=reason) for call in calls)
    result = tool_results.failure(reason)
    return notes, tuple(record(call, iteration, "skipped", result) for call in calls)


def tool_messages(
    records: tuple[ToolCallRecord, ...], max_result_chars: int, room: MediaRoom | None = None
) -> tuple[ToolMessage, ...]:
    """Return the tool messages of a reply's calls, in order.

    Args:
        records: The settled calls.
        max_result_chars: Longest text of one message.
        room: Collects the attachments; `None` attaches nothing.

    Source: R5.4, P44
    """
    return tuple(
        ToolMessage(item.call_id, *tool_results.told(item.result, max_result_chars, room, _note_on(item)))
        for item in records
    )


def _note_on(item: ToolCallRecord) -> str:
    if item.changed_arguments is None:
        return ""
    written = msgspec.json.encode(item.changed_arguments).decode()
    return f"The user changed the arguments of this call to {written}"
