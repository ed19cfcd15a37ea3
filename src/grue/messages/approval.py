"""Between agent and approval: questions about tool calls, and the decisions."""

from grue.approvals import ApprovalDecision, ApprovalQuestion
from grue.messages.message import Message


class AskApproval(Message, frozen=True, kw_only=True):
    """agent -> approval: ask a person about these calls of a reply. No call of the reply has been sent."""

    questions: tuple[ApprovalQuestion, ...]


class CallsDecided(Message, frozen=True, kw_only=True):
    """approval -> agent: answers to some or all of the questions."""

    decisions: tuple[ApprovalDecision, ...]


class ApprovalPostponed(Message, frozen=True, kw_only=True):
    """approval -> agent: nobody answers now, so the turn is to be parked.

    Attributes:
        expires_at: Seconds since the epoch after which the questions are denied; `None`: never.
    """

    expires_at: float | None = None
