"""Ways in which an endpoint's reply fails, to be put in the script of a `ScriptedLlmServer`.

```python
from grue.testing.llm_faults import rate_limited, stalled
from grue.testing.llm_replies import text_reply

script = [stalled(text_reply("take lamp")), rate_limited(1), text_reply("take lamp")]
```

Each works on plain replies and on streams, in every format. `silence` and `hang_up` of `llm_replies.py`
belong to them. What waits here ends at once when the server closes.
"""

import gzip
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from html import escape

from msgspec.structs import replace

from grue.testing.llm_replies import LlmReply, Pace, error_reply, text_reply

_SOUND = text_reply("It is well.")


def stalled(reply: LlmReply = _SOUND, *, after: float = 0.5) -> LlmReply:
    """Send the head and a share of the body, or of the stream's events, then nothing more."""
    return replace(reply, then="hang", after=after)


def dripping(reply: LlmReply = _SOUND, *, size: int = 1, every_s: float = 0.05) -> LlmReply:
    """Send the body `size` bytes at a time, with `every_s` seconds between; the head comes at once."""
    return replace(reply, pace=Pace(size=size, every_s=every_s))


def reset(reply: LlmReply = _SOUND, *, after: float | None = None) -> LlmReply:
    """Reset the connection (RST), in place of the reply or after a share of its body."""
    return replace(reply, then="reset", after=after, body=b"" if after is None else reply.body)


def broken_off(reply: LlmReply = _SOUND, *, after: float = 0.5) -> LlmReply:
    """Close the connection after a share of the body: less than the head has promised."""
    return replace(reply, then="drop", after=after)


def truncated(reply: LlmReply = _SOUND, *, after: float = 0.5) -> LlmReply:
    """Send a share of the body as if it were all: its length is right, a stream's last events are missing."""
    return replace(reply, after=after)


def error_in_200(message: str, code: int | str = 502, **error: str | Mapping[str, object]) -> LlmReply:
    """Return an error with HTTP status 200 and no choices, as OpenRouter does when an upstream fails."""
    return error_reply(200, message, None, code=code, **error)


def rate_limited(
    retry_after: float | datetime | None = None, message: str = "Rate limit exceeded."
) -> LlmReply:
    """Return a 429.

    Args:
        retry_after: Seconds, or a moment, sent as an HTTP date; `None`: the header is absent.
        message: The provider's words.
    """
    if isinstance(retry_after, datetime):
        wanted = format_datetime(retry_after.astimezone(UTC), usegmt=True)
    else:
        wanted = "" if retry_after is None else f"{retry_after:g}"
    return error_reply(429, message, {"Retry-After": wanted} if wanted else None, code="rate_limit_exceeded")


def web_page(status: int = 200, title: str = "Bad gateway") -> LlmReply:
    """Return an HTML page, as a proxy or a wrong base URL does."""
    page = (
        f"<!doctype html><html><head><title>{escape(title)}</title></head><body><h1>Oops</h1></body></html>"
    )
    return LlmReply(status=status, headers={"Content-Type": "text/html"}, body=page.encode())


def redirect(location: str, status: int = 307) -> LlmReply:
    """Send the client elsewhere."""
    return LlmReply(status=status, headers={"Location": location})


def mistyped(reply: LlmReply = _SOUND, content_type: str = "text/html") -> LlmReply:
    """Send a good body under a wrong content type."""
    return replace(reply, headers={**reply.headers, "Content-Type": content_type})


def empty(status: int = 200) -> LlmReply:
    """Return no body, under a content type that promises one."""
    return LlmReply(status=status, headers={"Content-Type": "application/json"})


def compressed(reply: LlmReply = _SOUND, *, stages: int = 1) -> LlmReply:
    """Compress the body with gzip so many times; of spaces, a thousandth is left each time."""
    body = reply.body
    for _ in range(stages):
        body = gzip.compress(body)
    return replace(
        reply, headers={**reply.headers, "Content-Encoding": ", ".join(["gzip"] * stages)}, body=body
    )


def in_place_of_json(body: bytes) -> LlmReply:
    """Send these bytes under the content type of JSON."""
    return LlmReply(headers={"Content-Type": "application/json"}, body=body)


def error_in_stream(reply: LlmReply = _SOUND, *, after: float = 0.5) -> LlmReply:
    """End a stream after a share of its events by an error event, in the shape of the format."""
    return replace(reply, amid="error", after=after)


def garbage_in_stream(
    reply: LlmReply = _SOUND, garbage: bytes = b"data: {garbage\n\n", *, after: float = 0.5
) -> LlmReply:
    """Send these bytes between two events of a stream, which goes on after them."""
    return replace(reply, amid=garbage, after=after)
