"""Ten thousand episodes: what comparing and reporting them takes, in a process of its own."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment
from made_fleets import make_fleet

from grue.fleet.results import results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MEASURED = """
import json, resource, sys
from grue.cli.app import app
try:
    app(sys.argv[1:])
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    # Not `ru_maxrss`: a child begins with that of the process that started it.
    (peak,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "mib": int(peak) / 1024}))
"""
"""CPU time, because the time by the clock depends on what else the machine does."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("fleet")

    def score(chance: random.Random, prompt: str, question: int) -> float:
        return float(chance.random() < 0.5 + 0.05 * (prompt == "long"))

    make_fleet(place, score, questions=5000, repetitions=1)
    assert sum(1 for _ in results(place)) == 10_000  # the driver has made the index
    return place


def measured(*words: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *words],
        env=environment() | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=500,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_ten_thousand_episodes_are_compared_in_two_seconds(fleet: Path) -> None:
    # A processor that others share takes longer for the same work: the best of three tries counts.
    for _ in range(3):
        used = measured("fleet", "compare", f"{fleet}:prompt=short", ":prompt=long")
        if used["cpu_s"] <= 2:
            break
    assert used["cpu_s"] <= 2
    assert used["mib"] <= 300


def test_ten_thousand_episodes_are_a_page_of_five_megabytes_in_ten_seconds(fleet: Path) -> None:
    used = measured("fleet", "report", str(fleet))
    assert used["cpu_s"] <= 10
    assert used["mib"] <= 300
    assert (fleet / "report.html").stat().st_size <= 5_000_000
