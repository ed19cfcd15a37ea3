"""The tokens of servers by URL, in files that only their owner can read, one for each server.

`keyring_store.py` keeps them in the system's keyring instead, and chooses between the two (`token_store`).

All processes of a machine share them. A process that renews a token holds the file's lock meanwhile: many
authorization servers accept a refresh token once, so a second process that sent it would lose the login for
both. Tokens are in no trace, no log and no configuration.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import msgspec
from msgspec import Struct

from grue import messages as m
from grue.runtime.whole_file import write_whole
from grue.tool_sessions.server_specs import HttpServer
from grue.transports.mcp.identity_token import identity_digest

_LOCK_POLL_S = 0.02
_LOCK_WAIT_S = 30.0
_LAST_S = 253_402_214_400.0  # the end of the year 9999
_EARLY_S = 30.0
"""A token is renewed this long before it expires, so that a request does not meet its end on the way."""


class TokenRecord(Struct, kw_only=True, omit_defaults=True):
    """The stored login for one server. The JSON members are in the authorization server's own form.

    Attributes:
        url: The server.
        access_token: Sent to the server; empty if the last one was refused for good.
        refresh_token: Renews the access token.
        expires_at: When the access token ends, in seconds since the epoch by this machine's clock; `None`:
            the server did not say.
        obtained_at: When it was issued, likewise.
        scope: The scopes that it grants.
        issuer: The authorization server.
        client: The client's registration, if grue has registered it.
        metadata: The authorization server's endpoints.
        resource: The server's own metadata.
    """

    url: str
    access_token: str = ""
    refresh_token: str = ""
    expires_at: float | None = None
    obtained_at: float = 0.0
    scope: str = ""
    issuer: str = ""
    client: m.JsonObject | None = None
    metadata: m.JsonObject | None = None
    resource: m.JsonObject | None = None

    def __post_init__(self) -> None:
        """Keep the times within what a clock can show: a server names them, and a file may be damaged."""
        if self.expires_at is not None:
            self.expires_at = min(max(self.expires_at, 0.0), _LAST_S)
        self.obtained_at = min(max(self.obtained_at, 0.0), _LAST_S)

    def ends_soon(self) -> bool:
        """Return whether the token has expired, or is about to."""
        if self.expires_at is None:
            return False
        life_s = max(0.0, self.expires_at - self.obtained_at)
        return time.time() >= self.expires_at - min(_EARLY_S, life_s / 4)

    def secrets(self) -> dict[str, str]:
        """Return the secrets by name, for redaction."""
        secret = (self.client or {}).get("client_secret")
        named = {
            "access_token": self.access_token,
            "refresh_token": self.refresh_token,
            "client_secret": secret,
        }
        return {name: value for name, value in named.items() if isinstance(value, str) and value}


class TokenStore:
    """The stored tokens of one server.

    Args:
        server: The server. Another client id, grant, URL or person has tokens of its own.
        folder: Where the files are; `None`: `$GRUE_TOKENS`, or `grue/tokens` in the user's data folder.
    """

    def __init__(self, server: HttpServer, folder: Path | None = None) -> None:
        auth = server.auth
        key = "\n".join((server.url, auth.grant if auth else "", (auth.client_id if auth else None) or ""))
        key += identity_digest(auth) if auth else ""
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        self.file = (folder or tokens_folder()) / f"{urlsplit(server.url).hostname}-{digest}.json"

    def load(self) -> TokenRecord | None:
        """Return the stored entry; `None` if there is none, or if the file cannot be read."""
        try:
            return msgspec.json.decode(self.file.read_bytes(), type=TokenRecord)
        except (OSError, msgspec.DecodeError):
            return None

    def save(self, record: TokenRecord) -> None:
        """Write the file, readable by its owner only, at once and as a whole."""
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(self.file, msgspec.json.encode(record))

    def remove(self) -> bool:
        """Remove the file; return whether there was one."""
        found = self.file.exists()
        self.file.unlink(missing_ok=True)
        return found

    def may_have(self) -> bool:
        """Return whether a login may be stored; it is quick."""
        return self.file.exists()

    @property
    def place(self) -> str:
        """Where the tokens are, in words."""
        return str(self.file)

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Hold the lock that processes renew tokens under.

        The lock is the kernel's, so it ends with the process that holds it. Waiting for it is bounded: after
        30 s the token is renewed without it, because a stopped process must not stop all others.
        """
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(self.file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with anyio.move_on_after(_LOCK_WAIT_S):
                while not _taken(lock):  # noqa: ASYNC110 - another process has it
                    await anyio.sleep(_LOCK_POLL_S)
            yield
        finally:
            os.close(lock)


def tokens_folder() -> Path:
    """Return the folder of the stored tokens."""
    named = os.environ.get("GRUE_TOKENS")
    if named:
        return Path(named).expanduser()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "grue" / "tokens"


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
