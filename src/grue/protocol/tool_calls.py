"""The tool calls of a reply: which go to which server, which no server gets to see, what became of each."""

from typing import Literal, assert_never

from msgspec import Struct

from grue.messages import (
    BatchId,
    ServerCall,
    ServerDied,
    ServerName,
    ServerNoted,
    Settlement,
    ToolCall,
    ToolCallRecord,
    ToolCallResult,
    ToolDefinition,
    ToolMessage,
    ToolRejected,
    ToolReturned,
    ToolSkipped,
    ToolTimedOut,
)
from grue.protocol import tool_results
from grue.protocol.tool_arguments import MAX_CHARS, read_arguments
from grue.protocol.tool_media import MediaRoom


class Rejected(Struct, frozen=True):
    """A call that is answered without any server: `error` is for the model to read."""

    call: ToolCall
    error: str


class Run(Struct, frozen=True):
    """Consecutive calls to one server; they go to its session as one batch."""

    server: ServerName
    calls: tuple[ServerCall, ...]


def without_doubles(
    tools: tuple[ToolDefinition, ...],
) -> tuple[tuple[ToolDefinition, ...], tuple[ServerNoted, ...]]:
    """Return the tools, of each name only the first, and a note for each tool that is left out by that.

    Within one server's listing that cannot happen; but a manager may list tools under the names of others.
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


def sort_calls(
    calls: tuple[ToolCall, ...], tools: tuple[ToolDefinition, ...]
) -> tuple[tuple[Run, ...], tuple[Rejected, ...]]:
    """Return the runs in order, and the calls that are unknown or unreadable (R5.3, R6.4, R8.3)."""
    listed = {tool.name: tool for tool in tools}
    known = ", ".join(listed)
    runs: list[tuple[ServerName, list[ServerCall]]] = []
    rejected: list[Rejected] = []
    room = MAX_CHARS
    for call in calls:
        tool = listed.get(call.name)
        if tool is None:
            error = f"Unknown MCP tool: {call.name}. Available tools: {known}"
            rejected.append(Rejected(call, error))
            continue
        arguments = read_arguments(call.arguments, room)
        room -= len(call.arguments)
        if isinstance(arguments, str):
            rejected.append(Rejected(call, f"Tool call failed: {arguments}"))
            continue
        if not runs or runs[-1][0] != tool.server:
            runs.append((tool.server, []))
        runs[-1][1].append(ServerCall(call_id=call.call_id, tool=tool.tool, arguments=arguments))
    return tuple(Run(server, tuple(served)) for server, served in runs), tuple(rejected)


def record(
    call: ToolCall,
    iteration: int,
    settlement: Literal["returned", "timed_out", "died", "skipped", "rejected"],
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


def record_settlement(call: ToolCall, iteration: int, event: Settlement) -> ToolCallRecord:
    """Return the record of a call, which `event` settles."""
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
    """Return the notes and records of calls that are answered without a server, each for its own reason."""
    notes = tuple(
        ToolRejected(batch=batch, call_id=item.call.call_id, name=item.call.name, error=item.error)
        for item in rejected
    )
    return notes, tuple(
        record(item.call, iteration, "rejected", tool_results.failure(item.error)) for item in rejected
    )


def skip(
    calls: tuple[ToolCall, ...], iteration: int, batch: BatchId, reason: str
) -> tuple[tuple[ToolSkipped, ...], tuple[ToolCallRecord, ...]]:
    """Return the notes and records of calls that no server gets to see, all for the same reason."""
    notes = tuple(ToolSkipped(batch=batch, call_id=call.call_id, reason=reason) for call in calls)
    result = tool_results.failure(reason)
    return notes, tuple(record(call, iteration, "skipped", result) for call in calls)


def tool_messages(
    records: tuple[ToolCallRecord, ...], max_result_chars: int, room: MediaRoom | None = None
) -> tuple[ToolMessage, ...]:
    """Return what the conversation is told of each call of a reply, in order (R5.4, P44).

    Args:
        records: The calls, settled.
        max_result_chars: Longest text of each.
        room: For what is attached to them; `None`: nothing is.
    """
    return tuple(
        ToolMessage(item.call_id, *tool_results.told(item.result, max_result_chars, room)) for item in records
    )
