"""Carry questions about tool calls from a turn to the person at the terminal, and the decisions back.

The turn runs in a thread of its own, and the terminal belongs to the main thread: two readers of one terminal
would take each other's keys. So the turn waits here, the main thread learns of the questions by an event, and
gives the decisions to `decide`. A turn that is cancelled stops waiting at once.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError

from grue.approvals import ApprovalDecision, ApprovalQuestion


class Approver:
    """Waits for decisions in the turn's event loop, and takes them from another thread."""

    def __init__(self) -> None:
        self._decided: Future[Sequence[ApprovalDecision]] = Future()

    def begin(self) -> None:
        """Forget decisions that came after their turn had ended. Call it before each turn."""
        self._decided = Future()

    async def ask(self, questions: tuple[ApprovalQuestion, ...]) -> Sequence[ApprovalDecision]:
        """Wait for the decisions: the `approve` callback of a runner."""
        del questions
        decisions = await asyncio.wrap_future(self._decided)
        self._decided = Future()
        return decisions

    def decide(self, decisions: Sequence[ApprovalDecision]) -> None:
        """Answer the questions that the turn asks, or is about to ask. Any thread may call it."""
        with contextlib.suppress(InvalidStateError):  # the turn was cancelled
            self._decided.set_result(decisions)
