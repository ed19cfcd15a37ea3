"""tau2-bench's base sets, each task solved by its gold actions: calm, or under random `kill -9`.

    PYTHON benchmarks/agents/tau.py FOLDER [SPLIT]
    PYTHON benchmarks/agents/kills.py benchmarks/agents/tau.py FOLDER [SPLIT]

PYTHON is benchmarks/agents/.venvs/tau2/bin/python. The environment is a tool server of its own for each
episode (`tau_server.py`); the model makes the gold actions. The first command plays the base sets of telecom,
retail and airline once. The second one plays that of telecom four times while servers, workers and the driver
are killed. SPLIT is another split of the data set, such as `small`.

The score is 1 if the server's databases have the hash of those of the gold actions, the task's own assertions
hold, and the answer says what the task asks for. `doubled` counts effects that were made twice.
"""

import json
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from inspect_ai.util import Store
from tau_server import DOMAINS, HASH, KEY, UNDER_KILLS, World, gold, tasks

from grue import FailurePolicy, LlmSettings, Runner, ServerOptions, StdioServer, TurnLimits, TurnRequest
from grue.fleet import Episode, Fleet
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply

SERVER = str(Path(__file__).with_name("tau_server.py"))


def play(case: dict[str, str], episode: Episode) -> dict[str, float]:
    """Solve a task by its gold actions."""
    task, journal = tasks(case["domain"])[case["task"]], episode.folder.parent / "journal.jsonl"
    criteria, answer, took = task.evaluation_criteria, "", 0.0
    told = (criteria and criteria.communicate_info) or []

    def model(request: LlmRequest) -> LlmReply:
        """Call the first gold action that is not done."""
        done = re.findall(r"action (\d+) is done", json.dumps(request.messages))
        left = [(str(i), each) for i, each in enumerate(gold(task)) if str(i) not in done]
        if not left or not request.tool_names:
            return text_reply("Not done." if left else f"Done. {' '.join(told)}")
        return tool_calls_reply((f"tau2.{left[0][1].name}", {**left[0][1].arguments, KEY: left[0][0]}))

    patient = ServerOptions(startup_timeout_s=300, call_timeout_s=300)  # busy cores are not what is measured
    server = StdioServer(command=sys.executable, args=(SERVER, *case.values(), str(journal)), options=patient)
    with ScriptedLlmServer(model) as endpoint:
        llm = LlmSettings(base_url=endpoint.base_url, model="gold", api_key="")
        policy = FailurePolicy(after_death="reconnect", retry_disabled_s=0)
        options: Any = {
            "policy": policy,
            "limits": TurnLimits(max_tool_iterations=99),
            "trace": episode.trace,
        }
        with Runner(llm=llm, servers={"tau2": server}, keep="sessions", **options) as runner:
            runner.call(f"tau2.{HASH}", check=True)  # the server has started
            while not answer.startswith("Done."):  # a server that dies twice in a turn ends it
                began = time.perf_counter()
                answer = runner.run_turn(TurnRequest(system="Solve it.", user=task.ticket or "-")).response
                took += time.perf_counter() - began
            served = runner.call(f"tau2.{HASH}", check=True).content
    noted = [json.loads(line) for line in journal.read_text().splitlines()]
    effects = Counter(each["key"] for each in noted if "name" in each)
    wanted = World(case["domain"], task, Store())
    wanted.act(gold(task))
    asserted = (criteria and criteria.env_assertions) or []
    right = served == wanted.hash() and all(each.lower() in answer.lower() for each in told)
    right = right and wanted.act(asserted) == [each.assert_value for each in asserted]
    return {
        "score": float(right),
        "calls": float(len(effects)),
        "doubled": float(effects.total() - len(effects)),
        "repeated": float(sum("repeated" in each for each in noted)),
        "starts": float(sum("started" in each for each in noted)),
        "seconds": took,
    }


def main(place: str, split: str = "base") -> None:
    """Play the tasks that are missing, and print what came of all of them."""
    known = ("telecom",) if UNDER_KILLS else tuple(DOMAINS)
    cases = [{"domain": domain, "task": task} for domain in known for task in tasks(domain, split)]
    times, began = 4 if UNDER_KILLS else 1, time.monotonic()
    fleet = Fleet(place, workers=2)
    finished = fleet.map(play, cases, repetitions=times, retry=True)
    tally, took = finished.tally, time.monotonic() - began
    print(f"{tally.done} of {tally.total} episodes, {tally.failed} failed; {finished.reason} in {took:.0f} s")
    totals = {name: total for name, (_, total) in sorted(tally.scores.items())}
    always = dict.fromkeys((tuple(each.values()) for each in cases), True)
    for each in fleet.results():
        key = each.settings["domain"], each.settings["task"]
        always[key] = always.get(key, True) and each.scores.get("score") == 1
    print(f"pass^{times} = {sum(always.values()) / len(always):.3f} of {len(always)} tasks")
    print(f"{totals['seconds'] / totals['calls'] * 1e3:.1f} ms a call;", totals)
    sys.exit(tally.done != tally.total)


if __name__ == "__main__":
    main(*sys.argv[1:])
