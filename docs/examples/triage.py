"""Triage of support mails: look each order up, refund after an approval, and print what was decided.

.venv/bin/python docs/examples/triage.py   with a scripted model, which needs no network and no key
.venv/bin/python docs/examples/triage.py BASE_URL MODEL
"""

import sys
from contextlib import nullcontext
from typing import Literal

from msgspec import Struct
from triage_model import scripted_model

import grue
from grue.hosting import Fact, register_facts

MAILS = ("Order 17 came broken, money back please. Ada", "Where is order 23? Bob", "Buy cheap watches!")
ORDERS = {17: ("delivered", 12.50), 23: ("on its way", 80.00)}
SYSTEM = "You sort the mails of a shop. Look orders up before you answer. Refund what came broken."


class Decision(Struct):
    """What a mail is about, and the reply to it."""

    topic: Literal["refund", "question", "spam"]
    reply: str


class Triaged(Fact, frozen=True, kw_only=True, tag="triage.Triaged"):
    """Recorded in the trace beside the messages of the turn."""

    mail: str
    topic: str


register_facts("triage", Triaged)


@grue.tool(annotations=grue.ToolAnnotations(read_only=True))
def look_up(order: int) -> str:
    """Return the state and the price of an order."""
    state, euros = ORDERS[order]
    return f"order {order} is {state}, {euros:.2f} euros"


@grue.tool
def refund(order: int) -> str:
    """Pay the price of an order back."""
    return f"paid back {ORDERS[order][1]:.2f} euros"


def approve(questions: tuple[grue.ApprovalQuestion, ...]) -> list[grue.ApprovalDecision]:
    """Approve small refunds; a person would be asked about the others."""
    return [
        question.approve()
        if ORDERS[int(str(question.arguments["order"]))][1] < 50
        else question.deny("too much")
        for question in questions
    ]


def triage(llm: grue.LlmSettings, trace: str) -> None:
    """Run a turn for each mail, and print a table."""
    policy = grue.ToolPolicy(rules=(grue.ToolRule(read_only=False, verdict="ask", reason="it pays money"),))
    servers = {"shop": grue.FunctionTools([look_up, refund])}
    with grue.Runner(llm=llm, servers=servers, tool_policy=policy, approve=approve, trace=trace) as runner:
        for mail in MAILS:
            outcome = runner.run_turn(grue.TurnRequest(system=SYSTEM, user=mail, answer=Decision))
            decision = outcome.response
            runner.recorder.record(Triaged(mail=mail, topic=decision.topic), sender="host", turn=runner.turn)
            calls = ", ".join(call.name.partition(".")[2] for call in outcome.tool_calls) or "-"
            print(f"{mail[:24]:<24} | {decision.topic:<8} | {calls:<15} | {decision.reply}")


def endpoint() -> grue.LlmSettings:
    """Return the endpoint and the model that the command line names."""
    return grue.LlmSettings(base_url=sys.argv[1], model=sys.argv[2])


if __name__ == "__main__":
    with scripted_model() if len(sys.argv) < 3 else nullcontext(endpoint()) as model:
        triage(model, "triage.jsonl")
