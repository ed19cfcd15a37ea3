"""Read the errors of an endpoint, and describe them for a person: what failed, and what to do about it.

It also has the advice for each kind of failure. The text of an endpoint is untrusted and may repeat the key.
It is therefore redacted, cut, and stripped of control characters.
"""

import math
import re
from collections.abc import Callable
from typing import assert_never
from urllib.parse import urlsplit

from msgspec import Struct

from grue import messages as m
from grue.policies import FailureKind, FailureReason
from grue.protocol.chat_wire.context_overflow import overflow_in
from grue.protocol.chat_wire.failure_reasons import kind_of, reason_of, reason_of_kind
from grue.protocol.chat_wire.profile import WireProfile
from grue.protocol.json_text import from_json, to_json
from grue.protocol.retry import wait_in
from grue.runtime.safe_text import beginning, printable

_MOST_READ = 20_000
"""Most characters of an endpoint's text that are read."""

MAX_WORDS = 600
"""Longest quotation of a provider's text, in characters."""

_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|::1")


class Fault(Struct, frozen=True, kw_only=True):
    """The reason why a request gave no completion, as far as the reply or the connection shows.

    Attributes:
        message: The endpoint's text, unchanged, or what happened to the connection.
        status: HTTP status of the reply, or of the error object inside it.
        reason: Why; `None`: `kind` says enough.
        retry_after_s: The wait that the endpoint asked for, in a header or in its text.
        received: Characters of a streamed reply that had arrived by then; they have been paid for.
    """

    kind: FailureKind
    message: str
    status: int | None = None
    reason: FailureReason | None = None
    retry_after_s: float | None = None
    received: int = 0


def fault_of_status(
    status: int, body: bytes, location: str | None = None, retry_after_s: float | None = None
) -> Fault:
    """Read a reply whose status is not 2xx.

    Args:
        status: Its HTTP status.
        body: Its body; JSON in one of many shapes, a web page, or nothing.
        location: Where a redirect points.
        retry_after_s: The wait that the headers ask for.
    """
    if 300 <= status < 400:
        words = f"redirects to {location or 'nowhere'}"
        return Fault(kind="refused", status=status, message=words, reason="address")
    # Some endpoints send an error in the form of a stream's first event.
    first_event = re.match(rb"(?:event: *[^\n]*\n)?data: *(\{[^\n]*)", body)
    try:
        error = from_json(first_event[1] if first_event else body)
    except (ValueError, MemoryError):
        return _fault(status, _plain_words(body), "", retry_after_s)
    return _fault(status, error_words(error), _codes(error), _longest(retry_after_s, _wait_of(error)))


def fault_of_error(error: object) -> Fault:
    """Read an error object that came with HTTP status 200, as a body or within a stream.

    The rules are those of a reply with the status that the object names. Without one, the words decide; if
    they say nothing, it counts as a temporary failure.
    """
    return _fault(_error_status(error) or 200, error_words(error), _codes(error), _wait_of(error))


def _fault(status: int, words: str, codes: str, retry_after_s: float | None) -> Fault:
    asked_s = _longest(retry_after_s, wait_in(words[:_MOST_READ]))
    reason = reason_of(status, words[:_MOST_READ], codes, asked_s)
    kind = kind_of(reason)
    wait_s = asked_s if kind == "unavailable" else None
    return Fault(kind=kind, status=status, message=words, reason=reason, retry_after_s=wait_s)


def _longest(*waits: float | None) -> float | None:
    return max((wait for wait in waits if wait is not None), default=None)


def _wait_of(error: object) -> float | None:
    """Return the wait that an error object names beside its message, such as Google's `RetryInfo`."""
    return wait_in(beginning(to_json(error).decode("utf-8", "replace"), _MOST_READ))


def _codes(error: object) -> str:
    """Return the names and numbers of an error object, its upstream provider's included, in one text."""
    match error:
        case [first, *_]:
            return _codes(first)
        case {**fields}:
            named = (
                error.get(key) for key in ("code", "type", "status", "reason", "error_code", "innererror")
            )
            own = " ".join(str(name)[:200] for name in named if isinstance(name, str | int | dict))
            return " ".join(filter(None, (own, *(_codes(fields.get(key)) for key in ("error", "errors")))))
        case _:
            return ""


_SAID_IN = ("message", "detail", "Message", "msg", "status_msg", "description", "title", "code", "type")
"""Where error objects have their text, the best one first."""


def error_words(error: object) -> str:
    """Return the text of an error body of any shape: message, code, and the upstream provider's text."""
    match error:
        case str():
            return error
        case [first, *_]:
            return error_words(first)
        case {"error": inner} if inner:
            return error_words(inner)
        case {"errors": [first, *_], **rest} if not rest.get("message"):
            return error_words(first)
        case dict():
            said = next((error[key] for key in _SAID_IN if error.get(key)), "")
            return " ".join(filter(None, (_text(said), _upstream_words(error.get("metadata")))))
        case _:
            return ""


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
    named = (_STATUS_OF_TYPE.get(error[key]) for key in ("code", "type") if isinstance(error.get(key), str))
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
) -> m.LlmFailure:
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
    reason = reason_of_fault(fault)
    return m.LlmFailure(
        kind=fault.kind,
        endpoint=shown_endpoint(base_url),
        model=model,
        status=fault.status,
        message=_shown(message),
        overflow=overflow_in(fault.message, fault.status) if reason == "too_long" else None,
        remedy=_remedy(fault, reason, base_url, model, profile, key),
        reason=reason,
        retry_after_s=fault.retry_after_s,
    )


def reason_of_fault(fault: Fault) -> FailureReason:
    """Return why a request gave no completion."""
    if fault.reason is not None:
        return fault.reason
    if fault.kind not in ("refused", "unavailable") or fault.status in (None, 200):
        return reason_of_kind(fault.kind)
    return reason_of(fault.status, fault.message)


def _shown(text: str) -> str:
    return printable(" ".join(text[: 4 * MAX_WORDS].split()), MAX_WORDS)


def _remedy(
    fault: Fault, reason: FailureReason, base_url: str, model: str, profile: WireProfile, key: str
) -> str:
    match reason:
        case "key":
            accepted = "to a key that this endpoint accepts for this model."
            return f"{key} Set {profile.key_variable} {accepted}".lstrip()
        case "permission":
            return (
                "Allow the key's account what the endpoint's words name, at the provider, or set"
                f" {profile.key_variable} to the key of an account that may do it."
            )
        case "credit":
            return "Add credit or raise the spending limit at the provider, or choose another model."
        case "rate":
            return f"{_when(fault)}, send fewer requests at once, or ask the provider for a higher limit."
        case "overloaded":
            return f"{_when(fault)}, or choose another model."
        case "region":
            return "Choose a provider that serves this country or region."
        # Redirects are not followed, because the key would go with them.
        case "model" | "address" if fault.status is not None and 300 <= fault.status < 400:
            return "Set the base URL to where it redirects, if you trust that."
        # Providers answer 404 both for a model that does not exist and for one that the account may not use.
        case "model":
            return (
                f"Check the model name '{model}' and the base URL, and whether the key's account may use it."
            )
        case "address":
            return f"Check the model name '{model}' and the base URL, which usually ends in /v1."
        case "tools":
            return f"Choose a model that can call tools instead of '{model}', or turn MCP off."
        case "content":
            return "The provider's moderation refused what was sent: change it, or choose another model."
        case "too_long":
            return "Set a ContextPolicy, send less, or choose a model with a larger context window."
        case "request":
            return "Check the model and its settings against the endpoint's words."
        # It was reached, and the connection broke afterwards: the address is right.
        case "connection" if fault.kind != "unreachable":
            return "Try again later; if it happens again, check the network and the proxies."
        case "connection" if is_loopback(base_url):
            return "Is the server running? Start it, or correct the base URL."
        case "connection":
            return "Check the base URL, the network and the proxy settings."
        case "timeout":
            return "Raise timeout_seconds in the retry settings, or choose a faster model."
        # Groq, for one, checks the calls of the model itself, and answers a malformed one with a 400.
        case "reply" if fault.status not in (None, 200):
            return "Choose a model that is better at calling tools."
        # No endpoint writes such bytes: something on the way has changed the stream.
        case "reply" if fault.kind == "damaged":
            return "Check the proxies and gateways before the endpoint, or do not stream."
        # Status 200 and no completion is often a web page, at the path without /v1.
        case "reply":
            return "Check the base URL: that of an OpenAI-compatible API usually ends in /v1."
    assert_never(reason)


def _when(fault: Fault) -> str:
    wait_s = fault.retry_after_s
    if wait_s is None:
        return "Try again later"
    if wait_s < 120:
        return f"Try again in {math.ceil(wait_s)} s"
    return (
        f"Try again in {wait_s / 60:.0f} minutes"
        if wait_s < 7200
        else f"Try again in {wait_s / 3600:.0f} hours"
    )
