"""The input and the result of a turn, as a host sees them: `TurnRequest` and `TurnOutcome`.

`read_images` checks the images of a request, because one bad image makes an endpoint refuse the request.
"""

import base64
import os
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import anyio.to_thread
from msgspec import Struct
from msgspec.structs import force_setattr

from grue import messages as m
from grue.engine.answers import AnswerSpec, spec_of, unusable_answer
from grue.engine.conversations.kept_conversation import KeptConversation
from grue.errors import MCPConfigError, MCPError
from grue.field_checks import OwnKeywords, is_usable
from grue.policies import ContextPolicy, ToolSearch, TurnLimits
from grue.protocol.tools.results import MediaRoom
from grue.runtime.files import read_regular
from grue.runtime.safe_text import beginning

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    T = TypeVarWithDefault("T", default=str)
else:
    T = TypeVar("T")

_SHOWN_CHARS = 4000
"""Most characters of an answer that a notebook shows."""

Image: TypeAlias = str | PathLike[str] | bytes
"""An image for the model: the path of a file, or its content."""


_FINAL_REQUEST = m.FINAL_REQUEST.replace("action", "answer")  # an action is what a game wants


class _UserText(Struct, frozen=True):
    """The one field of a request that may be given by position."""

    user: str


class TurnRequest(_UserText, Generic[T], metaclass=OwnKeywords, frozen=True, kw_only=True):
    """The input of one turn.

    Attributes:
        user: The situation or question that the model is to answer.
        system: Instructions; empty: none.
        answer: The type of the answer: a pydantic model, msgspec Struct, dataclass, TypedDict, `list[int]`,
            `int`, an enum. Or an `AnswerSpec`, with a check or a fallback; `AnswerSpec.of(...)` makes one of
            any type, `Literal` included. `None`: any text.
        turn_timeout_s: Limit for the whole turn, teardown included; `None`: the runner's.
        turn: Its number in the episode; `None`: one more than the last.
        tools: Offer the runner's tools; `False`: no tools in this turn. Or the names of those to offer, which
            may be patterns: `("files.read", "web.*")`.
        context: How to stay within the model's context window; `None`: as the runner says, which by default
            clears nothing.
        tool_search: When the tools are searched and not offered; `None`: as the runner says.
        user_stub: What may take the place of `user` in the history, if a later turn of the conversation has
            no room for it; empty: it stays.
        on_delta: Called with each piece of a streamed reply, in the thread or task of the turn. An exception
            ends the turn. A delta with `restart` means that the request is retried: discard the earlier
            pieces of that reply. `None`: replies are not streamed.
        final_request: The text that asks for the final answer, after the last iteration or a failure.
        repair_request: The text that asks for another answer after one was refused. `{reason}` stands for the
            reason.
        images: Images that belong to the user's text: paths of files, or their bytes. PNG, JPEG, GIF, WebP.
        history: What was said before, oldest first: `UserText`, `AssistantReply`, `ToolMessage`, as in
            `TurnOutcome.said` and `Conversation.history`. A system text at its beginning becomes `system`.
            The trace holds a digest of it only. It is encoded for each turn; `Runner.conversation` encodes
            it once.
        json_results: The model reads every tool result as the JSON of `ToolCallResult.to_dict()`. Otherwise a
            text reaches it as it is, other content as JSON, and an error as `Error: ...`.
        conversation: Set by `Conversation.request`: the turn continues that conversation.
    """

    system: str = ""
    answer: AnswerSpec[T] | type[T] | None = None
    turn_timeout_s: float | None = None
    turn: int | None = None
    tools: bool | tuple[str, ...] = True
    context: ContextPolicy | None = None
    tool_search: ToolSearch | None = None
    user_stub: str = ""
    on_delta: Callable[[m.TextDelta], None] | None = None
    final_request: str = _FINAL_REQUEST
    repair_request: str = m.REPAIR_REQUEST
    images: Sequence[Image] = ()
    history: Sequence[m.HistoryItem | m.SystemText] = ()
    json_results: bool = False
    conversation: KeptConversation | None = None

    def __post_init__(self) -> None:
        """Refuse what a field cannot be, with the right form; take the system text of a history."""
        first = self.history[0] if isinstance(self.history, list | tuple) and self.history else None
        if isinstance(first, m.SystemText) and self.system in ("", first.text):
            force_setattr(self, "system", first.text)
            force_setattr(self, "history", self.history[1:])
        form = _right_form(self)
        if form:
            raise MCPConfigError(f"TurnRequest: {form}.")

    @property
    def answer_spec(self) -> AnswerSpec[T]:
        """How to validate and parse the answer."""
        return spec_of(self.answer)


class TurnOutcome(Struct, Generic[T], frozen=True, kw_only=True):
    """The result of a turn that has an answer.

    Attributes:
        kind: `answered`; `forced` (the model was told to finish); `degraded` (configured tools were not
            available); `fallback` (the host's own value, because the model gave no acceptable answer).
        response: The answer.
        reason: Why the kind is not `answered`. Empty otherwise, unless a server died and was started again.
        raw_response: The text that the answer was parsed from, or the last one that was refused.
        tool_calls: All tool calls, in order, with their results.
        iterations: Replies with tool calls.
        requests: Requested completions.
        duration_s: Duration of the whole turn.
        said: What was said in the turn, oldest first: your text, the replies, the results of tools. The next
            turn knows it with `history=(*earlier, *outcome.said)`. Empty if `map` has recalled the outcome.
    """

    turn: int
    kind: m.OutcomeKind
    response: T
    reason: str
    raw_response: str | None
    tool_calls: tuple[m.ToolCallRecord, ...]
    iterations: int
    requests: int
    usage: m.Usage
    duration_s: float
    said: tuple[m.HistoryItem, ...] = ()

    def _repr_html_(self) -> str:
        """Return the outcome as a notebook shows it. What models and tools said cannot be markup there."""
        from html import escape

        kind = f"{self.kind}: {self.reason}" if self.reason else self.kind
        calls = ", ".join(
            f"{call.name} ({call.result.error_message or 'error'})" if call.result.is_error else call.name
            for call in self.tool_calls
        )
        rows = {
            "answer": str(self.response),
            "kind": kind,
            "tools": calls or "none",
            "tokens": f"{self.usage.input_tokens} + {self.usage.output_tokens}",
            "time": f"{self.duration_s:.2f} s",
        }
        style = "style='text-align:left;white-space:pre-wrap'"
        cells = (
            f"<tr><th {style}>{name}</th><td {style}>{escape(beginning(text, _SHOWN_CHARS))}</td></tr>"
            for name, text in rows.items()
        )
        return f"<table>{''.join(cells)}</table>"


def as_request(request: TurnRequest[T] | str) -> TurnRequest[T]:
    """Return a request; a text alone is that of the user.

    Raises:
        MCPConfigError: It is something else. The text says what to write.
    """
    if isinstance(request, str):
        request = TurnRequest(user=request)
    if not isinstance(request, TurnRequest):
        raise MCPConfigError(
            f"A turn wants a text or TurnRequest(user=...), not {type(request).__name__} {request!r:.60}."
        )
    return request


def _right_form(request: TurnRequest[Any]) -> str:
    """Return the advice for a field with a wrong value; empty: every field has a value of its type."""
    given: dict[str, Any] = {name: getattr(request, name) for name in request.__struct_fields__}
    for name in ("user", "system", "user_stub", "final_request", "repair_request"):
        if not isinstance(given[name], str):
            return f"{name}= wants a text, {name}='...', not a {type(given[name]).__name__}"
    if not _is_list(given["images"]) or not all(
        isinstance(each, str | bytes | PathLike) for each in given["images"]
    ):
        return "images= wants a list, images=['picture.png']"
    if not isinstance(given["tools"], bool | list | tuple) or (
        not isinstance(given["tools"], bool) and not all(isinstance(each, str) for each in given["tools"])
    ):
        return f"tools= wants True, False or the tools' names, tools=({given['tools']!r:.60},)"
    if not _is_list(given["history"]):
        return "history= wants a list, such as history=outcome.said"
    if any(isinstance(item, m.SystemText) for item in given["history"]):
        return "system= and the system text of history= differ: leave system= out, or take that text away"
    if not all(isinstance(item, m.HistoryItem) and _is_said(item) for item in given["history"]):
        return "history= wants what grue.messages has: UserText('...'), AssistantReply(...), ToolMessage(...)"
    for name, kind, least in (("turn", int, "0 or more"), ("turn_timeout_s", int | float, "above 0")):
        value = given[name]
        if not isinstance(value, kind | None):
            return f"{name}= wants a number, not {value!r:.60}"
        if value is not None and not is_usable(value, above_0=name != "turn"):
            return f"{name}= wants a number, {least}, or None, not {value!r}"
    for name, struct in (("context", ContextPolicy), ("tool_search", ToolSearch)):
        if not isinstance(given[name], struct | None):
            return f"{name}= wants {struct.__name__}(...), not {type(given[name]).__name__}"
    if not isinstance(given["json_results"], bool):
        return "json_results= wants True or False"
    if not isinstance(given["conversation"], KeptConversation | None):
        return "conversation= is set by Conversation.request: write talk.ask('...')"
    if given["on_delta"] is not None and not callable(given["on_delta"]):
        return "on_delta= wants a function, on_delta=lambda delta: print(delta.text, end='')"
    return unusable_answer(given["answer"])


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_said(item: m.HistoryItem) -> bool:
    """Return whether an entry of a history holds what its class says."""
    match item:
        case m.UserText(text=text) | m.AssistantText(text=text):
            return isinstance(text, str)
        case m.AssistantReply(content=content, tool_calls=calls):
            return isinstance(content, str | None) and all(isinstance(call, m.ToolCall) for call in calls)
        case m.ToolMessage(call_id=id_, content=content):
            return isinstance(id_, str) and isinstance(content, str)


def outcome_of(
    end: m.TurnCompleted, response: Any, duration_s: float, said: tuple[m.HistoryItem, ...] = ()
) -> TurnOutcome[Any]:
    """Return the outcome of a completed turn for the host."""
    return TurnOutcome(
        turn=end.turn,
        kind=end.kind,
        response=response,
        reason=end.reason or _reconnected(end.tool_calls),
        raw_response=end.raw_response,
        tool_calls=end.tool_calls,
        iterations=end.iterations,
        requests=end.requests,
        usage=end.usage,
        duration_s=duration_s,
        said=said,
    )


def _reconnected(calls: Sequence[m.ToolCallRecord]) -> str:
    """Return what an answered turn has met: with `after_death="reconnect"` it goes on after a server died."""
    died = ", ".join(dict.fromkeys(call.name for call in calls if call.settlement == "died"))
    return f"the server died during {died}, and was started again" if died else ""


async def images_for(request: TurnRequest[Any], limits: TurnLimits) -> tuple[m.Attachment, ...]:
    """Read the images of a request in a thread.

    Raises:
        MCPError: As `read_images`.
    """
    if not request.images:
        return ()
    return await anyio.to_thread.run_sync(read_images, request.images, limits)


def read_images(images: Any, limits: TurnLimits) -> tuple[m.Attachment, ...]:
    """Return images as they are sent to the model.

    Args:
        images: Paths of files, or their bytes.
        limits: How large an image, and all of them together, may be.

    Raises:
        MCPError: A file cannot be read, is not an image that models take, or is too large. Names the image.
    """
    room = MediaRoom(limits)
    for number, image in enumerate(images):
        what = f"Image {number + 1}" if isinstance(image, bytes) else f"The image {os.fspath(image)}"
        content = _content(image, what, limits)
        refused = room.attach("image", base64.b64encode(content).decode())
        if refused:
            raise MCPError(f"{what} cannot be shown to the model: {refused}.")
        if room.attachments[-1].kind != "image":
            raise MCPError(f"{what} is not an image: its content is {room.attachments[-1].mime}.")
    return tuple(room.attachments)


def _content(image: Image, what: str, limits: TurnLimits) -> bytes:
    if isinstance(image, bytes):
        return image
    try:
        return read_regular(Path(image), max_bytes=limits.max_image_bytes)
    except OSError as error:
        raise MCPError(f"{what} cannot be read: {error.strerror or error}.") from error
