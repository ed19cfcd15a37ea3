"""Apply a tool policy to calls that a host makes itself: some are made, some denied, some asked about.

It is for hosts that carry out what a model answers with, and do not leave it to a turn. The calls of one
answer are judged as a whole before the first of them is made. The table, the questions and the binding of
decisions are those of the tool calls of a turn (`protocol/turn/tools.py`).
"""

import time
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.policies import ApprovalDecision, ApprovalQuestion, ToolPolicy
from grue.protocol.tools.policy import judge, judged, own_copies, question_about, read_decisions, settled

AskPerson: TypeAlias = Callable[[tuple[ApprovalQuestion, ...]], bool | Iterable[ApprovalDecision] | None]
"""Answers questions: `True` or `False` for all of them, or decisions. `None`: nobody can answer now."""

_NO_ANSWER = "it needs an approval, and there was none"


class OwnCall(Struct, frozen=True, kw_only=True):
    """A call that a host is about to make, and what the policy says about it.

    Attributes:
        call_id: Identifies it among the calls that are judged together.
        tool: What is called; a host's own actions can be described as tools.
        denied: Why it must not be made; empty: it may be, once `question` is answered.
        question: What a person has to answer first; `None`: nothing.
    """

    call_id: str
    tool: m.ToolDefinition
    arguments: m.JsonObject
    denied: str = ""
    question: ApprovalQuestion | None = None

    def decided(self, decision: ApprovalDecision | None) -> "OwnCall":
        """Return the call as a person has decided about it; `None`: nobody has, and it is denied."""
        if decision is None:
            return replace(self, denied=_NO_ANSWER, question=None)
        found = judged(decision)
        arguments = self.arguments if found.changed is None else found.changed
        return replace(self, arguments=arguments, denied=found.denied, question=None)


class AskedCalls(Struct, frozen=True, kw_only=True):
    """The calls of one answer after a person was asked about them.

    Attributes:
        calls: As they were decided about; if `parked`, as they were judged.
        questions: What was asked. If `parked`, what still has to be answered.
        decisions: The decisions that count so far.
        parked: Nobody could answer, and the policy says that the host should wait for decisions.
        expires_at: With `parked`: Unix time after which no decision counts; `None`: never.
    """

    calls: tuple[OwnCall, ...]
    questions: tuple[ApprovalQuestion, ...] = ()
    decisions: tuple[ApprovalDecision, ...] = ()
    parked: bool = False
    expires_at: float | None = None


def judge_calls(
    calls: Sequence[OwnCall],
    policy: ToolPolicy,
    *,
    approved: AbstractSet[str] = frozenset(),
    made: Sequence[m.ToolDefinition] = (),
) -> tuple[OwnCall, ...]:
    """Return the calls with what the policy says about each.

    Args:
        calls: In the order in which they are to be made.
        policy: The table.
        approved: Canonical names of tools that were approved in advance: the policy does not ask about them.
            What it denies stays denied.
        made: The tools of the calls of the same answer that were made before, as by a process that was
            killed. They count towards `max_calls`.
    """
    _, used = judge(policy, made, {})
    terms, _ = judge(policy, [call.tool for call in calls], used)
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
    asked = tuple(questions)
    if isinstance(answer, bool):
        return {each.call_id: each.approve() if answer else each.deny() for each in asked}
    counted, _ = settled(asked, read_decisions(answer))
    return {str(call_id): decision for call_id, decision in counted.items()}


def ask_about(
    calls: tuple[OwnCall, ...],
    policy: ToolPolicy,
    ask: AskPerson | None,
    *,
    given: Iterable[ApprovalDecision] = (),
    earlier: Iterable[ApprovalDecision] = (),
    expires_at: float | None = None,
) -> AskedCalls:
    """Ask a person about the calls of one answer, as far as they were not decided about before.

    Args:
        calls: As `judge_calls` returns them.
        policy: Says whether calls wait for decisions if nobody can answer.
        ask: Answers the questions; `None`: nobody can.
        given: Decisions that were made while the calls were parked.
        earlier: The `decisions` of the calls when they were parked again, with some of them decided on.
        expires_at: The `expires_at` of the calls when they were parked. After that time, what has not been
            decided on is denied, and nobody is asked again.
    """
    questions = tuple(call.question for call in calls if call.question is not None)
    expired = expires_at is not None and expires_at < time.time()
    found = decisions_about(questions, (*earlier, *(() if expired else given)))
    rest = tuple(each for each in questions if each.call_id not in found)
    if rest and not expired:
        answer = None if ask is None else ask(own_copies(rest))
        if answer is not None:
            found |= decisions_about(rest, answer)
        elif policy.parking:
            until = None if policy.park_for_s is None else time.time() + policy.park_for_s
            return AskedCalls(
                calls=calls,
                questions=rest,
                decisions=tuple(found.values()),
                parked=True,
                expires_at=until if expires_at is None else expires_at,
            )
    decided = (call if call.question is None else call.decided(found.get(call.call_id)) for call in calls)
    return AskedCalls(calls=tuple(decided), questions=questions, decisions=tuple(found.values()))
