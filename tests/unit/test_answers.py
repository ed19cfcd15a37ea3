"""The host's check of a final text: accepted or refused with words, whatever the model wrote."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from grue.answers import AnswerCheck, AnswerSpec
from grue.messages import AnswerAccepted, AnswerRefused


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


def test_what_is_a_mistake_of_the_check_is_raised() -> None:
    def parse(text: str) -> str:
        raise KeyError(text)

    with pytest.raises(KeyError):
        AnswerCheck(AnswerSpec(parse))("look")
