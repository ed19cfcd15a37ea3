"""The actor of the built-in tools: answers calls of tools that grue serves itself.

To the agent it is one more tool server, so calls of these tools are batched, recorded, replayed and counted
like any other. It has no session: it takes `CallTools` only.
"""

from collections.abc import Callable

import anyio
import anyio.to_thread

from grue import messages as m
from grue.errors import MCPError
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.batch import (
    BatchArrived,
    CallSettled,
    MakeCall,
    NoBatch,
    ReportSettlement,
    batch_step,
)
from grue.runtime.actor import Actor, Note
from grue.runtime.channel import Mailbox
from grue.runtime.loops.clock import now
from grue.runtime.trace.recorder import Envelope
from grue.tool_sessions.result_reading import CannotReadError, WholeResult, wanted

UNKNOWN = (
    "no result is kept under the handle {handle!r}. Copy the handle as it was told. If it is right, the"
    " result is gone: call its tool again, if that does no harm"
)


class BuiltInTools(Actor[m.SessionCommand]):
    """Serves `read_result`.

    Args:
        mailbox: Receives the batches.
        agent: Gets the settlements.
        note: Records each call.
        result_of: Finds the whole result of an earlier call by its handle; `None`: there is none. Called in a
            thread, because it may read a trace.
        max_result_chars: Longest answer.
    """

    def __init__(
        self,
        mailbox: Mailbox[m.SessionCommand],
        agent: Mailbox[m.TurnEvent],
        note: Note,
        result_of: Callable[[str], m.ToolCallResult | None],
        max_result_chars: int,
    ) -> None:
        super().__init__(mailbox)
        self._agent = agent
        self._note = note
        self._result_of = result_of
        self._max_chars = max_result_chars
        self._last: tuple[str, WholeResult] | None = None

    async def receive(self, envelope: Envelope[m.SessionCommand]) -> None:
        """Answer the calls of a batch, one after the other. A cancellation gives up the call under way."""
        batch = envelope.body
        assert isinstance(batch, m.CallTools), "it has no session to open or close"
        state, commands = batch_step(NoBatch(), BatchArrived(batch))
        while commands:
            settlement: CallSettled | None = None
            for command in commands:
                match command:
                    case ReportSettlement(settled):
                        await self._agent.send(settled, sender=self.name, cause=envelope.seq)
                    case MakeCall(called):
                        self._note(called, sender=self.name, cause=envelope.seq)
                        settlement = await self._call(called, batch.timeout_s)
                    case _:
                        pass  # its list of tools never changes
            if settlement is None:
                return
            state, commands = batch_step(state, settlement)

    async def _call(self, call: m.ToolCalled, timeout_s: float) -> CallSettled:
        started = now()
        result: m.ToolCallResult | None = None
        with anyio.move_on_after(timeout_s):
            # Abandoned, because the trace may be on a file system that does not answer.
            result = await anyio.to_thread.run_sync(self._read, call.arguments, abandon_on_cancel=True)
        lasted = now() - started
        if result is None:
            return m.ToolTimedOut(
                batch=call.batch, call_id=call.call_id, timeout_s=timeout_s, duration_s=lasted
            )
        return m.ToolReturned(batch=call.batch, call_id=call.call_id, result=result, duration_s=lasted)

    def _read(self, arguments: m.JsonObject) -> m.ToolCallResult:
        try:
            asked = wanted(arguments)
            return tool_results.success(self._whole(asked.handle).read(asked, self._max_chars))
        except (CannotReadError, MCPError) as error:
            return tool_results.call_failed(str(error))

    def _whole(self, handle: str) -> WholeResult:
        # A model reads a result in several steps, and each would lay it out again.
        last = self._last
        if last is not None and last[0] == handle:
            return last[1]
        result = self._result_of(handle)
        if result is None:
            raise CannotReadError(UNKNOWN.format(handle=handle[:80]))
        whole = WholeResult(result)
        self._last = (handle, whole)
        return whole
