"""The environment variables with grue's own keys, for model endpoints and observers."""

from grue.protocol.chat_wire.profiles import PROFILES

_OBSERVERS = (
    "LANGFUSE_PUBLIC_KEY",
    "LANGFUSE_SECRET_KEY",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
)
_PROVIDERS = (profile.key_variable for profiles in PROFILES.values() for profile in profiles)

OWN_KEYS = frozenset(("GRUE_API_KEY", *_PROVIDERS, *_OBSERVERS))
"""Has the key of every known provider, because grue uses whichever fits the configured endpoint."""
