"""A conversation between its turns: what was said, its encoding for the endpoint, and its file.

Come here to change what a turn gets from its conversation, and what the conversation keeps of the turn. A
turn enters `turn()`, which lends the encoded conversation to the turn's LLM actor and keeps what the turn has
added to it, however the turn ended. The rules of what is kept are in `protocol/history.py`.
"""

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread
import msgspec
from msgspec.structs import replace

from grue.engine.conversation_file import (
    FORMAT,
    ConversationFile,
    FileHeader,
    Learned,
    TurnMark,
    lines_of,
    read_conversation,
)
from grue.engine.open_turns import given_up, is_parked_still, require_not_parked, taken_up
from grue.engine.past import Past, TurnReport
from grue.engine.wiring import Wiring
from grue.errors import ConversationBusy, ConversationError, MCPError
from grue.messages import (
    AssistantReply,
    ConversationId,
    HistoryItem,
    HistoryReference,
    OfferTools,
    RequestCompletion,
    Said,
    ToolDefinition,
    TurnEnd,
    TurnParked,
)
from grue.protocol.chat_wire.conversation import Conversation
from grue.protocol.chat_wire.profile import WireProfile
from grue.protocol.history import History, Ledger, history_of
from grue.protocol.said_steps import SaidStep, take_step
from grue.protocol.tool_names import WireNames

if TYPE_CHECKING:
    from grue.actors.llm import LentConversation

_LONG = 2**20
"""Bytes from which a thread writes them, because the event loop would be blocked for milliseconds."""


class KeptConversation:
    """A conversation between its turns. One turn at a time continues it.

    Args:
        system: The instructions.
        name: Its id in traces; default: a random one.
        history: What was said before, with a ledger; default: nothing.
        learned: What an earlier process has learned about the endpoint.
        tools: The tools that were offered last, if nothing else is known of that process.
        open_turn: The turn that a process can go on with; `None`: there is none.

    Attributes:
        open_turn: The same. While a turn runs, that turn.
    """

    def __init__(
        self,
        system: str,
        *,
        name: str = "",
        history: History | None = None,
        learned: Learned | None = None,
        tools: tuple[ToolDefinition, ...] = (),
        open_turn: TurnMark | None = None,
    ) -> None:
        self.open_turn = open_turn
        self.id = ConversationId(name or uuid.uuid4().hex[:12])
        self.system = system
        self.history = History(Ledger()) if history is None else history
        self._learned = learned
        self._tools = tools if learned is None else learned.tools
        self._encoded: Conversation | None = None
        self._file: ConversationFile | None = None
        self._unwritten: list[bytes] = []
        self._failed: ConversationError | None = None
        self._first: WireProfile | None = None
        self._in_ask = threading.Lock()
        self._in_turn = threading.Lock()

    @classmethod
    def load(cls, path: Path) -> "KeptConversation":
        """Continue a saved conversation, and append to its file.

        Raises:
            ConversationError: The file is missing, damaged or in use.
        """
        # Read before it is opened for writing: a file that is not a conversation is left as it is.
        saved = read_conversation(path)
        file = ConversationFile(path)
        try:
            if file.size != saved.size:
                saved = read_conversation(path)
            file.cut_half_line()
        except BaseException:
            file.close()
            raise
        header = saved.header
        kept = cls(
            header.system,
            name=header.id,
            history=saved.history,
            learned=saved.learned,
            open_turn=saved.mark,
        )
        kept._append_to(file)
        if saved.mark is None:
            # What was being done when the process was killed has no answer in the file.
            kept.history.close(None)
        return kept

    @property
    def path(self) -> Path | None:
        """The file that it is appended to; `None`: it is in memory only."""
        return None if self._file is None else self._file.path

    @property
    def ledger(self) -> Ledger:
        """Counts what was said."""
        assert self.history.ledger is not None, "a kept conversation has a ledger"
        return self.history.ledger

    @property
    def said(self) -> Sequence[Said | AssistantReply]:
        """The conversation's entries, with the reply that a parked turn has not acted upon."""
        history, mark = self.history, self.open_turn
        if mark is None or history.unread is None or self._in_turn.locked():
            return history.entries
        if mark.state == "parked":
            return (*history.entries, history.unread)
        closed = history.branch()
        closed.close(None)
        return closed.entries

    @contextlib.contextmanager
    def turn(self, wiring: Wiring, number: int = 0, *, resumed: bool = False) -> Iterator[Past]:
        """Lend the conversation to a turn, and keep the turn's entries, however it ends.

        Args:
            wiring: The parts that the turn is made from.
            number: The turn's number.
            resumed: It goes on with the parked turn.

        Raises:
            ConversationBusy: Another turn continues it.
            ConversationParked: A turn is parked, and this is another one.
            ConversationError: The actors of the host's factory cannot continue a conversation, or the file
                cannot be written.
        """
        with self.held():
            self._require_saved()
            parked = self._parked(number) if resumed else None
            if not resumed:
                require_not_parked(self.open_turn, self.id)
            lent, lending = self._lend(wiring)
            self._begin(wiring, number, parked)
            past = Past(lending, self._reference(), self.history.entries, lent.encoded.bytes_per_token)
            try:
                yield past
            except BaseException as error:
                self._close_turn(lent, past.actors, parked)
                # A cancellation stays one.
                if isinstance(error, MCPError):
                    self._require_saved()
                raise
            self._close_turn(lent, past.actors, parked)
            self._require_saved()

    def abandon(self) -> None:
        """Give up the open turn, if there is one: its calls are answered with that.

        Raises:
            ConversationBusy: A turn continues the conversation.
            ConversationError: The file cannot be written.
        """
        with self.held():
            self._require_saved()
            if self.open_turn is not None:
                self._close(given_up(self.open_turn))
                self._mark(None)
                self._write_now()

    @contextlib.contextmanager
    def between_turns(self) -> Iterator[bool]:
        """Keep turns from continuing the conversation meanwhile; yield whether it is ready for the next one.

        It is not while a turn continues it, or while one is parked.
        """
        if not self._in_turn.acquire(blocking=False):
            yield False
            return
        try:
            yield self.open_turn is None and self._failed is None
        finally:
            self._in_turn.release()

    def add(self, said: Sequence[SaidStep]) -> None:
        """Add what was said in a turn of an earlier process; call it in `between_turns`.

        Raises:
            ConversationError: The file cannot be written.
        """
        for step in said:
            take_step(self.history, step)
            if isinstance(step, RequestCompletion) and isinstance(step.mode, OfferTools):
                self._tools = step.mode.tools or self._tools
        if said:
            self._encoded = None
            self._write_now()

    def require_open(self, turn: int, began: HistoryReference) -> TurnMark:
        """Return the mark of the open turn.

        Raises:
            ConversationError: This turn is not open.
        """
        mark = self.open_turn
        if mark is None or (mark.turn, mark.began) != (turn, began.digest):
            raise ConversationError(
                f"Turn {turn} cannot be resumed: the conversation {self.id} has gone on without it."
            )
        return mark

    def catch_up(
        self, began: HistoryReference, replay: Callable[[History], None], parked: TurnParked
    ) -> None:
        """Give a turn whose process was killed the entries that its trace holds; then it is parked.

        Args:
            began: What was said before the turn, by reference.
            replay: Adds to a history what was said in the turn.
            parked: How far it has come.

        Raises:
            ConversationError: The file does not hold what was said before it, or cannot be written.
        """
        mark = self.require_open(parked.turn, began)
        with self.held():
            if mark.state == "running" and self._file is not None:
                self.history, lines = taken_up(self._file, began, replay)
                self._encoded = None
                self._unwritten += lines
                self._append_to(self._file)
            elif mark.state == "running" and not (parked.calls or self.history.unread is None):
                self.history.forget()
            self._mark(replace(mark, state="parked", questions=parked.questions, untold=parked.untold))
            self._write_now()

    @contextlib.contextmanager
    def asked(self) -> Iterator[None]:
        """Keep other callers from asking meanwhile, also while the turn waits for its runner.

        Raises:
            ConversationBusy: Somebody else has asked and has no answer yet.
        """
        if not self._in_ask.acquire(blocking=False):
            raise self._busy()
        try:
            yield
        finally:
            self._in_ask.release()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep turns from continuing the conversation meanwhile.

        Raises:
            ConversationBusy: A turn continues it.
        """
        if not self._in_turn.acquire(blocking=False):
            raise self._busy()
        try:
            yield
        finally:
            self._in_turn.release()

    def save(self, path: Path) -> None:
        """Write all of it to a new file, and append to that file from now on.

        Raises:
            ConversationBusy: A turn continues it.
            ConversationError: The file is not empty or cannot be written.
        """
        with self.held():
            history, ledger = self.history, self.ledger
            calls = {
                call.call_id
                for entry in history.entries
                if isinstance(entry, AssistantReply)
                for call in entry.tool_calls
            }
            header = FileHeader(
                format=FORMAT,
                id=self.id,
                system=self.system,
                entries=len(history.entries),
                length=ledger.length,
                digest=ledger.digest,
                call_ids=tuple(sorted(history.call_ids - calls)),
            )
            rest = [msgspec.json.encode(each) for each in (self._learned, self.open_turn) if each is not None]
            file = ConversationFile(path)
            try:
                file.begin(header, (*lines_of(history), *rest))
            except BaseException:
                file.close()
                raise
            self.close()
            self._append_to(file)

    def branch(self) -> "KeptConversation":
        """Return a copy with an id of its own, which is in memory only.

        Raises:
            ConversationBusy: A turn continues it.
        """
        with self.held():
            history = self.history.branch()
            if self.open_turn is not None:
                history.close(given_up(self.open_turn))
            return KeptConversation(self.system, history=history, learned=self._learned)

    def close(self) -> None:
        """Close the file; later entries are in memory only. A second call does nothing."""
        self.ledger.save = None
        self._unwritten.clear()
        self._failed = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _busy(self) -> ConversationBusy:
        return ConversationBusy(
            f"The conversation {self.id} is in the middle of a turn. Wait for its end, or continue a branch."
        )

    def _require_saved(self) -> None:
        """Raise what happened when the file was written last, until the conversation is saved again."""
        if self._failed is not None:
            raise self._failed

    def _parked(self, number: int) -> TurnMark:
        mark = self.open_turn
        if mark is None or (mark.turn, mark.state) != (number, "parked"):
            raise ConversationError(f"Turn {number} of the conversation {self.id} was resumed already.")
        return mark

    def _begin(self, wiring: Wiring, number: int, parked: TurnMark | None) -> None:
        """Mark the turn that begins now, if a later process can go on with it."""
        wiring.under_way.conversations[self.id] = self
        trace = wiring.approval.trace
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
        written = mark or (before and TurnMark(turn=before.turn, trace="", began="", state="over"))
        if self._file is not None and written is not None:
            self._unwritten.append(msgspec.json.encode(written))

    def _close(self, end: TurnEnd | None) -> None:
        if self._encoded is None:
            self.history.close(end)
        else:
            self._encoded.close(end)

    def _reference(self) -> HistoryReference:
        """Return what was said so far, by reference."""
        path = self.path
        return replace(self.ledger.reference(self.id), file="" if path is None else str(path.absolute()))

    def _append_to(self, file: ConversationFile) -> None:
        self._file = file
        self.ledger.save = self._unwritten.append

    def _lend(self, wiring: Wiring) -> "tuple[LentConversation, Wiring]":
        """Return what the LLM actor gets, and the parts of a turn whose LLM actor gets it."""
        from grue.actors.llm import LentConversation

        endpoint = wiring.endpoint
        self._first = wiring.lender.profile if endpoint is None else endpoint.first_profile
        if self._encoded is None:
            self._encoded = self._encode(wiring)
        lent = LentConversation(self.id, self._encoded, self._write)
        return lent, wiring.lending(lent)

    def _encode(self, wiring: Wiring) -> Conversation:
        lender, learned, names = wiring.lender, self._learned, None
        if learned is not None and learned.model == lender.model:
            if wiring.endpoint is not None:
                wiring.endpoint.recall(learned.first, learned.profile)
            if learned.profile.name_style == lender.profile.name_style:
                names = WireNames.restored(lender.profile.name_style, learned.names)
        encoded = Conversation(lender.profile, model=lender.model, history=self.history, names=names)
        encoded.offer(self._tools)
        return encoded

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
            # The actor that wrote it ends with this error, and so does the turn. The host gets it as it is.
            self._failed = error
            raise

    def _close_turn(
        self, lent: "LentConversation", actors: TurnReport | None, parked: TurnMark | None
    ) -> None:
        """Keep what was said in the turn; `parked`: the turn that it has gone on with.

        The LLM actor may have been cancelled before it took the last request, although the agent has sent it
        and the trace has recorded it. What that request says is added here, so that a conversation holds the
        same whether it was kept by this process or read from the trace.
        """
        encoded, asked = lent.encoded, None if actors is None else actors.last_request
        if asked is not None and not asked.aside and (lent.told is None or lent.told.request < asked.request):
            encoded.ask(asked.new, asked.mode)
        end = None if actors is None else actors.end
        if isinstance(end, TurnParked) and self.open_turn is not None:
            self._mark(replace(self.open_turn, state="parked", questions=end.questions, untold=end.untold))
        elif parked is not None and (actors is None or is_parked_still(end)):
            self._mark(parked)
        else:
            if actors is not None:
                encoded.close(end)
            self._mark(None)
        self._learn(encoded)
        if self._failed is None:
            with contextlib.suppress(ConversationError):
                self._write_now()

    def _learn(self, encoded: Conversation) -> None:
        if self._first is None:
            return
        learned = Learned(
            model=encoded.model,
            first=self._first,
            profile=encoded.profile,
            names=encoded.names.known,
            tools=encoded.tools,
        )
        if learned != self._learned:
            self._learned = learned
            if self._file is not None:
                self._unwritten.append(msgspec.json.encode(learned))


def given_conversation(name: str, system: str, items: Sequence[HistoryItem]) -> KeptConversation:
    """Return a conversation for one turn, with what was said before as plain data.

    Raises:
        ConversationError: A tool message does not belong to a call of the reply before it.
    """
    try:
        history = history_of(system, items, Ledger())
    except ValueError as error:
        raise ConversationError(f"The history of the turn cannot be used: {error}.") from error
    return KeptConversation(system, name=name, history=history)
