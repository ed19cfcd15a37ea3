"""Sum up an attempt from its trace, so that episodes can be compared and grouped without their traces."""

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.errors import TraceError
from grue.fleet.broker import Amount
from grue.protocol.turn.prices import Price, price_of, with_cost
from grue.runtime.safe_text import printable
from grue.tracing.facts import EpisodeEnded
from grue.tracing.message_words import summarize
from grue.tracing.reading import open_episode
from grue.tracing.steps import usage_in
from grue.tracing.turn_slices import OwnMessages

_MOST_BYTES = 512 * 2**20
_MOST_TEXT = 500
_MOST_ANSWER = 2**20
_PAID = re.compile("RunTurn|RequestCompletion|Completion(Received|Failed)|ReplyDropped|ServerSampled")


class Course(Struct, kw_only=True, omit_defaults=True):
    """A summary of an attempt: its counts, its end, and the last problem. All texts are printable."""

    turns: int = 0  # a turn that was parked or interrupted, and then goes on, counts once
    requests: int = 0  # of completed and failed turns; likewise `tool_calls`
    tool_calls: int = 0
    refused_calls: int = 0  # not sent, for example because of wrong arguments or a policy
    failed_calls: int = 0  # failed, timed out, or lost their server
    outcome: str = ""  # the last end of a turn: an `OutcomeKind`, `failed` or `parked`; empty: no turn ended
    host_reason: str = ""  # why the host ended the episode, in a word
    error: str = ""  # the last thing that went wrong, in a line; the next three fields say where
    error_kind: str = ""  # class of the message that reports `error`
    turn: int = 0  # 0: `error` happened outside of turns, or is empty
    message: int = 0  # the message's number in the trace; 0: nothing went wrong


_READ = frozenset(
    {"RunTurn", "TurnForked", "TurnCompleted", "TurnFailed", "TurnParked", "CompletionFailed", "ToolRejected"}
    | {"ToolDenied", "ToolReturned", "ToolTimedOut", "ToolSkipped", "ServerDied"}
)


def read_course(trace: Path) -> Course | None:
    """Sum up an attempt from its trace, up to any damage; `None`: the trace is missing or too large."""
    course = Course()
    unfinished: set[int] = set()
    with contextlib.suppress(TraceError, OSError):
        if not trace.is_file() or trace.stat().st_size > _MOST_BYTES:
            return None
        reader, own = open_episode(trace), OwnMessages()
        for line in reader.lines():
            if line.tag in _READ or issubclass(reader.kinds.get(line.tag, type(None)), EpisodeEnded):
                envelope = own.take(line.envelope())
                if envelope is not None:
                    _take(course, envelope, unfinished)
    return course


def _take(course: Course, envelope: Any, unfinished: set[int]) -> None:
    body, error = envelope.body, ""
    match body:
        case m.RunTurn() if envelope.turn not in unfinished:
            unfinished.add(envelope.turn)
            course.turns += 1
        case m.TurnCompleted() | m.TurnFailed():
            unfinished.discard(envelope.turn)
            course.requests += body.requests
            course.tool_calls += len(body.tool_calls)
            if isinstance(body, m.TurnFailed):
                course.outcome, error = "failed", summarize(body)
            else:
                course.outcome, error = body.kind, body.reason if body.kind == "fallback" else ""
        case m.TurnParked():
            course.outcome = "parked"
        case m.ToolRejected() | m.ToolDenied() | m.ToolSkipped(refused=True):
            course.refused_calls += 1
            error = summarize(body)
        case m.ToolTimedOut() | m.ServerDied():
            course.failed_calls += 1
            error = summarize(body)
        case m.ToolReturned(result=result) if result.is_error:
            course.failed_calls += 1
            error = result.error_message or "the tool reported an error"
        case m.CompletionFailed():
            error = summarize(body)
        case EpisodeEnded():
            course.host_reason = printable(body.reason, 100)
            error = body.detail if body.failed else ""
    if error:
        course.error = printable(error.strip().split("\n", 1)[0], _MOST_TEXT)
        course.error_kind = type(body).__name__ if not isinstance(body, EpisodeEnded) else "EpisodeEnded"
        course.turn, course.message = envelope.turn, envelope.seq


def last_failure(trace: Path) -> m.TurnFailed | None:
    """Return the failure of the last turn that ended or was parked; `None` if that turn has not failed."""
    end: object = None
    with contextlib.suppress(TraceError, OSError):  # use what was read before the damage
        for line in open_episode(trace).lines():
            if line.tag in ("TurnCompleted", "TurnFailed", "TurnParked"):
                end = line.envelope().body
    return end if isinstance(end, m.TurnFailed) else None


def read_spent(trace: Path, prices: Mapping[str, Price]) -> Amount:
    """Return the requests, tokens and cost in a trace, up to any damage. An unknown cost counts as 0.

    The estimated tokens of cancelled requests are included. What a fork repeats is not.
    """
    spent, model, sampled = Amount(), "", list[m.Usage]()
    with contextlib.suppress(TraceError, OSError):
        for line in open_episode(trace).lines():
            if not _PAID.fullmatch(line.tag) or line.line.copied:
                continue  # others are not decoded: they may be large, or of another version
            match (envelope := line.envelope()).body:
                case m.RunTurn(asks=asks):
                    model = model if asks is None else asks.model
                case m.RequestCompletion():
                    spent += Amount(1)
                case _:
                    usage = with_cost(usage_in(envelope, sampled), None, price_of(prices, model))
                    spent += Amount(0, usage.input_tokens + usage.output_tokens, usage.cost_usd or 0.0)
    return spent


def read_said(trace: Path) -> tuple[str, str]:
    """Return the last question and its answer, each cut to 2**20 characters; may raise `TraceError`."""
    question = answer = ""
    for line in open_episode(trace).lines():
        match line.envelope().body if line.tag in ("RunTurn", "TurnCompleted") else None:
            case m.RunTurn(user=user):
                question, answer = user, ""
            case m.TurnCompleted() as end:
                said = end.raw_response or "" if end.answer is None else end.answer
                answer = said if isinstance(said, str) else msgspec.json.encode(said).decode()
    return question[:_MOST_ANSWER], answer[:_MOST_ANSWER]
