"""A chat-completions request as the scripted model takes it: typed, and checked as strictly as providers do.

The structure is a set of Structs. What they cannot say (every call answered, names unique, strict schemas
closed) is checked after decoding. No provider checks all of it, and each of it is checked by some provider.
"""

import re
from typing import Annotated, Literal, NoReturn, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from grue.messages import JsonObject

NonEmpty: TypeAlias = Annotated[str, Meta(min_length=1)]

MAX_CACHE_MARKERS = 4
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class BadRequestError(Exception):
    """The request cannot be answered: HTTP status 400.

    Attributes:
        param: Which part of the request is wrong, such as `messages[2].content`; `None`: the whole.
        code: A word for programs; `None` where OpenAI has none.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class TextPart(Struct, frozen=True, tag="text", tag_field="type"):
    """A piece of text in a message."""

    text: NonEmpty
    cache_control: JsonObject | UnsetType = UNSET


class ImagePart(Struct, frozen=True, tag="image_url", tag_field="type"):
    """A picture in a user's message; the script does not look at it."""

    image_url: JsonObject


class AudioPart(Struct, frozen=True, tag="input_audio", tag_field="type"):
    """A recording in a user's message; the script does not listen to it."""

    input_audio: JsonObject


class FilePart(Struct, frozen=True, tag="file", tag_field="type"):
    """A file in a user's message; the script does not read it."""

    file: JsonObject


Part: TypeAlias = TextPart | ImagePart | AudioPart | FilePart
Parts: TypeAlias = Annotated[tuple[Part, ...], Meta(min_length=1)]
Content: TypeAlias = NonEmpty | Parts


class SystemMessage(Struct, frozen=True, tag="system", tag_field="role"):
    """Instructions."""

    content: Content


class DeveloperMessage(Struct, frozen=True, tag="developer", tag_field="role"):
    """Instructions, by their newer name."""

    content: Content


class UserMessage(Struct, frozen=True, tag="user", tag_field="role"):
    """What the host says."""

    content: Content


class CalledFunction(Struct, frozen=True):
    """Which function was called; `arguments` is JSON text."""

    name: NonEmpty
    arguments: str


class Called(Struct, frozen=True):
    """A tool call in the history."""

    id: NonEmpty
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(Struct, frozen=True, tag="assistant", tag_field="role"):
    """What the model said before."""

    content: Content | None = None
    tool_calls: Annotated[tuple[Called, ...], Meta(min_length=1)] | UnsetType = UNSET

    @property
    def calls(self) -> tuple[Called, ...]:
        """Its tool calls, if any."""
        return () if self.tool_calls is UNSET else self.tool_calls


class ToolMessage(Struct, frozen=True, tag="tool", tag_field="role"):
    """The answer to a tool call."""

    tool_call_id: NonEmpty
    content: Content


ChatMessage: TypeAlias = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class Function(Struct, frozen=True):
    """A function on offer; `parameters` is its JSON Schema."""

    name: NonEmpty
    description: str = ""
    parameters: JsonObject = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})


class Tool(Struct, frozen=True):
    """A tool on offer."""

    type: Literal["function"]
    function: Function


class NamedSchema(Struct, frozen=True):
    """The shape that an answer must have."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema: JsonObject
    strict: bool | None = None


class TextFormat(Struct, frozen=True, tag="text", tag_field="type"):
    """The answer is text."""


class JsonObjectFormat(Struct, frozen=True, tag="json_object", tag_field="type"):
    """The answer is any JSON object."""


class JsonSchemaFormat(Struct, frozen=True, tag="json_schema", tag_field="type"):
    """The answer is an instance of a schema."""

    json_schema: NamedSchema


class ChatRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST .../chat/completions`; sampling is checked, then ignored: a script has no moods."""

    model: NonEmpty
    messages: Annotated[tuple[ChatMessage, ...], Meta(min_length=1)]
    tools: Annotated[tuple[Tool, ...], Meta(min_length=1)] | UnsetType = UNSET
    tool_choice: Literal["auto", "none"] | UnsetType = UNSET
    parallel_tool_calls: bool | UnsetType = UNSET
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | UnsetType = UNSET
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    n: Literal[1] = 1
    stream: bool = False
    user: str | None = None
    metadata: dict[str, str] | None = None
    reasoning: JsonObject | None = None
    reasoning_effort: str | None = None
    usage: JsonObject | None = None

    @property
    def offered(self) -> tuple[Function, ...]:
        """The functions that may be called: none with `tool_choice: "none"`."""
        if self.tools is UNSET or self.tool_choice == "none":
            return ()
        return tuple(tool.function for tool in self.tools)


def text_of(content: Content | None) -> str:
    """Return the text of a message, its pictures left out."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content if isinstance(part, TextPart))


def read_request(body: bytes, *, strict_names: bool = False) -> ChatRequest:
    """Decode and check a request.

    Args:
        body: As it came.
        strict_names: Refuse function names that OpenAI refuses, dots among them.

    Raises:
        BadRequestError: It is malformed; the message says what, in the way of OpenAI's.
    """
    try:
        request = msgspec.json.decode(body, type=ChatRequest)
    except msgspec.ValidationError as error:
        words, _, place = str(error).partition(" - at `$")
        param = place.rstrip("`").removeprefix(".") or None
        where = f" in '{param}'" if param else ""
        raise BadRequestError(f"Invalid request{where}: {words}", param=param) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError("We could not parse the JSON body of your request.") from error
    if request.stream:
        raise BadRequestError("The offline script does not stream.", param="stream", code="unsupported_value")
    _check_messages(request.messages)
    _check_tools(request)
    _check_format(request)
    if strict_names:
        _check_names(request)
    return request


def _check_messages(messages: tuple[ChatMessage, ...]) -> None:
    waiting: set[str] = set()
    seen: set[str] = set()
    for index, message in enumerate(messages):
        at = f"messages[{index}]"
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in waiting:
                words = "A message with role 'tool' must answer a call of the preceding assistant message."
                raise BadRequestError(words, param=f"{at}.tool_call_id")
            waiting.remove(message.tool_call_id)
            continue
        _check_all_answered(waiting, at)
        if isinstance(message, AssistantMessage):
            waiting = _checked_call_ids(message, seen, at)
            seen |= waiting
    _check_all_answered(waiting, "messages")
    if sum(map(_markers, messages)) > MAX_CACHE_MARKERS:
        raise BadRequestError(f"At most {MAX_CACHE_MARKERS} parts may have cache_control.", param="messages")


def _check_all_answered(waiting: set[str], at: str) -> None:
    if waiting:
        raise BadRequestError(
            "An assistant message with 'tool_calls' must be followed by a tool message for each of them; "
            f"these have none: {', '.join(sorted(waiting))}",
            param=at,
        )


def _checked_call_ids(message: AssistantMessage, seen: set[str], at: str) -> set[str]:
    if message.content is None and not message.calls:
        raise BadRequestError("An assistant message needs content or tool calls.", param=f"{at}.content")
    ids = [call.id for call in message.calls]
    if len(set(ids)) < len(ids) or seen.intersection(ids):
        raise BadRequestError("The ids of tool calls must be unique.", param=f"{at}.tool_calls")
    for index, call in enumerate(message.calls):
        try:
            msgspec.json.decode(call.function.arguments, type=dict[str, object])
        except (msgspec.MsgspecError, RecursionError) as error:
            at = f"{at}.tool_calls[{index}].function.arguments"
            raise BadRequestError("The arguments must be the text of a JSON object.", param=at) from error
    return set(ids)


def _markers(message: ChatMessage) -> int:
    parts = message.content if isinstance(message.content, tuple) else ()
    return sum(isinstance(part, TextPart) and part.cache_control is not UNSET for part in parts)


def _check_tools(request: ChatRequest) -> None:
    if request.tools is UNSET:
        for field in ("tool_choice", "parallel_tool_calls"):
            if getattr(request, field) is not UNSET:
                raise BadRequestError(f"'{field}' is only allowed when 'tools' are specified.", param=field)
        return
    names = [tool.function.name for tool in request.tools]
    if len(set(names)) < len(names):
        raise BadRequestError("Tool names must be unique.", param="tools")
    for index, tool in enumerate(request.tools):
        if tool.function.parameters.get("type") != "object":
            raise BadRequestError(
                f"Invalid schema for function '{tool.function.name}': its type must be 'object'.",
                param=f"tools[{index}].function.parameters",
                code="invalid_function_parameters",
            )


def _check_names(request: ChatRequest) -> None:
    tools = () if request.tools is UNSET else request.tools
    named = [(f"tools[{index}].function.name", tool.function.name) for index, tool in enumerate(tools)]
    named += [
        (f"messages[{index}].tool_calls[{number}].function.name", call.function.name)
        for index, message in enumerate(request.messages)
        if isinstance(message, AssistantMessage)
        for number, call in enumerate(message.calls)
    ]
    for param, name in named:
        if not _NAME.fullmatch(name):
            words = f"Invalid '{param}': string does not match pattern '^{_NAME.pattern}$'."
            raise BadRequestError(words, param=param, code="invalid_value")


def _check_format(request: ChatRequest) -> None:
    match request.response_format:
        case JsonObjectFormat():
            texts = (text_of(message.content) for message in request.messages)
            if not any("json" in text.lower() for text in texts):
                words = (
                    "'messages' must contain the word 'json' to use 'response_format' of type 'json_object'."
                )
                raise BadRequestError(words, param="messages")
        case JsonSchemaFormat(json_schema=NamedSchema(schema=schema, strict=True)):
            if schema.get("type") != "object":
                _refuse_schema("the root must be of type 'object'")
            _check_strict(schema)


def _check_strict(schema: object) -> None:
    """Check that every object in a strict schema is closed and requires all of its properties."""
    if isinstance(schema, list):
        for item in schema:
            _check_strict(item)
    if not isinstance(schema, dict):
        return
    if "object" in (schema.get("type"), *_list(schema.get("type"))):
        if schema.get("additionalProperties") is not False:
            _refuse_schema("'additionalProperties' must be false")
        if set(schema.get("properties", {})) != set(_list(schema.get("required"))):
            _refuse_schema("'required' must name every property")
    for key in ("anyOf", "items"):
        _check_strict(schema.get(key))
    for key in ("properties", "$defs"):
        _check_strict(list(schema.get(key, {}).values()))


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _refuse_schema(why: str) -> NoReturn:
    raise BadRequestError(f"Invalid schema for response_format: {why}.", param="response_format")
