"""Find the values to redact: those of variables with a secret's name, and passwords in URLs."""

import functools
import re
from base64 import b64decode
from binascii import Error
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

MIN_CHARS = 12
MIN_PASSWORD_CHARS = 8
"""Shortest password to redact. A shorter one would also match parts of ordinary words."""

_MOST_NAMES = 1024
"""Of how many names it is remembered whether they look like a secret's; names only, no values."""

_URL_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*:([^/\s@]+)@")
_BASIC = re.compile(r"(?i)basic +([A-Za-z0-9+/_-]+=*)")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_PARTS = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY|ACCESSKEY|PRIVATEKEY|TOKENS?$"
)
_SECRET_WORDS = frozenset(
    ("AUTH", "AUTHORIZATION", "BEARER", "COOKIE", "JWT", "KEY", "KEYS", "PASS", "PAT", "PWD")
)
# A name that ends in one of these words holds the place of a secret, not the secret. PWD and OLDPWD are
# folders of the shell, GRUE_TOKENS is where grue keeps tokens.
_PLACES = frozenset(("DIR", "DIRECTORY", "FD", "FILE", "FOLDER", "PATH", "PID", "SOCK", "SOCKET"))
_NOT_SECRET = frozenset(("GOOGLE_APPLICATION_CREDENTIALS", "GRUE_TOKENS", "OLDPWD", "PWD"))


def secrets_in(*environments: Mapping[str, str]) -> dict[str, str]:
    """Return the values to redact, each with the name that its placeholder shows.

    A value is a secret if it has at least 12 characters and its name looks like a secret's. Passwords in URLs
    and in `Basic` credentials are secrets whatever the variable is called, if they have at least 8
    characters.

    Args:
        environments: The host's environment, and what is configured for a server (`env`, `headers`).
    """
    found: dict[str, str] = {}
    for environment in environments:
        for name, value in environment.items():
            if len(value.strip()) >= MIN_CHARS and looks_secret(name):
                found[name] = value.strip()
            for password in _passwords_in(value):
                found[f"{name} password"] = password
    return found


def _passwords_in(value: str) -> Iterator[str]:
    # Every runner looks at the whole environment, and looking for these characters is quicker than a pattern.
    passwords = list(map(unquote, _URL_PASSWORD.findall(value))) if "://" in value else []
    if " " in value:
        passwords += filter(None, map(_basic_password, _BASIC.findall(value)))
    return (password for password in passwords if len(password) >= MIN_PASSWORD_CHARS)


def _basic_password(credentials: str) -> str:
    try:
        decoded = b64decode(credentials, altchars=b"-_" if {"-", "_"} & set(credentials) else None).decode()
    except (Error, UnicodeDecodeError):
        return ""
    return decoded.partition(":")[2]


@functools.lru_cache(maxsize=_MOST_NAMES)
def looks_secret(name: str) -> bool:
    """Return whether a variable of this name probably holds a secret, and not just the path of one."""
    words = [word.upper() for word in _WORDS.findall(name)]
    if not words or words[-1] in _PLACES or name.upper() in _NOT_SECRET:
        return False
    return any(word in _SECRET_WORDS or _SECRET_PARTS.search(word) for word in words)
