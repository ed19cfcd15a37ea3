"""Run the turns of a batch whose requests wait for the provider's own batches: `Runner.map(batch=...)`.

A turn runs as any other until it asks the model. Then its request is stored in a file, its sessions are
closed, and only its `TurnRequest` stays in memory. When no turn runs any more, the requests are sent. When a
batch has ended, the turns whose replies have come go on from their traces until they ask again or end.

The state of each turn is in its trace, and the state of each request is in the batch's folder
(`transports/llm/batch_folder.py`). So whenever a process is killed, the next one can go on with every turn.
"""

import threading
from collections import deque
from collections.abc import Generator, Iterable
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from grue import messages as m
from grue.engine import turn as turns
from grue.engine.approval import Parking
from grue.engine.batch import Batch, CompletedTurns, as_ours, asks_the_same, end_turns, ended_item
from grue.engine.conversations.recorded_conversation import RecordedTurn, read_turns
from grue.engine.conversations.resume import ResumeRequest, resumed_turn
from grue.engine.turn import BatchItem, EpisodeMemory, HostTurn, TurnOutcome, TurnRequest, TurnSettings
from grue.engine.turn_actors import TurnResources, TurnsPast
from grue.engine.wiring import TurnsUnderWay
from grue.errors import BudgetSpent, MCPConfigError, MCPError, TraceError
from grue.policies import Batching, Budget
from grue.protocol.chat_wire.batch_forms import batch_form_of
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.profile import shown_endpoint
from grue.protocol.context.history import History
from grue.protocol.turn.prices import most_usage
from grue.runtime.files import as_path
from grue.runtime.loops.interrupts import defer_interrupts
from grue.runtime.loops.loop_thread import Call
from grue.runtime.trace.file import TraceOptions, TraceWriter
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.runtime.version import __version__
from grue.transports.llm.batch_desk import BatchDesk, BatchRefused
from grue.transports.llm.batch_folder import BatchFolder, BatchManifest
from grue.transports.llm.endpoint import LlmEndpoint, RequestPostponed, limit_in, reply_room
from grue.transports.llm.exchange import Answered, RequestOutcome

T = TypeVar("T")

_NO_BUDGET = "budget"  # in place of a request's id in `RequestPostponed`, if the budget has no room for it


class _Account:
    """Reserves the highest estimated cost of each request that it admits, so that all keep to the budget."""

    def __init__(self, settings: TurnSettings, endpoint: LlmEndpoint) -> None:
        self._settings = settings
        self._endpoint = endpoint
        self._reserved: dict[int, dict[str, m.Usage]] = {}  # by turn and by request
        self._counts = settings.budget != Budget()
        # Slightly more than the budget, so that a request may use up exactly what is left.
        tokens, cost = settings.budget.tokens, settings.budget.cost_usd
        self._above = Budget(
            tokens=None if tokens is None else tokens + 1,
            cost_usd=None if cost is None else cost * (1 + 1e-9) + 1e-12,
        )
        self._lock = threading.Lock()

    def admits(self, turn: int, item: str, body: bytes, *, stored: bool) -> bool:
        """Reserve the highest estimated cost of a request; return `False` if the budget has no room.

        A `stored` request is always admitted, because its reply will be paid for in any case.
        """
        if not self._counts:
            return True
        most = most_usage(len(body), 3.0, limit_in(body), self._endpoint.price)
        with self._lock:
            whole = self._settings.spending.spent
            for usage in (each for usages in self._reserved.values() for each in usages.values()):
                whole = whole.plus(1, usage)
            full = whole.reached(self._settings.budget) or whole.plus(0, most).reached(self._above)
            if full and not stored:
                return False
            self._reserved.setdefault(turn, {})[item] = most
            return True

    def ended(self, turn: int) -> None:
        with self._lock:
            self._reserved.pop(turn, None)


class _Room(Struct, frozen=True, kw_only=True):
    """Returns the stored replies to the requests of one turn, and stores the requests without a reply."""

    files: BatchFolder
    path: str
    turn: int
    account: _Account
    recorder: Recorder
    writer: TraceWriter
    read_now: set[str] = field(default_factory=set)  # ids of requests whose replies this object has returned

    async def reply_to(self, endpoint: LlmEndpoint, body: bytes, request: int) -> Answered | Fault:
        """Return the reply; else store the request, if the budget has room, and raise `RequestPostponed`."""
        del endpoint
        item = self.files.item_of(self.turn, request, body, self.read_now)
        result = self.files.result(item)
        stored = result is not None or self.files.is_wanted(item)
        if not self.account.admits(self.turn, item, body, stored=stored):
            raise RequestPostponed(_NO_BUDGET)
        if result is not None:
            self.read_now.add(item)
            return result.fault if result.status is None else Answered(result.status, bytes(result.body))
        if not stored:
            # Flush the trace first. Otherwise, if the process died after it had stored the request, the trace
            # would lack the request, and a later process might store a second one.
            self.recorder.settle()
            if not self.writer.flush():
                where = self.writer.path
                raise TraceError(f"{where} could not be written in time, so its request was not asked.")
            self.files.want(item, self.path, body)
        raise RequestPostponed(item)

    def read(self, model: str, outcome: RequestOutcome) -> None:
        """Do nothing: the turn counts the cost of a request's reply itself."""


def run_waiting(
    requests: Iterable[TurnRequest[T] | str], batch: Batch, batching: Batching
) -> Generator[BatchItem[TurnOutcome[T]], None, None]:
    """Return an iterator of the results, in order. Closing the iterator cancels the turns that run."""
    endpoint = batch.settings.wiring.endpoint
    if endpoint is None or len(endpoint.chain) > 1:
        what = "a factory of the host's" if endpoint is None else "a chain of models"
        raise MCPConfigError(
            f"Runner.map(batch=...) asks one model at one endpoint, and this runner's llm is {what}."
            " Give the runner the LlmSettings of one model."
        )
    manifest = BatchManifest(
        address=shown_endpoint(endpoint.settings.base_url),
        model=endpoint.settings.model,
        wire=endpoint.profile.wire,
    )
    folder, form = as_path(batching.folder, "batch="), batch_form_of(endpoint.profile.wire)

    def results() -> Generator[BatchItem[TurnOutcome[T]], None, None]:
        with BatchFolder(folder, manifest, form, most_items=batching.most_items) as files:
            rounds: _Rounds[T] = _Rounds(batch, batching, endpoint, files)
            try:
                yield from rounds.results(enumerate(requests))
            finally:
                rounds.end()

    return results()


class _Rounds(Generic[T]):
    """Starts turns, sends the waiting requests, and lets each turn go on when its reply has come.

    A turn that has waited or was interrupted goes on where its trace ends.
    """

    def __init__(self, batch: Batch, batching: Batching, endpoint: LlmEndpoint, files: BatchFolder) -> None:
        self._batching = batching
        self._files = files
        self._settings = replace(batch.settings, limits=replace(batch.settings.limits, max_samplings=0))
        self._account = _Account(batch.settings, endpoint)
        self._path = FORMATS[files.manifest.wire].path_of(files.manifest.model, stream=False)
        self._desk = BatchDesk(endpoint, files, batching)
        self._endpoint = endpoint
        self._episode = batch.begin()
        self._concurrency = batch.concurrency
        self._following = 0
        self._asked: dict[int, TurnRequest[T]] = {}
        self._waiting: set[int] = set()
        self._running: deque[tuple[int, Call[TurnOutcome[T]]]] = deque()
        self._done: dict[int, BatchItem[TurnOutcome[T]]] = {}
        self._poll: Call[list[str]] | None = None

    def results(
        self, numbered: Iterable[tuple[int, TurnRequest[T] | str]]
    ) -> Generator[BatchItem[TurnOutcome[T]], None, None]:
        for index, request in numbered:
            self._begin(index, request)
            while len(self._running) >= self._concurrency:
                self._take_one()
            yield from self._in_order()
        while self._running or self._asked:
            while self._running:
                self._take_one()
            yield from self._in_order()
            if self._asked:
                self._next_round()
        yield from self._in_order()

    def _in_order(self) -> Generator[BatchItem[TurnOutcome[T]], None, None]:
        while self._following in self._done:
            yield self._done.pop(self._following)
            self._following += 1

    def end(self) -> None:
        calls: list[Call[Any]] = [call for _, call in self._running]
        if self._poll is not None:
            calls.append(self._poll)
        end_turns(self._episode, calls)

    @defer_interrupts()  # otherwise an exception of the host's signal handler would end up in an item
    def _begin(self, index: int, given: TurnRequest[T] | str) -> None:
        try:
            request = turns.as_request(given)
            known = self._known(index, request)
        except Exception as error:  # noqa: BLE001 - an invalid request must not end the others
            self._done[index] = BatchItem(index=index, error=as_ours(error))
            return
        if isinstance(known, MCPError):
            self._done[index] = BatchItem(index=index, error=known, recalled=True)
        elif known is not None:
            self._done[index] = BatchItem(index=index, outcome=known, recalled=True)
        else:
            self._start(index, request)

    def _start(self, index: int, request: TurnRequest[T]) -> None:
        self._asked[index] = request
        self._running.append((index, self._episode.submit(partial(self._run, index, request))))

    @defer_interrupts()
    def _take_one(self) -> None:
        index, call = self._running[0]
        item = ended_item(index, call)
        self._running.popleft()
        if isinstance(item, turns.TurnPostponed):
            if item.waits.item != _NO_BUDGET:
                self._waiting.add(index)
                return
            spent = "what waits and what was spent reach the runner's budget"
            item = BatchItem(index=index, error=BudgetSpent(f"Turn {index + 1} goes on waiting: {spent}."))
        # Free the budget that the turn has reserved, except after `BudgetSpent`: then the turn still waits.
        if not isinstance(item.error, BudgetSpent):
            self._account.ended(index + 1)
        self._asked.pop(index, None)
        self._done[index] = item

    def _next_round(self) -> None:

        async def replies(resources: TurnResources) -> list[str]:
            del resources
            async with self._endpoint:
                await self._desk.send()
                return await self._desk.replies()

        self._poll = self._episode.submit(replies)
        self._poll.join()
        poll, self._poll = self._poll, None
        try:
            settled = poll.result()
        except BatchRefused as refused:
            raise turns.error_for(m.TurnFailed(turn=0, failure=refused.failure)) from refused
        indices = sorted({int(self._files.turn_of(item)) - 1 for item in settled} & self._waiting)
        # `indices` is empty, for example, if an earlier process was killed after it had fetched the replies.
        # Then start all waiting turns: a turn reads its reply from the folder, or waits again.
        for index in indices or sorted(self._waiting):
            if len(self._running) >= self._concurrency:
                self._take_one()
            self._waiting.discard(index)
            self._start(index, self._asked[index])

    def _known(self, index: int, request: TurnRequest[T]) -> TurnOutcome[Any] | MCPError | None:
        """Return how a turn ended in an earlier run; `None`: the turn has to be run, or to go on."""
        if request.conversation is not None or request.history:
            raise MCPConfigError(
                "A turn whose requests wait for batches cannot continue a conversation or a history. Put what"
                " was said before into its texts."
            )
        path, number = self._files.file("turns", index + 1), index + 1
        if not path.exists():
            return None
        part = read_turns(path).get(number) if path.stat().st_size else None
        if part is None:
            path.unlink()  # the process was killed before the turn had begun
            return None
        end = part.end
        if isinstance(end, m.TurnFailed) and not isinstance(end.failure, m.Interrupted):
            if self._batching.retry_failed:
                self._files.set_aside(number)
                return None
            return turns.error_for(end)
        if isinstance(end, m.TurnParked):
            return turns.pending_error(end)
        turn = HostTurn(replace(request, turn=number), self._settings, EpisodeMemory())
        command = turn.recalled_command(number)
        same_texts = (part.run.system, part.run.user) == (command.system, command.user)
        if isinstance(end, m.TurnCompleted):
            found = CompletedTurns(path).recall(command, turn.answer)
            if found is not None:
                return found[0]
            if asks_the_same(part.run, command):
                # The answer is not accepted any more, or a secret was removed from it. The turn is run again,
                # and its replies come from the folder.
                self._files.set_aside(number)
                return None
        if isinstance(end, m.TurnCompleted) or not same_texts:
            raise TraceError(
                f"{path} holds another request than number {number} of this run, so nothing was asked for it."
                " Name another folder for another batch."
            )
        return None

    async def _run(self, index: int, request: TurnRequest[T], resources: TurnResources) -> TurnOutcome[T]:
        """Start a turn, or go on with it from its trace; raises `TurnPostponed` if it has to wait."""
        number, path, wiring = index + 1, self._files.file("turns", index + 1), self._settings.wiring
        recorder = wiring.recorder.for_another_trace()
        episode, begun = f"{self._files.manifest.run}-{number}", path.exists()
        options = TraceOptions(version=__version__)
        with TraceWriter(path, episode=episode, options=options, resume=begun) as writer:
            if begun:
                recorder.resume(after_seq=writer.last_seq, after_t=writer.last_t)
            recorder.add(writer)
            approval = replace(wiring.approval, parking=Parking(recorder))
            wiring = replace(
                wiring, recorder=recorder, approval=approval, under_way=TurnsUnderWay(), presumed=None
            )
            settings = replace(self._settings, wiring=wiring)
            room = _Room(
                files=self._files,
                path=self._path,
                turn=number,
                account=self._account,
                recorder=recorder,
                writer=writer,
            )
            token = reply_room.set(room)
            try:
                if not begun:
                    turn = HostTurn(replace(request, turn=number), settings, EpisodeMemory())
                    turn.waits = True
                    return await turn.run(resources)
                part = read_turns(path)[number]
                waited = part.waiting(path)
                if waited is not None:
                    return await self._going_on(request, part, *waited, settings).run(resources)
                asked = ResumeRequest(path, turn=number, answer=request.answer)
                with resumed_turn(asked, writer, settings, EpisodeMemory()) as turn:
                    return await turn.run(resources)
            finally:
                reply_room.reset(token)

    def _going_on(
        self,
        request: TurnRequest[T],
        part: RecordedTurn,
        history: History,
        unrecorded: m.RequestCompletion | None,
        settings: TurnSettings,
    ) -> HostTurn[T]:
        """Return a turn that goes on by reading the reply to its last request."""
        wiring = settings.wiring
        asked: Envelope[Any] | None = part.asked
        if unrecorded is not None:
            asked = wiring.recorder.record(
                unrecorded, sender="agent", receiver="llm", cause=part.last_event, turn=part.run.turn
            )
        assert asked is not None, "a turn that waits has asked"
        wiring = wiring.lending(part.run.conversation, history, part.tools, first=asked)
        request = replace(request, turn=part.run.turn)
        turn = HostTurn(request, replace(settings, wiring=wiring), EpisodeMemory())
        noted = m.WaitEnded(turn=part.run.turn, request=asked.body.request)
        turn.record = TurnsPast(noted=noted, begun=part.begun, events=tuple(part.events))
        if part.said_before:
            turn.begun = part.replay(History(), part.said_before)
        limits = replace(part.run.limits, turn_timeout_s=part.time_left_s)
        turn.started_by = replace(part.run, limits=limits)
        return turn
