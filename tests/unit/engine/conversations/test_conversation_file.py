"""The file of a conversation: what is read of it, what is refused, and what is never touched."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from growth import assert_linear

from grue.engine.conversations.conversation_file import (
    FORMAT,
    ConversationFile,
    Dropped,
    FileHeader,
    Learned,
    TurnRecorded,
    read_conversation,
)
from grue.errors import ConversationError
from grue.messages import (
    AnswerSchema,
    AssistantReply,
    CallId,
    Rewritten,
    Said,
    Summarised,
    ToolCall,
    ToolMessage,
    UserText,
)
from grue.protocol.chat_wire.profiles import GENERIC, OPENROUTER
from grue.protocol.context.history import History, Ledger

HEADER = FileHeader(format=FORMAT, id="c1", system="s")
CALL = ToolCall(call_id=CallId("a"), name="h.look", arguments="{}")
LEARNED = Learned(model="m", first=GENERIC, profile=OPENROUTER, names={"a.b": "a__b"})


def written(path: Path, *lines: object, end: bytes = b"\n") -> Path:
    path.write_bytes(b"\n".join(map(msgspec.json.encode, lines)) + end)
    return path


def test_a_file_is_read_by_the_steps_that_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    file = ConversationFile(path)
    file.begin(HEADER)
    lines = [
        Said((UserText("u"),)),
        AssistantReply(tool_calls=(CALL,)),
        Said((ToolMessage(CallId("a"), "1"),)),
        AssistantReply(content="late"),
    ]
    file.append([*map(msgspec.json.encode, lines), b"", msgspec.json.encode(LEARNED)])
    file.close()
    saved = read_conversation(path)
    assert (saved.header, saved.learned) == (HEADER, LEARNED)
    assert saved.history.entries == lines[:3]
    assert saved.history.unread is None, "the reply that was dropped"
    assert saved.size == path.stat().st_size
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("reply_is_entry", [True, False])
def test_a_history_that_was_summarised_after_a_reply_is_read_as_it_was(
    tmp_path: Path, reply_is_entry: bool
) -> None:
    lines: list[bytes] = []
    history = History(Ledger())
    ledger = history.ledger
    assert ledger is not None
    ledger.save = lines.append
    history.say((UserText("first"),))
    history.keep(AssistantReply(content="answer"))
    if reply_is_entry:
        history.close(None)
    history.change(Summarised((UserText("summary"),)))
    history.say((UserText("second"),))
    path = tmp_path / "talk.jsonl"
    file = ConversationFile(path)
    file.begin(HEADER, [line or msgspec.json.encode(Dropped()) for line in lines])
    file.close()
    read = read_conversation(path).history
    assert read.entries == history.entries
    assert read.ledger is not None
    assert (read.ledger.length, read.ledger.digest) == (ledger.length, ledger.digest)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_writes_nothing_and_holds_no_lock(tmp_path: Path) -> None:
    file = ConversationFile(tmp_path / "talk.jsonl")
    file.begin(HEADER)
    (told, tell), (over, end) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(end)
        try:
            file.append([msgspec.json.encode(Said((UserText("u"),)))])
        except ConversationError as error:
            os.write(tell, str(error).encode())
        os.close(tell)
        os.read(over, 1)  # until the parent is done
        os._exit(0)
    os.close(tell)
    said = os.read(told, 1000).decode()
    file.close()
    ConversationFile(tmp_path / "talk.jsonl").close()  # raises no error that it is in use
    os.close(end)
    os.waitpid(child, 0)
    os.close(told)
    os.close(over)
    assert "can be written by the process that opened it only, not by a fork" in said
    assert read_conversation(tmp_path / "talk.jsonl").history.entries == []


def test_a_schema_that_was_asked_for_beside_tools_is_read_as_such(tmp_path: Path) -> None:
    said = Said((UserText("u"),), AnswerSchema("number", {"type": "integer"}), beside_tools=True)
    assert read_conversation(written(tmp_path / "talk.jsonl", HEADER, said)).history.entries == [said]


def test_entries_that_were_counted_before_are_not_counted_again(tmp_path: Path) -> None:
    header = msgspec.structs.replace(HEADER, entries=1, length=7, digest="d", call_ids=(CallId("old"),))
    path = written(tmp_path / "t", header, Said((UserText("u"),)), Said((UserText("v"),)), Rewritten(0, 1))
    history = read_conversation(path).history
    assert history.ledger is not None
    assert (history.ledger.length, len(history.entries), history.call_ids) == (9, 1, {"old"})


@pytest.mark.slow
def test_a_conversation_with_many_recorded_turns_is_read_in_linear_time() -> None:
    def text(turns: int) -> bytes:
        lines = (HEADER, *(TurnRecorded(turn, "t") for turn in range(turns)))
        return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)

    assert_linear(lambda text: read_conversation(Path("the text"), text), 16_000, text)


def test_a_last_line_that_is_cut_short_is_left_out_and_then_taken_away(tmp_path: Path) -> None:
    path = written(tmp_path / "t", HEADER, Said((UserText("u"),)), end=b'\n{"type":"sa')
    saved = read_conversation(path)
    assert len(saved.history.entries) == 1
    file = ConversationFile(path)
    file.cut_half_line()
    file.append([msgspec.json.encode(Said((UserText("v"),)))])
    file.close()
    assert len(read_conversation(path).history.entries) == 2


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, r"Cannot read the conversation file .*: No such file or directory\."),
    "a folder": (lambda path: path.mkdir(), r"Cannot read the conversation file .*: Is a directory\."),
    "empty": (lambda path: path.write_bytes(b""), "is not a saved conversation"),
    "something else": (lambda path: path.write_bytes(b"[project]\nx = 1\n"), "line 1 is damaged"),
    "no header": (lambda path: written(path, LEARNED), "is not a saved conversation"),
    "of a later version": (
        lambda path: written(path, msgspec.structs.replace(HEADER, format=FORMAT + 1)),
        rf"has conversation format {FORMAT + 1}; this version reads up to {FORMAT}\. Upgrade grue\.",
    ),
    "garbled": (
        lambda path: written(path, HEADER, end=b"\n\xff\n{}\n"),
        "line 2 is damaged .*The lines before it are whole",
    ),
    "of a kind that no terminal should print": (
        lambda path: path.write_bytes(b'{"type":"' + b"\x7f" * 100_000 + b'"}\n'),
        r"line 1 is damaged \(Invalid value '(\\u007f){400,500}…\)\.$",
    ),
    "answers no call": (
        lambda path: written(path, HEADER, LEARNED, Said((ToolMessage(CallId("x"), "1"),))),
        r"line 3 is damaged \(no call of the last reply has the id x\)",
    ),
    "replaces what is not there": (lambda path: written(path, HEADER, Rewritten(0, 2)), "line 2 is damaged"),
    "two in one": (lambda path: written(path, HEADER, HEADER), r"line 2 is damaged \(it is a second"),
}  # fmt: skip


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_file_is_refused_by_its_name_and_line(tmp_path: Path, how: str) -> None:
    path = tmp_path / "talk.jsonl"
    damage, why = DAMAGED[how]
    damage(path)
    with pytest.raises(ConversationError, match=why) as caught:
        read_conversation(path)
    assert caught.value.path == str(path)
    assert str(path) in str(caught.value)


def test_dropping_what_is_not_there_does_no_harm(tmp_path: Path) -> None:
    path = written(tmp_path / "t", HEADER, Dropped(), Said((UserText("u"),)))
    assert len(read_conversation(path).history.entries) == 1


def test_a_file_belongs_to_one_conversation_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    file = ConversationFile(path)
    with pytest.raises(ConversationError, match="is in use"):
        ConversationFile(path)
    file.begin(HEADER)
    file.close()
    again = ConversationFile(path)
    with pytest.raises(ConversationError, match=r"is not empty\. Continue what it holds with"):
        again.begin(HEADER)
    again.close()
    with pytest.raises(ConversationError, match="Cannot write the conversation file"):
        ConversationFile(tmp_path / "none" / "talk.jsonl")


def test_a_pipe_is_refused_because_writing_to_it_would_block(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "talk.jsonl")
    with pytest.raises(ConversationError, match="it is a pipe or a device, not a regular file"):
        ConversationFile(path)


def test_what_cannot_be_written_any_more_is_said_to_be_in_memory_only(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    file = ConversationFile(path)
    file.begin(HEADER)
    path.unlink()
    with pytest.raises(ConversationError, match=r"was deleted.* save the conversation to another file"):
        file.append([b"{}"])
    file.close()
