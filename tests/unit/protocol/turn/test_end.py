"""What the end of a turn leaves to its conversation: an answer to every tool call of its last reply."""

import json
from typing import Any

import pytest
from msgspec.structs import replace
from turns import DEADLINE, INTERRUPT, Walk, calls, closed, died, opened, returned, run, text

from grue.messages import (
    Attachment,
    HistoryReference,
    RequestCompletion,
    RunTurn,
    SystemText,
    TurnCompleted,
    TurnFailed,
    UserText,
)

PAST = HistoryReference(conversation="talk", length=4, digest="d")


def in_talk(*servers: str, **how: Any) -> RunTurn:
    return replace(run(*servers, **how), history=PAST)


def untold(walk: Walk) -> dict[str, str]:
    assert isinstance(walk.end, TurnFailed | TurnCompleted)
    return {item.call_id: str(json.loads(item.content).get("error", "")) for item in walk.end.untold}


def test_a_turn_of_a_conversation_says_only_what_is_new() -> None:
    (request,) = Walk(in_talk()).of(RequestCompletion)
    assert (request.conversation, request.new) == ("talk", (UserText("You are in a house."),))


def test_the_first_turn_of_a_conversation_brings_the_system_text() -> None:
    (request,) = Walk(replace(run(), history=replace(PAST, length=0))).of(RequestCompletion)
    assert request.new == (SystemText("You play."), UserText("You are in a house."))


def test_the_images_of_the_user_count_with_those_of_the_tools() -> None:
    image = Attachment(kind="image", mime="image/png", data="AAAA", bytes=3)
    walk = Walk(replace(run(), images=(image,)))
    assert walk.of(RequestCompletion)[0].new[1] == UserText("You are in a house.", attachments=(image,))
    assert walk.state.turn.media_bytes == 3  # type: ignore[union-attr]  # it waits for the completion


@pytest.mark.parametrize("event", [DEADLINE, INTERRUPT])
def test_an_abandoned_batch_answers_every_call_of_its_reply(event: Any) -> None:
    walk = Walk(in_talk("a", "b"), opened("a"), opened("b"), calls("a.look", "a.think", "b.look"))
    walk.send(returned(1), event, closed("a"), closed("b"))
    assert untold(walk) == {
        "c1": "",
        "c2": "interrupted; it may have taken effect",
        "c3": "not called: the turn ended before",
    }
    assert not walk.end.unread


def test_results_that_a_lost_server_left_untold_are_kept() -> None:
    walk = Walk(in_talk("a", after_death="reconnect"), opened("a"), calls("a.look", "a.think"))
    walk.send(returned(1), died(2), INTERRUPT, closed("a"))
    assert list(untold(walk)) == ["c1", "c2"]


def test_calls_that_come_too_late_for_a_repair_are_answered() -> None:
    walk = Walk(in_talk(), text(""), calls("a.look"))
    assert isinstance(walk.end, TurnCompleted)
    assert "Skipped" in untold(walk)["c1"]


def test_a_reply_that_arrives_after_the_turn_was_abandoned_is_not_read() -> None:
    assert Walk(in_talk(), INTERRUPT).end.unread
    assert not Walk(in_talk("a"), opened("a"), text("north"), INTERRUPT, closed("a")).end.unread


def test_a_turn_without_a_conversation_leaves_nothing() -> None:
    walk = Walk(run("a"), opened("a"), calls("a.look"), INTERRUPT, closed("a"))
    assert walk.end.untold == ()
    assert not Walk(run(), INTERRUPT).end.unread
