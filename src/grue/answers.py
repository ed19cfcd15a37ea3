"""How a host describes a valid answer: its schema, its check and its fallback."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from grue.messages import AnswerAccepted, AnswerRefused, AnswerSchema, JsonObject
from grue.protocol.answers import json_objects
from grue.protocol.chat_wire.reply import UNREADABLE
from grue.protocol.safe_text import well_formed
from grue.protocol.tool_results import json_value

if TYPE_CHECKING:
    from pydantic import BaseModel

T = TypeVar("T")
Model = TypeVar("Model", bound="BaseModel")


class AnswerSpec(Generic[T]):
    """The answer that a host expects from a turn.

    Args:
        parse: Parses the model's final text. Raises `ValueError` with a reason for the model if the text is
            not acceptable. Errors that Python raises for extreme input, such as `RecursionError`,
            are treated the same way. Any other exception ends the turn as a crash.
        schema: JSON Schema for the endpoint's structured output; `None`: free text.
        name: The schema's name for the endpoint.
        fallback: The answer to use if the model gives no acceptable one; `None`: the turn fails instead.

    Source: R15.3
    """

    def __init__(
        self,
        parse: Callable[[str], T],
        *,
        schema: JsonObject | None = None,
        name: str = "answer",
        fallback: T | None = None,
    ) -> None:
        self.parse = parse
        self.schema = None if schema is None else AnswerSchema(name, schema)
        self.fallback = fallback

    @classmethod
    def text(cls) -> "AnswerSpec[str]":
        """Accept any text."""
        return AnswerSpec(str)

    @classmethod
    def from_model(
        cls,
        model: type[Model],
        *,
        check: Callable[[Model], Model] | None = None,
        fallback: Model | None = None,
    ) -> "AnswerSpec[Model]":
        """Expect an instance of a pydantic model, as plain JSON, in a code fence, or within prose.

        Args:
            model: Its JSON Schema is sent to the endpoint.
            check: A further check. Returns the answer, changed or not, or raises `ValueError`.
            fallback: As for the class.

        Source: P46
        """

        def parse(text: str) -> Model:
            answer = _read(model, text)
            return answer if check is None else check(answer)

        return AnswerSpec(parse, schema=model.model_json_schema(), name=model.__name__, fallback=fallback)


class AnswerCheck(Generic[T]):
    """Runs the host's check for one turn and stores the accepted answer."""

    def __init__(self, spec: AnswerSpec[T]) -> None:
        self._spec = spec
        self.accepted: T | None = None

    def __call__(self, text: str) -> AnswerAccepted | AnswerRefused:
        """Run the host's check on a final text."""
        try:
            self.accepted = self._spec.parse(text)
        except UNREADABLE as error:
            return AnswerRefused(reason=_reason(error))
        return AnswerAccepted(answer=as_json(self.accepted))


def as_json(answer: object) -> object:
    """Return an answer as a JSON value, for messages and traces."""
    dump = getattr(answer, "model_dump", None)
    return json_value(dump(mode="json") if callable(dump) else answer)


def _read(model: type[Model], text: str) -> Model:
    """Return the first object in `text` that the model accepts."""
    first_error: ValueError | None = None
    for candidate in json_objects(text):
        # A strict schema makes every property required, so `null` is how a model leaves one out.
        given = {key: value for key, value in candidate.items() if value is not None}
        for reading in (candidate, given):
            try:
                return model.model_validate(reading)
            except ValueError as error:
                first_error = first_error or error
    raise first_error or ValueError("it contains no JSON object")


def _reason(error: Exception) -> str:
    errors: Any = getattr(error, "errors", None)
    if not callable(errors):
        said = str(error) if isinstance(error, ValueError) else f"it cannot be read ({type(error).__name__})"
        return well_formed(said)
    faults = [f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in errors()]
    return well_formed("; ".join(faults))
