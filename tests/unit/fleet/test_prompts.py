"""`compare_prompts`: one call, a table that prints, and what it says of chance and of failures."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from grue import LlmSettings, RetryPolicy, Runner
from grue.errors import LLMError, MCPConfigError
from grue.fleet import PromptTable, compare_prompts
from grue.fleet.prompts import PromptAnswer, PromptCase, PromptRow
from grue.testing.offline import offline_endpoint
from grue.testing.offline.chat_request import ChatRequest, text_of
from grue.testing.offline.script import Reply

PROMPTS = {"plain": "Is it a complaint?", "careful": "A complaint wants something. Is it one?"}
ONCE = RetryPolicy(max_retries=0)
MAILS = [("It never came!", True), ("Thank you.", False), ("I want my money.", True)]


def judge(request: ChatRequest) -> Reply:
    """Answer: the plain prompt finds an exclamation mark only."""
    system, user = (text_of(each.content) for each in request.messages[:2])
    complaint = "!" in user or ("money" in user and "wants" in system)
    return Reply(
        content=json.dumps({"value": complaint}) if request.response_format else f"It is {complaint}."
    )


def runner(script: Any = judge) -> Runner:
    return Runner(llm=offline_endpoint(script))


def test_two_prompts_are_compared_in_one_call_with_a_table_that_prints() -> None:
    found = compare_prompts(runner(), PROMPTS, MAILS)
    assert found.best == "careful"
    assert [(row.passed, row.failed) for row in found.prompts.values()] == [(2, 0), (3, 0)]
    lines = str(found).splitlines()
    assert lines[0].split() == ["prompt", "score", "passed", "failed", "tokens", "seconds"]
    assert lines[1].split()[:5] == ["plain", "0.667", "2", "of", "3"]
    assert (
        "careful against plain: better in 1 case, worse in 0, equal in 2. That may be chance (p = 1)."
        in lines
    )
    assert lines[-4].split() == ["case", "expected", "plain", "careful", "turns"]
    assert lines[-3].split() == ["I", "want", "my", "money.", "True", "False", "True", "3,", "6"]
    assert lines[-1] == "Not shown: 2 cases in which the prompts score the same (`.cases`)."


def test_texts_agree_if_the_answer_has_what_was_expected_or_as_a_function_says() -> None:
    cases = [("It never came!", "it is true"), ("Thank you.", "false")]
    assert [row.score for row in compare_prompts(runner(), PROMPTS, cases).prompts.values()] == [1, 1]
    mixed = [("It never came!", "true"), ("Thank you.", False)]
    assert [row.score for row in compare_prompts(runner(), PROMPTS, mixed).prompts.values()] == [1, 1]
    short = compare_prompts(runner(), PROMPTS, cases, score=lambda answer, _: len(answer) < 12)
    assert [row.score for row in short.prompts.values()] == [0.5, 0.5]
    typed = compare_prompts(runner(), PROMPTS, [("It never came!", None)], answer=bool, score=lambda a, _: a)
    assert typed.cases[0].answers["plain"].answer is True


def test_turns_are_numbered_as_in_the_trace() -> None:
    found = compare_prompts(runner(), PROMPTS, MAILS)
    assert [[each.turn for each in case.answers.values()] for case in found.cases] == [[1, 4], [2, 5], [3, 6]]


def test_a_failed_turn_counts_nothing_and_is_named() -> None:
    def broken(request: ChatRequest) -> Reply:
        careful = "wants" in text_of(request.messages[0].content)
        return Reply(content="no JSON") if careful else judge(request)

    found = compare_prompts(runner(broken), PROMPTS, MAILS)
    assert (found.prompts["careful"].failed, found.prompts["careful"].score) == (3, 0)
    assert "failed: AnswerError" in str(found)


def test_if_every_turn_fails_the_reason_is_raised() -> None:
    with (
        Runner(llm=LlmSettings(base_url="http://127.0.0.1:9/v1", model="m", api_key="", retry=ONCE)) as lost,
        pytest.raises(LLMError, match=r"127\.0\.0\.1:9"),
    ):
        compare_prompts(lost, PROMPTS, MAILS)


@pytest.mark.parametrize(
    ("prompts", "cases", "says"),
    [
        (["a", "b"], MAILS, "prompts= wants two or more system texts by name"),
        ({"a": "A."}, MAILS, "two or more"),
        ({1: "A.", 2: "B."}, MAILS, "two or more"),
        (PROMPTS, {"text": True}, "cases= wants pairs"),
        (PROMPTS, [], "cases= is empty"),
        (PROMPTS, ["text"], r"Case 1 is 'text': write a pair, \('the text', what is expected\)"),
        (PROMPTS, [("a", 1), (2, 1)], "Case 2 is"),
        ({"a": 1, "b": 2}, MAILS, "system= wants a text"),
    ],
)
def test_what_cannot_be_compared_is_refused(prompts: Any, cases: Any, says: str) -> None:
    with pytest.raises(MCPConfigError, match=says):
        compare_prompts(runner(), prompts, cases)


def test_a_score_that_is_no_function_is_refused_before_a_turn_is_paid_for() -> None:
    with runner() as one, pytest.raises(MCPConfigError, match=r"score= wants a function .* not 'exact'"):
        compare_prompts(one, PROMPTS, MAILS, score="exact")  # type: ignore[arg-type]  # the mistake
    assert one.spent.requests == 0


def test_a_score_is_a_number() -> None:
    large = compare_prompts(runner(), PROMPTS, MAILS, score=lambda *_: 1e308)
    assert large.prompts["plain"].score == 1e308
    with pytest.raises(MCPConfigError, match="score= returned 'good'"):
        compare_prompts(runner(), PROMPTS, MAILS, score=lambda *_: "good")  # type: ignore[arg-type,return-value]  # the mistake


def made(scores: list[tuple[float, float]], text: str = "a") -> PromptTable:
    row = PromptRow(score=0.5, passed=1, failed=0, tokens=1, seconds=1.0)
    cases = [
        PromptCase(
            question=text,
            expected=text,
            answers={
                "A": PromptAnswer(answer=text, score=a, error="", turn=1),
                "B": PromptAnswer(answer=text, score=b, error="", turn=2),
            },
        )
        for a, b in scores
    ]
    return PromptTable(prompts={"A": row, "B": row}, cases=tuple(cases))


def test_what_chance_seldom_gives_is_said() -> None:
    shown = str(made([(0, 1)] * 6 + [(1, 1)] * 4))
    assert "better in 6 cases, worse in 0, equal in 4. Chance alone seldom gives that (p = 0.031)." in shown
    assert "worse in 1, equal in 0. That may be chance (p = 0.12)." in str(made([(0, 1)] * 6 + [(1, 0)]))
    assert "better in 0 cases, worse in 0, equal in 3.\n\nNot shown: 3 cases" in str(made([(1, 1)] * 3))
    kept = replace(made([(0, 1)] * 6), trace="my runs/1")
    assert str(kept).endswith("To see a turn: grue trace show 'my runs/1' --turn 1")
    assert "Not shown" not in str(kept)


def test_a_long_table_is_cut_and_untrusted_text_stays_in_its_cell() -> None:
    shown = str(made([(0, 1)] * 15, "<b>\x1b[2Jone\nline" + "x" * 1000))
    assert "... and 5 more cases in which the prompts differ" in shown
    assert max(map(len, shown.splitlines())) < 160
    assert "\x1b" not in shown
    assert "&lt;b&gt;" in made([(0, 1)], "<b>")._repr_html_()


def test_numbers_are_looked_for_in_the_text_as_wholes() -> None:
    """No JSON is asked for: a model that explains itself is right, too."""

    def adds(request: ChatRequest) -> Reply:
        careful = "wants" in text_of(request.messages[0].content)
        return Reply(content="It is 17." if careful else "Of 117, it is 17.5.")

    found = compare_prompts(runner(adds), PROMPTS, [("What is 9 + 8?", 17), ("And 8 + 9?", 17)])
    assert [row.score for row in found.prompts.values()] == [0, 1]
