"""A conversation between its turns: what was said, its encoding for the endpoint, and its file.

Come here to change what a turn takes over from its conversation and what it leaves to it. A turn enters
`turn()`, which lends the encoded conversation to the turn's LLM actor and keeps what the turn has added to
it, however the turn ended. The rules of what is kept are in `protocol/history.py`.
"""

import contextlib
import threading
import uuid
from collections.abc import Iterator, Sequence
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
    lines_of,
    read_conversation,
)
from grue.engine.past import Past, TurnReport
from grue.engine.wiring import EndpointActors, Wiring
from grue.errors import ConversationBusy, ConversationError, MCPError
from grue.messages import (
    AssistantReply,
    ConversationId,
    HistoryItem,
    ToolDefinition,
)
from grue.protocol.chat_wire.conversation import Conversation
from grue.protocol.chat_wire.profile import WireProfile
from grue.protocol.history import History, Ledger, history_of
from grue.protocol.tool_names import WireNames

if TYPE_CHECKING:
    from grue.actors.llm import LentConversation
    from grue.llm_transport.endpoint import LlmEndpoint

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

    """

    def __init__(
        self,
        system: str,
        *,
        name: str = "",
        history: History | None = None,
        learned: Learned | None = None,
        tools: tuple[ToolDefinition, ...] = (),
    ) -> None:
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
        # Read before it is opened for writing: a file that is no conversation is not touched.
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
        kept = cls(header.system, name=header.id, history=saved.history, learned=saved.learned)
        kept._append_to(file)
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

    @contextlib.contextmanager
    def turn(self, wiring: Wiring) -> Iterator[Past]:
        """Lend the conversation to a turn, and keep what is said in it, however it ends.

        Raises:
            ConversationBusy: Another turn continues it.
            ConversationError: The runner's model is a host's own actor, or the file cannot be written.
        """
        with self.held():
            self._require_saved()
            lent, lending = self._lend(wiring)
            reference = self.ledger.reference(self.id)
            past = Past(lending, reference, self.history.entries, lent.encoded.bytes_per_token)
            try:
                yield past
            except BaseException as error:
                self._close_turn(lent, past.actors)
                # A cancellation stays one.
                if isinstance(error, MCPError):
                    self._require_saved()
                raise
            self._close_turn(lent, past.actors)
            self._require_saved()

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
            learned = [] if self._learned is None else [msgspec.json.encode(self._learned)]
            file = ConversationFile(path)
            try:
                file.begin(header, (*lines_of(history), *learned))
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
            return KeptConversation(self.system, history=self.history.branch(), learned=self._learned)

    def close(self) -> None:
        """Close the file; what is said after that is in memory only. A second call does nothing."""
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

    def _append_to(self, file: ConversationFile) -> None:
        self._file = file
        self.ledger.save = self._unwritten.append

    def _lend(self, wiring: Wiring) -> "tuple[LentConversation, Wiring]":
        """Return what the LLM actor gets, and the parts of a turn whose LLM actor gets it."""
        endpoint, factory = wiring.endpoint, wiring.llm
        if endpoint is None or not isinstance(factory, EndpointActors):
            raise ConversationError(
                "A conversation needs an endpoint, and the runner's llm is a factory of your own. Give the"
                " runner LlmSettings, or keep the conversation in your actor."
            )
        from grue.actors.llm import LentConversation

        self._first = endpoint.first_profile
        if self._encoded is None:
            self._encoded = self._encode(endpoint)
        lent = LentConversation(self.id, self._encoded, self._write)
        return lent, replace(wiring, llm=factory.lending(lent))

    def _encode(self, endpoint: "LlmEndpoint") -> Conversation:
        learned, model, names = self._learned, endpoint.settings.model, None
        if learned is not None and learned.model == model:
            endpoint.recall(learned.first, learned.profile)
            if learned.profile.name_style == endpoint.profile.name_style:
                names = WireNames.restored(endpoint.profile.name_style, learned.names)
        encoded = Conversation(endpoint.profile, model=model, history=self.history, names=names)
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

    def _close_turn(self, lent: "LentConversation", actors: TurnReport | None) -> None:
        """Keep what was said in the turn.

        The LLM actor may have been cancelled before it took the last request, although the agent has sent it
        and the trace has recorded it. What that request says is added here, so that a conversation holds the
        same whether it was kept by this process or read from the trace.
        """
        encoded, asked = lent.encoded, None if actors is None else actors.last_request
        if asked is not None and (lent.told is None or lent.told.request < asked.request):
            encoded.ask(asked.new, asked.mode)
        if actors is not None:
            encoded.close(actors.end)
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
