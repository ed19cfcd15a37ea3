"""Run a big fleet while its workers and its driver are killed, and compare it with an undisturbed (calm) one.

    python benchmarks/fleet_soak.py                                   10,000 episodes without servers
    python benchmarks/fleet_soak.py --episodes 1000 --servers         1,000 with the think server
    python benchmarks/fleet_soak.py --episodes 120 --every 0.5        what the tests run

Each episode is three turns of the bundled game with the offline script. Every few seconds, once four more
episodes are done, a worker is killed with SIGKILL; the driver is killed three times. At the end this checks
that each episode is committed once, that its commands and scores are those of a calm run, that its trace is
the committed one, that the ledger is within the budget, and that no process is left. There may be more
requests than in a calm run, because an interrupted turn is run again. The fleet gives up an episode that has
lost three workers; then `grue fleet retry` runs it.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from grue.fleet.accounts import read_ledger
from grue.fleet.folder import FleetFolder

GRUE = Path(sys.executable).with_name("grue")
BETWEEN = 4
"""Episodes that are done between two kills, so that a slow machine gets on."""

DRIVERS = 3
"""How often the driver is killed."""

SEEDS = 100
"""Different seeds; more episodes are repetitions, whose commands and scores must be the same."""

MARK = "GRUE_FLEET_SOAK"
"""An environment variable by which all processes of a soak are found."""

_GONE_WITHIN_S = 60.0
_LOOK_S = 0.1
"""How often the commits are counted, so that a fast fleet does not end before its driver is killed."""

SWEEP = """
work = "zork"
workers = {workers}
repetitions = {repetitions}
settings = {{ offline = true, mcp = {servers}, turns = 3 }}
grid.seed = {{ first = 1, last = {seeds} }}
budget.requests = {requests}
"""


class Soak(NamedTuple):
    """The size of the fleet.

    Attributes:
        episodes: Number of episodes, a multiple of the number of seeds.
        servers: Whether each turn starts the think server.
        every_s: Seconds between two killed workers.
        workers: Number of worker processes.
    """

    episodes: int
    servers: bool
    every_s: float
    workers: int = 2

    @property
    def seeds(self) -> int:
        """Number of different seeds."""
        return SEEDS if self.episodes >= 10 * SEEDS else min(SEEDS // 5, self.episodes)

    def sweep(self, folder: Path, repetitions: int) -> Path:
        """Write the sweep's file. Its budget is twice the requests that a calm run sends."""
        path = folder / f"{repetitions}.toml"
        cap = f"servers = {self.workers}\n" if self.servers else ""
        path.write_text(
            SWEEP.format(
                workers=self.workers,
                repetitions=repetitions,
                servers=str(self.servers).lower(),
                seeds=self.seeds,
                requests=2 * 4 * repetitions * self.seeds,
            )
            + cap
        )
        return path


class Soaked(NamedTuple):
    """The result; `faults` is empty if all checks passed."""

    commits: int
    attempts: int
    workers_killed: int
    drivers_killed: int
    retries: int
    requests: int
    budget: int
    seconds: float
    faults: list[str]


def soak(what: Soak, folder: Path) -> Soaked:
    """Run a calm fleet with each seed once, run all episodes while processes are killed, and compare them."""
    mark = uuid.uuid4().hex
    environment = {**os.environ, MARK: mark}
    calm = folder / "calm"
    run = [str(GRUE), "fleet", "run", str(what.sweep(folder, 1)), "--dir", str(calm)]
    subprocess.run(run, env=environment, check=True, stdout=subprocess.DEVNULL)
    wanted = {case["seed"]: played for case, played, _ in results(calm)}
    wild, repetitions = folder / "wild", what.episodes // what.seeds
    sweep = what.sweep(folder, repetitions)
    command = [str(GRUE), "fleet", "run", str(sweep), "--dir", str(wild)]
    began, killed = time.monotonic(), Counter[str]()
    for number in range(DRIVERS + 1):
        until = what.episodes * (number + 1) // (DRIVERS + 1) if number < DRIVERS else None
        _run_wildly(command, environment, wild, until, what.every_s, killed)
    if _done(wild) < what.episodes:
        command[2] = "retry"
        killed["retries"] += 1
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - began
    faults = list(_faults(what, wild, wanted))
    faults += [f"a process is left: {each}" for each in _left(mark)]
    spent = read_ledger(FleetFolder(wild)).requests
    budget = 2 * 4 * what.episodes
    if spent > budget:
        faults.append(f"{spent} requests were spent, and the budget is {budget}")
    if killed["driver"] != DRIVERS or not killed["worker"]:
        faults.append(f"only {killed} were killed")
    return Soaked(
        commits=sum(1 for _ in wild.glob("*/*/commit.json")),
        attempts=sum(1 for _ in wild.glob("*/*/attempt-*")),
        workers_killed=killed["worker"],
        drivers_killed=killed["driver"],
        retries=killed["retries"],
        requests=spent,
        budget=budget,
        seconds=seconds,
        faults=faults,
    )


def results(folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any], Path]]:
    """Yield for each committed episode its case, its commands and scores, and its folder."""
    for path in folder.glob("*/*/commit.json"):
        commit = json.loads(path.read_bytes())
        case = json.loads((path.parent / "case.json").read_bytes())["settings"]
        attempt = path.parent / f"attempt-{commit['attempt']}"
        commands = json.loads((attempt / "result.json").read_bytes())["commands"]
        trace = attempt / "trace.jsonl"
        played = {
            "commands": commands,
            "scores": commit["end"]["scores"],
            "outcome": commit["end"]["outcome"],
        }
        if hashlib.sha256(trace.read_bytes()).hexdigest() != commit["trace_sha256"]:
            played["outcome"] = "another trace"
        yield case, played, path.parent


def _run_wildly(
    command: list[str],
    environment: dict[str, str],
    folder: Path,
    until: int | None,
    every_s: float,
    killed: Counter[str],
) -> None:
    """Run a fleet. Kill a worker every `every_s` seconds, and the driver once `until` episodes are done."""
    kill_at, kill_after = _done(folder) + BETWEEN, time.monotonic() + every_s
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as driver:
        while True:
            try:
                driver.wait(min(every_s, max(_LOOK_S, kill_at / 2000)))  # counting many episodes takes long
            except subprocess.TimeoutExpired:
                pass
            else:
                return
            done = _done(folder)
            if until is not None and done >= until:
                driver.kill()
                killed["driver"] += 1
                return
            if done >= kill_at and time.monotonic() >= kill_after:
                kill_at, kill_after = done + BETWEEN, time.monotonic() + every_s
                killed["worker"] += _kill_a_worker(driver.pid)


def _done(folder: Path) -> int:
    # Look only into the folders of episodes: a starting driver makes other folders and removes them at once.
    return sum(1 for _ in folder.glob("??/*/commit.json"))


def _kill_a_worker(driver: int) -> int:
    """Kill a worker process, which is a child of the fork server. Return the number of killed processes."""
    try:
        children = psutil.Process(driver).children(recursive=True)
        helpers = {child.pid for child in children if child.ppid() == driver}
        workers = [child for child in children if child.ppid() in helpers]
        victim = random.choice(workers)
        os.kill(victim.pid, signal.SIGKILL)
    except (psutil.Error, ProcessLookupError, IndexError):
        return 0
    return 1


def _faults(what: Soak, folder: Path, wanted: dict[int, dict[str, Any]]) -> Iterator[str]:
    count, seen = 0, Counter[int]()
    for case, played, place in results(folder):
        count += 1
        seen[case["seed"]] += 1
        if played != wanted[case["seed"]]:
            yield f"{place.name} played {played}, in a calm run {wanted[case['seed']]}"
    if count != what.episodes:
        yield f"{count} episodes are committed, and not {what.episodes}"
    if set(seen.values()) != {what.episodes // what.seeds}:
        yield f"episodes by seed: {seen}"


def _left(mark: str) -> list[str]:
    """Return the commands of processes of this run that are still alive after `_GONE_WITHIN_S` seconds."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    while True:
        left = [name for process in psutil.process_iter() if (name := _marked(process, mark))]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def _marked(process: psutil.Process, mark: str) -> str:
    try:
        if process.pid != os.getpid() and process.environ().get(MARK) == mark:
            return " ".join(process.cmdline())
    except psutil.Error:
        pass
    return ""


def main() -> None:
    """Run the fleet with the options of the command line, and print the result."""
    parser = argparse.ArgumentParser(description="Play a fleet while its processes are killed.")
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--servers", action="store_true", help="with the think server")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two killed workers")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    what = Soak(options.episodes, options.servers, options.every, options.workers)
    if what.episodes % what.seeds:
        parser.error(f"--episodes has to be a multiple of {what.seeds}")
    with tempfile.TemporaryDirectory(prefix="grue-soak-") as folder:
        soaked = soak(what, Path(folder))
    for name, value in soaked._asdict().items():
        if name != "faults":
            print(f"{name}: {value:.0f}" if isinstance(value, float) else f"{name}: {value}")
    for fault in soaked.faults[:20]:
        print(f"FAULT: {fault}")
    print("as in a calm run" if not soaked.faults else f"{len(soaked.faults)} faults")
    raise SystemExit(bool(soaked.faults))


if __name__ == "__main__":
    main()
