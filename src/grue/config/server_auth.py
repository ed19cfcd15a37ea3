"""The key `auth` of a server's entry: the OAuth settings of a server that is reached by URL."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grue.errors import MCPConfigError
from grue.tool_sessions.oauth_settings import Grant, OAuth, SecretMethod, TokenPlace


class AuthConfig(BaseModel):
    """The fields of `OAuth`, and `private_key_file`. Texts may contain `${VAR}`."""

    model_config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)

    grant: Grant = "authorization_code"
    client_id: str | None = None
    client_secret: str | None = Field(default=None, repr=False)
    private_key: str | None = Field(default=None, repr=False)
    private_key_file: str | None = None
    signing_algorithm: str = "RS256"
    secret_method: SecretMethod = "client_secret_basic"  # noqa: S105 - a method and no secret
    issuer: str | None = None
    scope: str | None = None
    client_metadata_url: str | None = None
    redirect_port: int = Field(default=0, ge=0, le=65535)
    keep_tokens_in: TokenPlace = "file"
    identity_provider: str | None = None
    identity_client_id: str | None = None
    identity_client_secret: str | None = Field(default=None, repr=False)
    identity_token: str | None = Field(default=None, repr=False)
    identity_token_file: str | None = None

    @model_validator(mode="after")
    def _fits(self) -> "AuthConfig":
        if self.private_key is not None and self.private_key_file is not None:
            raise ValueError("has a private_key and a private_key_file: keep only one")
        return self


SECRETS = ("client_secret", "private_key", "identity_client_secret", "identity_token")

# Other hosts' names for grue's keys: Claude Code and Gemini CLI write a table `oauth`, Cursor an `auth` with
# keys in capitals. Codex uses grue's names.
_THEIRS = {
    "clientId": "client_id",
    "CLIENT_ID": "client_id",
    "client_id": "client_id",
    "clientSecret": "client_secret",
    "CLIENT_SECRET": "client_secret",
    "client_secret": "client_secret",
    "issuer": "issuer",
}
_SCOPES = ("scope", "scopes")


def is_of_another_host(auth: object) -> bool:
    """Return whether `auth` has keys of another host: Cursor's `CLIENT_ID` or `CLIENT_SECRET`."""
    return isinstance(auth, Mapping) and any(key in auth for key in ("CLIENT_ID", "CLIENT_SECRET"))


def auth_of_other_hosts(oauth: object) -> tuple[dict[str, Any] | bool, tuple[str, ...]]:
    """Return grue's `auth` for another host's `oauth`, and the keys that grue does not use."""
    if isinstance(oauth, bool):
        return oauth, ()
    if not isinstance(oauth, Mapping):
        raise ValueError("should be an object, or true or false")
    if oauth.get("enabled") is False:
        return False, ()
    found: dict[str, Any] = {}
    ignored: list[str] = []
    for key, value in oauth.items():
        if key in _THEIRS and isinstance(value, str):
            found[_THEIRS[key]] = value
        elif key in _SCOPES and isinstance(value, str | list):
            texts = value if isinstance(value, list) else value.split()
            found["scope"] = " ".join(map(str, texts))
        elif key == "callbackPort" and type(value) is int:
            found["redirect_port"] = value
        elif key == "redirectUri" and isinstance(value, str) and (port := _port(value)):
            found["redirect_port"] = port
        elif key in _THEIRS or key in _SCOPES:
            raise ValueError(f"has a {key!r} of the wrong type")
        elif key != "enabled":
            ignored.append(str(key))
    return found or True, tuple(ignored)


def _port(address: str) -> int | None:
    try:
        parts = urlsplit(address)
        return parts.port if parts.hostname in ("localhost", "127.0.0.1") else None
    except ValueError:
        return None


def to_oauth(name: str, config: AuthConfig | bool | None, headers: dict[str, str]) -> OAuth | None:
    """Return a server's OAuth settings; `None`: only the given headers are sent, and no login is tried."""
    if config is False or (config is None and any(key.lower() == "authorization" for key in headers)):
        return None
    if not isinstance(config, AuthConfig):
        return OAuth()
    values: dict[str, Any] = config.model_dump(exclude={"private_key_file"})
    if config.private_key_file is not None:
        try:
            values["private_key"] = Path(config.private_key_file).read_text(encoding="ascii")
        except (OSError, ValueError) as error:  # ValueError: no ASCII text, or a NUL character in the path
            reason = getattr(error, "strerror", None) or "it is not a PEM file"
            fault = f"MCP server {name!r}: private_key_file cannot be read: {reason}."
            raise MCPConfigError(fault) from error
    try:
        return OAuth(**values)
    except MCPConfigError as error:
        raise MCPConfigError(f"MCP server {name!r}: {error}") from error


def expanded_auth(
    auth: AuthConfig | bool | None, at: Callable[[str, str | None], str | None], beside: Path
) -> AuthConfig | bool | None:
    """Return `auth` with texts expanded by `at(key, text)`; relative paths become absolute, from `beside`."""
    if not isinstance(auth, AuthConfig):
        return auth
    texts = {key: at(f"auth.{key}", value) for key, value in auth if isinstance(value, str)}
    for key in ("private_key_file", "identity_token_file"):
        if texts.get(key):
            texts[key] = str((beside / str(texts[key])).absolute())
    return auth.model_copy(update=texts)
