"""An LLM endpoint as an episode knows it: its settings, its connections, and what it has taught.

It outlives turns. Whoever enters it first opens the connections, whoever leaves it last closes them: the LLM
actor of each turn, and around those, where connections are to live on between turns, the runner. Each event
loop has connections of its own.
"""

import functools
import ssl
import time
from collections.abc import Callable
from random import random
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import anyio
import httpx
import msgspec
from anyio.lowlevel import RunVar
from msgspec import Struct

from grue.errors import MCPConfigError
from grue.messages import LlmFailure
from grue.protocol.chat_wire.failures import Fault, describe, is_loopback, shown_endpoint
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile, lesson, profile_for
from grue.protocol.retry import RetryPolicy, next_delay, retry_after

CONNECT_TIMEOUT_S = 10.0
MAX_REPLY_BYTES = 64 * 2**20
"""Longest reply that is read; an endpoint that sends more is not answering the question."""

_CLOSE_TIMEOUT_S = 1.0
_HIDDEN = "[redacted]"


class LlmSettings(ModelSettings, frozen=True, kw_only=True):
    """Which endpoint and model, with which key, and how patiently.

    Attributes:
        base_url: Up to and without `/chat/completions`.
        api_key: Sent as bearer token; `None` or empty: none. Never part of a `repr`.
        extra_headers: Sent along; their values are kept as secret as the key.
        retry: How often and how long to try.
        profile: What the endpoint takes; `None`: as the base URL suggests.
    """

    base_url: str = "https://openrouter.ai/api/v1"
    api_key: str | None = None
    extra_headers: dict[str, str] = msgspec.field(default_factory=dict)
    retry: RetryPolicy = RetryPolicy()
    profile: WireProfile | None = None

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Return names and values of the fields, secrets replaced."""
        shown = {
            "base_url": shown_endpoint(self.base_url),
            "api_key": _HIDDEN if self.api_key else self.api_key,
            "extra_headers": dict.fromkeys(self.extra_headers, _HIDDEN),
        }
        return [(name, shown.get(name, getattr(self, name))) for name in self.__struct_fields__]

    def __repr__(self) -> str:
        """Return what `__rich_repr__` shows."""
        return f"LlmSettings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class Answered(Struct, frozen=True):
    """What an endpoint sent back.

    Attributes:
        status: HTTP status.
        body: Decompressed.
        retry_after_s: What it asks for before the next request.
        location: Where a redirect points; redirects are not followed, since the key would go along.
    """

    status: int
    body: bytes
    retry_after_s: float | None = None
    location: str | None = None


class _Connections(Struct):
    client: httpx.AsyncClient
    entered: int = 0


class LlmEndpoint:
    """The way to one endpoint. Enter it (`async with`), any number of times, to use it.

    Args:
        settings: Which endpoint, and how to ask it.
        transport: Takes the requests instead of the network; closed like a connection.
        jitter: Chance for the waits, from 0 to 1.

    Raises:
        MCPConfigError: The base URL or a header cannot be used.
    """

    def __init__(
        self,
        settings: LlmSettings,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        jitter: Callable[[], float] = random,
    ) -> None:
        self.settings = settings
        self.url = _completions_url(settings.base_url)
        self.profile = settings.profile or profile_for(settings.base_url)
        self.headers = _headers(settings)
        self._transport = transport
        self._jitter = jitter
        # One client for each event loop: turns may run in several threads at once.
        self._connections: RunVar[_Connections | None] = RunVar("connections", None)

    async def __aenter__(self) -> Self:
        connections = self._connections.get() or _Connections(self._open_client())
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
                await connections.client.aclose()

    async def post(self, body: bytes) -> Answered | Fault:
        """Send one request and return what came of it. Cancelled, it drops the connection.

        Args:
            body: A chat completions request.

        Raises:
            RuntimeError: The endpoint was not entered.
        """
        connections = self._connections.get()
        if connections is None:
            raise RuntimeError("enter the endpoint before posting to it")
        timeout_s = self.settings.retry.timeout_s
        try:
            # The limits of httpx are for each read and write: a reply that drips could last for ever.
            with anyio.fail_after(timeout_s):
                return await self._exchange(connections.client, body)
        except (TimeoutError, httpx.HTTPError) as error:
            return fault_of_exchange(error, timeout_s)

    def learn(self, fault: Fault) -> bool:
        """Adjust the profile where the endpoint's refusal teaches something; return whether it did."""
        learned = lesson(self.profile, fault.status, fault.message)
        if learned is None:
            return False
        self.profile = learned
        return True

    def describe(self, fault: Fault) -> LlmFailure:
        """Return what is told of `fault`, without a secret."""
        settings = self.settings
        secrets = [settings.api_key or "", self.url.password, *settings.extra_headers.values()]
        return describe(
            fault,
            base_url=settings.base_url,
            model=settings.model,
            profile=self.profile,
            secrets=[secret.strip() for secret in secrets],
        )

    def delay(self, attempt: int, failure: LlmFailure, retry_after_s: float | None) -> float | None:
        """Return the seconds to wait before the next request, `None` to give up."""
        return next_delay(
            self.settings.retry, attempt, failure, retry_after_s=retry_after_s, jitter=self._jitter()
        )

    async def _exchange(self, client: httpx.AsyncClient, body: bytes) -> Answered | Fault:
        async with client.stream("POST", self.url, content=body, headers=self.headers) as response:
            received = bytearray()
            async for chunk in response.aiter_bytes():
                received += chunk
                if len(received) > MAX_REPLY_BYTES:
                    words = f"the reply is longer than {MAX_REPLY_BYTES} bytes"
                    return Fault(kind="invalid_reply", status=response.status_code, message=words)
        headers = response.headers
        return Answered(
            status=response.status_code,
            body=bytes(received),
            retry_after_s=retry_after(headers.get("retry-after"), time.time()),
            location=headers.get("location"),
        )

    def _open_client(self) -> httpx.AsyncClient:
        timeout_s = self.settings.retry.timeout_s
        return httpx.AsyncClient(
            transport=self._transport,
            verify=_tls() if self.url.scheme == "https" else _no_tls(),
            # Proxies are the environment's to name, but never stand before this machine itself.
            trust_env=not is_loopback(self.settings.base_url),
            timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_TIMEOUT_S, timeout_s)),
        )


def fault_of_exchange(error: TimeoutError | httpx.HTTPError, timeout_s: float) -> Fault:
    """Return what an exchange that ended in `error` means; `timeout_s` is what it was given."""
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.ProxyError():
            return Fault(kind="unreachable", message=f"cannot connect: {_cause(error)}")
        case TimeoutError() | httpx.TimeoutException():
            return Fault(kind="timed_out", message=f"no complete reply within {timeout_s:g} s")
        case httpx.DecodingError():
            return Fault(kind="invalid_reply", message=f"the reply cannot be decompressed: {error}")
        case _:
            return Fault(kind="unavailable", message=f"the connection broke: {_cause(error)}")


@functools.cache
def _tls() -> ssl.SSLContext:
    # Loading the certificates takes 20 ms: once a process is enough.
    return httpx.create_ssl_context()


@functools.cache
def _no_tls() -> ssl.SSLContext:
    """Return a context that trusts nobody, for a client that speaks plain HTTP only."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _completions_url(base_url: str) -> httpx.URL:
    try:
        url = httpx.URL(base_url.strip())
        in_range = urlsplit(base_url.strip()).port != 0
    except (httpx.InvalidURL, ValueError) as error:
        raise MCPConfigError(f"The base URL cannot be read: {error}.") from error
    if url.scheme not in ("http", "https") or not url.host or not in_range:
        raise MCPConfigError("The base URL must start with http:// or https://, followed by a host.")
    path = url.path.rstrip("/")
    return url if path.endswith("/chat/completions") else url.copy_with(path=f"{path}/chat/completions")


def _headers(settings: LlmSettings) -> dict[str, str]:
    headers = {
        "Accept": "application/json",
        "Content-Type": "application/json",
        "User-Agent": "grue",
    }
    key = (settings.api_key or "").strip()
    if key:
        headers["Authorization"] = f"Bearer {key}"
    headers |= {name: value.strip() for name, value in settings.extra_headers.items()}
    for name, value in headers.items():
        # Checked here because the error that httpx would raise quotes the value.
        if not (name.isascii() and value.isascii() and f"{name}{value}".isprintable()):
            what = "API key" if name == "Authorization" else f"header {name!a}"
            raise MCPConfigError(f"The {what} holds characters that no HTTP header can carry.")
    return headers


def _cause(error: BaseException) -> str:
    """Return the innermost words: those of the operating system or the TLS library, where there are any."""
    words = str(error)
    cause = error.__cause__
    while cause is not None:
        words = str(cause) or words
        cause = cause.__cause__
    return words or type(error).__name__
