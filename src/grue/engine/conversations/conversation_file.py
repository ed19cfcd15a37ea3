"""The file of a saved conversation: one JSON line for each step, mode 600. Lines are only appended.

Nothing in it is redacted, because a later process must send the same bytes again, or the endpoint cannot use
its prompt cache. So it holds the secrets that were said.

A reply is written before its tool calls are made. The process may be killed at any time: a last line without
a newline is ignored, and removed when the conversation is continued. A call whose result is missing may have
taken effect; the next turn tells the model so.

A process that goes on with a turn reads from the trace how far the turn had come. A trace is written a little
later than this file, so this file may be ahead of it. The process then appends an `Undone`, which takes back
the lines that the trace does not have.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.errors import ConversationError, TraceError
from grue.policies import ApprovalQuestion
from grue.protocol.chat_wire.profile import WireProfile
from grue.protocol.context.history import History, Ledger
from grue.runtime.files import LineFile, next_line, open_regular, os_cause
from grue.runtime.forks import here_and_in_children
from grue.runtime.trace.format import error_text

FORMAT = 1


class FileHeader(Struct, frozen=True, kw_only=True, tag="conversation"):
    """The first line of a conversation's file."""

    format: int
    id: str
    system: str
    entries: int = 0  # how many entries were written together with the header, on the lines after it
    length: int = 0  # `length` and `digest` are those of the ledger after these entries
    digest: str = ""
    call_ids: tuple[m.CallId, ...] = ()  # of calls in none of these entries; new calls need other ids


class Learned(Struct, frozen=True, kw_only=True, tag="learned"):
    """The endpoint's profile, as a conversation learned it from requests, and the tools it offered last.

    It is saved so that a request after a restart begins with the same bytes, for the provider's prompt cache.
    """

    model: str  # empty: only the tools are known
    first: WireProfile  # assumed before the first request
    profile: WireProfile  # what is known now
    names: dict[str, str] = {}  # the tools' names on the wire, by canonical name
    tools: tuple[m.ToolDefinition, ...] = ()


class Dropped(Struct, frozen=True, tag="dropped"):
    """A line that takes back the last reply."""


class Undone(Struct, frozen=True, tag="undone"):
    """A line that takes back others: of those after the header not yet taken back, the first `lines` stay."""

    lines: int


class TurnMark(Struct, frozen=True, kw_only=True, tag="turn", omit_defaults=True):
    """The state of a turn. Unless it is `over`, a later process can go on with the turn."""

    turn: int
    trace: str  # the path of the trace that tells how far the turn has come; empty if `state` is `over`
    began: str  # the digest of the entries before the turn; empty if `state` is `over`, or there were none
    state: Literal["running", "parked", "over"]  # `running` also after the process was killed
    questions: tuple[ApprovalQuestion, ...] = ()  # those whose answers a parked turn waits for
    # Answers to a parked turn's calls, such as "not called", which the model reads if the turn is given up.
    untold: tuple[m.ToolMessage, ...] = ()


class TurnRecorded(Struct, frozen=True, tag="recorded"):
    """A line that names the trace file with the complete tool results of a turn."""

    turn: int
    trace: str
    # The id under which the turn is in that trace: a branch has an id of its own. In files of older versions
    # of grue it is empty, and any turn with the number may be meant.
    conversation: m.ConversationId = m.ConversationId("")


_Entry: TypeAlias = m.Said | m.AssistantReply | m.Rewritten
Line: TypeAlias = FileHeader | _Entry | Learned | Dropped | Undone | TurnMark | TurnRecorded
_LINES = msgspec.json.Decoder(Line)
_DROPPED = msgspec.json.encode(Dropped())


class SavedConversation(Struct):
    """The content of a conversation's file."""

    header: FileHeader
    history: History
    learned: Learned | None = None
    mark: TurnMark | None = None
    recorded: list[TurnRecorded] = []
    lines: tuple[Line, ...] = ()  # those after the header that no `Undone` has taken back
    size: int = 0  # in bytes
    restored: int = 0  # how many of the `header.entries` entries have been read

    def take(self, line: Line) -> None:
        """Apply the next line; raises `ValueError` if it cannot follow the lines before it."""
        history = self.history
        match line:
            case Learned():
                self.learned = line
            case TurnMark():
                self.mark = None if line.state == "over" else line
            case TurnRecorded():
                self.recorded.append(line)
            case m.Said() | m.AssistantReply() if self.restored < self.header.entries:
                self.restored += 1
                history.restore(line)
            case m.Said():
                history.say(line.items, line.answer, beside_tools=line.beside_tools)
            case m.AssistantReply():
                history.say(())
                history.keep(line)
            case m.Rewritten():
                # A `Rewritten` counts the last reply as an entry; `History` adds this reply only at a `say`.
                history.say(())
                history.rewrite(line)
            case Dropped():
                history.unread = None
            case _:
                raise ValueError("it is a second header")


class ConversationFile:
    """The file that a conversation is appended to. It is created if absent, and locked while it is open.

    Its methods raise `ConversationError` if the file cannot be opened or written, or is locked already.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._owner = os.getpid()
        with self._errors_as_ours():
            self._file = LineFile(path, "conversation file")
        self.place = self._file.place
        here_and_in_children(self._leave_to_parent)
        fault = ""
        if not path.is_file():  # such as a pipe: a write to it blocks as soon as the pipe is full
            fault = (
                f"Cannot write the conversation file {path}: it is a pipe or a device, not a regular file."
            )
        elif not self._file.lock():
            fault = (
                f"The conversation file {path} is in use. Close the conversation that uses it, or branch it."
            )
        if fault:
            self._file.close()
            raise ConversationError(fault, path=str(path))

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._file.size

    def begin(self, header: FileHeader, lines: Iterable[bytes] = ()) -> None:
        """Write the first lines of a new file; raises `ConversationError` if it is not empty."""
        if self.size:
            raise ConversationError(
                f"{self.path} is not empty. Continue what it holds with Conversation.load, or choose another"
                " file.",
                path=str(self.path),
            )
        self.append([msgspec.json.encode(header), *lines])

    def cut_half_line(self) -> None:
        """Remove an incomplete last line."""
        with self._errors_as_ours():
            self._file.cut_half_line()

    def append(self, lines: list[bytes]) -> None:
        """Append `lines`. For an empty line, write a `Dropped`."""
        with self._errors_as_ours(
            " What was said since is in memory only: save the conversation to another file."
        ):
            if self._owner != os.getpid():
                raise TraceError(
                    f"{self.path} can be written by the process that opened it only, not by a fork."
                )
            self._file.require_not_deleted()
            self._file.write(*(line or _DROPPED for line in lines))

    @contextlib.contextmanager
    def _errors_as_ours(self, advice: str = "") -> Iterator[None]:
        try:
            yield
        except (TraceError, OSError) as error:
            raise ConversationError(f"{error}{advice}", path=str(self.path)) from error

    def close(self) -> None:
        """Close the file and end its lock. A second call does nothing."""
        self._file.close()

    def _leave_to_parent(self) -> None:
        """In a forked child, close the file: otherwise its lock would outlast the parent's `close`."""
        if self._owner != os.getpid():
            self._file.close()


def read_conversation(path: Path, text: bytes | None = None) -> SavedConversation:
    """Read the conversation from `text`, or from the file `path` if `text` is `None`.

    Raises `ConversationError` if the file cannot be read, is damaged or too new, or is no conversation.
    """
    lines = _lines(path, text)
    first = next(lines, None)
    if first is None or not isinstance(first[1], FileHeader):
        raise ConversationError(f"{path} is not a saved conversation.", path=str(path), line=1)
    header = first[1]
    if header.format > FORMAT:
        raise ConversationError(
            f"{path} has conversation format {header.format}; this version reads up to {FORMAT}."
            " Upgrade grue.",
            path=str(path),
            line=1,
        )
    saved = SavedConversation(header, _first_history(header), size=first[2])
    counting: list[tuple[int, Line]] = []
    for number, line, size in lines:
        saved.size = size
        if isinstance(line, Undone):
            del counting[line.lines :]
        elif line is not None:
            counting.append((number, line))
    saved.lines = tuple(line for _, line in counting)
    for number, line in counting:
        try:
            saved.take(line)
        except ValueError as error:
            raise _damaged(path, number, error_text(error)) from error
    return saved


def begin_of_turn(saved: SavedConversation, began: m.HistoryReference) -> tuple[History, int] | None:
    """Return the history before a turn, and the number of lines up to the `TurnMark` that starts the turn.

    `None`: the file has no such mark, or the entries before it are not those that `began` refers to.
    """
    before = SavedConversation(saved.header, _first_history(saved.header))
    for number, line in enumerate(saved.lines, start=1):
        before.take(line)
        if isinstance(line, TurnMark) and (line.state, line.began) == ("running", began.digest):
            # `began` counts the last reply as an entry, but `History` adds the reply only at the next `say`.
            before.history.say(())
            ledger = before.history.ledger
            found = ledger is not None and (ledger.length, ledger.digest) == (began.length, began.digest)
            return (before.history, number) if found else None
    return None


def _first_history(header: FileHeader) -> History:
    ledger = Ledger()
    ledger.length, ledger.digest = header.length, header.digest
    history = History(ledger, {*header.call_ids})
    history.plain = True  # `KeptConversation.turn` sets this anew for each turn
    return history


def _lines(path: Path, text: bytes | None) -> Iterator[tuple[int, Line | None, int]]:
    """Yield each line's number, the line (`None` if it is incomplete), and the number of bytes so far."""
    number, size = 1, 0
    try:
        with open_regular(path) if text is None else io.BytesIO(text) as file:
            while line := next_line(file):
                size += len(line)
                yield number, _LINES.decode(line) if line.endswith(b"\n") else None, size
                number += 1
    except OSError as error:
        fault = f"Cannot read the conversation file {path}: {os_cause(error)}."
        raise ConversationError(fault, path=str(path)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, number, error_text(error)) from error


def _damaged(path: Path, line: int, why: str) -> ConversationError:
    before = " The lines before it are whole: a copy that ends there can be loaded." if line > 1 else ""
    return ConversationError(f"{path}, line {line} is damaged ({why}).{before}", path=str(path), line=line)


def lines_to_write(saved: SavedConversation, kept: int, produced: list[bytes]) -> list[bytes]:
    """Return what to append to the file, so that its lines for the last turn become those in `produced`.

    An `Undone` takes back the file's lines from the first that is not as in `produced`. `kept`: the number of
    lines before the last turn. An empty line in `produced` stands for a `Dropped`.
    """
    wanted = [line or _DROPPED for line in produced]
    same, end = 0, kept
    for number, line in enumerate(saved.lines[kept:], start=kept + 1):
        if isinstance(line, Learned | TurnMark | TurnRecorded):
            continue
        if same == len(wanted) or msgspec.json.encode(line) != wanted[same]:
            return [msgspec.json.encode(Undone(end)), *wanted[same:]]
        same, end = same + 1, number
    return wanted[same:]
