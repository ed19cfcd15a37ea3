"""The table of known endpoints. What is not in it is learned from refusals (`profile_adaptation.py`).

To add a provider, add a row, and the name of its key to `OWN_KEYS` in `tool_sessions/environment.py`.

The names of providers are those of OpenTelemetry's conventions for GenAI (`gen_ai.provider.name`). A provider
that the conventions do not name gets its own name here.
"""

import functools
import re
from urllib.parse import urlsplit

import msgspec

from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.profile import WireProfile

_BY_HOST = {
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "amazonaws.com": "aws.bedrock",
    "api.anthropic.com": "anthropic",
    "api.cohere.ai": "cohere",
    "api.cohere.com": "cohere",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.moonshot.ai": "moonshot_ai",
    "api.moonshot.cn": "moonshot_ai",
    "api.openai.com": "openai",
    "api.perplexity.ai": "perplexity",
    "api.x.ai": "x_ai",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "ml.cloud.ibm.com": "ibm.watsonx.ai",
    "openai.azure.com": "azure.ai.openai",
    "openrouter.ai": "openrouter",
    "services.ai.azure.com": "azure.ai.inference",
}


@functools.lru_cache(maxsize=64)
def provider_name(base_url: str, wire: str) -> str:
    """Return the provider's name.

    An unknown host has the name of the provider whose wire format it speaks: the conventions use the name to
    tell which further attributes a span may have, and leave the provider itself to `server.address`.

    Args:
        base_url: The endpoint's base URL. Subdomains of a known host match too.
        wire: The name of the wire format.
    """
    host = (urlsplit(base_url.strip()).hostname or "").rstrip(".")
    known = (name for suffix, name in _BY_HOST.items() if host == suffix or _ends(host, suffix))
    return next(known, FORMATS[wire].provider)


def _ends(host: str, suffix: str) -> bool:
    # Vertex AI's regions stand before its host with a dash: europe-west4-aiplatform.googleapis.com.
    return host.endswith((f".{suffix}", f"-{suffix}"))


_OPENAI_SAMPLING = frozenset({"temperature", "top_p", "max_tokens", "stop"})

# What is unknown: a local server, say, or a gateway.
GENERIC, GENERIC_RESPONSES, GENERIC_MESSAGES = (
    FORMATS[wire].profile for wire in ("chat_completions", "responses", "messages")
)

# OpenRouter passes tool names on to the provider that it picks, so they have to suit the strictest one.
OPENROUTER = WireProfile(
    name="openrouter",
    key_variable="OPENROUTER_API_KEY",
    cache_markers=4,
    names="encoded",
    reasoning="reasoning",
    lists_parameters=True,
    reports_cost="always",
    files=True,
)

OPENAI_CHAT = WireProfile(
    name="openai chat completions",
    reports_cost="never",
    key_variable="OPENAI_API_KEY",
    names="encoded",
    sampling=_OPENAI_SAMPLING,
    max_tokens_field="max_completion_tokens",
    files=True,
    given_cache_markers=0,
)

# OpenAI's newest models accept tools only on /responses.
OPENAI = msgspec.structs.replace(
    GENERIC_RESPONSES, name="openai", key_variable="OPENAI_API_KEY", reports_cost="never", files=True
)

# Anthropic's current request types have no sampling settings any more, and its newer models refuse them.
ANTHROPIC = msgspec.structs.replace(
    GENERIC_MESSAGES,
    name="anthropic",
    reports_cost="never",
    key_variable="ANTHROPIC_API_KEY",
    sampling=frozenset({"max_tokens", "stop"}),
    files=True,
)

# Anthropic's compatibility endpoint ignores or refuses fields that it does not know.
ANTHROPIC_CHAT = WireProfile(
    name="anthropic chat completions",
    reports_cost="never",
    key_variable="ANTHROPIC_API_KEY",
    names="encoded",
    sampling=_OPENAI_SAMPLING,
    reasoning="none",
    response_format="none",
    tools_with_forced=True,
)

DEEPSEEK = WireProfile(
    name="deepseek",
    reports_cost="never",
    key_variable="DEEPSEEK_API_KEY",
    names="encoded",
    sampling=_OPENAI_SAMPLING,
    reasoning="none",
    response_format="json_object",
    images=False,
)

GROQ = WireProfile(
    name="groq",
    reports_cost="never",
    key_variable="GROQ_API_KEY",
    names="encoded",
    sampling=_OPENAI_SAMPLING,
    max_tokens_field="max_completion_tokens",
    given_cache_markers=0,
)

GEMINI = WireProfile(
    name="gemini",
    reports_cost="never",
    key_variable="GEMINI_API_KEY",
    names="encoded",
    sampling=_OPENAI_SAMPLING,
    audio=True,
    given_cache_markers=0,
)

MISTRAL = WireProfile(
    name="mistral",
    reports_cost="never",
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
"""Profiles by host; subdomains match too. The first row is used unless a wire format is requested."""

# OpenAI's reasoning models accept no sampling settings and take instructions in the role developer.
_REASONING = re.compile(r"(?:^|/)(?:o[1-9]|gpt-(?:[5-9]|[1-9]\d))(?![^/]*chat)")
# The first reasoning models accept neither the role system nor developer.
_NO_INSTRUCTIONS = re.compile(r"(?:^|/)o1-(?:mini|preview)")
# Models that do not reason refuse the reasoning fields.
_UNREASONING = re.compile(r"(?:^|/)(?:gpt-(?:3\.5|4)|chatgpt-4)")
# Since Opus 4.7 Anthropic's models refuse a token budget for thinking.
_STEADY = re.compile(r"claude-(?:opus-4-[7-9]|[a-z]+-(?:[5-9]|[1-9]\d)(?!\d))")


def wire_of(base_url: str) -> str | None:
    """Return the wire format that the end of a base URL names, or `None`."""
    path = urlsplit(base_url.strip()).path.rstrip("/")
    return next((each.name for each in FORMATS.values() if path.endswith(each.path)), None)


def profile_for(base_url: str, model: str = "", wire: str | None = None) -> WireProfile:
    """Return the profile for an endpoint and a model.

    Args:
        base_url: The endpoint's base URL.
        model: The endpoint's name for the model; a few models need a different profile.
        wire: The wire format; `None` for the one that the base URL suggests.
    """
    host = (urlsplit(base_url.strip()).hostname or "").rstrip(".")
    wire = wire or wire_of(base_url)
    for known, rows in PROFILES.items():
        if host == known or host.endswith(f".{known}"):
            chosen = next((row for row in rows if wire in (None, row.wire)), None)
            if chosen is not None:
                return _for_model(chosen, model.lower())
            assert wire is not None, "without a format the first row is chosen"
            generic = msgspec.structs.replace(FORMATS[wire].profile, key_variable=rows[0].key_variable)
            return _for_model(generic, model.lower())
    return _for_model(FORMATS[wire or "chat_completions"].profile, model.lower())


def _for_model(profile: WireProfile, model: str) -> WireProfile:
    replace = msgspec.structs.replace
    if profile == ANTHROPIC and _STEADY.search(model):
        return replace(profile, reasoning="adaptive")
    if profile in (OPENAI, OPENAI_CHAT) and _REASONING.search(model):
        profile = replace(profile, system_role="developer", sampling=frozenset({"max_tokens"}))
    if _NO_INSTRUCTIONS.search(model):
        return replace(profile, system_role="user")  # also behind a gateway
    if profile == OPENAI and _UNREASONING.search(model):
        return replace(profile, reasoning="none")
    return profile
