"""A process that runs turns of growing size: more iterations, history, bytes of a tool's result, or turns.

    python benchmarks/scale_worker.py KIND BASE_URL FOLDER

KIND is one of `KINDS`. A line on standard input is the size. The answer is a line of JSON with the costs of
the turn and the highest memory of this process so far. In all kinds but `turns`, the model answers inside
this process, and its processor time is subtracted (`scaling.InProcessModel`).
"""

import gc
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from children import MCP_SERVER
from memory import malloc_mb, peak_mb, resident_mb
from scaling import InProcessModel, echo

from grue import (
    FunctionTools,
    LlmSettings,
    Recorder,
    Runner,
    StdioServer,
    TraceWriter,
    TurnLimits,
    TurnRequest,
)
from grue.transports.llm.endpoint import LlmEndpoint

Grow: TypeAlias = Callable[[int], Mapping[str, float]]

SYSTEM = "You are the player of a text adventure."
USER = "You are in the living room. What do you do?"
NO_LIMIT = 10**9
"""Characters of a result that go to the model; with the default, 20,000, the curve would end there."""


def iterations(base_url: str, folder: Path) -> Grow:
    """Return a function that runs a turn with `size` tool calls, one after the other."""
    del base_url
    return lambda size: _measured(folder, {"tools": FunctionTools({"echo": echo})}, calls=size)


def history(base_url: str, folder: Path) -> Grow:
    """Return a function that runs a turn with a prompt of `size` bytes and one tool call."""
    del base_url
    return lambda size: _measured(folder, {"tools": FunctionTools({"echo": echo})}, user=_text(size))


def result(base_url: str, folder: Path) -> Grow:
    """Return a function that runs a turn with one call of a function tool, whose result has `size` bytes."""
    del base_url

    def grow(size: int) -> Mapping[str, float]:
        whole = _text(size)

        async def echo(text: str) -> str:
            """Return the same text whatever was given."""
            del text
            return whole

        return _measured(folder, {"tools": FunctionTools({"echo": echo})})

    return grow


def server_result(base_url: str, folder: Path) -> Grow:
    """Return a function that runs a turn with one call of a server's tool, whose result has `size` bytes."""
    del base_url

    def grow(size: int) -> Mapping[str, float]:
        arguments = (*MCP_SERVER[1:], "--result-bytes", str(size))
        server = StdioServer(name="plain", command=MCP_SERVER[0], args=arguments)
        return _measured(folder, {"plain": server})

    return grow


def turns(base_url: str, folder: Path) -> Grow:
    """Return a function that runs `size` more turns of one runner, with a function tool and a local model."""
    recorder = Recorder()
    recorder.add(TraceWriter(folder / "turns.jsonl", episode="benchmark"))
    llm = LlmSettings(base_url=base_url, model="calls-1")
    runner = Runner(llm=llm, servers={"tools": FunctionTools({"echo": echo})}, recorder=recorder)
    request: TurnRequest[str] = TurnRequest(system=SYSTEM, user=USER)

    def grow(size: int) -> Mapping[str, float]:
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(size):
            runner.run_turn(request)
        took = {"wall_ms": time.perf_counter() - wall, "cpu_ms": time.process_time() - cpu}
        gc.collect()
        return {**{name: seconds * 1e3 / size for name, seconds in took.items()}, **held()}

    return grow


def held() -> Mapping[str, float]:
    """Return how much memory this process has and uses, and its descriptors, threads and child processes.

    If the system does not report descriptors or processes, their number is 0.
    """
    descriptors = Path("/proc/self/fd")
    children = Path("/proc/self/task").glob("*/children")
    in_use_mb, free_mb = malloc_mb()
    return {
        "memory_mb": resident_mb(),
        "malloc_mb": in_use_mb,
        "malloc_free_mb": free_mb,
        "thousand_blocks": sys.getallocatedblocks() / 1e3,
        "descriptors": len(list(descriptors.iterdir())) if descriptors.exists() else 0,
        "threads": threading.active_count(),
        "processes": sum(len(pids.read_text().split()) for pids in children),
    }


def _measured(
    folder: Path, servers: dict[str, Any], *, calls: int = 1, user: str = USER
) -> Mapping[str, float]:
    model = InProcessModel()
    with tempfile.TemporaryDirectory(dir=folder) as own:
        recorder, writer = Recorder(), TraceWriter(Path(own) / "trace.jsonl", episode="benchmark")
        recorder.add(writer)
        settings = LlmSettings(base_url="http://127.0.0.1/v1", model=f"calls-{calls}")
        runner = Runner(
            llm=LlmEndpoint(settings, transport=model),
            servers=servers,
            limits=TurnLimits(max_tool_iterations=calls + 1, max_result_chars=NO_LIMIT),
            recorder=recorder,
        )
        request: TurnRequest[str] = TurnRequest(system=SYSTEM, user=user)
        cpu, wall = time.process_time(), time.perf_counter()
        outcome = runner.run_turn(request)
        took = {
            "wall_ms": (time.perf_counter() - wall - model.cpu_s) * 1e3,
            "cpu_ms": (time.process_time() - cpu - model.cpu_s) * 1e3,
        }
        writer.close()
        # Long messages are in files beside the trace.
        trace_bytes = sum(path.stat().st_size for path in Path(own).rglob("*") if path.is_file())
    if outcome.iterations != calls:
        raise RuntimeError(f"{outcome.iterations} iterations instead of {calls}: {outcome.reason}")
    return {**took, "trace_kb": trace_bytes / 1e3, "sent_kb": model.sent_bytes / 1e3}


def _text(size: int) -> str:
    return ("You are in a maze of twisty little passages, all alike.\n" * (size // 56 + 1))[:size]


KINDS = {
    "iterations": iterations,
    "history": history,
    "result": result,
    "server_result": server_result,
    "turns": turns,
}


def main() -> None:
    """For each line of standard input, run a turn of this size and report its costs."""
    kind, base_url, folder = sys.argv[1:]
    grow = KINDS[kind](base_url, Path(folder))
    for line in sys.stdin:
        reported = {**grow(int(line)), "peak_mb": peak_mb()}
        sys.stdout.write(json.dumps(reported) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
