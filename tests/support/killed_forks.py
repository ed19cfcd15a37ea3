"""Record turns, fork them at random messages, kill the forks' processes, and print a report on each.

    python killed_forks.py FOLDER SEED KILLS

This is a program, because it imports everything once and then runs each fork in a forked process, to save
time. The endpoint runs in the parent process and records the requests of all forks.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from forked_turns import Box, Record, fork, records, runner

from grue.errors import TraceError
from grue.tracing.reading import open_episode
from grue.tracing.replay import replay

WITHIN_S = 60.0


class Effects(Box):
    """Tools that write each call as a line into a file, which remains if the process is killed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def servers(self) -> dict[str, object]:
        self.effects = self  # type: ignore[assignment]  # it takes what the tools append
        return super().servers()

    def append(self, effect: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{effect}\n")


def forked(record: Record, place: int | None, trace: Path, effects: Path) -> int:
    """Fork a turn in a process of its own, with tools that would show an effect; return the process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 9
    try:
        servers = Effects(effects).servers()
        with runner(record.server, record.wire, trace, servers=servers) as each:
            each.fork(record.trace, turn=record.turn, at=place, misses="call")
        status = 0
    finally:
        os._exit(status)


def kill_at(pid: int, trace: Path, lines: int) -> bool:
    """Kill a fork's process once its trace has `lines` lines; return whether it was still alive."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
        if trace.exists() and trace.read_bytes().count(b"\n") >= lines:
            break
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sound(trace: Path) -> bool:
    """Return whether the trace of a killed fork can be read and replayed."""
    try:
        return all(each.divergence is None for each in replay(open_episode(trace)))
    except TraceError:
        return trace.stat().st_size == 0  # the process was killed before it had written a line


def one(folder: Path, number: int, record: Record, chance: random.Random) -> dict[str, object]:
    """Fork a turn and kill the fork, then fork it at the same message without a kill. Return a report."""
    place = chance.choice([None, *(each.seq for each in record.envelopes)])
    trace, effects = folder / f"fork-{number}.jsonl", folder / f"effects-{number}"
    before = digest(record.trace)
    pid = forked(record, place, trace, effects)
    killed = kill_at(pid, trace, chance.randint(1, len(record.envelopes)))
    outcome, sent = fork(record, folder / f"again-{number}.jsonl", at=place)
    return {
        "killed": killed,
        "effects": effects.read_text() if effects.exists() else "",
        "record unchanged": digest(record.trace) == before,
        "sound": not trace.exists() or sound(trace),
        # Compare the requests as sets, because a request of the killed fork may arrive late.
        "same again": outcome.response == record.response and {*sent} <= {*record.requests},
    }


def main(folder: Path, seed: int, kills: int) -> None:
    chance, killed, number = random.Random(seed), 0, 0
    with records(folder) as found:
        turns = list(found.values())
        while killed < kills and number < 4 * kills:
            number += 1
            ended = one(folder, number, chance.choice(turns), chance)
            killed += bool(ended["killed"])
            print(json.dumps(ended), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
