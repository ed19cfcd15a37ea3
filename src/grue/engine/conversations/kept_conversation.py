"""A conversation between its turns: its history, the encoded form for the endpoint, and its file.

A turn that can be parked is called the open turn of its conversation until the turn is over. A `TurnMark`,
which is also written to the conversation's file, says whether the open turn is running or parked.

| the open turn | what happens | what follows |
|---|---|---|
| parked | a new turn | `ConversationParked` is raised; nothing starts |
| parked | `turn(resumed=True)` | the turn goes on |
| parked | `abandon` | calls that the turn has not made are answered "not called" |
| parked | `branch` | the same, but only in the branch |
| resumed | the turn cannot begin, or `is_parked_still` is true | the turn is parked again |
| running | the host is killed; then a new turn | the open turn's calls are answered "interrupted" |
| running | the host is killed; then `catch_up` | the turn gets its entries from the trace, and is parked |
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import anyio.to_thread
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.actors.llm import LendingFactory, LentConversation, LlmFactory
from grue.engine.conversations import conversation_file
from grue.engine.conversations.conversation_file import FileHeader, Learned, Line, TurnMark, TurnRecorded
from grue.errors import ConversationBusy, ConversationError, ConversationParked, MCPError, TraceError
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.chat_wire.profile import WireProfile
from grue.protocol.context.fit import sizes_of
from grue.protocol.context.history import History, Ledger, SaidStep, history_of, take_step
from grue.protocol.tools.built_in import READ_RESULT, offers
from grue.protocol.tools.names import WireNames
from grue.protocol.tools.results import is_referred
from grue.runtime.files import os_errors_as
from grue.runtime.forks import here_and_in_children
from grue.runtime.loading import importing
from grue.runtime.trace.format import trace_in
from grue.transports.llm.endpoint import LlmEndpoint

KEPT_BYTES = 64 * 2**20  # of results (as JSON) that a conversation keeps at most for turns without a trace
_SHORT = 100  # bytes; results so short are not kept: the model gets them whole, or `max_result_chars` is tiny


class EarlierResults:
    """Finds whole results of earlier turns, for the built-in tool `read_result`. Thread-safe.

    For a turn that has a trace, only a `TurnRecorded` is kept in memory. Of other turns, the newest results
    are kept, up to `KEPT_BYTES`, but no short ones.
    """

    def __init__(self, turns: Iterable[TurnRecorded] = ()) -> None:
        self.turns = [*turns]  # the turns that have a trace, oldest first
        self._trace: Path | None = None
        self._kept: dict[m.CallId, tuple[int, m.ToolCallResult]] = {}
        self._bytes = 0
        here_and_in_children(self._make_lock)

    def _make_lock(self) -> None:
        self._lock = threading.Lock()

    def begin(self, turn: int, trace: Path | None, conversation: m.ConversationId) -> TurnRecorded | None:
        """Begin a turn. Return its new entry in `turns`; `None`: no trace, or the entry is there already."""
        self._trace = trace
        recorded = None if trace is None else TurnRecorded(turn, str(trace), conversation)
        if recorded is None or recorded in self.turns[-1:]:
            return None
        self.turns.append(recorded)
        return recorded

    def end(self, records: Iterable[m.ToolCallRecord]) -> None:
        """Keep in memory the longer results of the turn that began last, unless a trace has them."""
        if self._trace is not None:
            return
        with self._lock:
            for record in records:
                size = len(msgspec.json.encode(record.result))
                if size <= _SHORT:
                    continue
                self._kept[record.call_id] = (size, record.result)
                self._bytes += size
            while self._bytes > KEPT_BYTES and self._kept:
                oldest = next(iter(self._kept))
                self._bytes -= self._kept.pop(oldest)[0]

    def find(self, call_id: m.CallId) -> m.ToolCallResult | None:
        """Return the result of a call; `None`: it is neither kept nor in a trace that still exists.

        Raises `TraceError` if the result is not found, and a trace that may hold it cannot be read.
        """
        with self._lock:
            kept = self._kept.get(call_id)
        if kept is not None:
            return kept[1]
        turns: dict[str, set[tuple[int, m.ConversationId]]] = {}
        for each in reversed(self.turns):
            turns.setdefault(each.trace, set()).add((each.turn, each.conversation))
        damaged: TraceError | None = None
        for trace, ours in turns.items():
            try:
                found = _in_trace(Path(trace), ours, call_id)
            except TraceError as error:  # go on, because an older trace may hold the result
                damaged = damaged or error
                continue
            if found is not None:
                return found
        if damaged is not None:
            raise damaged
        return None

    def branch(self) -> EarlierResults:
        """Return an independent copy."""
        copy = EarlierResults(self.turns)
        with self._lock:
            copy._kept, copy._bytes = {**self._kept}, self._bytes
        return copy


def _in_trace(
    trace: Path, turns: set[tuple[int, m.ConversationId]], call_id: m.CallId
) -> m.ToolCallResult | None:
    # Turns of several conversations can have the same number, even at the same time, and their calls the same
    # id. So follow the causes of a result to the `RunTurn` that names the conversation.
    with os_errors_as(TraceError, f"read the trace {trace}"):
        if not trace_in(trace).exists():
            return None
    with importing():  # few conversations need this import
        from grue.tracing.reading import open_episode

    found: m.ToolCallResult | None = None
    ours: set[int] = set()
    numbers = {number for number, _ in turns}
    for line in open_episode(trace).lines():
        if line.line.turn not in numbers or (line.tag != m.RunTurn.__name__ and line.line.cause not in ours):
            continue
        # Only these bodies are decoded: another turn's message may be one that this version does not know.
        body = line.envelope().body if line.tag in (m.RunTurn.__name__, m.ToolReturned.__name__) else None
        if isinstance(body, m.RunTurn):
            if turns.isdisjoint(((body.turn, body.conversation), (body.turn, ""))):
                continue
        elif isinstance(body, m.ToolReturned) and body.call_id == call_id:
            found = body.result
        ours.add(line.line.seq)
    return found


_LONG = 2**20  # bytes; from so many on, lines are written in a thread: the write would block the event loop


class TurnPast(Struct, kw_only=True):
    """What a conversation gives to the turn that continues it; from `ran` on, what the turn gives back."""

    history: m.HistoryReference | None = None  # refers to `entries`; `None`: no conversation
    entries: Sequence[m.Said | m.AssistantReply] = ()
    bytes_per_token: float | None = None
    llm: LlmFactory | None = None
    results: EarlierResults | None = None
    ran: bool = False  # whether the turn's actors ran
    end: m.TurnEnd | None = None  # as the agent reported it
    last_request: m.RequestCompletion | None = None


class KeptConversation:
    """A conversation between its turns. One turn at a time continues it.

    While a turn continues the conversation, `turn`, `abandon`, `catch_up`, `save`, `dumps` and `branch` raise
    `ConversationBusy`. Methods that read or write the file raise `ConversationError` if that fails.
    """

    def __init__(
        self,
        system: str,
        *,
        name: str = "",
        history: History | None = None,
        learned: Learned | None = None,
        tools: tuple[m.ToolDefinition, ...] = (),
        open_turn: TurnMark | None = None,
        results: EarlierResults | None = None,
    ) -> None:
        self.open_turn = open_turn  # `None`: no turn has begun that can be resumed, or it is over
        self.results = EarlierResults() if results is None else results
        self.id = m.ConversationId(name or uuid.uuid4().hex[:12])
        self.system = system
        self.history = History(Ledger()) if history is None else history
        self._told_handles = history is not None and _tells_handles(history.entries)
        self._learned = learned  # what is known about the endpoint, and the tools that were offered last
        self._encoded: EncodedConversation | None = None
        self._file: conversation_file.ConversationFile | None = None
        self._unwritten: list[bytes] = []
        self._failed: ConversationError | None = None
        self._first: WireProfile  # what the endpoint was known to accept when the current turn began
        self._endpoint: LlmEndpoint | None  # that of the current turn's runner
        self._in_ask = threading.Lock()
        self._in_turn = threading.Lock()
        self._learn_tools(tools)

    @classmethod
    def load(cls, path: Path) -> KeptConversation:
        """Continue a saved conversation, and append to its file."""
        # Read the file before opening it for writing, so that a file that is no conversation is not changed.
        saved = conversation_file.read_conversation(path)
        file = conversation_file.ConversationFile(path)
        try:
            if file.size != saved.size:
                saved = conversation_file.read_conversation(path)
            file.cut_half_line()
        except BaseException:
            file.close()
            raise
        return cls._of(saved, file)

    @classmethod
    def loads(cls, text: str) -> KeptConversation:
        """Make a conversation in memory from a text that `dumps` has returned."""
        # The text may have lost its last newline, and a line without a newline would be ignored.
        written = text.rstrip("\n").encode(errors="surrogatepass") + b"\n"
        return cls._of(conversation_file.read_conversation(Path("the text"), written))

    @classmethod
    def _of(
        cls,
        saved: conversation_file.SavedConversation,
        file: conversation_file.ConversationFile | None = None,
    ) -> KeptConversation:
        kept = cls(
            saved.header.system,
            name=saved.header.id,
            history=saved.history,
            learned=saved.learned,
            open_turn=saved.mark,
            results=EarlierResults(saved.recorded),
        )
        if file is not None:
            kept._append_to(file)
        if saved.mark is None:
            # No turn can be resumed. If a turn without a trace was killed, answer its unanswered calls.
            kept.history.close(None)
        return kept

    @property
    def path(self) -> Path | None:
        """The file that the conversation is appended to; `None`: it is in memory only."""
        return None if self._file is None else self._file.path

    @property
    def tools(self) -> tuple[m.ToolDefinition, ...]:
        """The tools that were offered last."""
        if self._encoded is not None:
            return self._encoded.tools
        return () if self._learned is None else self._learned.tools

    @property
    def refers(self) -> bool:
        """`True` if the model was told of `read_result`, which returns the rest of a cut result."""
        return self._told_handles or offers(self.tools, READ_RESULT)

    @property
    def ledger(self) -> Ledger:
        """The object that counts and digests the entries of the history."""
        assert self.history.ledger is not None, "a kept conversation has a ledger"
        return self.history.ledger

    @property
    def said(self) -> Sequence[m.Said | m.AssistantReply]:
        """The entries, and the last reply of a turn that is parked or was killed.

        If the turn was killed, answers to the calls of that reply follow.
        """
        history, mark = self.history, self.open_turn
        if mark is None or history.unread is None or self._in_turn.locked():
            return history.entries
        if mark.state == "parked":
            return (*history.entries, history.unread)
        closed = history.branch()
        closed.close(None)
        return closed.entries

    @contextlib.contextmanager
    def turn(
        self,
        lender: LendingFactory,
        endpoint: LlmEndpoint | None,
        number: int = 0,
        *,
        trace: Path | None = None,
        recorded: Path | None = None,
        resumed: bool = False,
        plain: bool = True,
    ) -> Iterator[TurnPast]:
        """Lend the conversation to the turn that runs in the block. Then mark the turn as parked or ended.

        `resumed`: go on with the parked turn `number`. `trace`: the trace from which a later process can
        resume the turn; `None`: a new turn cannot be resumed, and a resumed turn keeps its trace. `recorded`:
        the trace that gets the results of the turn's tool calls. `plain`: as `RunTurn.plain_results`. Raises
        `ConversationParked` if a turn is parked and another is to begin, and `ConversationError` if the turn
        to resume is not parked.
        """
        with self.held():
            self._require_saved()
            parked = self._parked(number) if resumed else None
            if parked is None:
                self._require_not_parked()
            lent = self._lent(lender, endpoint)
            llm = lender.lending(lent)
            self._append(self.results.begin(number, recorded, self.id))
            self._begin(number, trace, parked)
            self.history.plain, self.history.restates = plain, True
            file = "" if self._file is None else str(self._file.place)
            past = TurnPast(
                history=replace(self.ledger.reference(self.id), file=file),
                entries=self.history.entries,
                bytes_per_token=lent.encoded.bytes_per_token,
                llm=llm,
                results=self.results,
            )
            try:
                yield past
            except BaseException as error:
                self._close_turn(lent, past, parked)
                # `_require_saved` may raise another error in place of `error`. So call it for an `MCPError`
                # only: a cancellation must reach the caller.
                if isinstance(error, MCPError):
                    self._require_saved()
                raise
            self._close_turn(lent, past, parked)
            self._require_saved()

    def abandon(self) -> None:
        """Give up the open turn, if there is one, so that it can no longer be resumed."""
        with self.held():
            self._require_saved()
            if self.open_turn is not None:
                self._close(given_up(self.open_turn))
                self._mark(None)
                self._write_now()

    @contextlib.contextmanager
    def between_turns(self) -> Iterator[bool]:
        """Yield whether `add` may be called; if so, no turn can start within the block."""
        if not self._in_turn.acquire(blocking=False):
            yield False
            return
        try:
            yield self.open_turn is None and self._failed is None
        finally:
            self._in_turn.release()

    def add(self, said: Sequence[SaidStep]) -> None:
        """Add the entries of a recorded turn. Call this within `between_turns`."""
        tools: tuple[m.ToolDefinition, ...] = ()
        for step in said:
            take_step(self.history, step)
            if isinstance(step, m.RequestCompletion) and isinstance(step.mode, m.OfferTools):
                tools = step.mode.tools or tools
        if said:
            self._learn_tools(tools)
            self._encoded = None
            self._write_now()

    def require_open(self, turn: int, began: m.HistoryReference) -> TurnMark:
        """Return the mark of `turn`, which began at `began`; raises `ConversationError` if it is not open."""
        mark = self.open_turn
        if mark is None or (mark.turn, mark.began) != (turn, began.digest):
            raise ConversationError(
                f"Turn {turn} cannot be resumed: the conversation {self.id} has gone on without it."
            )
        return mark

    def catch_up(
        self,
        began: m.HistoryReference,
        replay: Callable[[History], object],
        parked: m.TurnParked,
        *,
        asks_again: bool,
    ) -> None:
        """Mark a turn whose host was killed as parked, to be resumed, and add its recorded entries.

        `replay` adds the entries of the turn's trace to those before the turn (`began`). It is not called for
        a conversation without a file, which has the entries in memory. `parked` says how far the turn had
        come. `asks_again`: the turn repeats its last request, so the reply to that request must be dropped:
        by `replay`, if it is called.
        """
        mark = self.require_open(parked.turn, began)
        with self.held():
            if mark.state == "running" and self._file is not None:
                self.history, lines = taken_up(self._file, began, replay)
                self._encoded = None
                self._unwritten += lines
                self._append_to(self._file)
            elif mark.state == "running" and asks_again:
                self.history.forget()
            self._mark(replace(mark, state="parked", questions=parked.questions, untold=parked.untold))
            self._write_now()

    def asked(self) -> contextlib.AbstractContextManager[None]:
        """Let no other `ask` or `resume` run in the block; raises `ConversationBusy` if one runs already."""
        return self._holding(self._in_ask)

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Let no turn and no change begin until the block ends; `ConversationBusy` if one has begun."""
        return self._holding(self._in_turn)

    @contextlib.contextmanager
    def _holding(self, lock: threading.Lock) -> Iterator[None]:
        if not lock.acquire(blocking=False):
            raise ConversationBusy(
                f"The conversation {self.id} is in the middle of a turn. Wait for its end. For turns at the"
                " same time, make a branch for each of them first."
            )
        try:
            yield
        finally:
            lock.release()

    def save(self, path: Path) -> None:
        """Write the conversation to a new file, and append to that file from now on."""
        with self.held():
            file = conversation_file.ConversationFile(path)
            try:
                file.begin(*self._whole())
            except BaseException:
                file.close()
                raise
            self.close()
            self._append_to(file)

    def dumps(self) -> str:
        """Return the conversation as text, in the format of its file."""
        with self.held():
            header, lines = self._whole()
            return b"\n".join([msgspec.json.encode(header), *lines, b""]).decode()

    def _whole(self) -> tuple[FileHeader, tuple[bytes, ...]]:
        history, ledger = self.history, self.ledger
        calls = {
            call.call_id
            for entry in history.entries
            if isinstance(entry, m.AssistantReply)
            for call in entry.tool_calls
        }
        header = FileHeader(
            format=conversation_file.FORMAT,
            id=self.id,
            system=self.system,
            entries=len(history.entries),
            length=ledger.length,
            digest=ledger.digest,
            call_ids=tuple(sorted(history.call_ids - calls)),
        )
        lines = (*history.entries, history.unread, *self.results.turns, self._learned, self.open_turn)
        return header, tuple(msgspec.json.encode(each) for each in lines if each is not None)

    def branch(self) -> KeptConversation:
        """Return a copy with its own id, without a file. In it, a turn that has not ended is given up."""
        with self.held():
            history = self.history.branch()
            if self.open_turn is not None:
                history.close(given_up(self.open_turn))
            results = self.results.branch()
            return KeptConversation(self.system, history=history, learned=self._learned, results=results)

    def close(self) -> None:
        """Close the file; later entries are in memory only. A second call does nothing."""
        self.ledger.save = None
        self._unwritten.clear()
        self._failed = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _require_saved(self) -> None:
        """Raise the error of a write that has failed, unless `save` or `close` was called since."""
        if self._failed is not None:
            raise self._failed

    def _parked(self, number: int) -> TurnMark:
        mark = self.open_turn
        if mark is None or (mark.turn, mark.state) != (number, "parked"):
            raise ConversationError(f"Turn {number} of the conversation {self.id} was resumed already.")
        return mark

    def _require_not_parked(self) -> None:
        mark = self.open_turn
        if mark is not None and mark.state == "parked":
            asked = ", ".join(dict.fromkeys(question.name for question in mark.questions))
            what = f"waits for an approval of {asked}" if asked else "is parked"
            raise ConversationParked(
                f"Turn {mark.turn} of the conversation {self.id} {what}. Go on with it (resume), give it up"
                " (abandon), or continue a branch.",
                turn=mark.turn,
                questions=mark.questions,
            )

    def _begin(self, number: int, trace: Path | None, parked: TurnMark | None) -> None:
        """Mark the turn as running, if it can be resumed from a trace. First end an interrupted turn."""
        if parked is not None:
            place = parked.trace if trace is None else str(trace)
            self._mark(replace(parked, trace=place, state="running", questions=(), untold=()))
        else:
            if self.open_turn is not None:
                self._close(None)
                self._mark(None)
            if trace is not None:
                self._mark(TurnMark(turn=number, trace=str(trace), began=self.ledger.digest, state="running"))
        if self.open_turn is not None:
            self._write_now()

    def _mark(self, mark: TurnMark | None) -> None:
        before, self.open_turn = self.open_turn, mark
        self._append(mark or (before and TurnMark(turn=before.turn, trace="", began="", state="over")))

    def _append(self, line: Line | None) -> None:
        if line is not None and self._file is not None:
            self._unwritten.append(msgspec.json.encode(line))

    def _close(self, end: m.TurnEnd | None) -> None:
        if self._encoded is None:
            self.history.close(end)
        else:
            self._encoded.close(end)

    def _append_to(self, file: conversation_file.ConversationFile) -> None:
        self._file = file
        self.ledger.save = self._unwritten.append

    def _lent(self, lender: LendingFactory, endpoint: LlmEndpoint | None) -> LentConversation:
        self._first, self._endpoint = lender.profile, endpoint
        if self._encoded is None:
            learned, names = self._learned, None
            if learned is not None and learned.model == lender.model:
                if endpoint is not None:
                    endpoint.recall(learned.first, learned.profile)
                if learned.profile.name_style == lender.profile.name_style:
                    names = WireNames.restored(lender.profile.name_style, learned.names)
            self._encoded = EncodedConversation(
                lender.profile, model=lender.model, history=self.history, names=names
            )
            self._encoded.offer(() if learned is None else learned.tools)
        return LentConversation(self.id, self._encoded, self._write)

    async def _write(self) -> None:
        if sum(map(len, self._unwritten)) < _LONG:
            self._write_now()
        else:
            await anyio.to_thread.run_sync(self._write_now)

    def _write_now(self) -> None:
        if self._file is None or not self._unwritten:
            return
        lines = [*self._unwritten]
        self._unwritten.clear()
        try:
            self._file.append(lines)
        except ConversationError as error:
            # Keep the error for `_require_saved`. If it ends the LLM actor, the turn raises `ActorCrashed`;
            # then `_require_saved` raises the kept error instead.
            self._failed = error
            raise

    def _close_turn(self, lent: LentConversation, turn: TurnPast, parked: TurnMark | None) -> None:
        """Mark the turn as parked, or end it in the history, and write the new entries to the file.

        `parked` is the `TurnMark` that a resumed turn had while it was parked.
        """
        encoded, asked, end = lent.encoded, turn.last_request, turn.end
        if asked is not None and not asked.aside and (lent.told is None or lent.told.request < asked.request):
            encoded.ask(asked.new, asked.mode)
        self.results.end(() if end is None else end.tool_calls)
        if isinstance(end, m.TurnParked) and self.open_turn is not None:
            self._mark(replace(self.open_turn, state="parked", questions=end.questions, untold=end.untold))
        elif parked is not None and (not turn.ran or is_parked_still(end, parked)):
            self._mark(parked)
        else:
            if turn.ran:
                encoded.close(end)
            self._mark(None)
        self._learn(encoded)
        if self._failed is None:
            with contextlib.suppress(ConversationError):
                self._write_now()

    def _learn_tools(self, tools: tuple[m.ToolDefinition, ...]) -> None:
        if tools and tools != self.tools:
            profile = WireProfile(name="")  # stands for an unknown one: no model has an empty name
            known = self._learned or Learned(model="", first=profile, profile=profile)
            self._learned = replace(known, tools=tools)
            self._append(self._learned)

    def _learn(self, encoded: EncodedConversation) -> None:
        # The model that answered may be one of the endpoint's fallback models.
        chain = () if self._endpoint is None else self._endpoint.chain
        now = encoded.model, encoded.profile
        asked = (each for each in chain if (each.settings.model, each.profile) == now)
        first = self._first if self._endpoint is None else self._endpoint.first_profile
        learned = Learned(
            model=encoded.model,
            first=next((each.first_profile for each in asked), first),
            profile=encoded.profile,
            names=encoded.names.known,
            tools=encoded.tools,
        )
        if learned != self._learned:
            self._learned = learned
            self._append(learned)


def _tells_handles(entries: Iterable[m.Said | m.AssistantReply]) -> bool:
    items = (item for entry in entries if isinstance(entry, m.Said) for item in entry.items)
    return any(isinstance(item, m.ToolMessage) and is_referred(item.content, item.call_id) for item in items)


def given_conversation(
    name: str, system: str, items: Sequence[m.HistoryItem | m.SystemText]
) -> KeptConversation:
    """Return a conversation whose history is given as plain data, or raise `ConversationError`."""
    try:
        history = history_of(system, items, Ledger())
    except ValueError as error:
        raise ConversationError(f"The history of the turn cannot be used: {error}.") from error
    return KeptConversation(system, name=name, history=history)


def given_up(mark: TurnMark | None) -> m.TurnParked | None:
    """Return a message with answers to the calls of a parked turn; `None`: the turn is not parked."""
    if mark is None or mark.state == "running":
        return None
    return m.TurnParked(turn=mark.turn, untold=mark.untold)


def is_parked_still(end: object, parked: TurnMark | m.TurnParked) -> bool:
    """Return whether a resumed turn failed to start a server before it had sent a call or used a reply."""
    if not (isinstance(end, m.TurnFailed) and isinstance(end.failure, m.ServerFailure)):
        return False
    # The calls with a new answer: they were sent or refused since, or are calls of a later reply.
    changed = {each.call_id for each in end.untold if each not in parked.untold}
    not_sent = ("skipped", "rejected", "denied")
    return changed <= {each.call_id for each in end.tool_calls if each.settlement in not_sent}


def taken_up(
    file: conversation_file.ConversationFile, began: m.HistoryReference, replay: Callable[[History], object]
) -> tuple[History, list[bytes]]:
    """Return the history before a turn plus what `replay` adds, and the lines to append to `file` for it."""
    saved = conversation_file.read_conversation(file.path)
    found = conversation_file.begin_of_turn(saved, began)
    if found is None:
        raise ConversationError(
            f"{file.path} does not hold where the turn began: it may be an older copy, or was saved later.",
            path=str(file.path),
        )
    history, lines = found
    assert history.ledger is not None, "the history of a file has a ledger"
    produced: list[bytes] = []
    history.ledger.save = produced.append
    replay(history)
    return history, conversation_file.lines_to_write(saved, lines, produced)


def asks_again(resumed: m.Resumption) -> bool:
    """Return whether a resumed turn first repeats its last request, because no reply to it was used."""
    return not resumed.parked.calls and not resumed.new


def with_sizes(
    command: m.RunTurn, entries: Sequence[m.Said | m.AssistantReply], bytes_per_token: float | None = None
) -> m.RunTurn:
    """Return `command`. With a context policy and `entries`, add their sizes and the bytes per token."""
    if command.context is None or not entries:
        return command
    # Limit the ratio, because an endpoint can report any number of tokens.
    known = min(max(bytes_per_token or command.context.bytes_per_token, 0.1), 100.0)
    context = replace(command.context, bytes_per_token=known)
    command, resumed = replace(command, context=context, earlier=sizes_of(entries, known)), command.resumed
    if resumed is None:
        return command
    # The entries of a resumed turn are partly its own: it must not clear its task, or results not read yet.
    replies = (at for at in range(len(entries) - 1, 0, -1) if isinstance(entries[at], m.AssistantReply))
    end = next(replies, len(entries)) if asks_again(resumed) else len(entries)
    unread = sizes_of(entries[end:], known)
    earlier = [*sizes_of(entries[:end], known), *unread]
    stubs = [at for at, item in enumerate(earlier) if item.stub]
    if stubs and earlier[stubs[-1]].stub == command.user_stub:
        earlier[stubs[-1]] = replace(earlier[stubs[-1]], stub="")
    return replace(command, earlier=tuple(earlier), resumed=replace(resumed, unread=len(unread)))
