"""A fleet whose workers and driver are killed comes out as a calm one: a short `benchmarks/fleet_soak.py`."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from fleet_soak import Soak, soak

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(("episodes", "servers"), [(120, False), (40, True)])
def test_killed_workers_and_drivers_change_neither_results_nor_their_number(
    tmp_path: Path, episodes: int, servers: bool
) -> None:
    soaked = soak(Soak(episodes, servers, every_s=0.5), tmp_path)
    assert soaked.faults == []
    assert (soaked.commits, soaked.drivers_killed) == (episodes, 3)
    assert soaked.attempts > episodes, "no worker was killed in the middle of an episode"
