"""The spans and notes that Langfuse and OpenTelemetry get.

```
Episode
└─ RunTurn
   ├─ ToolSession, from the first request that offers tools to the turn's end
   │  ├─ Generation, for each completion that was asked for
   │  └─ ToolUse, for each call that was sent to its server
   ├─ Generation, in a turn without tools
   └─ ToolUse, for each call that the host makes itself and records in the turn when it has ended
```

`span_feed` creates these from the trace's envelopes. Both exporters use them, so that both report the same.
Many spans and outcomes hold the trace message itself.

Source: P31
"""

from typing import Literal, NamedTuple, NewType, TypeAlias, assert_never

from msgspec import Struct

from grue import messages as m
from grue.protocol.tools.lock import drift_text
from grue.runtime.supervisor import ActorFailed
from grue.tracing.facts import EpisodeEnded, EpisodeStarted
from grue.tracing.observers.conversations import AsSent

SpanId = NewType("SpanId", int)
"""Number of a span in its feed, from 1."""

SpanLevel = Literal["default", "warning", "error"]


class Episode(Struct, frozen=True, kw_only=True):
    """A whole episode; `started` is its host's `EpisodeStarted`, if there is one."""

    episode_id: str
    started: EpisodeStarted | None = None


class ToolSession(Struct, frozen=True, kw_only=True):
    """The part of a turn in which tools are offered, or a session that was opened outside turns.

    Attributes:
        max_iterations: Replies with tool calls after which the turn is forced to its answer; `None` outside.
    """

    servers: tuple[m.ServerName, ...]
    max_iterations: int | None = None


class Generation(Struct, frozen=True, kw_only=True):
    """One completion: its request, with what was said before it.

    Attributes:
        asks: The model that was requested, where and how; empty texts if the trace has not named it yet.
        sent: The whole conversation as it was sent.
        asked_by: Name of the actor that makes the request: the agent, or a server that samples.
    """

    request: m.RequestCompletion
    asks: m.ModelAsked
    sent: AsSent
    asked_by: str = "agent"


class ToolUse(Struct, frozen=True, kw_only=True):
    """One call that was sent to its server.

    Attributes:
        name: The tool's canonical name.
        tool: The tool's name at its server.
        timeout_s: The call's time limit.
        iteration: One-based number of the reply that requested it; 0 outside turns.
        protocol_version: The MCP revision of its server; empty for servers that do not use MCP.
        description: The server's text about the tool; untrusted.
        address: The URL of a server over HTTP; empty for others.
        request_id: The id of the JSON-RPC request; known when the span is closed.
        error_code: The code of the JSON-RPC error that answered it; known when the span is closed.
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


class EpisodeSummary(Struct, frozen=True, kw_only=True):
    """The result of an episode.

    Attributes:
        ended: What its host says about its end; `None`: it said nothing.
        asked: What its first turn was asked; `None`: there was none.
        answered: The end of its last turn that has an answer; `None`: none has.
    """

    ended: EpisodeEnded | None = None
    asked: m.RunTurn | None = None
    answered: m.TurnCompleted | None = None


class SessionSummary(Struct, frozen=True, kw_only=True):
    """The result of a tool session; `tools_called` counts the calls that were sent."""

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


class Verdict(Struct, frozen=True):
    """A judgement of how a span ended.

    Attributes:
        error_type: One of a few fixed words, suitable for metrics; empty unless something failed.
        detail: A description for people; it may quote the model, a tool or a person.
    """

    level: SpanLevel = "default"
    error_type: str = ""
    detail: str = ""


class SpanOpened(Struct, frozen=True, kw_only=True):
    """A span begins.

    Attributes:
        parent: The span that contains it; `None`: it is the outermost.
        at: Seconds since the epoch.
        conversation: Id of the conversation, or of the episode if its turns are none; empty: neither has one.
        asks: The model that the turn asks; `None`: that is not known.
    """

    span: SpanId
    parent: SpanId | None
    at: float
    turn: int
    subject: Subject
    conversation: str = ""
    asks: m.ModelAsked | None = None


class SpanNoted(Struct, frozen=True, kw_only=True):
    """An event without duration in a span; `facts` are names and numbers, no content."""

    span: SpanId
    at: float
    name: str
    verdict: Verdict
    facts: m.JsonObject


class SpanClosed(Struct, frozen=True, kw_only=True):
    """A span ends; without an outcome if it was cut off.

    Attributes:
        subject: As it began, with what became known since.
        finish_reason: Of a turn: why its last reply ended; `None`: that is not known.
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


def crash_verdict(crash: ActorFailed) -> Verdict:
    """Return the verdict on a turn whose actor crashed."""
    return Verdict("error", "actor_crashed", f"{crash.actor}: {crash.error}")


def verdict_of(
    outcome: EpisodeEnded
    | m.TurnCompleted
    | m.TurnFailed
    | m.CompletionReceived
    | m.CompletionFailed
    | m.ToolCallRecord,
) -> Verdict:
    """Return the verdict on a span's outcome."""
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
            return _failed(failure)
        case EpisodeEnded(reason=reason, detail=detail) as ended:
            if ended.failed:
                return Verdict("error", reason, detail)
            return Verdict("warning" if reason == "interrupted" else "default", detail=detail)
        case never:
            assert_never(never)


_FAILED_CALLS = {"returned": "tool_error", "timed_out": "timeout", "died": "server_died"}


def _failed(failure: m.TurnFailure) -> Verdict:
    match failure:
        case m.ServerFailure(cause=cause):
            return Verdict("error", "server_failed", cause)
        case m.LlmFailure(kind=kind, message=message):
            return Verdict("error", kind, message)
        case m.ToolsUnsupported(reason=reason):
            return Verdict("error", "tools_unsupported", reason)
        case m.DeadlineMissed(limit_s=limit_s, doing=doing):
            return Verdict("error", "timeout", f"out of time after {limit_s:g}s, {doing}")
        case m.Interrupted(reason=reason):
            return Verdict("error", "interrupted", reason)
        case m.NoAnswer(reason=reason):
            return Verdict("error", "no_answer", reason)
        case never:
            assert_never(never)


class Note(NamedTuple):
    """The name, verdict and facts of a note."""

    name: str
    verdict: Verdict
    facts: m.JsonObject


def note_of(body: object) -> Note | None:
    """Return the note that a message adds to its span; `None`: no note."""
    return _of_calls(body) or _of_model(body) or _of_turn(body)


def _of_calls(body: object) -> Note | None:
    match body:
        case m.ToolSkipped(reason=reason, call_id=call_id, refused=True):
            return Note("tool_rejected", Verdict("warning", "rejected", reason), {"call_id": call_id})
        case m.ToolSkipped(reason=reason, call_id=call_id):
            return Note("tool_skipped", Verdict("warning", detail=reason), {"call_id": call_id})
        case m.ToolRejected(name=name, error=error, call_id=call_id):
            facts: m.JsonObject = {"call_id": call_id, "tool_name": name}
            return Note("tool_rejected", Verdict("warning", "rejected", error), facts)
        case m.ToolDenied(name=name, reason=reason, call_id=call_id):
            facts = {"call_id": call_id, "tool_name": name}
            return Note("tool_denied", Verdict("warning", "denied", reason), facts)
        case m.ToolDrifted(server=server, tool=tool, change=change):
            facts = {"tool_name": f"{server}.{tool}", "change": change, "refused": body.refused}
            return Note("tool_drifted", Verdict("warning", detail=drift_text(body)), facts)
        case m.ConnectFailed(server=server, attempt=attempt, failure=failure, then=then):
            facts = {"server_name": server, "attempt": attempt, "phase": failure.phase, "then": then}
            return Note("connect_failed", Verdict("warning", "server_failed", failure.cause), facts)
        case m.McpDisabled(server=server, reason=reason, newly=newly):
            facts = {"server_name": server, "newly": newly}
            return Note("mcp_disabled", Verdict("warning", detail=reason), facts)
        case _:
            return None


def _of_model(body: object) -> Note | None:
    match body:
        case m.CompletionRetried(attempt=attempt, delay_s=delay_s, failure=failure):
            facts: m.JsonObject = {"attempt": attempt, "delay_s": delay_s, "status": failure.status}
            return Note("completion_retried", Verdict("warning", failure.kind, failure.message), facts)
        case m.ReplyCut(limit_tokens=limit, retried_with=retried_with):
            facts = {"limit_tokens": limit, "retried_with": retried_with}
            return Note("reply_cut", Verdict("warning"), facts)
        case m.ReplyUnusable(finish_reason=finish_reason, seen=seen):
            return Note("reply_unusable", Verdict("warning", detail=seen), {"finish_reason": finish_reason})
        case m.FinalForced(reason=reason, iterations=iterations):
            return Note("final_forced", Verdict(), {"reason": reason, "iterations": iterations})
        case m.RepairRequested(reason=reason):
            return Note("repair_requested", Verdict("warning", detail=reason), {})
        case m.DropCompletion(reason=reason):
            return Note("reply_dropped", Verdict("warning", "reply_dropped", reason), {})
        case m.FellBack(reason=reason):
            return Note("fell_back", Verdict("warning", detail=reason), {})
        case _:
            return None


def _of_turn(body: object) -> Note | None:
    match body:
        case m.DeadlinePassed(limit_s=limit_s):
            return Note("deadline_passed", Verdict("warning", "timeout"), {"limit_s": limit_s})
        case m.TurnInterrupted(reason=reason):
            return Note("turn_interrupted", Verdict("warning", "interrupted", reason), {})
        case ActorFailed(actor=actor):
            return Note("actor_failed", crash_verdict(body), {"actor": actor})
        case _:
            return None
