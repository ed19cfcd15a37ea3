"""The host's check of a final text: accepted or refused with words, whatever the model wrote."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from grue.engine.answers import AnswerCheck, AnswerSpec
from grue.messages import AnswerAccepted, AnswerRefused, JsonObject
from grue.runtime.safe_text import well_formed_escapes


class Decision(BaseModel):
    action: str
    score: int = 0
    weight: float = 0.0


DEEP = '{"a":' * 700 + "1" + "}" * 700
TEXTS = st.sampled_from(
    [
        " ".join([DEEP] * 301),
        '{"action": ' + DEEP + "}",
        '{"action": "look", "score": ' + "9" * 5000 + "}",
        '{"action": "look", "score": ' + "9" * 4000 + "}",
        '{"action": "look", "weight": 1e999}',
        '{"action": "look", "weight": NaN}',
        '{"action": "\\ud83d"}',
        '{"\\ud800": "\\udfff", "action": 1}',
        "\ud83d",
        '{"action": "look"}',
    ]
)


@pytest.mark.parametrize("spec", [AnswerSpec.from_model(Decision), AnswerSpec(json.loads), AnswerSpec.text()])
@given(text=TEXTS | st.text(st.characters(codec=None)) | st.text('{}[]",:action0 ', max_size=60))
def test_any_text_is_accepted_or_refused(spec: AnswerSpec[object], text: str) -> None:
    verdict = AnswerCheck(spec)(text)
    assert isinstance(verdict, AnswerAccepted | AnswerRefused)
    assert msgspec.json.encode(verdict)


@pytest.mark.parametrize("error", [RecursionError, OverflowError, MemoryError, UnicodeError, ValueError])
def test_what_is_too_much_for_python_is_refused(error: type[Exception]) -> None:
    def parse(text: str) -> str:
        raise error("too much")

    verdict = AnswerCheck(AnswerSpec(parse))("look")
    assert isinstance(verdict, AnswerRefused)
    assert verdict.reason in ("too much", f"it cannot be read ({error.__name__})")


@pytest.mark.parametrize("faults", [["no lamp"], [], {"lamp": ["none"]}, [{"loc": 1, "msg": "no"}], None])
def test_an_error_whose_errors_are_not_those_of_pydantic_gives_its_own_text(faults: object) -> None:
    class UnlitError(ValueError):
        def errors(self) -> object:
            return faults

    def parse(text: str) -> str:
        raise UnlitError("the room is dark")

    assert AnswerCheck(AnswerSpec(parse))("look") == AnswerRefused(reason="the room is dark")


def test_a_refusal_whose_text_fails_is_a_refusal_all_the_same() -> None:
    class MuteError(ValueError):
        def __str__(self) -> str:
            raise KeyError("no words")

    def parse(text: str) -> str:
        raise MuteError

    assert AnswerCheck(AnswerSpec(parse))("look") == AnswerRefused(reason="it cannot be read (MuteError)")


def test_what_is_a_mistake_of_the_check_is_raised() -> None:
    def parse(text: str) -> str:
        raise KeyError(text)

    with pytest.raises(KeyError):
        AnswerCheck(AnswerSpec(parse))("look")


def test_an_answer_that_cannot_be_shown_is_accepted() -> None:
    class Row:
        def __repr__(self) -> str:
            raise RuntimeError("the session is closed")

    check = AnswerCheck(AnswerSpec(lambda _: Row()))
    assert check("look") == AnswerAccepted(answer="[no JSON: RuntimeError: the session is closed]")
    assert isinstance(check.accepted, Row)


@pytest.mark.parametrize("escape", ["\\ud800", "\\uDFFF", "\\ud83d x", "\\\\\\ud800"])
def test_a_lone_surrogate_never_reaches_the_answer(escape: str) -> None:
    """Whoever reads the JSON: its text is valid, and what Python reads it as would not be."""
    text = f'{{"name": "a{escape}", "count": 1}}'
    schema: JsonObject = {"type": "object", "properties": {"name": {"type": "string"}}}
    for spec in (AnswerSpec(json.loads, schema=schema), AnswerSpec.of(dict[str, object])):
        check = AnswerCheck(spec)
        assert isinstance(check(text), AnswerAccepted)
        json.dumps(check.accepted, ensure_ascii=False).encode()
        assert "\ufffd" in str(check.accepted)


@pytest.mark.parametrize("escape", ["\\ud83d\\ude00", "\\\\ud800", "\\u00e9"])
def test_other_escapes_stay_as_they_are(escape: str) -> None:
    text = f'{{"name": "a{escape}"}}'
    assert well_formed_escapes(text) == text
