"""Translate the end of a failed turn into the exception that the host gets."""

from shlex import quote

from grue import messages as m
from grue.errors import (
    AnswerError,
    AnswerStopped,
    ApprovalPending,
    LLMError,
    MCPError,
    MCPServerStartupError,
    NeedsLogin,
    TurnTimedOut,
)
from grue.policies import TURN_TIMEOUT_S
from grue.protocol.turn.tools import CUT
from grue.runtime.trace.file import writers_of
from grue.runtime.trace.recorder import Recorder
from grue.tool_sessions.failures import failure_text


def error_for(end: m.TurnFailed) -> MCPError:
    """Return the exception for a failed turn."""
    failure: m.TurnFailure = end.failure
    match failure:
        case m.ServerFailure():
            kind = NeedsLogin if failure.needs_login else MCPServerStartupError
            return kind(
                failure_text(failure),
                server=failure.server,
                phase=failure.phase,
                command=failure.command,
                exit_status=failure.exit_status,
                stderr_tail=failure.stderr_tail,
            )
        case m.LlmFailure():
            return LLMError(
                _llm_text(failure),
                kind=failure.kind,
                reason=failure.reason or "",
                status=failure.status,
                retry_after_s=failure.retry_after_s,
                model=failure.model,
                endpoint=failure.endpoint,
            )
        case m.ToolsUnsupported(model=model, reason=reason):
            return tool_support_error(model, reason)
        case m.DeadlineMissed(limit_s=limit_s, doing=doing):
            text = f"Turn {end.turn} did not end within {limit_s:g} s: it was {doing}.{_kept_text(failure)}"
            text += (
                "\nIf it needs longer, raise turn_timeout_s of the TurnRequest, or of the runner's TurnLimits"
                f" ({TURN_TIMEOUT_S:g} s by default); in pyproject.toml it is turn_timeout_seconds under"
                " [tool.grue.llm]."
            )
            return TurnTimedOut(text, limit_s=limit_s, doing=doing, tool_calls=end.tool_calls)
        case m.NoAnswer(reason=reason, raw=raw, stopped=stopped) if stopped:
            text = f"The model gave no whole answer in turn {end.turn}: {reason}"
            text += "\nWhat there was of it is in `raw`. Say it otherwise, or choose another model."
            return AnswerStopped(text, raw=raw, finish_reason=stopped)
        case m.NoAnswer(reason=reason, raw=raw):
            text = f"The model gave no acceptable answer in turn {end.turn}: {reason}"
            text += "\nRaise max_tokens, or ask for less." if reason.startswith(CUT.partition("{")[0]) else ""
            text += "\nIts last reply is in `raw`. AnswerSpec.of(..., fallback=...) gives a value instead."
            return AnswerError(text, raw=raw)
        case m.Interrupted(reason=reason):
            return MCPError(f"Turn {end.turn} was interrupted: {reason}.")


def naming_the_trace(error: MCPError, recorder: Recorder) -> MCPError:
    """Add a note to an error that says where the turn's messages are; a traceback shows it."""
    for writer in writers_of(recorder)[:1]:
        error.add_note(f"The turn's messages are in its trace: grue trace show {quote(str(writer.path))}")
    return error


def pending_error(end: m.TurnParked) -> ApprovalPending:
    """Return the error that tells the host about a parked turn."""
    names = ", ".join(dict.fromkeys(question.name for question in end.questions))
    text = (
        f"Turn {end.turn} waits for an approval of {names}. Its sessions are closed, and their state is lost."
        " To go on: decide on the questions, and call Runner.resume with the trace file and the decisions."
    )
    return ApprovalPending(text, turn=end.turn, questions=end.questions, expires_at=end.expires_at)


def _kept_text(missed: m.DeadlineMissed) -> str:
    if not missed.kept_s:
        return ""
    return (
        f" The work was stopped after {missed.limit_s - missed.kept_s:g} s: {missed.kept_s:g} s of the limit"
        " are kept for closing the servers."
    )


def tool_support_error(model: str, reason: str = "") -> MCPError:
    """Return the error for a turn with tools whose model cannot call tools.

    Source: R12.5
    """
    why = f"\nWhy: {reason}." if reason else ""
    return MCPError(
        f"Model '{model}' does not support tool calling.\n"
        "Please either:\n"
        "  1. Set mcp.enabled = false in pyproject.toml, or\n"
        f"  2. Use a compatible model (gpt-4, claude-3, etc.){why}"
    )


def _llm_text(failure: m.LlmFailure) -> str:
    status = f" with status {failure.status}" if failure.status is not None else ""
    tries = f" after {failure.attempts} attempts" if failure.attempts > 1 else ""
    text = f"The model '{failure.model}' at {failure.endpoint} failed{status}{tries}: {failure.message}"
    return f"{text}\n{failure.remedy}" if failure.remedy else text
