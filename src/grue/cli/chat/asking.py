"""Carry questions from a turn, which runs in a thread of its own, to the person at the terminal.

Only the main thread reads the terminal: if two threads read, each would get some of the keys. A cancelled
turn stops waiting at once, and an answer that comes later is dropped.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

from grue.policies import ApprovalQuestion
from grue.tool_sessions.server_requests import ElicitationRequest


class Question:
    """A turn's question: whether to make a reply's tool calls, or what input to give to a server.

    The answer is a list of `ApprovalDecision`s, or a JSON object or a `Declined`.
    """

    def __init__(self, asked: tuple[ApprovalQuestion, ...] | ElicitationRequest) -> None:
        self.asked = asked
        self._answered: Future[Any] = Future()

    async def put(self, report: Callable[["Question"], object]) -> Any:
        """Pass the question to `report`; return the answer when it comes. Called in the turn's event loop."""
        report(self)
        return await asyncio.wrap_future(self._answered)

    def answer(self, answer: object) -> None:
        """Answer the question. Can be called in any thread."""
        with contextlib.suppress(InvalidStateError):  # the turn was cancelled
            self._answered.set_result(answer)
