"""How much time a fleet adds to the episodes that it runs, and how much memory its driver needs.

A fleet's rate is measured from the end of a first batch, so that the start of its processes does not count:
they start only once in a fleet of thousands. For comparison, a loop runs the same episodes in one warm
process, each into a folder of its own. The sides run in turn. Nothing else should run on the machine.
"""

import queue
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from measuring import Bar, Effort, Section, figure

from grue.fleet.attempt import Ended, Task
from grue.fleet.broker import Costs
from grue.fleet.driver import Driver, Plan
from grue.fleet.fleet import Fleet
from grue.fleet.folder import AttemptEnd, FleetFolder
from grue.fleet.sweep import Span, Sweep
from grue.fleet.work import Episode, find_work

GRUE = Path(sys.executable).with_name("grue")
SHORT, LONG = 3, 60
"""Turns of a short episode, and most of a long one, which wins the house in 44."""


def fleet_section(effort: Effort) -> Section:
    """Compare a fleet with a loop, with `grue play`, and with a fleet of two workers."""
    (short, long), (few, many) = effort.fleet, effort.fleet_many
    loops: list[float] = []
    fleets: dict[int, list[float]] = {1: [], 2: []}
    shorts: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(effort.fleet_rounds):
            loops.append(_loop_s(folder / f"loop-{number}", long))
            for workers, samples in fleets.items():
                place = folder / f"long-{number}-{workers}"
                samples.append(_fleet_s(place, LONG, long * workers, workers) / (long * workers))
            shorts.append(_fleet_s(folder / f"short-{number}", SHORT, short, 1) / short)
        cold = [_cold_s(folder / f"cold-{number}") for number in range(max(2, effort.fleet_rounds))]
        small, large = (_driver_mb(count) for count in (few, many))
    share = statistics.median(loop / each for loop, each in zip(loops, fleets[1], strict=True))
    gain = statistics.median(one / two for one, two in zip(fleets[1], fleets[2], strict=True))
    return Section(
        "fleet",
        "A fleet: episodes of 44 and of 3 turns, offline, without servers",
        f"Measured: time of an episode in a warm fleet, {long} long and {short} short ones a batch, after "
        "two for each worker; the same long episodes in a loop of one process; `grue play` "
        "from a cold start. The driver's memory is measured with an engine that plays nothing.",
        [
            figure("a long episode, loop in one process", "ms", [1e3 * each for each in loops]),
            figure("a long episode, fleet of one worker", "ms", [1e3 * each for each in fleets[1]]),
            figure("a long episode, fleet of two workers", "ms", [1e3 * each for each in fleets[2]]),
            figure("a short episode, fleet of one worker", "ms", [1e3 * each for each in shorts]),
            figure("a short episode, cold grue play", "ms", [1e3 * each for each in cold]),
        ],
        [
            Bar(
                "fleet of one worker, long episodes: speed, as a ratio to a plain loop's",
                share,
                0.9,
                "x",
                at_least=True,
            ),
            Bar(
                "fleet of one worker, short episodes: speed, as a ratio to `grue play`'s",
                statistics.median(cold) / statistics.median(shorts),
                5,
                "x",
                at_least=True,
            ),
            Bar("fleet of two workers: speed, as a ratio to one worker's", gain, 1.8, "x", at_least=True),
            Bar(
                f"fleet driver: growth of memory from {few} to {many} episodes",
                large - small,
                5,
                "MB",
            ),
        ],
        {f"memory of the driver after {many} episodes": f"{large:.1f} MB"},
    )


def _settings(turns: int, seed: int) -> dict[str, object]:
    return {"offline": True, "mcp": False, "turns": turns, "seed": seed}


def _loop_s(folder: Path, count: int) -> float:
    """Return the seconds that a long episode takes in a loop, after two episodes that do not count."""
    play = find_work("zork").function
    for number in range(count + 2):
        if number == 2:
            began = time.perf_counter()
        place = folder / str(number)
        place.mkdir(parents=True)
        play(_settings(LONG, number), Episode(id=f"{number:024x}", folder=place))
    return (time.perf_counter() - began) / count


def _fleet_s(folder: Path, turns: int, count: int, workers: int) -> float:
    """Return the seconds from the end of a first batch to the end of `count` more episodes."""
    first = 2 * workers
    cases = [_settings(turns, seed) for seed in range(first + count)]
    finished = Fleet(folder, workers=workers).map("zork", cases)
    assert (finished.tally.done, finished.tally.failed) == (len(cases), 0), finished
    commits = sorted(path.stat().st_mtime_ns for path in folder.glob("*/*/commit.json"))
    return (commits[-1] - commits[first - 1]) / 1e9


def _cold_s(folder: Path) -> float:
    """Return the seconds that a short episode takes with `grue play`."""
    began = time.perf_counter()
    command = [GRUE, "play", "--offline", "--no-mcp", "--turns", SHORT, "--run-dir", folder, "--quiet"]
    subprocess.run([str(each) for each in command], check=True, capture_output=True)
    return time.perf_counter() - began


def _driver_mb(count: int) -> float:
    """Return the memory, in MB, of a process whose driver has had `count` episodes done."""
    ran = subprocess.run([sys.executable, __file__, str(count)], check=True, capture_output=True, text=True)
    return float(ran.stdout)


class _NoEngine:
    """Ends each episode at once, without playing it."""

    slots = 2

    def __init__(self) -> None:
        self.ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()

    def costs(self) -> Costs:
        """Return costs of zero."""
        return Costs()

    def submit(self, job: Task) -> None:
        """End the episode."""
        end = AttemptEnd(outcome="scored", scores={"score": 1.0})
        self.ended.put((job, end))

    def withdraw(self) -> None:
        """Do nothing."""

    def cancel(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def drive(count: int) -> float:
    """Run a driver for `count` episodes that end at once; return the memory of this process in MB."""
    sweep = Sweep(work="zork", settings={"offline": True}, grid={"seed": Span(first=1, last=count)})
    plan = Plan(work=find_work("zork"), version="1", cases=sweep.all_cases)
    with tempfile.TemporaryDirectory() as folder:
        Driver(FleetFolder(Path(folder)), plan, _NoEngine(), lambda *_: None).run()
    return psutil.Process().memory_info().rss / 2**20


if __name__ == "__main__":
    print(drive(int(sys.argv[1])))
