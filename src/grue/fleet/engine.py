"""The interface of an engine, which makes attempts somewhere and reports how they ended.

An engine counts no attempts and tries nothing again; the driver does. All state is in the folder, so a fleet
that was begun with one engine can be finished with another.
"""

import queue
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from grue.fleet.attempt import Attempted, Job
from grue.fleet.broker import Amount

LossKind: TypeAlias = Literal["died", "timed_out", "cancelled", "error"]


class Lost(Struct, frozen=True):
    """An attempt that did not end by itself.

    Attributes:
        kind: `died`: its worker process was killed or crashed. `timed_out`: it took longer than allowed.
            `cancelled`: by the driver. `error`: the worker cannot work at all; `why` says why.
        why: A sentence about it.
    """

    kind: LossKind
    why: str = ""


class Costs(Struct, frozen=True):
    """The cost of a fleet's requests so far, and the number of answers that reported an overload."""

    spent: Amount = Amount()
    overloads: int = 0


Ended: TypeAlias = tuple[Job, Attempted | Lost]


class Engine(Protocol):
    """Makes attempts in other processes."""

    @property
    def slots(self) -> int:
        """How many attempts it makes at one time."""

    @property
    def ended(self) -> "queue.SimpleQueue[Ended]":
        """Gets each job once, with how its attempt ended."""

    def costs(self) -> Costs:
        """Return what requests have cost so far."""

    def submit(self, job: Job) -> None:
        """Make an attempt as soon as a slot is free."""

    def cancel(self) -> None:
        """End all attempts; each is `Lost` as cancelled, unless it has ended."""

    def close(self) -> None:
        """Free everything. Blocks until no process of it is left."""
