"""What every worker does around its turn: read a line, run one, say what it took.

    PYTHON WORKER.py BASE_URL MODEL COMMAND [ARGUMENT ...]

COMMAND is the MCP server's. Answers are as from turn_worker.py, so that all sides are
driven alike.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

# Behind everything else: nothing of ours may hide a module of the framework's.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from memory import peak_mb

SYSTEM = "You are the player of a text adventure."
USER = "You are in the living room. What do you do?"
# Clients for OpenAI's endpoints refuse to work without any.
API_KEY = "made-up-key"


class Place(NamedTuple):
    """Where a turn finds its model and its MCP server."""

    base_url: str
    model: str
    command: str
    args: list[str]

    @property
    def limit_s(self) -> float | None:
        """How long a call may take; `None`: as long as the framework lets it. `faults.py` sets it."""
        given = os.environ.get("BENCH_LIMIT_S")
        return float(given) if given else None


def serve(prepare: Callable[[Place], Callable[[], str]]) -> None:
    """Run a turn for each line of standard input; what `prepare` does belongs to the first turn."""
    base_url, model, command, *args = sys.argv[1:]
    turn = prepare(Place(base_url, model, command, args))
    for _ in sys.stdin:
        cpu, wall = time.process_time(), time.perf_counter()
        try:
            answer = turn()
        except BaseException as error:
            if "BENCH_LIMIT_S" in os.environ:
                _report(error, time.perf_counter() - wall)
            raise
        took = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        sys.stdout.write(json.dumps({"answer": answer, **took, "peak_mb": peak_mb()}) + "\n")
        sys.stdout.flush()


def _report(error: BaseException, wall_s: float) -> None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = f"{error}".strip().split("\n")[0][:300]
    sys.stdout.write(json.dumps({"error": type(error).__name__, "text": text, "wall_s": wall_s}) + "\n")
    sys.stdout.flush()


def serve_async(prepare: Callable[[Place], Callable[[], Coroutine[Any, Any, str]]]) -> None:
    """Do the same with coroutines, in one event loop for all turns.

    An `asyncio.run` for each turn would lose the HTTP connections that a framework keeps.
    """
    with asyncio.Runner() as runner:

        def in_loop(place: Place) -> Callable[[], str]:
            turn = prepare(place)
            return lambda: runner.run(turn())

        serve(in_loop)
