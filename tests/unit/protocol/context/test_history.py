"""What a conversation keeps of its turns, as entries, and the digest of them."""

import hashlib

import msgspec
import pytest

from grue.messages import (
    AnswerSchema,
    AssistantReply,
    Attachment,
    CallId,
    ConversationId,
    NoAnswer,
    Rewritten,
    RunTurn,
    Said,
    Shortened,
    Summarised,
    SystemText,
    ToolCall,
    ToolMessage,
    TurnCompleted,
    TurnFailed,
    UserText,
)
from grue.protocol.context.history import LEFT_OUT, History, Ledger, history_of, items_of, take_step

DONE = TurnCompleted(turn=1, kind="answered")
FAILED = TurnFailed(turn=1, failure=NoAnswer(reason="none"))
ASKED = AnswerSchema("a", {"type": "object"})


def reply(*ids: str, content: str | None = None) -> AssistantReply:
    calls = tuple(ToolCall(call_id=CallId(call_id), name="a.look", arguments="{}") for call_id in ids)
    return AssistantReply(content=content, tool_calls=calls)


def result(call_id: str, content: str = "1") -> ToolMessage:
    return ToolMessage(CallId(call_id), content)


def answers(history: History) -> dict[str, str]:
    return {item.call_id: item.content for item in items_of(history.entries) if isinstance(item, ToolMessage)}


def test_a_reply_becomes_an_entry_with_the_answers_to_its_calls() -> None:
    history = History()
    history.say((SystemText("s"), UserText("u")))
    history.keep(reply("a", "b"))
    assert history.say((result("b"),)) == (reply("b"), Said((result("b"),)))
    assert history.call_ids == {"a", "b"}


def test_an_answer_to_no_call_is_refused_and_changes_nothing() -> None:
    history = History(Ledger())
    history.keep(reply("a"))
    with pytest.raises(ValueError, match="no call of the last reply has the id x"):
        history.say((result("x"),))
    assert (history.entries, history.unread) == ([], reply("a"))


def test_a_schema_is_an_entry_once_until_another_is_asked_for() -> None:
    history, other = History(), AnswerSchema("b", {})
    for answer in (ASKED, ASKED, None, other, ASKED):
        history.say((), answer)
    assert history.entries == [Said((), ASKED), Said((), other), Said((), ASKED)]
    history.rewrite(Rewritten(1, 3))
    assert history.asked == ASKED
    history.rewrite(Rewritten(0, 1))
    assert history.asked is None


def test_the_end_of_a_turn_answers_what_is_unanswered() -> None:
    history = History()
    history.keep(reply("a", "b"))
    history.close(msgspec.structs.replace(FAILED, untold=(result("a"),)))
    assert answers(history) == {"a": "1", "b": '{"error":"not called: the turn ended before","content":null}'}
    history.keep(reply("c"))
    history.close(None)
    assert answers(history)["c"] == '{"error":"interrupted; it may have taken effect","content":null}'
    assert history.close(None) == ()


def test_a_reply_that_the_turn_did_not_read_is_not_kept() -> None:
    history = History()
    history.keep(reply(content="late"))
    assert history.close(msgspec.structs.replace(FAILED, unread=True)) == ()
    assert history.close(msgspec.structs.replace(FAILED, unread=True)) == ()
    assert history.entries == []


def test_the_ledger_counts_and_digests_the_lines() -> None:
    saved: list[bytes] = []
    ledger = Ledger(saved.append)
    history = History(ledger)
    history.say((UserText("u"),))
    history.keep(reply("a"))
    assert len(saved) == 2, "a reply is saved before its calls are made"
    history.say((result("a"),))
    history.keep(reply(content="done"))
    assert ledger.length == 3
    history.close(DONE)
    assert ledger.length == len(saved) == 4
    digest = ""
    for line in saved:
        digest = hashlib.sha256(digest.encode() + line).hexdigest()
    assert ledger.digest == digest
    assert ledger.reference(ConversationId("c")).length == 4
    history.keep(reply(content="late"))
    history.close(msgspec.structs.replace(FAILED, unread=True))
    assert (ledger.length, saved[-1]) == (4, b"")


def test_a_branch_goes_its_own_way() -> None:
    saved: list[bytes] = []
    one = History(Ledger(saved.append))
    one.say((UserText("u"),), ASKED)
    other = one.branch()
    assert one.ledger is not None
    assert other.ledger is not None
    assert other.ledger.digest == one.ledger.digest
    other.say((UserText("v"),), ASKED)
    assert (len(one.entries), len(other.entries), len(saved)) == (1, 2, 1)
    one.say((UserText("v"),), ASKED)
    assert other.ledger.digest == one.ledger.digest
    plain = History()
    assert plain.branch().ledger is None


def test_entries_are_replaced_by_others() -> None:
    history = History(Ledger())
    for text in "abc":
        history.say((UserText(text),))
    history.rewrite(Rewritten(0, 2, (Said((UserText("ab"),)),)))
    assert [item.text for item in items_of(history.entries)] == ["ab", "c"]  # type: ignore[union-attr]  # all are
    assert history.ledger is not None
    assert history.ledger.length == 4
    with pytest.raises(ValueError, match="entries 1 to 3 of 2 cannot be replaced"):
        history.rewrite(Rewritten(1, 3))


def test_plain_data_is_grouped_by_its_replies() -> None:
    items = (UserText("u"), reply("a", "b"), result("a"), UserText("and?"), reply(content="yes"))
    history = history_of("s", items, Ledger())
    assert history.entries == [
        Said((SystemText("s"), UserText("u"))),
        reply("a"),
        Said((result("a"), UserText("and?"))),
        reply(content="yes"),
    ]
    assert items_of(history.entries) == (SystemText("s"), *(items[0], reply("a"), *items[2:]))
    with pytest.raises(ValueError, match="no call"):
        history_of("s", (result("a"),), Ledger())


def test_a_history_is_restored_from_entries_that_are_counted_already() -> None:
    history = History(Ledger())
    for entry in (Said((UserText("u"),), ASKED), reply("a"), Said((result("a"),)), reply(content="yes")):
        history.restore(entry)
    assert (history.asked, history.call_ids, history.replies) == (ASKED, {"a"}, 2)
    assert history.ledger is not None
    assert history.ledger.length == 0


@pytest.mark.parametrize("plain", [False, True])
def test_calls_without_an_answer_are_told_as_their_turn_tells_results(plain: bool) -> None:
    """As JSON in an old trace, whose digests count that text."""
    history = History()
    take_step(history, RunTurn(turn=1, system="s", user="u", plain_results=plain))
    history.say((UserText("u"),))
    history.keep(reply("1"))
    history.close(None)
    reason = "interrupted; it may have taken effect"
    assert answers(history) == {
        "1": f"Error: {reason}" if plain else f'{{"error":"{reason}","content":null}}'
    }


def test_a_shortened_history_begins_with_a_line_in_place_of_its_oldest_exchanges() -> None:
    history = History()
    history.restore(Said((SystemText("rules"), UserText("one"))))
    for number in range(4):
        history.restore(reply(content=f"answer {number}"))
        history.restore(Said((UserText(f"question {number}"),)))
    history.change(Shortened(0.5))
    first, left_out, *rest = history.entries
    assert isinstance(first, Said)
    assert isinstance(left_out, Said)
    assert left_out.items == (UserText(LEFT_OUT),)
    assert 1 <= len(rest) < 8
    assert rest[-1] == Said((UserText("question 3"),))


def test_a_history_of_one_exchange_is_not_shortened() -> None:
    history = History()
    history.restore(Said((UserText("one"),)))
    history.change(Shortened(0.0))
    assert history.entries == [Said((UserText("one"),))]


def test_a_history_can_be_summarised() -> None:
    history = History()
    history.restore(Said((SystemText("rules"), UserText("one"))))
    history.restore(reply(content="answer"))
    history.change(Summarised((UserText("It was long."),)))
    assert "It was long." in str(history.entries)


def test_a_history_knows_that_it_has_attachments_however_they_came_in() -> None:
    image = Attachment(kind="image", mime="image/png", data="iVBORw0KGgo=", bytes=8)
    shown = Said((UserText("Look.", attachments=(image,)),))
    asked, restored, rewritten = History(), History(), History()
    for history in (asked, restored, rewritten):
        history.say((SystemText("rules"), UserText("Hello.")))
        assert not history.attached
    asked.say(shown.items)
    restored.restore(shown)
    rewritten.rewrite(Rewritten(0, 1, (shown,)))
    assert asked.attached
    assert restored.attached
    assert rewritten.attached
    assert rewritten.branch().attached
