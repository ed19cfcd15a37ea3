"""A keyring that keeps its entries in a file, for tests with more than one process.

To use it, set PYTHON_KEYRING_BACKEND=file_keyring.FileKeyring and KEYRING_FILE=FILE.
"""

import json
import os
from pathlib import Path

from keyring.backend import KeyringBackend


class FileKeyring(KeyringBackend):
    """Keeps entries by service and name. A write replaces the whole file atomically."""

    priority = 0.1

    def get_password(self, service: str, username: str) -> str | None:
        found: str | None = self._entries().get(f"{service} {username}")
        return found

    def set_password(self, service: str, username: str, password: str) -> None:
        self._keep({**self._entries(), f"{service} {username}": password})

    def delete_password(self, service: str, username: str) -> None:
        entries = self._entries()
        del entries[f"{service} {username}"]
        self._keep(entries)

    def _entries(self) -> dict[str, str]:
        try:
            entries: dict[str, str] = json.loads(_file().read_text())
        except FileNotFoundError:
            return {}
        return entries

    def _keep(self, entries: dict[str, str]) -> None:
        written = _file().with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(entries))
        written.replace(_file())


def _file() -> Path:
    return Path(os.environ["KEYRING_FILE"])
