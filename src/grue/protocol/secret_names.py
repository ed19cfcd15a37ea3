"""Which values must never be shown: those of variables whose names say so."""

import re
from collections.abc import Mapping

MIN_CHARS = 12
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_PARTS = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY|ACCESSKEY|PRIVATEKEY|TOKENS?$"
)
_SECRET_WORDS = frozenset(
    ("AUTH", "AUTHORIZATION", "BEARER", "COOKIE", "JWT", "KEY", "KEYS", "PASS", "PAT", "PWD")
)
# The last word of a name that says where a thing is, not what it is. PWD and OLDPWD are the shell's folders.
_PLACES = frozenset(("DIR", "DIRECTORY", "FD", "FILE", "FOLDER", "PATH", "PID", "SOCK", "SOCKET"))
_NOT_SECRET = frozenset(("GOOGLE_APPLICATION_CREDENTIALS", "OLDPWD", "PWD"))


def secrets_in(*environments: Mapping[str, str]) -> dict[str, str]:
    """Return the values to be redacted by the names that stand for them.

    A value counts if it has at least 12 characters and its name looks like a secret's, in the host's
    environment or in what is configured for a server (`env`, `headers`).
    """
    return {
        name: value.strip()
        for environment in environments
        for name, value in environment.items()
        if len(value.strip()) >= MIN_CHARS and looks_secret(name)
    }


def looks_secret(name: str) -> bool:
    """Say whether a variable of this name is likely to hold a secret, and not merely the place of one."""
    words = [word.upper() for word in _WORDS.findall(name)]
    if not words or words[-1] in _PLACES or name.upper() in _NOT_SECRET:
        return False
    return any(word in _SECRET_WORDS or _SECRET_PARTS.search(word) for word in words)
