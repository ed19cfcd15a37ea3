"""The Ray engine on a cluster that does what a test tells it."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from promises import GUARD_S

from grue.fleet import ray_engine
from grue.fleet.attempt import Task
from grue.fleet.broker import Costs, Limits
from grue.fleet.engine import Lost
from grue.fleet.folder import FleetFolder

LIMIT_S = 0.3


class Cluster:
    """A stand-in for the module `ray`. No task ends by itself; `running` are those that have got room."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.broken = False
        self.exceptions = SimpleNamespace()
        affinity = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: None)
        self.util = SimpleNamespace(scheduling_strategies=affinity)

    def __getattr__(self, name: str) -> Callable[..., Any]:  # `is_initialized`, `cancel`, `kill`, ...
        return lambda *args, **named: SimpleNamespace(get_node_id=lambda: "here")

    def nodes(self) -> list[Any]:
        return []

    def remote(self, made: object) -> Any:
        method = SimpleNamespace(remote=lambda *args: None)
        broker = SimpleNamespace(lost=method, report=method)
        start = (lambda *args: broker) if made is ray_engine.RayBroker else (lambda *args: object())
        return SimpleNamespace(options=lambda **named: SimpleNamespace(remote=start))

    def get(self, asked: object, timeout: float = 0.0) -> Any:
        return [] if asked == [] else (Costs(), self.running)

    def wait(self, references: list[object], *, num_returns: int, timeout: float) -> Any:
        if self.broken:
            raise RuntimeError("the cluster is gone")
        threading.Event().wait(timeout)
        return [], references


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(ray_engine, "_ray", lambda: made)
    monkeypatch.setattr(ray_engine, "_LOOK_S", 0.01)
    monkeypatch.setattr(ray_engine, "_REPORT_EVERY_S", 0.0)
    return made


def engine(tmp_path: Path) -> ray_engine.RayEngine:
    return ray_engine.RayEngine(FleetFolder(tmp_path), Limits(), 1, None, episode_timeout_s=LIMIT_S)


def test_the_wait_for_room_in_the_cluster_does_not_count_as_an_episodes_time(
    cluster: Cluster, tmp_path: Path
) -> None:
    made = engine(tmp_path)
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
    made = engine(tmp_path)
    cluster.broken = True
    for name in ("a", "b"):
        made.submit(Task(folder=tmp_path / name))
        _, outcome = made.ended.get(timeout=GUARD_S)
        assert outcome == Lost("unable", "The engine has failed: RuntimeError: the cluster is gone.")
    made.close()
