"""A trace file as its writer leaves it, a line at a time, at any instant readable."""

from pathlib import Path
from typing import Any

import msgspec
from recorded_turns import STARTED_AT, Tape

from grue.runtime.trace.format import FORMAT, TraceHeader
from grue.runtime.trace.recorder import Envelope
from grue.tracing.reading import EpisodeReader, open_episode


class TraceFile:
    """An observer that writes an episode's file; flushed with every line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        header = TraceHeader(format=FORMAT, episode="ep-1", started_at=STARTED_AT)
        path.write_bytes(msgspec.json.encode(header) + b"\n")

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        """Append one envelope."""
        del envelope
        with self.path.open("ab") as file:
            file.write(line + b"\n")

    @property
    def lines(self) -> list[str]:
        """The envelopes' lines, as they stand in the file."""
        return self.path.read_text(encoding="utf-8").split("\n")[1:-1]

    def cut(self, count: int) -> None:
        """Take the last bytes away, as a kill in the middle of a write does."""
        self.path.write_bytes(self.path.read_bytes()[:-count])

    def read(self) -> EpisodeReader:
        """Open it for reading."""
        return open_episode(self.path)


class Chain(Tape):
    """A tape on which each message is caused by the one before it, as a request's reply is."""

    def say(self, *bodies: Any, turn: int = 0, sender: str = "agent", receiver: str = "trace") -> None:
        for body in bodies:
            cause = len(self.envelopes) or None
            self.recorder.record(body, sender=sender, receiver=receiver, cause=cause, turn=turn)
