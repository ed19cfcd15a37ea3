"""An episode as rows of tables, for `grue fleet export` and `grue trace query`; fields are columns.

If the end of a turn or request is not recorded, the columns about its end are empty.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.errors import TraceError
from grue.protocol.turn.prices import Spent
from grue.tracing.message_words import summarize
from grue.tracing.reading import EpisodeEnvelope, open_episode
from grue.tracing.turn_slices import OwnMessages


class TurnRow(Struct, kw_only=True):
    """A turn; table `turns`. If it was parked and resumed, each part has a row with its own counts."""

    episode: str  # id in the fleet; outside fleets, the name of the run folder or of the trace file
    turn: int
    began_at: float  # seconds since the epoch
    duration_s: float | None = None
    outcome: str | None = None  # `TurnCompleted.kind`, `failed` or `parked`
    reason: str | None = None  # why the outcome is not `answered`; `None` if it is `parked`
    system: str = ""
    user: str = ""
    answer: str | None = None  # a text, or any other answer as JSON
    iterations: int | None = None  # replies that asked for tool calls
    requests: int | None = None
    tool_calls: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_usd: float | None = None  # as the endpoint reports it, or by the configured price


class CallRow(Struct, kw_only=True):
    """A tool call that the model asked for; table `calls`. Calls of a turn without an end are left out."""

    episode: str
    turn: int
    iteration: int  # number of the reply, among those with calls
    call_id: str
    tool: str  # the name, such as `files.read`; the model may have invented it
    arguments: str  # the text that the model wrote; of a call through `call_tool`: its `arguments`
    changed_arguments: m.JsonObject | None = None  # the arguments sent instead, because a person changed them
    settlement: str  # how the call ended, such as `returned` or `timed_out`
    is_error: bool
    error: str | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")  # the content as JSON
    duration_s: float | None = None  # `None`: not sent, or interrupted


class RequestRow(Struct, kw_only=True):
    """A request to the model; table `requests`."""

    episode: str
    turn: int
    message: int  # number of the `RequestCompletion` in the trace
    request: int  # number of the request in the turn; sampling requests are numbered apart
    conversation: str
    asked_by: str  # `agent`, or a server (sampling)
    final: bool  # whether the request offers no tools
    aside: bool  # whether the request is no part of the conversation
    outcome: str | None = None  # `received`, `failed` or `dropped`
    model: str | None = None  # the model that replied or, after a failure, was asked
    content: str | None = None
    reasoning: str | None = None
    tool_calls: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    elapsed_s: float | None = None  # time until the reply, with retries
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_usd: float | None = None


Row: TypeAlias = TurnRow | CallRow | RequestRow


def trace_rows(trace: Path, episode: str) -> Iterator[Row]:
    """Yield the rows of an episode. Messages that a fork has copied from a recorded turn are left out."""
    # A row comes when its turn or request has ended, and those without an end come last. Raises `TraceError`
    # after the rows of all messages before a damaged place.
    rows, own = _Rows(episode), OwnMessages()
    try:
        for envelope in filter(None, map(own.take, open_episode(trace))):
            yield from rows.take(envelope)
    except TraceError:
        yield from rows.rest()
        raise
    yield from rows.rest()


class _Rows:
    def __init__(self, episode: str) -> None:
        self._episode = episode
        # By number of the message that began the turn; the float is its time `t`, which is monotonic.
        self._turns: dict[int, tuple[float, TurnRow]] = {}
        self._requests: dict[int, RequestRow] = {}  # by number of the `RequestCompletion`
        self._dropping: dict[int, int] = {}  # number of a `DropCompletion` -> of its `RequestCompletion`
        # By turn number. The end of a resumed turn also counts what happened before it was parked. These
        # earlier counts are subtracted, so that each row has only its own.
        self._parked: dict[int, m.TurnParked] = {}

    def take(self, envelope: EpisodeEnvelope) -> Iterator[Row]:
        body, cause = envelope.body, envelope.cause or 0
        match body:
            case m.RunTurn():
                turn = TurnRow(episode=self._episode, turn=body.turn, began_at=envelope.at)
                turn.system, turn.user = body.system, body.user
                self._turns[envelope.seq] = (envelope.t, turn)
                if body.resumed is None:
                    self._parked.pop(body.turn, None)
            case m.RequestCompletion():
                self._requests[envelope.seq] = RequestRow(
                    episode=self._episode,
                    turn=envelope.turn,
                    message=envelope.seq,
                    request=body.request,
                    conversation=body.conversation,
                    asked_by=envelope.sender,
                    final=isinstance(body.mode, m.RequireAnswer),
                    aside=body.aside,
                )
            case m.DropCompletion():
                self._drop(envelope.seq, body)
            case m.CompletionReceived() | m.CompletionFailed() | m.ReplyDropped():
                # A reply may come after the `DropCompletion`: then the row shows the reply and its cost.
                row = self._requests.pop(self._dropping.pop(cause, cause), None)
                if row is not None:
                    yield _answered(row, body)
            case m.TurnCompleted() | m.TurnFailed() | m.TurnParked() if cause in self._turns:
                began_t, turn = self._turns.pop(cause)
                turn.duration_s = round(envelope.t - began_t, 6)
                before = self._parked.get(body.turn, m.TurnParked(turn=body.turn))
                if isinstance(body, m.TurnParked):
                    self._parked[body.turn] = body
                told = {record.call_id for record in before.tool_calls}
                calls = [record for record in body.tool_calls if record.call_id not in told]
                yield _ended(turn, body, before, len(calls))
                yield from (self._call(turn, record) for record in calls)

    def rest(self) -> Iterator[Row]:
        yield from (turn for _, turn in self._turns.values())
        yield from self._requests.values()

    def _drop(self, seq: int, drop: m.DropCompletion) -> None:
        for asked, row in self._requests.items():
            if (row.conversation, row.request) == (drop.conversation, drop.request):
                self._dropping[seq] = asked

    def _call(self, turn: TurnRow, record: m.ToolCallRecord) -> CallRow:
        return CallRow(
            episode=self._episode,
            turn=turn.turn,
            iteration=record.iteration,
            call_id=record.call_id,
            tool=record.name,
            arguments=record.arguments,
            changed_arguments=record.changed_arguments,
            settlement=record.settlement,
            is_error=record.result.is_error,
            error=record.result.error_message,
            result=msgspec.Raw(msgspec.json.encode(record.result.content)),
            duration_s=record.duration_s,
        )


def _answered(
    row: RequestRow, body: m.CompletionReceived | m.CompletionFailed | m.ReplyDropped
) -> RequestRow:
    match body:
        case m.CompletionReceived():
            row.outcome, row.model, row.content = "received", body.model, body.content or body.refusal
            row.reasoning, row.finish_reason = body.reasoning, body.finish_reason
            row.tool_calls, row.elapsed_s = len(body.tool_calls), body.elapsed_s
        case m.CompletionFailed():
            row.outcome, row.model, row.error = "failed", body.failure.model, summarize(body)
        case m.ReplyDropped():
            row.outcome = "dropped"
    _charge(row, body.usage)
    return row


def _ended(
    row: TurnRow, body: m.TurnCompleted | m.TurnFailed | m.TurnParked, before: m.TurnParked, calls: int
) -> TurnRow:
    match body:
        case m.TurnCompleted():
            row.outcome, row.reason = body.kind, body.reason or None
            answer = body.raw_response if body.answer is None else body.answer
            row.answer = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
        case m.TurnFailed():
            row.outcome, row.reason = "failed", summarize(body)
        case m.TurnParked():
            row.outcome = "parked"
    until_parked = Spent(requests=before.requests, usage=before.usage)
    spent = Spent(requests=body.requests, usage=body.usage).less(until_parked)
    row.iterations, row.requests, row.tool_calls = body.iterations - before.iterations, spent.requests, calls
    _charge(row, spent.usage)
    return row


def _charge(row: TurnRow | RequestRow, usage: m.Usage) -> None:
    row.input_tokens, row.output_tokens = usage.input_tokens, usage.output_tokens
    row.cached_tokens, row.reasoning_tokens = usage.cached_tokens, usage.reasoning_tokens
    row.cost_usd = usage.cost_usd
