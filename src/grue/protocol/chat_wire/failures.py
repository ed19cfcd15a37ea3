"""Read the errors of an endpoint, and describe them for a person: what failed, and what to do about it.

Come here to add a remedy, or a provider's form of error. The text of an endpoint is untrusted and may repeat
the key. It is therefore redacted, cut, and stripped of control characters.
"""

import re
from collections.abc import Callable
from urllib.parse import urlsplit

from msgspec import Struct

from grue.late_patterns import late
from grue.messages import ContextOverflow, LlmFailure
from grue.protocol.chat_wire.json_text import from_json, to_json
from grue.protocol.chat_wire.profile import WireProfile
from grue.protocol.retry import kind_of_status
from grue.protocol.safe_text import beginning, printable
from grue.vocabulary import FailureKind

_MOST_READ = 20_000
"""Most characters of an endpoint's text that are read."""

MAX_WORDS = 600
"""Longest quotation of a provider's text, in characters."""

_KEY = late(r"api[ _-]?key|no connected db", re.IGNORECASE)
"""How a key is refused with status 400: Gemini's and xAI's words, and LiteLLM's where it has no database."""

_MODEL = late(r"invalid model\b|not a valid model|model\b[^\n]{0,80}(not exist|not found)", re.IGNORECASE)
_UNPAID = late(r"credit balance|any credits|billing", re.IGNORECASE)
_TOOLLESS = late(r"not support (?:tool|function)|tool use", re.IGNORECASE)
_MODERATED = late(r"moderation|flagged", re.IGNORECASE)
_GARBLED = frozenset({"tool_use_failed", "json_validate_failed"})
"""Codes of Groq's for an invalid output of the model, with status 400; a retry can help."""

_LOOPBACK = late(r"localhost|127(\.\d{1,3}){3}|::1")


class Fault(Struct, frozen=True, kw_only=True):
    """The reason why a request gave no completion, as far as the reply or the connection shows.

    Attributes:
        message: The endpoint's text, unchanged, or what happened to the connection.
        status: HTTP status of the reply, or of the error object inside it.
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
    # Some endpoints send an error in the form of a stream's first event.
    first_event = re.match(rb"data: *(\{[^\n]*)", body)
    try:
        error = from_json(first_event[1] if first_event else body)
    except (ValueError, MemoryError):
        words = _plain_words(body)
        return Fault(kind=kind_of_status(status, words), status=status, message=words)
    words = error_words(error)
    kind = "invalid_reply" if _is_garbled(error) else kind_of_status(status, words)
    return Fault(kind=kind, status=status, message=words)


def fault_of_error(error: object) -> Fault:
    """Read an error object that came with HTTP status 200."""
    words = error_words(error)
    status = _error_status(error)
    if status is None:
        # It may be a temporary failure or used-up credit. A 429 can mean either, and its text decides.
        return Fault(kind=kind_of_status(429, words), status=200, message=words)
    return Fault(kind=kind_of_status(status, words), status=status, message=words)


def error_words(error: object) -> str:
    """Return the text of an error body of any shape: message, code, and the upstream provider's text."""
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


def _is_garbled(error: object) -> bool:
    match error:
        case {"error": {"code": str() as code}}:
            return code in _GARBLED
        case _:
            return False


def _upstream_words(metadata: object) -> str:
    if not isinstance(metadata, dict):
        return ""
    provider = _text(metadata.get("provider_name"))
    raw = _text(metadata.get("raw") or metadata.get("reasons"))
    return f"({provider or 'provider'}: {raw})" if raw else f"({provider})" if provider else ""


def _text(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return to_json(value).decode()


def _error_status(error: object) -> int | None:
    """Return the HTTP status that an error object stands for: its code, or what its type is known to mean."""
    if not isinstance(error, dict):
        return None
    code = error.get("code")
    if isinstance(code, str) and re.fullmatch(r"\d{3}", code):
        code = int(code)
    if isinstance(code, int) and 400 <= code < 600:
        return code
    named = (_STATUS_OF_TYPE.get(error[key]) for key in ("type", "code") if isinstance(error.get(key), str))
    return next((status for status in named if status is not None), None)


_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""Names of OpenAI's and Anthropic's errors, for places without a status: in streams, and inside a 200."""


def _plain_words(body: bytes) -> str:
    text = beginning(body[:80_000].decode("utf-8", "replace"), _MOST_READ)
    title = re.search(r"<title[^>]*>([^<]{1,2000})", text, re.IGNORECASE)
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
    fault: Fault,
    *,
    base_url: str,
    model: str,
    profile: WireProfile,
    redacted: Callable[[str], str] = str,
    key: str = "",
) -> LlmFailure:
    """Return the description of a fault: safe to show, with a remedy.

    Args:
        fault: The fault.
        base_url: The configured base URL.
        model: The model that was requested.
        profile: The endpoint's profile, which names the environment variable of the key.
        redacted: Redacts the endpoint's text. It is called before the text is cut, so that no part of a
            secret remains.
        key: A sentence about where the key was looked for; empty: the host gave the key.
    """
    message = redacted(beginning(fault.message, _MOST_READ))
    return LlmFailure(
        kind=fault.kind,
        endpoint=shown_endpoint(base_url),
        model=model,
        status=fault.status,
        message=_shown(message),
        overflow=_overflow_in(fault.message),
        remedy=_remedy(fault, base_url, model, profile, key),
    )


_WINDOW = "Set a ContextPolicy, send less, or choose a model with a larger context window."
_MONEY = "Add credit or raise the spending limit at the provider, or choose another model."


def _overflow_in(message: str) -> ContextOverflow | None:
    # Imported at the first failure, because it compiles long patterns.
    from grue.protocol.chat_wire.context_overflow import overflow_in

    return overflow_in(message)


def _refuses_key(fault: Fault) -> bool:
    return fault.status != 400 or _KEY.search(fault.message) is not None


def _shown(text: str) -> str:
    return printable(" ".join(text[: 4 * MAX_WORDS].split()), MAX_WORDS)


def _remedy(fault: Fault, base_url: str, model: str, profile: WireProfile, key: str) -> str:
    match fault:
        case Fault(message=message) if _overflow_in(message) is not None:
            return _WINDOW
        case Fault(status=400 | 403) if _UNPAID.search(fault.message):
            return _MONEY
        case Fault(status=403) if _MODERATED.search(fault.message):
            return "The provider's moderation refused what was sent: change it, or choose another model."
        case Fault(status=400) if _MODEL.search(fault.message):
            return f"Check the model name '{model}' and the base URL."
        case Fault(status=400 | 401 | 403) if _refuses_key(fault):
            accepted = "to a key that this endpoint accepts for this model."
            return f"{key} Set {profile.key_variable} {accepted}".lstrip()
        case Fault(status=402) | Fault(status=200 | 429, kind="refused"):
            return _MONEY
        case Fault(status=400 | 404) if _TOOLLESS.search(fault.message):
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
        case Fault(kind="invalid_reply", status=400):
            return "Choose a model that is better at calling tools."
        case Fault(kind="invalid_reply"):
            return "Check the base URL: that of an OpenAI-compatible API usually ends in /v1."
        case Fault(kind="damaged"):
            return "Check the proxies and gateways before the endpoint, or do not stream."
        case Fault(kind="unavailable"):
            return "Try again later, or choose another model."
        case _:
            return "Check the model and its settings against the endpoint's words."
