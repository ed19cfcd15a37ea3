"""Made-up messages, an observer that keeps what it gets, and trace files of such messages."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from grue.runtime.trace.file import TraceOptions, TraceWriter
from grue.runtime.trace.recorder import Envelope, Recorder


class Said(Struct, frozen=True, tag=True):
    text: str
    extra: object = None


class Counted(Struct, frozen=True, tag=True):
    number: int


Body = Said | Counted


class Seen:
    """An observer that keeps all envelopes and lines that it gets."""

    def __init__(self, recorder: Recorder) -> None:
        self.envelopes: list[Envelope[Any]] = []
        self.lines: list[bytes] = []
        recorder.add(self)

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        self.envelopes.append(envelope)
        self.lines.append(line)


def shown(body: Any, **secrets: str) -> tuple[Envelope[Any], bytes]:
    """Return the envelope and line that observers get of `body`; the sender's envelope is not redacted."""
    recorder = Recorder(secrets=secrets)
    seen = Seen(recorder)
    envelope = recorder.record(body, sender="x", receiver="y")
    assert envelope.body is body
    assert envelope.redacted is False
    return seen.envelopes[0], seen.lines[0]


def write(path: Path, *bodies: Any, options: TraceOptions | None = None) -> list[Envelope[Any]]:
    """Write a trace of the episode `e-1`, and return the recorded envelopes."""
    recorder = Recorder()
    writer = TraceWriter(path, episode="e-1", started_at=1_700_000_000.0, options=options)
    recorder.add(writer)
    recorded = [recorder.record(body, sender="x", receiver="y", turn=1, cause=None) for body in bodies]
    writer.close()
    writer.close()
    return recorded


def rounded(envelope: Envelope[Any]) -> Envelope[Any]:
    """Return the envelope with times rounded as in a trace file."""
    return msgspec.structs.replace(envelope, t=round(envelope.t, 6), at=round(envelope.at, 6))


def recording_program(program: str, path: Path, *, resume: bool = False) -> Sequence[str]:
    """Return the command line of a program that can use `writer`, which writes to `path`, and `recorder`."""
    begin = f"""
import os, sys, warnings
from pathlib import Path
sys.path[:0] = {sys.path!r}
from plain_messages import *
from grue.errors import TraceError
path = Path({str(path)!r})
writer = TraceWriter(path, episode="e-1", resume={resume})
recorder = Recorder()
recorder.resume(after_seq=writer.last_seq, after_t=writer.last_t)
recorder.add(writer)
"""
    return (sys.executable, "-c", begin + program)
