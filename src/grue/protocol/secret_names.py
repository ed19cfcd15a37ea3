"""Which values must never be shown: those of variables whose names say so, and passwords in URLs."""

import re
from base64 import b64decode
from binascii import Error
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

MIN_CHARS = 12
MIN_PASSWORD_CHARS = 8
"""Of a value that is certain to be a password; a shorter one would be found in other words."""

_URL_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*:([^/\s@]+)@")
_BASIC = re.compile(r"(?i)basic +([A-Za-z0-9+/_-]+=*)")
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
    environment or in what is configured for a server (`env`, `headers`). Of a URL with a password the
    password counts whatever the name, and of `Basic` credentials theirs, from 8 characters on.
    """
    found: dict[str, str] = {}
    for environment in environments:
        for name, value in environment.items():
            if len(value.strip()) >= MIN_CHARS and looks_secret(name):
                found[name] = value.strip()
            found |= {f"{name} password": password for password in _passwords_in(value)}
    return found


def _passwords_in(value: str) -> Iterator[str]:
    passwords = [unquote(found) for found in _URL_PASSWORD.findall(value)]
    passwords += filter(None, map(_basic_password, _BASIC.findall(value)))
    return (password for password in passwords if len(password) >= MIN_PASSWORD_CHARS)


def _basic_password(credentials: str) -> str:
    try:
        decoded = b64decode(credentials, altchars=b"-_" if {"-", "_"} & set(credentials) else None).decode()
    except (Error, UnicodeDecodeError):
        return ""
    return decoded.partition(":")[2]


def looks_secret(name: str) -> bool:
    """Say whether a variable of this name is likely to hold a secret, and not merely the place of one."""
    words = [word.upper() for word in _WORDS.findall(name)]
    if not words or words[-1] in _PLACES or name.upper() in _NOT_SECRET:
        return False
    return any(word in _SECRET_WORDS or _SECRET_PARTS.search(word) for word in words)
