"""How a history is made shorter for a `ContextPolicy`, and what its file keeps of that."""

import msgspec
from turns import call

from grue.messages import (
    AssistantReply,
    Cleared,
    HistoryEntry,
    Rewritten,
    Said,
    Summarised,
    SystemText,
    ToolMessage,
    UserText,
)
from grue.protocol.context.history import History, Ledger

OPENING = (SystemText("Play."), UserText("Go.", stub="[gone]"))


def told(*numbers: int) -> tuple[ToolMessage, ...]:
    return tuple(ToolMessage(f"c{number}", f"result {number}") for number in numbers)


def asked(*numbers: int) -> AssistantReply:
    return AssistantReply(tool_calls=tuple(call(number) for number in numbers))


def history(ledger: Ledger | None = None) -> History:
    """A conversation with three replies, the last of which has no answers yet."""
    kept = History(ledger)
    kept.say(OPENING)
    kept.keep(asked(1, 2))
    kept.say(told(1, 2))
    kept.keep(asked(3))
    kept.say((*told(3), UserText("Old news.", stub="[old]"), UserText("Newer.", stub="[old]")))
    kept.keep(asked(4))
    return kept


def test_results_are_replaced_where_they_stand() -> None:
    kept = history()
    stubs = (ToolMessage("c2", "stub"), ToolMessage("c3", "stub"))
    kept.change(Cleared(results=stubs))
    assert kept.entries[2] == Said((told(1)[0], stubs[0]))
    assert kept.entries[4].items[0] == stubs[1]
    assert [type(entry) for entry in kept.entries] == [Said, AssistantReply, Said, AssistantReply, Said]


def test_the_oldest_texts_with_a_stub_are_replaced_but_not_those_of_the_first_entry() -> None:
    kept = history()
    kept.change(Cleared(texts=1))
    assert kept.entries[0] == Said(OPENING)
    assert [item.text for item in kept.entries[4].items[1:]] == ["[old]", "Newer."]
    kept.change(Cleared(texts=1))
    assert [item.text for item in kept.entries[4].items[1:]] == ["[old]", "[old]"]


def test_results_that_are_not_there_change_nothing() -> None:
    kept = history(Ledger())
    before = kept.ledger.length
    kept.change(Cleared(results=(ToolMessage("c99", "stub"),)))
    assert kept.ledger.length == before


def test_a_summary_takes_the_place_of_everything_but_the_first_entry_and_the_unread_reply() -> None:
    kept = history()
    kept.change(Summarised((UserText("All is well."),)))
    assert kept.entries == [Said(OPENING), Said((UserText("All is well."),))]
    kept.say(told(4))
    assert kept.entries[2:] == [asked(4), Said(told(4))]


def test_the_file_keeps_the_order_of_the_entries_though_a_reply_was_saved_early() -> None:
    lines: list[bytes] = []
    ledger = Ledger(lines.append)
    kept = history(ledger)
    early = lines[-1]
    kept.change(Cleared(results=(ToolMessage("c1", "stub"),)))
    assert lines[-3] == b"", "the reply that was saved early is taken back"
    assert lines[-1] == early, "and saved again after the change"
    rewritten = msgspec.json.decode(lines[-2], type=HistoryEntry)
    assert rewritten == Rewritten(2, 3, (Said((ToolMessage("c1", "stub"), told(2)[0])),))
    kept.say(told(4))
    # Read as a reader of the file does: an empty line takes back the reply before it.
    kept_lines: list[bytes] = []
    for line in lines:
        kept_lines = [*kept_lines, line] if line else kept_lines[:-1]
    again = Ledger()
    for line in kept_lines:
        again.add(msgspec.json.decode(line, type=HistoryEntry))
    assert again.digest == ledger.digest


def test_a_change_is_made_by_its_kind() -> None:
    kept, other = history(), history()
    kept.change(Cleared(texts=1))
    other.change(Cleared(texts=1))
    assert kept.entries == other.entries
    kept.change(Summarised((UserText("All is well."),)))
    assert len(kept.entries) == 2
