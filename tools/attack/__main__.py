"""Attack every input from outside with seeded, hostile cases, each with a turn around it, for some time.

    python tools/attack                                10 minutes
    python tools/attack --seconds 60 --seed 3          a minute, other cases
    python tools/attack --case stdio-7000012           one case again; as often as you like, it is the same

A case is wrong if a turn ends otherwise than with an outcome or a typed error, an actor crashes, a limit is
exceeded by more than 0.5 s, memory grows by more than 4 times the largest input that the limits admit, a
process or thread is left, the trace does not replay, a warning says that something was forgotten, or a tool
runs with arguments that the model has not sent, or without a clear approval of what it is now. Exit status 1: at least one was.

What takes part: `casebook.py` (what a case is), `damage.py`, `replies.py` and `tool_server.py` (what is hostile),
`endpoint.py` (its process), `worker.py` with `turns.py`, `files.py`, `fleets.py`, `policies.py` and `judge.py` (what is attacked, and how it is
judged).
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from casebook import names

_HERE = Path(__file__).parent
_HANGS_S = 60.0
"""For one case, before its worker is given up."""

_START_S = 60.0


class Endpoint:
    """The hostile endpoint's process."""

    def __init__(self) -> None:
        command = [sys.executable, str(_HERE / "endpoint.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


class Worker:
    """A process that runs cases, one after the other; replaced when it hangs or dies."""

    def __init__(self, port: int, folder: str) -> None:
        self._port = port
        self._folder = folder
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_HERE / "worker.py"), str(self._port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": self._folder},  # it is killed, and cannot tidy up
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, args=(self._process, self._lines), daemon=True).start()
        if self._lines.get(timeout=_START_S).strip() != "ready":
            raise SystemExit("attack: the worker does not start")

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put("")

    def run(self, name: str) -> dict[str, Any]:
        """Run a case and return its report."""
        assert self._process.stdin is not None
        told = {"case": name, "told": "", "grown": 0, "elapsed_s": 0.0}
        try:
            self._process.stdin.write(f"{name}\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=_HANGS_S)
        except (queue.Empty, BrokenPipeError):
            line = "hung"
        if line not in ("", "hung"):
            said: dict[str, Any] = json.loads(line)
            return said
        self.close()
        status = self._process.returncode
        self._start()
        return told | {
            "wrong": [f"hangs for {_HANGS_S:g} s" if line else f"the worker died, status {status}"]
        }

    def close(self) -> None:
        """End it, with whatever it was doing."""
        self._process.kill()
        self._process.communicate()


class Tally:
    """What has been found so far."""

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self.cases: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.failed = 0
        self.late_once = 0
        self.most_grown = 0
        self._lock = threading.Lock()

    def add(self, said: dict[str, Any]) -> None:
        """Count a case, and print it if it is wrong."""
        with self._lock:
            self.cases[said["case"].partition("-")[0]] += 1
            self.most_grown = max(self.most_grown, said["grown"])
            if self._verbose:
                print(
                    f"{said['case']}: {said['told']} ({said['elapsed_s']} s, {said['grown'] >> 20} MiB)",
                    flush=True,
                )
            if not said["wrong"]:
                return
            self.failed += 1
            for what in said["wrong"]:
                self.wrong[what.partition(":")[0]] += 1
            print(f"WRONG {said['case']} ({said['told']}; {said['elapsed_s']} s, {said['grown'] >> 20} MiB)")
            for what in said["wrong"]:
                print(f"      {what}")
            print(f"      again: python tools/attack --case {said['case']}", flush=True)

    def summary(self, elapsed_s: float) -> str:
        """Return it in a few lines."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.cases.items()))
        found = ", ".join(f"{count} {kind}" for kind, count in self.wrong.most_common()) or "nothing wrong"
        return (
            f"{sum(self.cases.values())} cases in {elapsed_s:.0f} s ({kinds})\n"
            f"{self.failed} wrong: {found}\n"
            f"memory grew by at most {self.most_grown >> 20} MiB in a case; {self.late_once} late once, not again"
        )


def _attack(worker: Worker, source: Any, until: float, tally: Tally) -> None:
    try:
        while time.monotonic() < until:
            name = next(source)
            said = worker.run(name)
            late = [what for what in said["wrong"] if what.startswith("late")]
            if late and len(late) == len(said["wrong"]):
                # The machine may have been busy. What is too slow is too slow twice.
                said = worker.run(name)
                tally.late_once += not said["wrong"]
            tally.add(said)
    finally:
        worker.close()


class _Shared:
    """An iterator that several threads take from."""

    def __init__(self, seed: int) -> None:
        self._names = names(seed)
        self._lock = threading.Lock()

    def __next__(self) -> str:
        with self._lock:
            return str(next(self._names))


def main() -> int:
    """Attack, print what was found, and return the exit status."""
    parser = argparse.ArgumentParser(description="Attack every input from outside.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--jobs", type=int, default=1, help="workers at a time; more make limits look exceeded"
    )
    parser.add_argument("--case", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--verbose", action="store_true", help="print every case")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="grue-attack-", ignore_cleanup_errors=True) as folder:
        return _attacked(options, folder)


def _attacked(options: argparse.Namespace, folder: str) -> int:
    started = time.monotonic()
    tally = Tally(verbose=options.verbose or bool(options.case))
    endpoint = Endpoint()
    try:
        workers = [Worker(endpoint.port, folder) for _ in range(options.jobs if not options.case else 1)]
        if options.case:
            for name in options.case:
                tally.add(workers[0].run(name))
            workers[0].close()
        else:
            source, until = _Shared(options.seed), time.monotonic() + options.seconds
            threads = [
                threading.Thread(target=_attack, args=(each, source, until, tally)) for each in workers
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        endpoint.close()
    print(tally.summary(time.monotonic() - started))
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
