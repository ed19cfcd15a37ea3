"""The settings for OAuth: how grue gets an access token for an MCP server, as MCP's specification says."""

from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct

from grue.errors import MCPConfigError
from grue.field_checks import ByName, check_settings, repr_by_fields

Grant = Literal["authorization_code", "client_credentials", "identity_assertion"]
TokenPlace = Literal["file", "keyring"]  # a file that only its owner can read, or the keyring
SecretMethod = Literal["client_secret_basic", "client_secret_post"]
LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))  # credentials may be sent there without TLS

_IDENTITY = (
    "identity_provider", "identity_client_id", "identity_client_secret", "identity_token",
    "identity_token_file",
)  # fmt: skip

_LARGEST_PORT = 65_535


def _is_client_id(url: str) -> bool:
    """Return whether a URL can be a client's id: it begins with https and has a host and a path."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" and bool(parts.hostname) and parts.path not in ("", "/")


class OAuth(Struct, metaclass=ByName, frozen=True, kw_only=True):
    """How grue authorises itself at one server. The `repr` shows no secret.

    Without a `client_id`, grue registers as a client when it first asks for a token: by the document at
    `client_metadata_url`, if the authorization server accepts such documents, or else dynamically.

    Attributes:
        grant: `authorization_code`: a person runs `grue login SERVER` once, then grue refreshes the token by
            itself. `client_credentials`: no person is needed. `identity_assertion`: grue exchanges a person's
            token from an identity provider for a token of the server.
        client_id: The client's id at the authorization server; `None`: grue registers itself.
        client_secret: The client's secret at the authorization server; needs a `client_id`.
        private_key: A key in the PEM format, in place of a `client_secret`, for `client_credentials`.
        signing_algorithm: How the private key signs, such as `RS256` or `ES256`.
        secret_method: How the client's secret is sent to the authorization server.
        issuer: The authorization server that the credentials belong to. They are sent to no other server.
            `None`: they are sent to the one that the MCP server names.
        scope: The scopes to ask for, separated by spaces. `None`: the scopes that the server asks for; with
            `identity_assertion`, none at first.
        client_metadata_url: An https URL with the client's metadata. The URL is the client's id, if the
            authorization server accepts such documents.
        redirect_port: The port of the loopback address to which the browser returns; 0: any free port.
        keep_tokens_in: `file`, or `keyring`, which needs `pip install 'keyring>=25.5,<26'`.
        identity_provider: The identity provider's issuer, a URL, for `identity_assertion`.
        identity_client_id: The client's id at the identity provider. Its secret: `identity_client_secret`.
        identity_token: The person's identity token (an OpenID Connect ID token).
        identity_token_file: A file that holds the identity token, in place of `identity_token`. The file is
            read for each exchange, so that another program may renew the token.

    Raises:
        MCPConfigError: A value cannot be used, or the settings contradict one another.
    """

    grant: Grant = "authorization_code"
    client_id: str | None = None
    client_secret: str | None = None
    private_key: str | None = None
    signing_algorithm: str = "RS256"
    secret_method: SecretMethod = "client_secret_basic"  # noqa: S105 - a method and no secret
    issuer: str | None = None
    scope: str | None = None
    client_metadata_url: str | None = None
    redirect_port: int = 0
    keep_tokens_in: TokenPlace = "file"
    identity_provider: str | None = None
    identity_client_id: str | None = None
    identity_client_secret: str | None = None
    identity_token: str | None = None
    identity_token_file: str | None = None

    def __post_init__(self) -> None:
        check_settings(self, show_words=False)  # a wrong word may be a secret in the wrong place
        fault = self._fault()
        if fault:
            raise MCPConfigError(f"OAuth: {fault}.")

    def _fault(self) -> str:
        secrets = (self.client_secret is not None) + (self.private_key is not None)
        if self.grant == "client_credentials" and (self.client_id is None or secrets != 1):
            return "client_credentials needs a client_id, and a client_secret or a private_key"
        if self.grant != "client_credentials" and self.private_key is not None:
            return "a private_key is for the grant client_credentials"
        if self.client_secret is not None and self.client_id is None:
            return "a client_secret needs its client_id"
        if self.redirect_port > _LARGEST_PORT:
            return f"redirect_port is a port, at most {_LARGEST_PORT}"
        if self.client_metadata_url is not None and not _is_client_id(self.client_metadata_url):
            return "client_metadata_url should be an https:// URL with a path"
        return self._identity_fault()

    def _identity_fault(self) -> str:
        identity = {name: getattr(self, name) for name in _IDENTITY}
        if self.grant != "identity_assertion":
            given = [name for name, value in identity.items() if value is not None]
            return f"{given[0]} is for the grant identity_assertion" if given else ""
        needed = ("client_id", "client_secret", "issuer", "identity_provider", "identity_client_id")
        missing = [name for name in needed if not getattr(self, name)]
        if missing:
            return f"identity_assertion needs {', '.join(missing)}"
        if (self.identity_token is None) == (self.identity_token_file is None):
            return "identity_assertion needs either an identity_token or an identity_token_file"
        provider = urlsplit(self.identity_provider or "")
        if provider.scheme != "https" and provider.hostname not in LOOPBACK:
            return "identity_provider should be an https:// URL, since the identity token is sent there"
        return ""

    def secrets(self) -> dict[str, str]:
        """Return the secrets by name, for redaction."""
        names = ("client_secret", "private_key", "identity_client_secret", "identity_token")
        named = {name: getattr(self, name) for name in names}
        return {name: value for name, value in named.items() if value}

    def __rich_repr__(self) -> list[tuple[str, object]]:
        hidden = dict.fromkeys(self.secrets(), "[redacted]")
        return [(name, hidden.get(name, getattr(self, name))) for name in self.__struct_fields__]

    __repr__ = repr_by_fields
