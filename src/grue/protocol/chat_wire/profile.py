"""What an endpoint takes, as data: a new provider is a new row, not a new branch.

A profile says which fields an endpoint accepts and how it wants them. Where it is not known beforehand, the
endpoint's own refusal teaches it: `lesson` returns the profile that the next request should follow.
"""

import re
from typing import Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from grue.protocol.tool_names import NameStyle


class ModelSettings(Struct, frozen=True, kw_only=True):
    """Which model, and how it samples; a setting that is `None` or empty is left to the endpoint."""

    model: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


class WireProfile(Struct, frozen=True, kw_only=True):
    """How to talk to a kind of endpoint.

    Attributes:
        name: For people.
        key_variable: The environment variable that its users keep the key in.
        cache_markers: How many `cache_control` markers a request may carry; 0: it refuses the field.
        names: Tool names go out `canonical` or `encoded`; `learn`: canonical until the endpoint complains.
        sampling: Which sampling fields it takes; others are left out.
        max_tokens_field: What it calls the limit on a reply's length.
        response_format: How the shape of an answer is asked for.
        tools_with_forced: It refuses history with tool calls in a request without `tools`: there they go
            along with `tool_choice: "none"`. The one exception to R5.8.
        max_description_chars: Longest description of a tool; `None`: no limit.
    """

    name: str
    key_variable: str = "GRUE_API_KEY"
    cache_markers: int = 0
    names: Literal["canonical", "encoded", "learn"] = "learn"
    sampling: frozenset[str] = frozenset({"temperature", "top_p", "top_k", "min_p", "max_tokens", "stop"})
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    response_format: Literal["json_schema", "json_object", "none"] = "json_schema"
    tools_with_forced: bool = False
    max_description_chars: int | None = None

    @property
    def name_style(self) -> NameStyle:
        """How names go out now."""
        return "encoded" if self.names == "encoded" else "canonical"


GENERIC = WireProfile(name="generic")
"""An endpoint that nothing is known of: a local server, a gateway."""

# OpenRouter hands names on to whichever provider it picks, so they have to suit the strictest one.
OPENROUTER = WireProfile(
    name="openrouter", key_variable="OPENROUTER_API_KEY", cache_markers=4, names="encoded"
)

OPENAI = WireProfile(
    name="openai",
    key_variable="OPENAI_API_KEY",
    names="encoded",
    sampling=frozenset({"temperature", "top_p", "max_tokens", "stop"}),
    max_tokens_field="max_completion_tokens",
)

PROFILES = {"openrouter.ai": OPENROUTER, "api.openai.com": OPENAI}
"""By host; a subdomain is as good as its domain."""


def profile_for(base_url: str) -> WireProfile:
    """Return the profile for an endpoint's base URL; `GENERIC` for one that is not known."""
    host = (urlsplit(base_url.strip()).hostname or "").rstrip(".")
    for known, profile in PROFILES.items():
        if host == known or host.endswith(f".{known}"):
            return profile
    return GENERIC


_NAME_COMPLAINT = re.compile(
    r"(tool|function)s?\b[^\n]{0,80}name[^\n]{0,80}(pattern|invalid|must|match|character|allowed)"
    r"|(pattern|invalid|must|match)[^\n]{0,80}(tool|function)s?\b[^\n]{0,40}name",
    re.IGNORECASE,
)
_TOOLS_COMPLAINT = re.compile(
    r"must define tools|expects the `?tools=?`?|toolConfig[^\n]{0,40}must be defined"
    r"|tools[^\n]{0,40}(required|must be (provided|included|defined))",
    re.IGNORECASE,
)
_LENGTH_COMPLAINT = re.compile(
    r"description\W[^\n]{0,80}too long[^\n]{0,80}maximum length (\d{2,6})", re.IGNORECASE
)


def lesson(profile: WireProfile, status: int | None, words: str) -> WireProfile | None:
    """Return the profile that a refusal teaches, or `None` where it teaches nothing new.

    Each field is learned at most once, so that a request is sent again a bounded number of times.

    Args:
        profile: What the refused request followed.
        status: Its HTTP status; only 400 and 422 speak of a request's form.
        words: The provider's message.
    """
    if status not in (400, 422):
        return None
    length = _LENGTH_COMPLAINT.search(words)
    if length and profile.max_description_chars is None:
        return msgspec.structs.replace(profile, max_description_chars=int(length[1]))
    if not profile.tools_with_forced and _TOOLS_COMPLAINT.search(words):
        return msgspec.structs.replace(profile, tools_with_forced=True)
    if profile.names == "learn" and _NAME_COMPLAINT.search(words):
        return msgspec.structs.replace(profile, names="encoded")
    return None
