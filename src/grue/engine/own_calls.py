"""Apply a tool policy to calls that a host makes itself: some are made, some denied, some asked about.

Come here if your host carries out what a model answers with, and does not leave it to a turn. The calls of
one answer are judged as a whole before the first of them is made. The table, the questions and the binding
of decisions are those of the tool calls of a turn (`protocol/turn_approval.py`).
"""

import time
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from grue.messages import ApprovalDecision, ApprovalQuestion, JsonObject, ToolDefinition, ToolPolicy
from grue.protocol.tool_policy import is_about, judge, question_about

AskPerson: TypeAlias = Callable[[tuple[ApprovalQuestion, ...]], bool | Iterable[ApprovalDecision] | None]
"""Answers questions: `True` or `False` for all of them, or decisions. `None`: nobody can answer now."""

_NO_ANSWER = "it needs an approval, and there was none"
_DENIED = "a person denied it"


class OwnCall(Struct, frozen=True, kw_only=True):
    """A call that a host is about to make, and what the policy says about it.

    Attributes:
        call_id: Identifies it among the calls that are judged together.
        tool: What is called; a host's own actions can be described as tools.
        denied: Why it must not be made; empty: it may be, once `question` is answered.
        question: What a person has to answer first; `None`: nothing.
    """

    call_id: str
    tool: ToolDefinition
    arguments: JsonObject
    denied: str = ""
    question: ApprovalQuestion | None = None

    def decided(self, decision: ApprovalDecision | None) -> "OwnCall":
        """Return the call as a person has decided about it; `None`: nobody has, and it is denied."""
        if decision is None or decision.verdict == "deny":
            said = _NO_ANSWER if decision is None else decision.reason or _DENIED
            return replace(self, denied=said, question=None)
        if decision.verdict == "change" and decision.arguments is not None:
            return replace(self, arguments=decision.arguments, question=None)
        return replace(self, question=None)


class AskedCalls(Struct, frozen=True, kw_only=True):
    """The calls of one answer after a person was asked about them.

    Attributes:
        calls: As they were decided about; if `parked`, as they were judged.
        questions: What was asked. If `parked`, what still has to be answered.
        decisions: The decisions that count.
        parked: Nobody could answer, and the policy says that the host should wait for decisions.
        expires_at: With `parked`: Unix time after which no decision counts; `None`: never.
    """

    calls: tuple[OwnCall, ...]
    questions: tuple[ApprovalQuestion, ...] = ()
    decisions: tuple[ApprovalDecision, ...] = ()
    parked: bool = False
    expires_at: float | None = None


def judge_calls(
    calls: Sequence[OwnCall], policy: ToolPolicy, *, approved: AbstractSet[str] = frozenset()
) -> tuple[OwnCall, ...]:
    """Return the calls with what the policy says about each.

    Args:
        calls: In the order in which they are to be made.
        policy: The table.
        approved: Canonical names of tools that were approved in advance: the policy does not ask about them.
            What it denies stays denied.
    """
    terms, _ = judge(policy, [call.tool for call in calls], {})
    judged = []
    for call, verdict in zip(calls, terms, strict=True):
        if verdict.verdict == "deny":
            judged.append(replace(call, denied=verdict.reason))
        elif verdict.verdict == "ask" and call.tool.name not in approved:
            question = question_about(call.call_id, call.tool, call.arguments, verdict.reason)
            judged.append(replace(call, question=question))
        else:
            judged.append(call)
    return tuple(judged)


def decisions_about(
    questions: Iterable[ApprovalQuestion], answer: bool | Iterable[ApprovalDecision]
) -> dict[str, ApprovalDecision]:
    """Return the decisions that count, by call id: those about these questions, arguments and definitions."""
    asked = {question.call_id: question for question in questions}
    if isinstance(answer, bool):
        return {name: each.approve() if answer else each.deny() for name, each in asked.items()}
    given = {decision.call_id: decision for decision in answer}
    return {name: given[name] for name in asked if name in given and is_about(given[name], asked[name])}


def ask_about(
    calls: tuple[OwnCall, ...],
    policy: ToolPolicy,
    ask: AskPerson | None,
    *,
    given: Iterable[ApprovalDecision] = (),
    expires_at: float | None = None,
) -> AskedCalls:
    """Ask a person about the calls of one answer, as far as they were not decided about before.

    Args:
        calls: As `judge_calls` returns them.
        policy: Says whether calls wait for decisions if nobody can answer.
        ask: Answers the questions; `None`: nobody can.
        given: Decisions that were made while the calls were parked.
        expires_at: The `expires_at` of the calls when they were parked. After that time, what was asked is
            denied, and nobody is asked again.
    """
    questions = tuple(call.question for call in calls if call.question is not None)
    expired = expires_at is not None and expires_at < time.time()
    found = {} if expired else decisions_about(questions, given)
    rest = tuple(each for each in questions if each.call_id not in found)
    if rest and not expired:
        answer = None if ask is None else ask(rest)
        if answer is not None:
            found |= decisions_about(rest, answer)
        elif policy.parking:
            until = None if policy.park_for_s is None else time.time() + policy.park_for_s
            return AskedCalls(calls=calls, questions=rest, parked=True, expires_at=until)
    decided = (call if call.question is None else call.decided(found.get(call.call_id)) for call in calls)
    return AskedCalls(calls=tuple(decided), questions=questions, decisions=tuple(found.values()))
