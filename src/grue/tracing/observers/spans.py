"""The spans that Langfuse and OpenTelemetry get, and the events in them (`SpanNoted`).

```
Episode
└─ RunTurn
   ├─ ToolSession, from the first request that offers tools to the turn's end
   │  ├─ Generation, for each completion that was asked for
   │  └─ ToolUse, for each call that was sent to its server
   ├─ Generation, in a turn without tools
   └─ ToolUse, for each call that the host itself makes and records in the turn, after the turn has ended
```

The subject of a turn's span is its `RunTurn`; the outcome is its `TurnCompleted` or `TurnFailed`.

Source: P31
"""

from typing import NewType, TypeAlias, assert_never

from msgspec import Struct

from grue import messages as m
from grue.tracing.facts import EpisodeEnded, EpisodeStarted
from grue.tracing.message_words import Verdict, failure_words
from grue.tracing.observers.conversations import AsSent

SpanId = NewType("SpanId", int)
"""Number of a span in its feed, from 1."""


class Episode(Struct, frozen=True, kw_only=True):
    """An episode, or its part after a resumption.

    `started` is `None` after a resumption, or if the host recorded no `EpisodeStarted`.
    """

    episode_id: str
    started: EpisodeStarted | None = None


class ToolSession(Struct, frozen=True, kw_only=True):
    """The part of a turn in which tools are offered, or a session that was opened outside turns.

    `max_iterations`: after so many replies with tool calls the model must answer; `None` outside turns.
    """

    servers: tuple[m.ServerName, ...]
    max_iterations: int | None = None


class Generation(Struct, frozen=True, kw_only=True):
    """One completion: its request, with the messages before it (`sent`).

    Attributes:
        asks: The requested model, its endpoint and settings; empty texts while they are unknown.
        asked_by: Name of the actor that makes the request: the agent, or a server that samples.
    """

    request: m.RequestCompletion
    asks: m.ModelAsked
    sent: AsSent
    asked_by: str = "agent"


class ToolUse(Struct, frozen=True, kw_only=True):
    """One call that was sent to its server.

    Attributes:
        name: The tool's name with its server, such as `files.read`; `tool` is the name without the server.
        iteration: Number of the reply that requested the call, counted from 1; 0 outside turns.
        protocol_version: The MCP revision of the tool's server; empty for servers that do not use MCP.
        description: The server's text about the tool; untrusted.
        address: The URL of a server over HTTP; empty for others.
        request_id: The id of the JSON-RPC request, known when the span is closed; empty: there was none.
        error_code: The code of the JSON-RPC error that answered the call, known likewise; `None`: no error.
        message: The number of the call's `ToolCalled` in the trace.
    """

    call_id: m.CallId
    name: str
    server: m.ServerName
    tool: str
    arguments: m.JsonObject
    timeout_s: float | None = None
    iteration: int = 0
    protocol_version: str = ""
    description: str = ""
    address: str = ""
    request_id: str = ""
    error_code: int | None = None
    message: int = 0


class EpisodeSummary(Struct, frozen=True, kw_only=True):
    """The result of an episode.

    Attributes:
        ended: `None`: the host recorded no end.
        asked: The `RunTurn` of the first turn; `None`: there was no turn.
        answered: The last `TurnCompleted`; `None`: no turn was completed.
    """

    ended: EpisodeEnded | None = None
    asked: m.RunTurn | None = None
    answered: m.TurnCompleted | None = None


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
    """A span begins.

    Attributes:
        parent: The span that contains this span; `None`: this span is the outermost.
        at: Seconds since the epoch.
        conversation: Id of the conversation or, without one, of the episode; empty: neither is known.
        asks: The model that the turn asks, with an empty name while it is unknown; `None` for an episode.
    """

    span: SpanId
    parent: SpanId | None
    at: float
    turn: int
    subject: Subject
    conversation: str = ""
    asks: m.ModelAsked | None = None


class SpanNoted(Struct, frozen=True, kw_only=True):
    """An event without duration in a span. `facts` may hold names, but no other texts of models or tools."""

    span: SpanId
    at: float
    name: str
    verdict: Verdict
    facts: m.JsonObject


class SpanClosed(Struct, frozen=True, kw_only=True):
    """A span ends.

    Attributes:
        outcome: `None`: the span was cut off, its turn was parked or its reply was dropped.
        subject: The `subject` of its `SpanOpened`, completed by later messages.
        finish_reason: For a turn: why its last reply ended; `None`: unknown.
    """

    span: SpanId
    at: float
    subject: Subject
    outcome: Outcome | None
    verdict: Verdict
    finish_reason: str | None = None


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
