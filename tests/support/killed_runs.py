"""Run the skill agent's example, kill its process at random times, resume the run, and print a report.

    python killed_runs.py FOLDER SEED KILLS

This is a program, because it imports everything once and then runs the example in forked processes, to save
time. It finds out what to import from a first run that is killed and resumed.
"""

import contextlib
import gc
import importlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import yaml  # noqa: F401 - imported once, before the forks

from grue.cli.run import EXAMPLE, RunOptions, run_task

WHOLE_LINES = 60
WITHIN_S = 60.0


def forked(options: RunOptions, log: Path) -> int:
    """Run a task in a process of its own; return the process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 9
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        status = 0 if run_task(options).succeeded else 1
        with log.with_name("modules").open("a") as modules:
            modules.writelines(f"{name}\n" for name in sys.modules)
    finally:
        os._exit(status)


def kill_at(pid: int, trace: Path, lines: int, delay_s: float) -> bool:
    """Kill a run `delay_s` after its trace has `lines` lines; return whether it was still alive."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
        if trace.exists() and trace.read_bytes().count(b"\n") >= lines:
            break
        time.sleep(0.001)
    time.sleep(delay_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def one(folder: Path, chance: random.Random) -> dict[str, object]:
    """Kill a run once or twice, and resume it after each kill. Return its result, files and output."""
    shutil.copytree(EXAMPLE.parent, folder)
    agent = folder / "agent.yaml"
    text = agent.read_text().replace("command: npx", "command: grue-no-npx")
    # Do not depend on the `python3` on the path, nor on what it imports at its start.
    text = text.replace("command: python3", f"command: {json.dumps(sys.executable)}")
    text = text.replace('args: ["${grueServers}/', 'args: ["-I", "-S", "${grueServers}/')
    agent.write_text(text)
    (folder / "workspace" / "report.md").unlink(missing_ok=True)
    run, log, kills = folder / "run", folder / "log", 0
    pid = forked(RunOptions(agent=agent, offline=True, run_dir=run, output="quiet"), log)
    for _ in range(chance.randint(1, 2)):
        lines = chance.randint(3, WHOLE_LINES)
        if not kill_at(pid, run / "trace.jsonl", lines, chance.uniform(0, 0.01)):
            break
        kills += 1
        if (run / "result.json").exists():  # the run had ended before the kill
            break
        pid = forked(RunOptions(resume=run, output="quiet"), log)
    else:
        os.waitpid(pid, 0)
    files = {
        str(path.relative_to(folder / "workspace")): path.read_text()
        for path in sorted((folder / "workspace").rglob("*"))
        if path.is_file()
    }
    result = json.loads((run / "result.json").read_text())
    return {"kills": kills, "reason": result["reason"], "files": files, "log": log.read_text()}


def import_all(folder: Path) -> None:
    """Import all modules that a run and its resumption import, so that the forks have them."""
    one(folder, random.Random(0))
    for name in dict.fromkeys((folder / "modules").read_text().split()):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the forks share these pages


def main() -> None:
    folder, seed, kills = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)
    import_all(folder / "first")
    done: list[dict[str, object]] = []
    while sum(int(str(each["kills"])) for each in done) < kills:
        done.append(one(folder / str(len(done)), chance))
    print(json.dumps(done))


if __name__ == "__main__":
    main()
