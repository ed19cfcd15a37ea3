"""What 50 servers that start when they are called cost a turn that calls none of them, or one.

    python benchmarks/many_servers.py              40 pairs of turns; status 1 if a limit is exceeded
    python benchmarks/many_servers.py --pairs 2    what the tests run

The turns of a pair follow each other in one process. One pair compares a turn without servers and a turn with
50; the other compares a turn with a single server, which starts with the turn, and a turn that calls one of
50. The result is the median of the differences. The model is a local server that answers at once. Not
measured: what the definitions of 150 tools cost at a real endpoint, and how long real servers take to start.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

from grue import LlmSettings, Recorder, Runner, ServerOptions, StdioServer, TurnRequest
from grue.messages import SessionOpened
from grue.testing import faulty_server
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply

MANY = 50
NONE_CALLED_MS, ONE_CALLED_MS, MEMORY_MB = 5.0, 10.0, 10.0
"""The bars: milliseconds that a turn may take longer, and what the listings may hold."""


def server(name: str, *, waits: bool) -> StdioServer:
    """Return a small server. If it `waits`, it starts when it is called, otherwise with the turn."""
    command, *args = faulty_server.argv()
    options = ServerOptions(start="when_called" if waits else "before")
    return StdioServer(name=name, command=command, args=tuple(args), options=options)


def answer(request: LlmRequest) -> LlmReply:
    """Reply with a call of the first server's tool if the user's text is `call`, then with `done`."""
    if request.messages[1]["content"] == "call" and request.messages[-1]["role"] != "tool":
        return tool_calls_reply(("s0.echo", {"text": "x"}))
    return text_reply("done")


class Side:
    """One kind of turn, with its runner. `started` counts the servers that were started for its turns."""

    def __init__(self, base_url: str, folder: Path, servers: Mapping[str, StdioServer], user: str) -> None:
        self.started = 0
        recorder = Recorder()
        recorder.add(lambda envelope, _line: self._count(envelope.body))
        trace = folder / f"{user}-{len(servers)}.jsonl"
        llm = LlmSettings(base_url=base_url, model="m")
        self.runner = Runner(llm=llm, servers=servers, recorder=recorder, trace=trace, keep="loop")
        self._request: TurnRequest[str] = TurnRequest(system="You play.", user=user)

    def _count(self, body: object) -> None:
        self.started += isinstance(body, SessionOpened)

    def turn_ms(self) -> float:
        """Run a turn and return how long it took."""
        begun = time.perf_counter()
        self.runner.run_turn(self._request)
        return (time.perf_counter() - begun) * 1e3


def measure(pairs: int, folder: Path) -> list[str]:
    """Print the measurements, and return the labels of those that exceed their limit."""
    many = {f"s{number}": server(f"s{number}", waits=True) for number in range(MANY)}
    one = {"s0": server("s0", waits=False)}
    with contextlib.ExitStack() as stack:
        base_url = stack.enter_context(ScriptedLlmServer(answer)).base_url
        sides = [
            Side(base_url, folder, *of)
            for of in (({}, "rest"), (many, "rest"), (one, "call"), (many, "call"))
        ]
        for side in sides:
            stack.enter_context(side.runner)
            side.turn_ms()
            side.turn_ms()
        none, waiting, eager, called = sides
        before = [side.started for side in sides]
        rest, call = [], []
        for _ in range(pairs):
            rest.append(-none.turn_ms() + waiting.turn_ms())
            call.append(-eager.turn_ms() + called.turn_ms())
        started = [side.started - first for side, first in zip(sides, before, strict=True)]
        tracemalloc.start()
        first = Side(base_url, folder, many, "memory")
        stack.enter_context(first.runner)
        first.turn_ms()
        held_mb = tracemalloc.get_traced_memory()[0] / 2**20
    rest_ms, call_ms, beyond = statistics.median(rest), statistics.median(call), started[3] - pairs
    found = {
        f"none of {MANY} called, longer than without servers": (rest_ms, NONE_CALLED_MS, "ms"),
        f"one of {MANY} called, longer than with it alone": (call_ms, ONE_CALLED_MS, "ms"),
        f"servers started in {pairs} turns that call none": (float(started[1]), 0.0, ""),
        f"servers started beyond one a turn in {pairs} turns that call one": (float(beyond), 0.0, ""),
        f"memory of a runner with {MANY} listings, and of its turn": (held_mb, MEMORY_MB, "MB"),
    }
    for label, (value, limit, unit) in found.items():
        print(f"{label}: {value:.2f} {unit}, at most {limit:g} {unit}".replace(" ,", ","))
    return [label for label, (value, limit, _) in found.items() if value > limit]


def main() -> None:
    """Measure; exit with 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=40)
    with tempfile.TemporaryDirectory() as folder:
        missed = measure(parser.parse_args().pairs, Path(folder))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
