"""Costs that grow with the work: long turns, many agents at once, and many turns in one process."""

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from children import Worker, chat_server
from measuring import Bar, Effort, Section, figure, interleave, ratio
from servers.chat_server import completion

from grue import (
    FunctionTools,
    LlmSettings,
    Recorder,
    Runner,
    TraceWriter,
    TurnLimits,
    TurnRequest,
)
from grue.transports.llm.endpoint import LlmEndpoint

NEAR_LINEAR = 1.25
"""How much more a further iteration may cost late in a turn than early."""

SETTLED = 100
"""Turns after which nothing may grow."""

GROWN_MB = {"in use": 0.5, "resident": 2.0}
"""What the memory may be above that then: 50 bytes a turn of malloc's; Python's own arenas have holes."""

GROWN_BLOCKS = 2000
"""And Python's blocks of memory, a fifth of an object a turn; caches fill for some hundred turns more."""


class LongTurn(NamedTuple):
    """The costs of one long turn."""

    cpu_ms: float
    trace_bytes: int
    sent_bytes: int


class InProcessModel(httpx.AsyncBaseTransport):
    """An httpx transport that answers requests itself. `cpu_s` is its own CPU time, to be subtracted.

    Args:
        reply: Returns the reply to what `read` returns.
        read: Decodes the body of a request, or the part of it that the reply depends on.
    """

    def __init__(
        self,
        reply: Callable[[dict[str, Any]], dict[str, Any]] = completion,
        read: Callable[[bytes], dict[str, Any]] = json.loads,
    ) -> None:
        self._reply, self._read = reply, read
        self.sent_bytes = 0
        self.cpu_s = 0.0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the reply to a request, and add the time that this took to `cpu_s`."""
        begun = time.process_time()
        body = await request.aread()
        self.sent_bytes += len(body)
        response = httpx.Response(200, json=self._reply(self._read(body)))
        self.cpu_s += time.process_time() - begun
        return response


async def echo(text: str) -> str:
    """Return the text that was given."""
    return text


def long_turn_section(effort: Effort) -> Section:
    """Show that CPU time and trace grow in proportion to the iterations, not to their square."""
    counts = effort.iterations
    turns: dict[int, list[LongTurn]] = {count: [] for count in counts}
    long_turn(counts[0])
    for _ in effort.within(max(2, effort.rounds // 5)):
        for count in counts:
            turns[count].append(long_turn(count))
    cpu = {count: [turn.cpu_ms for turn in turns[count]] for count in counts}
    traced = {count: [turn.trace_bytes for turn in turns[count]] for count in counts}
    early, late = (f"{start}-{end}" for start, end in pairwise(counts))
    cost, size = further_iterations(cpu), further_iterations(traced)
    return Section(
        "long",
        f"A turn of {', '.join(map(str, counts[:-1]))} and {counts[-1]} iterations",
        "Measured: this process's CPU for whole turns with a function tool, trace in a file, the model in "
        "the same process with its own work taken out: loop, encoding, httpx, trace. Bytes sent are shown "
        "apart: the protocol sends the whole conversation each time, so they grow with the square.",
        [
            *(figure(f"CPU, {count} iterations", "ms", cpu[count]) for count in counts),
            figure(f"CPU, one more iteration, {early}", "ms", cost[0]),
            figure(f"CPU, one more iteration, {late}", "ms", cost[1]),
        ],
        [
            Bar(
                "long turn: CPU of a late iteration, as a ratio to an early one's",
                ratio(cost[1], cost[0]),
                NEAR_LINEAR,
                "x",
            ),
            Bar(
                "long turn: trace bytes of a late iteration, as a ratio to an early one's",
                ratio(size[1], size[0]),
                NEAR_LINEAR,
                "x",
            ),
        ],
        {
            **{f"trace, {count} iterations": _kb(turns[count][0].trace_bytes) for count in counts},
            **{f"bytes sent, {count} iterations": _kb(turns[count][0].sent_bytes) for count in counts},
        },
    )


def further_iterations(samples: Mapping[int, Sequence[float]]) -> list[list[float]]:
    """For each two neighbouring counts, return the cost of one more iteration in each round."""
    return [
        [(after - before) / (end - start) for before, after in zip(samples[start], samples[end], strict=True)]
        for start, end in pairwise(samples)
    ]


def long_turn(iterations: int) -> LongTurn:
    """Run one turn with `iterations` tool calls, one after the other."""
    model = InProcessModel()
    settings = LlmSettings(base_url="http://127.0.0.1/v1", model=f"calls-{iterations}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        recorder, writer = Recorder(), TraceWriter(path, episode="benchmark")
        recorder.add(writer)
        runner = Runner(
            llm=LlmEndpoint(settings, transport=model),
            servers={"tools": FunctionTools({"echo": echo})},
            limits=TurnLimits(max_tool_iterations=iterations + 1),
            recorder=recorder,
        )
        request: TurnRequest[str] = TurnRequest(system="You play.", user="You are in a room.")
        begun = time.process_time()
        outcome = runner.run_turn(request)
        cpu_s = time.process_time() - begun - model.cpu_s
        writer.close()
        if outcome.iterations != iterations:
            raise RuntimeError(f"{outcome.iterations} iterations instead of {iterations}: {outcome.reason}")
        return LongTurn(cpu_s * 1e3, path.stat().st_size, model.sent_bytes)


def agents_section(effort: Effort) -> Section:
    """Compare many agents of grue in one event loop with agents that use only httpx and anyio."""
    with chat_server() as chat, tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        workers = {
            side: stack.enter_context(
                Worker("agents_worker.py", side, chat.base_url, "calls-1", str(Path(folder) / side))
            )
            for side in ("grue", "bare")
        }
        alone = {side: float(worker.ask("1")["peak_mb"]) for side, worker in workers.items()}
        for worker in workers.values():
            _all_done(worker, effort.agents)
        walls = interleave(
            effort.within(max(2, effort.agents // 8)),
            {side: partial(_all_done, worker, effort.agents) for side, worker in workers.items()},
        )
        peaks = {side: float(worker.ask(str(effort.agents))["peak_mb"]) for side, worker in workers.items()}
    each = {side: (peaks[side] - alone[side]) / (effort.agents - 1) for side in workers}
    return Section(
        "agents",
        f"{effort.agents} agents at once in one process, a function tool each",
        "Measured: wall time until all turns of one tool call are done, HTTP connections shared, and the "
        "peak memory above that of one agent. Each agent has a Runner and run_turn_async.",
        [
            figure(f"grue, {effort.agents} turns", "ms", walls["grue"]),
            figure("bare httpx and anyio", "ms", walls["bare"]),
        ],
        [
            Bar(
                "many agents at once: throughput, as a ratio to a bare httpx loop's",
                ratio(walls["bare"], walls["grue"]),
                0.9,
                "x",
                True,
            ),
            Bar("many agents at once: memory of each agent after the first", each["grue"], 2.0, "MB"),
        ],
        {
            "grue: memory an agent": f"{each['grue']:.2f} MB",
            "bare: memory an agent": f"{each['bare']:.2f} MB",
        },
    )


def many_turns_section(effort: Effort) -> Section:
    """Show that a process does not grow in 10,000 turns."""
    with (
        chat_server() as chat,
        tempfile.TemporaryDirectory() as folder,
        Worker("scale_worker.py", "turns", chat.base_url, folder) as worker,
    ):
        before = worker.ask(str(SETTLED))
        blocks = [worker.ask(str(effort.in_a_row // 10)) for _ in range(10)]
    after = blocks[-1]
    facts = {
        "resident memory, MB": "memory_mb",
        "in use by malloc, MB": "malloc_mb",
        "kept free by malloc, MB": "malloc_free_mb",
        "Python's blocks, thousands": "thousand_blocks",
        "descriptors": "descriptors",
        "processes": "processes",
    }
    return Section(
        "many",
        f"{effort.in_a_row} turns in one process, function tools",
        f"Measured: what the process holds after {SETTLED} turns and after {effort.in_a_row} more, one after "
        "the other, an event loop each, trace in a file. In use is what malloc has given out and not got "
        "back. What it keeps free is resident, too, and grows by the holes that asyncio's reads leave "
        "(256 KiB each, cut to what came); no bar holds for that. `soak.py` runs turns with good and faulty "
        "servers.",
        [
            figure("a turn, means of a tenth each", "ms", [block["wall_ms"] for block in blocks]),
            figure("own CPU", "ms", [block["cpu_ms"] for block in blocks]),
        ],
        grown(before, after),
        {label: f"{before[name]:.4g} .. {after[name]:.4g}" for label, name in facts.items()},
    )


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> list[Bar]:
    """Return the limits for the growth of a process between two results of `scale_worker.held`."""
    more = {name: after[name] - before[name] for name in before}
    not_free = more["memory_mb"] - more["malloc_free_mb"]
    return [
        Bar(
            "many turns in one process: growth of memory in use by malloc",
            more["malloc_mb"],
            GROWN_MB["in use"],
            "MB",
        ),
        Bar(
            "many turns in one process: growth of Python's memory blocks",
            more["thousand_blocks"] * 1e3,
            GROWN_BLOCKS,
        ),
        Bar(
            "many turns in one process: growth of resident memory that is not free",
            not_free,
            GROWN_MB["resident"],
            "MB",
        ),
        Bar("many turns in one process: growth of open descriptors", more["descriptors"], 0),
        Bar("many turns in one process: growth of threads", more["threads"], 0),
        Bar("many turns in one process: growth of child processes", more["processes"], 0),
    ]


def _all_done(worker: Worker, count: int) -> float:
    reported = worker.ask(str(count))
    if reported["answers"] != count:
        raise RuntimeError(f"{reported['answers']} of {count} agents came to an answer")
    return float(reported["wall_s"]) * 1e3


def _kb(count: int) -> str:
    return f"{count / 1000:.0f} kB"
