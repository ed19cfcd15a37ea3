"""Decide which calls of a batch are made, and how the others are answered: a pure state machine.

These are the rules within one session. The session actor carries out the commands of `batch_step`, in order;
a replay computes them again from the recorded settlements and compares. What follows for the other batches
of a reply is decided in `protocol/turn/tools.py`.

The rules:

- One call at a time: the next call is made when the one before is settled and its settlement reported. A
  server may handle concurrent requests in any order.
- After a timeout the rest of the batch is skipped, unless the policy says `continue`: the server may still be
  at work on the call.
- After the server's death the rest of the batch is skipped, and so is a batch that reaches a session without
  a server.
- A call that an earlier process has sent is not sent again: its server is asked for the result of its task.
  If that cannot be done, the call is answered as one that was interrupted.
- A call that would be refused before it is sent, for instance because its arguments do not match the tool's
  schema, is not recorded as a call. Its settlement says why, and the batch goes on.
- A call is made only of the tool that it was decided for. If the server lists it otherwise by then, or not at
  all, the call is skipped, and the calls after it go on.
- Every call of a batch gets exactly one settlement. One that arrives for a call that is already settled, such
  as a late answer after a timeout, is ignored.
- Changed tools are read before each call, and before the last settlement of a batch is reported: with that
  settlement the turn asks the model again, and the request should list the new tools.

Source: R5.2, R6.3, P17, P24
"""

from typing import TypeAlias

from msgspec import Struct

from grue import messages as m
from grue.protocol.tools import results as tool_results


class NoBatch(Struct, frozen=True):
    """No batch is under way."""


class Calling(Struct, frozen=True):
    """Waits for the settlement of one call.

    Attributes:
        batch: The batch that is under way.
        position: Which of its calls has been made last, from 0.
    """

    batch: m.CallTools
    position: int


BatchState: TypeAlias = NoBatch | Calling


class BatchArrived(Struct, frozen=True):
    """A batch is to be served; `connected` says whether the session has a server."""

    batch: m.CallTools
    connected: bool = True


CallSettled: TypeAlias = m.ToolReturned | m.ToolTimedOut | m.ServerDied | m.ToolSkipped
"""What follows from `MakeCall`. It is `ToolSkipped` if the call is refused before it is sent."""

BatchEvent: TypeAlias = BatchArrived | CallSettled


class ReadChangedTools(Struct, frozen=True):
    """Report the server's tools if they have changed since they were last listed."""


class MakeCall(Struct, frozen=True):
    """Record this message, and make the call; its settlement is the next event.

    If the call would be refused before it is sent, or if the tool is not the one that `call` was decided for,
    do neither; `ToolSkipped` is the next event.
    """

    called: m.ToolCalled
    call: m.ServerCall


class ReportSettlement(Struct, frozen=True):
    """Tell the agent how a call ended."""

    settlement: CallSettled


BatchCommand: TypeAlias = ReadChangedTools | MakeCall | ReportSettlement
BatchTransition: TypeAlias = tuple[BatchState, tuple[BatchCommand, ...]]


class IllegalBatchEvent(Exception):  # noqa: N818 - a bug in the caller, named for what it met
    """The event cannot happen in this state. This is a bug in the caller."""


def batch_step(state: BatchState, event: BatchEvent) -> BatchTransition:
    """Return the next state, and the commands to carry out, in order; `MakeCall` is only ever the last.

    Raises:
        IllegalBatchEvent: The event cannot happen in this state; the text names both.
    """
    match state, event:
        case NoBatch(), BatchArrived(batch, connected=True):
            return _next_call(batch, 0)
        case NoBatch(), BatchArrived(batch):
            return NoBatch(), _skipped(batch, 0, tool_results.SKIPPED_AFTER_DEATH)
        case Calling(batch, position), BatchArrived():
            raise IllegalBatchEvent(
                f"BatchArrived in state Calling: call {position + 1} of batch {batch.batch} is not settled"
            )
        case Calling(
            batch, position
        ), m.ToolReturned() | m.ToolTimedOut() | m.ServerDied() | m.ToolSkipped() if (
            event.batch,
            event.call_id,
        ) == (batch.batch, batch.calls[position].call_id):
            return _settled(batch, position, event)
        case _:
            return state, ()


def _settled(batch: m.CallTools, position: int, event: CallSettled) -> BatchTransition:
    following = position + 1
    report = ReportSettlement(event)
    if following == len(batch.calls):
        return NoBatch(), (ReadChangedTools(), report)
    if isinstance(event, m.ServerDied):
        return NoBatch(), (report, *_skipped(batch, following, tool_results.SKIPPED_AFTER_DEATH))
    if isinstance(event, m.ToolTimedOut) and batch.after_timeout == "skip":
        return NoBatch(), (report, *_skipped(batch, following, tool_results.SKIPPED_AFTER_TIMEOUT))
    return _next_call(batch, following, report)


def _next_call(batch: m.CallTools, position: int, *before: ReportSettlement) -> BatchTransition:
    call = batch.calls[position]
    called = m.ToolCalled(
        server=batch.server,
        batch=batch.batch,
        call_id=call.call_id,
        tool=call.tool,
        arguments=call.arguments,
        task=call.task,
    )
    return Calling(batch, position), (*before, ReadChangedTools(), MakeCall(called, call))


def not_as_decided(called: m.ToolCalled) -> m.ToolSkipped:
    """Return the settlement of a call whose tool is not the one that it was decided for."""
    return m.ToolSkipped(
        batch=called.batch, call_id=called.call_id, reason=tool_results.NOT_AS_DECIDED, refused=True
    )


def _skipped(batch: m.CallTools, start: int, reason: str) -> tuple[ReportSettlement, ...]:
    return tuple(
        ReportSettlement(
            m.ToolSkipped(
                batch=batch.batch,
                call_id=call.call_id,
                reason=reason if call.task is None else tool_results.INTERRUPTED,
            )
        )
        for call in batch.calls[start:]
    )
