"""The comparison itself: workers that take turns, what each turn took, and who dropped out and why."""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from sides import BENCHMARKS, GRUE_ASK, Server, Side
from worker_process import WorkerError, WorkerProcess

sys.path.append(str(BENCHMARKS))

from children import ChatServer, chat_server
from measuring import Figure, figure, ratio

MODEL = "calls-1"
REQUESTS = 2

Rounds: TypeAlias = list[dict[str, dict[str, Any]]]


class Row(NamedTuple):
    """What one side took.

    Attributes:
        ratio: Its time by grue's, the median over the pairs; `None` if grue did not take part.
        peak_mb: The most memory that its own process has held.
        cpu: Its own processor time, its servers' not counted; `None` where it says nothing.
        left: Turns after whose return their server process still ran.
    """

    name: str
    took: Figure
    ratio: float | None
    peak_mb: float | None = None
    cpu: Figure | None = None
    left: int = 0


class Table(NamedTuple):
    """One comparison.

    Attributes:
        failed: Who dropped out, and why.
        skipped: Why nothing was measured; empty otherwise.
        load: The system's load, averaged over a minute, before and after.
        facts: Single figures beside it.
    """

    name: str
    title: str
    rows: Sequence[Row] = ()
    failed: Mapping[str, str] = {}
    load: tuple[float, float] = (0.0, 0.0)
    skipped: str = ""
    facts: Sequence[Figure] = ()


def compare_turns(sides: Sequence[Side], server: Server, turns: int) -> Table:
    """Run so many turns of each side against a server, after a warm-up turn that is checked."""

    def one(worker: WorkerProcess) -> dict[str, Any]:
        report = worker.ask()
        return {**report, "left": worker.running(server.command[-1])}

    load = os.getloadavg()[0]
    with chat_server() as chat, tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        start = Start(stack, lambda side: turn_command(side, chat, Path(folder), server))
        workers = start.all(sides, lambda worker: _check(worker, chat, server))
        rounds = _take_turns(workers, turns, one, start.failed)
        boots = [_boot_ms(server.command) for _ in range(min(turns, 10))]
    rows = [_turn_row(name, rounds) for name in workers]
    facts = [figure("from its spawn to its first answer, the server alone takes", "ms", boots)]
    title, loads = f"A turn, {server.title}", (load, os.getloadavg()[0])
    return Table(server.name, title, rows, start.failed, loads, facts=facts)


def compare_cold(sides: Sequence[Side], server: Server, starts: int) -> Table:
    """Start each side anew, time and again, until its first turn is answered."""
    load = os.getloadavg()[0]
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    failed: dict[str, str] = {}
    with chat_server() as chat, tempfile.TemporaryDirectory() as folder:
        for number in range(starts):
            for side in _rotated(sides, number):
                if side.name in failed:
                    continue
                # A trace never goes into a file that is there already.
                fresh = Path(tempfile.mkdtemp(dir=folder))
                begun = time.perf_counter()
                try:
                    with WorkerProcess(turn_command(side, chat, fresh, server)) as worker:
                        worker.ask()
                        seconds[side.name].append((time.perf_counter() - begun) * 1e3)
                except WorkerError as error:
                    failed[side.name] = str(error)
    samples = {name: taken for name, taken in seconds.items() if name not in failed}
    rows = [Row(name, figure(name, "ms", taken), _to_grue(samples, name)) for name, taken in samples.items()]
    title = "The first turn of a new process, interpreter and imports included"
    return Table("cold", title, rows, failed, (load, os.getloadavg()[0]))


def compare_asks(sides: Sequence[Side], rounds: int, asks: int) -> Table:
    """Let each side ask and answer so often, one question at a time."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        traced = [str(Path(folder) / "trace.jsonl")]
        start = Start(stack, lambda side: side.command + (traced if side is GRUE_ASK else []))
        workers = start.all(sides, lambda worker: worker.ask(str(asks)))
        taken = _take_turns(workers, rounds, lambda worker: worker.ask(str(asks)), start.failed)
    samples = {name: [turn[name]["us"] for turn in taken] for name in workers}
    rows = [
        Row(name, figure(name, "us", samples[name]), _to_grue(samples, name), taken[-1][name]["peak_mb"])
        for name in workers
    ]
    title = "Ask and answer between two actors in one process"
    return Table("ask", title, rows, start.failed, (load, os.getloadavg()[0]))


def turn_command(side: Side, chat: ChatServer, folder: Path, server: Server) -> list[str]:
    """Return how to start the worker of a side for turns."""
    trace = [str(folder / f"{side.name}.jsonl")] if side.role else []
    return [*side.command, chat.base_url, MODEL, *trace, *server.command]


class Start:
    """Starts workers; those that cannot be had, or do not do the work, are noted in `failed`."""

    def __init__(self, stack: ExitStack, command: Callable[[Side], Sequence[str]]) -> None:
        self.failed: dict[str, str] = {}
        self._stack = stack
        self._command = command

    def all(
        self, sides: Sequence[Side], warm_up: Callable[[WorkerProcess], object]
    ) -> dict[str, WorkerProcess]:
        """Return the workers by name, each warm."""
        workers = {}
        for side in sides:
            if not side.installed:
                self.failed[side.name] = "not installed as pinned; run this with --install"
                continue
            worker = self._stack.enter_context(WorkerProcess(self._command(side)))
            try:
                warm_up(worker)
            except WorkerError as error:
                self.failed[side.name] = str(error)
            else:
                workers[side.name] = worker
        return workers


def _check(worker: WorkerProcess, chat: ChatServer, server: Server) -> None:
    chat.received()
    answer = worker.ask()["answer"]
    requests, last = chat.received()["requests"], json.dumps(chat.last())
    if (answer, requests) != ("done", REQUESTS) or server.result not in last:
        raise WorkerError(f"did not do the work: {requests} requests, answer {answer!r}, {last[:100]}")


def _take_turns(
    workers: dict[str, WorkerProcess],
    rounds: int,
    one: Callable[[WorkerProcess], dict[str, Any]],
    failed: dict[str, str],
) -> Rounds:
    taken: Rounds = []
    for number in range(rounds):
        taken.append({})
        for name in _rotated(list(workers), number):
            try:
                taken[-1][name] = one(workers[name])
            except WorkerError as error:
                failed[name] = str(error)
                del workers[name]
    return taken


def _turn_row(name: str, rounds: Rounds) -> Row:
    walls = {side: [turn[side]["wall_s"] * 1e3 for turn in rounds if side in turn] for side in (name, "grue")}
    cpu = figure(name, "ms", [turn[name]["cpu_s"] * 1e3 for turn in rounds])
    left = sum(turn[name]["left"] > 0 for turn in rounds)
    took = figure(name, "ms", walls[name])
    return Row(name, took, _to_grue(walls, name), rounds[-1][name]["peak_mb"], cpu, left)


def _to_grue(samples: Mapping[str, Sequence[float]], name: str) -> float | None:
    ours = samples.get("grue", ())
    return ratio(samples[name], ours) if len(ours) == len(samples[name]) else None


def _rotated(items: Sequence[Any], number: int) -> list[Any]:
    shift = number % len(items) if items else 0
    return [*items[shift:], *items[:shift]]


def _boot_ms(command: Sequence[str]) -> float:
    client = {"capabilities": {}, "clientInfo": {"name": "floor", "version": "1"}}
    params = {"protocolVersion": "2025-11-25", **client}
    begun = time.perf_counter()
    # A server answers lines with lines of JSON, as a worker does.
    with WorkerProcess(command) as process:
        process.ask(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}))
        return (time.perf_counter() - begun) * 1e3
