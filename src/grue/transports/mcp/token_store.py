"""The stored tokens of servers over HTTP: a file for each login, which only its owner can read.

A process that renews a token first locks an empty file: many authorization servers accept a refresh token
only once, so two processes that send the same token could both lose the login.
"""

import base64
import contextlib
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import wait
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import anyio
import msgspec
from msgspec import Struct

from grue import messages as m
from grue.runtime.files import expanded, locked, os_cause, write_whole
from grue.runtime.loops.beside_loop import start_in_daemon_thread
from grue.tool_sessions.oauth_settings import OAuth
from grue.tool_sessions.server_specs import HttpServer
from grue.transports.mcp import http_faults as faults


class _Claims(Struct):
    iss: str
    sub: str


def identity_token(auth: OAuth) -> str:
    """Return the token in `identity_token_file`, or else `identity_token`; raises `AuthorizationRefused`."""
    if auth.identity_token_file is None:
        return auth.identity_token or ""
    try:
        token = expanded(auth.identity_token_file).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:  # `ValueError`: a null character in the path, or no ASCII text
        reason = getattr(error, "strerror", None) or "it holds no token"
        raise faults.identity_unusable(f"identity_token_file cannot be read: {reason}") from error
    if not token:
        raise faults.identity_unusable("identity_token_file is empty")
    return token


def identity_digest(auth: OAuth) -> str:
    """Return a digest of the person, so that persons never share tokens; empty: no identity token is used."""
    if auth.grant != "identity_assertion":
        return ""
    try:
        token = identity_token(auth)
    except faults.AuthorizationRefused:
        return os.urandom(16).hex()  # a digest that matches no stored token
    try:
        payload = token.split(".")[1]
        padded = payload + "=" * (-len(payload) % 4)
        claims = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=_Claims)
        person = f"{claims.iss}\n{claims.sub}"
    # The token does not name the person in a readable form, so its digest stands for the person.
    except (IndexError, ValueError):
        person = token
    return hashlib.sha256(person.encode("utf-8", "surrogatepass")).hexdigest()


_LOCK_POLL_S = 0.02
_LOCK_WAIT_S = 30.0
_LAST_S = 253_402_214_400.0  # the end of the year 9999: later times are cut to it
_EARLY_S = 30.0  # renew a token so long before its end, or a quarter of its life before, if that is later


class TokenRecord(Struct, kw_only=True, omit_defaults=True):
    """The stored login for one server. Times are in seconds since the epoch by this machine's clock."""

    url: str
    access_token: str = ""  # empty if the refresh token was refused
    refresh_token: str = ""
    expires_at: float | None = None
    obtained_at: float = 0.0
    scope: str = ""
    issuer: str = ""
    client: m.JsonObject | None = None  # grue's registration at a login, if the settings name no client
    metadata: m.JsonObject | None = None  # describes the authorization server
    resource: m.JsonObject | None = None  # describes the MCP server

    def __post_init__(self) -> None:
        """Limit the times to valid dates: a server may send any number, and the file may be damaged."""
        if self.expires_at is not None:
            self.expires_at = min(max(self.expires_at, 0.0), _LAST_S)
        self.obtained_at = min(max(self.obtained_at, 0.0), _LAST_S)

    def __repr__(self) -> str:
        return f"TokenRecord(url={self.url!r})"  # without the tokens and the client's secret

    def ends_soon(self) -> bool:
        """Return whether the token has expired, or is about to."""
        if self.expires_at is None:
            return False
        life_s = max(0.0, self.expires_at - self.obtained_at)
        return time.time() >= self.expires_at - min(_EARLY_S, life_s / 4)

    def secrets(self) -> dict[str, str]:
        """Return the secrets by name, for redaction."""
        named: dict[str, object] = {"access_token": self.access_token, "refresh_token": self.refresh_token}
        named["client_secret"] = (self.client or {}).get("client_secret")
        return {name: value for name, value in named.items() if isinstance(value, str) and value}


class TokenStore:
    """The stored tokens of one server. Its URL, the grant and the client id identify them.

    With an identity token, each person has tokens of their own. Writing may raise `AuthorizationRefused`.
    """

    def __init__(self, server: HttpServer, folder: Path | None = None) -> None:
        auth = server.auth
        key = "\n".join((server.url, auth.grant if auth else "", (auth.client_id if auth else None) or ""))
        key += identity_digest(auth) if auth else ""
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        self.file = (folder or tokens_folder()) / f"{urlsplit(server.url).hostname}-{digest}.json"

    def load(self) -> TokenRecord | None:
        """Return the stored record; `None`: nothing is stored, or the file cannot be read."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            return msgspec.json.decode(self.file.read_bytes(), type=TokenRecord)
        return None

    def save(self, record: TokenRecord) -> None:
        """Replace the file in one step, so that nobody reads half of a record."""
        with self._writing():
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self.file, msgspec.json.encode(record))

    def remove(self) -> bool:
        """Remove the file; return whether it existed."""
        with self._writing():
            try:
                self.file.unlink()
            except FileNotFoundError:
                return False
        return True

    def may_have(self) -> bool:
        """Return whether the file exists, which may have tokens. The file is not read."""
        return os.path.exists(self.file)  # noqa: PTH110 - never raises

    @property
    def place(self) -> str:
        """A description of where the tokens are stored."""
        return str(self.file)

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Hold the lock that a process needs to renew tokens, or go on without it after 30 s."""
        with self._writing():
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self.file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with anyio.move_on_after(_LOCK_WAIT_S):
                while not locked(lock):  # noqa: ASYNC110 - another process holds the lock
                    await anyio.sleep(_LOCK_POLL_S)
            yield
        finally:
            os.close(lock)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise faults.tokens_not_kept(self.file.parent, os_cause(error)) from error


def tokens_folder() -> Path:
    """Return the folder of the stored tokens."""
    if named := os.environ.get("GRUE_TOKENS"):
        return expanded(named)
    return expanded(os.environ.get("XDG_DATA_HOME") or "~/.local/share") / "grue" / "tokens"


T = TypeVar("T")

SERVICE = "grue"  # the service under which the keyring's own tools show the tokens
_WAIT_S = 20.0


class KeyringStore(TokenStore):
    """The tokens of one server in the system's keyring. Reading may raise `AuthorizationRefused`, too."""

    def __init__(self, server: HttpServer) -> None:
        super().__init__(server)
        self._name = server.name
        self._entry = self.file.stem

    def load(self) -> TokenRecord | None:
        """Return the stored record; `None`: nothing is stored, or it cannot be decoded."""
        text = self._asked(lambda ring: ring.get_password(SERVICE, self._entry))
        with contextlib.suppress(ValueError, RecursionError):
            return None if text is None else msgspec.json.decode(text, type=TokenRecord)
        return None

    def save(self, record: TokenRecord) -> None:
        """Store a record. If an earlier setting has put this login's tokens into a file, remove the file."""
        text = msgspec.json.encode(record).decode()

        def kept(ring: Any) -> bool:
            ring.set_password(SERVICE, self._entry, text)
            return bool(ring.get_password(SERVICE, self._entry) == text)

        if not self._asked(kept):  # keyring's backend `null` stores nothing, and raises no error
            raise faults.keyring_unusable(self._name, "does not keep what is stored in it")
        super().remove()

    def remove(self) -> bool:
        """Remove the tokens; return whether any were stored."""
        in_a_file = super().remove()

        def removed(ring: Any) -> bool:
            if ring.get_password(SERVICE, self._entry) is None:
                return False
            ring.delete_password(SERVICE, self._entry)
            return True

        return self._asked(removed) or in_a_file

    def may_have(self) -> bool:
        """Return `True`: only the keyring knows whether it has tokens, and asking it can take long."""
        return True

    @property
    def place(self) -> str:
        """A description of where the tokens are stored."""
        return f"the system's keyring ({self._asked(lambda ring: ring.get_keyring().name)})"

    def _asked(self, ask: Callable[[Any], T]) -> T:
        # In a daemon thread: a keyring that waits to be unlocked must not block the end of the interpreter.

        def work() -> T:
            import keyring

            return ask(keyring)

        asked = start_in_daemon_thread(work)
        if not wait([asked], _WAIT_S).done:
            words = f"did not answer within {_WAIT_S:g} s; perhaps it waits to be unlocked"
            raise faults.keyring_unusable(self._name, words)
        error = asked.exception()
        if error is not None:
            self._refuse(error)
        return asked.result()

    def _refuse(self, error: BaseException) -> NoReturn:
        if isinstance(error, ModuleNotFoundError) and error.name == "keyring":
            raise faults.keyring_unusable(self._name, None) from error
        with contextlib.suppress(ImportError):
            from keyring.errors import KeyringLocked, NoKeyringError

            # Leave out the error's text: it may contain the tokens that the backend was to store.
            words = f"cannot be used ({type(error).__name__})"
            if isinstance(error, NoKeyringError):
                words = "is missing: no backend of the package keyring works here"
            elif isinstance(error, KeyringLocked):
                words = "is locked"
            # Backends also pass on exceptions of other libraries, such as those for D-Bus.
            of_library = isinstance(error, Exception) and type(error).__module__ != "builtins"
            if of_library or isinstance(error, ImportError | AttributeError | OSError | RuntimeError):
                raise faults.keyring_unusable(self._name, words) from error
        raise error


def token_store(server: HttpServer) -> TokenStore:
    """Return the store of a server's tokens, in the place that its settings name."""
    in_keyring = server.auth is not None and server.auth.keep_tokens_in == "keyring"
    return KeyringStore(server) if in_keyring else TokenStore(server)
