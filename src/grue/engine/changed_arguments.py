"""Check the arguments that a person has changed, before the decision is accepted.

The machine cannot: a schema may need the validator, which has a time limit of its own. Come here for when a
change is refused.
"""

from collections.abc import Iterable

import msgspec

from grue.errors import ChangeRefused
from grue.mcp_transport.input_schemas import fault_of
from grue.messages import ApprovalDecision, ApprovalQuestion
from grue.protocol.tool_arguments import read_arguments


def check_changes(questions: Iterable[ApprovalQuestion], decisions: Iterable[ApprovalDecision]) -> None:
    """Check changed arguments against the input schemas of the questions. May take half a second each.

    Raises:
        ChangeRefused: They cannot be used.
    """
    for question, fault in refused_changes(questions, decisions):
        raise ChangeRefused(
            f"The changed arguments of {question.name} (call {question.call_id}) cannot be used: {fault}."
            " Decide again, with arguments that its input schema takes.",
            call_id=question.call_id,
            name=question.name,
        )


def refused_changes(
    questions: Iterable[ApprovalQuestion], decisions: Iterable[ApprovalDecision]
) -> list[tuple[ApprovalQuestion, str]]:
    """Return the questions whose changed arguments cannot be used, and why.

    A decision about another call is not checked; it has no effect.
    """
    asked = {question.call_id: question for question in questions}
    refused = []
    for decision in decisions:
        question = asked.get(decision.call_id)
        fault = _fault(question, decision) if decision.verdict == "change" and question else None
        if question is not None and fault is not None:
            refused.append((question, fault))
    return refused


def _fault(question: ApprovalQuestion, decision: ApprovalDecision) -> str | None:
    arguments = read_arguments(msgspec.json.encode(decision.arguments).decode())
    if isinstance(arguments, str):
        return arguments
    return None if question.input_schema is None else fault_of(question.input_schema, arguments)
