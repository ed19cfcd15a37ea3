"""The tool calls of a reply: how they form batches, which calls of a batch are made, how each call ends.

`steps_of` says what a session does for a batch, step by step. The rules:

- Calls are made one at a time, because a server may handle concurrent requests in any order.
- After a timeout the rest of the batch is skipped, because the server may still be at work on the call. With
  `FailurePolicy(after_timeout="continue")` it is made. After the server's death it is always skipped.
- A call that an earlier process has sent (`ServerCall.task`) is not sent again. If the server does not run or
  does not know the task, the answer to the call says that the call may have taken effect.
- A call is not sent if the tool does not accept its arguments, or has changed since the call was allowed. The
  call is then settled by a `ToolSkipped` that is `refused`, and the batch goes on.
- Every call gets exactly one settlement, unless the session is cancelled.
- If the server's tools have changed, they are listed again before the next call, and before the settlement of
  a batch's last call is reported: after that the turn may ask the model again, with the new tools.

Source: R5.2, R5.3, R5.4, R6.3, R6.4, R8.3, P17, P24, P44
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeAlias, assert_never

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.policies import SettlementKind
from grue.protocol.json_text import MAX_CHARS
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.built_in import READ_RESULT
from grue.protocol.tools.names import Servers, Tools, read_arguments, split_name, split_unlisted
from grue.protocol.tools.policy import Terms, definition_digest
from grue.protocol.tools.results import MediaRoom

_LONGEST_NAME = 200
_MOST_MEANT = 3
_MOST_GUESSED = 20  # rejected calls of a reply for which a similar name is looked for: it takes 1 ms each
_ALIKE = 0.8
Records: TypeAlias = tuple[m.ToolCallRecord, ...]
Calls: TypeAlias = Mapping[m.CallId, m.ToolCall]
CallNote: TypeAlias = m.ToolRejected | m.ToolDenied | m.ToolSkipped

_NONE_MISSING: Mapping[m.ServerName, str] = {}


class Unmade(Struct, frozen=True):
    """A call that is not sent to a server; the model gets `reason`. `denied`: by the policy or a person."""

    call: m.ToolCall
    reason: str
    settlement: Literal["rejected", "denied", "skipped"] = "rejected"


class ValidCall(Struct, frozen=True):
    """A call with its tool and parsed arguments; `task`: its MCP task, if an earlier process sent it."""

    call: m.ToolCall
    tool: m.ToolDefinition
    arguments: m.JsonObject
    task: m.ToolTask | None = None
    terms: Terms = Terms()


class Run(Struct, frozen=True):
    """Consecutive calls to one server, sent together.

    A `parallel` run has one call, and may overlap neighbouring `parallel` runs to other servers.
    """

    server: m.ServerName
    calls: tuple[m.ServerCall, ...]
    parallel: bool = False


def without_doubles(tools: Tools) -> tuple[Tools, tuple[m.ServerNoted, ...]]:
    """Drop tools whose name is already taken; return the others, and a note for each that was dropped."""
    first: dict[str, m.ToolDefinition] = {}
    notes = [
        m.ServerNoted(
            server=tool.server,
            kind="bad_tool",
            text=f"{tool.name}: left out, because the server '{first[tool.name].server}' lists that name too",
        )
        for tool in tools
        if first.setdefault(tool.name, tool) is not tool
    ]
    return tuple(first.values()), tuple(notes)


def tool_of(
    name: str, listed: Mapping[str, m.ToolDefinition], serving_unlisted: Servers
) -> m.ToolDefinition | None:
    """Return the tool that a call names; `None`: not listed, and not of a server in `serving_unlisted`."""
    tool = listed.get(name)
    found = split_unlisted(name, serving_unlisted) if tool is None else None
    if found is None:
        return tool
    return unlisted_tool(m.ServerName(found[0]), found[1])


def is_as_decided(
    call: m.ServerCall,
    server: m.ServerName,
    listed: Iterable[m.ToolDefinition],
    *,
    serves_unlisted: bool = False,
) -> bool:
    """Return whether a call's tool is the same as when the call was allowed; `True` if that is not known."""
    if not call.definition or call.task is not None:
        return True
    tools = [tool for tool in listed if tool.tool == call.tool]
    if not tools and serves_unlisted:
        tools = [unlisted_tool(server, call.tool)]
    return any(definition_digest(tool) == call.definition for tool in tools)


def definitions_of(
    calls: Iterable[m.ToolCall], tools: Iterable[m.ToolDefinition], serving_unlisted: Servers = ()
) -> dict[str, str]:
    """Return, by name, the digest of each called tool's definition; `""` if no server serves the tool."""
    listed = {tool.name: tool for tool in tools}
    found = {call.name: tool_of(call.name, listed, serving_unlisted) for call in calls}
    return {name: "" if tool is None else definition_digest(tool) for name, tool in found.items()}


def unlisted_tool(server: m.ServerName, tool: str) -> m.ToolDefinition:
    """Return the definition of a tool of which only the name is known."""
    return m.ToolDefinition(server=server, tool=tool, input_schema={"type": "object"})


def open_call(call: m.ToolCall, task: m.OpenTask) -> ValidCall:
    """Return a `ValidCall` for a call that is an MCP task already, even if its tool is no longer listed."""
    return ValidCall(call, unlisted_tool(task.server, task.call.tool), task.call.arguments, task.call.task)


def read_calls(
    calls: tuple[m.ToolCall, ...],
    tools: Tools,
    serving_unlisted: Servers = (),
    *,
    offered: Iterable[m.ToolDefinition] | None = None,
    missing: Mapping[m.ServerName, str] = _NONE_MISSING,
) -> tuple[tuple[ValidCall, ...], tuple[Unmade, ...]]:
    """Return the valid calls in order, and the calls with an unknown tool or with unreadable arguments.

    The error about an unknown tool names the `offered` ones, and the `missing` servers that may have had it.
    """
    listed = {tool.name: tool for tool in tools}
    known = ", ".join(listed if offered is None else dict.fromkeys(tool.name for tool in offered))
    valid: list[ValidCall] = []
    rejected: list[Unmade] = []
    room = MAX_CHARS
    for call in calls:
        tool = tool_of(call.name, listed, serving_unlisted)
        if tool is None:
            error = f"{_unknown(call.name)}{tool_results.why_unknown(call.name, missing)}"
            error += f". Available tools: {known}"
            error += _meant(call.name, listed) if len(rejected) < _MOST_GUESSED else ""
            rejected.append(Unmade(call, error))
            continue
        arguments = read_arguments(call.arguments, room)
        room -= len(call.arguments)
        if isinstance(arguments, str):
            rejected.append(Unmade(call, f"Tool call failed: {arguments}"))
            continue
        valid.append(ValidCall(call, tool, arguments))
    return tuple(valid), tuple(rejected)


def _meant(name: str, listed: Mapping[str, m.ToolDefinition]) -> str:
    """Return a question that names the tools that a wrong name may stand for; empty: no tool is similar."""
    name = name[:_LONGEST_NAME].lower()
    bare = tool_results.NAME_SEPARATORS.split(name)[-1]
    near = [each for each, tool in listed.items() if bare and bare in (tool.tool.lower(), each.lower())]
    if not near:
        import difflib  # imported here, because it is needed only for a name that is misspelt

        near = difflib.get_close_matches(name, listed, n=1, cutoff=_ALIKE)
    return f". Did you mean {' or '.join(near[:_MOST_MEANT])}?" if near else ""


def _unknown(name: str) -> str:
    try:
        split_name(name)
    except ValueError as error:
        return str(error)
    return f"Unknown MCP tool: {name}"


def runs_of(calls: Iterable[ValidCall], *, bind: bool = False) -> tuple[Run, ...]:
    """Group calls into runs (see `Run`). With `bind`, calls without a task get the digest of their tool."""
    runs: list[tuple[m.ServerName, bool, list[m.ServerCall]]] = []
    for valid in calls:
        server, parallel = valid.tool.server, valid.terms.parallel
        if not runs or parallel or runs[-1][:2] != (server, False):
            runs.append((server, parallel, []))
        call = m.ServerCall(
            call_id=valid.call.call_id,
            tool=valid.tool.tool,
            arguments=valid.arguments,
            task=valid.task,
            definition=definition_digest(valid.tool) if bind and valid.task is None else "",
        )
        runs[-1][2].append(call)
    return tuple(Run(server, tuple(served), parallel) for server, parallel, served in runs)


def record(
    call: m.ToolCall,
    iteration: int,
    settlement: SettlementKind,
    result: m.ToolCallResult,
    duration_s: float | None = None,
) -> m.ToolCallRecord:
    """Return the record of a call. `ToolCallRecord` explains `iteration`."""
    asked = msgspec.structs.asdict(call)
    return m.ToolCallRecord(
        **asked, iteration=iteration, settlement=settlement, result=result, duration_s=duration_s
    )


def record_settlement(call: m.ToolCall, iteration: int, event: m.Settlement) -> m.ToolCallRecord:
    """Return the record of a call that `event` settles."""
    match event:
        case m.ToolReturned(result=result):
            return record(call, iteration, "returned", result, event.duration_s)
        case m.ToolTimedOut(timeout_s=timeout_s):
            return record(call, iteration, "timed_out", tool_results.timed_out(timeout_s), event.duration_s)
        case m.ServerDied(failure=failure):
            return record(call, iteration, "died", tool_results.call_failed(failure.cause), event.duration_s)
        case m.ToolSkipped(reason=reason, refused=True):
            return record(call, iteration, "rejected", tool_results.call_failed(reason))
        case m.ToolSkipped(reason=reason):
            return record(call, iteration, "skipped", tool_results.failure(reason))
        case _:
            assert_never(event)


def answer_unmade(
    unmade: Iterable[Unmade], iteration: int, batch: m.BatchId
) -> tuple[tuple[CallNote, ...], Records]:
    """Return the notes and records of calls that are not made, each with the reason that the model reads."""
    notes: list[CallNote] = []
    records: list[m.ToolCallRecord] = []
    for each in unmade:
        call, call_id, reason = each.call, each.call.call_id, each.reason
        match each.settlement:
            case "denied":
                notes.append(m.ToolDenied(batch=batch, call_id=call_id, name=call.name, reason=reason))
                reason = f"Tool call denied: {reason}"
            case "rejected":
                notes.append(m.ToolRejected(batch=batch, call_id=call_id, name=call.name, error=reason))
            case _:
                notes.append(m.ToolSkipped(batch=batch, call_id=call_id, reason=reason))
        records.append(record(call, iteration, each.settlement, tool_results.failure(reason)))
    return tuple(notes), tuple(records)


def tool_messages(
    records: Records,
    max_result_chars: int,
    room: MediaRoom | None = None,
    *,
    plain: bool = False,
    refers: bool = False,
    unwraps: bool = False,
) -> tuple[m.ToolMessage, ...]:
    """Return the tool messages of a reply's calls, in order; `room` collects their attachments.

    `plain`: texts are not put into JSON, and with `refers`, a cut text names a handle for `read_result`.
    `unwraps`: as in `whole_text`.
    """

    def told(item: m.ToolCallRecord) -> tool_results.Told:
        note = ""
        if item.changed_arguments is not None:
            written = msgspec.json.encode(item.changed_arguments).decode()
            note = f"The user changed the arguments of this call to {written}"
        if not plain:
            return tool_results.told(item.result, max_result_chars, room, note)
        # No handle for a result of `read_result`: it is a part of another result, which has a handle.
        handle = item.call_id if refers and item.name != READ_RESULT.name else ""
        return tool_results.told_plainly(
            item.result, max_result_chars, room, note, handle=handle, unwraps=unwraps
        )

    return tuple(m.ToolMessage(item.call_id, *told(item)) for item in records)


class MakeCall(Struct):
    """Record `called` and make the call, or refuse the call and record nothing. Then set `settlement`.

    Before the call, and after the `last` call of the batch, report the server's tools if they have changed.
    """

    called: m.ToolCalled
    call: m.ServerCall
    last: bool
    settlement: m.Settlement | None = None


def steps_of(batch: m.CallTools, *, connected: bool = True) -> Iterator[MakeCall | m.Settlement]:
    """Yield what to do for a batch, in order; a settlement is to be reported to the agent.

    Unless `connected`, all calls are skipped. If a `MakeCall` gets no `settlement`, it was the last step.
    """
    skip_because = "" if connected else tool_results.SKIPPED_AFTER_DEATH
    for call in batch.calls:
        if skip_because:
            reason = skip_because if call.task is None else tool_results.INTERRUPTED
            yield m.ToolSkipped(batch=batch.batch, call_id=call.call_id, reason=reason)
            continue
        called = m.ToolCalled(
            server=batch.server,
            batch=batch.batch,
            call_id=call.call_id,
            tool=call.tool,
            arguments=call.arguments,
            task=call.task,
        )
        yield (make := MakeCall(called, call, last=call is batch.calls[-1]))
        if make.settlement is None:
            return
        yield make.settlement
        match make.settlement:
            case m.ServerDied():
                skip_because = tool_results.SKIPPED_AFTER_DEATH
            case m.ToolTimedOut() if batch.after_timeout == "skip":
                skip_because = tool_results.SKIPPED_AFTER_TIMEOUT
