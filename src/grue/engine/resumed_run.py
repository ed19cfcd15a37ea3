"""Run a turn that a later process goes on with, as `engine/turn.py` runs a new one."""

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

from msgspec.structs import replace

from grue.actors.llm import LentConversation
from grue.engine.resume import (
    ResumedTurn,
    ResumeRequest,
    is_recorded_by,
    resumed_turn,
    writer_for,
)
from grue.engine.turn import EpisodeMemory, Spending, Turn, TurnSettings
from grue.engine.wiring import Wiring
from grue.messages import Attachment, Budget, ConversationId, HistoryReference, RunTurn, TurnParked, Usage
from grue.protocol.chat_wire.conversation import Conversation
from grue.runtime.trace_file import TraceWriter
from grue.turn_request import TurnRequest

T = TypeVar("T")


@contextlib.contextmanager
def resumed_run(
    asked: ResumeRequest, settings: TurnSettings, memory: EpisodeMemory, writers: list[TraceWriter]
) -> "Iterator[ResumedRun[Any]]":
    """Yield the turn that goes on.

    Args:
        asked: What the host asks for.
        settings: The runner's settings.
        memory: The episode that the turn belongs to.
        writers: Gets what writes the trace, if it has to be opened for this.

    Raises:
        MCPError: As `resumed_turn`.
    """
    recorder = settings.wiring.recorder
    ours = is_recorded_by(recorder, asked.trace)
    writer = writer_for(asked.trace, recorder)
    if not ours:
        writers.append(writer)
    with resumed_turn(asked, writer, settings) as resumed:
        where = resumed.command.resumed
        counted = where.parked if ours and where is not None else None
        yield ResumedRun(asked, resumed, counted, settings, memory)


class ResumedRun(Turn[T]):
    """One resumed turn.

    Args:
        asked: What the host asked for.
        resumed: What the turn goes on with.
        counted: What this process has counted of it already; `None`: nothing.
        settings: The runner's settings.
        memory: The episode that the turn belongs to.
    """

    is_resumed = True

    def __init__(
        self,
        asked: ResumeRequest,
        resumed: ResumedTurn,
        counted: TurnParked | None,
        settings: TurnSettings,
        memory: EpisodeMemory,
    ) -> None:
        self._command = command = resumed.command
        request: TurnRequest[T] = TurnRequest(
            system=command.system,
            user=command.user,
            answer=asked.answer,
            turn=command.turn,
            on_delta=asked.on_delta,
            conversation=resumed.conversation,
        )
        wiring = settings.wiring
        if resumed.conversation is None:
            wiring = _remembering(wiring, resumed)
        spending = _Rest(settings.spending, counted)
        super().__init__(request, replace(settings, wiring=wiring, spending=spending), memory)

    def command(
        self,
        number: int,
        budget: Budget,
        history: HistoryReference | None = None,
        images: tuple[Attachment, ...] = (),
    ) -> RunTurn:
        """Return the message that starts this part of the turn; it has the limits that are left of it."""
        del number, budget, history, images
        return self._command


def _remembering(wiring: Wiring, resumed: ResumedTurn) -> Wiring:
    """Return the parts of a turn whose LLM actor knows what was said in it."""
    lender = wiring.lender
    encoded = Conversation(lender.profile, model=lender.model, history=resumed.history)
    encoded.offer(resumed.tools)
    name = ConversationId(f"turn-{resumed.command.turn}")
    return wiring.lending(LentConversation(name, encoded, _save_nothing))


async def _save_nothing() -> None:
    """Do nothing: the trace holds the turn's entries."""


class _Rest(Spending):
    """Counts what a resumed turn spends, without what this process has counted of it before."""

    def __init__(self, whole: Spending, counted: TurnParked | None) -> None:
        super().__init__()
        self._whole = whole
        self._requests = counted.requests if counted else 0
        self._usage = counted.usage if counted else Usage()

    def add(self, requests: int, usage: Usage) -> None:
        """Add the finished turn to the runner's spending."""
        before = self._usage
        cost = None if usage.cost_usd is None else usage.cost_usd - (before.cost_usd or 0.0)
        rest = Usage(
            input_tokens=usage.input_tokens - before.input_tokens,
            output_tokens=usage.output_tokens - before.output_tokens,
            cached_tokens=usage.cached_tokens - before.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens - before.cache_write_tokens,
            reasoning_tokens=usage.reasoning_tokens - before.reasoning_tokens,
            cost_usd=cost,
        )
        self._whole.add(requests - self._requests, rest)
