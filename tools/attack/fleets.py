"""Fleets whose episodes raise, return and leave on disk what nobody expects, among sound ones.

The works run in this process, so they do only what a process outlives; `tests/support/hostile_works.py` has the
others. A case is wrong if a sound episode is not committed with its score, or anything ends the fleet.
"""

import os
import queue
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from casebook import Case
from damage import damaged, nested, odd_text, odd_value
from judge import Findings
from typer.testing import CliRunner

from grue.cli.app import app
from grue.errors import LLMError, MCPError
from grue.fleet.attempt import Ended, Job, Lost, Task
from grue.fleet.broker import Costs
from grue.fleet.driver import Driver, Finished, Plan
from grue.fleet.folder import FleetFolder, Manifest
from grue.fleet.identity import Case as FleetCase
from grue.fleet.work import Episode, find_work

_FILES = (
    "commit.json",
    "case.json",
    "attempt-1/attempt.json",
    "attempt-1/trace.jsonl",
    "commit",
    "attempt-2",
)


class Inline:
    """An engine that makes each attempt at once, here; a lost worker is one that says so."""

    def __init__(self, rng: Random) -> None:
        self.slots = 3
        self.ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._rng = rng

    def costs(self) -> Costs:
        """Have spent nothing."""
        return Costs(refused=self._rng.choice(("", "", "used up")))

    def submit(self, job: Task) -> None:
        """Make the attempt."""
        assert isinstance(job, Job), "no episode is scored here"
        sound = job.case.settings["sound"]
        try:
            told: Any = job.make()
        except MCPError as error:
            told = Lost("error", str(error))
        if not sound and self._rng.random() < 0.3:
            told = Lost(
                self._rng.choice(("died", "timed_out", "error")),
                odd_text(self._rng).encode("utf-8", "replace").decode(),
            )
        self.ended.put((job, told))

    def withdraw(self) -> None:
        """Nothing is queued."""

    def cancel(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Nothing is held."""


def play(case: dict[str, Any], episode: Episode) -> Any:
    """Be sound, or do what the seed says."""
    if case["sound"]:
        return float(case["n"])
    rng = Random(f"{case['seed']}/{case['n']}/{episode.folder.name}")
    for _ in range(rng.randrange(3)):
        _spoil(rng, episode.folder.parent)
    if rng.random() < 0.5:
        raise _exception(rng)
    return rng.choice(
        (odd_value(rng), {odd_text(rng): odd_value(rng)}, float("inf"), 10**5000, {"a": 1}, _Odd())
    )


class _Odd(Mapping[str, float]):
    def __getitem__(self, key: str) -> float:
        raise SystemExit(key)

    def __iter__(self) -> Any:
        raise KeyboardInterrupt

    def __len__(self) -> int:
        return -1


def _exception(rng: Random) -> BaseException:
    text = odd_text(rng)

    def refuse(*_: object) -> Any:
        raise rng.choice((SystemExit(text), RecursionError(text), GeneratorExit()))

    kind = rng.choice(
        (ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, MCPError, OSError, MemoryError)
    )
    if rng.random() < 0.3:
        hooks = dict.fromkeys(rng.sample(("__str__", "__repr__", "__reduce__", "__getattr__"), 2), refuse)
        odd: type[BaseException] = type("Odd", (kind,), hooks)
        return odd(text)
    if rng.random() < 0.2:
        return LLMError(text, kind=rng.choice(("refused", "unreachable", text)), endpoint=text)
    return kind(text)


def _spoil(rng: Random, folder: Path) -> None:
    path = folder / rng.choice(_FILES)
    if rng.random() < 0.1:
        shutil.rmtree(folder, ignore_errors=True)
        return
    if path.is_file() and not path.is_symlink():
        path.write_bytes(damaged(rng, path.read_bytes()))
    if os.path.lexists(path):  # a pipe would be waited for
        return
    try:
        match rng.randrange(5):
            case 0:
                path.mkdir()
            case 1:
                os.mkfifo(path)
            case 2:
                path.symlink_to(rng.choice(("/dev/zero", "nowhere", ".", "/etc/passwd")))
            case 3:
                path.write_bytes(nested(rng))
            case _:
                path.write_bytes(rng.randbytes(50))
    except OSError:
        return  # it is there, or its folder is not


def run(case: Case, folder: Path, findings: Findings) -> str:
    """Run a fleet, then the same one with `retry`, then the commands that show it."""
    rng, started = case.rng("fleet"), time.monotonic()
    sound = {number for number in range(12) if rng.random() < 0.5}
    cases = [FleetCase(settings={"n": n, "sound": n in sound, "seed": case.name}) for n in range(12)]
    fleet = FleetFolder(folder / "fleet")
    fleet.write_manifest(Manifest(total=len(cases)))
    plan = Plan(work=find_work("fleets:play"), version="1", cases=lambda: iter(cases))
    told = []
    for retry in (False, True):
        engine = Inline(rng)
        try:
            finished: Finished = Driver(fleet, plan, engine, lambda *_: None, retry=retry).run()
        except Exception as error:  # noqa: BLE001 - this is what is searched for
            findings.add(f"ended: the fleet: {type(error).__name__}: {error}"[:400])
            break
        told.append(f"{finished.reason} {finished.tally.done}")
    scores = {}
    for episode in fleet.episodes():
        try:
            found, commit = episode.case, episode.commit
        except MCPError:
            continue
        if found is not None and commit is not None and found.settings.get("sound") is True:
            scores[found.settings["n"]] = commit.end.scores.get("score")
    if wrong := {n: scores.get(n) for n in sound if scores.get(n) != n}:
        findings.add(f"lost: sound episodes with other scores than their own: {wrong}")
    for command in (["status"], ["status", "--json"], ["table"]):
        result = CliRunner().invoke(app, ["fleet", *command, str(fleet.path)])
        if result.exit_code != 0:
            findings.add(f"untyped: grue fleet {command}: {result.exception!r} {result.output}"[:400])
    findings.elapsed_s = time.monotonic() - started
    return ", ".join(told)
