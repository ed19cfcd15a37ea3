"""Decide which workers may start a server process on one machine: a pure state machine.

An episode with two servers holds a place for the first while it asks for the second. If every worker did that
with the last free places, all would wait for ever. So a worker's first server reserves all the places that an
episode needs (`an_episode`). A worker whose episode starts more may have to wait, for 30 s (`accounts.py`).
"""

from collections import Counter

from msgspec import Struct

from grue.errors import FleetError
from grue.field_checks import check_settings


class ServerCap(Struct, frozen=True, kw_only=True):
    """The cap on server processes of a machine.

    Attributes:
        at_once: The most server processes at one time; `None`: no cap.
        an_episode: The most server processes that an episode needs at one time.

    Raises:
        FleetError: `an_episode` is larger than `at_once`, or below 1.
    """

    at_once: int | None = None
    an_episode: int = 1

    def __post_init__(self) -> None:
        check_settings(self, any_number=self.__struct_fields__)
        if self.an_episode < 1 or (self.at_once is not None and self.at_once < self.an_episode):
            raise FleetError(
                f"servers = {self.at_once} and servers_an_episode = {self.an_episode}: an episode needs at"
                " least one place, and all its places have to fit."
            )


class ServerPlaces:
    """The places for server processes on one machine, and the workers that hold them."""

    def __init__(self, cap: ServerCap) -> None:
        self._cap = cap
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """How many places are taken by server processes now."""
        return self._held.total()

    def wants_too_many(self, worker: str) -> bool:
        """Return whether one more server process would be too many for the episode of this worker."""
        return self._held[worker] >= self._cap.an_episode

    def take(self, worker: str) -> bool:
        """Take a place for a server process of a worker; return `False` if the worker has to wait."""
        if self._cap.at_once is not None:
            claim = self._claim(self._held[worker] + 1)
            others = sum(self._claim(count) for name, count in self._held.items() if name != worker)
            if others + claim > self._cap.at_once:
                return False
        self._held[worker] += 1
        return True

    def leave(self, worker: str) -> None:
        """Free one place of a worker."""
        self._held[worker] -= 1
        if self._held[worker] <= 0:
            del self._held[worker]

    def _claim(self, count: int) -> int:
        """Return how many places a worker with `count` servers claims: 0, or at least `an_episode`."""
        return max(count, self._cap.an_episode) if count else 0
