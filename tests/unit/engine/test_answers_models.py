"""What a valid answer is: models, read from whatever a model writes around them."""

from typing import Generic, TypeVar

import pytest
from pydantic import BaseModel, field_validator

from grue.engine.answers import AnswerCheck, AnswerSpec
from grue.messages import AnswerAccepted, AnswerRefused

T = TypeVar("T")


class Decision(BaseModel):
    action: str
    patience: int = 3
    mood: str | None = "calm"


class Page(BaseModel, Generic[T]):
    items: list[T]


def test_the_schema_of_a_generic_model_has_a_name_that_endpoints_accept() -> None:
    schema = AnswerSpec.from_model(Page[int]).schema
    assert schema is not None
    assert schema.name == "Page_int"


def test_null_for_a_member_that_may_be_left_out_leaves_it_out() -> None:
    """A strict schema makes every property required: `null` is how a model leaves one out."""
    read = AnswerSpec.from_model(Decision).parse
    assert read('{"action": "look", "patience": null}') == Decision(action="look")
    assert read('So: {"action": "look", "patience": null, "mood": null}') == Decision(action="look")


def test_null_stays_where_the_model_takes_it() -> None:
    assert AnswerSpec.from_model(Decision).parse('{"action": "a", "mood": null}').mood is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"action": null}', "action: "),
        ('{"action": "a", "patience": "much"}', "patience: "),
        ("look", "no JSON object"),
    ],
)
def test_what_is_wrong_is_said_by_member(text: str, reason: str) -> None:
    verdict = AnswerCheck(AnswerSpec.from_model(Decision))(text)
    assert isinstance(verdict, AnswerRefused)
    assert reason in verdict.reason


def test_a_further_check_may_change_or_refuse_the_answer() -> None:
    def check(decision: Decision) -> Decision:
        if decision.action == "xyzzy":
            raise ValueError("no magic")
        return decision.model_copy(update={"action": decision.action.upper()})

    checked = AnswerCheck(AnswerSpec.from_model(Decision, check=check))
    assert checked('{"action": "look"}') == AnswerAccepted(
        answer={"action": "LOOK", "patience": 3, "mood": "calm"}
    )
    assert checked('{"action": "xyzzy"}') == AnswerRefused(reason="no magic")


class Order(BaseModel):
    room: str

    @field_validator("room")
    @classmethod
    def known(cls, room: str) -> str:
        if room != "hall":
            raise ValueError("there is no such room")
        return room


def test_what_a_validator_says_is_told_without_words_of_the_library() -> None:
    checked = AnswerCheck(AnswerSpec.from_model(Order))
    assert checked('{"room": "x"}') == AnswerRefused(reason="room: there is no such room")
