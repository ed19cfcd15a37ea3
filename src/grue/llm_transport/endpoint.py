"""An LLM endpoint as an episode knows it: its settings, its connections, and what it has taught.

It outlives turns. Whoever enters it first opens the connections, whoever leaves it last closes them: the LLM
actor of each turn, and around those, where connections are to live on between turns, the runner. Each event
loop has connections of its own.
"""

import contextlib
import functools
import os
import ssl
from collections.abc import Callable, Iterator
from random import random
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx
import msgspec
from anyio.lowlevel import RunVar

from grue.errors import MCPConfigError
from grue.llm_transport.exchange import LONG_BYTES, Answered, Streamed, exchange
from grue.messages import LlmFailure, SupportCheck, ToolSupportChecked
from grue.protocol.chat_wire.failures import Fault, describe, is_loopback, shown_endpoint
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.model_list import ListedModel, find_model, read_models
from grue.protocol.chat_wire.profile import ModelSettings, WireName, WireProfile, with_inputs
from grue.protocol.chat_wire.profile_adaptation import adapt_profile
from grue.protocol.chat_wire.profiles import profile_for
from grue.protocol.content_encoding import ACCEPTED
from grue.protocol.model_support import checked_support
from grue.protocol.retry import RetryPolicy, next_delay
from grue.protocol.safe_text import printable
from grue.protocol.secret_names import looks_secret, secrets_in
from grue.runtime.redaction import Redaction

_CLOSE_TIMEOUT_S = 1.0
_LIST_TIMEOUT_S = 5.0
"""For a model list: it saves a failed request, and is not worth more than that."""

_LIMITS = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens"})
"""What the formats call the limit on a reply's length, where `extra_body` sets it."""

_HIDDEN = "[redacted]"
MIN_SECRET = 8
"""Shorter values are no secrets but placeholders, such as `none`, that would garble an endpoint's words."""

_OURS = frozenset({"model", "messages", "input", "system", "tools", "tool_choice", "stream"})
"""Fields of a request that no setting may replace."""


class LlmSettings(ModelSettings, frozen=True, kw_only=True):
    """Which endpoint and model, with which key, and how patiently.

    Attributes:
        base_url: Up to and without `/chat/completions`; one with the path of a wire format names that format.
            Without user and password, and without a key in its query: HTTP libraries log the URL.
        api_key: Sent as the format carries keys; `None` or empty: none. Never part of a `repr`.
        extra_headers: Sent along; their values are kept as secret as the key.
        retry: How often and how long to try.
        wire: The format; `None`: as the base URL suggests.
        profile: What the endpoint takes; `None`: as the base URL, the model and the format suggest.
        force_tool_support: Offer tools whatever the endpoint or the model's name says (R12.4).
    """

    base_url: str = "https://openrouter.ai/api/v1"
    api_key: str | None = None
    extra_headers: dict[str, str] = msgspec.field(default_factory=dict)
    retry: RetryPolicy = RetryPolicy()
    wire: WireName | None = None
    profile: WireProfile | None = None
    force_tool_support: bool = False

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Return names and values of the fields, secrets replaced."""
        shown = {
            "base_url": shown_endpoint(self.base_url),
            "api_key": _HIDDEN if self.api_key else self.api_key,
            "extra_headers": dict.fromkeys(self.extra_headers, _HIDDEN),
            "extra_body": {
                name: _HIDDEN if looks_secret(name) else value for name, value in self.extra_body.items()
            },
        }
        return [(name, shown.get(name, getattr(self, name))) for name in self.__struct_fields__]

    def named_values(self) -> dict[str, str]:
        """Return what is secret of them, by the names that tell; of a header also what follows `Bearer`."""
        headers = {name: value.strip() for name, value in self.extra_headers.items() if looks_secret(name)}
        tokens = {f"{name} token": value.rpartition(" ")[2] for name, value in headers.items()}
        named = {"api_key": (self.api_key or "").strip(), **headers, **tokens, **secrets_in(headers)}
        return {name: value for name, value in named.items() if len(value) >= MIN_SECRET}

    def __repr__(self) -> str:
        """Return what `__rich_repr__` shows."""
        return f"LlmSettings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class _Connections:
    """Connections of one event loop: a client for each request under way at once, kept for the next ones.

    Each client has one connection. One client with many would look at all of them, and ask the operating
    system about the idle ones, whenever a request begins or ends: with 100 agents a third of all the work.
    """

    def __init__(self, new_client: Callable[[], httpx.AsyncClient]) -> None:
        self.entered = 0
        self._new_client = new_client
        self._free: list[httpx.AsyncClient] = []
        self._all: list[httpx.AsyncClient] = []

    @contextlib.contextmanager
    def client(self) -> Iterator[httpx.AsyncClient]:
        """Lend a client that nobody else uses meanwhile."""
        if not self._free:
            self._free.append(self._new_client())
            self._all.append(self._free[0])
        client = self._free.pop()
        try:
            yield client
        finally:
            self._free.append(client)

    async def close(self) -> None:
        """Close all of them."""
        for client in self._all:
            await client.aclose()


class LlmEndpoint:
    """The way to one endpoint. Enter it (`async with`), any number of times, to use it.

    Args:
        settings: Which endpoint, and how to ask it.
        transport: Takes the requests instead of the network; closed like a connection.
        jitter: Chance for the waits, from 0 to 1.

    Raises:
        MCPConfigError: The base URL, a header or a further field of the body cannot be used.
    """

    def __init__(
        self,
        settings: LlmSettings,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        jitter: Callable[[], float] = random,
    ) -> None:
        self.settings = settings
        self._base_url = _usable_url(settings.base_url)
        self._redaction = _redaction(settings)
        self.profile = settings.profile or profile_for(settings.base_url, settings.model, settings.wire)
        _refuse_ours(settings)
        self.headers = _headers(settings, self.profile)
        self._transport = transport
        self._jitter = jitter
        self._says_tools: bool | None = None
        self._list_read = False
        # One client for each event loop: turns may run in several threads at once.
        self._connections: RunVar[_Connections | None] = RunVar("connections", None)

    @property
    def url(self) -> httpx.URL:
        """Where requests go."""
        return self.url_of(FORMATS[self.profile.wire].path)

    def url_of(self, path: str) -> httpx.URL:
        """Return the address of a path below the base URL."""
        return self._base_url.copy_with(path=f"{self._base_url.path.rstrip('/')}{path}")

    async def __aenter__(self) -> Self:
        connections = self._connections.get() or _Connections(self._open_client)
        connections.entered += 1
        self._connections.set(connections)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        connections = self._connections.get()
        if connections is None:
            return
        connections.entered -= 1
        if not connections.entered:
            self._connections.set(None)
            with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
                await connections.close()

    async def prepare(self) -> None:
        """Do what comes before the first request and needs no network: a client, and all that it imports."""
        async with self:
            with self._open().client():
                pass

    async def post(self, body: bytes, streamed: Streamed | None = None) -> Answered | Fault:
        """Send one request and return what came of it. Cancelled, it drops the connection.

        Args:
            body: A request in the profile's format.
            streamed: Takes the reply where it comes as events; `None`: none are expected.

        Raises:
            RuntimeError: The endpoint was not entered.
        """
        with self._open().client() as client:
            request = client.build_request("POST", self.url, content=body, headers=self.headers)
            return await exchange(client, request, self.settings.retry, streamed)

    async def models(self) -> Answered | Fault:
        """Ask for the list of models, which costs nothing anywhere; within a few seconds."""
        headers = {name: value for name, value in self.headers.items() if name != "Content-Type"}
        patience = msgspec.structs.replace(self.settings.retry, timeout_s=_LIST_TIMEOUT_S)
        with self._open().client() as client:
            request = client.build_request("GET", self.url_of("/models"), headers=headers)
            return await exchange(client, request, patience)

    async def _listed(self, answer: Answered | Fault) -> dict[str, ListedModel] | None:
        if isinstance(answer, Fault):
            return None
        if len(answer.body) <= LONG_BYTES:
            return read_models(answer.body)
        return await anyio.to_thread.run_sync(read_models, answer.body, abandon_on_cancel=True)

    def support_check(self) -> SupportCheck:
        """Return when the endpoint has to be asked whether the model takes tools (R12, D8)."""
        unasked = self.profile.lists_parameters and not self._list_read
        if not self._support().supported:
            return "before"
        return "beside" if unasked and not self.settings.force_tool_support else "skip"

    async def tool_support(self) -> ToolSupportChecked:
        """Say whether the model may be offered tools; the endpoint's list is read once, if it has one."""
        if self.profile.lists_parameters and not (self._list_read or self.settings.force_tool_support):
            models = await self._listed(await self.models())
            listed = find_model(models or {}, self.settings.model)
            self._says_tools = listed.takes_tools if listed else None
            if listed and listed.inputs is not None:
                self.profile = with_inputs(self.profile, listed.inputs)
            self._list_read = True
        return self._support()

    def adapt_to_error(self, fault: Fault, followed: WireProfile | None = None) -> bool:
        """Adjust the profile where a refusal teaches something; return whether to ask again by the new one.

        Args:
            fault: The refusal.
            followed: The profile of the refused request, which another conversation's lesson may have
                replaced meanwhile; default: the present one.
        """
        if adapt_profile(followed or self.profile, fault.status, fault.message) is None:
            return False
        self.profile = adapt_profile(self.profile, fault.status, fault.message) or self.profile
        return True

    def larger_limit(self) -> int | None:
        """Return the limit to ask for where a reply was cut at the one sent; `None`: no larger one.

        Only the profile's own default may be enlarged. A limit that the settings name is the user's: nothing
        ever asks for more.
        """
        limit = self.profile.limit(self.settings)
        if limit is None or self.settings.max_tokens is not None or _LIMITS & self.settings.extra_body.keys():
            return None
        larger = int(limit * self.settings.retry.length_retry_factor)
        larger = min(larger, self.profile.max_output_tokens or larger)
        return larger if larger > limit else None

    def describe(self, fault: Fault) -> LlmFailure:
        """Return what is told of `fault`, without a secret."""
        settings = self.settings
        return describe(
            fault,
            base_url=settings.base_url,
            model=settings.model,
            profile=self.profile,
            redacted=self._redaction.plain,
        )

    def delay(self, attempt: int, failure: LlmFailure, retry_after_s: float | None) -> float | None:
        """Return the seconds to wait before the next request, `None` to give up."""
        return next_delay(
            self.settings.retry, attempt, failure, retry_after_s=retry_after_s, jitter=self._jitter()
        )

    def _support(self) -> ToolSupportChecked:
        settings = self.settings
        return checked_support(
            settings.model,
            shown_endpoint(settings.base_url),
            forced=settings.force_tool_support,
            endpoint_says=self._says_tools,
        )

    def _open(self) -> _Connections:
        connections = self._connections.get()
        if connections is None:
            raise RuntimeError("enter the endpoint before posting to it")
        return connections

    def _open_client(self) -> httpx.AsyncClient:
        patience = self.settings.retry
        timeout_s = patience.timeout_s
        return httpx.AsyncClient(
            transport=self._transport,
            verify=_tls() if self._base_url.scheme == "https" else _no_tls(),
            # Proxies are the environment's to name, but never stand before this machine itself.
            trust_env=not is_loopback(self.settings.base_url),
            timeout=httpx.Timeout(timeout_s, connect=min(patience.connect_timeout_s, timeout_s)),
        )


@functools.cache
def _tls() -> ssl.SSLContext:
    # Loading the certificates takes 20 ms: once a process is enough.
    return httpx.create_ssl_context()


@functools.cache
def _no_tls() -> ssl.SSLContext:
    """Return a context that trusts nobody, for a client that speaks plain HTTP only."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _usable_url(base_url: str) -> httpx.URL:
    """Return a base URL without the path of a format, which the profile adds."""
    try:
        url = httpx.URL(base_url.strip())
        in_range = urlsplit(base_url.strip()).port != 0
    except (httpx.InvalidURL, ValueError):
        # The error may quote a piece of a password.
        raise MCPConfigError("The base URL cannot be read: check its host and its port.") from None
    _refuse_credentials(url)
    if url.scheme not in ("http", "https") or not url.host or not in_range:
        raise MCPConfigError("The base URL must start with http:// or https://, followed by a host.")
    path = url.path.rstrip("/")
    ending = next((known.path for known in FORMATS.values() if path.endswith(known.path)), "")
    return url.copy_with(path=path.removesuffix(ending) or "/")


def _refuse_credentials(url: httpx.URL) -> None:
    """Refuse a URL that cannot be shown: httpx logs it with every request."""
    instead = "set api_key (in the environment: GRUE_API_KEY), or a header with extra_headers"
    if url.userinfo:
        raise MCPConfigError(
            "The base URL has a user or a password in it, and HTTP libraries log URLs. Take it out, and"
            f' {instead}, for example {{"Authorization": "Basic ..."}}.'
        )
    secret = next((name for name in url.params if looks_secret(name)), None)
    if secret is not None:
        raise MCPConfigError(
            f"The base URL has {printable(secret, 40)!r} in its query, and HTTP libraries log URLs."
            f" Take it out, and {instead}."
        )


def _redaction(settings: LlmSettings) -> Redaction:
    """Return what keeps an endpoint from repeating secrets: those of the environment, and what it is sent."""
    headers = {name: value.strip() for name, value in settings.extra_headers.items()}
    sent = {name: value for name, value in headers.items() if len(value) >= MIN_SECRET}
    return Redaction({**secrets_in(os.environ), **sent, **settings.named_values()})


def _refuse_ours(settings: LlmSettings) -> None:
    ours = sorted(_OURS & settings.extra_body.keys())
    if ours:
        raise MCPConfigError(f"extra_body may not have {', '.join(ours)}: these fields are set by the turn.")


def _headers(settings: LlmSettings, profile: WireProfile) -> dict[str, str]:
    key = (settings.api_key or "").strip()
    own = FORMATS[profile.wire].headers(key)
    headers = {
        "Accept": "application/json, text/event-stream",
        "Accept-Encoding": ACCEPTED,
        "Content-Type": "application/json",
        "User-Agent": "grue",
        **own,
        **{name: value.strip() for name, value in settings.extra_headers.items()},
    }
    for name, value in headers.items():
        # Checked here because the error that httpx would raise quotes the value.
        if not (name.isascii() and value.isascii() and f"{name}{value}".isprintable()):
            what = "API key" if name in own else f"header {name!a}"
            raise MCPConfigError(f"The {what} holds characters that no HTTP header can carry.")
    return headers
