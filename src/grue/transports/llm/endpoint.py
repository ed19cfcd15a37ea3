"""`LlmEndpoint`: the settings, the connections and the profile of one LLM endpoint."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from random import random
from typing import Protocol, Self
from urllib.parse import quote, urlsplit

import anyio
import anyio.to_thread
import httpx
import msgspec
from anyio.lowlevel import RunVar
from msgspec.structs import replace

from grue import messages as m
from grue.errors import MCPConfigError
from grue.field_checks import OwnKeywords, check_settings, repr_by_fields, shown
from grue.policies import SupportCheck
from grue.protocol.chat_wire import profile as wire_profile
from grue.protocol.chat_wire import profiles
from grue.protocol.chat_wire.failures import NO_KEY, Fault, describe
from grue.protocol.chat_wire.formats import FORMATS, WireName
from grue.protocol.retry import RetryPolicy
from grue.protocol.turn.completion_attempts import Breaker
from grue.protocol.turn.prices import Price, price_of
from grue.runtime.safe_text import printable
from grue.runtime.secrets.redaction import Redaction
from grue.runtime.secrets.secret_forms import looks_secret, secrets_in
from grue.transports.llm import exchange as http

OWN_KEY = "GRUE_API_KEY"


def key_names(base_url: str) -> tuple[str, ...]:
    """Return the environment variables that may hold the key for `base_url`; the first that is set counts."""
    rows = profiles.known_profiles(base_url)
    if not rows or urlsplit(base_url).scheme != "https":
        return (OWN_KEY,)
    return (OWN_KEY, rows[0].key_variable)


def needs_key(base_url: str) -> bool:
    """Return whether `base_url` belongs to a provider that is known to refuse requests without a key."""
    return bool(profiles.known_profiles(base_url))


def api_key(base_url: str, environ: Mapping[str, str]) -> str | None:
    """Return the environment's key for `base_url`, or `None`; raises `MCPConfigError` for an unusable key."""
    for name in key_names(base_url):
        key = environ.get(name, "").strip()
        if not key:
            continue
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise MCPConfigError(
                f"The environment variable {name} does not contain a usable API key: it has a space, a"
                " control character or a character outside ASCII. Set it again."
            )
        return key
    return None


def require_key(base_url: str, key: str | None, otherwise: str = "") -> None:
    """Raise `MCPConfigError` (with `otherwise` in its text) if the endpoint needs a key and gets none."""
    if not key and needs_key(base_url):
        names, shown_url = " or ".join(key_names(base_url)), wire_profile.shown_endpoint(base_url)
        raise MCPConfigError(f"There is no key for {shown_url}: set {names} in the environment{otherwise}.")


def key_sentence(base_url: str, environ: Mapping[str, str]) -> str:
    """Return a sentence for an error about a refused key: where grue found the key, or looked for one."""
    names = key_names(base_url)
    used = next((name for name in names if environ.get(name, "").strip()), None)
    if used is not None:
        return f"The key was that of {used}."
    looked_for = " and ".join(names)
    return f"{NO_KEY}: {looked_for} {'are' if len(names) > 1 else 'is'} not set."


def _key_setting(base_url: str, key: str | None, environ: Mapping[str, str]) -> str:
    """Return where the key came from: a variable's name, or `api_key`; empty: `key` is `None`."""
    if key is None:
        return ""
    held = (name for name in key_names(base_url) if key and environ.get(name, "").strip() == key.strip())
    return next(held, "api_key")


_LIST_TIMEOUT_S = 5.0  # short, because a turn can do without the list of models
_FILE_TIMEOUT_S = 3600.0

_HIDDEN = "[redacted]"
MIN_SECRET = 8  # characters of the shortest secret that is redacted; a shorter key may be a dummy
# Fields of `extra_body` for which OpenTelemetry spans have attributes.
_FURTHER_SAMPLING = ("seed", "frequency_penalty", "presence_penalty", "n", "service_tier")
_HEADER_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)

_SCHEME_MISSING = "The base URL must start with http:// or https://, followed by a host."


class LlmSettings(wire_profile.ModelSettings, metaclass=OwnKeywords, frozen=True, kw_only=True):
    """Settings of an endpoint: URL, model, key, time limits and retries.

    Attributes:
        base_url: The URL without `/chat/completions`. An ending such as `/responses` or `/messages` selects
            the wire format. HTTP libraries log the URL, so no user, password or key may be in it.
        api_key: The key, sent in the header that the wire format uses. `None`: the key in the environment, in
            `GRUE_API_KEY` or the variable of the URL's provider, such as `OPENROUTER_API_KEY`. Empty: no key
            is sent. Never part of a `repr`.
        extra_headers: Sent with each request, except `Content-Length` and `Transfer-Encoding`. If a header's
            name looks secret, such as `X-Api-Key`, its value is redacted like the key.
        wire: The wire format, if `profile` is not set; `None`: derived from the base URL.
        profile: What the endpoint supports; `None`: derived from the base URL, the model and the format.
        prices: What models cost, by name or pattern, for endpoints that do not report the cost of a reply.
        force_tool_support: Offer tools even if the model's name or the endpoint says that it takes no tools.
        then: The models that are asked, in this order, if after all retries this model's endpoint cannot be
            reached, answers with a status such as 429 or most 5xx, does not answer in time, or sends a reply
            that breaks off or is damaged; or if tools are offered, and this model takes none. Their own
            `then` must be empty. After such a failure, a model is asked last for some time.

    Source: R12.4
    """

    base_url: str = "https://openrouter.ai/api/v1"
    api_key: str | None = None
    extra_headers: dict[str, str] = msgspec.field(default_factory=dict)
    retry: RetryPolicy = RetryPolicy()
    wire: WireName | None = None
    profile: wire_profile.WireProfile | None = None
    prices: Mapping[str, Price] = msgspec.field(default_factory=dict)
    force_tool_support: bool = False
    then: tuple[LlmSettings, ...] = ()

    def __post_init__(self) -> None:
        for field, example in (("base_url", "http://127.0.0.1:11434/v1"), ("model", "qwen3")):
            value: object = getattr(self, field)
            if not isinstance(value, str) or (field == "model" and not value.strip()):
                raise MCPConfigError(
                    f"LlmSettings({field}={shown(value)}): {field} is a text that may not be empty, such as"
                    f" {field}={example!r}."
                )
        if not isinstance(self.then, list | tuple) or not all(
            isinstance(each, LlmSettings) and not each.then for each in self.then
        ):
            raise MCPConfigError(
                "LlmSettings(then=...) wants the LlmSettings of the models that are asked next, which have no"
                " `then` of their own: LlmSettings(..., then=(LlmSettings(...), LlmSettings(...)))."
            )
        check_settings(self, any_number=("top_k", "extra_body"), above_0=("max_tokens",))
        if self.extra_body.get("n") not in (None, 1):
            raise MCPConfigError(
                f"LlmSettings(extra_body={{'n': {self.extra_body['n']!r:.20}}}): that asks for several"
                " replies at once, and a turn reads one. Leave `n` out."
            )
        for name, value in self.extra_body.items():
            try:
                json.dumps(value, default=repr, skipkeys=True, check_circular=False, allow_nan=False)
            except RecursionError:
                pass  # `value` is nested too deeply to be checked; the runner refuses it
            except ValueError as error:
                raise MCPConfigError(
                    f"LlmSettings(extra_body={{{shown(name)}: ...}}): JSON has no number that is infinite or"
                    " not a number. Leave it out."
                ) from error
        url = self.base_url.strip()
        if url and "://" not in url:
            url = re.sub(r"^https?:/*", "", url)
            host = re.split(r"[:/]", url)[0]
            scheme = "https" if "." in host and not wire_profile.is_loopback(f"http://{url}") else "http"
            meant = f" Did you mean {wire_profile.shown_endpoint(f'{scheme}://{url}')}?"
            raise MCPConfigError(_SCHEME_MISSING + meant)

    def __rich_repr__(self) -> list[tuple[str, object]]:
        shown = {
            "base_url": wire_profile.shown_endpoint(self.base_url),
            "api_key": _HIDDEN if self.api_key else self.api_key,
            "extra_headers": dict.fromkeys(self.extra_headers, _HIDDEN),
            "extra_body": {
                name: _HIDDEN if looks_secret(name) else value for name, value in self.extra_body.items()
            },
        }
        return [(name, shown.get(name, getattr(self, name))) for name in self.__struct_fields__]

    def named_values(self) -> dict[str, str]:
        """Return keys and secret headers of 8 or more characters, by name. `Bearer KEY` gives `KEY`, too."""
        headers = {name: value.strip() for name, value in self.extra_headers.items() if looks_secret(name)}
        tokens = {f"{name} token": value.rpartition(" ")[2] for name, value in headers.items()}
        named = {"api_key": (self.api_key or "").strip(), **headers, **tokens, **secrets_in(headers)}
        for number, each in enumerate(self.then, start=2):
            named |= {f"{name} of model {number}": value for name, value in each.named_values().items()}
        return {name: value for name, value in named.items() if len(value) >= MIN_SECRET}

    __repr__ = repr_by_fields


msgspec.json.Decoder(LlmSettings)  # msgspec crashes if two threads make a class's first decoder at once


class RequestPostponed(Exception):  # noqa: N818 - what has happened to the request
    """The request waits: for a batch, under the id `item`; or, if `item` is `budget`, for a larger budget."""

    def __init__(self, item: str) -> None:
        super().__init__(f"the request waits for a batch as {item}")
        self.item = item


class ReplyRoom(Protocol):
    """Stores requests for a batch, which a provider answers hours later, and returns the replies."""

    async def reply_to(self, endpoint: LlmEndpoint, body: bytes, request: int) -> http.Answered | Fault:
        """Return the reply or the error; before it comes, store the request and raise `RequestPostponed`.

        If the budget refuses the request, it is not stored: return a fault, or raise `RequestPostponed`.
        """

    def read(self, model: str, outcome: http.RequestOutcome) -> None:
        """Take note of the cost in `outcome`, if this room counts costs."""


# The `ReplyRoom` of the current turn; `None`: the process's `ReplyRoom` (`set_process_room`), if any.
reply_room: ContextVar[ReplyRoom | None] = ContextVar("reply_room", default=None)
_of_process: list[ReplyRoom] = []


def set_process_room(room: ReplyRoom | None) -> None:
    """Set the `ReplyRoom` of all turns that have no `reply_room`; `None`: these turns use no batch."""
    _of_process[:] = [] if room is None else [room]


def current_room() -> ReplyRoom | None:
    """Return the `ReplyRoom` of the calling code's turn; `None`: the turn uses no batch."""
    return reply_room.get() or (_of_process[0] if _of_process else None)


def limit_in(body: bytes) -> int | None:
    """Return the limit that a request sets for the tokens of its reply; `None`: it sets no usable one."""
    asked = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    fields = frozenset().union(*(each.limit_fields for each in FORMATS.values()))
    # A limit may be any value, because it may come from the user's `extra_body`.
    limits = (msgspec.json.decode(value) for name, value in asked.items() if name in fields)
    return next((int(limit) for limit in limits if limit and isinstance(limit, int | float)), None)


class LlmEndpoint:
    """One LLM endpoint. Enter it with `async with` before use; it may be entered several times at once.

    Each event loop has its own connections, which are closed when the last `async with` in this loop ends.

    Args:
        transport: Replaces the network, for tests and scripted models. It is closed with the connections.
        jitter: Returns a random number from 0 to 1, for the delays between retries.

    Attributes:
        profile: What the endpoint supports, corrected when grue learns more, for example from an error.
        first_profile: What `profile` was before grue had learned anything about the endpoint.
        left_out: The unsupported settings that a `SettingsLeftOut` has reported.
        chain: This endpoint, and the endpoints of `LlmSettings.then`.
        breaker: How many times in a row this endpoint failed, and until when another endpoint is asked first.
        judged_tools: `False` as long as the LLM actor checks that the model receives the tools: until the
            model calls one, or `ToolsUnseen` is reported.

    Raises:
        MCPConfigError: The base URL, the key, a header or a field of `extra_body` cannot be used.
    """

    def __init__(
        self,
        settings: LlmSettings,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        jitter: Callable[[], float] = random,
    ) -> None:
        self._base_url = _usable_url(settings.base_url)
        self._key_words = ""
        if settings.api_key is None:
            key = api_key(settings.base_url, os.environ)
            self._key_words = key_sentence(settings.base_url, os.environ)
            settings = replace(settings, api_key=key)
        self._key_setting = _key_setting(settings.base_url, settings.api_key, os.environ)
        self.settings = settings
        self.left_out: frozenset[str] = frozenset()
        self.judged_tools = False
        self._redaction = _redaction(settings)
        self.first_profile = settings.profile or profiles.profile_for(
            settings.base_url, settings.model, settings.wire
        )
        self.profile = self.first_profile
        # A header in `extra_headers` may serve as the key.
        usual = {name.lower() for name in FORMATS[self.profile.wire].headers("key") if looks_secret(name)}
        for name in reversed(settings.extra_headers):
            if name.lower() in usual or (name.lower() in _KEY_HEADERS and not settings.api_key):
                self._key_words, self._key_setting = "", f"{name} in extra_headers"
        # Refuse the fields of all wire formats: after an error, another format may be used.
        fields = frozenset().union(*(each.own_fields for each in FORMATS.values()))
        if ours := sorted(fields & settings.extra_body.keys()):
            raise MCPConfigError(
                f"extra_body may not have {', '.join(ours)}: these fields are set by the turn."
            )
        self.headers = _headers(settings, self.profile)
        self._transport = transport
        self.jitter = jitter
        others = (LlmEndpoint(each, transport=transport, jitter=jitter) for each in settings.then)
        self.chain: tuple[LlmEndpoint, ...] = (self, *others)
        self.breaker = Breaker()
        self._says_tools: bool | None = None
        self._list_read = False
        # Each event loop has connections of its own, because turns may run in several threads at once.
        self._connections: RunVar[http.Connections | None] = RunVar("connections", None)

    @property
    def url(self) -> str:
        """The URL that unstreamed requests are posted to."""
        return str(self._url_for(None))

    def _url_for(self, streamed: http.Streamed | None, wire: str = "") -> httpx.URL:
        stream = streamed is not None and streamed.asked
        path = FORMATS[wire or self.profile.wire].path_of(self.settings.model, stream=stream)
        return _below(self._base_url, path)

    async def __aenter__(self) -> Self:
        connections = self._connections.get() or http.Connections(self._new_connection)
        connections.entered += 1
        self._connections.set(connections)
        for other in self.chain[1:]:
            await other.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for other in self.chain[1:]:
            await other.__aexit__(*exc_info)
        connections = self._connections.get()
        if connections is None:
            return
        connections.entered -= 1
        if not connections.entered:
            self._connections.set(None)
            with anyio.move_on_after(http.CLOSE_TIMEOUT_S, shield=True):
                await connections.close()

    async def prepare(self) -> None:
        """Import modules and load certificates, if needed, before the first request opens a connection."""
        async with self:
            with self._open().lease():
                pass

    def post(
        self,
        body: bytes,
        streamed: http.Streamed | None = None,
        on_sent: Callable[[], None] | None = None,
        *,
        request: int = 0,
        wire: str = "",
    ) -> Awaitable[http.Answered | Fault]:
        """Send one request and return its answer or the fault. A cancellation drops the connection.

        `body` is in the format `wire`, or else in the profile's: another conversation may have changed the
        profile since `body` was encoded. `streamed` gets a streamed reply; `None`: no stream is expected.
        `on_sent` is called when the request is written, and again when the exchange has ended. `request`: the
        request's number in the turn. If the reply comes from a batch, `streamed` and `on_sent` are not used.

        Raises:
            RuntimeError: The endpoint was not entered.
            RequestPostponed: The request waits for a batch.
        """
        room = current_room()
        if room is not None:
            return room.reply_to(self, body, request)
        posted = httpx.Request("POST", self._url_for(streamed, wire), headers=self.headers, content=body)
        return http.exchange(self._open(), posted, self.settings.retry, streamed, on_sent)

    async def models(self) -> http.Answered | Fault:
        """Request the list of models, within 5 s at most. The known providers do not charge for the list."""
        patience = replace(self.settings.retry, timeout_s=_LIST_TIMEOUT_S)
        return await http.exchange(self._open(), self._request("GET", "/models"), patience)

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
        upload: http.Upload | None = None,
    ) -> http.Answered | Fault:
        """Send a request that asks no model, such as one about a batch; `content` is JSON."""
        retry = self.settings.retry
        if upload is not None:
            retry = replace(retry, timeout_s=max(retry.timeout_s, _FILE_TIMEOUT_S))
        return await http.exchange(self._open(), self._request(method, path, content, upload, params), retry)

    async def download(self, path: str, most_bytes: int) -> AsyncIterator[bytes | Fault]:
        """Yield a file in pieces. If it has over `most_bytes`, or cannot be fetched, a `Fault` comes last."""
        retry = self.settings.retry
        limit_s = max(retry.timeout_s, _FILE_TIMEOUT_S)
        until = anyio.current_time() + limit_s
        request = self._request("GET", path)
        request.headers["Accept-Encoding"] = "identity"
        request.extensions["timeout"] = http.timeouts_of(retry)
        with self._open().lease() as connection:
            try:
                with anyio.fail_after(retry.timeout_s):
                    reply = await connection.send(request)
                try:
                    async for piece in _body_of(reply, until, most_bytes):
                        yield piece
                finally:
                    with anyio.move_on_after(http.CLOSE_TIMEOUT_S, shield=True):
                        await reply.close()
            except (TimeoutError, http.ExchangeError) as error:
                # A timeout before `until` was that of the first byte or of one piece: `retry.timeout_s`.
                late = anyio.current_time() >= until
                yield http.fault_of(error, limit_s if late else retry.timeout_s)

    def _request(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        upload: http.Upload | None = None,
        params: Mapping[str, str] | None = None,
    ) -> httpx.Request:
        headers = {name: value for name, value in self.headers.items() if name.lower() != "content-type"}
        if upload is not None:
            headers |= {"Content-Type": upload.content_type, "Content-Length": str(upload.size)}
        elif content is not None:
            headers["Content-Type"] = "application/json"
        # Quote the path, because it may contain an id that the provider chose.
        url = _below(self._base_url, quote(path))
        return httpx.Request(
            method,
            url.copy_merge_params(params) if params else url,
            headers=headers,
            content=content if upload is None else upload.pieces(),
        )

    def asked(self) -> m.ModelAsked:
        """Describe the model, its endpoint and its settings, for the trace."""
        settings, profile, first = self.settings, self.profile, self.first_profile
        if settings.profile is not None:  # a program that reads the trace does not have the user's profile
            first = profiles.profile_for(settings.base_url, settings.model, profile.wire)
        extra = settings.extra_body
        named = {name: extra.get(name) for name in _FURTHER_SAMPLING}
        further = {name: value for name, value in named.items() if isinstance(value, str | int | float)}
        return m.ModelAsked(
            model=settings.model,
            address=wire_profile.shown_endpoint(settings.base_url),
            provider=profiles.provider_name(settings.base_url, profile.wire),
            wire=profile.wire,
            sampling={**profile.sampled(settings), **further},
            streams=profile.streams,
            form={} if profile is first else wire_profile.changed_fields(first, profile),
        )

    def first(self, now_s: float, *, tools: bool) -> LlmEndpoint:
        """Return the first endpoint of the chain whose `breaker` is not open, or else the first of the chain.

        With `tools`, only endpoints that take tools count; if none does, `self`. `now_s`: the loop's time.
        """
        if len(self.chain) == 1:
            return self
        return self.after((), now_s, tools=tools) or self

    def of_chain(self, asked: m.ModelAsked | None) -> LlmEndpoint:
        """Return the endpoint of the chain that has the model and address of `asked`, or else `self`."""
        wanted = None if asked is None else (asked.model, asked.address)
        return next((each for each in self.chain if _place(each.settings) == wanted), self)

    def after(self, tried: Sequence[LlmEndpoint], now_s: float, *, tools: bool) -> LlmEndpoint | None:
        """Return the endpoint of the chain to ask after those in `tried`; `None`: no endpoint is left.

        With `tools`, it must take tools. An endpoint whose `breaker` is open at `now_s` comes last.
        """
        left = [each for each in self.chain if each not in tried and (not tools or each.takes_tools)]
        return min(left, key=lambda each: each.breaker.is_open(now_s), default=None)

    @property
    def takes_tools(self) -> bool:
        """`True` if the model may be offered tools, as far as grue knows."""
        return self._support().supported

    @property
    def price(self) -> Price | None:
        """The user's price for the model (in batches, if the turn uses batches); `None`: no price is set."""
        price = price_of(self.settings.prices, self.settings.model)
        return price.in_batches if price is not None and current_room() is not None else price

    def uncounted(self, now_s: float) -> LlmEndpoint | None:
        """Return an endpoint of the chain whose replies may have no known cost; `None`: all costs are known.

        An endpoint that never reports a cost is preferred, then the one that is asked first at `now_s`.
        """
        first = self.first(now_s, tools=False)
        return min(
            (each for each in self.chain if not each.reports_cost),
            key=lambda each: (each.reports_cost is None, each is not first),
            default=None,
        )

    @property
    def reports_cost(self) -> bool | None:
        """`True` if the cost of each reply will be known. `None`: only the first reply will show this."""
        if self.price is not None:
            return True
        return {"always": True, "never": False, "unknown": None}[self.profile.reports_cost]

    def support_check(self) -> SupportCheck:
        """Return when to call `tool_support`.

        `before`: before the servers start, because the model probably takes no tools; if `tool_support`
        confirms that, no server is started. `beside`: while the servers start. `skip`: not at all.

        Source: R12, D8
        """
        unasked = self.profile.lists_parameters and not self._list_read
        if not self._support().supported:
            return "before"
        return "beside" if unasked and not self.settings.force_tool_support else "skip"

    async def tool_support(self) -> m.ToolSupportChecked:
        """Return whether the model may be offered tools. Reading the model list may correct `profile`."""
        if self.profile.lists_parameters and not (self._list_read or self.settings.force_tool_support):
            answer = await self.models()
            body = b"" if isinstance(answer, Fault) else answer.body
            # In a thread, because the list may be long.
            models = await anyio.to_thread.run_sync(profiles.read_models, body, abandon_on_cancel=True)
            listed = profiles.find_model(models or {}, self.settings.model)
            self._says_tools = listed.takes_tools if listed else None
            if listed and listed.inputs is not None:
                self.profile = wire_profile.with_inputs(self.profile, listed.inputs)
            self._list_read = True
        return self._support()

    def change_model(self, model: str) -> None:
        """Ask another model from now on, at the same URL. No turn may be running.

        What was learned about the former model is forgotten. A conversation that is under way has to be
        loaded again, because its messages are encoded for the former model.

        Raises:
            MCPConfigError: `model` is empty, or the key or a header cannot be sent in its wire format.
        """
        settings = replace(self.settings, model=model)
        profile = settings.profile or profiles.profile_for(settings.base_url, model, settings.wire)
        self.headers = _headers(settings, profile)
        self.settings, self.first_profile, self.profile = settings, profile, profile
        self._says_tools, self._list_read, self.judged_tools = None, False, False
        self.left_out, self.breaker = frozenset(), Breaker()

    def recall(self, first: wire_profile.WireProfile, learned: wire_profile.WireProfile) -> None:
        """If `profile` is still `first`, use `learned`: how an earlier run has changed `first`."""
        if self.profile == self.first_profile == first:
            self.profile = learned

    def recall_form(self, asked: m.ModelAsked) -> None:
        """Use the form of requests in `asked`, if it fits this endpoint and `profile` has not changed yet."""
        learned = wire_profile.with_fields(self.first_profile, asked.form)
        settings = self.settings
        if (
            _place(settings) == (asked.model, asked.address)
            and settings.profile is None
            and settings.wire in (None, asked.wire)
            and learned.wire == asked.wire
        ):
            self.recall(self.first_profile, learned)

    def adapt_to_error(self, fault: Fault, followed: wire_profile.WireProfile | None = None) -> bool:
        """Adapt the profile to an error of the endpoint; return whether to retry with the new profile.

        `followed`: the profile of the failed request. Another conversation may have changed `profile` since.
        """
        if profiles.adapt_profile(followed or self.profile, fault.status, fault.message) is None:
            return False
        self.profile = profiles.adapt_profile(self.profile, fault.status, fault.message) or self.profile
        return True

    def describe(self, fault: Fault) -> m.LlmFailure:
        """Return the failure to report for `fault`, with secrets redacted."""
        return describe(
            fault,
            base_url=self.settings.base_url,
            model=self.settings.model,
            profile=replace(self.profile, key_variable=self._key_setting or self.profile.key_variable),
            redacted=self._redaction.redact_text,
            key=self._key_words,
        )

    def _support(self) -> m.ToolSupportChecked:
        forced = self.settings.force_tool_support
        return profiles.checked_support(*_place(self.settings), forced=forced, endpoint_says=self._says_tools)

    def _open(self) -> http.Connections:
        connections = self._connections.get()
        if connections is None:
            raise RuntimeError("enter the endpoint before posting to it")
        return connections

    def _new_connection(self) -> http.Connection:
        return http.Connection(
            https=self._base_url.scheme == "https",
            # Use no proxy of the environment for an endpoint on this machine: most proxies cannot reach it.
            proxy=None
            if wire_profile.is_loopback(self.settings.base_url)
            else http.proxy_for(self._base_url),
            transport=self._transport,
        )


def _place(settings: LlmSettings) -> tuple[str, str]:
    return settings.model, wire_profile.shown_endpoint(settings.base_url)


async def _body_of(reply: http.HttpReply, until: float, most_bytes: int) -> AsyncIterator[bytes | Fault]:
    """Yield a reply's body in pieces. If it cannot be used, a `Fault` comes last.

    Raises `ExchangeError`, and `TimeoutError` at `until`, a time of the loop's clock.
    """
    if not 200 <= reply.status < 300:
        yield (await http.refusal(reply)).fault
        return
    chunks, left = http.decompressed(reply, most_bytes), most_bytes
    try:
        while True:
            with anyio.fail_after(until - anyio.current_time()):
                piece = await anext(chunks, None)
            if piece is None:
                return
            left -= len(piece)
            if left < 0:
                raise http.BodyTooLongError
            yield piece
    except http.BodyTooLongError:
        yield Fault(kind="invalid_reply", message="the file is longer than it can be")
    except http.EncodingError as error:
        yield Fault(kind="damaged", message=f"the file cannot be decompressed: {error}")


@functools.lru_cache(maxsize=64)
def _below(base_url: httpx.URL, path: str) -> httpx.URL:
    """Return the URL of a path below a base URL. Both may have a query."""
    base, _, query = base_url.raw_path.partition(b"?")
    below, _, own = path.encode("ascii").partition(b"?")
    queries = b"&".join(filter(None, (query, own)))
    return base_url.copy_with(raw_path=base.rstrip(b"/") + below + (b"?" + queries if queries else b""))


def _usable_url(base_url: str) -> httpx.URL:
    text = base_url.strip()
    try:
        url, in_range = httpx.URL(text), urlsplit(text).port != 0
        host = url.host  # raises if the host is no valid `xn--` name
    except (httpx.InvalidURL, ValueError):
        # `from None`, because the original error may quote part of a password.
        raise MCPConfigError("The base URL cannot be read: check its host and its port.") from None
    # Refuse a URL that contains credentials, because HTTP libraries log URLs.
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
    if not in_range or url.scheme not in ("http", "https") or not host:
        raise MCPConfigError(_SCHEME_MISSING)
    path, mark, query = url.raw_path.decode("ascii").partition("?")
    path = path.rstrip("/")
    ending = next(filter(None, (known.ending(path) for known in FORMATS.values())), "")
    return url.copy_with(raw_path=f"{path.removesuffix(ending) or '/'}{mark}{query}".encode("ascii"))


def _redaction(settings: LlmSettings) -> Redaction:
    headers = {name: value.strip() for name, value in settings.extra_headers.items()}
    sent = {name: value for name, value in headers.items() if len(value) >= MIN_SECRET}
    return Redaction({**secrets_in(os.environ), **sent, **settings.named_values()})


_KEY_HEADERS = frozenset({"authorization", "api-key", "x-api-key", "x-goog-api-key"})


def _headers(settings: LlmSettings, profile: wire_profile.WireProfile) -> dict[str, str]:
    key = (settings.api_key or "").strip()
    own = FORMATS[profile.wire].headers(key)
    extra = {
        name: value.strip()
        for name, value in settings.extra_headers.items()
        if name.lower() not in ("content-length", "transfer-encoding")
    }
    given = {name.lower() for name in extra}
    headers = {
        "Accept": "application/json, text/event-stream",
        "Accept-Encoding": http.ACCEPTED,
        "Connection": "keep-alive",
        "Content-Type": "application/json",
        "User-Agent": "grue",
        **own,
    }
    headers = {name: value for name, value in headers.items() if name.lower() not in given} | extra
    for name, value in headers.items():
        # Check this here, because the error of the HTTP library would quote the value.
        if not (_HEADER_NAME.fullmatch(name) and value.isascii() and value.isprintable()):
            what = "API key" if name in own else f"header {name!a}"
            raise MCPConfigError(f"The {what} holds characters that no HTTP header can carry.")
    return headers
