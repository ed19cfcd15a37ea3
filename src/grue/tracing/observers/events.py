"""Turn trace envelopes into log events. `message_words.py` makes those that depend on one message alone.

Each tool call that was sent to its server has one event `mcp_tool_call`, and one `mcp_tool_result` if it
returned something. Each failed call has exactly one failure event: `mcp_tool_timeout`, `mcp_tool_skipped` or
`mcp_tool_error` (the call returned an error, was rejected, refused or denied, or its server died).

A turn that offers tools has one `mcp_session_started` and, when it completes or fails, one
`mcp_session_complete`, whose `tool_calls_count` and `tools_used` cover only sent calls. If the turn was
parked, this holds for each of its parts in which a request offers tools.

Source: R7.1-3, P21, P28-30
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.tools.built_in import named_call
from grue.runtime.loops.host_code import blame
from grue.runtime.safe_text import printable
from grue.runtime.trace.recorder import Envelope
from grue.tracing.facts import EpisodeEnded, EpisodeResumed, EpisodeStarted, LogLevel, LogLine
from grue.tracing.message_words import info, log_lines, problem

MESSAGE_LIMIT = 2000  # most characters of `Event.message`


class Event(Struct, frozen=True, kw_only=True):
    """One log event of an episode."""

    at: float  # seconds since the epoch
    level: LogLevel
    event_type: str  # the event's name, such as `mcp_tool_call`
    message: str  # one printable line
    episode_id: str
    turn: int  # 0 if it belongs to no turn; for an `EpisodeEnded` outside turns: how many there were
    fields: m.JsonObject  # values by name; texts in them are untrusted

    def labels(self) -> m.JsonObject:
        """Return everything except `at`, `level` and `message`, in one flat object."""
        return {
            "event_type": self.event_type,
            "episode_id": self.episode_id,
            "turn": self.turn,
            **self.fields,
        }


_CALL_FAILED = "Tool call failed: "


class _TurnLines:
    """Makes those log lines of one turn that depend on more than one of its messages."""

    # `attempts`, which all turns share, has the latest failed attempt to connect, by server.

    def __init__(self, attempts: dict[m.ServerName, m.ConnectFailed], run: m.RunTurn | None = None) -> None:
        self._attempts = attempts
        self._expected = set[m.ServerName]() if run is None else set(run.servers)
        self._open: set[m.ServerName] = set()
        self._newly_disabled = False
        self._offers = False  # whether a request has offered tools
        # A resumed turn first goes on with the calls of the reply at which it was parked.
        self._iteration = 0 if run is None or run.resumed is None else run.resumed.parked.iterations
        self._used: Counter[str] = Counter()
        self._calls: dict[m.CallId, m.ToolCall] = {}
        self._broken_by: str | None = None

    def lines(self, body: object) -> Iterator[LogLine]:
        match body:
            case m.ConnectFailed(server=server):
                self._attempts[server] = body
            case m.SessionOpened(server=server, attempt=attempt):
                self._attempts.pop(server, None)
                self._expected.discard(server)
                self._open.add(server)
                if attempt > 1:
                    retried = "MCP session retry successful"
                    yield info("mcp_connect_retry_succeeded", retried, server_name=server, attempt=attempt)
            case m.McpDisabled(server=server, newly=newly):
                self._expected.discard(server)
                self._open.discard(server)
                self._newly_disabled |= newly
                if newly:
                    yield self._disabled(body)
                if not self._expected and not self._open and self._newly_disabled:
                    self._newly_disabled = False
                    yield problem("mcp_disabled_fallback", "MCP disabled, continuing without tools")
            case m.IterationStarted():
                yield from self._begin_iteration(body)
            case m.TurnCompleted(iterations=iterations, answer=answer):
                action = answer.get("action") if isinstance(answer, dict) else answer
                yield from self._session_complete(iterations, action)
            case m.TurnFailed(iterations=iterations):
                yield from self._session_complete(iterations, None)
            case _:
                yield from self._of_calls(body)
                if isinstance(body, m.Settlement):  # calls outside turns are without end: forget each
                    self._calls.pop(body.call_id, None)

    def _disabled(self, body: m.McpDisabled) -> LogLine:
        failed = self._attempts.pop(body.server, None)
        error = body.reason if failed is None else failed.failure.cause
        lasts = "for episode" if body.retry_s is None else f"for {body.retry_s:g} s"
        match failed:
            case None:
                what = f"MCP disabled {lasts}"
            case m.ConnectFailed(attempt=1):
                what = f"MCP session connect failed, disabling MCP {lasts}"
            case _:
                what = f"MCP retry failed, disabling MCP {lasts}"
        return problem("mcp_disabled", f"{what}: {error}", server_name=body.server, error=error)

    def _of_calls(self, body: object) -> Iterator[LogLine]:
        match body:
            case m.CompletionReceived(tool_calls=calls) if calls:  # a reply to a server (sampling) has none
                self._broken_by = None
                self._calls = {call.call_id: call for call in map(named_call, calls)}
            case m.ToolCalled(call_id=call_id, server=server, tool=tool, arguments=arguments):
                name = f"{server}.{tool}"
                self._calls[call_id] = m.ToolCall(call_id=call_id, name=name, arguments="")
                self._used[name] += 1
                about: m.JsonObject = {"tool_name": name, "server_name": server, "arguments": arguments}
                yield self._line(info, "mcp_tool_call", f"MCP tool call: {name}", **about)
            case m.ToolReturned():
                yield from self._returned(body)
            case m.ToolTimedOut(call_id=call_id):
                self._broken_by, name = "timeout", self._name(call_id)
                yield self._line(problem, "mcp_tool_timeout", f"Tool call timeout: {name}", tool_name=name)
            case m.ServerDied(call_id=call_id, failure=failure):
                self._broken_by = "server death"
                yield self._failed(self._name(call_id), failure.cause)
            case m.ToolRejected(call_id=call_id, name=name, error=error):
                yield self._rejected(name, error, call_id)
            case m.ToolDenied(name=name, reason=reason):
                yield self._failed(name, f"denied: {reason}")
            case m.ToolSkipped(call_id=call_id, reason=reason, refused=True):
                yield self._rejected(self._name(call_id), reason, call_id)
            case m.ToolSkipped(call_id=call_id, reason=reason):
                name = self._name(call_id)
                about = {"tool_name": name, "reason": reason, "after": self._broken_by}
                message = f"Tool call skipped: {name} - {reason.removeprefix('Skipped: ')}"
                yield self._line(problem, "mcp_tool_skipped", message, **about)

    def _line(self, make: Callable[..., LogLine], event: str, message: str, **fields: object) -> LogLine:
        return make(event, message, **fields, iteration=self._iteration)

    def _name(self, call_id: m.CallId) -> str:
        call = self._calls.get(call_id)
        return call_id if call is None else call.name

    def _returned(self, body: m.ToolReturned) -> Iterator[LogLine]:
        name, result = self._name(body.call_id), body.result
        server, dot, _ = name.partition(".")
        yield self._line(
            info,
            "mcp_tool_result",
            f"MCP tool result: {name}",
            tool_name=name,
            server_name=server if dot else "",
            result_type=type(result.content).__name__,
            result_length=len(str(result.content)),
            is_error=result.is_error,
            duration_ms=round(body.duration_s * 1000, 3),
        )
        if result.is_error:
            yield self._failed(name, result.error_message or "")

    def _rejected(self, name: str, error: str, call_id: m.CallId) -> LogLine:
        call = self._calls.get(call_id)
        failed = self._failed(name, error)
        if call is None:
            return failed
        return replace(failed, fields={**failed.fields, "arguments": call.arguments})

    def _failed(self, name: str, error: str) -> LogLine:
        # Some errors begin with `_CALL_FAILED` already: do not repeat it.
        error = error.removeprefix(_CALL_FAILED)
        message = f"{_CALL_FAILED}{name} - {error}"
        return self._line(problem, "mcp_tool_error", message, tool_name=name, error=error)

    def _begin_iteration(self, body: m.IterationStarted) -> Iterator[LogLine]:
        iteration, most = body.iteration, body.max_iterations
        if not self._offers:
            started = f"MCP session started (max {most} iterations)"
            yield info("mcp_session_started", started, max_iterations=most)
        self._offers, self._iteration = True, iteration
        asking = f"Agent tool-calling iteration {iteration}/{most}"
        yield info("mcp_iteration_start", asking, iteration=iteration, max_iterations=most)

    def _session_complete(self, iterations: int, action: object) -> Iterator[LogLine]:
        if not self._offers:
            return
        count = self._used.total()
        yield info(
            "mcp_session_complete",
            f"MCP session complete: {iterations} iterations, {count} tool calls",
            iterations=iterations,
            tool_calls_count=count,
            tools_used=sorted(self._used),
            final_action=action,
        )


class EventFeed:
    """Turn the envelopes of one episode into its events.

    `episode_id` is used until `EpisodeStarted` or `EpisodeResumed` names another.
    """

    def __init__(self, episode_id: str = "") -> None:
        self._episode_id = episode_id
        self._attempts: dict[m.ServerName, m.ConnectFailed] = {}
        self._drifted: set[m.ToolDrifted] = set()
        self._latest = _TurnLines(self._attempts)
        self._running: dict[int, _TurnLines] = {}  # by turn number; `Runner.map` runs several turns at once

    def feed(self, envelope: Envelope[Any]) -> list[Event]:
        """Return the events for `envelope`, in order."""
        body = envelope.body
        if isinstance(body, EpisodeStarted | EpisodeResumed):
            self._episode_id = body.episode_id
        turn = envelope.turn or (body.turns if isinstance(body, EpisodeEnded) else getattr(body, "turn", 0))
        if isinstance(body, m.ToolDrifted):
            if body in self._drifted:  # another session of the server has recorded the same difference
                return []
            self._drifted.add(body)
        if isinstance(body, m.RunTurn):
            self._latest = self._running[envelope.turn] = _TurnLines(self._attempts, body)
        # Messages outside turns, such as the host's own calls, go to the `_TurnLines` of the latest turn.
        of_turn = self._running.get(envelope.turn, self._latest)
        if isinstance(body, m.TurnEnd):
            self._running.pop(envelope.turn, None)
        made = [
            Event(
                at=envelope.at,
                level=line.level,
                event_type=line.event,
                message=printable(line.message, MESSAGE_LIMIT),
                episode_id=self._episode_id,
                turn=turn,
                fields=line.fields,
            )
            for line in (*log_lines(body), *of_turn.lines(body))
        ]
        return [] if envelope.copied else made  # a copy's events are in the log of the recorded turn


_RESERVED = {*vars(logging.makeLogRecord({})), "message", "asctime"}  # names refused in `extra`


class LoggerObserver:
    """An observer that logs each event. The log record has the event's labels as attributes.

    If `logging` reserves a label's name, such as `name`, the attribute ends in `_`.

    Args:
        logger: A logger, or any object with a logger's methods `info`, `warning` and `error`.
        episode_id: The episode's id in each record, until `EpisodeStarted` or `EpisodeResumed` replaces it.
    """

    def __init__(self, logger: logging.Logger, *, episode_id: str = "") -> None:
        self.logger = logger
        self._feed = EventFeed(episode_id)
        self._log = {"info": logger.info, "warning": logger.warning, "error": logger.error}

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        """Log the events that `envelope` makes."""
        del line
        for event in self._feed.feed(envelope):
            try:
                self._log[event.level](event.message, extra=_extra(event))
            except Exception as error:
                name = getattr(self.logger, "name", type(self.logger).__qualname__)
                blame(error, f"a handler or filter of the logger {name}")
                raise


def _extra(event: Event) -> dict[str, object]:
    return {f"{name}_" if name in _RESERVED else name: value for name, value in event.labels().items()}
