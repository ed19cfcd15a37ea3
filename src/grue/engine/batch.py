"""Run many turns in parallel and yield their results in order: the work behind `Runner.map`.

The turns run in one event loop, `concurrency` at a time. Each is an episode of its own, with its own
sessions. At most twice `concurrency` requests are read ahead or results kept, so a batch may be larger than
memory.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import length_hint
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from grue.engine.completed_turns import CompletedTurns
from grue.engine.episode import Episode
from grue.engine.turn import EpisodeMemory, Turn, TurnSettings
from grue.errors import MCPError
from grue.runtime.interrupts import defer_interrupts
from grue.runtime.loop_thread import Call, cancel_and_wait
from grue.turn_request import TurnOutcome, TurnRequest, refuse_another_kind

T = TypeVar("T")


class BatchItem(Struct, Generic[T], frozen=True, kw_only=True):
    """The result of one request of a batch.

    Attributes:
        index: Position of the request, from 0.
        outcome: The turn's outcome; `None` if the turn failed.
        error: Why the turn failed: what `run_turn` would have raised. An exception that is not an `MCPError`
            is the cause of this one.
        recalled: The outcome is from the trace of an earlier run; the turn was not run again.
    """

    index: int
    outcome: T | None = None
    error: MCPError | None = None
    recalled: bool = False


class Batch(Struct, frozen=True, kw_only=True):
    """How to run a batch.

    Attributes:
        begin: Starts the episode loop that the turns run in.
        settings: The runner's settings for each turn.
        resume_from: The turns that an earlier run has completed; `None`: run all turns.
        concurrency: Number of turns that run in parallel.
    """

    begin: Callable[[], Episode]
    settings: TurnSettings
    resume_from: CompletedTurns | None
    concurrency: int


_Started: TypeAlias = Call[TurnOutcome[T]] | BatchItem[TurnOutcome[T]]
"""A turn that is running or waiting, or a result that is known without running one."""


def run_batch(requests: Iterable[TurnRequest[T]], batch: Batch) -> Iterator[BatchItem[TurnOutcome[T]]]:
    """Yield the result of each request, in order. Closing the iterator cancels the running turns.

    Nothing starts before the first item is asked for. If a turn fails, the others go on.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed. All turns have had time to clean up.
    """
    last = length_hint(requests, 0) - 1
    numbered = enumerate(requests)
    waiting: deque[tuple[int, _Started[T]]] = deque()
    episode = batch.begin()
    try:
        while True:
            wanted = 2 * batch.concurrency
            for index, request in islice(numbered, wanted - len(waiting)):
                if index == last:
                    # Before that turn starts, so that no session is prewarmed for one after it.
                    episode.expects_turns = False
                waiting.append((index, _start(index, request, batch, episode)))
            if len(waiting) < wanted:
                episode.expects_turns = False
            if not waiting:
                return
            item = _item(*waiting[0])
            waiting.popleft()
            yield item
    finally:
        _end(episode, [each for _, each in waiting if isinstance(each, Call)])


def _start(index: int, request: TurnRequest[T], batch: Batch, episode: Episode) -> _Started[T]:
    try:
        refuse_another_kind(request)
        turn = Turn(replace(request, turn=index + 1), batch.settings, EpisodeMemory())
        completed = _completed(turn, index + 1, batch.resume_from)
    except Exception as error:  # noqa: BLE001 - an invalid request must not end the others
        return BatchItem(index=index, error=_as_ours(error))
    if completed is not None:
        return BatchItem(index=index, outcome=completed, recalled=True)
    return episode.submit(turn.run)


def _completed(turn: Turn[T], number: int, earlier: CompletedTurns | None) -> TurnOutcome[T] | None:
    if earlier is None:
        return None
    talk = turn.conversation
    if talk is None:
        found = earlier.recall(turn.recalled_command(number), turn.answer)
        return None if found is None else found.outcome
    with talk.between_turns() as free:
        found = earlier.recall(turn.recalled_command(number), turn.answer) if free else None
        if found is None:
            return None
        talk.add(found.said)
        return found.outcome


def _item(index: int, started: _Started[T]) -> BatchItem[TurnOutcome[T]]:
    if isinstance(started, BatchItem):
        return started
    started.join()  # a Ctrl-C here ends all turns; `_end` waits for their clean-up
    try:
        return BatchItem(index=index, outcome=started.result())
    except Exception as error:  # noqa: BLE001 - a failed turn must not end the others
        return BatchItem(index=index, error=_as_ours(error))


def _as_ours(error: Exception) -> MCPError:
    if isinstance(error, MCPError):
        return error
    ours = MCPError(f"The turn could not be run: {type(error).__name__}: {error}")
    ours.__cause__ = error
    return ours


def _end(episode: Episode, calls: Sequence[Call[Any]]) -> None:
    with defer_interrupts():
        try:
            cancel_and_wait(calls)
        except KeyboardInterrupt:
            episode.resources.registry.kill_now()
            cancel_and_wait(calls)
            raise
        finally:
            episode.close()
