"""Choose the API key for an endpoint from the environment. One rule for code, configuration and commands.

A key is only ever sent to the provider that it belongs to.
"""

from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from grue.errors import MCPConfigError
from grue.protocol.chat_wire.failures import shown_endpoint
from grue.protocol.chat_wire.profiles import PROFILES

OWN_KEY = "GRUE_API_KEY"
_PROVIDER_KEYS = {host: rows[0].key_variable for host, rows in PROFILES.items()}


def key_names(base_url: str) -> tuple[str, ...]:
    """Return the environment variables whose key may be sent to `base_url`, in the order to try them.

    A provider's key is sent only to that provider, and only over https. `GRUE_API_KEY` is sent to any
    endpoint that the user configures, because it is set for grue.
    """
    parts = urlsplit(base_url)
    provider_key = next((key for host, key in _PROVIDER_KEYS.items() if _is_host(parts, host)), None)
    return (OWN_KEY, provider_key) if provider_key and parts.scheme == "https" else (OWN_KEY,)


def needs_key(base_url: str) -> bool:
    """Return whether the endpoint belongs to a known provider, all of which refuse requests without a key."""
    return any(_is_host(urlsplit(base_url), host) for host in _PROVIDER_KEYS)


def api_key(base_url: str, environ: Mapping[str, str]) -> str | None:
    """Return the key for `base_url`, or `None` if the environment has none for that host.

    Args:
        base_url: The endpoint's base URL.
        environ: The environment; an empty variable counts as not set.

    Raises:
        MCPConfigError: The key cannot be sent in a header. The error names the variable and never its value.
    """
    for name in key_names(base_url):
        key = environ.get(name, "").strip()
        if not key:
            continue
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise MCPConfigError(
                f"The environment variable {name} does not contain a usable API key: it has a space, a"
                " control character or a character outside ASCII. Set it again."
            )
        return key
    return None


def require_key(base_url: str, key: str | None, otherwise: str = "") -> None:
    """Check that there is a key for an endpoint that needs one.

    Args:
        base_url: The endpoint's base URL.
        key: The key that was found; `None` or empty: none.
        otherwise: What the user can do instead, as the end of the error's sentence.

    Raises:
        MCPConfigError: The endpoint needs a key, and `key` is empty. The error names the variables to set.
    """
    if not key and needs_key(base_url):
        names = " or ".join(key_names(base_url))
        raise MCPConfigError(
            f"There is no key for {shown_endpoint(base_url)}: set {names} in the environment{otherwise}."
        )


def key_sentence(base_url: str, environ: Mapping[str, str]) -> str:
    """Return a sentence about where the key was looked for, for an error about a refused key."""
    names = key_names(base_url)
    used = next((name for name in names if environ.get(name, "").strip()), None)
    if used is not None:
        return f"The key was that of {used}."
    looked_for = " and ".join(names)
    return f"No key was sent: {looked_for} {'are' if len(names) > 1 else 'is'} not set."


def _is_host(parts: SplitResult, host: str) -> bool:
    actual = (parts.hostname or "").rstrip(".")
    return actual == host or actual.endswith("." + host)
