# ruff: noqa: D102 - `Engine` says what the methods do
"""The local engine: worker processes on this machine, each of which does one task after another."""
# One thread serves all workers. It reads only what has arrived of a report, so that no worker can block it.
# Each worker has its own channel, so that none can damage the reports of another.

import contextlib
import errno
import importlib
import math
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from grue.errors import MissingDependencyError
from grue.fleet.attempt import Ended, Lost, Task
from grue.fleet.broker import Costs, Limits
from grue.fleet.broker_server import BrokerServer, folder_for_sockets
from grue.fleet.folder import FleetFolder
from grue.fleet.worker import READY, Place, WorkerSaid, work
from grue.runtime.loops.interrupts import born_without_interrupts
from grue.runtime.processes.guard import guard
from grue.transports.mcp.sdk_version import require_mcp

_PRELOADED = (
    "grue.fleet.worker",
    "grue.engine.runner",
    "grue.actors.llm",
    "grue.transports.mcp.process_wire",
)
# Preloaded too if server processes are capped: importing the MCP SDK takes each worker most of a second.
_PRELOADED_FOR_SERVERS = ("grue.transports.mcp.client", "grue.transports.mcp.sdk")

# How long a worker may take to import the program and to connect. If no worker runs, and all starts have
# failed for this long, the engine fails.
_START_S = 120.0
_START_AGAIN_S = 0.2

_PIPES_OF_A_START = 4  # A worker's start needs seven descriptors at the same time; four pipes have eight

# If so many workers in a row end before they are ready, the engine fails: further workers would end too.
_MOST_BROKEN = 5
_DEATH_S = 10.0
_MOST_SAID_BYTES = 16 * 2**20
_READ_BYTES = 65_536


class LocalEngine:
    """Does tasks in worker processes. Raises `FleetError` if the ledger cannot be read or written."""

    def __init__(
        self, folder: FleetFolder, limits: Limits, workers: int, *, episode_timeout_s: float | None = None
    ) -> None:
        self.slots = workers
        self.ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._timeout_s = episode_timeout_s
        self._stack = contextlib.ExitStack()
        self._broker = self._stack.enter_context(BrokerServer(folder, limits))
        here = str(Path.cwd()), dict(os.environ)
        self._place = Place(self._broker.address, limits, list(sys.path), *here)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_preloaded(limits))
        # Start the resource tracker before the fork server: signals are blocked while the server starts, and
        # the start of the tracker may unblock them.
        multiprocessing.resource_tracker.ensure_running()
        self._stack.callback(guard.release, place_sockets())
        with born_without_interrupts():
            multiprocessing.forkserver.ensure_running()
        self._jobs: deque[Task] = deque()
        self._withdrawn = self._cancelled = self._closed = False
        self._broken = 0
        self._failed: Lost | None = None
        self._start_at, self._failing_since = -math.inf, math.inf
        self._workers: list[_Worker] = []
        self._woken, self._wake = self._context.Pipe(duplex=False)
        self._thread = threading.Thread(target=self._serve, name="grue fleet workers", daemon=True)
        self._thread.start()

    def costs(self) -> Costs:
        return self._broker.accounts.costs()

    def submit(self, job: Task) -> None:
        if self._failed is not None:
            self.ended.put((job, self._failed))
            return
        self._jobs.append(job)
        self._wake.send_bytes(b"job")

    def withdraw(self) -> None:
        self._withdrawn = True
        self._wake.send_bytes(b"withdraw")

    def cancel(self) -> None:
        self._cancelled = True
        self._wake.send_bytes(b"cancel")

    def close(self) -> None:
        """Kill all worker processes. Blocks until they have ended, for at most 10 s each."""
        self._cancelled = self._closed = True
        self._wake.send_bytes(b"close")
        self._thread.join()
        self._wake.close()
        self._woken.close()
        self._stack.close()

    # The methods below run in the engine's thread.

    def _serve(self) -> None:
        try:
            while True:
                if self._cancelled:
                    self._cancelled = False
                    self._end_all(Lost("cancelled"))
                if self._withdrawn:
                    self._withdrawn = False
                    self._return_queued(Lost("cancelled"))
                if self._closed:
                    return
                if self._failed is not None:
                    self._end_all(self._failed)
                self._hand_out()
                self._wait()
        except BaseException as error:  # report each job as lost, because the driver waits for all of them
            self._fail(f"The engine has failed: {type(error).__name__}: {error}.")
            raise

    def _fail(self, why: str) -> None:
        """End all workers, and report all jobs, later ones too, as lost for the reason `why`."""
        self._failed = Lost("unable", why)
        self._end_all(self._failed)

    def _end_all(self, how: Lost) -> None:
        for worker in list(self._workers):
            self._drop(worker, how)
        self._return_queued(how)

    def _return_queued(self, how: Lost) -> None:
        while self._jobs:
            self.ended.put((self._jobs.popleft(), how))

    def _hand_out(self) -> None:
        idle = [worker for worker in self._workers if worker.ready and worker.job is None]
        while self._jobs and idle:
            worker = idle.pop()
            if worker.give(self._jobs[0], self._timeout_s):
                self._jobs.popleft()
            else:  # the worker has died
                self._drop(worker)
        starting = sum(not worker.ready for worker in self._workers)
        for _ in range(min(self.slots - len(self._workers), len(self._jobs) - starting)):
            self._start()

    def _start(self) -> None:
        now = time.monotonic()
        if now < self._start_at:
            return
        try:
            self._workers.append(_Worker(self._context, self._place))
            self._failing_since = math.inf
        except (OSError, EOFError) as error:
            # Try again later. Perhaps the machine has no free process or descriptor now. Or the work has
            # killed multiprocessing's fork server, and a new one is started only after the old one has ended.
            self._failing_since = min(self._failing_since, now)
            self._start_at = now + _START_AGAIN_S
            if self._workers:
                return
            # After EMFILE, trying again would not help: no worker is left whose end would free descriptors.
            if getattr(error, "errno", None) == errno.EMFILE or now - self._failing_since > _START_S:
                self._fail(f"No worker process can be started: {error}.")

    def _wait(self) -> None:
        """Wait for `_wake`, a due start, or a worker that reports, ends or is late; then look at each."""
        soonest = min(worker.until for worker in self._workers) if self._workers else math.inf
        if self._jobs and self._failing_since < math.inf:
            soonest = min(soonest, self._start_at)
        wait_s = None if soonest == math.inf else max(0.0, soonest - time.monotonic())
        channels = (worker.channel for worker in self._workers if not worker.deaf)
        ends = (worker.process.sentinel for worker in self._workers)
        if self._woken in multiprocessing.connection.wait([self._woken, *channels, *ends], wait_s):
            self._woken.recv_bytes()
        for worker in list(self._workers):
            if worker in self._workers:  # `_look_at` of an earlier worker may have ended all workers
                self._look_at(worker)

    def _look_at(self, worker: "_Worker") -> None:
        alive = worker.process.is_alive()
        try:
            self._hear(worker)  # a worker may have reported before it died
        except (ValueError, RecursionError) as error:
            self._drop(worker, Lost("died", f"its worker process has said nonsense: {error}"))
            return
        if worker not in self._workers:
            return
        if not alive:
            self._drop(
                worker, Lost("died", f"its worker process ended with status {worker.process.exitcode}")
            )
        elif time.monotonic() > worker.until:
            limit_s = (self._timeout_s or 0.0) if worker.ready else _START_S
            what = "the episode did not end" if worker.ready else "its worker process was not ready"
            self._drop(worker, Lost("timed_out", f"{what} within {limit_s:g} s", limit_s))

    def _hear(self, worker: "_Worker") -> None:
        """If a worker's line is complete, read it: mark the worker as ready, or report the end of its job."""
        line = worker.line()
        if line is None:
            return
        if not worker.ready and line == READY:
            worker.ready, worker.until, self._broken = True, math.inf, 0
            return
        said, job = msgspec.json.decode(line, type=WorkerSaid), worker.job
        if job is None:
            raise ValueError("nothing was asked")
        worker.job, worker.until = None, math.inf
        if not said.fit:
            self._drop(worker)
        self.ended.put((job, said.ended or Lost("error", said.error)))

    def _drop(self, worker: "_Worker", how: Lost | None = None) -> None:
        """End a worker and its process group. Report `how`, if given, as the end of the worker's attempt."""
        self._workers.remove(worker)
        worker.end()
        if worker.job is not None and how is not None:
            self.ended.put((worker.job, how))
        if not worker.ready and how is not None and how.kind in ("died", "timed_out"):
            self._broken += 1
            if self._broken >= _MOST_BROKEN:
                self._fail(f"No worker process starts: {how.why}.")


class _Worker:
    def __init__(self, context: Any, place: Place) -> None:
        _need_descriptors()
        self.channel, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, place), name="grue fleet worker")
        with born_without_interrupts():
            self.process.start()
        theirs.close()
        self.ready = self.deaf = False
        self.job: Task | None = None
        self.until = time.monotonic() + _START_S
        self._said = b""

    def give(self, job: Task, timeout_s: float | None) -> bool:
        try:
            self.channel.send(job)
        except OSError:
            return False
        self.job = job
        self.until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        return True

    def line(self) -> bytes | None:
        """Return a whole line; `None`: no whole line has arrived. Raises `ValueError` for a line too long."""
        while not self.deaf and self.channel.poll():
            try:
                piece = os.read(self.channel.fileno(), _READ_BYTES)
            except OSError:
                piece = b""
            self.deaf = not piece
            self._said += piece
            if self._said.endswith(b"\n"):
                said, self._said = self._said, b""
                return said
            if len(self._said) > _MOST_SAID_BYTES:
                raise ValueError(f"more than {_MOST_SAID_BYTES} bytes")
        return None

    def end(self) -> None:
        """Kill all processes of the worker's group. Block until the worker has ended, for at most 10 s."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()  # the process may not have made its own group yet, so that `killpg` missed it
        self.process.join(_DEATH_S)
        self.channel.close()


def _need_descriptors() -> None:
    """Raise `OSError` if too few descriptors are free to start a worker."""
    # Otherwise multiprocessing would leak descriptors, and its fork server would end with a traceback.
    with contextlib.ExitStack() as held:
        for _ in range(_PIPES_OF_A_START):
            for descriptor in os.pipe():
                held.callback(os.close, descriptor)


def place_sockets() -> str:
    """Return multiprocessing's folder for sockets. If it was not made yet, make it at a short path."""
    usual = tempfile.tempdir
    tempfile.tempdir = folder_for_sockets()
    try:
        folder: str = multiprocessing.util.get_temp_dir()
    finally:
        tempfile.tempdir = usual
    guard.watch(folder)  # the guard removes the folder if this process is killed
    return folder


def _preloaded(limits: Limits) -> list[str]:
    names = []
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
            names.append(name)
    if limits.servers.at_once is not None:
        with contextlib.suppress(MissingDependencyError):
            require_mcp()  # checks that `mcp` is installed, but does not import it
            names += _PRELOADED_FOR_SERVERS
    return names


def default_workers() -> int:
    """Return the number of cores that this process may use."""
    available: Any = getattr(os, "sched_getaffinity", None)
    return len(available(0)) if available else os.cpu_count() or 1
