"""The tokens of servers by URL in the system's keyring, for servers with `"keep_tokens_in": "keyring"`.

The package `keyring` finds the system's keyring: Secret Service or KWallet on Linux, the Keychain on macOS.
It is imported when tokens are read or written for the first time. The lock for renewals is the same file lock
as with tokens in files, because no keyring has one; the lock's file is empty.
"""

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgspec

from grue.tool_sessions.server_specs import HttpServer
from grue.transports.mcp.oauth_faults import AuthorizationRefused, keyring_fault
from grue.transports.mcp.token_store import TokenRecord, TokenStore

T = TypeVar("T")

SERVICE = "grue"
"""The name of the service under which the keyring's own tools show the tokens."""

_WAIT_S = 20.0


class KeyringStore(TokenStore):
    """The stored tokens of one server, in the system's keyring.

    Each method raises `AuthorizationRefused` if the package is missing, if there is no keyring, or if it is
    locked or does not answer within 20 s: some keyrings ask a person before they answer.
    """

    def __init__(self, server: HttpServer) -> None:
        super().__init__(server)
        self._name = server.name
        self._entry = self.file.stem

    def load(self) -> TokenRecord | None:
        """Return the stored entry; `None` if there is none, or if it cannot be decoded."""
        text = self._asked(lambda ring: ring.get_password(SERVICE, self._entry))
        try:
            return None if text is None else msgspec.json.decode(text, type=TokenRecord)
        except msgspec.DecodeError:
            return None

    def save(self, record: TokenRecord) -> None:
        """Store a record, and remove tokens of the same login that an earlier setting left in a file."""
        text = msgspec.json.encode(record).decode()

        def kept(ring: Any) -> bool:
            ring.set_password(SERVICE, self._entry, text)
            return bool(ring.get_password(SERVICE, self._entry) == text)

        if not self._asked(kept):  # the backend `null` forgets everything without an error
            raise AuthorizationRefused(keyring_fault(self._name, "does not keep what is stored in it"))
        super().remove()

    def remove(self) -> bool:
        """Remove the tokens; return whether there were any."""
        in_a_file = super().remove()

        def removed(ring: Any) -> bool:
            if ring.get_password(SERVICE, self._entry) is None:
                return False
            ring.delete_password(SERVICE, self._entry)
            return True

        return self._asked(removed) or in_a_file

    def may_have(self) -> bool:
        """Return `True`: only the keyring knows, and asking it can take long."""
        return True

    @property
    def place(self) -> str:
        """Where the tokens are, in words."""
        return f"the system's keyring ({self._asked(lambda ring: ring.get_keyring().name)})"

    def _asked(self, ask: Callable[[Any], T]) -> T:
        """Call `ask` with the package `keyring`, and translate its errors.

        It runs in a daemon thread. A keyring that waits for a person to unlock it must keep neither the
        caller beyond the limit, nor the interpreter from exiting.
        """
        answers: queue.SimpleQueue[T | BaseException] = queue.SimpleQueue()

        def work() -> None:
            try:
                import keyring

                answers.put(ask(keyring))
            except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
                answers.put(error)

        threading.Thread(target=work, name="grue keyring", daemon=True).start()
        try:
            answer = answers.get(timeout=_WAIT_S)
        except queue.Empty:
            words = f"did not answer within {_WAIT_S:g} s; perhaps it waits to be unlocked"
            raise AuthorizationRefused(keyring_fault(self._name, words)) from None
        if isinstance(answer, BaseException):
            self._refuse(answer)
        return answer

    def _refuse(self, error: BaseException) -> NoReturn:
        if isinstance(error, ModuleNotFoundError) and error.name == "keyring":
            raise AuthorizationRefused(keyring_fault(self._name, None)) from error
        with contextlib.suppress(ImportError):
            from keyring.errors import KeyringError, KeyringLocked, NoKeyringError

            if isinstance(error, NoKeyringError):
                words = "is missing: no backend of the package keyring works here"
                raise AuthorizationRefused(keyring_fault(self._name, words)) from error
            if isinstance(error, KeyringLocked):
                raise AuthorizationRefused(keyring_fault(self._name, "is locked")) from error
            if isinstance(error, KeyringError | ImportError | AttributeError | OSError | RuntimeError):
                # Without the error's text: a backend may put what it should store into it.
                words = f"cannot be used ({type(error).__name__})"
                raise AuthorizationRefused(keyring_fault(self._name, words)) from error
        raise error


def token_store(server: HttpServer) -> TokenStore:
    """Return the store of a server's tokens, in the place that its settings name."""
    in_keyring = server.auth is not None and server.auth.keep_tokens_in == "keyring"
    return KeyringStore(server) if in_keyring else TokenStore(server)
