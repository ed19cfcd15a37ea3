"""`Runner.map` with a real server that starts slowly: how close is a batch to the highest possible speed?"""

import os
import resource
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from children import HERE, Worker, chat_server
from measuring import Bar, Effort, Section, figure, rotated
from turns import boot_ms

sys.path.append(str(HERE / "peers"))

from sides import servers

SIDES = {
    "functions": "function tools, no server",
    "beside": 'start="beside_turn"',
    "presumed": "presumed listings alone",
    "fresh": "a session each turn",
}
MODEL = "calls-1"
CONCURRENCY = 2
ROUNDS = 3
COMPARED = ("functions", "beside")
"""All that the bars need; a quick run starts only these."""

FEW = 1
"""Rounds of the other sides."""

TITLE = "A batch of turns over npm's sequential-thinking, two at a time"


def map_section(effort: Effort) -> Section:
    """Compare a batch's speed with the highest possible one; it must reach 0.9 of it."""
    node = next(server for server in servers() if server.name == "node")
    if node.absent:
        return Section(
            "map", TITLE, f"Not measured: {node.absent}.", [], facts={"not measured": "no npm server"}
        )
    quick = effort.batch < 10
    sides = COMPARED if quick else tuple(SIDES)
    with chat_server(delay_ms=effort.reply_ms) as chat, tempfile.TemporaryDirectory() as folder:
        with ExitStack() as stack:
            workers = {
                side: stack.enter_context(
                    Worker(
                        "map_worker.py",
                        *(side, chat.base_url, MODEL, str(Path(folder, f"{side}.jsonl")), str(CONCURRENCY)),
                        *node.command,
                    )
                )
                for side in sides
            }
            for side, worker in workers.items():
                _batch_ms(side, worker, CONCURRENCY)  # not counted: it makes grue know the server's listing
            took: dict[str, list[float]] = {side: [] for side in sides}
            for number in effort.within(1 if quick else ROUNDS):
                for side in rotated(sides, number):
                    if side in COMPARED or number < FEW:
                        took[side].append(_batch_ms(side, workers[side], _turns(side, effort)))
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            boots = [boot_ms(node.command) for _ in range(2 if quick else 1 + ROUNDS)]
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        dropped = sum(trace.read_text().count('"ReplyDropped"') for trace in Path(folder).glob("*.jsonl"))
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return _section(took, boots, cpu_s * 1e3 / len(boots), dropped, effort)


def _section(
    took: Mapping[str, Sequence[float]], boots: Sequence[float], cpu_ms: float, dropped: int, effort: Effort
) -> Section:
    cores = os.cpu_count() or 1
    boot, busy = median(boots), cpu_ms * CONCURRENCY / cores
    bounds = [max(turn, boot, busy) for turn in took["functions"]]
    reached = median(bound / turn for bound, turn in zip(bounds, took["beside"], strict=True))
    return Section(
        "map",
        TITLE,
        f"Measured: wall time of a batch of {effort.batch} turns with a tool call (half as many without a "
        f"server), times {CONCURRENCY}, by its turns; sides in turn; each reply takes {effort.reply_ms:.0f} "
        "ms; trace in a file. The bound "
        "is the largest of a turn without a server, the server's boot, and the boot's processor time times "
        f"{CONCURRENCY} by the cores.",
        [
            *(figure(SIDES[side], "ms", times) for side, times in took.items()),
            figure("spawn to first answer", "ms", boots),
            figure("the bound", "ms", bounds),
        ],
        [
            Bar(
                "a batch by `map`: speed, as a share of the highest possible",
                reached,
                0.9,
                "x",
                at_least=True,
            ),
            Bar("a batch by `map`: replies of the model that grue dropped", dropped, 0),
        ],
        {"the server's processor time to boot and end": f"{cpu_ms:.0f} ms"},
    )


def _turns(side: str, effort: Effort) -> int:
    """Return the number of turns in a batch. Without a server fewer suffice: their times vary little."""
    return max(CONCURRENCY, effort.batch // 2) if side == "functions" else effort.batch


def _batch_ms(side: str, worker: Worker, turns: int) -> float:
    """Run a batch, and return the milliseconds that one of its concurrent slots took for each turn."""
    report = worker.ask(str(turns))
    if report["done"] != turns:
        raise RuntimeError(f"{side}: {report['done']} of {turns} turns were answered")
    return float(report["wall_s"]) * 1e3 * CONCURRENCY / turns
