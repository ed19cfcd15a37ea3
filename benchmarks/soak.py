"""Run thousands of turns with good and faulty servers in one process, and check that nothing grows.

    python benchmarks/soak.py                  2,000 turns, about four minutes
    python benchmarks/soak.py --turns 300 --warm-up 100
    python benchmarks/soak.py --turns 300 --mode ahead

Every second turn belongs to one long episode with a good server, in the mode `--mode`. The other turns go
through the rows of the fault matrix (`tests/support/fault_matrix.py`); each has its own runner, endpoint and
server. Prints the number of descriptors, threads and processes and the memory after the warm-up and after
every 200 turns. Exits with 1 if one of them has grown at the end, or if a turn has not ended as expected.
"""

import argparse
import gc
import itertools
import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from msgspec.structs import replace

from grue.engine.runner import Runner, TurnRequest
from grue.runtime.processes.guard import guard
from grue.runtime.processes.limits import ProcessLimits
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.transports.llm.endpoint import LlmSettings

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from fault_matrix import FAULTS
from fault_turns import GRACE_S, Fault, drive_turn

MARK = "GRUE_SOAK_MARK"
EVERY = 200
MEMORY_MB = 6.0
"""What the resident memory may be above that after the warm-up: the allocator's own ups and downs."""

SLOW = ("python-sdk-server", "line-of-8-mb", "turn-limit-and-stubborn")
"""Rows that would take most of the time; a second of their own interpreter's start, for instance."""

MODES: Mapping[str, Mapping[str, Any]] = {
    "turn": {},
    "episode": {"keep": "loop"},
    "ahead": {"keep": "loop", "start": "after_turn"},
    "kept": {"keep": "sessions"},
}
"""What the episode's runner is told; what lives from turn to turn is not to grow."""


class Held(NamedTuple):
    """The descriptors, threads, child processes and memory of this process at one moment."""

    turn: int
    descriptors: int
    threads: int
    processes: int
    memory_mb: float

    def __str__(self) -> str:
        return (
            f"{self.turn:6} turns  {self.descriptors:4} descriptors  {self.threads:3} threads  "
            f"{self.processes:3} processes  {self.memory_mb:7.1f} MB"
        )


def held(turn: int) -> Held:
    """Count them. Processes that have lost their parent count as child processes; the guard does not."""
    gc.collect()
    me = psutil.Process()
    mine = {child.pid for child in me.children(recursive=True)} - {guard.pid}
    marked = {
        process.pid for process in psutil.process_iter() if process.pid != me.pid and _is_marked(process)
    }
    return Held(turn, me.num_fds(), me.num_threads(), len(mine | marked), me.memory_info().rss / 2**20)


def _is_marked(process: psutil.Process) -> bool:
    try:
        return process.environ().get(MARK) == os.environ[MARK]
    except (psutil.Error, OSError):
        return False


def rows() -> Sequence[Fault]:
    """Return the rows of the matrix that are plain turns, with time limits as short as possible."""
    # Leave out messages of megabytes: for some rounds after them, the allocator keeps tens of megabytes.
    chosen = [
        fault
        for fault in FAULTS
        if fault.drive is None and fault.name not in SLOW and not fault.name.endswith("-mb")
    ]
    return [
        replace(
            fault,
            startup_s=min(fault.startup_s, 0.3) if fault.startup_s < 10 else fault.startup_s,
            call_s=min(fault.call_s, 0.1) if fault.call_s < 10 else fault.call_s,
            flags=tuple("0.15" if flag == "0.4" else flag for flag in fault.flags),
        )
        for fault in chosen
    ]


def episode_reply(request: LlmRequest) -> LlmReply:
    """Reply with a tool call, and after its result with the answer."""
    if any(message["role"] == "tool" for message in request.messages):
        return text_reply("done")
    return tool_calls_reply(("faulty.echo", {"text": "hi"}))


def soak(turns: int, warm_up: int, mode: str = "turn") -> int:
    """Run the turns, print the counts, and return the exit status."""
    samples: list[Held] = []
    surprises: Counter[str] = Counter()
    faults = itertools.cycle(rows())
    request = TurnRequest[str](system="Use the tool.", user="Go on.")
    with (
        ScriptedLlmServer(episode_reply) as llm,
        Runner(
            llm=LlmSettings(base_url=llm.base_url, model="scripted"),
            servers={"faulty": Fault(name="sound").server()},
            process_limits=ProcessLimits(exit_grace_s=GRACE_S, term_grace_s=GRACE_S),
            **MODES[mode],
        ) as episode,
    ):
        started = time.monotonic()
        for turn in range(1, turns + 1):
            if turn % 2:
                if episode.run_turn(request).kind != "answered":
                    surprises["the episode"] += 1
            else:
                fault = next(faults)
                if drive_turn(fault).outcome != fault.outcome:
                    surprises[fault.name] += 1
            llm.requests.clear()
            if turn in (warm_up, turns) or (turn > warm_up and turn % EVERY == 0):
                samples.append(held(turn))
                print(samples[-1], flush=True)
        print(f"{turns} turns in {time.monotonic() - started:.0f} s")
    return _judged(samples, surprises)


def _judged(samples: Sequence[Held], surprises: Counter[str]) -> int:
    first, last = samples[0], samples[-1]
    grown = [
        f"{name} grew from {before} to {after}"
        for name, before, after in zip(Held._fields[1:4], first[1:4], last[1:4], strict=True)
        if after > before
    ]
    if last.memory_mb > first.memory_mb + MEMORY_MB:
        grown.append(f"memory grew by {last.memory_mb - first.memory_mb:.1f} MB")
    wrong = [f"{name}: {count} turns did not end as they have to" for name, count in surprises.items()]
    for line in (*grown, *wrong):
        print(line, file=sys.stderr)
    return 1 if grown or wrong else 0


def main() -> None:
    """Read the options and run `soak`."""
    parser = argparse.ArgumentParser(description="Play turns without end and see whether anything grows.")
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--warm-up", type=int, default=100, help="turns before the first count")
    parser.add_argument("--mode", choices=MODES, default="turn", help="of the long episode")
    options = parser.parse_args()
    os.environ[MARK] = uuid.uuid4().hex
    sys.exit(soak(options.turns, options.warm_up, options.mode))


if __name__ == "__main__":
    main()
