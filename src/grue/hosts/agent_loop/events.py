"""The events of an agent loop: the model's words and the tool calls, as they happen."""

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec import Struct

from grue import messages as m
from grue.hosting import Envelope
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.calls import record_settlement


class Words(Struct, frozen=True, kw_only=True):
    """A piece of the model's reply.

    Attributes:
        reasoning: Whether the piece belongs to the model's reasoning and not to its answer.
        restart: `True`: the reply has failed, or another one replaces it. Discard the pieces since the last
            tool call, or all pieces of this input if there was no call. `text` is empty.
    """

    text: str
    reasoning: bool = False
    restart: bool = False


class ToolStarted(Struct, frozen=True, kw_only=True):
    """A tool call is being made.

    Attributes:
        call_id: Unique within one input (one call of `AgentLoop.run`).
        name: The tool's full name, such as `mcp.files.read`.
        arguments: The arguments; untrusted.
    """

    call_id: str
    name: str
    arguments: dict[str, Any]


class ToolEnded(Struct, frozen=True, kw_only=True):
    """A tool call was answered. A call that was not made, such as a denied one, has no `ToolStarted`.

    Attributes:
        call_id: Unique within one input; the same as in the call's `ToolStarted`, if the call was made.
        result: The result, before it is cut to the length that the model gets; untrusted.
        duration_s: Seconds that the call took; `None` if the call was not made.
    """

    call_id: str
    name: str
    result: m.ToolCallResult
    duration_s: float | None = None


LoopEvent: TypeAlias = Words | ToolStarted | ToolEnded

_NO_CALL = m.ToolCall(call_id=m.CallId(""), name="", arguments="")


class EventFeed:
    """Makes the events of a turn, and passes them to `put`, in any of the turn's threads.

    Add the feed to the runner's recorder, and pass the method `words` as `on_delta` of each `TurnRequest`.
    `put` must not block, raise, or add to the trace: the recorder holds its lock while it calls observers.
    """

    def __init__(self, put: Callable[[LoopEvent], object]) -> None:
        self._put = put
        self._names: dict[str, str] = {}

    def words(self, delta: m.TextDelta) -> None:
        """Make an event from a piece of a reply."""
        self._put(Words(text=delta.text, reasoning=delta.part == "reasoning", restart=delta.restart))

    def __call__(self, envelope: Envelope[Any], _line: bytes) -> None:
        """Make an event if the envelope starts or ends a tool call."""
        if not envelope.turn:
            return
        match envelope.body:
            case m.CompletionReceived(tool_calls=calls) if envelope.receiver == "agent":
                # Other receivers are servers: a server may ask the model during a tool call (sampling).
                self._names = {call.call_id: call.name for call in calls}
            case m.ToolCalled(call_id=call_id, server=server, tool=tool, arguments=arguments):
                name = self._names[call_id] = f"{server}.{tool}"
                self._put(ToolStarted(call_id=call_id, name=name, arguments=arguments))
            case m.ToolReturned() | m.ToolTimedOut() | m.ServerDied() | m.ToolSkipped() as settlement:
                record = record_settlement(_NO_CALL, 0, settlement)
                self._ended(settlement.call_id, record.result, record.duration_s)
            case m.ToolDenied(call_id=call_id, reason=reason):
                self._ended(call_id, tool_results.failure(f"Tool call denied: {reason}"))
            case m.ToolRejected(call_id=call_id, error=error):
                self._ended(call_id, tool_results.failure(error))

    def _ended(self, call_id: str, result: m.ToolCallResult, duration_s: float | None = None) -> None:
        name = self._names.get(call_id)
        if name is not None:  # the feed knows only the calls that began after it was added to the recorder
            self._put(ToolEnded(call_id=call_id, name=name, result=result, duration_s=duration_s))
