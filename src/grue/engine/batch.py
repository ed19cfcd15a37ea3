"""Run many turns in parallel and yield their results in order: the work behind `Runner.map`.

`run_batch` holds the requests or results of at most `2 * concurrency` turns in memory at a time.
"""

import contextlib
import hashlib
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from itertools import islice
from operator import length_hint
from os import PathLike
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field

from grue import messages as m
from grue.engine import turn as turns
from grue.engine.answers import AnswerCheck, AnswerSpec
from grue.engine.current_episode import Episode
from grue.engine.turn import BatchItem, EpisodeMemory, HostTurn, TurnOutcome, TurnRequest, TurnSettings
from grue.errors import MCPError
from grue.protocol.context.history import History, Ledger, SaidStep, take_step
from grue.runtime.files import is_terminal
from grue.runtime.loops.interrupts import defer_interrupts
from grue.runtime.loops.loop_thread import Call, cancel_and_wait
from grue.runtime.loops.sync_edge import in_notebook
from grue.tracing.reading import EpisodeEnvelope, open_episode

T = TypeVar("T")


_Asked: TypeAlias = tuple[int, bytes]  # place in the batch, else the number; digest of request and history


class _Begun(Struct):
    """A turn whose start has been read from the trace, but not its end."""

    run: m.RunTurn
    began: float
    said: list[SaidStep] = field(default_factory=list)  # the messages that change the turn's conversation
    partial: bool = False  # a secret was redacted from `said`, or messages before a resumption are missing


class _Completed(Struct, frozen=True):
    end: m.TurnCompleted
    took_s: float
    said: tuple[SaidStep, ...] = ()


class CompletedTurns:
    """The completed turns of an earlier run, read from its trace."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._known: dict[_Asked, _Completed] = {}
        # The key is the number of the `RunTurn` message, the `cause` of the turn's last message. Turn numbers
        # cannot be keys: turns of two batches may have the same number at the same time.
        self._begun: dict[int, _Begun] = {}
        self._talks: dict[m.ConversationId, _Begun] = {}
        self._requests: dict[int, _Begun] = {}
        for envelope in open_episode(path):
            self._see(envelope)

    def _see(self, envelope: EpisodeEnvelope) -> None:
        body, cause = envelope.body, envelope.cause or 0
        if isinstance(body, m.RunTurn):
            begun = self._begun[envelope.seq] = _Begun(body, envelope.t)
            self._known.pop(_asked(body, body.history), None)
            if body.history is not None:
                begun.partial = body.resumed is not None
                self._talks[body.history.conversation] = begun
        elif isinstance(body, m.TurnCompleted | m.TurnFailed | m.TurnParked) and cause in self._begun:
            self._end(self._begun.pop(cause), envelope)
        else:
            self._say(envelope)

    def _say(self, envelope: EpisodeEnvelope) -> None:
        body = envelope.body
        talk: _Begun | None = None
        match body:
            case m.RequestCompletion(conversation=name, aside=False) | m.DropCompletion(conversation=name):
                talk = self._talks.get(name)
                if talk is not None:
                    self._requests[envelope.seq] = talk
            case m.HistoryRewritten(conversation=name) | m.RewriteHistory(conversation=name):
                talk = self._talks.get(name)
            case m.CompletionReceived() | m.ReplyDropped():
                talk = self._requests.pop(envelope.cause or 0, None)
        if talk is not None and isinstance(body, SaidStep):
            talk.said.append(body)
            talk.partial = talk.partial or envelope.redacted

    def _end(self, begun: _Begun, envelope: EpisodeEnvelope) -> None:
        end, past = envelope.body, begun.run.history
        if past is not None and self._talks.get(past.conversation) is begun:
            del self._talks[past.conversation]
        if not isinstance(end, m.TurnCompleted) or envelope.redacted or begun.partial:
            return
        took_s = envelope.t - begun.began
        said: tuple[SaidStep, ...] = () if past is None else (begun.run, *begun.said, end)
        self._known[_asked(begun.run, past)] = _Completed(end, took_s, said)
        after = None if past is None else _place_after(past, said)
        if after is not None:
            self._known[_asked(begun.run, after)] = _Completed(end, took_s)

    def recall(
        self, command: m.RunTurn, answer: AnswerSpec[Any]
    ) -> tuple[TurnOutcome[Any], tuple[SaidStep, ...]] | None:
        """Return the outcome of the earlier turn, and the messages that the turn's conversation still lacks.

        `None`: no earlier turn fits `command`, or the turn's answer does not fit `answer`.
        """
        known, check = self._known.get(_asked(command, command.history)), AnswerCheck(answer)
        if known is None:
            return None
        response = answer.fallback
        if known.end.kind != "fallback":
            try:
                accepted = check(known.end.raw_response or "")
            except Exception:  # noqa: BLE001 - the host's code failed; the turn is run again and reports it
                return None
            if not isinstance(accepted, m.AnswerAccepted):
                return None
            response = check.accepted
        elif response is None:
            return None
        return turns.outcome_of(known.end, response, known.took_s), known.said


def _place_after(past: m.HistoryReference, said: tuple[SaidStep, ...]) -> m.HistoryReference | None:
    """Return a reference to the conversation after the turn that began at `past`; `None`: it is not known."""
    ledger = Ledger()
    ledger.length, ledger.digest = past.length, past.digest
    history = History(ledger)
    try:
        for step in said:
            if isinstance(step, m.HistoryRewritten | m.RewriteHistory):
                return None  # the turn may have rewritten earlier entries, of which only the digest is known
            take_step(history, step)
    except ValueError:
        return None
    return ledger.reference(past.conversation)


def _asked(command: m.RunTurn, past: m.HistoryReference | None) -> _Asked:
    place = None if past is None else (past.length, past.digest)
    offered = (command.servers, command.tools)
    words = (command.system, command.user, offered, command.answer, place, command.images)
    return command.place or command.turn, hashlib.sha256(msgspec.json.encode(words)).digest()


def asks_the_same(one: m.RunTurn, other: m.RunTurn) -> bool:
    """Return whether two turns have the same place or number, texts, images, servers, tools and schema."""
    return _asked(one, None) == _asked(other, None)


class Batch(Struct, frozen=True, kw_only=True):
    """Settings of `Runner.map`: up to `concurrency` turns run at once, in the episode from `begin`."""

    begin: Callable[[], Episode]
    settings: TurnSettings
    concurrency: int
    resume_from: CompletedTurns | None = None


_Started: TypeAlias = Call[TurnOutcome[T]] | BatchItem[TurnOutcome[T]] | MCPError
"""A turn that is running or waiting; the result, if no turn has to run; or the error if no turn can run."""


def run_batch(requests: Iterable[TurnRequest[T] | str], batch: Batch) -> Iterator[BatchItem[TurnOutcome[T]]]:
    """Yield the result of each request, in order. Closing the iterator cancels the running turns.

    If the runner is closed meanwhile, raises `MCPError` after the results of the turns that had started.
    """
    with batch.settings.wiring.under_way.in_use():
        yield from _results(requests, batch)


_MOST_POSTPONED = 1000  # the most turns that are postponed if `requests` has no length: it may never end


def _results(requests: Iterable[TurnRequest[T] | str], batch: Batch) -> Iterator[BatchItem[TurnOutcome[T]]]:
    last = length_hint(requests, 0) - 1
    numbered = enumerate(requests)
    waiting: deque[tuple[int, _Started[T]]] = deque()
    episode = batch.begin()
    postponed: turns.TurnPostponed | None = None  # set only in a fleet's episode, which is played again later
    left = _MOST_POSTPONED
    try:
        while True:
            wanted = 2 * batch.concurrency
            for index, request in islice(numbered, wanted - len(waiting)):
                if index == last:
                    # Set this before the last turn starts, so that the last turn prewarms no session.
                    episode.expects_turns = False
                waiting.append((index, _start(index, request, batch, episode)))
            if len(waiting) < wanted:
                episode.expects_turns = False
            if not waiting and postponed is not None:
                raise postponed
            if not waiting:
                return
            index, started = waiting[0]
            if isinstance(started, MCPError):
                raise started
            item = started if isinstance(started, BatchItem) else ended_item(index, started)
            waiting.popleft()  # only now: at a Ctrl-C in `ended_item`, `end_turns` has to end this turn, too
            if isinstance(item, turns.TurnPostponed):
                postponed = item  # yield nothing more, but start all turns: one batch gets all requests
                left -= 1
                if not left and last < 0:
                    raise postponed
            elif postponed is None:
                yield item
    finally:
        end_turns(episode, [each for _, each in waiting if isinstance(each, Call)])


@defer_interrupts()  # otherwise an exception of the host's signal handler would end up in an item
def _start(index: int, request: TurnRequest[T] | str, batch: Batch, episode: Episode) -> _Started[T]:
    try:
        request = turns.as_request(request)
        turn = HostTurn(request, batch.settings, EpisodeMemory())
        turn.place = index + 1
        completed = _completed(turn, index + 1, batch.resume_from)
    except Exception as error:  # noqa: BLE001 - an invalid request must not end the others
        return BatchItem(index=index, error=as_ours(error))
    if completed is not None:
        return BatchItem(index=index, outcome=completed, recalled=True)
    try:
        return episode.submit(turn.run)
    except MCPError as error:
        return error  # no turn can run; `_results` raises this after the results of the earlier turns


def _completed(turn: HostTurn[T], number: int, earlier: CompletedTurns | None) -> TurnOutcome[T] | None:
    if earlier is None:
        return None
    talk = turn.conversation
    with contextlib.nullcontext(True) if talk is None else talk.between_turns() as free:
        found = earlier.recall(turn.recalled_command(number), turn.answer) if free else None
        if found is None:
            return None
        outcome, said = found
        if talk is not None:
            talk.add(said)
        return outcome


@defer_interrupts()
def ended_item(index: int, call: Call[TurnOutcome[T]]) -> BatchItem[TurnOutcome[T]] | turns.TurnPostponed:
    """Wait until a turn ends or is postponed. Return its result, or the `TurnPostponed` that it raised."""
    call.join()
    try:
        return BatchItem(index=index, outcome=call.result())
    except turns.TurnPostponed as waits:
        return waits
    except Exception as error:  # noqa: BLE001 - a failed turn must not end the others
        return BatchItem(index=index, error=as_ours(error))


def as_ours(error: Exception) -> MCPError:
    """Return `error` if it is an `MCPError`, else an `MCPError` whose `__cause__` is `error`."""
    if isinstance(error, MCPError):
        return error
    ours = MCPError(f"The turn could not be run: {type(error).__name__}: {error}")
    ours.__cause__ = error
    return ours


def end_turns(episode: Episode, calls: Sequence[Call[Any]]) -> None:
    """Cancel the running turns, and end their loop. A Ctrl-C during this kills the turns' processes."""
    with defer_interrupts():
        try:
            cancel_and_wait(calls)
        except BaseException:
            episode.resources.registry.kill_now()
            cancel_and_wait(calls)
            raise
        finally:
            episode.loop.close()


def with_bar(
    items: Iterator[BatchItem[T]], requests: Iterable[Any], total: int | None = None
) -> Generator[BatchItem[T], None, None]:
    """Yield the items unchanged; at a terminal or in a notebook show a progress bar on standard error."""
    if total is None and isinstance(requests, Sized):
        total = len(requests)
    done = failed = recalled = 0
    with contextlib.ExitStack() as ending, drawn_progress() as draw:
        if isinstance(items, Generator):
            ending.enter_context(contextlib.closing(items))
        draw(0, total, "turns")
        for item in items:
            done, failed, recalled = done + 1, failed + (item.error is not None), recalled + item.recalled
            notes = [f"{failed} failed"] * bool(failed) + [f"{recalled} recalled"] * bool(recalled)
            draw(done, total, ", ".join(["turns", *notes]))
            yield item


Draw: TypeAlias = Callable[[int, int | None, str], None]
"""Shows progress: the number of finished items, the number of all (`None`: unknown), and a few words."""


@contextlib.contextmanager
def drawn_progress() -> Iterator[Draw]:
    """Yield a function that shows progress on standard error, at a terminal or in a notebook only."""
    if not in_notebook() and not is_terminal(sys.stderr):
        yield lambda _done, _total, _words: None
        return
    # In a notebook the bar is plain text in one line, because rich would need a package for widgets there.
    with _in_a_line() if in_notebook() else _as_a_bar() as draw:
        yield draw


@contextlib.contextmanager
def _as_a_bar() -> Iterator[Draw]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    # What the program prints to the terminal appears above the bar.
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=is_terminal(sys.stdout)) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, words: bar.update(task, completed=done, total=total, description=words)


_REDRAW_S = 0.2
_WIDTH = 40


@contextlib.contextmanager
def _in_a_line() -> Iterator[Draw]:
    drawn_at, last = -_REDRAW_S, ""

    def draw(done: int, total: int | None, words: str) -> None:
        nonlocal drawn_at, last
        filled = _WIDTH * done // total if total else 0
        count = f"{'█' * filled}{'░' * (_WIDTH - filled)} {done}/{total}" if total else str(done)
        last = f"\r{count} {words}"
        if time.monotonic() - drawn_at >= _REDRAW_S:
            drawn_at = time.monotonic()
            print(last, end="", file=sys.stderr, flush=True)  # noqa: T201

    try:
        yield draw
    finally:
        print(last, file=sys.stderr)  # noqa: T201
