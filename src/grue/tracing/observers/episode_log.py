"""The two logs of an episode: `episode.log` for people, one line each, and `events.jsonl` for programs.

```
[INFO] Turn 47 Iteration 1: Agent calling tool thoughtbox.think
[DEBUG] Turn 47 Iteration 1: Tool arguments: {"thought": "I should explore..."}
[INFO] Turn 47 Iteration 1: Tool result received (0.3s)
```

Every line reads `[LEVEL] Turn N: ...` or `[LEVEL] Turn N Iteration I: ...`; events outside turns have turn 0.
Lines that the requirements specify are written word for word. Any other event, such as a failed call or the
end of the episode, is a line with its own level and text. Two events that only repeat a neighbouring line are
left out.

`events.jsonl` has one JSON object a line.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from grue.runtime.files import LineFile
from grue.runtime.safe_text import printable
from grue.runtime.trace.recorder import Envelope
from grue.tracing.observers.events import Event, EventFeed


class JsonLog:
    """An observer that writes `event_type`, `level`, `message`, `time`, `episode_id`, `turn` and the fields.

    The time is ISO 8601 in UTC. Every line is flushed before the next message is recorded.

    Raises:
        TraceError: The file cannot be created or written.

    Source: R7.1-3
    """

    def __init__(self, path: Path, *, episode_id: str = "") -> None:
        self._feed = EventFeed(episode_id)
        self._file = LineFile(path, "event log")
        self._encoder = msgspec.json.Encoder()

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        """Append the events that `envelope` makes."""
        del line
        for event in self._feed.feed(envelope):
            self._file.write(self._encoder.encode(_entry(event)))

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self._file.close()


def _entry(event: Event) -> dict[str, object]:
    time = datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds")
    labels = event.labels()
    return {
        "event_type": labels.pop("event_type"),
        "level": event.level,
        "message": event.message,
        "time": time.replace("+00:00", "Z"),
        **labels,
    }


ARGUMENTS_LIMIT = 2000
"""Longest JSON text of a call's arguments in a line, in characters; the trace has the whole."""

_WITHOUT_A_LINE = {"mcp_iteration_start", "mcp_no_content"}


class EpisodeLog:
    """An observer that writes an episode's log for human readers.

    Raises:
        TraceError: The file cannot be made or written.
    """

    def __init__(self, path: Path, *, episode_id: str = "") -> None:
        self._feed = EventFeed(episode_id)
        self._file = LineFile(path, "episode log")
        self._skipping: tuple[int, object] | None = None

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        """Append the lines of the events that `envelope` makes."""
        del line
        for event in self._feed.feed(envelope):
            for text in self._lines(event):
                self._file.write(text.encode())

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self._file.close()

    def _lines(self, event: Event) -> list[str]:
        match event.event_type:
            case "mcp_tool_skipped" if event.fields["after"]:
                return self._skipped(event)
            case "mcp_tool_call":
                arguments = json.dumps(event.fields["arguments"], ensure_ascii=False)
                return [
                    _line("INFO", event, f"Agent calling tool {event.fields['tool_name']}"),
                    _line("DEBUG", event, f"Tool arguments: {printable(arguments, ARGUMENTS_LIMIT)}"),
                ]
            case "mcp_tool_result":
                return [_line("INFO", event, f"Tool result received ({_seconds(event):.1f}s)")]
            case "mcp_session_complete":
                iterations, calls = event.fields["iterations"], event.fields["tool_calls_count"]
                counts = f"({iterations} iterations, {calls} tool calls)"
                return [_line("INFO", event, f"MCP session complete {counts}")]
            case "mcp_disabled_fallback":
                return [_line("INFO", event, "Continuing without MCP tools")]
            case silent if silent in _WITHOUT_A_LINE:
                return []
            case _:
                return [_line(event.level.upper(), event, event.message)]

    def _skipped(self, event: Event) -> list[str]:
        """Log once per batch that the rest of it is skipped."""
        batch = (event.turn, event.fields["iteration"])
        if batch == self._skipping:
            return []
        self._skipping = batch
        text = f"Skipping remaining tools in batch after {event.fields['after']}"
        return [f"[INFO] Turn {event.turn}: {text}"]


def _line(level: str, event: Event, text: str) -> str:
    iteration = event.fields.get("iteration")
    where = f"Turn {event.turn}" if iteration is None else f"Turn {event.turn} Iteration {iteration}"
    return f"[{level}] {where}: {printable(text)}"


def _seconds(event: Event) -> float:
    milliseconds = event.fields["duration_ms"]
    return milliseconds / 1000 if isinstance(milliseconds, int | float) else 0.0
