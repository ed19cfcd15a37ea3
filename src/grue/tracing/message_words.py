"""The words in which each kind of message is shown to people.

If a kind needs no more than a template, its class has it (`Message.words`). A kind that needs more has a row
in the table here. Some rows also have a `SpanNote`, or log lines (`observers/events.py` makes those that
depend on several messages). All facts share one row, because the methods of a fact return its words. A kind
with neither a template nor a row is shown by its fields.

Source: R7.1-3, P31
"""

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeAlias, assert_never, get_args

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.policies import UNLISTED, ApprovalQuestion
from grue.protocol.tools.lock import drift_text
from grue.protocol.tools.policy import UNMATCHED
from grue.runtime.actor import ActorFailed
from grue.runtime.safe_text import clipped
from grue.runtime.trace.reader import RecordedLine
from grue.tracing.facts import Fact, LogLevel, LogLine, Severity, as_json, counted, said_by, severity_told

RED, GREEN, YELLOW, DIM = "31", "32", "33", "2"
COLOURS: dict[Severity, str] = {"fail": RED, "warn": YELLOW, "good": GREEN, "quiet": DIM, "": ""}

_SHORT = 80
_LONGEST_FACT = 1000
SpanLevel = Literal["default", "warning", "error"]


class Verdict(Struct, frozen=True):
    """How a span ended, or how serious the event in a `SpanNote` is."""

    level: SpanLevel = "default"
    error_type: str = ""  # one of a few fixed words, suitable for metrics; often empty
    detail: str = ""  # a text for people, which may quote the model, a tool or a person


class SpanNote(NamedTuple):
    """An event without duration that a message adds to a span, for Langfuse and OpenTelemetry."""

    name: str
    verdict: Verdict
    facts: m.JsonObject


class FailureWords(NamedTuple):
    """The texts for a failure, one for each place that shows it. Parts of them are untrusted."""

    short: str  # the text in the line of `grue trace show`
    sentence: str  # the text in the logs
    error_type: str  # one of a few fixed words, suitable for metrics
    detail: str  # the text in a span, which shows `error_type` too


_Words: TypeAlias = str | Callable[[Any], str]
"""A message's text: a function that returns it, or a template for `str.format` (`{0.x}`: its field `x`)."""

_Judge: TypeAlias = Callable[[Any], tuple[Severity, str]]
_Logged: TypeAlias = Callable[[Any], LogLine | tuple[LogLine, ...]]
_Noted: TypeAlias = Callable[[Any], SpanNote]


class _Row(Struct, frozen=True):
    words: _Words
    severity: Severity = ""
    mark: str = ""  # a word or two for the problem that every message of the kind reports
    judge: _Judge | None = None  # if set, returns a message's severity and mark instead
    subject: _Words | None = None  # what is shown before `words`, such as a call's id
    live: Callable[[Any], bool] | bool = False  # whether the live view shows `words` as a problem
    logged: _Logged | None = None
    noted: _Noted | None = None


def summarize(body: Struct) -> str:
    """Return in words what a message says. Untrusted parts are not escaped, and may contain newlines."""
    row = _row(body)
    words = _said(row.words, body)
    return f"{_said(row.subject, body)}: {words}" if row.subject else words


def _said(words: _Words, body: Struct) -> str:
    return words.format(body) if isinstance(words, str) else words(body)


def kind_of(body: Struct) -> str:
    """Return the name of a message's kind: its class's name, or a fact's tag."""
    return name_of(type(body))


def name_of(kind: type[Struct]) -> str:
    """Return the name of a kind of message."""
    return str(kind.__struct_config__.tag) if issubclass(kind, Fact) else kind.__name__


def kind_of_line(line: RecordedLine[Any]) -> str:
    """Return the kind of a line's message, usually without decoding it; may raise `TraceError`."""
    tag = line.tag
    return _NAMES.get(tag, tag) if tag else kind_of(line.envelope().body)


def severity_of(body: Struct) -> Severity:
    """Return the severity of a message."""
    return _judged(body)[0]


def mark_of(body: Struct) -> str:
    """Return a word or two for the problem that a message reports; empty if it reports none."""
    return _judged(body)[1]


def problem_in(body: Struct) -> str:
    """Return the untrusted text of the problem that the live view shows for a message; empty if none."""
    row = _row(body)
    live = row.live(body) if callable(row.live) else row.live
    return _said(row.words, body) if live else ""


def log_lines(body: Struct) -> tuple[LogLine, ...]:
    """Return the log lines that depend on this message alone. Their text is untrusted."""
    if isinstance(body, Fact):
        return body.log_lines()
    logged = _row(body).logged
    lines = () if logged is None else logged(body)
    return (lines,) if isinstance(lines, LogLine) else lines


def told_lines(body: Struct) -> Iterator[tuple[str, str]]:
    """Yield the lines about a message for the logger `grue`, each as `(key, untrusted line)`."""
    # Lines with the same key report the same problem: only the first is to be logged.
    match body:
        case m.ServerDied(server=server, failure=failure):
            yield f"{server} died: {failure.cause}", f"server {_died(body)}"
        case m.McpDisabled(server=server, reason=reason):
            yield f"{server} is disabled: {reason}", f"server {_disabled(body)}"
        case m.RequestCompletion():
            for each in cut_results(body):
                setting = "TurnLimits(max_result_chars=) is the limit"
                yield "max_result_chars", f"the result of the tool call {_cut_result(each)}; {setting}"
        case m.CompletionRetried(failure=failure):
            yield f"retried: {failure.kind}", _retried(body)
        case _:
            yield from ((line.message, line.message) for line in log_lines(body))


def note_of(body: Struct) -> SpanNote | None:
    """Return the `SpanNote` that a message adds to the span in which it happens, or `None`."""
    noted = _row(body).noted
    return None if noted is None else noted(body)


def _judged(body: Struct) -> tuple[Severity, str]:
    row = _row(body)
    return row.judge(body) if row.judge else (row.severity, row.mark)


def _row(body: Struct) -> _Row:
    return _TABLE.get(type(body)) or (_FACT if isinstance(body, Fact) else _GENERIC)


def _fail(mark: str, words: _Words, subject: _Words | None = None, **more: Any) -> _Row:
    return _Row(words, "fail", mark, subject=subject, **more)


def _warn(mark: str, words: _Words, subject: _Words | None = None, **more: Any) -> _Row:
    return _Row(words, "warn", mark, subject=subject, **more)


def _if(condition: Callable[[Any], bool], severity: Severity, mark: str) -> _Judge:
    return lambda body: (severity, mark) if condition(body) else ("", "")


def cut_results(request: m.RequestCompletion) -> tuple[m.ToolMessage, ...]:
    """Return a request's tool results that were cut, because they were longer than `max_result_chars`."""
    return tuple(item for item in request.new if isinstance(item, m.ToolMessage) and item.whole_chars)


def _cut_result(told: m.ToolMessage, by: str = ":") -> str:
    sent = f"the model was sent {len(told.content):,} of {told.whole_chars:,} characters"
    return f"{told.call_id} cut{by} {sent}"


def failure_words(failure: m.TurnFailure) -> FailureWords:
    """Return the words for a failure."""
    match failure:
        case m.ServerFailure(server=server, phase=phase, cause=cause):
            sentence = f"Failed to start MCP server '{server}': {cause}"
            return FailureWords(f"{server}, {phase}: {cause}", sentence, "server_failed", cause)
        case m.LlmFailure(model=model, kind=kind, message=message, status=status):
            short = f"{kind}{f' {status}' if status is not None else ''}: {message}"
            return FailureWords(short, f"no completion from model '{model}': {message}", kind, message)
        case m.ToolsUnsupported(model=model, reason=reason):
            sentence = f"model '{model}' cannot call tools: {reason}"
            short = f"{model} cannot call tools: {reason}"
            return FailureWords(short, sentence, "tools_unsupported", reason)
        case m.DeadlineMissed(limit_s=limit_s, doing=doing):
            sentence = f"out of time after {limit_s:g}s, {doing}"
            return FailureWords(f"out of time after {limit_s:g} s, {doing}", sentence, "timeout", sentence)
        case m.Interrupted(reason=reason):
            sentence = f"interrupted: {reason}"
            return FailureWords(sentence, sentence, "interrupted", reason)
        case m.NoAnswer(reason=reason):
            sentence = f"no acceptable answer: {reason}"
            return FailureWords(f"no answer: {reason}", sentence, "no_answer", reason)
        case never:
            assert_never(never)


# --- Texts of messages ---


def _run(body: m.RunTurn) -> str:
    tools = f"tools from {', '.join(body.servers)}" if body.servers else "no tools"
    shown = f"{tools}; {_quoted(body.user)}"
    if body.images:
        shown += f" with {counted(len(body.images), 'image')}"
    if body.history is not None:
        entries = counted(body.history.length, "entry")
        shown += f", in conversation {body.history.conversation} after {entries}"
    return shown


def _rewritten(body: m.HistoryRewritten) -> str:
    replaced = counted(body.rewrite.stop - body.rewrite.start, "entry")
    return f"{body.conversation}, {replaced} replaced: {body.reason}"


def _rewrite(body: m.RewriteHistory) -> str:
    why = {"window": "the next request would be too long", "overflow": "the endpoint found it too long"}
    match body.change:
        case m.Summarised():
            done = "a summary takes the place of what was said"
        case m.Shortened():
            done = "the oldest exchanges are left out"
        case m.Cleared(results=results, texts=texts):
            texts_too = f" and {counted(texts, 'text')}" if texts else ""
            done = f"{counted(len(results), 'tool result')}{texts_too} cleared or cut"
    return f"{body.conversation}, {done}: {why[body.reason]}"


def _thoughts(body: m.ThoughtsDropped) -> str:
    replies = counted(body.replies, "reply")
    return f"{body.model} ({body.wire}) is not sent the thoughts of {replies}: it cannot read them"


def _tools_unseen(body: m.ToolsUnseen) -> str:
    return (
        f"{body.model} ({body.endpoint}) has counted {body.prompt_tokens} tokens for a prompt with"
        f" {counted(body.tools, 'tool')} and called none: its chat template seems to leave them out;"
        " grue doctor tries it"
    )


def _offer_changed(body: m.OfferChanged) -> str:
    parts = {"added": body.added, "removed": body.removed, "changed": body.changed}
    named = "; ".join(f"{how}: {', '.join(names)}" for how, names in parts.items() if names)
    return f"{body.conversation}, other tools are offered than before: {named}"


def _form_adapted(body: m.FormAdapted) -> str:
    known = ", ".join(f"{name} {as_json(value)}" for name, value in body.changed.items()) or "nothing new"
    again = "; what was said before is sent in another form" if body.rewritten else ""
    return f"the endpoint refused the form of request {body.request}: {known}{again}"


def _completed(body: m.TurnCompleted) -> str:
    because = f" ({body.reason})" if body.reason else ""
    counts = f"{counted(body.requests, 'request')}, {counted(len(body.tool_calls), 'tool call')}"
    return f"{body.kind}{because}: {as_json(body.answer)}; {counts}"


def _asked_about(questions: tuple[ApprovalQuestion, ...]) -> str:
    return ", ".join(f"{each.call_id} {each.name} {as_json(each.arguments)}" for each in questions)


def _decisions(body: m.CallsDecided) -> str:
    changed = (each.reason if each.arguments is None else as_json(each.arguments) for each in body.decisions)
    pairs = zip(body.decisions, changed, strict=True)
    return ", ".join(f"{each.call_id} {each.verdict} {more}".strip() for each, more in pairs)


def _opened(body: m.SessionOpened) -> str:
    names = ", ".join(tool.tool for tool in body.tools)
    again = f", attempt {body.attempt}" if body.attempt > 1 else ""
    listed = f"{counted(len(body.tools), 'tool')} ({names})" if body.tools else "no tools"
    box = f". Sandbox: {body.box}" if body.box else ""
    return f"{body.server}{again}{_process(body.pid)}, {_time(body.elapsed_s)}: {listed}{box}"


def _closed(body: m.SessionClosed | m.ServerEnded) -> str:
    exited = f", exit status {body.exit_status}" if body.exit_status is not None else ""
    return f"{body.server}, {body.ending}{exited}, {_time(body.elapsed_s)}"


def _judge_ending(body: m.SessionClosed | m.ServerEnded) -> tuple[Severity, str]:
    match body.ending:
        case "died":
            return "fail", "died"
        case "killed":
            return "warn", "killed"
        case "none" | "polite" | "terminated" | "handed_over":
            return "", ""
    assert_never(body.ending)


def _not_connected(body: m.ConnectFailed) -> str:
    then = {"retry": "trying once more", "disable": "going on without it", "raise": "the turn fails"}
    why = f"attempt {body.attempt}, {body.failure.phase}: {body.failure.cause}"
    return f"{body.server} did not connect ({why}); {then[body.then]}"


def _disabled(body: m.McpDisabled) -> str:
    lasts = "is disabled for the rest of the episode" if body.newly else "is disabled since an earlier turn"
    if body.retry_s is not None:
        lasts = f"is disabled until it is tried again after {body.retry_s:g} s"
    return f"{body.server} {lasts}: {body.why}"


def _returned(body: m.ToolReturned) -> str:
    took = _time(body.duration_s)
    if body.result.is_error:
        return f"{body.call_id} error, {took}: {_quoted(body.result.error_message or '')}"
    return f"{body.call_id} {took}: {as_json(body.result.content)}"


def _died(body: m.ServerDied) -> str:
    words = body.failure.last_words
    said = f". Its last line on stderr: {words}" if words else ""
    return f"{body.server} died: {body.failure.cause}{said}"


def _supported(body: m.ToolSupportChecked) -> str:
    known_by = {
        "forced": "says the configuration",
        "endpoint": "says its endpoint",
        "client": "says the host's client",
        "name": "going by its name",
    }[body.by]
    can = "can call tools" if body.supported else "cannot call tools"
    return f"{body.model} {can}, {known_by}{f': {body.reason}' if body.reason else ''}"


def _asked(body: m.RequestCompletion) -> str:
    wants = "tools on offer" if isinstance(body.mode, m.OfferTools) else "an answer, no tools"
    cuts = (f"; {_cut_result(each, ' (max_result_chars):')}" for each in cut_results(body))
    return f"request {body.request}: {wants}, {counted(len(body.new), 'new item')}{''.join(cuts)}"


def _reply(body: m.CompletionReceived) -> str:
    parts = [_quoted(body.content)] if body.content else []
    parts += [f"{call.call_id} {call.name} {clipped(call.arguments, _SHORT)}" for call in body.tool_calls]
    tokens = f"{body.usage.input_tokens}+{body.usage.output_tokens} tokens"
    return f"{'; '.join(parts) or 'nothing'} ({tokens}, {_time(body.elapsed_s)})"


def _retried(body: m.CompletionRetried) -> str:
    again = f"attempt {body.attempt + 1} in {body.delay_s:.1f} s"
    return f"the model did not answer ({failure_words(body.failure).short}); {again}"


def _cut(body: m.ReplyCut) -> str:
    limit = "its limit" if body.limit_tokens is None else f"{body.limit_tokens} tokens (max_tokens)"
    then = "" if body.retried_with is None else f"; asked again with a limit of {body.retried_with} tokens"
    return f"was cut short at {limit}{then}"


def _presumed(body: m.ToolsPresumed) -> str:
    listings = (
        f"{each.server}: {counted(len(each.tools), 'tool')} ({each.source})" for each in body.listings
    )
    return f"presumed {', '.join(listings)}"


def _verified(body: m.ToolsVerified) -> str:
    if body.server:
        changed = f", but {', '.join(body.changed)}" if body.changed else ""
        return f"{body.server} lists its tools as they were offered{changed}"
    changed = f", but {', '.join(body.changed)}, which the reply does not call" if body.changed else ""
    return f"request {body.request}: the tools are as presumed{changed}"


def _reply_dropped(body: m.ReplyDropped) -> str:
    usage = body.usage
    cost = f", estimated at {usage.input_tokens} + {usage.output_tokens} tokens" if usage.input_tokens else ""
    return f"request {body.request}{cost}"


def _delta(body: m.TextDelta) -> str:
    if body.restart:
        return f"request {body.request} begins anew: its reply so far is void"
    return f"{'' if body.part == 'content' else f'{body.part} '}{_quoted(body.text, strip=False)}"


def _own_words(body: Struct) -> str:
    if isinstance(body, m.Message) and body.words:
        return body.words.format(body)
    fields = msgspec.to_builtins(body)
    fields.pop("type", None)
    return ", ".join(f"{name} {as_json(value, _SHORT)}" for name, value in fields.items())


# --- Log lines, and events in spans ---

_FORCED = {
    "max_iterations": "the last tool iteration",
    "no_content": "a reply without content",
    "tool_timeout": "tool timeout",
    "server_died": "the server's death",
    "budget": "reaching the budget",
}


def info(event: str, message: str, **fields: object) -> LogLine:
    """Return a log line of the level `info`."""
    return LogLine("info", event, message, fields)


def problem(event: str, message: str, **fields: object) -> LogLine:
    """Return a log line of the level `warning`."""
    return LogLine("warning", event, message, fields)


def _fields_of(body: object, names: str) -> dict[str, Any]:
    """Return the fields of `body` in `names`. `error=failure.cause` returns `failure.cause` as `error`."""
    paths = {name: path or name for name, _, path in (each.partition("=") for each in names.split())}
    values = {name: attrgetter(path)(body) for name, path in paths.items()}
    return {name: list(each) if isinstance(each, tuple) else each for name, each in values.items()}


def _logs(event: str, words: _Words, fields: str, level: LogLevel = "warning") -> _Logged:
    return lambda body: LogLine(level, event, _said(words, body), _fields_of(body, fields))


def _notes(
    name: str, fields: str = "", *, error_type: str = "", detail: str = "", level: SpanLevel = "warning"
) -> _Noted:
    def noted(body: Any) -> SpanNote:
        described = attrgetter(detail)(body) if detail else ""
        return SpanNote(name, Verdict(level, error_type, described), _fields_of(body, fields))

    return noted


def _unparsed(reason: str, raw: str | None) -> LogLine:
    message = f"Failed to parse agent response: {reason}"
    return LogLine("error", "agent_parse_error", message, {"raw_response": raw})


def _log_forced(body: m.FinalForced) -> tuple[LogLine, ...]:
    message = f"Agent exited tool loop without content after {body.iterations} iterations"
    forcing = f"Forcing final action after {_FORCED[body.reason]}"
    return (
        problem("mcp_no_content", message, iterations=body.iterations),
        info("mcp_forced_final", forcing, reason=body.reason, iterations=body.iterations),
    )


def _log_failed(body: m.TurnFailed) -> tuple[LogLine, ...]:
    failure, sentence = body.failure, failure_words(body.failure).sentence
    facts: m.JsonObject = {"failure": type(failure).__name__, "error": sentence}
    failed = LogLine("error", "turn_failed", f"Turn failed: {sentence}", facts)
    return (_unparsed(failure.reason, failure.raw), failed) if isinstance(failure, m.NoAnswer) else (failed,)


def crash_verdict(crash: ActorFailed) -> Verdict:
    """Return the verdict for an actor's crash."""
    return Verdict("error", "actor_crashed", f"{crash.actor}: {crash.error}")


def _log_not_connected(body: m.ConnectFailed) -> tuple[LogLine, ...]:
    if body.then != "retry":
        return ()
    error = body.failure.cause
    message = f"MCP session connect failed, retrying: {error}"
    return (problem("mcp_connect_retry", message, server_name=body.server, error=error),)


def _log_noted(body: m.ServerNoted) -> tuple[LogLine, ...]:
    match body.kind:
        case "bad_tool" if body.text.endswith(UNMATCHED):
            message = body.text  # a pattern of the tool policy, or of the request's `tools=`, matches no tool
        case "bad_tool" if body.text.endswith(UNLISTED):
            message = f"MCP server '{body.server}': {body.text}"
        case "bad_tool":
            message = f"MCP server '{body.server}' lists a tool that cannot be used: {body.text}"
        case "bad_schema":
            message = f"MCP server '{body.server}', tool {body.text}"  # the text says what is not checked
        case "bad_elicit":
            message = f"MCP server '{body.server}' got no answer from the user: {body.text}"
        case _:
            return ()
    return (problem(f"mcp_{body.kind}", message, server_name=body.server, error=body.text),)


def _log_drift(body: m.ToolDrifted) -> LogLine:
    return problem(
        "mcp_tool_drift",
        f"MCP tool drift: {drift_text(body)}",
        tool_name=f"{body.server}.{body.tool}",
        server_name=body.server,
        change=body.change,
        parts=list(body.parts),
        refused=body.refused,
    )


def _note_drift(body: m.ToolDrifted) -> SpanNote:
    facts = {"tool_name": f"{body.server}.{body.tool}", "change": body.change, "refused": body.refused}
    return SpanNote("tool_drifted", Verdict("warning", detail=drift_text(body)), facts)


def _about_llm(mark: str, words: _Words, event: str, fields: str) -> _Row:
    return _warn(
        mark, words, live=True, logged=_logs(event, lambda body: f"LLM {_said(words, body)}", fields)
    )


def _note_retried(body: m.CompletionRetried) -> SpanNote:
    failure = body.failure
    facts: m.JsonObject = {"attempt": body.attempt, "delay_s": body.delay_s, "status": failure.status}
    return SpanNote("completion_retried", Verdict("warning", failure.kind, failure.message), facts)


_GENERIC = _Row(_own_words)
_FACT = _Row(
    lambda fact: clipped(said_by(fact, Fact.summary).replace("\n", " "), _LONGEST_FACT),
    judge=lambda fact: (severity_told(fact), said_by(fact, Fact.mark)),
)

_NAMES = {str(kind.__struct_config__.tag): kind.__name__ for kind in (*get_args(m.AnyMessage), ActorFailed)}
"""The names of grue's own messages by tag. Facts are not in it: the name of a fact is its tag."""

_TABLE: dict[type, _Row] = {
    # The turn
    m.RunTurn: _Row(_run),
    m.CheckAnswer: _Row(lambda body: _quoted(body.content)),
    m.AnswerAccepted: _Row(lambda body: as_json(body.answer)),
    m.AnswerRefused: _warn("refused", "{0.reason}"),
    m.RepairRequested: _warn(
        "repair",
        "asked once more, because {0.reason}",
        live=True,
        logged=_logs(
            "agent_repair_requested", "Agent response refused, asking once more: {0.reason}", "reason"
        ),
        noted=_notes("repair_requested", detail="reason"),
    ),
    m.FellBack: _warn(
        "fallback",
        lambda body: f"{body.reason}; got {_quoted(body.raw_response or '')}",
        logged=lambda body: _unparsed(body.reason, body.raw_response),
        noted=_notes("fell_back", detail="reason"),
    ),
    m.FinalForced: _warn(
        "forced",
        lambda body: (
            f"asked for the final answer after {counted(body.iterations, 'iteration')} "
            f"({body.reason.replace('_', ' ')})"
        ),
        live=True,
        logged=_log_forced,
        noted=_notes("final_forced", "reason iterations", level="default"),
    ),
    m.ReplyUnusable: _warn(
        "unusable",
        lambda body: ", ".join(filter(None, (f"finish_reason {body.finish_reason}", body.seen))),
        logged=_logs(
            "mcp_unexpected_state",
            lambda body: (
                f"LLM returned {body.seen or 'no content'} and no tool_calls,"
                f" finish_reason={body.finish_reason}"
            ),
            "finish_reason iteration",
        ),
        noted=_notes("reply_unusable", "finish_reason", detail="seen"),
    ),
    m.TurnCompleted: _Row(
        _completed, judge=lambda body: ("good", "") if body.kind == "answered" else ("warn", body.kind)
    ),
    m.TurnParked: _warn("parked", lambda body: f"waits for an approval of {_asked_about(body.questions)}"),
    m.TurnResumed: _Row(
        lambda body: f"turn {body.turn} goes on{', its questions have expired' if body.expired else ''}"
    ),
    m.TurnForked: _Row(
        lambda body: (
            f"from here on a fork of turn {body.turn} of {body.episode}, after message {body.at}"
            + (f": {', '.join(body.changed)}" if body.changed else "")
        )
    ),
    m.TurnFailed: _fail("failed", lambda body: failure_words(body.failure).short, logged=_log_failed),
    m.DeadlinePassed: _fail(
        "deadline", "limit {0.limit_s:g} s", noted=_notes("deadline_passed", "limit_s", error_type="timeout")
    ),
    m.TurnInterrupted: _fail(
        "interrupted",
        "{0.reason}",
        noted=_notes("turn_interrupted", error_type="interrupted", detail="reason"),
    ),
    ActorFailed: _fail(
        "crashed",
        lambda body: f"{body.error}; at {body.where[-1]}" if body.where else body.error,
        logged=_logs("actor_failed", "Actor '{0.actor}' crashed: {0.error}", "actor error where", "error"),
        noted=lambda body: SpanNote("actor_failed", crash_verdict(body), {"actor": body.actor}),
    ),
    # Sessions
    m.SessionOpened: _Row(_opened),
    m.ConnectFailed: _Row(
        _not_connected,
        judge=lambda body: ("warn", "retry") if body.then == "retry" else ("fail", "no start"),
        live=lambda body: body.then == "retry",
        logged=_log_not_connected,
        noted=_notes(
            "connect_failed",
            "server_name=server attempt phase=failure.phase then",
            error_type="server_failed",
            detail="failure.cause",
        ),
    ),
    m.McpDisabled: _warn(
        "disabled",
        _disabled,
        live=lambda body: body.newly,
        noted=_notes("mcp_disabled", "server_name=server newly", detail="reason"),
    ),
    m.StartupFailed: _fail("no start", lambda body: failure_words(body.failure).short),
    m.ToolsChanged: _Row(
        lambda body: (
            f"{body.server} now lists {counted(len(body.tools), 'tool')}: "
            f"{', '.join(tool.tool for tool in body.tools)}"
        )
    ),
    m.SessionClosed: _Row(_closed, judge=_judge_ending),
    m.ServerEnded: _Row(_closed, judge=_judge_ending),
    m.ServerNoted: _Row(
        lambda body: f"{body.server}, {body.kind}: {_quoted(body.text)}",
        judge=lambda body: (
            ("warn", body.kind.replace("_", " ")) if body.kind.startswith("bad_") else ("", "")
        ),
        live=lambda body: body.kind.startswith("bad_"),
        logged=_log_noted,
    ),
    m.ServerRequested: _Row(
        lambda body: (
            f"{body.server} {body.method} {as_json(body.params)}{': ' * bool(body.error)}{body.error}"
        ),
        judge=_if(lambda body: bool(body.error), "warn", "refused"),
    ),
    m.ToolDrifted: _warn("drift", drift_text, live=True, logged=_log_drift, noted=_note_drift),
    m.SessionPrewarmed: _Row(lambda body: f"{body.server}{_process(body.pid)}, {_time(body.elapsed_s)}"),
    m.PrewarmLost: _warn(
        "spare lost",
        "{0.server}: {0.cause}",
        logged=_logs(
            "mcp_spare_lost",
            "MCP session prepared ahead was lost, opening another one: {0.cause}",
            "server_name=server error=cause",
        ),
    ),
    # Calls
    m.AskApproval: _Row(lambda body: _asked_about(body.questions)),
    m.CallsDecided: _Row(_decisions),
    m.DecisionIgnored: _warn("ignored", "{0.reason}", "{0.call_id}"),
    m.CallTools: _Row(
        lambda body: f"{body.server}: {', '.join(f'{call.call_id} {call.tool}' for call in body.calls)}"
    ),
    m.ToolCalled: _Row(lambda body: f"{body.call_id} {body.server}.{body.tool} {as_json(body.arguments)}"),
    m.ToolReturned: _Row(_returned, judge=_if(lambda body: body.result.is_error, "warn", "error")),
    m.ToolTimedOut: _fail("timeout", "no answer within {0.timeout_s:g} s", "{0.call_id}", live=True),
    m.ServerDied: _fail("died", _died, "{0.call_id}", live=True),
    m.ToolSkipped: _Row(
        "{0.reason}",
        subject="{0.call_id}",
        judge=lambda body: ("warn", "rejected" if body.refused else "skipped"),
        live=True,
        noted=lambda body: SpanNote(
            "tool_rejected" if body.refused else "tool_skipped",
            Verdict("warning", "rejected" if body.refused else "", body.reason),
            {"call_id": body.call_id},
        ),
    ),
    m.ToolRejected: _warn(
        "rejected",
        "{0.error}",
        "{0.call_id} {0.name}",
        live=True,
        noted=_notes("tool_rejected", "call_id tool_name=name", error_type="rejected", detail="error"),
    ),
    m.ToolDenied: _warn(
        "denied",
        "{0.reason}",
        "{0.call_id} {0.name}",
        live=True,
        noted=_notes("tool_denied", "call_id tool_name=name", error_type="denied", detail="reason"),
    ),
    # The model
    m.ToolSupportChecked: _Row(_supported, judge=_if(lambda body: not body.supported, "warn", "no tools")),
    m.ToolsPresumed: _Row(_presumed),
    m.ToolsVerified: _Row(_verified),
    m.RequestCompletion: _Row(_asked, judge=_if(lambda body: bool(cut_results(body)), "warn", "cut")),
    m.DropCompletion: _warn(
        "dropped",
        "{0.reason}",
        "request {0.request}",
        live=True,
        logged=_logs("mcp_reply_dropped", "Reply to presumed tools dropped: {0.reason}", "request reason"),
        noted=_notes("reply_dropped", error_type="reply_dropped", detail="reason"),
    ),
    m.ReplyDropped: _Row(_reply_dropped),
    m.CompletionReceived: _Row(_reply),
    m.CompletionFailed: _fail("no reply", lambda body: failure_words(body.failure).short),
    m.ModelPassedOver: _about_llm(
        "next model",
        "{0.model} cannot be asked ({0.reason}): asking {0.asks.model} at {0.asks.address}",
        "llm_model_passed_over",
        "model=asks.model error=reason",
    ),
    m.CompletionRetried: _warn(
        "retry",
        _retried,
        live=True,
        logged=_logs(
            "llm_retry",
            "LLM request failed, trying again in {0.delay_s:.1f}s: {0.failure.message}",
            "attempt delay_s error=failure.message",
        ),
        noted=_note_retried,
    ),
    m.ReplyCut: _warn(
        "cut",
        lambda body: f"the model's reply {_cut(body)}",
        "request {0.request}",
        live=True,
        logged=_logs("llm_reply_cut", lambda body: f"LLM reply {_cut(body)}", "limit_tokens retried_with"),
        noted=_notes("reply_cut", "limit_tokens retried_with"),
    ),
    m.TextDelta: _Row(_delta, "quiet"),
    m.HistoryRewritten: _warn("rewritten", _rewritten),
    m.RewriteHistory: _Row(_rewrite, judge=_if(lambda body: body.reason == "overflow", "warn", "overflow")),
    m.SummaryFailed: _warn("no summary", "{0.reason}", live=True),
    m.ThoughtsDropped: _about_llm("thoughts", _thoughts, "llm_thoughts_dropped", "replies wire"),
    m.CostUncounted: _about_llm(
        "cost",
        "{0.model}: the cost limit of {0.limit_usd:g} USD has no effect, because {0.endpoint} does not report"
        " the cost; set the model's price under budget.prices",
        "llm_cost_uncounted",
        "limit_usd",
    ),
    m.OfferChanged: _Row(_offer_changed),
    m.FormAdapted: _Row(_form_adapted, judge=_if(lambda body: body.rewritten, "warn", "adapted")),
    m.SchemaIgnored: _about_llm(
        "schema ignored",
        "{0.model} ({0.endpoint}) replied in another shape: prompts state the schema now",
        "llm_schema_ignored",
        "request",
    ),
    m.ToolsUnseen: _about_llm(
        "tools unseen", _tools_unseen, "llm_tools_unseen", "tools prompt_tokens request"
    ),
    m.SettingsLeftOut: _about_llm(
        "left out",
        lambda body: f"{body.model} ({body.endpoint}) does not take {' and '.join(body.settings)}: not sent",
        "llm_settings_left_out",
        "settings",
    ),
}


def _process(pid: int | None) -> str:
    return f", pid {pid}" if pid is not None else ""


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def _quoted(text: str, *, strip: bool = True) -> str:
    return f'"{clipped(text.strip() if strip else text, _SHORT)}"'
