"""`LLMClient`: a synchronous client for chat completions, with the wire formats and retries of a turn."""

import dataclasses
import functools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Self, Unpack

import httpx
from msgspec.structs import replace

from grue import LlmSettings
from grue import messages as m
from grue.actors.llm import Asking
from grue.config.wiring import llm_settings
from grue.errors import LLMError
from grue.hosting import GameConfiguration, LlmEndpoint, error_for
from grue.hosts.zork.chat_messages import (
    ChatMessage,
    LLMResponse,
    Sampling,
    conversation_of,
    model_settings,
    response_of,
)
from grue.hosts.zork.look_alikes import asked_of_client, is_overridden, own_methods
from grue.policies import SupportCheck
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.chat_wire.profile import shown_endpoint
from grue.protocol.chat_wire.profiles import supports_tool_calling, tool_support_error
from grue.protocol.chat_wire.wire_format import Choice, Reply
from grue.runtime.loops.beside_loop import call_in_daemon_thread
from grue.runtime.loops.sync_edge import IN_A_THREAD, run_blocking


class CompletionError(LLMError):
    """The model gave no completion, after all retries; `failure` has the details."""

    def __init__(self, failure: m.LlmFailure) -> None:
        told = error_for(m.TurnFailed(turn=0, failure=failure))
        super().__init__(str(told), **vars(told))
        self.failure = failure


class LLMClient:
    """Ask an LLM's endpoint for completions, blocking.

    Threads may share a client. Close the client, or use it as a context manager.

    Args:
        config: The endpoint, retries and tool support; `base_url` and `api_key` take precedence.
        transport: Sends the requests, in place of the network. A blocking transport is called in threads.
        sleep: Called with the number of seconds to wait before a retry.
    """

    def __init__(
        self,
        config: GameConfiguration | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        transport: httpx.BaseTransport | httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.config = config or GameConfiguration()
        if base_url is not None:
            then = self.config.then if base_url == self.config.client_base_url else []
            self.config = dataclasses.replace(self.config, client_base_url=base_url, then=then)
        self._settings = llm_settings(self.config)
        if api_key is not None:
            self._settings = replace(self._settings, api_key=api_key)
        LlmEndpoint(self._settings)  # raises now if the settings are unusable
        if transport is not None and not isinstance(transport, httpx.AsyncBaseTransport):
            transport = _InThreads(transport)
        self._transport: httpx.AsyncBaseTransport | None = transport
        self._sleep = sleep
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close a blocking `transport` that the user passed."""
        if isinstance(self._transport, _InThreads):
            self._transport.close()

    def llm_settings(self, model: str | None = None, **sampling: Unpack[Sampling]) -> LlmSettings:
        """Return the configured settings for a model; `None`: for the configured model.

        Only the sampling settings in `sampling` are set. Others are not, even if they are configured.
        """
        settings = model_settings(model or self.config.agent_model, sampling)
        # The fallback models belong to the configured model, so another model gets none.
        then = self._settings.then if settings.model == self._settings.model else ()
        chosen = {name: getattr(settings, name) for name in ("model", *Sampling.__annotations__)}
        return replace(self._settings, **chosen, then=then)

    def endpoint(
        self, model: str | None = None, *, force_tool_support: bool = False, **sampling: Unpack[Sampling]
    ) -> LlmEndpoint:
        """Return an endpoint for a `Runner`. `force_tool_support`: offer tools to any model, unchecked."""
        settings = self.llm_settings(model, **sampling)
        if force_tool_support:
            settings = replace(settings, force_tool_support=True)
        if self.judges_tool_support:
            return _AskedByClient(self, settings, transport=self._transport)
        return LlmEndpoint(settings, transport=self._transport)

    @property
    def judges_tool_support(self) -> bool:
        """`True` if a program has overridden `_supports_tool_calling`."""
        return is_overridden(self, _SUPPORT_METHOD)

    @property
    def completes_by_itself(self) -> bool:
        """`True` if a program has overridden `chat_completions_create` or `chat.completions.create`."""
        create = getattr(getattr(self.chat, "completions", None), "create", None)
        # A copy of a client has the method of the client that it was copied from.
        ours = getattr(create, "__func__", None) is LLMClient._create
        return not ours or is_overridden(self, _COMPLETION_METHOD)

    def chat_completions_create(
        self,
        model: str,
        messages: Sequence[ChatMessage],
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        response_format: Mapping[str, Any] | None = None,
        extra_headers: Mapping[str, str] | None = None,
        name: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> LLMResponse:
        """Ask for a completion, with retries.

        `messages` and `tools` are dicts in OpenAI's format. Up to four `cache_control` markers are sent
        unchanged if the endpoint takes markers. Sampling settings that are `None` are not sent, except a
        `max_tokens` that the format requires. `response_format` is a `json_schema` object with the schema of
        the answer; any other object is sent as it is. No `response_format` is sent if the model may call
        tools. `tool_choice` is `auto` (default), `none`, `required`, or the function to call. `name` is
        ignored; `kwargs` are further request fields.

        Raises:
            MCPError: There are tools, but the model cannot call any; or an argument cannot be used, such as a
                message with an image.
            ValueError: A tool message does not answer a call of the assistant's message before it.
            LLMError: There was no completion, after all retries.

        Source: R4.1, R4.5, R4.6, R12.5, P14
        """
        del name
        if tools and not self._supports_tool_calling(model):
            raise tool_support_error(model)
        settings = self.llm_settings(
            model,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            max_tokens=max_tokens,
            stop=stop,
        )
        if extra_headers:
            settings = replace(settings, extra_headers={**settings.extra_headers, **extra_headers})
        endpoint = LlmEndpoint(settings, transport=self._transport)
        calling = bool(tools) and tool_choice != "none"
        mode = m.OfferTools() if calling else m.RequireAnswer(_answer(response_format))
        conversation = conversation_of(messages, tools, mode, endpoint.profile)
        extra = {key: value for key, value in kwargs.items() if value is not None}
        if not calling and mode == m.RequireAnswer() and response_format:
            extra["response_format"] = response_format
        # Add these only now: `LlmEndpoint(...)` refuses fields that a turn sets, such as `response_format`.
        endpoint.settings = replace(settings, extra_body={**settings.extra_body, **extra})
        choice = _choice(tool_choice, conversation)
        outcome = run_blocking(
            functools.partial(self._outcome, endpoint, conversation, mode, choice),
            on_exit=lambda: None,
            twin=IN_A_THREAD,
        )
        if endpoint.profile != endpoint.first_profile:
            # Remember for later requests what the endpoint accepts.
            self._settings = replace(self._settings, profile=endpoint.profile)
        if isinstance(outcome, m.LlmFailure):
            raise CompletionError(outcome)
        return response_of(outcome, model)

    def _create(self, *args: Any, **kwargs: Any) -> LLMResponse:
        return self.chat_completions_create(*args, **kwargs)

    async def _outcome(
        self,
        endpoint: LlmEndpoint,
        conversation: EncodedConversation,
        mode: m.OfferTools | m.RequireAnswer,
        choice: Choice,
    ) -> Reply | m.LlmFailure:
        command = m.RequestCompletion(conversation=m.ConversationId("client"), request=1, new=(), mode=mode)
        async with endpoint:
            asking = Asking(endpoint, conversation, command, lambda _: None, choice=choice, sleep=self._wait)
            return await asking.outcome()

    async def _wait(self, delay_s: float) -> None:
        await call_in_daemon_thread(functools.partial(self._sleep, delay_s))

    def _supports_tool_calling(self, model: str, config: GameConfiguration | None = None) -> bool:
        return supports_tool_calling(model, config or self.config)


_COMPLETION_METHOD = own_methods(LLMClient, ("chat_completions_create",))
_SUPPORT_METHOD = own_methods(LLMClient, ("_supports_tool_calling",))


class _AskedByClient(LlmEndpoint):
    def __init__(
        self, client: LLMClient, settings: LlmSettings, *, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        super().__init__(settings, transport=transport)
        self._client = client

    def support_check(self) -> SupportCheck:
        return "skip" if self.settings.force_tool_support else "before"

    async def tool_support(self) -> m.ToolSupportChecked:
        settings = self.settings
        config = self._client.config
        return await asked_of_client(
            self._client, settings.model, config, endpoint=shown_endpoint(settings.base_url)
        )


def _choice(tool_choice: str | Mapping[str, Any] | None, conversation: EncodedConversation) -> Choice:
    match tool_choice:
        case {"function": {"name": str() as name}}:
            return Choice("named", conversation.names.to_wire(name))
        case "required":
            return Choice("required")
        case _:
            return Choice()


def _answer(response_format: Mapping[str, Any] | None) -> m.AnswerSchema | None:
    shape = response_format.get("json_schema") if isinstance(response_format, Mapping) else None
    if not isinstance(shape, Mapping) or not isinstance(shape.get("schema"), Mapping):
        return None
    return m.AnswerSchema(str(shape.get("name") or "answer"), dict(shape["schema"]))


class _InThreads(httpx.AsyncBaseTransport):
    """Calls a blocking transport in threads. `aclose` does nothing, because endpoints share this object."""

    def __init__(self, transport: httpx.BaseTransport) -> None:
        self._transport = transport
        self.close = transport.close

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await call_in_daemon_thread(lambda: self._transport.handle_request(request))
        stream = response.stream
        if isinstance(stream, httpx.SyncByteStream) and not isinstance(stream, httpx.AsyncByteStream):
            response.stream = _ReadInThreads(stream)
        return response


class _ReadInThreads(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.SyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks: Iterator[bytes] = iter(self._stream)
        while (chunk := await call_in_daemon_thread(lambda: next(chunks, None))) is not None:
            yield chunk

    async def aclose(self) -> None:
        await call_in_daemon_thread(self._stream.close)
