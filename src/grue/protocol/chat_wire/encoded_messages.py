"""The encoded messages of a conversation, joined as far as they no longer change.

A request holds all messages, so joining them one by one would cost every request more than the one before
it. Here older messages are joined once and stay joined: however long the conversation is, a request joins a
few parts only. It also moves the cache markers from message to message.
"""

from collections.abc import Sequence

from grue.protocol.chat_wire.wire_format import EPHEMERAL
from grue.protocol.json_text import to_json
from grue.runtime.large_data import STEP

MARK = b',"cache_control":' + to_json(EPHEMERAL)
"""A cache marker within an encoded message."""


class EncodedMessages:
    """Messages in order, the newest marked ones with their markers.

    Args:
        room: How many messages may have a marker. It may be lowered before the first one is marked.

    Attributes:
        size: Bytes of all messages.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self.size = 0
        # What stands before, between and after the marked messages.
        self._between: list[list[bytes]] = [[]]
        self._marked: list[bytes] = []

    @property
    def parts(self) -> list[bytes]:
        """All messages, joined by commas to a few parts."""
        parts = [*self._between[0]]
        for marked, after in zip(self._marked, self._between[1:], strict=True):
            parts += (marked, *after)
        return parts

    def add(self, messages: Sequence[bytes], *, marked: bool = False) -> None:
        """Add messages; if `marked` is set, the last one of them that has a marker is one of the newest.

        A marker is cut out of its message when enough newer ones have come. If the message were encoded again
        without one, more than the marker would differ: a text without one is a string, and a text with one is
        a list of parts.
        """
        places = [at for at, message in enumerate(messages) if marked and MARK in message]
        for at, message in enumerate(messages):
            self.size += len(message)
            if places and at == places[-1]:
                self._marked.append(message)
                self._between.append([])
            else:
                _append(self._between[-1], message)
        if len(self._marked) > self.room:
            self._unmark_oldest()

    def _unmark_oldest(self) -> None:
        message = self._marked.pop(0).replace(MARK, b"")
        for part in (message, *self._between.pop(1)):
            _append(self._between[0], part)


def _append(parts: list[bytes], part: bytes) -> None:
    """Add a part, and join parts so that each is at least twice as long as the next, or very long.

    So the number of parts grows with the logarithm of the messages, and each message is copied as often. Very
    long parts stay apart: copying them would block other threads.
    """
    parts.append(part)
    while len(parts) > 1 and len(parts[-2]) < 2 * len(parts[-1]) and len(parts[-2]) + len(parts[-1]) < STEP:
        last = parts.pop()
        parts[-1] = b",".join((parts[-1], last))
