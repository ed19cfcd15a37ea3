"""The environment of a server process: the variables that it inherits, and the keys among them.

Decision 013 has the reasons.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from grue.errors import MCPConfigError
from grue.runtime.secrets.secret_forms import MIN_CHARS, looks_secret

InheritEnv: TypeAlias = Literal["all", "no_keys", "safe", "none"]
"""`all`: everything. `no_keys`: everything except the keys that grue uses for models and observers. `safe`:
what programs commonly need. `none`: nothing.

Source: R3.2
"""

OWN_KEYS = frozenset(
    (
        "GRUE_API_KEY",
        "ANTHROPIC_API_KEY",
        "DEEPSEEK_API_KEY",
        "GEMINI_API_KEY",
        "GROQ_API_KEY",
        "MISTRAL_API_KEY",
        "OPENAI_API_KEY",
        "OPENROUTER_API_KEY",
        "XAI_API_KEY",
        "LANGFUSE_PUBLIC_KEY",
        "LANGFUSE_SECRET_KEY",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    )
)
"""The variables whose values grue itself uses, for model endpoints and observers. It has the key of every
provider in the table of endpoints (`chat_wire/profiles.py`), because grue uses whichever fits."""

_SAFE = frozenset(("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"))
_SAFE_PREFIX = "LC_"
_SHELL_FUNCTION = "()"


def inherited(environ: Mapping[str, str], how: InheritEnv) -> dict[str, str]:
    """Return the part of the host's environment that a server gets.

    Args:
        environ: The host's environment.
        how: Which part. With `no_keys`, a variable that holds the same value as one of grue's keys is left
            out too, whatever its name is.

    Raises:
        MCPConfigError: `how` is not one of `InheritEnv`.
    """
    match how:
        case "all":
            return dict(environ)
        case "no_keys":
            keys, values = OWN_KEYS, _own_values(environ)
            return {
                name: value
                for name, value in environ.items()
                if name not in keys and value.strip() not in values
            }
        case "safe":
            return {name: value for name, value in environ.items() if _is_safe(name, value)}
        case "none":
            return {}
        case _:
            raise MCPConfigError(f"inherit_env is one of {', '.join(get_args(InheritEnv))}, not {how!r}.")


def visible_keys(environment: Mapping[str, str], host: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the variables that hold a key, sorted.

    A variable holds a key if its name looks like a key's, or if its value equals one of grue's own keys.

    Args:
        environment: What a process would get.
        host: The host's environment.
    """
    keys, values = OWN_KEYS, _own_values(host)
    return tuple(
        sorted(
            name
            for name, value in environment.items()
            if value.strip() and (name in keys or looks_secret(name) or value.strip() in values)
        )
    )


def is_own_key(name: str, environment: Mapping[str, str], host: Mapping[str, str]) -> bool:
    """Return whether a variable holds one of grue's own keys."""
    return name in OWN_KEYS or environment[name].strip() in _own_values(host)


def _own_values(environ: Mapping[str, str]) -> set[str]:
    found = {environ[name].strip() for name in OWN_KEYS if name in environ}
    return {value for value in found if len(value) >= MIN_CHARS}


def _is_safe(name: str, value: str) -> bool:
    # An exported shell function is code that a shell started by the server would run.
    return (name in _SAFE or name.startswith(_SAFE_PREFIX)) and not value.startswith(_SHELL_FUNCTION)
