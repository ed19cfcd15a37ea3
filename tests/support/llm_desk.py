"""`Desk` takes the place of the agent beside an LLM actor: it sends requests and receives the replies."""

import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import msgspec

from grue.actors.llm import LentConversation, LlmActor, LlmEndpoint, LlmSettings
from grue.messages import (
    AnyMessage,
    CheckToolSupport,
    CompletionFailed,
    CompletionReceived,
    ConversationId,
    ConversationItem,
    DropCompletion,
    OfferTools,
    ReplyDropped,
    RequestCompletion,
    RequireAnswer,
    ServerName,
    SystemText,
    ToolDefinition,
    ToolSupportChecked,
    UserText,
)
from grue.protocol.retry import RetryPolicy
from grue.runtime.actor import Supervisor
from grue.runtime.trace.recorder import Envelope, Recorder

TURN = ConversationId("turn-1")
KEY = "sk-recognisable-0123456789"
IMPATIENT = RetryPolicy(max_retries=2, initial_delay_s=0.0, timeout_s=10.0)
THINK = ToolDefinition(
    server=ServerName("think"), tool="think", input_schema={"type": "object", "properties": {}}
)
LISTING = OfferTools((THINK,))
OPENING = (SystemText("You play."), UserText("West of House."))


def settings_for(base_url: str, **changes: Any) -> LlmSettings:
    return msgspec.structs.replace(
        LlmSettings(base_url=base_url, model="some/model", api_key=KEY, retry=IMPATIENT), **changes
    )


class Desk:
    """Takes the place of the agent: sends requests to an LLM actor and receives its replies."""

    def __init__(
        self, supervisor: Supervisor, endpoint: LlmEndpoint, lent: LentConversation | None = None
    ) -> None:
        self.llm = supervisor.mailbox("llm")
        self.agent = supervisor.mailbox("agent")
        self._numbers = itertools.count(1)
        supervisor.start(LlmActor(self.llm, self.agent, endpoint, supervisor.note, lent))

    async def ask(
        self,
        new: Sequence[ConversationItem] = OPENING,
        mode: OfferTools | RequireAnswer = LISTING,
        conversation: str = "turn-1",
        stream: bool = False,
    ) -> Envelope[Any]:
        request = RequestCompletion(
            conversation=ConversationId(conversation),
            request=next(self._numbers),
            new=tuple(new),
            mode=mode,
            stream=stream,
        )
        sent = await self.llm.send(request, sender="agent")
        with anyio.fail_after(60):
            answer = await self.agent.receive()
        assert answer.cause == sent.seq
        return answer

    async def presume(self, request: int = 1, new: Sequence[ConversationItem] = OPENING) -> None:
        """Send a request with presumed tools, and do not wait for the reply."""
        command = RequestCompletion(
            conversation=TURN, request=request, new=tuple(new), mode=LISTING, presumed=True
        )
        await self.llm.send(command, sender="agent")

    async def drop(self, request: int = 1) -> list[Any]:
        """Tell the actor to drop a reply; return the messages that it sends, up to `ReplyDropped`."""
        sent = await self.llm.send(
            DropCompletion(conversation=TURN, request=request, reason="other tools"), sender="agent"
        )
        came: list[Any] = []
        with anyio.fail_after(60):
            while not came or not isinstance(came[-1], ReplyDropped):
                envelope = await self.agent.receive()
                came.append(envelope.body)
        assert envelope.cause == sent.seq
        return came

    async def support(self) -> ToolSupportChecked:
        with anyio.fail_after(60):
            answer = await self.llm.ask(CheckToolSupport(), sender="agent")
        assert isinstance(answer, ToolSupportChecked)
        return answer

    async def reply(self, *args: Any, **kwargs: Any) -> CompletionReceived:
        body = (await self.ask(*args, **kwargs)).body
        assert isinstance(body, CompletionReceived), body
        return body

    async def failure(self, *args: Any, **kwargs: Any) -> CompletionFailed:
        body = (await self.ask(*args, **kwargs)).body
        assert isinstance(body, CompletionFailed), body
        return body


@asynccontextmanager
async def desk(
    endpoint: LlmEndpoint, lines: list[bytes] | None = None, lent: LentConversation | None = None
) -> AsyncIterator[Desk]:
    recorder = Recorder()
    if lines is not None:
        recorder.add(lambda _, line: lines.append(line))
    async with Supervisor(recorder, turn=1) as supervisor:
        yield Desk(supervisor, endpoint, lent)


N = TypeVar("N", bound=AnyMessage)


def notes(lines: Sequence[bytes], kind: type[N]) -> list[N]:
    """Return the messages of one kind among recorded lines, in order."""
    bodies = [json.loads(line)["body"] for line in lines]
    return [msgspec.convert(body, kind) for body in bodies if body["type"] == kind.__name__]
