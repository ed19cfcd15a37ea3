"""Run the turn machine with an endpoint that has a small context window and refuses longer prompts.

The endpoint keeps the conversation as the LLM actor does. In each request it checks that every call has
exactly one answer, and that only a `RewriteHistory` has changed the earlier messages.
"""

import json
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from turns import closed, opened

from grue.messages import (
    AnswerAccepted,
    CallTools,
    CheckAnswer,
    Cleared,
    CloseSession,
    CompletionFailed,
    CompletionReceived,
    LlmFailure,
    OfferTools,
    OpenSession,
    RequestCompletion,
    RewriteHistory,
    RunTurn,
    Summarised,
    SystemText,
    ToolCall,
    ToolCallResult,
    ToolMessage,
    ToolReturned,
    Usage,
    UserText,
)
from grue.policies import ContextOverflow
from grue.protocol.tool_loop import step
from grue.protocol.turn.states import Finished, Idle, TurnState

FRAME_TOKENS = 6


class Prompt(Struct, frozen=True):
    """A request, as the endpoint has received it."""

    items: tuple[Any, ...]
    tokens: int
    refused: bool
    aside: bool


class Endpoint(Struct, frozen=True, kw_only=True):
    """The model's endpoint.

    Attributes:
        window_tokens: The longest prompt that it accepts.
        bytes_per_token: How many bytes it counts as a token.
        counts: Whether its replies report the number of tokens.
        summary: Its reply to a request for a summary; `None`: the reply is empty.
        says: Returns the overflow that it reports, from the window and the prompt's size.
    """

    window_tokens: int
    bytes_per_token: float = 4.0
    counts: bool = True
    summary: str | None = "All is well."
    says: Callable[[int, int], ContextOverflow] = lambda window, _: ContextOverflow(window_tokens=window)


class WindowedTurn:
    """Runs a turn to its end.

    Args:
        run: The message that starts the turn. The turn has one server, `a`.
        replies: For each reply in order, the sizes of the results of its calls. After these comes the answer.
        endpoint: The model's endpoint.
    """

    def __init__(self, run: RunTurn, replies: list[list[int]], endpoint: Endpoint) -> None:
        self.run, self.replies, self.endpoint = run, list(replies), endpoint
        self.prompts: list[Prompt] = []
        self.rewrites: list[RewriteHistory] = []
        self.sizes: dict[str, int] = {}
        self.commands: list[Any] = []
        self._items: list[Any] = []
        self._unread: CompletionReceived | None = None
        self._sent: tuple[Any, ...] = ()
        self._state: TurnState = Idle()
        self._calls = 0

    def play(self) -> "WindowedTurn":
        events: list[Any] = [self.run]
        while not isinstance(self._state, Finished):
            self._state, commands = step(self._state, events.pop(0))
            for command in commands:
                self.commands.append(command)
                events += self._carry_out(command)
        return self

    def of(self, kind: type) -> list[Any]:
        return [command for command in self.commands if isinstance(command, kind)]

    @property
    def refused(self) -> int:
        return sum(prompt.refused for prompt in self.prompts)

    @property
    def end(self) -> Any:
        return self.commands[-1]

    def _carry_out(self, command: Any) -> list[Any]:
        match command:
            case OpenSession():
                return [opened("a", "look")]
            case CloseSession():
                return [closed("a")]
            case CheckAnswer():
                return [AnswerAccepted(answer={})]
            case CallTools(batch=batch, calls=calls):
                return [
                    ToolReturned(
                        batch=batch,
                        call_id=call.call_id,
                        result=ToolCallResult("x" * self.sizes[call.call_id]),
                    )
                    for call in calls
                ]
            case RewriteHistory():
                self._rewrite(command)
                return []
            case RequestCompletion():
                return [self._reply(command)]
            case _:
                return []

    def _reply(self, command: RequestCompletion) -> CompletionReceived | CompletionFailed:
        if command.aside:
            prompt = (*self._items, *command.new)
            return self._counted(prompt, aside=True) or self._summarised()
        if self._unread is not None:
            self._items.append(self._unread)
            self._unread = None
        self._items += command.new
        prompt = tuple(self._items)
        assert prompt[: len(self._sent)] == self._sent, "history has changed without a RewriteHistory"
        self._sent = prompt
        _check_answers(prompt)
        failed = self._counted(prompt)
        if failed is not None:
            return failed
        calls = self._next_calls() if isinstance(command.mode, OfferTools) else ()
        self._unread = CompletionReceived(
            request=command.request,
            content=None if calls else "done",
            tool_calls=calls,
            usage=Usage(input_tokens=self.prompts[-1].tokens, output_tokens=20 * max(1, len(calls))),
            prompt_tokens=self.prompts[-1].tokens if self.endpoint.counts else 0,
        )
        return self._unread

    @property
    def _final(self) -> Any:
        from grue.messages import RequireAnswer

        return RequireAnswer(self.run.answer)

    def _next_calls(self) -> tuple[ToolCall, ...]:
        calls = []
        for size in self.replies.pop(0) if self.replies else ():
            self._calls += 1
            self.sizes[f"c{self._calls}"] = size
            calls.append(ToolCall(call_id=f"c{self._calls}", name="a.look", arguments='{"at": "it"}'))
        return tuple(calls)

    def _counted(self, prompt: tuple[Any, ...], *, aside: bool = False) -> CompletionFailed | None:
        tokens = sum(FRAME_TOKENS + int(_size(item) / self.endpoint.bytes_per_token) for item in prompt)
        refused = tokens > self.endpoint.window_tokens
        self.prompts.append(Prompt(prompt, tokens, refused, aside))
        if not refused:
            return None
        failure = LlmFailure(
            kind="refused",
            endpoint="e",
            model="m",
            status=400,
            message="too long",
            overflow=self.endpoint.says(self.endpoint.window_tokens, tokens),
        )
        return CompletionFailed(request=len(self.prompts), failure=failure)

    def _summarised(self) -> CompletionReceived:
        return CompletionReceived(
            request=len(self.prompts), content=self.endpoint.summary, usage=Usage(output_tokens=30)
        )

    def _rewrite(self, command: RewriteHistory) -> None:
        self.rewrites.append(command)
        self._sent = ()
        match command.change:
            case Cleared(results=results, texts=texts):
                by_id = {result.call_id: result for result in results}
                assert len(by_id) == len(results), "a result is cleared twice at once"
                known = {item.call_id for item in self._items if isinstance(item, ToolMessage)}
                assert by_id.keys() <= known, "a result is cleared that was never said"
                for at, item in enumerate(self._items):
                    if isinstance(item, ToolMessage):
                        self._items[at] = by_id.get(item.call_id, item)
                    elif isinstance(item, UserText) and item.stub and item.text != item.stub and texts:
                        self._items[at] = UserText(item.stub, stub=item.stub)
                        texts -= 1
                assert not texts, "there are fewer texts to clear"
            case Summarised(items):
                first = next(
                    (at for at, item in enumerate(self._items) if isinstance(item, CompletionReceived)),
                    len(self._items),
                )
                self._items[first:] = items


def _size(item: Any) -> int:
    match item:
        case ToolMessage(content=text) | UserText(text=text) | SystemText(text=text):
            return len(text.encode())
        case CompletionReceived(content=content, tool_calls=calls):
            return len(content or "") + sum(len(call.name) + len(call.arguments) for call in calls)
    raise AssertionError(item)


def _check_answers(prompt: tuple[Any, ...]) -> None:
    """Assert that every call has exactly one answer, and that answers follow their reply in order."""
    owed: list[str] = []
    for item in prompt:
        if isinstance(item, ToolMessage):
            assert owed, f"{item.call_id} answers nothing"
            assert item.call_id == owed.pop(0)
            json.loads(item.content)
            continue
        assert not owed, f"{owed} have no answer"
        if isinstance(item, CompletionReceived):
            owed = [call.call_id for call in item.tool_calls]
    assert not owed, f"{owed} have no answer"
