"""Keys come from the environment: which one a host may have, and which values must never be shown."""

import re
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from grue.errors import MCPConfigError

OWN_KEY = "GRUE_API_KEY"
_PROVIDER_KEYS = {"openrouter.ai": "OPENROUTER_API_KEY", "api.openai.com": "OPENAI_API_KEY"}

SECRET_MIN_CHARACTERS = 12
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


def key_names(base_url: str) -> tuple[str, ...]:
    """Return the environment variables whose key may be sent to `base_url`, the first to be tried first.

    A provider's key goes to that provider alone, and only over https. `GRUE_API_KEY` goes wherever the user
    points grue, for it was set for that.
    """
    parts = urlsplit(base_url)
    provider_key = next((key for host, key in _PROVIDER_KEYS.items() if _is_host(parts, host)), None)
    return (OWN_KEY, provider_key) if provider_key and parts.scheme == "https" else (OWN_KEY,)


def needs_key(base_url: str) -> bool:
    """Say whether the endpoint is known to refuse requests without a key: the hosted providers are."""
    return any(_is_host(urlsplit(base_url), host) for host in _PROVIDER_KEYS)


def api_key(base_url: str, environ: Mapping[str, str]) -> str | None:
    """Return the key for `base_url`, or `None` where the environment has none for that host.

    Args:
        base_url: The endpoint's base URL.
        environ: The environment; an empty variable counts as not set.

    Raises:
        MCPConfigError: The key cannot be sent in a header. The variable is named, the value never shown.
    """
    for name in key_names(base_url):
        key = environ.get(name, "").strip()
        if not key:
            continue
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise MCPConfigError(f"The environment variable {name} holds no usable API key: set it again.")
        return key
    return None


def secret_values(environ: Mapping[str, str], configured_env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values to be redacted, the longest first, so that one within another leaves no rest.

    A value counts if it has at least 12 characters and its name looks like a secret's, in the host's
    environment or in what is configured for a server (`env`, `headers`).
    """
    found = {
        value.strip()
        for variables in (environ, configured_env)
        for name, value in variables.items()
        if len(value.strip()) >= SECRET_MIN_CHARACTERS and looks_secret(name)
    }
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def looks_secret(name: str) -> bool:
    """Say whether a variable of this name is likely to hold a secret, and not merely the place of one."""
    words = [word.upper() for word in _WORDS.findall(name)]
    if not words or words[-1] in _PLACES or name.upper() in _NOT_SECRET:
        return False
    return any(word in _SECRET_WORDS or _SECRET_PARTS.search(word) for word in words)


def _is_host(parts: SplitResult, host: str) -> bool:
    actual = (parts.hostname or "").rstrip(".")
    return actual == host or actual.endswith("." + host)
