"""Read an episode's trace file as the messages it holds."""

import os
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from grue.facts import EpisodeEnded, HostFact
from grue.messages import AnyMessage
from grue.runtime.supervisor import ActorFailed
from grue.runtime.trace import Envelope
from grue.runtime.trace_reader import Trace, TraceReader

EpisodeBody: TypeAlias = AnyMessage | HostFact | ActorFailed
"""The types of all messages that an episode's trace can hold."""

EpisodeEnvelope: TypeAlias = Envelope[EpisodeBody]
EpisodeTrace: TypeAlias = Trace[EpisodeBody]

TRACE_FILE = "trace.jsonl"
"""Name of the trace in a run folder."""


class EpisodeReader(TraceReader[EpisodeBody]):
    """Yield an episode's envelopes in order, one line in memory at a time; `open_episode` makes one."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, EpisodeBody)

    def follow(
        self,
        stop: Callable[[], bool],
        poll_s: float = 0.2,
        *,
        over: Callable[[EpisodeEnvelope], bool] = lambda envelope: isinstance(envelope.body, EpisodeEnded),
    ) -> Iterator[EpisodeEnvelope]:
        """Yield what is in the file, then what is appended to it, until the episode has ended.

        Args:
            stop: Called whenever there is nothing more to read; the iteration ends if it returns true.
            poll_s: Seconds between two looks at the file.
            over: Returns whether the last envelope ends the episode, if nothing follows it.
        """
        return super().follow(stop, poll_s, over=over)


def open_episode(path: str | PathLike[str]) -> EpisodeReader:
    """Open a trace file, or the one of a run folder, to read it a line at a time.

    Raises:
        TraceError: The file is missing, not a trace, or of a later format; while it is read: it is damaged.
    """
    path = Path(path)
    return EpisodeReader(path / TRACE_FILE if os.path.isdir(path) else path)  # noqa: PTH112 - never raises


def read_episode(path: str | PathLike[str]) -> EpisodeTrace:
    """Read a whole trace file, or the one of a run folder, into memory.

    Raises:
        TraceError: The file is missing, not a trace, of a later format, or damaged.
    """
    reader = open_episode(path)
    envelopes = tuple(reader)
    return Trace(reader.header, envelopes, reader.cut_short)
