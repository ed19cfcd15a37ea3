"""`events.jsonl`: the events of an episode for programs, one JSON object a line."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from grue.runtime.trace.line_file import LineFile
from grue.runtime.trace.recorder import Envelope
from grue.tracing.observers.event import Event
from grue.tracing.observers.events import EventFeed


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
