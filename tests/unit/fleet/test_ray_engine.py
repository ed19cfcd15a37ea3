"""The Ray engine on a cluster that does what a test tells it."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from promises import GUARD_S

from grue.errors import FleetError
from grue.fleet import ray_engine
from grue.fleet.attempt import Lost, Task
from grue.fleet.broker import Costs, Limits
from grue.fleet.folder import LEDGER, FleetFolder

LIMIT_S = 0.3


class Cluster:
    """A stand-in for the module `ray`. No task ends by itself; `running` are those that have got room.

    As in Ray, a task that was cancelled with `force` ends as if its worker had crashed.
    """

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.begun: list[str] = []
        self.broken = self.full = False
        self.exceptions = SimpleNamespace(
            RayError=OSError,
            WorkerCrashedError=ChildProcessError,
            **dict.fromkeys(("NodeDiedError", "OutOfMemoryError", "RayTaskError"), BrokenPipeError),
            TaskCancelledError=InterruptedError,
        )
        self.killed: list[object] = []
        self.machines: list[Any] = []
        self.stopped = False
        affinity = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: None)
        self.util = SimpleNamespace(scheduling_strategies=affinity)

    def __getattr__(self, name: str) -> Callable[..., Any]:  # such as `kill`
        return lambda *args, **named: SimpleNamespace(get_node_id=lambda: "here")

    def is_initialized(self) -> bool:
        return False

    def shutdown(self) -> None:
        self.stopped = True

    def nodes(self) -> list[Any]:
        return self.machines

    def remote(self, made: object) -> Any:
        method = SimpleNamespace(remote=lambda *args: None)
        broker = SimpleNamespace(lost=method, report=method)

        def start(*args: Any) -> object:
            if made is not ray_engine._attempt:
                return broker
            if self.full:
                raise RuntimeError("the cluster takes no more tasks")
            self.begun.append(args[-1].folder.name)
            return object()

        return SimpleNamespace(options=lambda **named: SimpleNamespace(remote=start))

    def cancel(self, reference: object, *, force: bool) -> None:
        self.killed.append(reference)

    def get(self, asked: object, timeout: float = 0.0) -> Any:
        if asked in self.killed:
            raise ChildProcessError("the worker died")
        if isinstance(asked, list) and asked:
            raise OSError("no module named grue")
        return [] if asked == [] else (Costs(), self.running)

    def wait(self, references: list[object], *, num_returns: int, timeout: float) -> Any:
        if self.broken:
            raise RuntimeError("the cluster is gone")
        threading.Event().wait(timeout)
        return [each for each in references if each in self.killed][:num_returns], references


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(ray_engine, "_ray", lambda: made)
    monkeypatch.setattr(ray_engine, "_LOOK_S", 0.01)
    monkeypatch.setattr(ray_engine, "_REPORT_EVERY_S", 0.0)
    return made


def engine(tmp_path: Path, workers: int, limit_s: float = LIMIT_S) -> ray_engine.RayEngine:
    return ray_engine.RayEngine(FleetFolder(tmp_path), Limits(), workers, None, episode_timeout_s=limit_s)


def test_the_wait_for_room_in_the_cluster_does_not_count_as_an_episodes_time(
    cluster: Cluster, tmp_path: Path
) -> None:
    made = engine(tmp_path, 2)
    cluster.running = {"a"}
    for name in ("a", "b"):
        made.submit(Task(folder=tmp_path / name))
    first, outcome = made.ended.get(timeout=GUARD_S)
    late = Lost("timed_out", "the episode did not end within 0.3 s", LIMIT_S)
    assert (first.folder.name, outcome) == ("a", late)
    cluster.running, began = {"b"}, time.monotonic()
    second, _ = made.ended.get(timeout=GUARD_S)
    assert second.folder.name == "b"
    assert time.monotonic() - began >= LIMIT_S
    made.close()


def test_a_cluster_that_fails_ends_the_run_and_does_not_hang(cluster: Cluster, tmp_path: Path) -> None:
    made = engine(tmp_path, 1)
    cluster.broken = True
    for name in ("a", "b"):
        made.submit(Task(folder=tmp_path / name))
        _, outcome = made.ended.get(timeout=GUARD_S)
        assert outcome == Lost("unable", "The engine has failed: RuntimeError: the cluster is gone.")
    made.close()


def test_a_ledger_that_cannot_be_read_is_said_before_a_cluster_starts(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / LEDGER).write_text("nonsense\n")
    with pytest.raises(FleetError, match="line 1 is damaged"):
        engine(tmp_path, 1)
    assert not cluster.stopped


def test_a_cluster_that_cannot_be_used_is_not_left_running(cluster: Cluster, tmp_path: Path) -> None:
    cluster.machines = [{"Alive": True, "NodeID": "n", "NodeManagerAddress": "10.0.0.2"}]
    with pytest.raises(FleetError, match="cannot run grue: OSError: no module named grue"):
        engine(tmp_path, 1)
    assert cluster.stopped


def test_no_more_attempts_begin_than_there_are_workers(cluster: Cluster, tmp_path: Path) -> None:
    made = engine(tmp_path, 2)
    for name in ("a", "b", "c", "d"):
        made.submit(Task(folder=tmp_path / name))
    assert cluster.begun == ["a", "b"]
    cluster.running = {"a"}
    ended, _ = made.ended.get(timeout=GUARD_S)
    assert ended.folder.name == "a"
    assert cluster.begun == ["a", "b", "c"]
    made.close()


def test_withdrawn_attempts_never_begin_and_the_others_go_on(cluster: Cluster, tmp_path: Path) -> None:
    made = engine(tmp_path, 1, limit_s=GUARD_S)
    for name in ("a", "b", "c"):
        made.submit(Task(folder=tmp_path / name))
    made.withdraw()
    ended = [made.ended.get(timeout=GUARD_S) for _ in range(2)]
    assert [(job.folder.name, outcome) for job, outcome in ended] == [
        ("b", Lost("cancelled")),
        ("c", Lost("cancelled")),
    ]
    assert cluster.begun == ["a"]
    made.close()


def test_a_cancelled_attempt_does_not_count_as_one_whose_worker_died(
    cluster: Cluster, tmp_path: Path
) -> None:
    made = engine(tmp_path, 2, limit_s=GUARD_S)
    for name in ("a", "b", "c"):
        made.submit(Task(folder=tmp_path / name))
    made.cancel()
    ended = {job.folder.name: outcome for job, outcome in (made.ended.get(timeout=GUARD_S) for _ in "abc")}
    assert ended == dict.fromkeys("abc", Lost("cancelled"))
    made.close()


def test_attempts_that_cannot_be_started_are_reported_with_the_one_that_made_room(
    cluster: Cluster, tmp_path: Path
) -> None:
    made = engine(tmp_path, 1)
    for name in ("a", "b", "c"):
        made.submit(Task(folder=tmp_path / name))
    cluster.full, cluster.running = True, {"a"}
    ended = {
        job.folder.name: outcome.kind for job, outcome in (made.ended.get(timeout=GUARD_S) for _ in "abc")
    }
    assert ended == {"a": "timed_out", "b": "unable", "c": "unable"}
    made.close()
