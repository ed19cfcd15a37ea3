"""The endpoints that are known beforehand, a row each; what is not known is learned (`lessons.py`)."""

import re
from urllib.parse import urlsplit

import msgspec

from grue.protocol.chat_wire.profile import WireName, WireProfile

_OPENAI_SAMPLING = frozenset({"temperature", "top_p", "max_tokens", "stop"})

GENERIC = WireProfile(name="generic")
"""A chat completions endpoint that nothing is known of: a local server, a gateway."""

GENERIC_RESPONSES = WireProfile(
    name="generic responses",
    wire="responses",
    names="encoded",
    sampling=frozenset({"temperature", "top_p", "max_tokens"}),
    reasoning="reasoning",
)

GENERIC_MESSAGES = WireProfile(
    name="generic messages",
    wire="messages",
    cache_markers=4,
    names="encoded",
    sampling=frozenset({"temperature", "top_p", "top_k", "max_tokens", "stop"}),
    default_max_tokens=8192,
    reasoning="thinking",
    tools_with_forced=True,
)

# OpenRouter hands names on to whichever provider it picks, so they have to suit the strictest one.
OPENROUTER = WireProfile(
    name="openrouter",
    key_variable="OPENROUTER_API_KEY",
    cache_markers=4,
    names="encoded",
    reasoning="reasoning",
    lists_parameters=True,
    files=True,
)

OPENAI_CHAT = WireProfile(
    name="openai chat completions",
    key_variable="OPENAI_API_KEY",
    names="encoded",
    sampling=_OPENAI_SAMPLING,
    max_tokens_field="max_completion_tokens",
    files=True,
    given_cache_markers=0,
)

# Its newest models take tools on /responses only.
OPENAI = msgspec.structs.replace(GENERIC_RESPONSES, name="openai", key_variable="OPENAI_API_KEY", files=True)

ANTHROPIC = msgspec.structs.replace(
    GENERIC_MESSAGES, name="anthropic", key_variable="ANTHROPIC_API_KEY", files=True
)

# Its compatibility endpoint ignores or refuses what it does not know.
ANTHROPIC_CHAT = WireProfile(
    name="anthropic chat completions",
    key_variable="ANTHROPIC_API_KEY",
    names="encoded",
    sampling=_OPENAI_SAMPLING,
    reasoning="none",
    response_format="none",
    tools_with_forced=True,
)

DEEPSEEK = WireProfile(
    name="deepseek",
    key_variable="DEEPSEEK_API_KEY",
    names="encoded",
    sampling=_OPENAI_SAMPLING,
    reasoning="none",
    response_format="json_object",
    images=False,
)

GROQ = WireProfile(
    name="groq",
    key_variable="GROQ_API_KEY",
    names="encoded",
    sampling=_OPENAI_SAMPLING,
    max_tokens_field="max_completion_tokens",
    given_cache_markers=0,
)

GEMINI = WireProfile(
    name="gemini",
    key_variable="GEMINI_API_KEY",
    names="encoded",
    sampling=_OPENAI_SAMPLING,
    audio=True,
    given_cache_markers=0,
)

MISTRAL = WireProfile(
    name="mistral",
    key_variable="MISTRAL_API_KEY",
    names="encoded",
    sampling=_OPENAI_SAMPLING,
    reasoning="none",
    assistant_after_results=True,
    given_cache_markers=0,
)

XAI = WireProfile(name="xai", key_variable="XAI_API_KEY", names="encoded", sampling=_OPENAI_SAMPLING)

PROFILES: dict[str, tuple[WireProfile, ...]] = {
    "openrouter.ai": (OPENROUTER,),
    "api.openai.com": (OPENAI, OPENAI_CHAT),
    "api.anthropic.com": (ANTHROPIC, ANTHROPIC_CHAT),
    "api.deepseek.com": (DEEPSEEK,),
    "api.groq.com": (GROQ,),
    "generativelanguage.googleapis.com": (GEMINI,),
    "api.mistral.ai": (MISTRAL,),
    "api.x.ai": (XAI,),
}
"""By host; a subdomain is as good as its domain. The first row is used unless a format is asked for."""

_GENERIC: dict[WireName, WireProfile] = {
    "chat_completions": GENERIC,
    "responses": GENERIC_RESPONSES,
    "messages": GENERIC_MESSAGES,
}

_BY_PATH: dict[str, WireName] = {
    "/chat/completions": "chat_completions",
    "/responses": "responses",
    "/messages": "messages",
}

# OpenAI's reasoning models sample as they see fit, and take instructions from a developer.
_REASONING = re.compile(r"(?:^|/)(?:o[1-9]|gpt-(?:[5-9]|[1-9]\d))(?![^/]*chat)")
# The first of them knew neither role.
_NO_INSTRUCTIONS = re.compile(r"(?:^|/)o1-(?:mini|preview)")
# Models that do not reason refuse to be asked for their reasoning.
_UNREASONING = re.compile(r"(?:^|/)(?:gpt-(?:3\.5|4)|chatgpt-4)")
# Since Opus 4.7 Anthropic's models refuse to be told how to sample, and how many tokens to think with.
_STEADY = re.compile(r"claude-(?:opus-4-[7-9]|[a-z]+-(?:[5-9]|[1-9]\d)(?!\d))")


def wire_of(base_url: str) -> WireName | None:
    """Return the format that a base URL names by its ending, `None` where it names none."""
    path = urlsplit(base_url.strip()).path.rstrip("/")
    return next((wire for ending, wire in _BY_PATH.items() if path.endswith(ending)), None)


def profile_for(base_url: str, model: str = "", wire: WireName | None = None) -> WireProfile:
    """Return the profile for an endpoint and a model.

    Args:
        base_url: Of the endpoint.
        model: As the endpoint names it; a few models differ from the others.
        wire: The format; `None`: as the base URL suggests.
    """
    host = (urlsplit(base_url.strip()).hostname or "").rstrip(".")
    wire = wire or wire_of(base_url)
    for known, rows in PROFILES.items():
        if host == known or host.endswith(f".{known}"):
            chosen = next((row for row in rows if wire in (None, row.wire)), None)
            if chosen is not None:
                return _for_model(chosen, model.lower())
            assert wire is not None, "without a format the first row is chosen"
            return msgspec.structs.replace(_GENERIC[wire], key_variable=rows[0].key_variable)
    return _GENERIC[wire or "chat_completions"]


def _for_model(profile: WireProfile, model: str) -> WireProfile:
    replace = msgspec.structs.replace
    if profile == ANTHROPIC and _STEADY.search(model):
        return replace(profile, reasoning="adaptive", sampling=frozenset({"max_tokens", "stop"}))
    if profile in (OPENAI, OPENAI_CHAT) and _REASONING.search(model):
        role = "user" if _NO_INSTRUCTIONS.search(model) else "developer"
        return replace(profile, system_role=role, sampling=frozenset({"max_tokens"}))
    if profile == OPENAI and _UNREASONING.search(model):
        return replace(profile, reasoning="none")
    return profile
