"""The Zork host's answer (R15, P2, P46, P47)."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grue.answers import AnswerCheck
from grue.games.commands import sanitise_command
from grue.hosts.zork.response import FALLBACK_ACTION, answer_spec
from grue.messages import AnswerAccepted, AnswerRefused


def check(text: str) -> AnswerAccepted | AnswerRefused:
    return AnswerCheck(answer_spec())(text)


def answer(**fields: object) -> str:
    return json.dumps({"thinking": "because", "action": "take lamp", "new_objective": None} | fields)


@pytest.mark.parametrize(
    "text",
    [
        answer(),
        f"```json\n{answer()}\n```",
        f"Let me think. {{braces}} first.\n\nMy answer: {answer()} Good luck!",
        '{"thinking": "because", "action": "take lamp"}',
        f'{{"thinking": "a draft", "action": "save"}}\n{answer()}',
    ],
    ids=["plain", "fenced", "prose", "without the optional field", "two objects"],
)
def test_p46_p47_json_alone_fenced_or_in_prose_is_validated(text: str) -> None:
    verdict = check(text)
    assert verdict == AnswerAccepted(
        answer={"thinking": "because", "action": "take lamp", "new_objective": None}
    )


def test_the_action_is_sanitised_before_it_is_accepted() -> None:
    verdict = check(answer(action="> **Take lamp**. then north"))
    assert isinstance(verdict, AnswerAccepted)
    assert verdict.answer["action"] == "Take lamp"  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("I would take the lamp.", "no JSON object"),
        (answer(action="restore"), "is not one command"),
        (answer(action="  "), "is not one command"),
        ('{"thinking": "hm"}', "action"),
        (answer(action=["north"]), "action"),
    ],
)
def test_what_cannot_be_played_is_refused_with_a_reason_for_the_model(text: str, reason: str) -> None:
    verdict = check(text)
    assert isinstance(verdict, AnswerRefused)
    assert reason in verdict.reason


@given(st.text())
@settings(max_examples=300)
def test_p2_an_accepted_action_is_one_printable_line_that_sanitising_leaves_unchanged(action: str) -> None:
    verdict = check(answer(action=action))
    if isinstance(verdict, AnswerAccepted):
        accepted = verdict.answer["action"]  # type: ignore[index]
        assert accepted
        assert accepted.isprintable()
        assert sanitise_command(accepted) == accepted


def test_p2_the_fallback_is_playable() -> None:
    assert sanitise_command(FALLBACK_ACTION) == FALLBACK_ACTION
    assert answer_spec().fallback is not None
