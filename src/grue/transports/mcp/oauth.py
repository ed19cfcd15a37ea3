"""Obtains the tokens of one server, and renews a token when it expires or is refused.

The SDK's OAuth providers know the protocol. A provider's generator yields requests, and `_drive` sends them,
except the request to the MCP server, which the transport sends. A turn never asks a person: the fault says
which command to run. The SDK's errors may quote an answer with tokens, so their texts are shown only
redacted, and without an answer that the SDK could not read.
"""

import asyncio
import base64
import functools
import ssl
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NoReturn
from urllib.parse import parse_qsl, quote, urlsplit

import anyio
import httpx2
import msgspec
from jwt import PyJWTError
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    extract_scope_from_www_auth,
    union_scopes,
)
from mcp.shared import auth as shared
from mcp.shared.exceptions import MCPDeprecationWarning
from msgspec import Struct
from pydantic import AnyUrl, BaseModel, ValidationError

from grue.protocol.chat_wire.profile import is_loopback
from grue.runtime.loops.beside_loop import aside, call_in_daemon_thread
from grue.runtime.safe_text import beginning, plain_text
from grue.runtime.secrets.redaction import Redaction
from grue.tool_sessions.failures import WireFault, first_fault
from grue.tool_sessions.oauth_settings import LOOPBACK, OAuth
from grue.tool_sessions.server_specs import HttpServer
from grue.transports.mcp import http_faults as faults
from grue.transports.mcp.library_logs import drop, library_logs_to
from grue.transports.mcp.token_store import TokenRecord, TokenStore, identity_token

EXCHANGE_S = 20.0
_MAX_BODY_BYTES = 1_000_000
_LONGEST_LIFE_S = 10 * 365 * 86_400
_MAX_FIELDS = 100
_MIN_SECRET = 8  # characters of the shortest value that is redacted; shorter ones occur in other texts
_SECRET_FIELDS = frozenset((
    "access_token", "assertion", "client_assertion", "client_secret", "code", "code_verifier", "id_token",
    "refresh_token", "subject_token", "token",
))  # fmt: skip


def new_client(url: httpx2.URL, **options: Any) -> httpx2.AsyncClient:
    """Return a client for `url`; raises `AuthorizationRefused` for unusable proxies or certificates."""
    try:
        return httpx2.AsyncClient(verify=_tls(), trust_env=not is_loopback(str(url)), **options)
    except (OSError, ValueError, ImportError, httpx2.InvalidURL) as error:
        raise faults.AuthorizationRefused(faults.environment_fault(error)) from error


async def sent(request: httpx2.Request) -> httpx2.Response:
    """Send a request; return the answer with its body. Raises `AuthorizationRefused` or `RequestError`."""
    await request.aread()  # httpx2 does not read the content of a request that follows a redirect
    request.headers["accept-encoding"] = "identity"
    # Without the header `accept`, GitHub and others answer form-encoded, although OAuth 2.1 requires JSON.
    if request.method == "POST":
        request.headers["accept"] = "application/json"
    async with new_client(request.url, timeout=EXCHANGE_S) as client:
        response = await client.send(request, stream=True)
        # A few bytes of another coding, or of several, may expand to gigabytes before the limit is checked.
        if response.headers.get("content-encoding", "identity") not in ("identity", "gzip", "deflate"):
            raise faults.authorization_failed(
                f"an answer of {request.url.host} is compressed in an unusual way"
            )
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > _MAX_BODY_BYTES:
                raise faults.authorization_failed(f"an answer of {request.url.host} is too long")
        await response.aclose()
    return _with_body(response, bytes(body))


def _with_body(answer: httpx2.Response, body: bytes) -> httpx2.Response:
    of_body = ("content-length", "content-encoding")
    headers = {name: value for name, value in answer.headers.items() if name not in of_body}
    found = httpx2.Response(answer.status_code, headers=headers, content=body, request=answer.request)
    found.next_request = answer.next_request
    return found


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx2.create_ssl_context()


def adapted(
    answer: httpx2.Response, issuers: Sequence[str], configured: str | None = None
) -> httpx2.Response:
    """Return an answer with OAuth metadata or tokens in a form that the SDK can read.

    The SDK compares issuers letter by letter, but some servers add a slash at the end in one place only. So
    an issuer is changed to the form that it has in `issuers`. Of several authorization servers the SDK takes
    the first, so the `configured` issuer is moved to the front, and metadata of another issuer raises
    `AuthorizationRefused`. A huge lifetime is limited, because the SDK cannot compute with it.
    """
    try:
        said = msgspec.json.decode(answer.content)
    except (ValueError, RecursionError):
        return answer
    if not isinstance(said, dict):
        return answer
    changes: dict[str, Any] = {}
    if isinstance(said.get("issuer"), str):
        changes["issuer"] = as_known(said["issuer"], issuers)
        if configured is not None and "token_endpoint" in said and changes["issuer"] != configured:
            raise _other_issuer(changes["issuer"])
    if isinstance(said.get("authorization_servers"), list):
        named = [
            as_known(each, issuers) if isinstance(each, str) else each
            for each in said["authorization_servers"]
        ]
        changes["authorization_servers"] = sorted(named, key=lambda each: each != configured)
    if said.get("expires_in") is not None:
        changes["expires_in"] = _life(said["expires_in"])
    if all(said[name] == value for name, value in changes.items()):
        return answer
    try:
        return _with_body(answer, msgspec.json.encode(said | changes))
    except (OverflowError, ValueError):  # `said` has a huge number, or a text that is not valid Unicode
        return answer


def _other_issuer(issuer: str) -> faults.AuthorizationRefused:
    return faults.authorization_failed(
        f"the server wants a login at {plain_text(issuer)}, which is not the issuer set"
    )


def as_known(issuer: str, issuers: Sequence[str]) -> str:
    """Return the first of `issuers` that equals `issuer`, ignoring a final slash; if none does, `issuer`."""
    return next((known for known in issuers if known.rstrip("/") == issuer.rstrip("/")), issuer)


def secrets_of(request: httpx2.Request, answer: httpx2.Response) -> list[tuple[str, str]]:
    """Return name and value of each secret that a request and its answer carry, in JSON or as a form."""
    fields = (*_fields(request.content), *_fields(answer.content))
    return [
        (name, value) for name, value in fields if name in _SECRET_FIELDS and isinstance(value, str) and value
    ]


def words_of(error: Exception) -> str:
    """Return the text of an SDK error, without the answer that a validation error quotes."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ValidationError):
        cause = cause.__cause__ or cause.__context__
    return str(error) if cause is None else f"an answer cannot be read: {first_fault(cause)}"


def _fields(content: bytes) -> list[tuple[str, object]]:
    try:
        said = msgspec.json.decode(content)
    except (ValueError, RecursionError):
        try:
            return list(parse_qsl(content.decode("utf-8", "replace"), max_num_fields=_MAX_FIELDS))
        except ValueError:  # there are more fields than `_MAX_FIELDS`
            return []
    return list(said.items()) if isinstance(said, dict) else []


def _life(seconds: object) -> object:
    """Return `seconds` as an integer from 0 to ten years. Return a value that is not a number unchanged."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | str):
        return seconds
    try:
        return int(min(max(float(seconds), 0.0), _LONGEST_LIFE_S))
    except OverflowError:
        return _LONGEST_LIFE_S
    except ValueError:
        return seconds


_MAX_REQUESTS = 30
_ERROR_CHARS = 300
_LONG_AGO = 1.0
_FINISH_S = 0.5
_SDK_ERRORS = (  # `NotImplementedError`: the `signing_algorithm` is unknown
    OAuthFlowError, OAuthTokenError, OAuthRegistrationError, ValidationError, ValueError, OSError,
    ArithmeticError, PyJWTError, NotImplementedError,
)  # fmt: skip
# The statuses with which an authorization server refuses a refresh token (RFC 6749, section 5.2).
_REFUSED = frozenset((httpx2.codes.BAD_REQUEST, httpx2.codes.UNAUTHORIZED))


class Person(Struct, frozen=True):
    """How a person logs in: `show` gets the address to open, `returned` waits for the browser's return."""

    redirect_uri: str
    show: Callable[[str], object]
    returned: Callable[[], shared.AuthorizationCodeResult]


class Authorizer:
    """Gets, renews and stores the tokens of one server. Several tasks may share this object.

    `on_secret` is as in `ClientOptions`.
    """

    def __init__(self, server: HttpServer, store: TokenStore, on_secret: Callable[[str, str], None]) -> None:
        self._server = server
        self._auth = server.auth or OAuth()
        self._on_secret = on_secret
        self.store = store
        self._record: TokenRecord | None = None
        self.issued = ""  # the last token that this object has obtained
        self._loaded = False
        self._lock = anyio.Lock()
        self._last_status: int | None = None  # the status of the last answer to a POST
        self._last_error = False  # whether the last answer to a POST has an error code (RFC 6749)
        self._redaction = Redaction()

    async def token(self) -> str:
        """Return the token for a request, or an empty text if no token is stored.

        If a token expires soon and has a refresh token, renew it first. Raises `AuthorizationRefused`.
        """
        if not self._loaded:
            self._use(await self._load())
        record = self._record
        if record is not None and record.access_token and record.ends_soon() and record.refresh_token:
            return await self.renew(record.access_token)
        return record.access_token if record else ""

    def give_up(self, refusal: httpx2.Response) -> NoReturn:
        """Raise `AuthorizationRefused`, because the server also refuses a token that `renew` has returned."""
        if self._auth.grant != "authorization_code":
            what = "the token's scope" if refusal.status_code == httpx2.codes.FORBIDDEN else "a new token"
            raise faults.authorization_failed(f"the server refuses {what} (HTTP {refusal.status_code})")
        raise faults.AuthorizationRefused(self._login_fault(refusal, self._record))

    async def login(self, refusal: httpx2.Response, person: Person, scope: str | None) -> TokenRecord:
        """Ask a person to authorise grue; store and return the tokens. Raises `AuthorizationRefused`."""
        provider = self._provider(await self._load(), person, scope)
        await self._drive(provider, refusal)
        async with self.store.locked():
            return await self._keep(provider)

    async def revoke(self, record: TokenRecord) -> bool:
        """Ask the authorization server to revoke the login's token; return whether it has done so."""
        endpoint = (record.metadata or {}).get("revocation_endpoint")
        token = record.refresh_token or record.access_token
        if not isinstance(endpoint, str) or not token or not _is_readable(record):
            return False
        provider = self._provider(record)
        client = provider.context.client_info = await provider.context.storage.get_client_info()
        data = {"token": token, "client_id": client.client_id or "" if client else ""}
        data, headers = provider.context.prepare_token_auth(data, {})
        try:
            response = await self._exchange(httpx2.Request("POST", endpoint, data=data, headers=headers))
        except faults.AuthorizationRefused:
            return False
        return response.is_success

    async def renew(self, used: str, refusal: httpx2.Response | None = None) -> str:
        """Return another token than `used` (empty: the request had none); raises `AuthorizationRefused`.

        `refusal`: the server's refusal of `used`. `None`: `used` expires soon; return it if renewing fails.
        """
        # Take two locks: tasks that share this object wait for the first, all others for the file's lock.
        async with self._lock, self.store.locked():
            stored = await self._load()
            if stored is not None and stored.access_token not in ("", used):
                # another process, or another request, has renewed the token meanwhile
                return self._use(stored)
            too_small = refusal is not None and refusal.status_code == httpx2.codes.FORBIDDEN
            if stored is not None and stored.refresh_token and not too_small:
                refreshed = await _finished(self._refreshed(stored, needed=refusal is not None))
                if refreshed:
                    return refreshed
            if refusal is None:
                return used  # the server has not refused this token yet, so try it
            if self._auth.grant == "identity_assertion":
                return await self._asserted(refusal)
            if self._auth.grant == "client_credentials":
                provider = self._provider(stored)
                scope = None if too_small else self._auth.scope
                await self._drive(provider, _asking_for(scope, refusal) if scope else refusal)
                return (await self._keep(provider)).access_token
            raise faults.AuthorizationRefused(self._login_fault(refusal, stored))

    async def _asserted(self, refusal: httpx2.Response) -> str:
        """Exchange the person's identity token for a token of the server, and return the server's token."""
        auth, url = self._auth, self._server.url
        storage = _Storage(auth)
        client, assertion = auth.client_id or "", IdentityProvider(auth, self._exchange, self._hide).assertion
        secret, issuer, how = auth.client_secret or "", auth.issuer or "", auth.secret_method
        provider = IdentityAssertionOAuthProvider(
            url, storage, client, secret, issuer, assertion, auth.scope, how
        )
        await self._drive(provider, refusal)
        if storage.issued is None:
            raise faults.authorization_failed("the authorization server issued no token")
        record = _record(url, storage.issued, issuer)
        # Drop the refresh token. Then each new token has to come from the identity provider, which checks
        # that the person still has access.
        record.refresh_token = ""
        return (await self._stored(record)).access_token

    async def _refreshed(self, stored: TokenRecord, *, needed: bool) -> str:
        """Return a refreshed token; empty: none was issued or, if it is not `needed`, the exchange failed."""
        provider = self._provider(stored)
        provider.context.token_expiry_time = _LONG_AGO  # so that the provider refreshes the token now
        try:
            await self._drive(provider, None)
        except faults.AuthorizationRefused:
            if needed:
                raise
            return ""
        if provider.context.current_tokens is not None:
            return (await self._keep(provider)).access_token
        status = self._last_status
        if needed and (status is None or _is_unavailable(status)):
            raise faults.server_unavailable(status)
        # Without an error code, the answer may come from a proxy.
        if status in _REFUSED and self._last_error:
            # Remove only the tokens from the record: the next login needs the client's registration.
            stored.access_token = stored.refresh_token = ""
            await self._saved(stored)
            self._record = stored
        return ""

    def _login_fault(self, refusal: httpx2.Response, stored: TokenRecord | None) -> WireFault:
        status, scope = refusal.status_code, None
        if status == httpx2.codes.FORBIDDEN:
            scope = union_scopes(stored.scope if stored else None, extract_scope_from_www_auth(refusal))
        had_token = stored is not None and bool(stored.obtained_at)
        challenge = refusal.headers.get("www-authenticate", "")
        return faults.login_fault(
            self._server.name, status, scope=scope, had_token=had_token, challenge=challenge
        )

    async def _load(self) -> TokenRecord | None:
        """Return the stored record; `None`: none is stored, or it is not usable."""
        record = await call_in_daemon_thread(self.store.load)
        return record if record is not None and _is_readable(record) else None

    def _use(self, record: TokenRecord | None) -> str:
        self._record, self._loaded = record, True
        for name, value in record.secrets().items() if record else ():
            self._hide(name, value)
        return record.access_token if record else ""

    def _hide(self, name: str, value: str) -> None:
        if len(value) >= _MIN_SECRET:
            self._redaction.hide(name, value)
            self._on_secret(f"{self._server.name} {name}", value)

    async def _keep(self, provider: OAuthClientProvider) -> TokenRecord:
        context, tokens = provider.context, provider.context.current_tokens
        if tokens is None:
            raise faults.authorization_failed("the authorization server issued no token")
        # The secret of a configured client is in the settings, so no file needs to repeat it.
        registered = self._auth.grant == "authorization_code" and self._auth.client_id is None
        issuer = str(context.oauth_metadata.issuer) if context.oauth_metadata else ""
        record = _record(self._server.url, tokens, issuer)
        record.client = _plain(context.client_info) if registered else None
        record.metadata = _plain(context.oauth_metadata)
        record.resource = _plain(context.protected_resource_metadata)
        return await self._stored(record)

    async def _stored(self, record: TokenRecord) -> TokenRecord:
        self._use(record)  # called first, so that the tokens are redacted before anything can show them
        self.issued = record.access_token
        await self._saved(record)
        return record

    async def _saved(self, record: TokenRecord) -> None:
        # Shielded, because the caller holds the lock. A cancellation would free the lock while the thread
        # still writes, and another process could read, and send, a refresh token that has just been used.
        with anyio.CancelScope(shield=True):
            await call_in_daemon_thread(functools.partial(self.store.save, record))

    def _provider(
        self, record: TokenRecord | None, person: Person | None = None, scope: str | None = None
    ) -> OAuthClientProvider:
        try:
            # The SDK warns of settings without an issuer, and a program may turn warnings into errors.
            with warnings.catch_warnings(action="ignore", category=MCPDeprecationWarning):
                return self._made_provider(record, person, scope)
        except ValueError as error:
            raise faults.authorization_failed(words_of(error)) from error

    def _made_provider(
        self, record: TokenRecord | None, person: Person | None, scope: str | None
    ) -> OAuthClientProvider:
        auth, url = self._auth, self._server.url
        client_id = auth.client_id or ""
        storage = _Storage(auth, record, person)
        provider: OAuthClientProvider
        scope = scope or auth.scope
        if auth.grant == "authorization_code":
            provider = _authorization_code(url, storage, auth, person, scope)
        elif auth.private_key is not None:
            key = SignedJWTParameters(
                issuer=client_id,
                subject=client_id,
                signing_key=auth.private_key,
                signing_algorithm=auth.signing_algorithm,
            )
            assertion = key.create_assertion_provider()
            provider = PrivateKeyJWTOAuthProvider(url, storage, client_id, assertion, scope, auth.issuer)
        else:
            secret, how = auth.client_secret or "", auth.secret_method
            provider = ClientCredentialsOAuthProvider(
                url, storage, client_id, secret, how, scope, auth.issuer
            )
        if record is not None:
            context = provider.context
            if record.metadata is not None:
                context.oauth_metadata = shared.OAuthMetadata.model_validate(record.metadata)
            if record.resource is not None:
                resource = shared.ProtectedResourceMetadata.model_validate(record.resource)
                context.protected_resource_metadata = resource
                context.auth_server_url = str(resource.authorization_servers[0])
        return provider

    async def _drive(self, provider: httpx2.Auth, refusal: httpx2.Response | None) -> None:
        """Send all OAuth requests that `provider` yields; raises `AuthorizationRefused`."""
        request = refusal.request if refusal is not None else httpx2.Request("POST", self._server.url)
        flow = provider.async_auth_flow(request)
        self._last_status = None
        # Drop the SDK's log records: the SDK logs a traceback of each error, which is raised here anyway.
        with library_logs_to(drop):
            try:
                asked = await anext(flow)
                for _ in range(_MAX_REQUESTS):
                    if asked is not request:
                        self._require_issuer(provider, asked)
                        said = await self._exchange(asked)
                        # Of the SDK's providers, only the one for an identity assertion has no `context`.
                        context = getattr(provider, "context", None)
                        known = (self._auth.issuer, getattr(context, "auth_server_url", None))
                        answer = adapted(said, [each for each in known if each], self._auth.issuer)
                    elif refusal is not None:
                        answer, refusal = _with_body(refusal, b""), None
                    else:
                        return
                    asked = await flow.asend(answer)
                raise faults.authorization_failed("the authorization takes too many requests")
            except StopAsyncIteration:
                return
            except _SDK_ERRORS as error:
                if _is_unavailable(self._last_status):
                    raise faults.server_unavailable(self._last_status) from None
                said_why = _UNFIT if isinstance(error, UnicodeEncodeError) else words_of(error)
                words = " ".join(plain_text(self._redaction.redact_text(said_why)).split())
                # `from None`, because the SDK's errors quote the answer, which may contain a token.
                raise faults.authorization_failed(beginning(words, _ERROR_CHARS)) from None
            finally:
                await flow.aclose()

    def _require_issuer(self, provider: httpx2.Auth, asked: httpx2.Request) -> None:
        """Raise an error if the SDK, for lack of metadata, asks the MCP server and not the `issuer` set."""
        context, issuer = getattr(provider, "context", None), self._auth.issuer
        if not issuer or asked.method != "POST" or context is None or context.oauth_metadata is not None:
            return
        own = urlsplit(self._server.url)._replace(path="", query="", fragment="").geturl()
        if issuer.rstrip("/") != own:
            raise _other_issuer(own)

    async def _exchange(self, request: httpx2.Request) -> httpx2.Response:
        host = request.url.host
        own = httpx2.URL(self._server.url)
        if request.url.scheme != "https" and host not in LOOPBACK and own.scheme == "https":
            raise faults.insecure_server(host)
        try:
            with anyio.fail_after(EXCHANGE_S):
                answer = await sent(request)
        except (TimeoutError, httpx2.RequestError) as error:
            raise faults.server_unavailable(None, host) from error
        if request.method == "POST":
            self._last_status = answer.status_code
            self._last_error = bool(dict(_fields(answer.content)).get("error"))
            for name, value in secrets_of(request, answer):
                self._hide(name, value)
        return answer


async def _finished(work: Coroutine[Any, Any, str]) -> str:
    """Await `work`. If the caller is cancelled, `work` may go on for `_FINISH_S`, while the caller waits.

    Many servers accept a refresh token only once. If the reply were dropped, the login would be lost.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task}, timeout=_FINISH_S)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        raise


def _asking_for(scope: str, refusal: httpx2.Response) -> httpx2.Response:
    """Return `refusal` as if the server asked for `scope`: the SDK prefers the server's scope to its own."""
    changed = _with_body(refusal, b"")
    challenge = refusal.headers.get("www-authenticate", "Bearer")
    changed.headers["www-authenticate"] = f'Bearer scope="{scope}", {challenge}'
    return changed


def _is_unavailable(status: int | None) -> bool:
    return status is not None and (status == httpx2.codes.TOO_MANY_REQUESTS or status >= 500)


_UNFIT = "the authorization server issued a token that no header can carry"


def _fits_a_header(token: str) -> bool:
    return token.isascii() and token.isprintable() and token == token.strip()


def _is_readable(record: TokenRecord) -> bool:
    """Return whether a stored record is usable: another version of grue, or a person, may have written it."""
    if not _fits_a_header(record.access_token):
        return False
    documents = (
        (shared.OAuthMetadata, record.metadata),
        (shared.ProtectedResourceMetadata, record.resource),
        (shared.OAuthClientInformationFull, record.client),
    )
    try:
        for model, document in documents:
            if document is not None:
                model.model_validate(document)
    except ValidationError:
        return False
    return True


def _record(url: str, tokens: shared.OAuthToken, issuer: str) -> TokenRecord:
    if not (tokens.access_token and _fits_a_header(tokens.access_token)):
        raise faults.authorization_failed(_UNFIT)
    now = time.time()
    return TokenRecord(
        url=url,
        access_token=tokens.access_token,
        refresh_token=tokens.refresh_token or "",
        expires_at=None if tokens.expires_in is None else now + tokens.expires_in,
        obtained_at=now,
        scope=tokens.scope or "",
        issuer=issuer,
    )


class _Storage:
    """Gives the SDK the stored tokens and the client's registration. `Authorizer` stores new ones."""

    # Not a Struct, whose `repr` would show the tokens.
    def __init__(self, auth: OAuth, record: TokenRecord | None = None, person: Person | None = None) -> None:
        self.auth = auth
        self.record = record
        self.person = person
        self.issued: shared.OAuthToken | None = None

    async def get_tokens(self) -> shared.OAuthToken | None:
        """Return the stored tokens; `None`: none are stored, or a person is logging in to obtain new ones."""
        record = self.record
        if record is None or not record.access_token or self.person is not None:
            return None
        refresh, scope = record.refresh_token or None, record.scope or None
        return shared.OAuthToken(access_token=record.access_token, refresh_token=refresh, scope=scope)

    async def set_tokens(self, tokens: shared.OAuthToken) -> None:
        self.issued = tokens

    async def get_client_info(self) -> shared.OAuthClientInformationFull | None:
        """Return the configured client, or the registered one if it fits the redirect address, or `None`."""
        auth, record = self.auth, self.record
        redirects = None if self.person is None else [AnyUrl(self.person.redirect_uri)]
        if auth.client_id is not None:
            return shared.OAuthClientInformationFull(
                client_id=auth.client_id,
                client_secret=auth.client_secret,
                redirect_uris=redirects,
                token_endpoint_auth_method="none" if auth.client_secret is None else auth.secret_method,
                issuer=auth.issuer,
            )
        if record is None or record.client is None:
            return None
        client = shared.OAuthClientInformationFull.model_validate(record.client)
        # If the client was registered with another redirect address, such as another port, the authorization
        # server would not send the browser back to the address of this login.
        fits = redirects is None or redirects[0] in (client.redirect_uris or [])
        return client if fits else None

    async def set_client_info(self, client_info: shared.OAuthClientInformationFull) -> None:
        """Do nothing: `Authorizer._keep` stores the client's registration."""


def _authorization_code(
    url: str, storage: _Storage, auth: OAuth, person: Person | None, scope: str | None
) -> OAuthClientProvider:
    redirect = "http://127.0.0.1/callback" if person is None else person.redirect_uri
    metadata = shared.OAuthClientMetadata(
        client_name="grue", redirect_uris=[AnyUrl(redirect)], scope=scope, token_endpoint_auth_method=None
    )

    async def show(address: str) -> None:
        if scope is not None:
            url = httpx2.URL(address)
            address = str(url.copy_set_param("scope", union_scopes(url.params.get("scope"), scope)))
        if person is not None:
            await aside(person.show, address)

    async def returned() -> shared.AuthorizationCodeResult:
        if person is None:
            raise OAuthFlowError("nobody can log in here")
        # Return `iss` unchanged: the SDK compares it with the issuer letter by letter, as RFC 9207 requires.
        return await aside(person.returned)

    return OAuthClientProvider(url, metadata, storage, show, returned, auth.client_metadata_url)


def _plain(model: BaseModel | None) -> dict[str, object] | None:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)


_TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - the name of a grant
_ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - the name of a type
_ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
_IDENTITY_ERROR_CHARS = 200


class _Metadata(Struct):
    issuer: str
    token_endpoint: str
    token_endpoint_auth_methods_supported: list[str] | None = None


class _Issued(Struct):
    # `None` also for JSON's null: some servers write it for what they leave out.
    access_token: str | None = None
    issued_token_type: str | None = None
    error: str | None = None
    error_description: str | None = None


class IdentityProvider(Struct, frozen=True):
    """Exchanges a person's identity token for identity assertions (ID-JAG, RFC 8693; SEP-990).

    The SDK exchanges an assertion for an access token (RFC 7523). The settings name the identity provider and
    the authorization server, so an MCP server cannot choose where secrets are sent.
    """

    auth: OAuth
    exchange: Callable[[httpx2.Request], Awaitable[httpx2.Response]]
    on_secret: Callable[[str, str], None]

    async def assertion(self, audience: str, resource: str) -> str:
        """Return an identity assertion for the authorization server `audience` and the server `resource`."""
        token = await aside(identity_token, self.auth)
        self.on_secret("identity_token", token)
        metadata = await self._metadata()
        fields = {
            "grant_type": _TOKEN_EXCHANGE,
            "requested_token_type": _ID_JAG,
            "audience": audience,
            "resource": resource,
            "subject_token": token,
            "subject_token_type": _ID_TOKEN,
        }
        if self.auth.scope:
            fields["scope"] = self.auth.scope
        credentials, headers = self._credentials(metadata)
        request = httpx2.Request(
            "POST", metadata.token_endpoint, data={**fields, **credentials}, headers=headers
        )
        assertion = self._issued(await self._sent(request))
        self.on_secret("identity_assertion", assertion)
        return assertion

    async def _metadata(self) -> _Metadata:
        issuer = self.auth.identity_provider or ""
        for url in build_oauth_authorization_server_metadata_discovery_urls(issuer, issuer):
            answer = await self._sent(httpx2.Request("GET", url, headers={"accept": "application/json"}))
            if answer.status_code >= httpx2.codes.INTERNAL_SERVER_ERROR:
                raise faults.server_unavailable(answer.status_code, answer.request.url.host)
            if not answer.is_success:
                continue
            try:
                found = msgspec.json.decode(answer.content, type=_Metadata)
            except ValueError:
                continue
            if found.issuer.rstrip("/") != issuer.rstrip("/"):
                raise faults.identity_unusable("the metadata of the identity provider names another issuer")
            return found
        raise faults.identity_unusable("the identity provider publishes no metadata")

    def _credentials(self, metadata: _Metadata) -> tuple[dict[str, str], dict[str, str]]:
        client, secret = self.auth.identity_client_id or "", self.auth.identity_client_secret
        accepted = metadata.token_endpoint_auth_methods_supported
        if secret is None:
            return {"client_id": client}, {}
        if accepted is not None and "client_secret_basic" not in accepted:
            return {"client_id": client, "client_secret": secret}, {}
        pair = f"{quote(client, safe='')}:{quote(secret, safe='')}"
        return {}, {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    def _issued(self, answer: httpx2.Response) -> str:
        host, status = answer.request.url.host, answer.status_code
        if _is_unavailable(status):
            raise faults.server_unavailable(status, host)
        try:
            issued = msgspec.json.decode(answer.content, type=_Issued)
        except ValueError:
            issued = _Issued()
        if not answer.is_success:
            said = plain_text(": ".join(filter(None, (issued.error, issued.error_description))))
            shown = beginning(" ".join(said.split()), _IDENTITY_ERROR_CHARS)
            how = f"HTTP {status}: {shown}" if shown else f"HTTP {status}"
            raise faults.identity_unusable(f"the identity provider {host} refuses the identity token ({how})")
        if issued.issued_token_type != _ID_JAG or not issued.access_token:
            raise faults.identity_unusable(f"the identity provider {host} issued no identity assertion")
        return issued.access_token

    async def _sent(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.scheme != "https" and request.url.host not in LOOPBACK:
            raise faults.insecure_server(request.url.host)
        return await self.exchange(request)
