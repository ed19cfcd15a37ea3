"""Read an episode's trace file as the messages it holds."""

from pathlib import Path
from typing import TypeAlias

from grue.facts import HostFact
from grue.messages import AnyMessage
from grue.runtime.supervisor import ActorFailed
from grue.runtime.trace import Envelope, Trace, read_trace

EpisodeBody: TypeAlias = AnyMessage | HostFact | ActorFailed
"""Everything that an episode's trace can hold: its schema."""

EpisodeEnvelope: TypeAlias = Envelope[EpisodeBody]
EpisodeTrace: TypeAlias = Trace[EpisodeBody]


def read_episode(path: Path) -> EpisodeTrace:
    """Read a whole trace file.

    Raises:
        TraceError: The file is missing, is no trace, is of a later format, or is damaged inside.
    """
    return read_trace(path, EpisodeBody)
