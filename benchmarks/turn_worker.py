"""A long-lived process that runs a turn whenever it is told to, and says what the turn took.

    python benchmarks/turn_worker.py floor|script|grue BASE_URL MODEL TRACE_FILE COMMAND...

COMMAND is the MCP server's. One turn for each line on standard input; the answer is a line of JSON: seconds
by the clock (`wall_s`), this process's own processor time (`cpu_s`), and its highest memory so far
(`peak_mb`). Both sides are driven in this way, so that neither pays for the other's imports, garbage or
threads.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from memory import peak_mb


def script_turn(base_url: str, model: str, trace: Path, command: Sequence[str]) -> Callable[[], str]:
    """Return a turn by the hand-written script, which keeps no trace."""
    del trace
    import sdk_script
    from mcp import StdioServerParameters

    server = StdioServerParameters(command=command[0], args=list(command[1:]))
    return lambda: sdk_script.run_turn(server, base_url, model)


def floor_turn(base_url: str, model: str, trace: Path, command: Sequence[str]) -> Callable[[], str]:
    """Return a turn by blocking pipes and sockets."""
    del trace
    import floor_script

    return lambda: floor_script.run_turn(command, base_url, model)


def grue_turn(base_url: str, model: str, trace: Path, command: Sequence[str]) -> Callable[[], str]:
    """Return a turn by grue with its default settings: a session each turn, the trace in a file."""
    from grue import LlmSettings, Recorder, Runner, StdioServer, TraceWriter, TurnRequest

    recorder = Recorder()
    recorder.add(TraceWriter(trace, episode="benchmark"))
    runner = Runner(
        llm=LlmSettings(base_url=base_url, model=model),
        servers={"plain": StdioServer(name="plain", command=command[0], args=tuple(command[1:]))},
        recorder=recorder,
    )
    request: TurnRequest[str] = TurnRequest(
        system="You are the player of a text adventure.",
        user="You are in the living room. What do you do?",
    )
    return lambda: runner.run_turn(request).response


TURNS = {"floor": floor_turn, "script": script_turn, "grue": grue_turn}


def main() -> None:
    """Run a turn for each line of standard input."""
    side, base_url, model, trace, *command = sys.argv[1:]
    turn = TURNS[side](base_url, model, Path(trace), command)
    for _ in sys.stdin:
        cpu, wall = time.process_time(), time.perf_counter()
        answer = turn()
        took = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        sys.stdout.write(json.dumps({"answer": answer, **took, "peak_mb": peak_mb()}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
