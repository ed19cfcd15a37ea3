"""Faulty replies for the script of a `ScriptedLlmServer`; `silence` and `hang_up` are in `llm_replies.py`.

```python
script = [stalled(text_reply("take lamp")), rate_limited(1), text_reply("take lamp")]
```

`error_in_stream` and `garbage_in_stream` change nothing in a reply that is not streamed. `after` is the
fraction of the body or, in a stream, of its events that is sent before the fault.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from html import escape

from msgspec.structs import replace

from grue.testing.llm_replies import LlmReply, Pace, error_reply, text_reply

_GOOD_REPLY = text_reply("It is well.")


def stalled(reply: LlmReply = _GOOD_REPLY, *, after: float = 0.5) -> LlmReply:
    """Return a reply that stops after the fraction `after` and leaves the connection open."""
    return replace(reply, then="hang", after=after)


def dripping(reply: LlmReply = _GOOD_REPLY, *, size: int = 1, every_s: float = 0.05) -> LlmReply:
    """Return a reply whose body is sent in pieces of `size` bytes, with a pause of `every_s` after each."""
    return replace(reply, pace=Pace(size=size, every_s=every_s))


def reset(reply: LlmReply = _GOOD_REPLY, *, after: float | None = None) -> LlmReply:
    """Return a reply that ends in a reset (RST) after the fraction `after`; `None`: before any data."""
    return LlmReply(then="reset") if after is None else replace(reply, then="reset", after=after)


def broken_off(reply: LlmReply = _GOOD_REPLY, *, after: float = 0.5) -> LlmReply:
    """Return a reply that breaks off: after the fraction `after`, the server closes the connection."""
    return replace(reply, then="drop", after=after)


def truncated(reply: LlmReply = _GOOD_REPLY, *, after: float = 0.5) -> LlmReply:
    """Return a reply of which only the fraction `after` is sent, as if it were complete."""
    return replace(reply, after=after)


def error_in_200(message: str, code: int | str = 502, **error: str | Mapping[str, object]) -> LlmReply:
    """Return an error with HTTP status 200 and no choices, as OpenRouter does when an upstream fails."""
    return error_reply(200, message, None, code=code, **error)


def rate_limited(
    retry_after: float | datetime | None = None, message: str = "Rate limit exceeded."
) -> LlmReply:
    """Return a 429; `retry_after`: seconds, a `datetime` (sent as an HTTP date), or `None` (no header)."""
    if isinstance(retry_after, datetime):
        wanted = format_datetime(retry_after.astimezone(UTC), usegmt=True)
    else:
        wanted = "" if retry_after is None else f"{retry_after:g}"
    return error_reply(429, message, {"Retry-After": wanted} if wanted else None, code="rate_limit_exceeded")


def web_page(status: int = 200, title: str = "Bad gateway") -> LlmReply:
    """Return an HTML page, as a proxy or the server at a wrong base URL does."""
    page = (
        f"<!doctype html><html><head><title>{escape(title)}</title></head><body><h1>Oops</h1></body></html>"
    )
    return LlmReply(status=status, headers={"Content-Type": "text/html"}, body=page.encode())


def redirect(location: str, status: int = 307) -> LlmReply:
    """Return a redirect."""
    return LlmReply(status=status, headers={"Location": location})


def mistyped(reply: LlmReply = _GOOD_REPLY, content_type: str = "text/html") -> LlmReply:
    """Return a reply with a valid body and a wrong content type."""
    return replace(reply, headers={**reply.headers, "Content-Type": content_type})


def empty(status: int = 200) -> LlmReply:
    """Return a reply with an empty body, although the content type says JSON."""
    return LlmReply(status=status, headers={"Content-Type": "application/json"})


def compressed(reply: LlmReply = _GOOD_REPLY, *, stages: int = 1) -> LlmReply:
    """Return a reply whose body, or each event of its stream, is compressed with gzip `stages` times."""
    coding = ", ".join(["gzip"] * stages)
    return replace(reply, headers={**reply.headers, "Content-Encoding": coding}, gzip=stages)


def in_place_of_json(body: bytes) -> LlmReply:
    """Return a reply with any bytes as its body, although the content type says JSON."""
    return LlmReply(headers={"Content-Type": "application/json"}, body=body)


def error_in_stream(reply: LlmReply = _GOOD_REPLY, *, after: float = 0.5) -> LlmReply:
    """Return a reply whose stream ends with an error event, after the fraction `after` of its events."""
    return replace(reply, amid="error", after=after)


def garbage_in_stream(
    reply: LlmReply = _GOOD_REPLY, garbage: bytes = b"data: {garbage\n\n", *, after: float = 0.5
) -> LlmReply:
    """Return a reply with `garbage` in its stream, after the fraction `after` of its events."""
    return replace(reply, amid=garbage, after=after)
