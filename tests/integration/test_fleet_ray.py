"""A fleet on a Ray cluster of two machines, of which one is lost. GRUE_RAY names a Python that has Ray."""

import os
import subprocess
from pathlib import Path

import pytest

RAY = os.environ.get("GRUE_RAY", "")
HANG_S = 170
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(HANG_S + 30),
    pytest.mark.skipif(not RAY, reason="GRUE_RAY does not name a Python that has grue and ray"),
]

SCRIPT = """
import sys, threading, time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from grue.fleet import Fleet

folder, count = Path(sys.argv[1]), int(sys.argv[2])
head = {"num_cpus": 1, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head)
second = cluster.add_node(num_cpus=1)
ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")


def lose_a_machine():
    while len(list(folder.glob("*/*/commit.json"))) < count // 3:
        time.sleep(0.1)
    cluster.remove_node(second, allow_graceful=False)
    print("lost a machine", flush=True)


threading.Thread(target=lose_a_machine, daemon=True).start()
settings = {"offline": True, "mcp": False, "turns": 3}
finished = Fleet(folder, engine="ray", workers=2).map(
    "zork", [{**settings, "seed": seed} for seed in range(count)]
)
print(finished.reason, finished.tally.done, finished.tally.failed, finished.tally.given_up)
"""


def test_a_lost_machine_costs_attempts_and_no_episode(tmp_path: Path) -> None:
    command = [RAY, "-c", SCRIPT, str(tmp_path / "fleet"), "100"]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert "lost a machine" in ran.stdout, ran.stderr[-2000:]
    assert "finished 100 0 0" in ran.stdout, ran.stdout + ran.stderr[-2000:]
    assert len(list((tmp_path / "fleet").glob("*/*/commit.json"))) == 100
