"""What an endpoint's refusal says, and how it is told to a person: what failed, in whose words, what to do.

Everything an endpoint says is untrusted, and may repeat the key it was sent: control characters go, secrets
are replaced, long texts are cut.
"""

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from msgspec import Struct

from grue.messages import LlmFailure
from grue.protocol.chat_wire.json_text import from_json, to_json
from grue.protocol.chat_wire.profile import WireProfile
from grue.protocol.retry import FailureKind, kind_of_status
from grue.protocol.safe_text import printable

MAX_WORDS = 600
"""Longest quotation of a provider, in characters."""

MIN_SECRET = 8
"""Shorter values are no secrets but placeholders, such as `none`, that would garble the endpoint's words."""

_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|::1")


class Fault(Struct, frozen=True, kw_only=True):
    """Why a request gave no completion, as far as the wire tells.

    Attributes:
        message: The endpoint's words, or what happened to the connection; as they came.
        status: HTTP status, of the reply or of the error within it.
    """

    kind: FailureKind
    message: str
    status: int | None = None


def fault_of_status(status: int, body: bytes, location: str | None = None) -> Fault:
    """Read a reply whose status is not 2xx.

    Args:
        status: Its HTTP status.
        body: Its body; JSON in one of many shapes, a web page, or nothing.
        location: Where a redirect points.
    """
    if 300 <= status < 400:
        return Fault(kind="refused", status=status, message=f"redirects to {location or 'nowhere'}")
    try:
        words = error_words(from_json(body))
    except ValueError:
        words = _plain_words(body)
    return Fault(kind=kind_of_status(status, words), status=status, message=words)


def fault_of_error(error: object) -> Fault:
    """Read an error object that came with HTTP status 200."""
    words = error_words(error)
    status = _error_status(error)
    if status is None:
        # An accident upstream, or money: read as a 429, which means either.
        return Fault(kind=kind_of_status(429, words), status=200, message=words)
    return Fault(kind=kind_of_status(status, words), status=status, message=words)


def error_words(error: object) -> str:
    """Return what an error body says, whatever its shape: message, code, and the upstream's own words."""
    match error:
        case str():
            return error
        case [first, *_]:
            return error_words(first)
        case {"error": inner} if inner:
            return error_words(inner)
        case dict():
            said = next((error[key] for key in ("message", "detail", "code", "type") if error.get(key)), "")
            return " ".join(filter(None, (_text(said), _upstream_words(error.get("metadata")))))
        case _:
            return ""


def _upstream_words(metadata: object) -> str:
    if not isinstance(metadata, dict):
        return ""
    raw, provider = _text(metadata.get("raw")), _text(metadata.get("provider_name"))
    return f"({provider or 'provider'}: {raw})" if raw else f"({provider})" if provider else ""


def _text(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return to_json(value).decode()


def _error_status(error: object) -> int | None:
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and re.fullmatch(r"\d{3}", code):
        code = int(code)
    return code if isinstance(code, int) and 400 <= code < 600 else None


def _plain_words(body: bytes) -> str:
    text = body[:20_000].decode("utf-8", "replace")
    title = re.search(r"<title[^>]*>([^<]{1,200})", text, re.IGNORECASE)
    return title[1] if title else re.sub(r"<[^>]*>", " ", text)


def shown_endpoint(base_url: str) -> str:
    """Return a base URL fit to be shown: no user, no password, no query."""
    try:
        url = urlsplit(base_url.strip())
    except ValueError:
        return "(unreadable base URL)"
    host = url.netloc.rpartition("@")[2]
    return f"{url.scheme}://{host}{url.path.rstrip('/')}"


def is_loopback(base_url: str) -> bool:
    """Return whether a base URL points to this machine itself."""
    return _LOOPBACK.fullmatch(urlsplit(base_url).hostname or "") is not None


def describe(
    fault: Fault, *, base_url: str, model: str, profile: WireProfile, secrets: Iterable[str] = ()
) -> LlmFailure:
    """Return what is told of `fault`: safe to show, with what to do about it.

    Args:
        fault: What the wire told.
        base_url: As configured.
        model: The model that was asked for.
        profile: The endpoint's; it names the variable that the key is kept in.
        secrets: Values to be replaced wherever the endpoint repeats them.
    """
    message = fault.message
    for secret in sorted((item for item in secrets if len(item) >= MIN_SECRET), key=len, reverse=True):
        message = message.replace(secret, "[redacted]")
    return LlmFailure(
        kind=fault.kind,
        endpoint=shown_endpoint(base_url),
        model=model,
        status=fault.status,
        message=_shown(message),
        remedy=_remedy(fault, base_url, model, profile),
    )


def _shown(text: str) -> str:
    return printable(" ".join(text[: 4 * MAX_WORDS].split()), MAX_WORDS)


def _remedy(fault: Fault, base_url: str, model: str, profile: WireProfile) -> str:
    match fault:
        case Fault(status=401 | 403):
            return f"Set {profile.key_variable} to a key that this endpoint accepts for this model."
        case Fault(status=402) | Fault(status=200 | 429, kind="refused"):
            return "Add credit or raise the spending limit at the provider, or choose another model."
        case Fault(status=404) if "tool" in fault.message.lower():
            return f"Choose a model that can call tools instead of '{model}', or turn MCP off."
        case Fault(status=404):
            return f"Check the model name '{model}' and the base URL."
        case Fault(status=status) if status is not None and 300 <= status < 400:
            return "Set the base URL to where it redirects, if you trust that."
        case Fault(kind="unreachable") if is_loopback(base_url):
            return "Is the server running? Start it, or correct the base URL."
        case Fault(kind="unreachable"):
            return "Check the base URL, the network and the proxy settings."
        case Fault(kind="timed_out"):
            return "Raise timeout_seconds in the retry settings, or choose a faster model."
        case Fault(kind="invalid_reply"):
            return "Check the base URL: that of an OpenAI-compatible API usually ends in /v1."
        case Fault(kind="unavailable"):
            return "Try again later, or choose another model."
        case _:
            return "Check the model and its settings against the endpoint's words."
