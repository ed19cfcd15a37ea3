"""A program that runs one turn with a tool lock, as a user would write it.

    python benchmarks/one_shot_script.py BASE_URL MODEL TRACE_FILE COMMAND...    settings in the program
    python benchmarks/one_shot_script.py PYPROJECT TRACE_FILE                    settings and servers in files

Run it in the folder of `mcp_tools.lock`.
"""

import sys
from pathlib import Path

from grue import LlmSettings, Runner, StdioServer, TurnRequest
from grue.config import tool_lock_file


def runner() -> Runner:
    if len(sys.argv) == 3:
        toml, trace = sys.argv[1:]
        return Runner.from_toml(toml, trace=trace)
    base_url, model, trace, command, *args = sys.argv[1:]
    return Runner(
        llm=LlmSettings(base_url=base_url, model=model),
        servers={"plain": StdioServer(name="plain", command=command, args=tuple(args))},
        tool_lock=tool_lock_file.read_tool_lock(Path("mcp_tools.lock")),
        trace=trace,
    )


with runner() as agent:
    request = TurnRequest(
        system="You are the player of a text adventure.",
        user="You are in the living room. What do you do?",
    )
    print(agent.run_turn(request).response)
