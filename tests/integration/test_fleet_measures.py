"""Ten thousand episodes: what comparing and reporting them takes, in a process of its own."""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
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
def fleets(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Fleets by the number of their episodes. The driver has made their indexes."""
    places = {}
    for episodes in (2500, 10_000):
        places[episodes] = place = tmp_path_factory.mktemp("fleet")
        make_fleet(place, score, questions=episodes // 2, repetitions=1)
        assert sum(1 for _ in results(place)) == episodes
    return places


def score(chance: random.Random, prompt: str, question: int) -> float:
    return float(chance.random() < 0.5 + 0.05 * (prompt == "long"))


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


def assert_linear_in_episodes(command: Callable[[Path], Sequence[str]], fleets: dict[int, Path]) -> None:
    """Assert that four times the episodes take less than six times the CPU time, and 300 MiB at most.

    Work of a quadratic algorithm would take up to sixteen times as long. Both are measured in turn, and the
    least time of each counts: other work on the machine can only add to it.
    """
    cpu_s = dict.fromkeys(fleets, float("inf"))
    for _ in range(3):
        for episodes, place in fleets.items():
            used = measured(*command(place))
            assert used["mib"] <= 300
            cpu_s[episodes] = min(cpu_s[episodes], used["cpu_s"])
        small_s, large_s = cpu_s.values()
        if large_s < 6 * small_s:
            return
    raise AssertionError(f"four times the episodes take {large_s / small_s:.1f} times as long: {cpu_s}")


def test_ten_thousand_episodes_are_compared(fleets: dict[int, Path]) -> None:
    assert_linear_in_episodes(
        lambda place: ("fleet", "compare", f"{place}:prompt=short", ":prompt=long"), fleets
    )


def test_ten_thousand_episodes_are_a_page_of_five_megabytes(fleets: dict[int, Path]) -> None:
    assert_linear_in_episodes(lambda place: ("fleet", "report", str(place)), fleets)
    assert (fleets[10_000] / "report.html").stat().st_size <= 5_000_000
