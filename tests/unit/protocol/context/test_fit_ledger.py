"""The ledger: estimates, the endpoint's counts that correct them, and what is merged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from turns import call, tool

from grue.messages import (
    AssistantReply,
    AssistantText,
    Attachment,
    Said,
    SystemText,
    ToolMessage,
    UserText,
)
from grue.policies import ContextItem
from grue.protocol.context.fit import ContextLedger, sizes_of

NEW = ContextLedger(bytes_per_token=4.0)
TEXT = "x" * 4000
"""A text of 1000 tokens, and 8 for its frame."""


def begun(*results: str) -> ContextLedger:
    """A conversation with one reply per result."""
    ledger = NEW.say((SystemText("Play."), UserText("Go.")), {})
    for number, result in enumerate(results, start=1):
        ledger = ledger.reply(None, (call(number),), 20)
        ledger = ledger.say((ToolMessage(f"c{number}", result),), {f"c{number}": "a.think"})
    return ledger


def test_a_text_is_estimated_by_its_bytes() -> None:
    assert NEW.item_of(UserText(TEXT), {}).tokens == 1008
    assert NEW.item_of(SystemText("é" * 2000), {}).tokens == 1008, "bytes count, not characters"
    assert NEW.item_of(AssistantText(TEXT), {}).tokens == 1008
    assert replace(NEW, bytes_per_token=2.0).item_of(UserText(TEXT), {}).tokens == 2008


@pytest.mark.parametrize(("kind", "tokens"), [("image", 1600), ("audio", 200), ("file", 2500)])
def test_attachments_are_estimated_by_their_kind(kind: str, tokens: int) -> None:
    attached = (Attachment(kind=kind, mime="x/y", data="", bytes=100_000),)
    assert NEW.item_of(ToolMessage("c1", "", attached), {}).tokens == 8 + tokens
    assert NEW.item_of(UserText("", attachments=attached), {}).tokens == 8 + tokens


def test_the_first_texts_are_the_head_and_everything_after_the_last_reply_is_current() -> None:
    ledger = begun(TEXT, TEXT)
    assert ledger.head.tokens == 8 + 1 + 8 + 0
    assert [item.call_id for item in ledger.items] == ["", "c1", "", "c2"]
    assert ledger.items[1].tool == "a.think"
    assert ledger.current == 2
    assert ledger.tokens == ledger.head.tokens + 2 * (20 + 1008)


def test_a_reply_without_a_count_is_estimated() -> None:
    assert NEW.reply("x" * 400, (call(1),), 0).tokens == 8 + (400 + 9) // 4
    assert NEW.reply("x" * 400, (), -3).tokens == 108


def test_tools_are_estimated_when_they_are_offered() -> None:
    ledger = NEW.offer([tool("a.think"), tool("a.look")])
    assert ledger.tools == ContextItem(tokens=8 + 24 // 4 + 8 + 23 // 4)
    assert ledger.offer([]).tokens == 0


def test_a_count_corrects_what_was_not_counted_before() -> None:
    ledger = begun(TEXT).counted(2 * begun(TEXT).tokens)
    assert ledger.tokens == pytest.approx(2 * begun(TEXT).tokens, abs=2)
    assert all(item.counted for item in (ledger.head, ledger.tools, *ledger.items))
    grown = ledger.say((UserText("x" * 4000),), {})
    counted = grown.counted(ledger.tokens + 500)
    assert counted.items[:-1] == ledger.items, "what is known stays"
    assert counted.items[-1].tokens == 500


@pytest.mark.parametrize("count", [0, -5])
def test_no_count_changes_nothing(count: int) -> None:
    assert begun(TEXT).counted(count) == begun(TEXT)


@pytest.mark.parametrize("prompt", [10, 100_000])
def test_a_count_that_cannot_be_of_the_new_parts_alone_is_spread_over_all(prompt: int) -> None:
    ledger = begun(TEXT).counted(1100).say((UserText("hi"),), {}).counted(prompt)
    assert ledger.tokens == pytest.approx(prompt, abs=3)


def test_more_tokens_than_expected_correct_the_estimate_at_once_and_fewer_by_half() -> None:
    expected = begun(TEXT).tokens
    assert begun(TEXT).counted(2 * expected).bytes_per_token == pytest.approx(2.0, rel=0.01)
    assert begun(TEXT).counted(expected // 2).bytes_per_token == pytest.approx(6.0, rel=0.01)
    assert begun(TEXT).counted(8 * expected).bytes_per_token == pytest.approx(0.5, rel=0.01)
    assert begun("short").counted(40).bytes_per_token == 4.0, "a few short messages teach nothing"


def test_parts_that_stay_are_merged_once_they_are_counted() -> None:
    ledger = begun("ok", "ok", TEXT, TEXT)
    ledger = ledger.reply(None, (), 20).counted(ledger.tokens + 20)
    assert [item.call_id for item in ledger.items] == ["", "c3", "", "c4", ""]
    assert ledger.current == 4
    assert ledger.tokens == pytest.approx(begun("ok", "ok", TEXT, TEXT).tokens + 20, abs=3)


def test_the_last_reply_is_not_merged() -> None:
    ledger = begun("ok").reply("a", (), 10).reply("b", (), 10)
    counted = ledger.counted(ledger.tokens)
    assert len(counted.items) == counted.current + 1


@given(st.lists(st.integers(1, 50_000), min_size=1, max_size=8), st.lists(st.integers(1, 10**6), min_size=8))
def test_after_each_count_the_sum_is_what_the_endpoint_says(sizes: list[int], counts: list[int]) -> None:
    ledger = NEW.say((SystemText("Play."), UserText("Go.")), {})
    for size, count in zip(sizes, counts, strict=False):
        ledger = ledger.reply(None, (call(1),), 20).say((ToolMessage("c1", "x" * size),), {})
        ledger = ledger.counted(count)
        assert ledger.tokens == pytest.approx(count, rel=0.05, abs=len(ledger.items) + 2)
        assert ledger.current <= len(ledger.items)


def test_a_size_is_only_scaled_up_to_what_it_must_be_at_least() -> None:
    ledger = begun(TEXT)
    assert ledger.scaled_to(10) == ledger
    assert ledger.scaled_to(5000).tokens == pytest.approx(5000, abs=3)


def test_an_earlier_history_has_its_head_its_results_and_its_texts_that_may_be_cleared() -> None:
    entries = (
        Said((SystemText("Play."), UserText("Go.", stub="[gone]"))),
        AssistantReply(tool_calls=(call(1),)),
        Said((ToolMessage("c1", TEXT),)),
        AssistantReply(content="done", tool_calls=(call(2),)),
        Said((ToolMessage("c2", "ok"),)),
        Said((UserText(TEXT, stub="[old]"), UserText("[old]", stub="[old]"))),
    )
    head, *items = sizes_of(entries, 4.0)
    assert (head.tokens, head.clearable) == (17 + 0, False)
    assert [(item.call_id, item.tool, item.stub) for item in items] == [
        ("", "", ""),
        ("c1", "a.think", ""),
        ("", "", ""),
        ("", "", "[old]"),
        ("", "", ""),
    ]
    assert items[1].tokens == items[3].tokens == 1008
    assert sizes_of((), 4.0) == ()
