"""Read a person's configured identity token, and identify the person. Needs no SDK."""

import base64
import hashlib
import os
from pathlib import Path

import msgspec
from msgspec import Struct

from grue.tool_sessions.oauth_settings import OAuth
from grue.transports.mcp.oauth_faults import AuthorizationRefused, identity_fault


class _Claims(Struct):
    iss: str
    sub: str


def identity_token(auth: OAuth) -> str:
    """Return the identity token that is configured, or that its file has now.

    Raises:
        AuthorizationRefused: The file cannot be read, or is empty.
    """
    if auth.identity_token_file is None:
        return auth.identity_token or ""
    try:
        token = Path(auth.identity_token_file).expanduser().read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it holds no token"
        raise AuthorizationRefused(identity_fault(f"identity_token_file cannot be read: {reason}")) from error
    if not token:
        raise AuthorizationRefused(identity_fault("identity_token_file is empty"))
    return token


def identity_digest(auth: OAuth) -> str:
    """Return a digest of the person, so that tokens are never shared between persons.

    It is the same for each token that the identity provider issues to one person, and empty if the grant has
    no identity token. If the token's file cannot be read, it fits no stored token.
    """
    if auth.grant != "identity_assertion":
        return ""
    try:
        token = identity_token(auth)
    except AuthorizationRefused:
        return os.urandom(16).hex()
    try:
        payload = token.split(".")[1]
        padded = payload + "=" * (-len(payload) % 4)
        claims = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=_Claims)
        person = f"{claims.iss}\n{claims.sub}"
    except (IndexError, ValueError):  # a token in another form: one store for each token
        person = token
    return hashlib.sha256(person.encode()).hexdigest()
