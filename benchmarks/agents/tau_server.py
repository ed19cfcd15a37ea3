"""tau2-bench's environment as a tool server over stdio, which `tau.py` starts for each episode.

    tau_server.py DOMAIN TASK JOURNAL

It has the tools of a domain, in telecom those of the user's phone too (solo). Each call carries a key, as an
interface for payments wants it. What was done is noted in the journal, so a repeated call has no effect, and
a new process goes on where the one before was. In a run under kills, one call in ten ends with a `kill -9` of
this process: half of them before the effect, half of them after it and before the answer.
"""

import asyncio
import fcntl
import gzip
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

from inspect_ai.tool import ToolDef, ToolError
from inspect_ai.util import Store, store
from inspect_evals.tau2.airline.tools import all_airline_tools
from inspect_evals.tau2.common.scorer import AirlineAgentTools, RetailAgentTools, Task
from inspect_evals.tau2.retail.tools import all_retail_tools
from inspect_evals.tau2.telecom.environment import Environment, TelecomAgentTools, TelecomUserTools
from inspect_evals.tau2.telecom.tools import all_telecom_agent_tools
from inspect_evals.tau2.telecom.user_tools import all_telecom_user_tools
from inspect_evals.tau2.utils import TAU2_DATA_DIR

HASH, KEY, UNDER_KILLS = "database_hash", "action_key", "GRUE_UNDER_KILLS" in os.environ
DOMAINS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "telecom": (
        all_telecom_agent_tools + all_telecom_user_tools,
        {"TelecomAgentTools": TelecomAgentTools, "TelecomUserTools": TelecomUserTools},
    ),
    "retail": (all_retail_tools, {"RetailTools": RetailAgentTools}),
    "airline": (all_airline_tools, {"AirlineTools": AirlineAgentTools}),
}


def tasks(domain: str, split: str = "base") -> dict[str, Task]:
    """Return the tasks of a domain that are in a split of the data set."""
    place = TAU2_DATA_DIR / "domains" / domain
    packed, plain = place / "tasks.json.gz", place / "tasks.json"
    read = json.loads(gzip.decompress(packed.read_bytes()) if packed.exists() else plain.read_bytes())
    chosen = set(json.loads((place / "split_tasks.json").read_bytes())[split])
    return {each["id"]: Task.model_validate(each) for each in read if each["id"] in chosen}


def gold(task: Task) -> list[Any]:
    return (task.evaluation_criteria and task.evaluation_criteria.actions) or []


class World:
    """The databases of a task; in telecom the user's phone is a second one."""

    def __init__(self, domain: str, task: Task, data: Store) -> None:
        self._sides = [kind(store=data, instance=name) for name, kind in DOMAINS[domain][1].items()]
        for side in self._sides:
            side.initialize()
        self.act((task.initial_state and task.initial_state.initialization_actions) or ())

    def act(self, actions: Any) -> list[Any]:
        """Make calls, and return what each returned. Tools of no database are passed over."""
        returned = []
        for each in actions:
            name = getattr(each, "func_name", None) or each.name
            side = next((side for side in self._sides if hasattr(side, name)), None)
            try:
                returned.append(side and getattr(side, name)(**each.arguments))
            except ToolError:  # some gold actions are refused
                returned.append(None)
            self.sync()
        return returned

    def sync(self) -> None:
        """Let the phone see what the provider has done, and the other way round."""
        if len(self._sides) == 2:
            Environment(self._sides[1], self._sides[0])

    def hash(self) -> str:
        return " ".join(side.db.get_hash() for side in self._sides)


def serve(domain: str, task: str, journal: str) -> None:
    """Be the tool server of a task. Starts from its journal."""
    file = Path(journal).open("ab+", buffering=0)  # noqa: SIM115 - until the process ends
    fcntl.flock(file, fcntl.LOCK_EX)  # until the process before has ended
    world, done = World(domain, tasks(domain)[task], store()), {}
    tools = {ToolDef(tool).name: tool for tool in (make() for make in DOMAINS[domain][0])}

    def note(**entry: object) -> None:
        file.write(json.dumps(entry).encode() + b"\n")

    def made(name: str, arguments: dict[str, Any]) -> str:
        try:
            return str(asyncio.run(tools[name](**arguments)))  # type: ignore[arg-type]
        except ToolError as error:
            return f"refused: {error.message}"
        finally:
            world.sync()

    def call(name: str, arguments: dict[str, Any]) -> str:
        if name == HASH:
            return world.hash()
        key = arguments.pop(KEY)
        if key in done:
            note(repeated=key)
            return str(done[key])
        maybe_die()
        done[key] = f"action {key} is done: {made(name, arguments)}"
        note(key=key, name=name, arguments=arguments, result=done[key])
        maybe_die()
        return done[key]

    file.seek(0)
    for each in map(json.loads, file.readlines()):
        if "name" in each:
            made(each["name"], each["arguments"])
            done[each["key"]] = each["result"]
    note(started=os.getpid())
    for message in map(json.loads, sys.stdin):
        result: dict[str, Any] = {}
        if message["method"] == "initialize":
            version, about = message["params"]["protocolVersion"], {"name": "tau2", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        elif message["method"] == "tools/list":
            keyed = {"type": "string", "description": "A call with a known key has no effect."}
            result = {"tools": [{"name": HASH, "inputSchema": {"type": "object"}}]}
            for tool in map(ToolDef, tools.values()):
                schema = tool.parameters.model_dump(exclude_none=True)
                schema["properties"][KEY] = keyed
                result["tools"].append(
                    {"name": tool.name, "description": tool.description, "inputSchema": schema}
                )
        elif message["method"] == "tools/call":
            text = call(message["params"]["name"], message["params"].get("arguments", {}))
            result = {"content": [{"type": "text", "text": text}]}
        if "id" in message:
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


def maybe_die() -> None:
    if UNDER_KILLS and random.random() < 0.05:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve(*sys.argv[1:])
