"""The spans that Langfuse and OpenTelemetry get, and the events in them (`SpanNoted`).

```
Episode └─ RunTurn
   ├─ ToolSession, from the first request that offers tools to the turn's end
   │  ├─ Generation, for each completion that was asked for
   │  └─ ToolUse, for each call that was sent to its server
   ├─ Generation, in a turn without tools
   └─ ToolUse, for each call that the host itself makes and records after the turn has ended
```

Source: P31
"""

from typing import NewType, TypeAlias, assert_never

from msgspec import Struct

from grue import messages as m
from grue.tracing.facts import EpisodeEnded, EpisodeStarted
from grue.tracing.message_words import Verdict, failure_words
from grue.tracing.observers.conversations import AsSent

SpanId = NewType("SpanId", int)  # number of a span in its feed, from 1


class Episode(Struct, frozen=True, kw_only=True):
    """An episode, or its part after a resumption. `started`: as far as the host has recorded it."""

    episode_id: str
    started: EpisodeStarted | None = None


class ToolSession(Struct, frozen=True, kw_only=True):
    """The part of a turn in which tools are offered, or a session that was opened outside turns."""

    servers: tuple[m.ServerName, ...]
    max_iterations: int | None = None  # `None` outside turns


class Generation(Struct, frozen=True, kw_only=True):
    """One completion: its request, with the messages before it (`sent`)."""

    request: m.RequestCompletion
    asks: m.ModelAsked  # empty texts while they are unknown
    sent: AsSent
    asked_by: str = "agent"  # the agent, or a server that samples


class ToolUse(Struct, frozen=True, kw_only=True):
    """One call that was sent to its server."""

    call_id: m.CallId
    name: str  # with the server, such as `files.read`
    server: m.ServerName
    tool: str
    arguments: m.JsonObject
    timeout_s: float | None = None
    iteration: int = 0  # number of the reply that requested the call; 0 outside turns
    protocol_version: str = ""  # empty: the server does not speak MCP
    description: str = ""  # the server's text; untrusted
    address: str = ""  # the URL of a server over HTTP
    request_id: str = ""  # of the JSON-RPC request; known when the span is closed
    error_code: int | None = None  # of the JSON-RPC error, likewise
    message: int = 0  # number of the `ToolCalled` in the trace


class EpisodeSummary(Struct, frozen=True, kw_only=True):
    """The result of an episode."""

    ended: EpisodeEnded | None = None
    asked: m.RunTurn | None = None  # the first turn's
    answered: m.TurnCompleted | None = None  # the last one


class SessionSummary(Struct, frozen=True, kw_only=True):
    """The totals of a tool session; `tools_called` counts the calls that were sent."""

    iterations_used: int
    tools_called: int
    final_action: object = None


Subject: TypeAlias = Episode | m.RunTurn | ToolSession | Generation | ToolUse
Outcome: TypeAlias = (
    EpisodeSummary
    | m.TurnCompleted
    | m.TurnFailed
    | SessionSummary
    | m.CompletionReceived
    | m.CompletionFailed
    | m.ToolCallRecord
)


class SpanOpened(Struct, frozen=True, kw_only=True):
    """A span begins."""

    span: SpanId
    parent: SpanId | None  # `None`: this span is the outermost
    at: float  # since the epoch
    turn: int
    subject: Subject
    conversation: str = ""  # its id or, without one, the episode's
    asks: m.ModelAsked | None = None  # the model that the turn asks; `None` for an episode


class SpanNoted(Struct, frozen=True, kw_only=True):
    """An event without duration in a span. `facts` may hold names, but no other texts of models or tools."""

    span: SpanId
    at: float
    name: str
    verdict: Verdict
    facts: m.JsonObject


class SpanClosed(Struct, frozen=True):
    """A span ends."""

    span: SpanId
    at: float
    subject: Subject  # as in `SpanOpened`, completed by later messages
    outcome: Outcome | None  # `None`: cut off, parked or dropped
    verdict: Verdict
    finish_reason: str | None = None  # of the last reply of a turn


SpanEvent: TypeAlias = SpanOpened | SpanNoted | SpanClosed

DROPPED = Verdict("warning", "reply_dropped", "its tools were not as they were presumed")

CUT_OFF = Verdict("warning", "cut_off", "its turn or episode ended first")


def verdict_of(
    outcome: EpisodeEnded
    | m.TurnCompleted
    | m.TurnFailed
    | m.CompletionReceived
    | m.CompletionFailed
    | m.ToolCallRecord,
) -> Verdict:
    """Return the verdict on a span that ended with `outcome`."""
    match outcome:
        case m.CompletionReceived():
            return Verdict()
        case m.CompletionFailed(failure=failure):
            return Verdict("error", failure.kind, failure.message)
        case m.ToolCallRecord(settlement=settlement, result=result):
            if not result.is_error:
                return Verdict()
            return Verdict("error", _FAILED_CALLS.get(settlement, settlement), result.error_message or "")
        case m.TurnCompleted(kind=kind, reason=reason):
            return Verdict("warning" if kind in ("fallback", "degraded") else "default", detail=reason)
        case m.TurnFailed(failure=failure):
            words = failure_words(failure)
            return Verdict("error", words.error_type, words.detail)
        case EpisodeEnded(reason=reason, detail=detail) as ended:
            if ended.failed:
                return Verdict("error", reason, detail)
            return Verdict("warning" if reason == "interrupted" else "default", detail=detail)
        case never:
            assert_never(never)


_FAILED_CALLS = {"returned": "tool_error", "timed_out": "timeout", "died": "server_died"}
