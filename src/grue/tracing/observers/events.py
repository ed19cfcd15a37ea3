"""Turn trace envelopes into log events.

`EventFeed` takes the envelopes of an episode in order and returns the events that each one makes. It does no
I/O; observers write the events that it returns. If the requirements name an event, they also specify its text
and fields. Events that depend on one message alone are in `tracing/message_words.py`.

The settlement of a tool call decides its events. Each call that was sent has one `mcp_tool_call`. Each
settlement has the events of its row in the table. Each failure, that is, each tool message with an error, has
exactly one failure event:

| settlement                | completion        | failure            |
|---------------------------|-------------------|--------------------|
| returned a result         | `mcp_tool_result` |                    |
| returned an error         | `mcp_tool_result` | `mcp_tool_error`   |
| timed out                 |                   | `mcp_tool_timeout` |
| server died               |                   | `mcp_tool_error`   |
| rejected, never sent      |                   | `mcp_tool_error`   |
| skipped, never sent       |                   | `mcp_tool_skipped` |

A turn in which tools were on offer has one `mcp_session_started`, with its first request, and one
`mcp_session_complete`, with its end, whose `tool_calls_count` and `tools_used` count the calls that were
sent.

Source: R7.1-3, P21, P28-30
"""

import logging
from typing import Any, TypeAlias, assert_never

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.tools.built_in import named_call
from grue.runtime.safe_text import printable
from grue.runtime.trace.recorder import Envelope
from grue.tracing.facts import EpisodeEnded, EpisodeResumed, EpisodeStarted, LogLevel, LogLine
from grue.tracing.message_words import log_lines

MESSAGE_LIMIT = 2000
"""Longest message of an event, in characters. The event's fields hold the whole text."""


class Event(Struct, frozen=True, kw_only=True):
    """One event of an episode.

    Attributes:
        at: Seconds since the epoch.
        event_type: The event's name, such as `mcp_tool_call`.
        message: One printable line for people.
        turn: One-based number of the turn; 0 outside turns.
        fields: Further data of the event: JSON values, with the names from the requirements. Texts in these
            values are untrusted.
    """

    at: float
    level: LogLevel
    event_type: str
    message: str
    episode_id: str
    turn: int
    fields: m.JsonObject

    def labels(self) -> m.JsonObject:
        """Return all fields except time, level and text, in one flat object."""
        return {
            "event_type": self.event_type,
            "episode_id": self.episode_id,
            "turn": self.turn,
            **self.fields,
        }


class Moment(Struct, frozen=True):
    """The time and turn of an envelope; creates the events that happen then."""

    at: float
    episode_id: str
    turn: int

    def info(self, event_type: str, message: str, **fields: object) -> Event:
        """Return an event of the level `info`."""
        return self._event("info", event_type, message, fields)

    def warning(self, event_type: str, message: str, **fields: object) -> Event:
        """Return an event of the level `warning`."""
        return self._event("warning", event_type, message, fields)

    def error(self, event_type: str, message: str, **fields: object) -> Event:
        """Return an event of the level `error`."""
        return self._event("error", event_type, message, fields)

    def event(self, line: LogLine) -> Event:
        """Return the event for a log line of a message or a fact."""
        return self._event(line.level, line.event, line.message, line.fields)

    def _event(self, level: LogLevel, event_type: str, message: str, fields: m.JsonObject) -> Event:
        return Event(
            at=self.at,
            level=level,
            event_type=event_type,
            message=printable(message, MESSAGE_LIMIT),
            episode_id=self.episode_id,
            turn=self.turn,
            fields=fields,
        )


_CALL_FAILED = "Tool call failed: "
_CALL_SKIPPED = "Tool call skipped: "


class _Call(Struct, frozen=True):
    """A tool call of the latest reply; `name` is canonical, `arguments` are the model's text."""

    name: str
    server: str
    arguments: str = ""


_Connecting: TypeAlias = m.RunTurn | m.SessionOpened | m.McpDisabled | m.ConnectFailed
_Calling: TypeAlias = (
    m.CompletionReceived
    | m.ToolCalled
    | m.ToolReturned
    | m.ToolTimedOut
    | m.ServerDied
    | m.ToolRejected
    | m.ToolDenied
    | m.ToolSkipped
)


class EventFeed:
    """Turn the envelopes of one episode into its events.

    Args:
        episode_id: The episode's id in each event, until an `EpisodeStarted` gives another id.
    """

    def __init__(self, episode_id: str = "") -> None:
        self._episode_id = episode_id
        self._attempts: dict[m.ServerName, m.ConnectFailed] = {}
        self._drifted: set[m.ToolDrifted] = set()
        self._begin(())

    def _begin(self, servers: tuple[m.ServerName, ...]) -> None:
        self._expected = set(servers)
        self._open: set[m.ServerName] = set()
        self._newly_disabled = False
        self._iteration = 0
        self._used: list[str] = []
        self._begin_reply(())

    def _begin_reply(self, calls: tuple[m.ToolCall, ...]) -> None:
        self._calls: dict[str, _Call] = {
            call.call_id: _Call(call.name, call.name.partition(".")[0], call.arguments) for call in calls
        }
        self._broken_by: str | None = None

    def feed(self, envelope: Envelope[Any]) -> list[Event]:
        """Return the events that `envelope` makes, in order; most envelopes make none or one."""
        body = envelope.body
        if isinstance(body, EpisodeStarted | EpisodeResumed):
            self._episode_id = body.episode_id
        turn = envelope.turn or (body.turns if isinstance(body, EpisodeEnded) else getattr(body, "turn", 0))
        moment = Moment(envelope.at, self._episode_id, turn)
        if isinstance(body, m.ToolDrifted) and self._is_known(body):
            return []
        own = [moment.event(line) for line in log_lines(body)]
        return [*own, *self._of_sequence(moment, body)]

    def _of_sequence(self, moment: Moment, body: object) -> list[Event]:
        """Return the events of a message that depend on earlier messages too."""
        if isinstance(body, _Connecting):
            return self._connecting(moment, body)
        if isinstance(body, _Calling):
            return self._calling(moment, body)
        if isinstance(body, m.IterationStarted):
            return self._begin_iteration(moment, body)
        if isinstance(body, m.TurnCompleted):
            return self._session_complete(moment, body.iterations, _action(body.answer))
        if isinstance(body, m.TurnFailed):
            return self._session_complete(moment, body.iterations, None)
        return []

    def _connecting(self, moment: Moment, body: _Connecting) -> list[Event]:
        match body:
            case m.RunTurn(servers=servers):
                self._begin(servers)
            case m.ConnectFailed(server=server):
                self._attempts[server] = body
            case m.SessionOpened(server=server, attempt=attempt):
                self._attempts.pop(server, None)
                self._expected.discard(server)
                self._open.add(server)
                if attempt > 1:
                    return [_retried(moment, server, attempt)]
            case m.McpDisabled(server=server, newly=newly):
                self._expected.discard(server)
                self._open.discard(server)
                self._newly_disabled |= newly
                disabled = [self._disabled(moment, body)] if newly else []
                return [*disabled, *self._without_tools(moment)]
            case never:
                assert_never(never)
        return []

    def _is_known(self, drift: m.ToolDrifted) -> bool:
        """Return whether this drift was logged already, and count it as logged.

        Every session of the episode records the same drift again.
        """
        known = drift in self._drifted
        self._drifted.add(drift)
        return known

    def _disabled(self, moment: Moment, body: m.McpDisabled) -> Event:
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
        return moment.warning("mcp_disabled", f"{what}: {error}", server_name=body.server, error=error)

    def _without_tools(self, moment: Moment) -> list[Event]:
        """Return an event if all servers have reported, none is open, and one was newly disabled."""
        if self._expected or self._open or not self._newly_disabled:
            return []
        self._newly_disabled = False
        return [moment.warning("mcp_disabled_fallback", "MCP disabled, continuing without tools")]

    def _calling(self, moment: Moment, body: _Calling) -> list[Event]:
        match body:
            case m.CompletionReceived(tool_calls=calls):
                self._begin_reply(tuple(map(named_call, calls)))
                return []
            case m.ToolCalled(server=server, tool=tool, arguments=arguments):
                call = self._calls[body.call_id] = _Call(f"{server}.{tool}", server)
                self._used.append(call.name)
                return [
                    moment.info(
                        "mcp_tool_call",
                        f"MCP tool call: {call.name}",
                        tool_name=call.name,
                        server_name=server,
                        arguments=arguments,
                        iteration=self._iteration,
                    )
                ]
            case m.ToolReturned():
                return self._returned(moment, body)
            case m.ToolTimedOut():
                self._broken_by = "timeout"
                name = self._name(body.call_id)
                message = f"Tool call timeout: {name}"
                return [
                    moment.warning("mcp_tool_timeout", message, tool_name=name, iteration=self._iteration)
                ]
            case m.ServerDied(failure=failure):
                self._broken_by = "server death"
                return [self._failed(moment, self._name(body.call_id), failure.cause)]
            case m.ToolRejected(name=name, error=error):
                return [self._rejected(moment, name, error, body.call_id)]
            case m.ToolDenied(name=name, reason=reason):
                return [self._failed(moment, name, f"denied: {reason}")]
            case m.ToolSkipped(reason=reason, refused=True):
                return [self._rejected(moment, self._name(body.call_id), reason, body.call_id)]
            case m.ToolSkipped():
                return [self._skipped(moment, body)]
            case never:
                assert_never(never)

    def _name(self, call_id: str) -> str:
        call = self._calls.get(call_id)
        return call_id if call is None else call.name

    def _returned(self, moment: Moment, body: m.ToolReturned) -> list[Event]:
        call = self._calls.get(body.call_id, _Call(body.call_id, ""))
        result = body.result
        completion = moment.info(
            "mcp_tool_result",
            f"MCP tool result: {call.name}",
            tool_name=call.name,
            server_name=call.server,
            result_type=type(result.content).__name__,
            result_length=len(str(result.content)),
            is_error=result.is_error,
            duration_ms=round(body.duration_s * 1000, 3),
            iteration=self._iteration,
        )
        if not result.is_error:
            return [completion]
        return [completion, self._failed(moment, call.name, result.error_message or "")]

    def _rejected(self, moment: Moment, name: str, error: str, call_id: str) -> Event:
        """Return the event of a call that was not sent.

        The event has the call's arguments, because no `mcp_tool_call` has logged them.
        """
        call = self._calls.get(call_id)
        failed = self._failed(moment, name, error)
        if call is None:
            return failed
        return replace(failed, fields={**failed.fields, "arguments": call.arguments})

    def _failed(self, moment: Moment, name: str, error: str) -> Event:
        # The error may begin with the same words as the event's text. Do not write them twice.
        error = error.removeprefix(_CALL_FAILED)
        return moment.warning(
            "mcp_tool_error",
            f"{_CALL_FAILED}{name} - {error}",
            tool_name=name,
            error=error,
            iteration=self._iteration,
        )

    def _skipped(self, moment: Moment, body: m.ToolSkipped) -> Event:
        name = self._name(body.call_id)
        return moment.warning(
            "mcp_tool_skipped",
            f"{_CALL_SKIPPED}{name} - {body.reason.removeprefix('Skipped: ')}",
            tool_name=name,
            reason=body.reason,
            after=self._broken_by,
            iteration=self._iteration,
        )

    def _begin_iteration(self, moment: Moment, body: m.IterationStarted) -> list[Event]:
        iteration, most = body.iteration, body.max_iterations
        first, self._iteration = self._iteration == 0, iteration
        started = moment.info(
            "mcp_session_started", f"MCP session started (max {most} iterations)", max_iterations=most
        )
        asking = moment.info(
            "mcp_iteration_start",
            f"Agent tool-calling iteration {iteration}/{most}",
            iteration=iteration,
            max_iterations=most,
        )
        return [started, asking] if first else [asking]

    def _session_complete(self, moment: Moment, iterations: int, action: object) -> list[Event]:
        if self._iteration == 0:
            return []
        count = len(self._used)
        return [
            moment.info(
                "mcp_session_complete",
                f"MCP session complete: {iterations} iterations, {count} tool calls",
                iterations=iterations,
                tool_calls_count=count,
                tools_used=sorted(set(self._used)),
                final_action=action,
            )
        ]


def _action(answer: object) -> object:
    """Return the field `action` of an answer that is an object, or any other answer as a whole."""
    return answer.get("action") if isinstance(answer, dict) else answer


def _retried(moment: Moment, server: str, attempt: int) -> Event:
    message = "MCP session retry successful"
    return moment.info("mcp_connect_retry_succeeded", message, server_name=server, attempt=attempt)


_RESERVED = {*vars(logging.makeLogRecord({})), "message", "asctime"}
"""Names that `logging` does not allow in `extra`."""


class LoggerObserver:
    """An observer that gives `logger` each event's text, with type and fields as the record's attributes.

    Args:
        logger: A logger, or any object with a logger's methods `info`, `warning` and `error`.
        episode_id: The episode's id in each record, until an `EpisodeStarted` gives another id.

    Attributes:
        logger: The logger.
    """

    def __init__(self, logger: logging.Logger, *, episode_id: str = "") -> None:
        self.logger = logger
        self._feed = EventFeed(episode_id)
        self._log = {"info": logger.info, "warning": logger.warning, "error": logger.error}

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        """Log the events that `envelope` makes."""
        del line
        for event in self._feed.feed(envelope):
            self._log[event.level](event.message, extra=_extra(event))


def _extra(event: Event) -> dict[str, object]:
    """Return the event's labels; a name that `logging` reserves gets a trailing underscore."""
    return {f"{name}_" if name in _RESERVED else name: value for name, value in event.labels().items()}
