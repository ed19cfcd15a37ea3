"""Large messages on every path: whether their cost is linear, and how long the event loop stands still."""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from children import HERE, environment
from large_worker import PATHS
from measuring import Bar, Effort, Figure, Section, figure

SIZES = (10_000_000, 60_000_000)
ADMITTED = 8_000_000
"""About the largest message that is read whole; what is larger is refused, unless the limits are raised."""
MOST_GAP_MS = 50.0
MOST_RATIO = 8.0


def large_section(effort: Effort) -> Section:
    """Run a turn with a large message on each path, in a process of its own."""
    rounds = max(1, min(3, effort.rounds // 8))
    sizes = (*SIZES, ADMITTED) if effort.rounds > 2 else (100_000,)
    figures: list[Figure] = []
    bars: list[Bar] = []
    facts: dict[str, str] = {}
    with large_chat_server() as url:
        for path in PATHS:
            seconds, gaps = [], []
            for size in sizes:
                ran = [one_turn(url, path, size) for _ in range(rounds)]
                seconds.append(statistics.median(turn["seconds"] for turn in ran))
                gaps.append(statistics.median(turn["gap_ms"] for turn in ran))
                label = f"{path}, {size / 1e6:g} MB"
                figures.append(figure(label, "s", [turn["seconds"] for turn in ran]))
                facts[label] = f"{ran[-1]['outcome']}, {max(turn['peak_mb'] for turn in ran):.0f} MB"
                bars.append(Bar(f"standstill, {label}", gaps[-1], MOST_GAP_MS, "ms"))
            if len(seconds) > 1:
                bars.append(Bar(f"time, {path}", seconds[1] / seconds[0], MOST_RATIO, "x"))
    return Section(
        "large",
        "Messages of 10 and 60 MB, and of 8 MB",
        "A turn with one large message: how long it takes, and the longest time between two ticks of a task"
        " that is to run every millisecond; of that what the process worked itself. Beside each size: what"
        " came of the turn, and the peak memory. 8 MB are about the largest message that is read whole;"
        " larger ones from outside are refused.",
        figures,
        bars,
        facts,
    )


def one_turn(url: str, path: str, size: int) -> dict[str, Any]:
    """Run one in a process of its own."""
    command = (sys.executable, str(HERE / "large_worker.py"), url, path, str(size))
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    reported: dict[str, Any] = json.loads(done.stdout)
    return reported


@contextmanager
def large_chat_server() -> Iterator[str]:
    """Run the server of long replies in a process of its own; yield its base URL."""
    command = (sys.executable, str(HERE / "servers" / "large_chat_server.py"))
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment(), text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.communicate()
