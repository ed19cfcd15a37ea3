"""The interface of an engine, which makes attempts in other processes and reports how they ended."""

import queue
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from grue.fleet.attempt import Attempted, Task
from grue.fleet.broker import Costs

LossKind: TypeAlias = Literal["died", "timed_out", "cancelled", "error", "unable"]


class Lost(Struct, frozen=True):
    """Why an attempt has no result from its worker."""

    # `died`: killed, crashed or sent nonsense; `error`: the attempt could not be made or recorded; `unable`:
    # no worker can be started, or the engine has failed
    kind: LossKind
    why: str = ""  # empty for `cancelled`
    after_s: float = 0.0  # the time limit that a timed-out attempt exceeded


Ended: TypeAlias = tuple[Task, Attempted | Lost]


class Engine(Protocol):
    """Makes attempts at episodes, in worker processes: on this machine (`local.py`) or with Ray."""

    @property
    def slots(self) -> int:
        """How many attempts the engine can make at the same time."""

    @property
    def ended(self) -> "queue.SimpleQueue[Ended]":
        """The queue that gets one `Ended` for each submitted job, when the job's attempt has ended."""

    def costs(self) -> Costs:
        """Return the cost of all requests so far; if requests have no limits, only that of earlier runs."""

    def submit(self, job: Task) -> None:
        """Queue an attempt for the next free slot. If the engine has failed, report `Lost("unable")`."""

    def withdraw(self) -> None:
        """Remove the queued attempts, and report each as `Lost("cancelled")`. Running attempts go on."""

    def cancel(self) -> None:
        """End all attempts. Each one that was still running or queued is reported as `Lost("cancelled")`."""

    def close(self) -> None:
        """End all attempts, and the processes that the engine has started."""
