"""What is cleared, summarised and cut: each rule of a `ContextPolicy`."""

import json

import pytest
from msgspec.structs import replace
from turns import tool

from grue.messages import Attachment, Cleared, ToolMessage, UserText
from grue.policies import ContextItem, ContextPolicy, ToolAnnotations
from grue.protocol.context.fit import (
    CALL_AGAIN,
    DO_NOT_REPEAT,
    ContextLedger,
    Room,
    clear,
    cut,
    cut_last,
    fit,
    room_in,
    stub_of,
)

ROOM = Room(high=9000, low=6000)
STUB = "[gone]"
"""A stub of 8 + 3 tokens where a token has two bytes."""


def result(number: int, tokens: int) -> ContextItem:
    return ContextItem(tokens=tokens, counted=True, call_id=f"c{number}", tool="a.look")


def ledger(*items: ContextItem, current: int | None = None) -> ContextLedger:
    return ContextLedger(
        bytes_per_token=2.0,
        head=ContextItem(tokens=100, counted=True),
        items=items,
        current=len(items) if current is None else current,
    )


def cleared(*numbers: int, texts: int = 0) -> Cleared:
    return Cleared(results=tuple(ToolMessage(f"c{number}", STUB) for number in numbers), texts=texts)


def fitted(kept: ContextLedger, *new: object, may_summarise: bool = False) -> object:
    return fit(kept, new, ROOM, lambda _: STUB, {}, may_summarise=may_summarise)


def test_the_room_leaves_the_reply_its_part_but_at_most_half_of_the_window() -> None:
    policy = ContextPolicy(reply_tokens=2000, high_water=0.9, low_water=0.5)
    assert room_in(policy, 12_000) == Room(high=9000, low=5000)
    assert room_in(policy, 3000) == Room(high=1350, low=750)


def test_nothing_changes_up_to_the_high_water_mark() -> None:
    kept = ledger(result(1, 5000), result(2, 3000))
    new = (UserText("x" * 1784),)
    assert kept.tokens + kept.item_of(new[0], {}).tokens == ROOM.high
    assert fitted(kept, *new).cleared is None
    assert fitted(kept, UserText("x" * 1786)).cleared is not None


def test_the_oldest_results_go_first_down_to_the_low_water_mark() -> None:
    kept = ledger(*(result(number, 1000) for number in range(1, 11)))
    found = fitted(kept)
    assert found.cleared == cleared(1, 2, 3, 4, 5), "100 + 10 x 1000 tokens, of which 989 go each time"
    assert found.ledger.tokens == 100 + 5 * 11 + 5 * 1000 <= ROOM.low
    assert found.ledger.tokens + 989 > ROOM.low, "no more than necessary"


def test_the_last_reply_and_its_results_are_never_cleared() -> None:
    kept = ledger(result(1, 3000), ContextItem(tokens=20), result(2, 9000), current=1)
    assert fitted(kept).cleared == cleared(1)


def test_a_result_that_is_no_longer_than_its_stub_stays() -> None:
    kept = ledger(result(1, 11 + 15), result(2, 11 + 16), result(3, 9500))
    assert clear(kept, 0, lambda _: STUB)[1] == cleared(2, 3)


def test_texts_of_the_host_are_cleared_in_their_turn_and_counted() -> None:
    text = ContextItem(tokens=2000, stub=STUB)
    kept = ledger(text, result(1, 2000), text, text, result(2, 2000), ContextItem(tokens=500))
    _, change = clear(kept, 4700, lambda _: STUB)
    assert change == cleared(1, texts=2)
    assert clear(ledger(ContextItem(tokens=9000)), 0, lambda _: STUB) == (
        ledger(ContextItem(tokens=9000)),
        None,
    )


def test_a_summary_is_needed_only_if_everything_is_cleared_and_it_still_is_too_much() -> None:
    plain = ContextItem(tokens=6500, counted=True)
    kept = ledger(result(1, 3000), plain, ContextItem(tokens=50), current=2)
    found = fitted(kept, may_summarise=True)
    assert (found.summarise, found.cleared) == (True, cleared(1))
    assert not fitted(kept).summarise
    assert not fitted(ledger(result(1, 9500)), may_summarise=True).summarise, "clearing was enough"
    assert not fitted(ledger(plain), may_summarise=True).summarise, "there was room"


def test_no_summary_is_asked_for_that_could_free_next_to_nothing() -> None:
    """The last reply's results are too much, and no summary replaces those."""
    kept = ledger(ContextItem(tokens=600), ContextItem(tokens=9000), current=1)
    assert not fitted(kept, may_summarise=True).summarise
    assert fitted(ledger(ContextItem(tokens=601), *kept.items[1:], current=1), may_summarise=True).summarise


def test_results_that_do_not_fit_are_cut_in_the_middle_the_largest_first() -> None:
    small, large = ToolMessage("c1", json.dumps("s" * 2000)), ToolMessage("c2", json.dumps("l" * 40_000))
    text = UserText("x" * 100)
    found = fitted(ledger(result(9, 500)), small, large, text)
    assert found.new[0] is small
    assert found.new[2] is text
    shown = json.loads(found.new[1].content)["content"]
    assert shown.startswith("lll")
    assert shown.endswith("lll")
    assert " of 40000 characters] …" in shown
    total = found.ledger.tokens + sum(found.ledger.item_of(item, {}).tokens for item in found.new)
    assert ROOM.high - 100 <= total <= ROOM.high + 40, "as much of it as there is room for"


def test_two_results_that_are_too_large_get_equal_shares() -> None:
    one, two = ToolMessage("c1", json.dumps("a" * 40_000)), ToolMessage("c2", json.dumps("b" * 30_000))
    first, second = cut(ledger(), (one, two), 4000, {})
    assert abs(len(first.content) - len(second.content)) < 20
    assert 7000 < len(first.content) + len(second.content) < 8200


def test_a_result_keeps_a_beginning_and_an_end_however_little_room_there_is() -> None:
    (shown,) = cut(ledger(), (ToolMessage("c1", json.dumps("a" * 40_000)),), -5000, {})
    assert "aaa" in shown.content
    assert len(shown.content) < 400


PICTURE = Attachment(kind="image", mime="image/png", data="AAAA", bytes=3)


def test_a_result_without_room_for_its_image_says_so_and_keeps_its_text() -> None:
    pictured = ToolMessage("c1", "The cellar at night.", attachments=(PICTURE,))
    told = ToolMessage("c1", "The cellar at night.\n[image/png, 3 bytes: not shown: there is no room for it]")
    long = ToolMessage("c2", "x" * 20_000)
    assert cut(ledger(), (pictured, long), 1000, {})[0] == told
    kept = ledger(ContextItem(tokens=900), result(1, 1700), result(2, 10_000), current=1)
    assert cut_last(kept, (pictured, long), 2000)[1][0] == told


def test_a_result_that_was_cut_before_says_how_long_it_was() -> None:
    (shown,) = cut(ledger(), (ToolMessage("c1", "x" * 20_000, whole_chars=90_000),), 1000, {})
    assert (len(shown.content) < 3000, shown.whole_chars) == (True, 90_000)


def test_results_that_were_said_already_are_cut_too() -> None:
    told = ToolMessage("c2", json.dumps("b" * 20_000))
    small = ToolMessage("c3", json.dumps("b" * 20))
    kept = ledger(ContextItem(tokens=900), result(2, 10_000), result(3, 20), current=1)
    following, shorter = cut_last(kept, (told, small), 6000)
    assert [each.call_id for each in shorter] == ["c2"]
    assert following.tokens <= 6000
    assert len(shorter[0].content) < 2 * 5000 + 60
    assert cut_last(kept, (told, small), 20_000) == (kept, ())


READ_ONLY = replace(tool("a.look"), annotations=ToolAnnotations(read_only=True))


@pytest.mark.parametrize(
    ("patterns", "definition", "stub"),
    [
        ((), tool("a.look"), DO_NOT_REPEAT),
        ((), READ_ONLY, DO_NOT_REPEAT),
        ((), replace(READ_ONLY, trusted=True), CALL_AGAIN),
        ((), replace(READ_ONLY, trusted=True, annotations=None), DO_NOT_REPEAT),
        (("b.*", "a.l*"), tool("a.look"), CALL_AGAIN),
        (("A.*",), tool("a.look"), DO_NOT_REPEAT),
        (("a.*",), None, CALL_AGAIN),
        ((), None, DO_NOT_REPEAT),
    ],
    ids=["unknown", "untrusted", "trusted", "says nothing", "pattern", "case", "gone, pattern", "gone"],
)
def test_only_a_tool_that_is_known_to_be_read_only_may_be_called_again(patterns, definition, stub) -> None:
    offered = {} if definition is None else {"a.look": definition}
    text = stub_of("a.look", ContextPolicy(read_only=patterns), offered)
    assert json.loads(text) == {"content": stub}
