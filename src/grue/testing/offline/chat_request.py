"""The part of a chat completions request that the scripted model reads."""

from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.testing.providers.chat_rules import ProviderRules
from grue.testing.providers.dialects import CHAT, Dialect

_NOT_JSON: Final = "We could not parse the JSON body of your request."


class BadRequestError(Exception):
    """The request cannot be answered: HTTP status 400. `param` and `code` are fields of OpenAI's errors."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class Part(Struct, frozen=True):
    """A part of a message's content, of which the script reads only text."""

    type: str
    text: str = ""


Content: TypeAlias = str | tuple[Part, ...]


class ChatMessage(Struct, frozen=True):
    """A message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None


class Function(Struct, frozen=True):
    """A function on offer; `parameters` is its JSON Schema."""

    name: str
    parameters: m.JsonObject


class _Tool(Struct, frozen=True):
    type: Literal["function"]
    function: Function


class _NamedSchema(Struct, frozen=True):
    schema: m.JsonObject


class _ResponseFormat(Struct, frozen=True):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: _NamedSchema | None = None  # for the type `json_schema`


class ChatRequest(Struct, frozen=True, kw_only=True):
    """A valid request, reduced to the fields that the script reads."""

    model: str
    messages: tuple[ChatMessage, ...]
    tools: tuple[_Tool, ...] = ()
    tool_choice: Literal["auto", "none"] = "auto"
    response_format: _ResponseFormat | None = None

    @property
    def offered(self) -> tuple[Function, ...]:
        """The functions that the reply may call: none if `tool_choice` is "none"."""
        return () if self.tool_choice == "none" else tuple(tool.function for tool in self.tools)


def text_of(content: Content | None) -> str:
    """Return the text of a message, without its images, audio and files."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content if part.type == "text")


def decode_body(body: bytes) -> m.JsonObject:
    """Return the body of a request as a JSON object, or raise `BadRequestError`."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(_NOT_JSON) from error


def read_request(body: m.JsonObject, dialect: Dialect = CHAT, *, strict_names: bool = False) -> ChatRequest:
    """Return what the script reads of a request.

    Raises `BadRequestError` if a strict provider refuses the request, or the script cannot read it, for
    example because its `tool_choice` is `required`.
    """
    rules = ProviderRules(strict_names=strict_names, developer_role=True, known_fields_only=True)
    try:
        chat, refusal = dialect.read(body, rules, {})
    except RecursionError as error:
        raise BadRequestError(_NOT_JSON) from error
    if refusal is not None:
        raise BadRequestError(refusal.words)
    try:
        return msgspec.convert(chat, ChatRequest)
    except msgspec.ValidationError as error:
        words, _, place = str(error).partition(" - at `$")
        param = place.rstrip("`").removeprefix(".") or None
        raise BadRequestError(f"Invalid request: {words}", param=param) from error
