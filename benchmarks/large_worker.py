"""Run turns with a large message, and report for how long each blocked the event loop.

    python benchmarks/large_worker.py CHAT_URL BYTES PATH...

Each PATH is one of `PATHS`. For each path, a turn with a small message runs first and is not counted. Then a
turn with a large message runs beside a task that should run every millisecond. Right before it, the garbage
is collected: otherwise the interpreter's first full collection after the imports, 0.1 s once in a process,
would come in any of the turns, whatever its message. The report is a line of JSON:

- `seconds`: the time of the turn.
- `gap_ms`: the longest time between two runs of the task. Time in which this process did not use the CPU does
  not count, because other processes on the machine may have caused it.
- `step_ms`: the longest callback of the event loop, in CPU time of its thread.
- `peak_mb`: the highest memory of this process so far.
- `outcome`: the kind of the turn's outcome, or the name of its error.
"""

import asyncio
import gc
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from memory import peak_mb

from grue import HttpServer, LlmSettings, Runner, StdioServer, TurnLimits, TurnRequest
from grue.hosts.zork.facts import Observed
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.reader import TraceReader
from grue.runtime.trace.recorder import Recorder

# Add this folder at the end of `sys.path`: it has a module `turns`, as `benchmarks` does.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import hostile_server
from faulty_http_server import faulty_http_server

PATHS = {
    "stdio text": "--result text={}",
    "stdio structured": "--result rows={}",
    "stdio image": "--result image={}",
    "tool listing": "--description {}",
    "HTTP text": "--huge-result {}",
    "SSE text": "--huge-result {} --legacy",
    "reply": "",
    "reply, streamed": "",
    "tool arguments": "",
    "tool arguments, streamed": "",
    "image, shown to the model": "--result image={}",
    "user's text": "",
    "user's text with secrets": "",
    "trace, written": "",
    "trace, read": "",
}
SMALL = 1000
_LARGEST_IMAGE = 5_000_000
_SECRET = "bench-0123456789-secret"


def model(path: str, size: int) -> str:
    """Return the model's name, which tells the scripted endpoint what to reply."""
    if path.startswith("user's"):
        return "text=4"
    if path.startswith("reply"):
        return f"text={size}"
    return f"arguments={size}" if path.startswith("tool arguments") else "call=0"


def servers(path: str, size: int, running: ExitStack) -> dict[str, Any]:
    """Return the tool servers that a path needs."""
    if path.startswith(("reply", "user's")):
        return {}
    flags = PATHS[path].format(min(size, _LARGEST_IMAGE) if "shown" in path else size).split()
    if path.startswith(("HTTP", "SSE")):
        url = running.enter_context(faulty_http_server(*flags))
        return {"s": HttpServer(name="s", url=url, transport="sse" if "--legacy" in flags else "http")}
    command, *args = hostile_server.argv(*flags)
    return {"s": StdioServer(name="s", command=command, args=tuple(args))}


def users_text(path: str, size: int) -> str:
    """Return the user's text of the turn."""
    if path == "trace, written":
        return "x" * size
    if not path.startswith("user's"):
        return "u"
    words = f"the key is {_SECRET}, " if path.endswith("secrets") else "nothing but words, "
    return words * (size // len(words))


class Ticks:
    """Measures the longest time between two runs of a task that should run every millisecond."""

    def __init__(self) -> None:
        self.gap_ms = 0.0
        self.step_ms = 0.0
        self._run = asyncio.Handle._run  # noqa: SLF001 - nowhere else can one callback be measured
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._tick())
        run = self._run

        def timed(handle: asyncio.Handle) -> None:
            worked = time.thread_time()
            run(handle)
            self.step_ms = max(self.step_ms, (time.thread_time() - worked) * 1e3)

        asyncio.Handle._run = timed  # type: ignore[assignment, method-assign]  # noqa: SLF001 - likewise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._task is not None
        asyncio.Handle._run = self._run  # type: ignore[method-assign]  # noqa: SLF001 - likewise
        self._task.cancel()

    async def _tick(self) -> None:
        while True:
            wall, worked = time.perf_counter(), time.process_time()
            await asyncio.sleep(0.001)
            gap = min(time.perf_counter() - wall, time.process_time() - worked)
            self.gap_ms = max(self.gap_ms, gap * 1e3)


async def a_turn(chat_url: str, path: str, size: int, text: str, folder: Path) -> str:
    """Run a turn with the user's text `text` and a trace; return the kind of its outcome, or the error."""
    recorder = Recorder(secrets={"bench": _SECRET})
    writer = TraceWriter(folder / f"{size}-{time.monotonic_ns()}.jsonl", episode="large")
    recorder.add(writer)
    with ExitStack() as running:
        runner = Runner(
            llm=LlmSettings(base_url=chat_url, model=model(path, size)),
            servers=servers(path, size, running),
            limits=TurnLimits(max_tool_iterations=1),
            recorder=recorder,
        )
        shown = (lambda _: None) if path.endswith("streamed") else None
        try:
            request = TurnRequest[str](system="s", user=text, on_delta=shown)
            outcome = await runner.run_turn_async(request)
            return str(outcome.kind)
        except Exception as error:  # noqa: BLE001 - the outcome is part of the report
            return f"{type(error).__name__}"
        finally:
            runner.close()
            await asyncio.to_thread(recorder.settle)
            await asyncio.to_thread(writer.close)


async def a_trace(path: str, size: int, text: str, folder: Path) -> str:
    """Write or read a trace with one large fact of the host, in a thread, as hosts do."""
    file = folder / f"{size}.jsonl"
    if path == "trace, read":
        return str(len(await asyncio.to_thread(list, TraceReader(file, dict))))
    return await asyncio.to_thread(write_trace, file, text)


def write_trace(file: Path, text: str) -> str:
    """Write a trace with one large fact of the host."""
    recorder, writer = Recorder(), TraceWriter(file, episode="large")
    recorder.add(writer)
    recorder.record(Observed(turn=1, text=text), sender="host")
    recorder.settle()
    writer.close()
    return "1"


async def measured(chat_url: str, path: str, size: int) -> dict[str, object]:
    """Run the turn with a small message and the one with a large message; return the report."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        traced = path.startswith("trace")
        if path == "trace, read":
            write_trace(folder / f"{size}.jsonl", "x" * size)
        if not traced:
            await a_turn(chat_url, path, SMALL, users_text(path, SMALL), folder)
        text = users_text(path, size)
        gc.collect()
        begun = time.perf_counter()
        async with Ticks() as ticks:
            work = a_trace(path, size, text, folder) if traced else a_turn(chat_url, path, size, text, folder)
            outcome = await work
        seconds = time.perf_counter() - begun
    return {
        "seconds": seconds,
        "gap_ms": ticks.gap_ms,
        "step_ms": ticks.step_ms,
        "peak_mb": peak_mb(),
        "outcome": outcome,
    }


def main() -> None:
    """Print the report on each path."""
    chat_url, size, *paths = sys.argv[1:]
    for path in paths:
        print(json.dumps(asyncio.run(measured(chat_url, path, int(size)))))


if __name__ == "__main__":
    main()
