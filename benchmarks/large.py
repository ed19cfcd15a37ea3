"""Large messages on every path: is their cost linear, and for how long do they block the event loop?"""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

from children import HERE, environment
from large_worker import PATHS
from measuring import Bar, Effort, Figure, Section, figure

SIZES = (1_000_000, 8_000_000)
"""The loop must not stand still up to the first; the second is about the largest that is read whole."""
REFUSED = 60_000_000
"""What is so large is refused, unless the limits are raised."""
NAMES = {
    "stdio text": "a text result by stdio",
    "stdio structured": "a structured result by stdio",
    "stdio image": "an image by stdio",
    "tool listing": "a listing of tools",
    "HTTP text": "a text result by HTTP",
    "SSE text": "a text result by SSE",
    "reply": "a reply of the model",
    "reply, streamed": "a streamed reply of the model",
    "tool arguments": "the arguments of a call",
    "tool arguments, streamed": "the streamed arguments of a call",
    "image, shown to the model": "an image that the model is sent",
    "user's text": "a user's text",
    "user's text with secrets": "a user's text with secrets",
    "trace, written": "writing a trace message",
    "trace, read": "reading a trace message",
}
"""What the bars call each path."""
MOST_GAP_MS = 50.0
MOST_RATIO = 10.0
ROUNDS = 3
"""If there is time for them: one takes about a minute and a half."""


def large_section(effort: Effort) -> Section:
    """Run a turn with a large message on each path, each in its own process; a quick run uses one process."""
    quick = effort.rounds <= 2
    sizes = (100_000,) if quick else (*SIZES, REFUSED)
    processes = [tuple(PATHS)] if quick else [(path,) for path in PATHS]
    ran: dict[tuple[str, int], list[dict[str, Any]]] = {}
    with large_chat_server() as url:
        for _ in effort.within(max(1, min(ROUNDS, effort.rounds // 8)), least=1):
            for paths, size in product(processes, sizes):
                for path, turn in zip(paths, turns(url, size, paths), strict=True):
                    ran.setdefault((path, size), []).append(turn)
    figures: list[Figure] = []
    bars: list[Bar] = []
    facts: dict[str, str] = {}
    for path in PATHS:
        seconds = []
        for size in sizes:
            rounds, label = ran[path, size], f"{path}, {size / 1e6:g} MB"
            seconds.append(figure(label, "s", [turn["seconds"] for turn in rounds]))
            facts[label] = f"{rounds[-1]['outcome']}, {max(turn['peak_mb'] for turn in rounds):.0f} MB"
            gap_ms = statistics.median(turn["gap_ms"] for turn in rounds)
            if size <= SIZES[0]:
                bars.append(
                    Bar(
                        f"{NAMES[path]}, {size / 1e6:g} MB: longest pause of the event loop",
                        gap_ms,
                        MOST_GAP_MS,
                        "ms",
                    )
                )
            else:
                facts[label] += f", a longest pause of {gap_ms:.0f} ms"
        figures += seconds
        if len(seconds) > 1:
            bars.append(
                Bar(
                    f"{NAMES[path]}: time with 8 MB, as a ratio to 1 MB",
                    seconds[1].median / seconds[0].median,
                    MOST_RATIO,
                    "x",
                )
            )
    return Section(
        "large",
        "Messages of 1 and 8 MB, and of 60 MB",
        "A turn with one large message: how long it takes, and the longest time between two ticks of a task"
        " that is to run every millisecond; of that what the process worked itself. Beside each size: what"
        " came of the turn, and the peak memory. 8 MB are about the largest message that is read whole;"
        " larger ones from outside are refused. The bars are about 1 MB, and about time that grows linearly.",
        figures,
        bars,
        facts,
    )


def turns(url: str, size: int, paths: Sequence[str]) -> list[dict[str, Any]]:
    """Run a turn on each path, all in one new process; return its reports."""
    command = (sys.executable, str(HERE / "large_worker.py"), url, str(size), *paths)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@contextmanager
def large_chat_server() -> Iterator[str]:
    """Run an LLM server that sends long replies, in a process of its own; yield its base URL."""
    command = (sys.executable, str(HERE / "servers" / "large_chat_server.py"))
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, env=environment(), text=True, process_group=0
    ) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.communicate()
