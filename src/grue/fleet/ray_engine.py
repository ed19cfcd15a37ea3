# ruff: noqa: D102 - `Engine` says what the methods do
"""The Ray engine: does tasks on a Ray cluster, whose machines share the fleet's folder.

Ray never retries a task: the driver counts attempts itself. The broker is an actor on the driver's machine.
"""

import contextlib
import functools
import itertools
import math
import os
import queue
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import anyio.to_thread

from grue.errors import FleetError, MissingDependencyError
from grue.fleet.accounts import GONE, Accounts, Claims
from grue.fleet.attempt import Ended, Lost, Task, text_of
from grue.fleet.broker import Costs, Limits
from grue.fleet.broker_server import Claim
from grue.fleet.folder import AttemptEnd, FleetFolder
from grue.runtime.processes.server_gate import set_server_gate
from grue.transports.llm.exchange import RequestOutcome, WantedRequest, set_request_gate

_LOOK_S = 0.1
_REPORT_EVERY_S = 1.0


class RayBroker:
    """The broker as an asynchronous Ray actor."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._accounts = Accounts(FleetFolder(folder), limits)
        self._claims: dict[str, Claims] = {}
        self._running: set[str] = set()

    async def begin(self, attempt: str) -> None:
        """Record that an attempt has begun: it no longer waits for a free core of the cluster."""
        self._running.add(attempt)

    async def ask(self, machine: str, attempt: str, id_: int, wanted: WantedRequest | None) -> str:
        """Wait until a request, or a server process on `machine`, may start; return why it may not, or ""."""
        claims = self._claims.setdefault(attempt, Claims(self._accounts, attempt, machine))
        return await claims.answer(id_, wanted, claims.begin(id_))

    async def give_back(self, attempt: str, id_: int, outcome: RequestOutcome) -> None:
        """Record that a request or server has ended, or is not wanted any more."""
        if attempt in self._claims:
            self._claims[attempt].give_back(id_, outcome)

    async def lost(self, attempt: str) -> None:
        """Give back all that an attempt holds, because the attempt has ended."""
        self._running.discard(attempt)
        if attempt in self._claims:
            self._claims.pop(attempt).lost()

    async def report(self) -> tuple[Costs, set[str]]:
        """Return the cost of the requests, as in `Accounts.costs`, and the attempts that are running."""
        return self._accounts.costs(), self._running


class RayEngine:
    """Makes attempts on a Ray cluster. Raises `FleetError` if the cluster or the ledger is unusable."""

    # `workers` 0: as many as the cluster has cores. `address`: see `FleetOptions.ray`.

    def __init__(
        self,
        folder: FleetFolder,
        limits: Limits,
        workers: int,
        address: str | None,
        *,
        episode_timeout_s: float | None = None,
    ) -> None:
        self._ray = ray = _ray()
        folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder.path.absolute()
        # Read the ledger in this process too: the user would not see an error that the actor meets later.
        with contextlib.closing(Accounts(folder, limits)) as accounts:
            self._costs = accounts.costs()
        self._started = not ray.is_initialized()
        if self._started:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # otherwise Ray reports usage statistics
            try:
                ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise FleetError(f"Cannot reach the Ray cluster {address or 'here'}: {error}.") from error
        try:
            _require_shared_folder(ray, self._folder)
        except BaseException:
            if self._started:
                ray.shutdown()
            raise
        self.slots = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self.ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._timeout_s = episode_timeout_s
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        actor = ray.remote(RayBroker).options(num_cpus=0, max_concurrency=10_000, scheduling_strategy=here)
        self._broker = actor.remote(self._folder, limits)
        task = ray.remote(_attempt).options(max_retries=0, num_cpus=1)
        self._start = functools.partial(task.remote, self._broker, limits, list(sys.path))
        self._queued: deque[Task] = deque()
        self._tasks: dict[Any, tuple[Task, float]] = {}
        self._cancelled: list[Any] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._failed: Lost | None = None
        self._thread = threading.Thread(target=self._collect, name="grue fleet ray", daemon=True)
        self._thread.start()

    def costs(self) -> Costs:
        return self._costs  # read about once a second

    def submit(self, job: Task) -> None:
        with self._lock:
            if self._failed is None:
                self._queued.append(job)
                self._fill()
                return
        self.ended.put((job, self._failed))

    def _fill(self) -> None:
        while self._queued and len(self._tasks) < self.slots:
            job = self._queued[0]
            self._tasks[self._start(job)] = (job, math.inf)
            self._queued.popleft()  # only now: a job that cannot be started must not be lost

    def withdraw(self) -> None:
        with self._lock:
            queued = list(self._queued)
            self._queued.clear()
        for job in queued:
            self.ended.put((job, Lost("cancelled")))

    def cancel(self) -> None:
        self.withdraw()
        with self._lock:
            self._cancelled = list(self._tasks)
        for reference in self._cancelled:
            self._ray.cancel(reference, force=True)

    def close(self) -> None:
        """End the attempts and the broker, and the connection to Ray if this engine has made it."""
        self.cancel()
        self._closed.set()
        self._thread.join()
        self._ray.kill(self._broker)
        if self._started:
            self._ray.shutdown()

    def _collect(self) -> None:
        """Report ended attempts and read the costs, in a thread, until `close` or a failure."""
        asked_at = 0.0
        try:
            while not self._closed.is_set():
                self._look()
                if time.monotonic() - asked_at > _REPORT_EVERY_S:
                    asked_at = time.monotonic()
                    with contextlib.suppress(Exception):
                        self._costs, running = self._ray.get(
                            self._broker.report.remote(), timeout=_REPORT_EVERY_S
                        )
                        self._set_limits(running)
        except BaseException as error:  # noqa: BLE001 - the driver waits for all jobs, and raises this error
            with self._lock:
                self._failed = Lost("unable", f"The engine has failed: {type(error).__name__}: {error}.")
                jobs = [*(job for job, _ in self._tasks.values()), *self._queued]
                self._tasks.clear()
                self._queued.clear()
            for job in jobs:
                self.ended.put((job, self._failed))

    def _look(self) -> None:
        """Wait up to `_LOOK_S` for an attempt to end, and report its outcome. End attempts that are late."""
        with self._lock:
            references = list(self._tasks)
        if references:
            done, _ = self._ray.wait(references, num_returns=1, timeout=_LOOK_S)
        else:
            done = []
            self._closed.wait(_LOOK_S)
        for reference in done:
            outcome = self._outcome(reference)
            # Ray reports a crash if it has killed a worker to cancel its task.
            is_cancelled = isinstance(outcome, Lost) and reference in self._cancelled
            self._end(reference, Lost("cancelled") if is_cancelled else outcome)
        now = time.monotonic()
        with self._lock:
            late = [each for each, (_, until) in self._tasks.items() if now > until]
        for reference in late:
            self._ray.cancel(reference, force=True)
            why = f"the episode did not end within {self._timeout_s:g} s"
            self._end(reference, Lost("timed_out", why, self._timeout_s or 0.0))

    def _set_limits(self, running: set[str]) -> None:
        """Start the time limits of the attempts in `running`, which no longer wait for a free core."""
        if self._timeout_s is None:
            return
        now = time.monotonic()
        with self._lock:
            for reference, (job, until) in self._tasks.items():
                if until == math.inf and job.folder.name in running:
                    self._tasks[reference] = (job, now + self._timeout_s)

    def _end(self, reference: Any, outcome: AttemptEnd | Lost) -> None:
        with self._lock:
            job, _ = self._tasks.pop(reference)
        self.ended.put((job, outcome))
        # Even an attempt that ended by itself may hold places: the work may have left a runner open.
        self._broker.lost.remote(job.folder.name)
        with self._lock:
            self._fill()

    def _outcome(self, reference: Any) -> AttemptEnd | Lost:
        errors = self._ray.exceptions
        try:
            end: AttemptEnd = self._ray.get(reference)
        except errors.TaskCancelledError:
            return Lost("cancelled")
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError) as error:
            return Lost("died", f"its worker was lost: {type(error).__name__}")
        except errors.RayTaskError as error:
            return Lost("error", text_of(error.cause))
        except errors.RayError as error:
            return Lost("died", f"Ray lost it: {type(error).__name__}")
        except BaseException as error:  # noqa: BLE001 - what the worker has sent cannot be read
            return Lost("died", text_of(error))
        return end


def _attempt(broker: Any, limits: Limits, path: list[str], job: Task) -> AttemptEnd:
    sys.path[:] = [*sys.path, *(each for each in path if each not in sys.path)]
    broker.begin.remote(job.folder.name)
    gate = _RayGate(broker, job.folder.name)
    set_request_gate(gate if limits.on_requests else None)
    set_server_gate(gate if limits.servers.at_once is not None else None)
    try:
        job.prepare()
        return job.make()
    finally:
        set_request_gate(None)
        set_server_gate(None)


class _RayGate:
    """A `RequestGate` and `ServerGate` that asks the broker."""

    def __init__(self, broker: Any, attempt: str) -> None:
        self._broker = broker
        self._attempt = attempt
        self._machine = _ray().get_runtime_context().get_node_id()
        self._ids = itertools.count(os.getpid() * 2**20)

    async def admit(self, wanted: WantedRequest | None = None) -> Claim | str:
        ray, id_ = _ray(), next(self._ids)
        claim = Claim(functools.partial(self._broker.give_back.remote, self._attempt, id_))
        asked = self._broker.ask.remote(self._machine, self._attempt, id_, wanted)
        try:
            # A limiter of its own: the threads of waiting requests must not keep tools waiting for a thread.
            one = anyio.CapacityLimiter(1)
            refused: str = await anyio.to_thread.run_sync(ray.get, asked, abandon_on_cancel=True, limiter=one)
        except ray.exceptions.RayError:
            return GONE
        except BaseException:
            claim.leave()
            raise
        return refused or claim


def _ray() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise MissingDependencyError(
            "The engine 'ray' needs the package ray. Install it with: pip install 'ray>=2.50,<3'"
        ) from error
    return ray


def _require_shared_folder(ray: Any, folder: Path) -> None:
    mark = folder / f".shared-{os.getpid()}-{time.time_ns()}"
    mark.touch()
    try:
        look = ray.remote(_sees)
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        nodes = [node for node in ray.nodes() if node["Alive"]]
        asked = [
            look.options(num_cpus=0, scheduling_strategy=affinity(node["NodeID"], soft=False)).remote(mark)
            for node in nodes
        ]
        for node, sees in zip(nodes, ray.get(asked), strict=True):
            if not sees:
                raise FleetError(
                    f"The machine {node['NodeManagerAddress']} of the Ray cluster does not see {folder}. A"
                    " fleet needs a file system that all machines share: name a folder in it with --dir."
                )
    except ray.exceptions.RayError as error:
        raise FleetError(
            f"A machine of the Ray cluster cannot run grue: {text_of(getattr(error, 'cause', None) or error)}"
        ) from error
    finally:
        mark.unlink()


def _sees(mark: Path) -> bool:
    return mark.exists()
