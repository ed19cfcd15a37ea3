"""Carry questions from a turn, which runs in a thread of its own, to the person at the terminal.

Only the main thread reads the terminal: if two threads read, each would get some of the keys. A cancelled
turn stops waiting at once, and an answer that comes later is dropped.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, Generic, TypeVar

from grue import messages as m
from grue.policies import ApprovalDecision, ApprovalQuestion
from grue.tool_sessions.server_requests import Declined, ElicitationRequest

A = TypeVar("A")


class Question(Generic[A]):
    """A question that a turn asks the user. The turn waits until `answer` is called."""

    def __init__(self) -> None:
        self._answered: Future[A] = Future()

    async def wait(self) -> A:
        """Wait for the answer and return it. Called in the turn's event loop."""
        return await asyncio.wrap_future(self._answered)

    def answer(self, answer: A) -> None:
        """Answer the question. Can be called in any thread."""
        with contextlib.suppress(InvalidStateError):  # the turn was cancelled
            self._answered.set_result(answer)


class CallsQuestion(Question[Sequence[ApprovalDecision]]):
    """Asks the user whether to make `calls`, the tool calls of one model reply."""

    def __init__(self, calls: tuple[ApprovalQuestion, ...]) -> None:
        super().__init__()
        self.calls = calls


class ServerQuestion(Question[m.JsonObject | Declined]):
    """Asks the user for the input that an MCP server has requested (elicitation)."""

    def __init__(self, request: ElicitationRequest) -> None:
        super().__init__()
        self.request = request


class Asker:
    """The callbacks by which a runner asks the user. `report` gets each question; set it before a turn."""

    def __init__(self) -> None:
        self.report: Callable[[Question[Any]], object]

    async def approve(self, calls: tuple[ApprovalQuestion, ...]) -> Sequence[ApprovalDecision]:
        """Ask the user whether to make `calls`, and wait for a decision about each."""
        question = CallsQuestion(calls)
        self.report(question)
        return await question.wait()

    async def elicit(self, request: ElicitationRequest) -> m.JsonObject | Declined:
        """Ask the user for the input that a server requests, and wait for it."""
        question = ServerQuestion(request)
        self.report(question)
        return await question.wait()
