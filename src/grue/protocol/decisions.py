"""Read the decisions of a person about tool calls, and say what follows from them; pure.

This is the one place that judges a verdict: turns, conversations, parked turns, a host's own calls and the
skill agent use it. Decisions come from programs, so they may be anything. The rules:

- Only what is exactly an approval, or a change with usable arguments, lets a call be made. Everything else is
  a denial: another word, `None`, a change without arguments, an approval with some.
- A decision counts for one call, with its arguments and the definition of its tool.
- If decisions about a call contradict each other, it is denied.
"""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.policies import ApprovalDecision, ApprovalQuestion
from grue.protocol.tools.arguments import read_arguments
from grue.runtime.safe_text import well_formed

DENIED_BY_PERSON = "the user does not allow it"
UNUSABLE_CHANGE = "the user changed the arguments, but not to usable ones: {fault}"
UNUSABLE_DECISION = "the decision about it is none: it should be to approve, to deny or to change the call"
CONTRADICTED = "the decisions about the call contradict each other, so it is denied"
ANOTHER_CALL = "it is about another call, other arguments or another definition of the tool"
ANSWERED = "the call has been decided on already"

Decisions = Mapping[m.CallId, ApprovalDecision]


class Judged(Struct, frozen=True):
    """What follows from a decision.

    Attributes:
        denied: Why the call is not made; empty: it is.
        changed: The arguments to make it with; `None`: those that the person was shown.
    """

    denied: str = ""
    changed: m.JsonObject | None = None


def judged(decision: ApprovalDecision) -> Judged:
    """Return the judgement of a call that a decision leads to."""
    decision = sound(decision)
    if decision.verdict == "approve":
        return Judged()
    if decision.verdict == "deny":
        return Judged(denied=decision.reason or DENIED_BY_PERSON)
    arguments = read_arguments(msgspec.json.encode(decision.arguments).decode())
    if isinstance(arguments, str):
        return Judged(denied=UNUSABLE_CHANGE.format(fault=arguments))
    return Judged(changed=arguments)


def sound(decision: ApprovalDecision) -> ApprovalDecision:
    """Return a decision as plain data that shares nothing with `decision`; a denial if it is malformed."""
    verdict: object = decision.verdict
    reason = well_formed(decision.reason) if isinstance(decision.reason, str) else ""
    if verdict == "approve" and decision.arguments is None:
        return replace(decision, reason=reason)
    if verdict == "deny":
        return replace(decision, reason=reason, arguments=None)
    if verdict == "change" and isinstance(decision.arguments, dict):
        try:
            arguments = msgspec.json.decode(msgspec.json.encode(decision.arguments))
            return replace(decision, reason=reason, arguments=arguments)
        except (TypeError, ValueError, RecursionError):  # it is no JSON
            pass
    return replace(decision, verdict="deny", reason=UNUSABLE_DECISION, arguments=None)


def own_copies(questions: Iterable[ApprovalQuestion]) -> tuple[ApprovalQuestion, ...]:
    """Return questions that share nothing with `questions`, for code that may change what it gets."""
    return tuple(
        replace(
            each,
            arguments=msgspec.to_builtins(each.arguments),
            input_schema=msgspec.to_builtins(each.input_schema),
        )
        for each in questions
    )


def is_about(decision: ApprovalDecision, asked: ApprovalQuestion | ApprovalDecision) -> bool:
    """Return whether a decision is about a question, or about that of another decision.

    It is if tool, arguments and definition are the same.
    """
    return (decision.name, decision.arguments_digest, decision.definition_digest) == (
        asked.name,
        asked.arguments_digest,
        asked.definition_digest,
    )


def settled(
    questions: Iterable[ApprovalQuestion],
    decisions: Iterable[ApprovalDecision],
    before: Decisions | None = None,
) -> tuple[dict[m.CallId, ApprovalDecision], tuple[m.DecisionIgnored, ...]]:
    """Return all decisions that count so far, by call, and a note for each one that does not.

    Args:
        questions: Those that wait for an answer.
        decisions: In the order in which they were made.
        before: The decisions that counted before these came; nothing has followed from them yet.
    """
    asked = {question.call_id: question for question in questions}
    accepted = dict(before or {})
    ignored: list[m.DecisionIgnored] = []
    for given in decisions:
        decision, call_id = sound(given), m.CallId(given.call_id)
        known = accepted.get(call_id)
        question = asked.get(call_id) if known is None else known
        if question is None or not is_about(decision, question):
            ignored.append(m.DecisionIgnored(call_id=call_id, reason=ANOTHER_CALL))
        elif known is None:
            accepted[call_id] = decision
        elif known.verdict == "deny" or (known.verdict, known.arguments) == (
            decision.verdict,
            decision.arguments,
        ):
            ignored.append(m.DecisionIgnored(call_id=call_id, reason=ANSWERED))
        else:
            # The first of the two is ignored, whatever it was.
            ignored.append(m.DecisionIgnored(call_id=call_id, reason=CONTRADICTED))
            denial = replace(decision, verdict="deny", reason=CONTRADICTED, arguments=None)
            accepted[call_id] = decision if decision.verdict == "deny" else denial
    return accepted, tuple(ignored)


def read_decisions(given: Iterable[object]) -> tuple[ApprovalDecision, ...]:
    """Turn a program's answers into decisions; each has the names and digests that it needs.

    Raises:
        TypeError: One of them is not a decision.
    """
    decisions = tuple(given)
    wrong = next((each for each in decisions if not isinstance(each, ApprovalDecision)), None)
    if wrong is not None or any(each is None for each in decisions):
        raise TypeError(f"approve returned {wrong!r}; it should return decisions, True or False")
    found = (each for each in decisions if isinstance(each, ApprovalDecision))
    texts = ("call_id", "name", "arguments_digest", "definition_digest")
    return tuple(sound(each) for each in found if all(isinstance(getattr(each, text), str) for text in texts))
