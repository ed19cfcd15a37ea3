"""`LLMClient`: a synchronous client for chat completions, with the same wire formats and retries as a turn.

A turn does not call `chat_completions_create`: `ZorkAgent` takes the client's endpoint and lets the LLM actor
ask it. If a program overrides `chat_completions_create`, a turn calls it as it calls any other client object
(`client_actor.py`). If a program overrides `_supports_tool_calling`, a turn asks that.

Source: R4
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace, TracebackType
from typing import Any, NamedTuple, Self, Unpack

from msgspec.structs import replace

from grue import LlmSettings
from grue.errors import LLMError, MCPConfigError
from grue.hosts.zork.chat_messages import (
    ChatMessage,
    Sampling,
    call_ids,
    conversation_of,
    model_settings,
    response_of,
)
from grue.hosts.zork.overrides import is_overridden, own_methods
from grue.hosts.zork.replies import LLMResponse
from grue.hosts.zork.tool_support import asked_of_client
from grue.lean_httpx import httpx
from grue.messages import (
    AnswerSchema,
    LlmFailure,
    OfferTools,
    RequireAnswer,
    SupportCheck,
    ToolSupportChecked,
    TurnFailed,
)
from grue.models import (
    MAX_REPLY_BYTES,
    AdaptProfile,
    Answered,
    AttemptEvent,
    BodyTooLongError,
    Choice,
    CompletionWanted,
    ContentDecoder,
    Conversation,
    EncodingError,
    Fault,
    Finish,
    LlmEndpoint,
    ModelSettings,
    Reply,
    ReplyRead,
    RequestFailed,
    RequestOutcome,
    SendRequest,
    Unsent,
    Wait,
    WantedRequest,
    attempt_step,
    fault_of_body,
    fault_of_exchange,
    fault_of_status,
    http_timeout,
    is_loopback,
    not_sent,
    outcome_of,
    permit_for_blocking,
    retry_after,
    shown_endpoint,
    supports_tool_calling,
)
from grue.sessions import error_for, tool_support_error
from grue.settings import GameConfiguration, llm_settings

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "stop")


class CompletionError(LLMError):
    """The model gave no completion, after all retries; `failure` has the details."""

    def __init__(self, failure: LlmFailure) -> None:
        super().__init__(
            str(error_for(TurnFailed(turn=0, failure=failure))),
            kind=failure.kind,
            status=failure.status,
            model=failure.model,
            endpoint=failure.endpoint,
        )
        self.failure = failure


class LLMClient:
    """Ask an OpenAI-compatible endpoint for chat completions, blocking.

    Safe to share between threads. Close it, or use it as a context manager.

    Args:
        config: Endpoint, retries and tool support; `None` for the defaults.
        base_url: Replaces the base URL of the configuration.
        api_key: Replaces the key from the environment.
        transport: Sends the requests, in place of the network. `chat_completions_create` needs an
            `httpx.BaseTransport`, turns need an `httpx.AsyncBaseTransport`; `httpx.MockTransport` is both.
        sleep: Waits for a number of seconds between two attempts.

    Attributes:
        chat: Has `chat.completions.create`, which calls `chat_completions_create`.

    Raises:
        MCPConfigError: The base URL or the key cannot be used.
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
            self.config = _with_base_url(self.config, base_url)
        self._settings = llm_settings(self.config)
        if api_key is not None:
            self._settings = replace(self._settings, api_key=api_key)
        LlmEndpoint(self._settings)  # raises now, and not at the first request, if the settings are unusable
        self._transport = transport
        self._sleep = sleep
        self._http: httpx.Client | None = None
        self.chat = SimpleNamespace(completions=_Completions(self))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        http, self._http = self._http, None
        if http is not None:
            http.close()

    def llm_settings(self, model: str | None = None, **sampling: Unpack[Sampling]) -> LlmSettings:
        """Return this client's endpoint, key and retries with a model and its sampling.

        Args:
            model: The model; `None` for the configuration's.
            sampling: The sampling settings; the endpoint chooses those that are left out.
        """
        settings = model_settings(model or self.config.agent_model, sampling)
        return replace(self._settings, **{name: getattr(settings, name) for name in ("model", *_SAMPLING)})

    def endpoint(
        self, model: str | None = None, *, force_tool_support: bool = False, **sampling: Unpack[Sampling]
    ) -> LlmEndpoint:
        """Return the endpoint for a `Runner`: same address, key, retries and transport.

        Args:
            model: The model; `None` for the configuration's.
            force_tool_support: Whether to offer tools without a check, whatever the configuration says.
            sampling: As in `llm_settings`.

        Raises:
            MCPConfigError: The transport cannot be used asynchronously.

        Source: R12.4
        """
        transport = self._transport
        if transport is not None and not isinstance(transport, httpx.AsyncBaseTransport):
            raise MCPConfigError("A turn needs an asynchronous transport, such as httpx.MockTransport.")
        settings = self.llm_settings(model, **sampling)
        if force_tool_support:
            settings = replace(settings, force_tool_support=True)
        if self.judges_tool_support:
            return _AskedByClient(self, settings, transport=transport)
        return LlmEndpoint(settings, transport=transport)

    @property
    def judges_tool_support(self) -> bool:
        """Whether a program has overridden `_supports_tool_calling`."""
        return is_overridden(self, _SUPPORT_METHOD)

    @property
    def completes_by_itself(self) -> bool:
        """Whether a program has overridden `chat_completions_create`."""
        completions = getattr(self.chat, "completions", None)
        ours = isinstance(completions, _Completions) and not is_overridden(completions, _COMPLETIONS_METHOD)
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

        Args:
            model: The model, as the endpoint names it.
            messages: Message dicts in OpenAI's format. The `cache_control` of a message or of its parts is
                sent unchanged, at most four times, unless the endpoint refuses it. Other messages get markers
                if the endpoint accepts more.
            temperature: As for all sampling settings, the endpoint chooses if it is `None`.
            top_p: See `temperature`.
            top_k: See `temperature`; not sent to an endpoint that does not accept it.
            min_p: See `temperature`; not sent to an endpoint that does not accept it.
            max_tokens: Longest completion.
            stop: Texts that end the completion.
            response_format: The schema of the answer, a `json_schema` object. It is not sent if tools are
                offered.
            extra_headers: Further headers for this request.
            name: Ignored.
            tools: Tools in OpenAI's format, with canonical names.
            tool_choice: `auto` (default), `none`, `required`, or the function to call.
            kwargs: Further fields of the request.

        Raises:
            MCPError: There are tools, but the model cannot call any; or a message is not text.
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
        endpoint = LlmEndpoint(settings)
        calling = bool(tools) and tool_choice != "none"
        mode = OfferTools() if calling else RequireAnswer(_answer(response_format))
        conversation = conversation_of(messages, tools, mode, endpoint.profile)
        extra = {key: value for key, value in kwargs.items() if value is not None}
        if not calling and mode == RequireAnswer() and response_format:
            extra["response_format"] = response_format
        request = _Request(endpoint, conversation, tool_choice, extra)
        return response_of(self._complete(request, messages), model)

    def _supports_tool_calling(self, model: str, config: GameConfiguration | None = None) -> bool:
        """Return whether the model may be offered tools.

        Source: R12, P13
        """
        return supports_tool_calling(model, config or self.config)

    def _complete(self, request: "_Request", messages: Sequence[ChatMessage]) -> Reply:
        """Send the requests that `completion_attempts.py` asks for; reports have no reader here."""
        asked = _Asked(
            1 + sum(message.get("role") == "assistant" for message in messages), call_ids(messages)
        )
        settings = request.settings
        state, commands = attempt_step(Unsent(settings, settings.retry), CompletionWanted())
        while True:
            event: AttemptEvent = CompletionWanted()
            for command in commands:
                match command:
                    case SendRequest(settings=limited):
                        event = self._exchange(request, limited, asked)
                    case Wait(delay_s):
                        self._sleep(delay_s)
                    case AdaptProfile(fault):
                        request.adapt(fault)
                        # Keep the adapted profile for later requests.
                        self._settings = replace(self._settings, profile=request.endpoint.profile)
                    case Finish(Reply() as reply):
                        return reply
                    case Finish(LlmFailure() as failure):
                        raise CompletionError(failure)
                    case _:
                        pass
            state, commands = attempt_step(state, event)

    def _exchange(
        self, request: "_Request", settings: ModelSettings, asked: "_Asked"
    ) -> ReplyRead | RequestFailed:
        endpoint, conversation = request.endpoint, request.conversation
        profile = conversation.profile
        body, model = request.body(settings), endpoint.settings.model
        wanted = WantedRequest(model=model, prompt_bytes=len(body), max_tokens=settings.max_tokens)
        permit = permit_for_blocking(wanted)
        if isinstance(permit, str):
            fault = not_sent(permit)
            return RequestFailed(fault=fault, failure=endpoint.describe(fault), profile=profile)
        outcome = RequestOutcome()
        try:
            answer = self._post(endpoint, body)
            reply = _reply(answer, conversation, asked)
            outcome = outcome_of(answer, reply)
        finally:
            if permit is not None:
                permit.settle(outcome)
        if isinstance(reply, Reply):
            return ReplyRead(reply, profile)
        return RequestFailed(
            fault=reply,
            failure=endpoint.describe(reply),
            profile=profile,
            retry_after_s=answer.retry_after_s if isinstance(answer, Answered) else None,
            jitter=endpoint.jitter(),
        )

    def _post(self, endpoint: LlmEndpoint, body: bytes) -> Answered | Fault:
        timeout_s = endpoint.settings.retry.timeout_s
        try:
            with self._client(endpoint).stream(
                "POST", endpoint.url, content=body, headers=endpoint.headers
            ) as response:
                return _received(response, timeout_s)
        except (TimeoutError, httpx.HTTPError) as error:
            return fault_of_exchange(error, timeout_s)

    def _client(self, endpoint: LlmEndpoint) -> httpx.Client:
        if self._http is None:
            transport = self._transport
            if transport is not None and not isinstance(transport, httpx.BaseTransport):
                raise MCPConfigError("A blocking request needs a blocking transport.")
            self._http = httpx.Client(
                transport=transport,
                trust_env=not is_loopback(endpoint.settings.base_url),
                timeout=http_timeout(endpoint.settings.retry),
            )
        return self._http


def _reply(answer: Answered | Fault, conversation: Conversation, asked: "_Asked") -> Reply | Fault:
    if isinstance(answer, Fault):
        return answer
    if 200 <= answer.status < 300:
        return conversation.read(answer.body, request=asked.number, used_ids=asked.used_ids)
    return fault_of_status(answer.status, answer.body, answer.location)


class _Completions:
    """`client.chat.completions`; calls the client's `chat_completions_create`, even a replaced one."""

    def __init__(self, client: LLMClient) -> None:
        self._client = client

    def create(self, *args: Any, **kwargs: Any) -> LLMResponse:
        """Call `LLMClient.chat_completions_create`."""
        return self._client.chat_completions_create(*args, **kwargs)


_COMPLETION_METHOD = own_methods(LLMClient, ("chat_completions_create",))
_SUPPORT_METHOD = own_methods(LLMClient, ("_supports_tool_calling",))
_COMPLETIONS_METHOD = own_methods(_Completions, ("create",))


class _AskedByClient(LlmEndpoint):
    """An endpoint that asks its client's `_supports_tool_calling` whether a model can call tools."""

    def __init__(
        self, client: LLMClient, settings: LlmSettings, *, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        super().__init__(settings, transport=transport)
        self._client = client

    def support_check(self) -> SupportCheck:
        """Return when to ask the client: before a server starts, or not at all if tool support is forced."""
        return "skip" if self.settings.force_tool_support else "before"

    async def tool_support(self) -> ToolSupportChecked:
        """Ask the client whether the model can call tools."""
        settings = self.settings
        config = self._client.config
        return await asked_of_client(
            self._client, settings.model, config, endpoint=shown_endpoint(settings.base_url)
        )


class _Request:
    """One request; its body is encoded again for each attempt, because the profile may have changed."""

    def __init__(
        self,
        endpoint: LlmEndpoint,
        conversation: Conversation,
        tool_choice: str | Mapping[str, Any] | None,
        extra: Mapping[str, Any],
    ) -> None:
        self.endpoint = endpoint
        self.conversation = conversation
        self._tool_choice = tool_choice
        # Among the settings, so that a token limit in it counts as the user's.
        self.settings = replace(endpoint.settings, extra_body={**endpoint.settings.extra_body, **extra})

    def body(self, settings: ModelSettings) -> bytes:
        return self.conversation.body(settings, choice=self._choice())

    def adapt(self, fault: Fault) -> None:
        self.endpoint.adapt_to_error(fault)
        self.conversation.adopt(self.endpoint.profile)

    def _choice(self) -> Choice:
        match self._tool_choice:
            case {"function": {"name": str() as name}}:
                return Choice("named", self.conversation.names.to_wire(name))
            case "required":
                return Choice("required")
            case _:
                return Choice()


class _Asked(NamedTuple):
    """The number of a request in its conversation, and the call ids that are in use."""

    number: int
    used_ids: set[str]


def _with_base_url(config: GameConfiguration, base_url: str) -> GameConfiguration:
    return dataclasses.replace(config, client_base_url=base_url)


def _answer(response_format: Mapping[str, Any] | None) -> AnswerSchema | None:
    """Return the schema of a `json_schema` format; `None` for any other format."""
    shape = (response_format or {}).get("json_schema")
    if not isinstance(shape, Mapping) or not isinstance(shape.get("schema"), Mapping):
        return None
    return AnswerSchema(str(shape.get("name") or "answer"), dict(shape["schema"]))


def _received(response: httpx.Response, timeout_s: float) -> Answered | Fault:
    # The limits of httpx are for each read, so a slow reply could take for ever.
    deadline = time.monotonic() + timeout_s
    received = bytearray()
    try:
        for chunk in _decompressed(response):
            received += chunk
            if len(received) > MAX_REPLY_BYTES:
                raise BodyTooLongError(f"longer than {MAX_REPLY_BYTES} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError
    except EncodingError as error:
        return fault_of_body(error, response.status_code)
    return Answered(
        status=response.status_code,
        body=bytes(received),
        retry_after_s=retry_after(response.headers.get("retry-after"), time.time()),
        location=response.headers.get("location"),
    )


def _decompressed(response: httpx.Response) -> Iterator[bytes]:
    if response.is_stream_consumed:
        # A mock transport made the response, and httpx has read it already.
        yield from response.iter_bytes()
        return
    decoder = ContentDecoder(response.headers.get("content-encoding", ""), MAX_REPLY_BYTES)
    for raw in response.iter_raw():
        yield from decoder.feed(raw)
