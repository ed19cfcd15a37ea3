"""The faults of HTTP exchanges: their texts, their remedies, and whether they end the session. No I/O.

A fault ends the session if further requests would probably fail, too, such as with a wrong URL.
"""

import re
import shlex
import socket
import ssl
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

from grue.tool_sessions.failures import WireFault

_ENDS_SESSION = frozenset((401, 403, 404, 405, 407, 410))
_UNREACHABLE = "Check that the server is running and that `url` has its host and port."
_PROXY = "Check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY in the environment."
_CERTIFICATE = (
    "Check the host in `url` and the server's certificate. If an authority of your own has signed it, set"
    " SSL_CERT_FILE to the file of that authority's certificate."
)
WRONG_ADDRESS = (
    "Check the path of `url`, and its `type`: `http` is Streamable HTTP, `sse` the older transport. Without a"
    " `type` both are tried."
)
_CREDENTIALS = (
    "Check the credentials under `headers` in the server's configuration, for example"
    ' `"Authorization": "Bearer ${TOKEN}"`.'
)
_NOT_A_PAGE = "Check that `url` is the server's MCP endpoint, and not a web page or a proxy's."
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]{0,30})(?=\s|,|$)")
ENDPOINT_AT_OTHER_HOST = WireFault(
    "it names an endpoint at another host, which is not used: what is sent is meant for the configured one",
    ends_session=True,
    remedy="If that host is the server that is meant, make it the `url`.",
)
_MAY_HAVE_WORKED = "A tool call that was cut off may have taken effect."
CUT_SHORT = WireFault(
    f"the connection was closed before the answer was complete. {_MAY_HAVE_WORKED}", ends_session=False
)
NOT_A_MESSAGE = WireFault("its answer is not an MCP message", ends_session=False)
COMPRESSED = WireFault(
    "its answer is compressed, though it was asked not to compress",
    ends_session=False,
    remedy="Switch compression off in the server, or in the proxy in front of it.",
)
NOT_READING = WireFault("it does not read what it is sent", ends_session=True)
TOO_MANY_MESSAGES = WireFault("it sent very many messages, and none of them was an answer", ends_session=True)


def status_fault(status: int, text: str = "", challenge: str = "") -> WireFault:
    """Return the fault for a refusal: its `status`, printable `text` and header `WWW-Authenticate`."""
    remedy: str | None
    phrase = next((each.phrase for each in HTTPStatus if each == status), "")
    named = f"HTTP {status} {phrase}".rstrip() + (f": {text}" if text else "")
    match status:
        case 401:
            cause, remedy = "the server does not accept the credentials", _credentials(challenge)
        case 407:
            cause, remedy = "the proxy does not accept the credentials", _PROXY
        case 403:
            cause, remedy = "the server refuses access", _CREDENTIALS
        case 404 | 405 | 410:
            cause, remedy = "no MCP server answers at this address", WRONG_ADDRESS
        case 429:
            cause, remedy = "the server has had too many requests", "Wait, and ask it less often."
        case _ if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            cause, remedy = "the server failed", "Try again later; the server's own log says more."
        case _:
            cause, remedy = "the server refused the request", None
    return WireFault(f"{cause} ({named})", ends_session=status in _ENDS_SESSION, remedy=remedy)


def challenge_scheme(challenge: str) -> str:
    """Return the kind of credentials that a server asks for, such as `Bearer`; empty if it names none."""
    found = _SCHEME.match(challenge)
    return found[1] if found else ""


def offers_login(challenge: str) -> bool:
    """Return whether a header `WWW-Authenticate` offers a login by OAuth."""
    return challenge_scheme(challenge).lower() == "bearer" and "resource_metadata" in challenge


def _credentials(challenge: str) -> str:
    scheme = challenge_scheme(challenge)
    if offers_login(challenge):
        return (
            "It offers a login (OAuth): take `Authorization` out of `headers` and `auth: false` out of the"
            " server's configuration (in Python, add `auth=OAuth()` to the `HttpServer`), and run: grue login"
            " SERVER."
        )
    if scheme and scheme.lower() != "bearer":
        return (
            f"It asks for credentials of the kind {scheme}: set them under `headers` in the server's"
            f' configuration, for example `"Authorization": "{scheme} ${{CREDENTIALS}}"`.'
        )
    return _CREDENTIALS


def sse_also_refused(declined: WireFault | None, fault: WireFault) -> WireFault:
    """Return the fault of an address that refuses SSE. `declined`: its refusal of Streamable HTTP, if any."""
    if declined is None or declined.cause == fault.cause:
        return fault
    cause = f"{declined.cause}; over the older SSE transport: {fault.cause}"
    return WireFault(cause, ends_session=True, remedy=fault.remedy)


def redirect_fault(status: int, location: str, *, same_place: bool) -> WireFault:
    """Return the fault for a redirect that is not followed; `same_place`: to the same origin and user."""
    meant = "what is sent is meant for the configured address only"
    why = "it would turn the request into a GET" if same_place else meant
    cause = f"the server redirects to {location} (HTTP {status}), which is not followed: {why}"
    remedy = f"If {location} is the server that is meant, make it the `url`."
    return WireFault(cause, ends_session=True, remedy=remedy)


def redirect_loop(location: str) -> WireFault:
    """Return the fault for a server that redirects again and again, last to `location`."""
    return WireFault(
        f"the server redirects again and again, last to {location}", ends_session=True, remedy=_NOT_A_PAGE
    )


def content_fault(status: int, content_type: str) -> WireFault:
    """Return the fault for an answer with a wrong content type, such as a login page."""
    shown = content_type.partition(";")[0].strip()[:100] or "something without a content type"
    cause = f"it answered with {shown} instead of an MCP message (HTTP {status})"
    return WireFault(cause, ends_session=False, remedy=_NOT_A_PAGE)


def environment_fault(error: Exception) -> WireFault:
    """Return the fault for a proxy or certificates that the environment names and that cannot be used."""
    # The text of an `InvalidURL` may quote a part of the proxy's password.
    why = "the URL of a proxy is invalid" if type(error).__name__ == "InvalidURL" else str(error).rstrip(".")
    cause = f"what the environment sets for proxies or certificates cannot be used: {why}"
    return WireFault(cause, ends_session=True, remedy=f"{_PROXY[:-1]}, and SSL_CERT_FILE.")


def transport_fault(error: Exception, where: str, connect_timeout_s: float, *, proxied: bool) -> WireFault:
    """Return the fault for a request that got no answer from `where` (`host:port`), maybe through a proxy."""
    causes = list(_chain(error))
    named = {type(each).__name__ for each in causes}
    host = where.rpartition(":")[0]
    tls = next((each for each in causes if isinstance(each, ssl.SSLError)), None)
    if tls is not None:
        why, remedy = tls.reason or tls, "For a plain server, use http:// in `url`."
        if isinstance(tls, ssl.SSLCertVerificationError):
            why, remedy = tls.verify_message, _CERTIFICATE
        return WireFault(f"no secure connection to {where}: {why}", ends_session=True, remedy=remedy)
    if proxied and named & {"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError"}:
        cause = f"no connection to {where} through the proxy that the environment names: {_text_of(causes)}"
        return WireFault(cause, ends_session=True, remedy=_PROXY)
    if any(isinstance(each, socket.gaierror) for each in causes):
        return _unreachable(f"no address is known for the host {host}")
    if any(isinstance(each, ConnectionRefusedError) for each in causes):
        return _unreachable(f"connection refused by {where}")
    if named & {"ConnectTimeout", "PoolTimeout"}:
        return _unreachable(f"no connection to {where} within {connect_timeout_s:g} s")
    if named & {"ConnectError", "ProxyError", "UnsupportedProtocol"}:
        return _unreachable(f"no connection to {where}: {_text_of(causes)}")
    return WireFault(
        f"the connection to {where} was lost before the answer came: {_text_of(causes)}. {_MAY_HAVE_WORKED}",
        ends_session=False,
        remedy="Check that the server is still running; its own log says more.",
    )


def _unreachable(cause: str) -> WireFault:
    return WireFault(cause, ends_session=True, remedy=_UNREACHABLE)


def _text_of(causes: list[BaseException]) -> str:
    """Return the text of the innermost cause that has a text, because that text is the most precise."""
    for each in reversed(causes):
        text = getattr(each, "strerror", None) or str(each).partition("\n")[0]
        if text:
            return str(text).rstrip(".")
    return type(causes[0]).__name__


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        inner = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else None
        error = inner or error.__cause__ or error.__context__


class AuthorizationRefused(Exception):  # noqa: N818 - named as the event it reports
    """No usable token can be obtained, read or stored. `fault` says why, and what the user can do."""

    def __init__(self, fault: WireFault) -> None:
        super().__init__(fault.cause)
        self.fault = fault


def login_fault(
    server: str, status: int, *, scope: str | None, had_token: bool, challenge: str = ""
) -> WireFault:
    """Return the fault of a server that needs a person's login, or credentials of another kind.

    `scope`: all scopes that the login must ask for, if the present ones do not suffice; else `None`.
    """
    scheme = challenge_scheme(challenge)
    if scheme and scheme.lower() != "bearer" and not had_token:
        return status_fault(status, challenge=challenge)
    if scope is not None:
        cause = f"the server wants the scopes {scope!r}, which the login does not grant"
    elif had_token:
        cause = "the login has expired or was revoked"
    else:
        cause = "the server wants a login"
    remedy = f"Run: grue login {server}" + ("" if scope is None else f" --scope {shlex.quote(scope)}")
    if not had_token and scope is None and not offers_login(challenge):
        # The header does not say where to log in. Perhaps the server has no login, and wants an API key.
        remedy += ". If it has no OAuth, set the key that it wants under `headers` in its configuration."
    return WireFault(f"{cause} (HTTP {status})", ends_session=True, remedy=remedy, needs_login=True)


def _refused(cause: str, remedy: str) -> AuthorizationRefused:
    return AuthorizationRefused(WireFault(cause, ends_session=True, remedy=remedy))


def authorization_failed(words: str) -> AuthorizationRefused:
    """Return the error for a failed authorisation. `words`: the reason, often quoted from SDK or server."""
    remedy = "Check `auth` in the server's configuration: client_id, its secret or key, issuer, scope."
    return _refused(f"the authorisation failed: {words}", remedy)


def server_unavailable(status: int | None, host: str = "") -> AuthorizationRefused:
    """Return the error for an authorization server that fails with `status`; `None`: it does not answer."""
    named = f" {host}" if host else ""
    how = "does not answer" if status is None else f"failed (HTTP {status})"
    remedy = "Try again later; the authorization server's own log says more."
    return _refused(f"the authorization server{named} {how}", remedy)


def insecure_server(host: str) -> AuthorizationRefused:
    """Return the error for an authorization server to which credentials would be sent unencrypted."""
    cause = f"the authorization server {host} is named with http://, and nothing is sent there in the clear"
    return _refused(cause, "The server's metadata has to name its authorization server with https://.")


def identity_unusable(words: str) -> AuthorizationRefused:
    """Return the error for an identity token that cannot be exchanged. `words` say why."""
    return _refused(
        words,
        "Get a new identity token from the identity provider, and check identity_provider,"
        " identity_client_id and issuer under `auth` in the server's configuration.",
    )


def tokens_not_kept(folder: Path, why: str) -> AuthorizationRefused:
    """Return the error for a folder in which no tokens can be stored."""
    remedy = "Make that folder writable, or name another one in the environment variable GRUE_TOKENS."
    return _refused(f"the tokens cannot be kept in {folder}: {why}", remedy)


def keyring_unusable(server: str, words: str | None) -> AuthorizationRefused:
    """Return the error for an unusable keyring. `words`: why; `None`: the package `keyring` is missing."""
    if words is None:
        cause = f"the tokens of {server!r} are kept in the system's keyring, which needs the package keyring"
        return _refused(cause, "Install it: pip install 'keyring>=25.5,<26'")
    remedy = f'To keep the tokens in a file instead, set "keep_tokens_in": "file" under `auth` of {server!r}'
    return _refused(f"the system's keyring {words}", f"{remedy}, and log in again.")
