"""A process that runs a batch of turns for each line on its standard input, and reports the batch's time.

    python benchmarks/map_worker.py SIDE BASE_URL MODEL TRACE_FILE CONCURRENCY COMMAND...

Each line is the number of turns. SIDE is `functions` (no server), or a way to use the server that COMMAND
starts: `fresh` (without presumed tools), `presumed` (with presumed tools) or `beside` (also with presumed
tools, and the next turn's server starts during a turn). The answer is a line of JSON: the seconds (`wall_s`),
and how many turns were answered (`done`).
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from grue import FunctionTools, LlmSettings, Runner, StdioServer, TurnRequest

HOW: dict[str, dict[str, Any]] = {
    "functions": {},
    "fresh": {"start": "before"},
    "presumed": {"start": "beside"},
    "beside": {"start": ("beside_turn", "beside")},
}


def echo(text: str) -> str:
    """Return the text that was given."""
    return text


def main() -> None:
    """For each line of standard input, run a batch and report its time."""
    side, base_url, model, trace, concurrency, *command = sys.argv[1:]
    server: Any = StdioServer(name="tools", command=command[0], args=tuple(command[1:]))
    servers = {"tools": FunctionTools({"echo": echo}) if side == "functions" else server}
    llm = LlmSettings(base_url=base_url, model=model)
    request: TurnRequest[str] = TurnRequest(
        system="You are the player of a text adventure.",
        user="You are in the living room. What do you do?",
    )
    with Runner(llm=llm, servers=servers, trace=Path(trace), **HOW[side]) as runner:
        for line in sys.stdin:
            requests = [request] * int(line)
            begun = time.perf_counter()
            answers = [item.outcome for item in runner.map(requests, concurrency=int(concurrency))]
            took = time.perf_counter() - begun
            done = sum(outcome is not None and outcome.response == "done" for outcome in answers)
            sys.stdout.write(json.dumps({"wall_s": took, "done": done}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
