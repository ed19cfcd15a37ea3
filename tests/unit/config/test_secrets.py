"""Which key goes where."""

import pytest

from grue.config.secrets import api_key, key_names, needs_key
from grue.errors import MCPConfigError

KEYS = {"OPENROUTER_API_KEY": "sk-router", "OPENAI_API_KEY": "sk-openai"}
OWN = {"GRUE_API_KEY": "sk-own"}


@pytest.mark.parametrize(
    ("base_url", "key"),
    [
        ("https://openrouter.ai/api/v1", "sk-router"),
        ("https://OpenRouter.ai:443/api/v1", "sk-router"),
        ("https://eu.openrouter.ai/api/v1", "sk-router"),
        ("https://openrouter.ai./api/v1", "sk-router"),
        ("https://api.openai.com/v1", "sk-openai"),
        ("https://eu.api.openai.com/v1", "sk-openai"),
        ("http://openrouter.ai/api/v1", None),
        ("https://openai.com/v1", None),
        ("https://openrouter.ai.example.com/v1", None),
        ("https://notopenrouter.ai/v1", None),
        ("https://openrouter.ai@example.com/v1", None),
        ("https://example.com/openrouter.ai", None),
        ("http://127.0.0.1:8080/v1", None),
        ("http://localhost/v1", None),
        ("nothing", None),
    ],
)
def test_a_providers_key_goes_to_that_provider_alone(base_url: str, key: str | None) -> None:
    assert api_key(base_url, KEYS) == key
    assert api_key(base_url, KEYS | OWN) == "sk-own"
    assert api_key(base_url, {}) is None


@pytest.mark.parametrize(
    ("base_url", "names", "needed"),
    [
        ("https://openrouter.ai/api/v1", ("GRUE_API_KEY", "OPENROUTER_API_KEY"), True),
        ("https://api.openai.com/v1", ("GRUE_API_KEY", "OPENAI_API_KEY"), True),
        ("https://llm.example.com/v1", ("GRUE_API_KEY",), False),
        ("http://[::1]:8000/v1", ("GRUE_API_KEY",), False),
    ],
)
def test_a_host_can_say_which_variable_to_set(base_url: str, names: tuple[str, ...], needed: bool) -> None:
    assert key_names(base_url) == names
    assert needs_key(base_url) is needed


@pytest.mark.parametrize(
    ("written", "sent"), [(" sk-own\n", "sk-own"), ("", "sk-router"), ("  \n", "sk-router")]
)
def test_space_around_a_key_is_dropped_and_an_empty_one_is_none(written: str, sent: str) -> None:
    assert api_key("https://openrouter.ai/api/v1", KEYS | {"GRUE_API_KEY": written}) == sent


@pytest.mark.parametrize("written", ["sk one", "sk\r\nX-Evil: 1", "sk-\u00e9", "sk\x07", "sk\u200bx"])
def test_a_key_that_no_header_can_carry_is_refused_unseen(written: str) -> None:
    with pytest.raises(MCPConfigError, match="GRUE_API_KEY does not contain a usable API key") as caught:
        api_key("http://localhost/v1", {"GRUE_API_KEY": written})
    assert written not in str(caught.value)
