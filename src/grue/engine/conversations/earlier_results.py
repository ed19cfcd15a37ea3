"""The whole results of tool calls in a conversation's earlier turns, for `read_result`.

A trace holds them, so only the place of each turn is remembered, and the trace is read when a model asks. A
runner without a trace keeps the newest results in memory, up to `KEPT_BYTES`.
"""

import threading
from collections.abc import Iterable
from pathlib import Path

import msgspec

from grue import messages as m
from grue.runtime.trace.format import REFERENCE_START
from grue.tracing.reading import TRACE_FILE, open_episode

KEPT_BYTES = 64 * 2**20
"""How much is kept of a conversation without a trace, as JSON."""

_SHORT = 100
"""A result of so few bytes is neither told by reference nor cleared."""

_TAG = "ToolReturned"


class EarlierResults:
    """Finds results of earlier turns by the ids of their calls. Thread-safe.

    Args:
        turns: The trace that each turn was recorded in, oldest turn first.
    """

    def __init__(self, turns: Iterable[tuple[int, Path]] = ()) -> None:
        self._turns: list[tuple[int, Path]] = [*turns]
        self._trace: Path | None = None
        self._kept: dict[m.CallId, tuple[int, m.ToolCallResult]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def turns(self) -> tuple[tuple[int, Path], ...]:
        """The trace that each turn was recorded in, oldest first."""
        return tuple(self._turns)

    def begin(self, turn: int, trace: Path | None) -> bool:
        """Note where a turn that begins is recorded; return whether that is new. `None`: nowhere."""
        self._trace = trace
        if trace is None or (turn, trace) in self._turns[-1:]:
            return False
        self._turns.append((turn, trace))
        return True

    def end(self, records: Iterable[m.ToolCallRecord]) -> None:
        """Keep the results of the turn that began last, if no trace does."""
        if self._trace is not None:
            return
        with self._lock:
            for record in records:
                size = len(msgspec.json.encode(record.result))
                if size <= _SHORT:
                    continue
                self._kept[record.call_id] = (size, record.result)
                self._bytes += size
            while self._bytes > KEPT_BYTES and self._kept:
                oldest = next(iter(self._kept))
                self._bytes -= self._kept.pop(oldest)[0]

    def find(self, call_id: m.CallId) -> m.ToolCallResult | None:
        """Return a result; `None`: it is not kept, or its trace is gone.

        Raises:
            TraceError: A trace is damaged.
        """
        with self._lock:
            kept = self._kept.get(call_id)
        if kept is not None:
            return kept[1]
        for trace in dict.fromkeys(trace for _, trace in reversed(self._turns)):
            turns = {turn for turn, of_turn in self._turns if of_turn == trace}
            found = _in_trace(trace, turns, call_id)
            if found is not None:
                return found
        return None

    def branch(self) -> "EarlierResults":
        """Return a copy that later turns do not share."""
        copy = EarlierResults(self._turns)
        with self._lock:
            copy._kept, copy._bytes = {**self._kept}, self._bytes
        return copy


def _in_trace(trace: Path, turns: set[int], call_id: m.CallId) -> m.ToolCallResult | None:
    """Return the last result of a call in these turns of a trace."""
    if not (trace / TRACE_FILE if trace.is_dir() else trace).exists():
        return None
    found: m.ToolCallResult | None = None
    written = msgspec.json.encode(call_id)
    for line in open_episode(trace).lines():
        if line.line.turn in turns and line.tag == _TAG and _may_hold(line.line.body, written):
            body = line.envelope().body
            if isinstance(body, m.ToolReturned) and body.call_id == call_id:
                found = body.result
    return found


def _may_hold(body: msgspec.Raw, written: bytes) -> bool:
    """Return whether a message may be about this call: it says so, or its text is in a file of its own."""
    text = bytes(body)
    return written in text or text.startswith(REFERENCE_START)
