"""Which key goes where, and which values are never to be shown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grue.config.secrets import api_key, key_names, looks_secret, needs_key, secret_values
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
    with pytest.raises(MCPConfigError, match="GRUE_API_KEY holds no usable API key") as caught:
        api_key("http://localhost/v1", {"GRUE_API_KEY": written})
    assert written not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "OPENROUTER_API_KEY",
        "GITHUB_TOKEN",
        "NPMTOKEN",
        "HF_TOKENS",
        "githubToken",
        "apiKey",
        "APIKey",
        "MYAPIKEY",
        "X-Api-Key",
        "Authorization",
        "Cookie",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "CLIENT_SECRET",
        "PGPASSWORD",
        "DB_PASS",
        "MYSQL_PWD",
        "MASTER_PASSPHRASE",
        "USER_CREDENTIALS",
        "PROXY_AUTH",
        "GITLAB_PAT",
        "SESSION_JWT",
        "SLACK_SECRET_URL",
        "API_KEY_2",
    ],
)
def test_names_of_secrets_are_recognised(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "SSH_AUTH_SOCK",
        "XAUTHORITY",
        "PATH",
        "PWD",
        "OLDPWD",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "AWS_SHARED_CREDENTIALS_FILE",
        "SSH_KEY_PATH",
        "SECRETS_DIR",
        "TOKENIZERS_PARALLELISM",
        "KEYBOARD_LAYOUT",
        "MONKEY",
        "AUTHOR",
        "GIT_AUTHOR_NAME",
        "PATTERN",
        "COMPASS",
        "HOME",
        "LANG",
        "_",
        "",
    ],
)
def test_names_of_places_and_of_other_things_are_not(name: str) -> None:
    assert not looks_secret(name)


values = st.text(max_size=40)
environments = st.dictionaries(st.sampled_from(["A_TOKEN", "B_KEY", "LANG", "SSH_AUTH_SOCK"]), values)


@settings(max_examples=200)
@given(environments, environments)
def test_long_values_of_secret_names_and_no_others_are_redacted(
    environ: dict[str, str], own: dict[str, str]
) -> None:
    found = secret_values(environ, own)
    named = [
        v.strip() for variables in (environ, own) for k, v in variables.items() if k in ("A_TOKEN", "B_KEY")
    ]
    assert set(found) == {value for value in named if len(value) >= 12}
    assert len(set(found)) == len(found)
    assert [len(value) for value in found] == sorted(map(len, found), reverse=True)


def test_a_value_that_holds_another_comes_first() -> None:
    assert secret_values({"A_KEY": "0123456789ab", "B_KEY": "short"}, {"token": "x0123456789abx"}) == (
        "x0123456789abx",
        "0123456789ab",
    )
