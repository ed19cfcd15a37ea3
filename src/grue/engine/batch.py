"""Many turns at once, their results in order: `Runner.map`.

The turns run in one event loop, so many at a time; each is an episode of its own, with its own sessions. No
more requests are taken from the caller's iterable, and no more results kept, than twice as many: a batch may
be longer than memory.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

from msgspec import Struct

from grue.engine.episode import Episode
from grue.engine.turn_actors import TurnResources
from grue.errors import MCPError
from grue.runtime.loop_thread import Call, give_up
from grue.runtime.sync_edge import counted_interrupts

R = TypeVar("R")
T = TypeVar("T")


class BatchItem(Struct, Generic[T], frozen=True, kw_only=True):
    """What came of one request of a batch.

    Attributes:
        index: Its place, from 0.
        outcome: Of its turn; `None` where it has none.
        error: Why it has none: what `run_turn` would have raised; what is no error of ours is its cause.
        recalled: It is from the trace of an earlier run, and was not run again.
    """

    index: int
    outcome: T | None = None
    error: MCPError | None = None
    recalled: bool = False


class Batch(Struct, Generic[R, T], frozen=True, kw_only=True):
    """How a batch is run.

    Attributes:
        open: Begins the loop that its turns run in.
        run: Runs the turn of a request, given where, and its place among the requests.
        resume_from: Returns the outcome of an earlier run of the turn, or `None` if it must be run.
        concurrency: Turns at a time.
    """

    open: Callable[[], Episode]
    run: Callable[[TurnResources, int, R], Awaitable[T]]
    resume_from: Callable[[int, R], T | None]
    concurrency: int


def run_batch(requests: Iterable[R], batch: Batch[R, T]) -> Iterator[BatchItem[T]]:
    """Yield what comes of each request, in their order; closing the iterator cancels what still runs.

    Nothing is begun before the first item is asked for. A request whose turn fails does not end the others.

    Raises:
        KeyboardInterrupt: Ctrl-C; by then every turn has been given the time to clean up.
    """
    numbered = enumerate(requests)
    waiting: deque[tuple[int, Call[T] | BatchItem[T]]] = deque()
    episode = batch.open()
    try:
        while True:
            for index, request in islice(numbered, 2 * batch.concurrency - len(waiting)):
                waiting.append((index, _begin(index, request, batch, episode)))
            if not waiting:
                return
            item = _item(*waiting[0])
            waiting.popleft()
            yield item
    finally:
        _end(episode, [begun for _, begun in waiting if isinstance(begun, Call)])


def _begin(index: int, request: R, batch: Batch[R, T], episode: Episode) -> Call[T] | BatchItem[T]:
    try:
        recalled = batch.resume_from(index, request)
    except Exception as error:  # noqa: BLE001 - a request that is none sinks no others
        return BatchItem(index=index, error=_as_ours(error))
    if recalled is not None:
        return BatchItem(index=index, outcome=recalled, recalled=True)
    return episode.submit(lambda: batch.run(episode.place, index, request))


def _item(index: int, begun: Call[T] | BatchItem[T]) -> BatchItem[T]:
    if isinstance(begun, BatchItem):
        return begun
    begun.join()  # a Ctrl-C is for all turns at once, which `_end` sees to
    try:
        return BatchItem(index=index, outcome=begun.result())
    except Exception as error:  # noqa: BLE001 - whatever ends one turn ends no other one
        return BatchItem(index=index, error=_as_ours(error))


def _as_ours(error: Exception) -> MCPError:
    if isinstance(error, MCPError):
        return error
    ours = MCPError(f"The turn could not be run: {type(error).__name__}: {error}")
    ours.__cause__ = error
    return ours


def _end(episode: Episode, calls: Sequence[Call[Any]]) -> None:
    with counted_interrupts():
        try:
            give_up(calls)
        except KeyboardInterrupt:
            episode.place.registry.kill_now()
            give_up(calls)
            raise
        finally:
            episode.close()
