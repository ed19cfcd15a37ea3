"""Work on megabytes in steps of a few milliseconds, and let other threads run in between.

Most calls into C hold the GIL until they return, and so block the event loop even from another thread.
Counting and searching are therefore loops of short calls. Encoding, decoding or copying a message stays one
call: it takes about a millisecond per megabyte. An event loop releases the GIL several times between two
callbacks, and may wait 5 ms for it each time, so `let_others_run` is called between two steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from time import sleep
from typing import Any

STEP = 2**18  # how many bytes or characters one step handles
JOINED_AT_ONCE = 2**20  # fewer bytes are joined in the event loop: starting a thread takes as long
LONG = 131_072  # work on at least this many bytes of JSON is done in a thread
_ASIDE_S = 20e-6


def let_others_run() -> None:
    """Let another thread have the GIL. Call this between two steps of long work."""
    # `sleep(0)` would not help: this thread would take the GIL again before the other is awake.
    sleep(_ASIDE_S)


def steps(end: int, step: int = 0) -> Iterator[int]:
    """Yield the numbers of `range(0, end, step or STEP)`; let other threads run between two of them."""
    for at in range(0, end, step or STEP):
        if at:
            let_others_run()
        yield at


def count_of(data: str | bytes, marks: str) -> int:
    """Return how many characters of `data` occur in `marks`, which has only ASCII characters."""
    each: Any = marks if isinstance(data, str) else marks.encode()
    if len(data) <= STEP:
        return sum(map(data.count, each))
    return sum([data.count(mark, at, at + STEP) for at in steps(len(data)) for mark in each])


ENDS_BYTES = 4096  # how many bytes of a cut line are kept from its beginning, and from its end


class LineTooLongError(Exception):
    """A line, or event, is longer than `max_line_bytes`, so nothing more can be read."""


class CutLineError(Exception):
    """A line, or event, of `size` bytes is longer than `max_message_bytes`. Reading continues after it."""

    def __init__(self, head: bytes, tail: bytes, size: int) -> None:
        super().__init__(f"a message of {size} bytes")
        self.head = head
        self.tail = tail
        self.size = size


class LineBuffer:
    """Takes chunks, returns lines. Keeps only both ends of a line over `max_message_bytes`.

    A `max_message_bytes` below 8 KiB counts as 8 KiB.
    """

    def __init__(self, max_line_bytes: int, max_message_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._max_message_bytes = max(max_message_bytes, 2 * ENDS_BYTES)
        self._received = bytearray()
        self._searched = 0
        self._head: bytes | None = None
        self._dropped = 0

    def feed(self, chunk: bytes) -> None:
        """Add a chunk."""
        self._received += chunk

    def take(self) -> bytes | None:
        """Return the next complete line, without its newline; `None`: none has arrived yet.

        Raises `CutLineError`, after which reading can go on, or `LineTooLongError`.
        """
        found = self._end(self._received, self._searched)
        if found is not None:
            return self._cut_off(found[0], skip=found[1] - found[0])
        if self._dropped + len(self._received) > self._max_line_bytes:
            raise LineTooLongError(f"a line longer than {self._max_line_bytes} bytes")
        if len(self._received) > self._max_message_bytes or self._head is not None:
            self._drop_middle()
        self._searched = len(self._received)
        return None

    def rest(self) -> bytes | None:
        """Return the incomplete last line; `None`: no bytes. Raises `CutLineError` as `take` does."""
        if not self._received and self._head is None:
            return None
        return self._cut_off(len(self._received), skip=0)

    def _end(self, received: bytearray, start: int) -> tuple[int, int] | None:
        newline = received.find(b"\n", start)
        return None if newline < 0 else (newline, newline + 1)

    def _drop_middle(self) -> None:
        if self._head is None:
            self._head = bytes(self._received[:ENDS_BYTES])
        surplus = max(0, len(self._received) - ENDS_BYTES)
        del self._received[:surplus]
        self._dropped += surplus

    def _cut_off(self, length: int, *, skip: int) -> bytes:
        whole, cut = b"", None
        if self._head is None and length <= self._max_message_bytes:
            with memoryview(self._received) as received, received[:length] as line:
                whole = line.tobytes()
        else:
            head = bytes(self._received[:ENDS_BYTES]) if self._head is None else self._head
            tail = bytes(self._received[max(0, length - ENDS_BYTES) : length])
            cut = CutLineError(head, tail, self._dropped + length)
        del self._received[: length + skip]
        self._searched, self._head, self._dropped = 0, None, 0
        if cut is not None:
            raise cut
        return whole


class EventBuffer(LineBuffer):
    """Returns server-sent events, without the empty line at the end.

    Drops comments between events; may keep a comment that is in the same chunk as the event before it.
    """

    def feed(self, chunk: bytes) -> None:
        """Add a chunk."""
        super().feed(chunk)
        # Search only after a newline, which may complete a comment. Otherwise a long comment would be
        # searched again at each of its chunks.
        if self._head is None and b"\n" in chunk:
            ignored = _IGNORED.match(self._received)
            if ignored is not None:
                del self._received[: ignored.end()]
                self._searched = 0

    def _end(self, received: bytearray, start: int) -> tuple[int, int] | None:
        found = _EVENT_END.search(received, max(0, start - 3))
        return None if found is None else found.span()


_EVENT_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_IGNORED = re.compile(rb"(?>(?>:[^\r\n]*)?\r?\n)+")
