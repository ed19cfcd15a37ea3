"""The actor of the built-in tools. To the agent, and in the trace, it is one more tool server."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import anyio
import anyio.to_thread

from grue import messages as m
from grue.protocol.tools import calls
from grue.protocol.tools import results as tool_results
from grue.runtime.actor import Actor, Mailbox, Note
from grue.runtime.trace.recorder import Envelope

AnswersCall: TypeAlias = Callable[[m.JsonObject], m.ToolCallResult]  # called in a thread


class BuiltInTools(Actor[m.SessionCommand]):
    """Answers the calls of built-in tools in one turn. It accepts only `CallTools`."""

    def __init__(
        self,
        mailbox: Mailbox[m.SessionCommand],
        agent: Mailbox[m.TurnEvent],
        note: Note,
        answers: Mapping[str, AnswersCall],
    ) -> None:
        super().__init__(mailbox)
        self._agent = agent
        self._note = note
        self._answers = answers

    async def receive(self, envelope: Envelope[m.SessionCommand]) -> None:
        """Answer the calls of a batch, one after the other. A cancellation abandons the current call."""
        batch = envelope.body
        assert isinstance(batch, m.CallTools), "it has no session to open or close"
        for step in calls.steps_of(batch):
            match step:
                case calls.MakeCall(called):
                    self._note(called, sender=self.name, cause=envelope.seq)
                    step.settlement = await self._call(called, batch.timeout_s)
                case settled:
                    await self._agent.send(settled, sender=self.name, cause=envelope.seq)

    async def _call(self, call: m.ToolCalled, timeout_s: float) -> m.Settlement:
        started, answer = anyio.current_time(), self._answers.get(call.tool)
        result: m.ToolCallResult | None = tool_results.call_failed("there is no such tool")
        if answer is not None:
            result = None
            with anyio.move_on_after(timeout_s):
                # After a timeout, do not wait for the thread: it may be reading from a disk that hangs.
                result = await anyio.to_thread.run_sync(answer, call.arguments, abandon_on_cancel=True)
        lasted = anyio.current_time() - started
        if result is None:
            return m.ToolTimedOut(
                batch=call.batch, call_id=call.call_id, timeout_s=timeout_s, duration_s=lasted
            )
        return m.ToolReturned(batch=call.batch, call_id=call.call_id, result=result, duration_s=lasted)
