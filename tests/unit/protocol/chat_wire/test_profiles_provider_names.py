"""The names of providers by their hosts."""

import pytest

from grue.protocol.chat_wire.profiles import provider_name


@pytest.mark.parametrize(
    ("base_url", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://me.openai.azure.com/openai/v1", "azure.ai.openai"),
        ("https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1", "aws.bedrock"),
        ("https://europe-west4-aiplatform.googleapis.com/v1", "gcp.vertex_ai"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gcp.gemini"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("https://notopenrouter.ai/api/v1", "openai"),
        ("http://127.0.0.1:8080/v1", "openai"),
    ],
)
def test_a_provider_is_known_by_its_host(base_url: str, name: str) -> None:
    assert provider_name(base_url, "chat_completions") == name


def test_an_unknown_host_has_the_name_of_whose_format_it_speaks() -> None:
    assert provider_name("http://127.0.0.1:8080/v1", "messages") == "anthropic"
    assert provider_name("http://127.0.0.1:8080/v1", "responses") == "openai"
