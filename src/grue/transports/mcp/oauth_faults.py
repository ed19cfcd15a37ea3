"""The faults of an authorisation: their texts and their remedies."""

from grue.tool_sessions.failures import WireFault
from grue.transports.mcp.http_faults import challenge_scheme, offers_login, status_fault


class AuthorizationRefused(Exception):  # noqa: N818 - named as the event it reports
    """There is no usable token. `fault` says why and what to do."""

    def __init__(self, fault: WireFault) -> None:
        super().__init__(fault.cause)
        self.fault = fault


_AGAIN = "Try again later; the authorization server's own log says more."


def login_fault(
    server: str, status: int, *, scope: str | None, had_token: bool, challenge: str = ""
) -> WireFault:
    """Return the fault of a server that only a person's login can help with, or credentials of another kind.

    Args:
        server: Its name in the configuration.
        status: The HTTP status of its refusal.
        scope: The scopes that the login has to ask for; `None`: what the server says.
        had_token: Whether there was a login before.
        challenge: The header `WWW-Authenticate` of its refusal; untrusted.
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
    remedy = f"Run: grue login {server}" + ("" if scope is None else f' --scope "{scope}"')
    if not had_token and scope is None and not offers_login(challenge):
        # Servers with keys of their own answer like this too. A login would find nothing to log in to.
        remedy += ". If it has no OAuth, set the key that it wants under `headers` in its configuration."
    return WireFault(f"{cause} (HTTP {status})", ends_session=True, remedy=remedy, needs_login=True)


def oauth_fault(words: str) -> WireFault:
    """Return the fault of an authorisation that failed for a reason that the SDK or the server names."""
    return WireFault(
        f"the authorisation failed: {words}",
        ends_session=True,
        remedy="Check `auth` in the server's configuration: client_id, its secret or key, issuer, scope.",
    )


def unavailable_fault(status: int | None, host: str = "") -> WireFault:
    """Return the fault of an authorization server that does not answer, or fails."""
    named = f" {host}" if host else ""
    how = "does not answer" if status is None else f"failed (HTTP {status})"
    return WireFault(f"the authorization server{named} {how}", ends_session=True, remedy=_AGAIN)


def insecure_fault(host: str) -> WireFault:
    """Return the fault of an authorization server that would get the credentials in the clear."""
    return WireFault(
        f"the authorization server {host} is named with http://, and nothing is sent there in the clear",
        ends_session=True,
        remedy="The server's metadata has to name its authorization server with https://.",
    )


def identity_fault(words: str) -> WireFault:
    """Return the fault of an identity token that cannot be exchanged for a token of the server.

    Args:
        words: What is wrong, without any token.
    """
    return WireFault(
        words,
        ends_session=True,
        remedy="Get a new identity token from the identity provider, and check identity_provider, "
        "identity_client_id and issuer under `auth` in the server's configuration.",
    )


def keyring_fault(server: str, words: str | None) -> WireFault:
    """Return the fault of a keyring that cannot be used.

    Args:
        server: The server's name in the configuration.
        words: What is wrong with the keyring; `None`: the package is not installed.
    """
    if words is None:
        cause = f"the tokens of {server!r} are kept in the system's keyring, which needs the package keyring"
        return WireFault(cause, ends_session=True, remedy="Install it: pip install 'keyring>=25.5,<26'")
    remedy = f'To keep the tokens in a file instead, set "keep_tokens_in": "file" under `auth` of {server!r}'
    return WireFault(
        f"the system's keyring {words}", ends_session=True, remedy=f"{remedy}, and log in again."
    )
