"""A web app whose agent asks a person before it pays.

The turn is parked when it has to ask: it waits in its trace file, and no process waits for the person. When
the person approves the call, any worker process can go on with the same turn.
"""

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flask import Flask, Response, jsonify

from grue import FunctionTools, LlmSettings, Runner, ToolPolicy, ToolRule, TurnRequest, parked_turns
from grue.errors import ApprovalPending, NothingToResume, TraceError

app = Flask(__name__)
POLICY = ToolPolicy(rules=(ToolRule(tools=("shop.refund",), verdict="ask"),), parking=True)
RUNS = Path(os.environ.get("RUNS", "runs"))


def refund(order: int) -> str:
    """Pay the money for an order back."""
    return f"Order {order} is paid back."


def runner(trace: Path | None = None) -> Runner:
    """Return a new runner. A parked turn is in its trace, so another process may go on with it."""
    llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
    shop = FunctionTools([refund])
    return Runner(llm=llm, servers={"shop": shop}, tool_policy=POLICY, trace=trace)


def reply(case: uuid.UUID, turn: Callable[[], Any]) -> tuple[Response, int]:
    """Return a turn's answer (200), the calls that wait for a person (202), or that no call waits (409)."""
    try:
        return jsonify(case=case, answer=turn().response), 200
    except ApprovalPending as waits:
        return jsonify(case=case, asks=[f"{q.name} {q.arguments}" for q in waits.questions]), 202
    except (NothingToResume, TraceError):
        return jsonify(case=case, error="No call of this case can be approved now."), 409


@app.post("/mails/<text>")
def mail(text: str) -> tuple[Response, int]:
    """Have the agent answer a mail."""
    RUNS.mkdir(exist_ok=True)
    case = uuid.uuid4()
    with runner(RUNS / f"{case}.jsonl") as agent:
        return reply(case, lambda: agent.run_turn(TurnRequest(system="Help the customer.", user=text)))


@app.post("/approvals/<uuid:case>")
def approve(case: uuid.UUID) -> tuple[Response, int]:
    """Approve the calls that wait in a case, and go on with its turn."""
    trace = RUNS / f"{case}.jsonl"
    with runner() as agent:

        def resumed() -> Any:
            yes = [question.approve() for turn in parked_turns(trace) for question in turn.questions]
            return agent.resume(trace, yes)

        return reply(case, resumed)
