"""One turn by grue, by the hand-written script, and by blocking pipes, each in a long-lived process."""

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from children import MCP_SERVER, ChatServer, Worker, chat_server
from floor_script import Pipes
from measuring import Bar, Effort, Section, figure, interleave, ratio, rotated, steady

SIDES = {"grue": "grue", "script": "hand-written script", "floor": "blocking pipes and sockets"}
MODEL = "calls-1"


def turn_section(effort: Effort) -> Section:
    """Compare turns with one tool call (limits: 1.05 times the script's time, 80 MB)."""
    with chat_server() as chat, tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        workers = {side: stack.enter_context(_worker(side, chat, Path(folder))) for side in SIDES}
        for side, worker in workers.items():
            warm_up(side, worker, chat)
        rounds: list[dict[str, dict[str, Any]]] = []
        for number in effort.part(0.85).within(effort.turns):
            rounds.append({side: workers[side].ask() for side in rotated([*SIDES], number)})
            if steady({side: [turn[side]["wall_s"] for turn in rounds] for side in SIDES}):
                break
        boots = [boot_ms() for _ in effort.within(len(rounds))]
    wall = {side: [turn[side]["wall_s"] * 1e3 for turn in rounds] for side in SIDES}
    cpu = {side: [turn[side]["cpu_s"] * 1e3 for turn in rounds] for side in SIDES}
    peak = {side: float(rounds[-1][side]["peak_mb"]) for side in SIDES}
    return Section(
        "turn",
        "A turn with one tool call: spawn, list, two completions, a call, close",
        "Measured: wall time from the call to its return, in long-lived processes that take turns, after a "
        "warm-up turn. grue has its default settings and its trace in a file; the script keeps no trace. A "
        "fresh MCP server each turn that boots in about 30 ms; the LLM is a process on loopback. Not "
        "measured: imports, network, a model's thinking.",
        [
            *(figure(name, "ms", wall[side]) for side, name in SIDES.items()),
            *(figure(f"{name}: own CPU", "ms", cpu[side]) for side, name in SIDES.items()),
            figure("the MCP server: spawn to first answer", "ms", boots),
        ],
        [
            Bar(
                "time of a turn, as a ratio to the hand-written script's",
                ratio(wall["grue"], wall["script"]),
                1.05,
                "x",
            ),
            Bar("peak memory of a process that runs turns", peak["grue"], 80, "MB"),
        ],
        {
            "peak memory of the hand-written script": f"{peak['script']:.1f} MB",
            "turn time, as a ratio to blocking pipes": f"{ratio(wall['grue'], wall['floor']):.2f} x",
        },
    )


def cold_section(effort: Effort) -> Section:
    """Compare the first turns of new processes (limit: 1.10 times the script's time)."""
    with chat_server() as chat, tempfile.TemporaryDirectory() as folder:
        wall = interleave(
            effort.within(effort.cold_starts),
            {side: partial(_cold_ms, side, chat, Path(folder)) for side in SIDES},
        )
    return Section(
        "cold",
        "The first turn of a new process",
        "Measured: wall time from the start of the interpreter to the answer of the first turn, imports "
        "included. grue imports the MCP SDK while its server boots.",
        [figure(name, "ms", wall[side]) for side, name in SIDES.items()],
        [
            Bar(
                "time of the first turn of a new process, as a ratio to the script's",
                ratio(wall["grue"], wall["script"]),
                1.10,
                "x",
            )
        ],
    )


def boot_ms(command: Sequence[str] = MCP_SERVER) -> float:
    """Return the milliseconds from a spawn of the server to its first answer."""
    begun = time.perf_counter()
    pipes = Pipes(command)
    ours = {"capabilities": {}, "clientInfo": {"name": "boot", "version": "1"}}
    pipes.request("initialize", {"protocolVersion": "2025-11-25", **ours})
    took = time.perf_counter() - begun
    pipes.close()
    return took * 1e3


def _cold_ms(side: str, chat: ChatServer, folder: Path) -> float:
    # A new trace must not exist yet, so use a new folder.
    fresh = Path(tempfile.mkdtemp(dir=folder))
    begun = time.perf_counter()
    with _worker(side, chat, fresh) as worker:
        worker.ask()
        return (time.perf_counter() - begun) * 1e3


def _worker(side: str, chat: ChatServer, folder: Path) -> Worker:
    trace = str(folder / f"{side}.jsonl")
    return Worker("turn_worker.py", side, chat.base_url, MODEL, trace, *MCP_SERVER)


def warm_up(side: str, worker: Worker, chat: ChatServer) -> None:
    """Let a worker run its first turn, and check the turn's requests and answer.

    Raises:
        RuntimeError: The turn was not as expected.
    """
    chat.received()
    answer = worker.ask()["answer"]
    requests = chat.received()["requests"]
    if (answer, requests) != ("done", 2):
        raise RuntimeError(f"{side} did not do the work: {requests} requests, answer {answer!r}")
