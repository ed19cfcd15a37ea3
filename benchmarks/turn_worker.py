"""A long-lived process that runs a turn for each line on standard input, and reports the turn's cost.

    python benchmarks/turn_worker.py SIDE BASE_URL MODEL TRACE_FILE COMMAND...

SIDE is `floor` (floor_script.py), `script` (sdk_script.py), or a way to use grue:

- `grue`: default settings. The ways below keep the event loop from turn to turn.
- `fresh`: a new session in each turn.
- `kept`: one session for all turns.
- `ahead`: the next turn's session is prepared after a turn.
- `presumed`: a turn presumes the tools that the turn before saw.
- `beside`: as `presumed`, and the next turn's server is started during this turn.
- `functions`: function tools instead of a server.

COMMAND starts the MCP server. The answer is a line of JSON: seconds by the clock (`wall_s`), processor time
of this process (`cpu_s`), and its highest memory so far (`peak_mb`). Each side has its own process, so that
none pays for the imports, garbage or threads of another.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from memory import peak_mb


def script_turn(base_url: str, model: str, trace: Path, command: Sequence[str]) -> Callable[[], str]:
    """Return a function that runs a turn by the hand-written script, which writes no trace."""
    del trace
    import sdk_script
    from mcp import StdioServerParameters

    server = StdioServerParameters(command=command[0], args=list(command[1:]))
    return lambda: sdk_script.run_turn(server, base_url, model)


def floor_turn(base_url: str, model: str, trace: Path, command: Sequence[str]) -> Callable[[], str]:
    """Return a function that runs a turn with blocking pipes and a blocking socket."""
    del trace
    import floor_script

    return lambda: floor_script.run_turn(command, base_url, model)


def grue_turn(
    base_url: str, model: str, trace: Path, command: Sequence[str], **lifetime: Any
) -> Callable[[], str]:
    """Return a function that runs a turn by grue, with a trace; by default with a new session each turn."""
    from grue import StdioServer

    server = StdioServer(name="plain", command=command[0], args=tuple(command[1:]))
    return _turn_of(base_url, model, trace, {"plain": server}, **lifetime)


def functions_turn(base_url: str, model: str, trace: Path, command: Sequence[str]) -> Callable[[], str]:
    """Return a function that runs a turn by grue with a function tool instead of a server."""
    del command
    from grue import FunctionTools

    async def echo(text: str) -> str:
        """Return the text that was given."""
        return text

    return _turn_of(base_url, model, trace, {"plain": FunctionTools({"echo": echo})}, keep="loop")


def _turn_of(
    base_url: str, model: str, trace: Path, servers: dict[str, Any], **lifetime: Any
) -> Callable[[], str]:
    from grue import LlmSettings, Recorder, Runner, TraceWriter, TurnRequest

    recorder = Recorder()
    recorder.add(TraceWriter(trace, episode="benchmark"))
    llm = LlmSettings(base_url=base_url, model=model)
    runner = Runner(llm=llm, servers=servers, recorder=recorder, **lifetime)
    # Nothing here closes the runner: its event loop is closed when the interpreter exits.
    request: TurnRequest[str] = TurnRequest(
        system="You are the player of a text adventure.",
        user="You are in the living room. What do you do?",
    )
    return lambda: runner.run_turn(request).response


TURNS: dict[str, Callable[[str, str, Path, Sequence[str]], Callable[[], str]]] = {
    "floor": floor_turn,
    "script": script_turn,
    "grue": grue_turn,
    "fresh": partial(grue_turn, keep="loop"),
    "ahead": partial(grue_turn, keep="loop", start="after_turn"),
    "kept": partial(grue_turn, keep="sessions"),
    "presumed": partial(grue_turn, keep="loop", start="beside"),
    "beside": partial(grue_turn, keep="loop", start=("beside_turn", "beside")),
    "functions": functions_turn,
}


def main() -> None:
    """Run a turn for each line of standard input, and print its cost."""
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
