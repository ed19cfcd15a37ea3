"""Use any object with `chat.completions.create(**kwargs)`, blocking or not, as the model of a turn."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from msgspec.structs import replace

from grue import MCPError
from grue import messages as m
from grue.hosting import Actor, Envelope, LentConversation, Mailbox, Note, WireProfile, reply
from grue.hosts.zork import look_alikes
from grue.hosts.zork.chat_messages import Sampling, model_settings
from grue.hosts.zork.client import LLMClient
from grue.policies import SupportCheck
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.profile import ModelSettings
from grue.protocol.chat_wire.profiles import ToolSupportPolicy, supports_tool_calling
from grue.protocol.chat_wire.wire_format import Reply
from grue.protocol.json_text import from_json, to_json
from grue.transports.llm import exchange

_SIMPLE_CLIENT = WireProfile(name="the program's client", names="canonical", images=False)
_SDK = WireProfile(
    name="an SDK",
    names="encoded",
    sampling=frozenset({"temperature", "top_p", "max_tokens", "stop"}),
    # Send no images: if the model refused one, the SDK would raise an exception, which would end the turn.
    images=False,
)

_ALWAYS_PASSED: Mapping[str, Any] = dict.fromkeys(
    (*Sampling.__annotations__, "response_format", "tools", "tool_choice")
)


class ClientActor(Actor[m.LlmCommand]):
    """Ask a client object for completions, one at a time.

    If a client's `create` takes an argument `name` or `**kwargs`, or cannot be inspected, it is called like
    that of an `LLMClient`: with all arguments (`None`: not set), and tool names such as `files.read`.
    Otherwise it is called like that of an SDK: only with arguments that are set, and tool names that every
    endpoint accepts. If the actor is cancelled, a blocking client runs on in its thread and its result is
    dropped. The actor does not retry requests.
    """

    def __init__(
        self, mailbox: Mailbox[m.LlmCommand], agent: Mailbox[m.TurnEvent], model: "ClientModel"
    ) -> None:
        super().__init__(mailbox)
        self._config = model.config
        self._agent = agent
        self._client = model.client
        self._create: Callable[..., Any] = model.client.chat.completions.create
        self._profile = model.profile
        self._settings = model.settings
        lent = model.lent
        self._conversations = {} if lent is None else {lent.id: lent}
        self._call_ids: set[str] = set() if lent is None else {*lent.encoded.history.call_ids}

    async def receive(self, envelope: Envelope[m.LlmCommand]) -> None:
        """Carry out a command, and send its outcome to the actor that asked; `RewriteHistory` has none."""
        outcome: m.ToolSupportChecked | m.CompletionReceived | m.CompletionFailed
        match envelope.body:
            case m.CheckToolSupport():
                outcome = await look_alikes.asked_of_client(
                    self._client, self._settings.model, self._config, endpoint=type(self._client).__name__
                )
            case m.RewriteHistory() as command:
                return await self._conversation(command.conversation).change(command)
            case m.RequestCompletion() as command:
                outcome = await self._complete(self._conversation(command.conversation), command)
        if envelope.reply_to is not None:
            reply(envelope, outcome)
        else:
            await self._agent.send(outcome, sender=self.name, cause=envelope.seq)
        return None

    def _conversation(self, name: m.ConversationId) -> LentConversation:
        if name not in self._conversations:
            encoded = EncodedConversation(self._profile, model=self._settings.model)
            self._conversations[name] = LentConversation(name, encoded)
        return self._conversations[name]

    async def _complete(
        self, lent: LentConversation, command: m.RequestCompletion
    ) -> m.CompletionReceived | m.CompletionFailed:
        begun, request = time.monotonic(), command.request
        if (lent.encoded.profile, lent.encoded.model) != (self._profile, self._settings.model):
            lent.encoded.adopt(self._profile, self._settings.model)
        conversation = await lent.ask(command)
        reply = await self._asked(conversation, request)
        if isinstance(reply, m.LlmFailure):
            return m.CompletionFailed(request=request, failure=reply)
        counted = replace(reply, prompt_tokens=reply.usage.input_tokens)
        self._call_ids.update(call.call_id for call in reply.tool_calls)
        return await lent.answered(command, conversation, counted, time.monotonic() - begun)

    async def _asked(self, conversation: EncodedConversation, request: int) -> Reply | m.LlmFailure:
        """Ask the client, after a wait at the request gate (a fleet's rate limit)."""
        body, settings = conversation.body(self._settings), self._settings
        permit: exchange.Permit | str | None = None
        if not isinstance(self._client, LLMClient):  # an `LLMClient` waits at the gate itself
            wanted = exchange.WantedRequest(
                model=settings.model, prompt_bytes=len(body), max_tokens=settings.max_tokens
            )
            permit = await exchange.permit_for(wanted)
        if isinstance(permit, str):
            return look_alikes.foreign_failure(exchange.not_sent(permit), self._client, settings.model)
        outcome = exchange.RequestOutcome()
        try:
            try:
                completion = look_alikes.completion_body(await self._ask(body))
            except Exception as error:  # noqa: BLE001 - whatever a client raises is a failed completion
                failure = look_alikes.completion_failure(error, self._client, settings.model)
                outcome = exchange.RequestOutcome(status=failure.status)
                return failure
            answer = exchange.Answered(200, to_json(completion))
            reply = conversation.read(
                answer.body,
                request=request,
                used_ids=self._call_ids,
                text_tool_calls=settings.text_tool_calls,
            )
            outcome = exchange.request_outcome(answer, reply)
        finally:
            if permit is not None:
                permit.settle(outcome)
        return (
            look_alikes.foreign_failure(reply, self._client, settings.model)
            if isinstance(reply, Fault)
            else reply
        )

    async def _ask(self, body: bytes) -> object:
        asked = from_json(body)
        assert isinstance(asked, dict), "a request is an object"
        if self._profile is _SIMPLE_CLIENT:
            # An `LLMClient` sets cache markers itself.
            asked = _simple_arguments(asked, marked=not isinstance(self._client, LLMClient))
        return await look_alikes.called(functools.partial(self._create, **asked))


@dataclass(frozen=True, eq=False, repr=False)  # no `repr`, because the client's `repr` may show a key
class ClientModel:
    """Makes any object with `chat.completions.create` usable as the model of a `Runner`."""

    client: Any
    settings: ModelSettings
    config: ToolSupportPolicy | None = None
    lent: LentConversation | None = None  # the conversation that the turn continues

    @property
    def profile(self) -> WireProfile:
        """The request fields and message forms that the client accepts."""
        return _SIMPLE_CLIENT if look_alikes.accepts(self.client.chat.completions.create, "name") else _SDK

    @property
    def model(self) -> str:
        """The model's name."""
        return self.settings.model

    def lending(self, lent: LentConversation) -> "ClientModel":
        """Return a `ClientModel` for a turn that continues the conversation `lent`."""
        return dataclasses.replace(self, lent=lent)

    def __call__(
        self, mailbox: Mailbox[m.LlmCommand], agent: Mailbox[m.TurnEvent], note: Note
    ) -> Actor[m.LlmCommand]:
        """Create the actor for a turn."""
        del note
        return ClientActor(mailbox, agent, self)

    def support_check(self) -> SupportCheck:
        """Return `before` if tool support is checked before the servers start, otherwise `skip`."""
        if self.config is not None and self.config.mcp_force_tool_support:
            return "skip"
        asks = callable(getattr(self.client, look_alikes.METHOD, None))
        return "before" if asks or not supports_tool_calling(self.settings.model) else "skip"


def client_actor(
    client: Any, model: str, config: ToolSupportPolicy | None = None, **sampling: Unpack[Sampling]
) -> ClientModel:
    """Return a `ClientModel` for a client; raises `MCPError` if it has no `chat.completions.create`."""
    try:
        client.chat.completions.create  # noqa: B018 - checked here, so that the error comes at once
    except AttributeError as error:
        raise MCPError(f"{type(client).__name__} has no chat.completions.create: {error}") from error
    return ClientModel(client, model_settings(model, sampling), config)


def _simple_arguments(asked: m.JsonObject, *, marked: bool) -> dict[str, Any]:
    messages = asked.get("messages")
    assert isinstance(messages, list), "a request has messages"
    simple = [
        {**each, "cache_control": {"type": "ephemeral"}}
        if marked and each["role"] in ("system", "user")
        else {key: value for key, value in each.items() if value is not None}
        for each in messages
    ]
    return {**_ALWAYS_PASSED, **asked, "messages": simple, "name": "Agent"}
