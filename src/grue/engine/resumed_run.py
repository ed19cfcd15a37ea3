"""Run a turn that a later process goes on with, as `engine/turn.py` runs a new one."""

from typing import TypeVar

from msgspec.structs import replace

from grue.engine.resume import RememberingActors, ResumedTurn, ResumeRequest
from grue.engine.turn import EpisodeMemory, Spending, Turn, TurnSettings
from grue.messages import Attachment, Budget, HistoryReference, RunTurn, TurnParked, Usage
from grue.turn_request import TurnRequest

T = TypeVar("T")


class ResumedRun(Turn[T]):
    """One resumed turn.

    Args:
        asked: What the host asked for.
        resumed: What the turn goes on with.
        counted: What this process has counted of it already; `None`: nothing.
        settings: The runner's settings.
        memory: The episode that the turn belongs to.
    """

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
        )
        endpoint = settings.wiring.endpoint
        assert endpoint is not None, "the turn was checked to fit this runner"
        wiring = replace(settings.wiring, llm=RememberingActors(endpoint, resumed))
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
            reasoning_tokens=usage.reasoning_tokens - before.reasoning_tokens,
            cost_usd=cost,
        )
        self._whole.add(requests - self._requests, rest)
