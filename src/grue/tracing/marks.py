"""Mark messages that report a problem, so that a reader of a trace finds them."""

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from grue import facts, messages
from grue.runtime.supervisor import ActorFailed
from grue.tracing.reading import EpisodeBody


class Mark(Struct, frozen=True):
    """A word for a problem, and its severity.

    Attributes:
        grade: `fail`: a call, a server or a turn failed; `warn`: a problem that was recovered from.
    """

    word: str
    grade: Literal["fail", "warn"]


def mark_of(body: EpisodeBody) -> Mark | None:
    """Return the mark of a message; `None` if it reports no problem."""
    fixed = _FIXED.get(type(body))
    if fixed is not None:
        return fixed
    told = _TOLD.get(type(body))
    return told(body) if told is not None else None


def _fail(word: str) -> Mark:
    return Mark(word, "fail")


def _warn(word: str) -> Mark:
    return Mark(word, "warn")


_FIXED: dict[type, Mark] = {
    messages.TurnFailed: _fail("failed"),
    messages.StartupFailed: _fail("no start"),
    messages.CompletionFailed: _fail("no reply"),
    messages.ToolTimedOut: _fail("timeout"),
    messages.ServerDied: _fail("died"),
    messages.DeadlinePassed: _fail("deadline"),
    messages.TurnInterrupted: _fail("interrupted"),
    facts.McpInitFailed: _fail("bad config"),
    ActorFailed: _fail("crashed"),
    messages.ToolRejected: _warn("rejected"),
    messages.ToolSkipped: _warn("skipped"),
    messages.McpDisabled: _warn("disabled"),
    messages.ReplyUnusable: _warn("unusable"),
    messages.ReplyCut: _warn("cut"),
    messages.FinalForced: _warn("forced"),
    messages.AnswerRefused: _warn("refused"),
    messages.RepairRequested: _warn("repair"),
    messages.FellBack: _warn("fallback"),
    messages.CompletionRetried: _warn("retry"),
    messages.ToolDrifted: _warn("drift"),
    messages.PrewarmLost: _warn("spare lost"),
}


def _connecting(body: messages.ConnectFailed) -> Mark:
    return _warn("retry") if body.then == "retry" else _fail("no start")


def _returned(body: messages.ToolReturned) -> Mark | None:
    return _warn("error") if body.result.is_error else None


def _closed(body: messages.SessionClosed | messages.ServerEnded) -> Mark | None:
    return {"died": _fail("died"), "killed": _warn("killed")}.get(body.ending)


def _completed(body: messages.TurnCompleted) -> Mark | None:
    return None if body.kind == "answered" else _warn(body.kind)


def _noted(body: messages.ServerNoted) -> Mark | None:
    return _warn(body.kind.replace("_", " ")) if body.kind.startswith("bad_") else None


def _supported(body: messages.ToolSupportChecked) -> Mark | None:
    return None if body.supported else _warn("no tools")


def _ended(body: facts.EpisodeEnded) -> Mark | None:
    return _fail(body.reason) if body.reason in {"failed", "interrupted", "fallbacks"} else None


_TOLD: dict[type, Callable[[Any], Mark | None]] = {
    messages.ConnectFailed: _connecting,
    messages.ToolReturned: _returned,
    messages.SessionClosed: _closed,
    messages.ServerEnded: _closed,
    messages.TurnCompleted: _completed,
    messages.ServerNoted: _noted,
    messages.ToolSupportChecked: _supported,
    facts.EpisodeEnded: _ended,
}
