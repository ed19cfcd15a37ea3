"""The approval actor waits for decisions about tool calls, while the agent goes on receiving events."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from grue import messages as m
from grue.policies import ApprovalQuestion
from grue.runtime.actor import Actor, Mailbox
from grue.runtime.trace.recorder import Envelope

Answer: TypeAlias = Callable[[tuple[ApprovalQuestion, ...]], Awaitable[m.CallsDecided | m.ApprovalPostponed]]
"""Gets the questions about a reply's calls. Returns decisions, or `ApprovalPostponed` to park the turn."""


class ApprovalActor(Actor[m.AskApproval]):
    """Answers `AskApproval`, in which the agent asks whether tool calls may be made."""

    def __init__(
        self, mailbox: Mailbox[m.AskApproval], *, agent: Mailbox[m.TurnEvent], answer: Answer
    ) -> None:
        super().__init__(mailbox)
        self._agent = agent
        self._answer = answer

    async def receive(self, envelope: Envelope[m.AskApproval]) -> None:
        """Ask about the calls of one reply, and send the agent the answer."""
        answer = await self._answer(envelope.body.questions)
        await self._agent.send(answer, sender=self.name, cause=envelope.seq)
