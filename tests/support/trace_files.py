"""A trace file that a test writes line by line, and can read or cut at any time."""

from pathlib import Path
from typing import Any

import msgspec
from recorded_turns import STARTED_AT, Tape

from grue.runtime.trace.format import FORMAT, TraceHeader
from grue.runtime.trace.recorder import Envelope
from grue.tracing.reading import EpisodeReader, open_episode


class TraceFile:
    """An observer that writes an episode's trace file. Each line is flushed."""

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
        """The lines of the file, without the header."""
        return self.path.read_text(encoding="utf-8").split("\n")[1:-1]

    def cut(self, count: int) -> None:
        """Remove the last `count` bytes, as if the process had been killed during a write."""
        self.path.write_bytes(self.path.read_bytes()[:-count])

    def read(self) -> EpisodeReader:
        """Open the file for reading."""
        return open_episode(self.path)


class Chain(Tape):
    """A tape on which each message is caused by the previous one."""

    def say(self, *bodies: Any, turn: int = 0, sender: str = "agent", receiver: str = "trace") -> None:
        for body in bodies:
            cause = len(self.envelopes) or None
            self.recorder.record(body, sender=sender, receiver=receiver, cause=cause, turn=turn)
