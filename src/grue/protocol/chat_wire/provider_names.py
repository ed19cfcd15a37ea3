"""The names of providers, as OpenTelemetry's conventions for GenAI spell them (`gen_ai.provider.name`).

A provider that the conventions do not name gets its own name here.
"""

import functools
from urllib.parse import urlsplit

from grue.protocol.chat_wire.formats import FORMATS

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
