"""The Zork host's answer (R15, P2, P46, P47)."""

import json

import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from grue.engine.answers import AnswerCheck
from grue.hosts.zork.agent import FALLBACK_ACTION, answer_spec
from grue.hosts.zork.games.commands import sanitise_command
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
@settings(max_examples=examples(300))
def test_p2_an_accepted_action_is_one_printable_line_that_sanitising_leaves_unchanged(action: str) -> None:
    verdict = check(answer(action=action))
    if isinstance(verdict, AnswerAccepted):
        accepted = verdict.answer["action"]  # type: ignore[index]
        assert accepted
        assert accepted.isprintable()
        assert sanitise_command(accepted) == accepted


WORDS = st.sampled_from(["take", "open", "north", "lamp", "the", "mailbox", "with", "key", "x", "all"])


@given(
    st.lists(WORDS, min_size=1, max_size=8).map(" ".join),
    st.sampled_from(
        ["{}", "**{}**", "`{}`", "> {}", "1. {}", "{}.", "\n{}\n", '"{}"', "{}\nsave", "{}; quit"]
    ),
)
def test_p2_an_ordinary_command_is_accepted_as_it_is_whatever_stands_around_it(
    command: str, frame: str
) -> None:
    verdict = check(answer(action=frame.format(command)))
    assert isinstance(verdict, AnswerAccepted)
    assert verdict.answer["action"] == command  # type: ignore[index]


META = st.sampled_from(["save", "restore", "RESTART", "quit", "q", "script", "Save game", "unscript"])
FRAMES = st.sampled_from(["{}", "> {}", "**{}**", "`{}` now", "1. {}", "{}; n", "n; {}", '"{}"'])
MARKS = st.text("ab .;,>*\"'\\\n\x1b[2J\u200b", max_size=300)
LEAVING = ("save", "restor", "restar", "quit", "q", "script", "unscri")


@given(st.text() | MARKS | st.builds(str.format, FRAMES, META))
@settings(max_examples=examples(400))
def test_p2_whatever_is_accepted_is_one_short_line_of_ascii_that_stays_in_the_game(action: str) -> None:
    """Held against rules of its own: `sanitise_command` is not asked whether it was right."""
    verdict = check(answer(action=action))
    if isinstance(verdict, AnswerAccepted):
        accepted = verdict.answer["action"]  # type: ignore[index]
        assert all(" " <= char <= "~" for char in accepted)
        assert 0 < len(accepted) <= 120
        assert accepted == accepted.strip()
        assert not set(accepted) & set(";*`\\")
        assert accepted.split()[0].lower()[:6] not in LEAVING


@pytest.mark.parametrize("word", ["save", "restore", "RESTART", "quit", "q", "script", "Save game", "> quit"])
def test_p2_what_would_leave_the_game_or_hang_it_is_refused(word: str) -> None:
    assert isinstance(check(answer(action=word)), AnswerRefused)


def test_p2_the_fallback_is_playable() -> None:
    assert sanitise_command(FALLBACK_ACTION) == FALLBACK_ACTION
    assert answer_spec().fallback is not None
