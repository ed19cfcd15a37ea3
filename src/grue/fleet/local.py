"""The local engine: warm worker processes on this machine, one episode at a time in each.

pebble keeps the processes: it replaces one that dies, ends one whose episode takes too long, and recycles
each after 200 episodes. An episode runs on its process's main thread, so that signals work there.
"""

import concurrent.futures
import contextlib
import functools
import importlib
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import queue
import sys
import threading
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from grue.errors import FleetError, MissingDependencyError
from grue.fleet.attempt import Attempted, Job, run_attempt
from grue.fleet.broker import Limits
from grue.fleet.broker_server import BrokerServer
from grue.fleet.engine import Costs, Ended, Lost
from grue.fleet.folder import FleetFolder
from grue.runtime.interrupts import born_without_interrupts, ignore_interrupts

if TYPE_CHECKING:
    from pebble import ProcessPool

    from grue.fleet.broker_link import BrokerLink

EPISODES_A_WORKER = 200
"""A worker is replaced after so many episodes, so that what a work leaks does not add up."""

_PRELOADED = ("grue.fleet.attempt", "grue.runner", "grue.actors.llm", "grue.mcp_transport.process_wire")

_MOST_BROKEN = 50
"""If the pool breaks so often without an attempt in between, the workers cannot work at all."""

_link: "list[BrokerLink]" = []


class LocalEngine:
    """Makes attempts in worker processes.

    Args:
        folder: The fleet's folder, for the ledger.
        limits: What all requests may take together.
        workers: Number of processes.
        episode_timeout_s: Time limit of an attempt; `None`: none.

    Raises:
        MissingDependencyError: pebble is not installed.
        FleetError: The ledger cannot be read or written.
    """

    def __init__(
        self, folder: FleetFolder, limits: Limits, workers: int, *, episode_timeout_s: float | None = None
    ) -> None:
        try:
            from pebble import ProcessPool
        except ImportError as error:
            raise MissingDependencyError(
                "A fleet needs the package pebble. Install it with: pip install 'grue[fleet]'"
            ) from error
        self.slots = workers
        self.ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._timeout_s = episode_timeout_s
        self._stack = contextlib.ExitStack()
        self._broker = self._stack.enter_context(BrokerServer(folder, limits))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([name for name in _PRELOADED if _can_import(name)])
        multiprocessing.resource_tracker.ensure_running()  # it would lift the block below when it starts
        with born_without_interrupts():
            multiprocessing.forkserver.ensure_running()
        self._new_pool = functools.partial(
            ProcessPool,
            max_workers=workers,
            max_tasks=EPISODES_A_WORKER,
            initializer=begin_work,
            initargs=(self._broker.address, limits, list(sys.path)),
            context=context,
        )
        self._pool = self._new_pool()
        self._lock = threading.Lock()
        self._closed = False
        self._broken = 0
        self._futures: dict[int, concurrent.futures.Future[Attempted]] = {}

    def costs(self) -> Costs:
        """Return what requests have cost so far."""
        broker = self._broker.accounts.broker
        return Costs(broker.spent, broker.overloads)

    def submit(self, job: Job) -> None:
        """Make an attempt as soon as a process is free.

        pebble's pool breaks if a worker is killed while none has a task: then it is replaced.
        """
        with self._lock:
            if self._closed:
                self.ended.put((job, Lost("cancelled")))
                return
            schedule = functools.partial(_schedule, job, self._timeout_s)
            try:
                future = schedule(self._pool)
            except RuntimeError:
                self._stop_pool()
                self._pool = self._new_pool()
                future = schedule(self._pool)
        self._futures[id(future)] = future
        future.add_done_callback(functools.partial(self._done, job))

    def cancel(self) -> None:
        """End all attempts."""
        for future in list(self._futures.values()):
            future.cancel()

    def close(self) -> None:
        """End all processes. Blocks until they are gone."""
        with self._lock:
            self._closed = True
            self._stop_pool()
        self._stack.close()

    def _stop_pool(self) -> None:
        self._pool.stop()  # type: ignore[no-untyped-call]  # pebble has no annotation there
        self._pool.join()

    def _done(self, job: Job, future: "concurrent.futures.Future[Attempted]") -> None:
        self._futures.pop(id(future), None)
        if _never_began(future) and self._broken < _MOST_BROKEN:
            # A thread of its own, because this one belongs to the pool that is to be stopped.
            self._broken += 1
            threading.Thread(target=self.submit, args=(job,), daemon=True).start()
            return
        outcome = _outcome(future, self._timeout_s)
        self._broken = 0
        self.ended.put((job, outcome))


def _schedule(
    job: Job, timeout_s: float | None, pool: "ProcessPool"
) -> "concurrent.futures.Future[Attempted]":
    future: concurrent.futures.Future[Attempted] = pool.schedule(run_attempt, args=(job,), timeout=timeout_s)
    return future


def _never_began(future: "concurrent.futures.Future[Attempted]") -> bool:
    """Whether the pool has broken before a worker took the job."""
    return not future.cancelled() and isinstance(future.exception(), BrokenProcessPool)


def _outcome(future: "concurrent.futures.Future[Attempted]", timeout_s: float | None) -> Attempted | Lost:
    from pebble import ProcessExpired

    try:
        return future.result()
    except (concurrent.futures.CancelledError, KeyboardInterrupt):
        return Lost("cancelled")
    except TimeoutError:
        return Lost("timed_out", f"the episode did not end within {timeout_s:g} s")
    except ProcessExpired as error:
        return Lost("died", f"its worker process ended with status {error.exitcode}")
    except FleetError as error:
        return Lost("error", str(error))
    except Exception as error:  # noqa: BLE001 - anything else is reported to the driver, which says it
        return Lost("error", f"{type(error).__name__}: {error}")


def begin_work(address: str, limits: Limits, path: list[str]) -> None:
    """Prepare a worker process: connect it to the broker, and end it when the driver is gone."""
    from grue.fleet.broker_link import BrokerLink
    from grue.llm_transport.request_gate import set_request_gate
    from grue.processes.server_gate import set_server_gate

    sys.path[:] = path
    # Ctrl-C at a terminal reaches all processes. The driver decides what it means.
    ignore_interrupts()
    link = BrokerLink(address, on_loss=_leave)
    _link[:] = [link]
    set_request_gate(link if limits.on_requests else None)
    set_server_gate(link.servers if limits.servers.at_once is not None else None)


def _leave() -> None:
    # The guard of each server process ends it when this process is gone.
    os._exit(1)


def _can_import(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def default_workers() -> int:
    """Return how many cores this process may use."""
    available: Any = getattr(os, "sched_getaffinity", None)
    return len(available(0)) if available else os.cpu_count() or 1
