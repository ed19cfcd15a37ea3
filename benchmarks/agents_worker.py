"""A process that runs many agents at once in one event loop, and reports their time and memory.

    python benchmarks/agents_worker.py bare|grue|servers BASE_URL MODEL TRACE_FILE

Each line on standard input is a number of agents. Each agent runs a turn with one tool call: of a function
tool, or with `servers`, of a server process that the agent starts and ends. The process answers with a line
of JSON: seconds for all agents (`wall_s`), processor time (`cpu_s`), and the highest memory so far
(`peak_mb`). Every agent asks its own question. The agents share HTTP connections, and those of grue share one
trace.
"""

import json
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import httpx
from children import MCP_SERVER
from memory import peak_mb

from grue import (
    FunctionTools,
    LlmSettings,
    Recorder,
    Runner,
    StdioServer,
    TraceWriter,
    TurnRequest,
)
from grue.transports.llm.endpoint import LlmEndpoint

Agents: TypeAlias = Callable[[int], Awaitable[list[str]]]

# Made only once, as in sdk_script.py, because it takes 20 ms.
SSL = ssl.create_default_context()
SYSTEM = "You are the player of a text adventure."
TOOL = {
    "type": "function",
    "function": {
        "name": "echo",
        "description": "Return the text that was given.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}


async def echo(text: str) -> str:
    """Return the text that was given."""
    return text


def grue_agents(base_url: str, model: str, trace: Path) -> Agents:
    """Return agents of grue, each with its own runner and a function tool."""
    return _agents_with({"tools": FunctionTools({"echo": echo})}, base_url, model, trace)


def server_agents(base_url: str, model: str, trace: Path) -> Agents:
    """Return agents of grue, each with its own runner and its own server process."""
    server = StdioServer(name="plain", command=MCP_SERVER[0], args=MCP_SERVER[1:])
    return _agents_with({"plain": server}, base_url, model, trace)


def _agents_with(servers: dict[str, Any], base_url: str, model: str, trace: Path) -> Agents:
    recorder = Recorder()
    recorder.add(TraceWriter(trace, episode="benchmark"))
    endpoint = LlmEndpoint(LlmSettings(base_url=base_url, model=model))

    async def run(count: int) -> list[str]:
        answers: list[str] = []

        async def agent(number: int) -> None:
            runner = Runner(llm=endpoint, servers=servers, recorder=recorder)
            request: TurnRequest[str] = TurnRequest(system=SYSTEM, user=f"You are in room {number}.")
            answers.append((await runner.run_turn_async(request)).response)

        async with endpoint, anyio.create_task_group() as group:
            for number in range(count):
                group.start_soon(agent, number)
        return answers

    return run


def bare_agents(base_url: str, model: str, trace: Path) -> Agents:
    """Return agents without grue: each is a task with a loop over httpx. No trace, limits or schema check."""
    del trace

    async def agent(client: httpx.AsyncClient, number: int, answers: list[str]) -> None:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"You are in room {number}."},
        ]
        while True:
            request = {"model": model, "messages": messages, "tools": [TOOL]}
            response = await client.post("/chat/completions", json=request)
            message = response.raise_for_status().json()["choices"][0]["message"]
            messages.append(message)
            if not message.get("tool_calls"):
                answers.append(message["content"])
                return
            for call in message["tool_calls"]:
                content = await echo(**json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})

    async def run(count: int) -> list[str]:
        answers: list[str] = []
        async with (
            httpx.AsyncClient(base_url=base_url, timeout=60.0, verify=SSL) as client,
            anyio.create_task_group() as group,
        ):
            for number in range(count):
                group.start_soon(agent, client, number, answers)
        return answers

    return run


SIDES = {"bare": bare_agents, "grue": grue_agents, "servers": server_agents}


def main() -> None:
    """For each line of standard input, run as many agents as it says."""
    side, base_url, model, trace = sys.argv[1:]
    agents = SIDES[side](base_url, model, Path(trace))
    for line in sys.stdin:
        count = int(line)
        cpu, wall = time.process_time(), time.perf_counter()
        answers = anyio.run(agents, count)
        took = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        sys.stdout.write(json.dumps({"answers": answers.count("done"), **took, "peak_mb": peak_mb()}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
