"""A web app whose agent asks before it pays: the question waits in a file, for any worker process to answer.

The turn ends when it has to ask, so no process waits for the person; the answer goes on with the same turn.
"""

import os
import uuid
from pathlib import Path

from flask import Flask, Response, jsonify

from grue import FunctionTools, LlmSettings, Runner, ToolPolicy, ToolRule, TurnRequest, parked_turns
from grue.errors import ApprovalPending

app = Flask(__name__)
POLICY = ToolPolicy(rules=(ToolRule(tools=("shop.refund",), verdict="ask"),), parking=True)
RUNS = Path(os.environ.get("RUNS", "runs"))


def refund(order: int) -> str:
    """Pay the money for an order back."""
    return f"Order {order} is paid back."


def runner(trace: Path | None = None) -> Runner:
    """Return the agent; what it remembers is in the trace, so each request may have another process."""
    llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
    shop = FunctionTools([refund])
    return Runner(llm=llm, servers={"shop": shop}, tool_policy=POLICY, trace=trace)


@app.post("/mails/<text>")
def mail(text: str) -> tuple[Response, int]:
    """Have the agent answer a mail; 202: a call waits for a person."""
    RUNS.mkdir(exist_ok=True)
    case = str(uuid.uuid4())
    try:
        with runner(RUNS / f"{case}.jsonl") as agent:
            done = agent.run_turn(TurnRequest(system="Help the customer.", user=text))
            return jsonify(case=case, answer=done.response), 200
    except ApprovalPending as waits:
        return jsonify(case=case, asks=[f"{q.name} {q.arguments}" for q in waits.questions]), 202


@app.post("/approvals/<uuid:case>")
def approve(case: uuid.UUID) -> Response:
    """Approve what a case asks about, and go on with its turn."""
    trace = RUNS / f"{case}.jsonl"
    yes = [question.approve() for turn in parked_turns(trace) for question in turn.questions]
    with runner() as agent:
        return jsonify(answer=agent.resume(trace, yes).response)
