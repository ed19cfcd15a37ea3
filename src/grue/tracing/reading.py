"""Open an episode's trace file and decode its messages."""

import functools
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, get_args

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.runtime.large_data import decode
from grue.runtime.supervisor import ActorFailed
from grue.runtime.trace.format import TraceLine
from grue.runtime.trace.reader import RecordedLine, Trace, TraceReader
from grue.runtime.trace.recorder import Envelope
from grue.tracing.facts import EpisodeEnded, Fact, registered_facts
from grue.tracing.unknown_facts import can_be_fact, tag_of, unknown_fact, with_hosts_fields

EpisodeBody: TypeAlias = m.AnyMessage | Fact | ActorFailed
"""The types of all messages that an episode's trace can hold."""

EpisodeEnvelope: TypeAlias = Envelope[EpisodeBody]
EpisodeTrace: TypeAlias = Trace[EpisodeBody]

NOTES = "trace"
"""The receiver of notes and facts."""

TRACE_FILE = "trace.jsonl"
"""Name of the trace in a run folder."""


def known_kinds() -> dict[str, type[Struct]]:
    """Return the classes of all messages by tag: grue's own, and the facts of the hosts that are loaded."""
    own = {str(kind.__struct_config__.tag): kind for kind in (*get_args(m.AnyMessage), ActorFailed)}
    return {**own, **registered_facts()}


def union_of(kinds: Iterable[type[Struct]]) -> Any:
    """Return the union of message classes, as msgspec takes it."""
    return functools.reduce(operator.or_, kinds)


class EpisodeReader(TraceReader[EpisodeBody]):
    """Yield an episode's envelopes in order, one line in memory at a time; `open_episode` makes one.

    Attributes:
        kinds: The classes of all messages by tag. Facts of hosts that are not loaded are not among them.
    """

    def __init__(self, path: Path) -> None:
        self.kinds = known_kinds()
        super().__init__(path, union_of(self.kinds.values()))

    def kind_of_line(self, line: RecordedLine[EpisodeBody]) -> type[Struct] | None:
        """Return the class of a line's message, from its tag; `None`: it has to be decoded first."""
        tag = line.tag
        kind = self.kinds.get(tag)
        # A fact of a host that is not loaded is read as data.
        return Fact if kind is None and line.line.receiver == NOTES and can_be_fact(tag) else kind

    def _body(self, line: TraceLine, written: bytes) -> EpisodeBody:
        try:
            body: EpisodeBody = decode(self._bodies, written)
        except msgspec.ValidationError:
            # Facts are notes. An unknown message from one actor to another is an error, because a replay
            # needs it.
            tag = tag_of(written) if line.receiver == NOTES else ""
            if tag in self.kinds or not can_be_fact(tag):
                raise
            return unknown_fact(written)
        return with_hosts_fields(body, written) if isinstance(body, Fact) else body

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
