"""The turns and conversations that a runner has under way, so that none of them is resumed meanwhile.

A trace does not tell a turn that is running from one whose process was killed. This process knows which of
its turns are running; the lock of the trace file keeps other processes out.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from grue.errors import NothingToResume

if TYPE_CHECKING:
    from grue.engine.kept_conversation import KeptConversation


class TurnsUnderWay:
    """The turns of a runner that are running. Thread-safe.

    Attributes:
        conversations: The conversations that the runner's turns have continued, by id, as long as the host
            keeps them.
        resuming: Held while it is found out which turn is to be resumed, so that two callers do not find the
            same one.
    """

    def __init__(self) -> None:
        self.conversations: WeakValueDictionary[str, KeptConversation] = WeakValueDictionary()
        self._running: Counter[int] = Counter()
        self.resuming = threading.Lock()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def running(self, turn: int) -> Iterator[None]:
        """Count a turn as running meanwhile."""
        self.begin(turn)
        try:
            yield
        finally:
            self.end(turn)

    def begin(self, turn: int) -> None:
        """Count a turn as running, until `end`."""
        with self._lock:
            self._running[turn] += 1

    def end(self, turn: int) -> None:
        """Count a turn as ended."""
        with self._lock:
            self._running[turn] -= 1
            if not self._running[turn]:
                del self._running[turn]  # a zero for each turn would be kept as long as the runner

    def require_ended(self, turn: int) -> None:
        """Check that no turn with this number is running.

        Raises:
            NothingToResume: One is.
        """
        if self._running[turn] > 0:
            raise NothingToResume(f"Turn {turn} is running in this process. Wait for its end.")
