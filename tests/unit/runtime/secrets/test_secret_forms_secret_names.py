"""Which values are never to be shown."""

from base64 import b64encode, urlsafe_b64encode

import pytest
from case_tables import each_case
from example_counts import examples
from growth import assert_linear
from hypothesis import given, settings
from hypothesis import strategies as st

from grue.runtime.secrets.secret_forms import looks_secret, secrets_in


@each_case(
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


@each_case(
    "name",
    [
        "SSH_AUTH_SOCK",
        "XAUTHORITY",
        "PATH",
        "PWD",
        "OLDPWD",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GRUE_TOKENS",
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


@settings(max_examples=examples(200))
@given(environments)
@pytest.mark.slow
def test_long_values_of_secret_names_and_no_others_are_redacted(environ: dict[str, str]) -> None:
    assert secrets_in(environ) == {
        name: value.strip()
        for name, value in environ.items()
        if name in ("A_TOKEN", "B_KEY") and len(value.strip()) >= 12
    }


def test_what_is_configured_counts_beside_the_hosts_own() -> None:
    found = secrets_in({"A_KEY": "0123456789ab", "B_KEY": "short"}, {"token": " x0123456789abx "})
    assert found == {"A_KEY": "0123456789ab", "token": "x0123456789abx"}


def test_two_values_of_one_name_are_both_secrets() -> None:
    found = secrets_in({"A_KEY": "0123456789ab"}, {"A_KEY": "ba9876543210"}, {"A_KEY": "0123456789ab"})
    assert found == {"A_KEY": "0123456789ab", "A_KEY 2": "ba9876543210"}
    brokers = "amqp://u:first-password@a,amqp://u:second-password@b"
    assert set(secrets_in({"BROKERS": brokers}).values()) == {"first-password", "second-password"}


@pytest.mark.slow
def test_a_long_value_beside_a_url_is_searched_in_one_pass() -> None:
    assert_linear(lambda size: secrets_in({"A": f"https://h {'a' * size}"}), 400_000)


def test_the_password_of_a_url_goes_up_to_the_last_at_sign() -> None:
    assert secrets_in({"URL": "postgres://me:p@ss-word-1@host/a@b"}) == {"URL password": "p@ss-word-1"}


@pytest.mark.parametrize(
    ("value", "password"),
    [
        (
            "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=c2VjcmV0c2VjcmV0==;Suffix=x",
            "c2VjcmV0c2VjcmV0==",
        ),
        ("Endpoint=sb://a/;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0c2Vj=", "c2VjcmV0c2Vj="),
        ("Server=db;User Id=me;Password=p@ss-word-1;", "p@ss-word-1"),
        ("host=db password='p@ss word 1' dbname=x", "p@ss word 1"),
    ],
)
def test_the_key_or_password_in_a_connection_string_is_a_secret(value: str, password: str) -> None:
    assert secrets_in({"STORAGE": value}) == {"STORAGE password": password}


def test_a_long_row_of_pairs_is_searched_in_no_time() -> None:
    assert_linear(lambda size: secrets_in({"A": "password=" * (size // 9)}), 400_000)
    assert_linear(lambda size: secrets_in({"A": "password='" * (size // 10)}), 400_000)


@pytest.mark.parametrize(
    ("header", "secrets"),
    [
        ("Basic " + b64encode(b"user:long-password").decode(), {"Proxy password": "long-password"}),
        ("basic " + urlsafe_b64encode("u:~~~üÿ?>long".encode()).decode(), {"Proxy password": "~~~üÿ?>long"}),
        ("Basic " + b64encode(b"user:short").decode(), {}),
        ("Basic " + b64encode(b"no colon in this value").decode(), {}),
        ("Basic long-words-in-no-base64", {}),
        ("Basic " + b64encode(b"user:\xff\xfe\xfd bytes that are no text").decode(), {}),
    ],
    ids=["password", "url-safe", "short", "no password", "not base64", "not text"],
)
def test_the_password_in_basic_credentials_is_a_secret(header: str, secrets: dict[str, str]) -> None:
    assert secrets_in({"Proxy": header}) == secrets
