"""Run a fleet's program while its processes are killed with -9, until everything is done.

    kills.py PROGRAM FOLDER [ARGUMENT]...

The program is run again whenever it was killed, or has not done all of its episodes. One of its workers is
killed whenever four more episodes are done; every eighth kill is that of the driver. `GRUE_UNDER_KILLS` tells
the program and its servers that they are in such a run. By its value their processes are found at the end.
"""

import contextlib
import os
import random
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path

import psutil

MARK, LOOK_S, EPISODES, DRIVER_EVERY, MOST_RUNS = "GRUE_UNDER_KILLS", 0.5, 4, 8, 100


def under_kills(program: str, folder: str, *rest: str) -> Counter[str]:
    """Run the program until it ends well; count its runs, the kills and the processes that are left."""
    counted, mark, last, kills = Counter[str](), uuid.uuid4().hex, 0, 0
    for _ in range(MOST_RUNS):
        counted["runs"] += 1
        command = [sys.executable, program, folder, *rest]
        with subprocess.Popen(command, env={**os.environ, MARK: mark}) as driver:
            while driver.poll() is None:
                time.sleep(LOOK_S)
                done = sum(1 for _ in Path(folder).glob("*/*/commit.json"))
                if done >= last + EPISODES and (victim := found(driver.pid, kills)):
                    victim.kill()
                    kills += 1
                    counted["drivers killed" if victim.pid == driver.pid else "workers killed"] += 1
                    last = done
        if driver.returncode == 0:
            deadline = time.monotonic() + 60
            while (left := [*marked(mark)]) and time.monotonic() < deadline:
                time.sleep(LOOK_S)
            counted["processes left"] = len(left)
            return counted
    raise SystemExit(f"still not done after {MOST_RUNS} runs")


def found(driver: int, before: int) -> psutil.Process | None:
    """Return the driver, or one of the workers: the children of its fork server."""
    try:
        process = psutil.Process(driver)
        workers = [each for helper in process.children() for each in helper.children()]
        return process if before % DRIVER_EVERY == DRIVER_EVERY - 1 else random.choice(workers)
    except (psutil.Error, IndexError):
        return None


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes of the run."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found += [each] if each.environ().get(MARK) == mark else []
    return found


if __name__ == "__main__":
    began = time.monotonic()
    print(dict(under_kills(*sys.argv[1:])), f"{time.monotonic() - began:.0f} s in all")
