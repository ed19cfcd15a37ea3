"""Which key goes where."""

import pytest
from case_tables import each_case

from grue import LlmSettings, Runner
from grue.errors import MCPConfigError
from grue.protocol.chat_wire.failures import Fault
from grue.transports.llm.endpoint import LlmEndpoint, api_key, key_names, needs_key

KEYS = {"OPENROUTER_API_KEY": "sk-router", "OPENAI_API_KEY": "sk-openai"}
OWN = {"GRUE_API_KEY": "sk-own"}


@each_case(
    "base_url, key",
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


def test_settings_without_a_key_take_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRUE_API_KEY", "sk-grue-0123456789")
    endpoint = LlmEndpoint(LlmSettings(base_url="http://127.0.0.1:1/v1", model="m"))
    assert endpoint.headers["Authorization"] == "Bearer sk-grue-0123456789"
    assert "sk-grue-0123456789" not in repr(endpoint.settings)
    for key, sent in (("", None), ("sk-given-0123456789", "Bearer sk-given-0123456789")):
        given = LlmEndpoint(LlmSettings(base_url="http://127.0.0.1:1/v1", model="m", api_key=key))
        assert given.headers.get("Authorization") == sent


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({}, "There is no API key: GRUE_API_KEY and OPENAI_API_KEY are not set."),
        (KEYS, "The key was that of OPENAI_API_KEY."),
        (KEYS | OWN, "The key was that of GRUE_API_KEY."),
    ],
)
def test_a_refused_key_is_an_error_that_says_where_it_was_looked_for(
    environ: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GRUE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, key in environ.items():
        monkeypatch.setenv(name, key)
    settings = LlmSettings(base_url="https://api.openai.com/v1", model="m")
    refused = Fault(kind="refused", status=401, message="no")
    variable = "GRUE_API_KEY" if "GRUE_API_KEY" in environ else "OPENAI_API_KEY"
    assert LlmEndpoint(settings).describe(refused).remedy.startswith(f"{sentence} Set {variable} to ")
    for given in ("sk-x", ""):
        own = LlmEndpoint(LlmSettings(base_url="https://api.openai.com/v1", model="m", api_key=given))
        assert own.describe(refused).remedy.startswith("Set api_key to "), "the environment is not asked"
    for name in environ.keys() & {"GRUE_API_KEY", "OPENAI_API_KEY"}:
        key = environ[name]
        read = LlmEndpoint(LlmSettings(base_url="https://api.openai.com/v1", model="m", api_key=key))
        assert read.describe(refused).remedy.startswith(f"Set {name} to "), "as for a key of pyproject.toml"


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="refused", status=403, message="no"),
        Fault(kind="unreachable", message="cannot connect: no route to host"),
    ],
)
def test_an_error_of_an_endpoint_says_that_there_is_no_key(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = LlmSettings(base_url="https://llm.example/v1", model="m")
    for key, is_said in (("", True), ("sk-grue-0123456789", False)):
        monkeypatch.setenv("GRUE_API_KEY", key)
        remedy = LlmEndpoint(settings).describe(fault).remedy
        assert ("There is no API key: GRUE_API_KEY is not set." in remedy) is is_said
        assert "key of an account" in remedy or fault.status is None


@pytest.mark.parametrize("header", ["Authorization", "api-key"])
def test_a_refused_key_in_a_header_of_ones_own_is_an_error_that_names_the_header(
    header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRUE_API_KEY", raising=False)
    headers = {header: "Bearer sk-own-0123456789"}
    settings = LlmSettings(base_url="http://127.0.0.1:1/v1", model="m", extra_headers=headers)
    refused = Fault(kind="refused", status=401, message="no")
    own = f"Set {header} in extra_headers to a key"
    assert LlmEndpoint(settings).describe(refused).remedy.startswith(own)
    monkeypatch.setenv("GRUE_API_KEY", "sk-grue-0123456789")
    remedy = LlmEndpoint(settings).describe(refused).remedy
    assert remedy.startswith(own) == (header == "Authorization"), "then only that header is not sent"


def test_another_header_that_looks_like_a_secret_is_not_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRUE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    headers = {"Helicone-Auth": "Bearer sk-own-0123456789"}
    settings = LlmSettings(base_url="https://api.openai.com/v1", model="m", extra_headers=headers)
    refused = Fault(kind="refused", status=401, message="no")
    assert LlmEndpoint(settings).describe(refused).remedy.startswith("There is no API key")


def test_a_runner_redacts_the_key_that_the_environment_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRUE_API_KEY", "sk-grue-0123456789")
    runner = Runner(llm=LlmSettings(base_url="http://127.0.0.1:1/v1", model="m"))
    assert runner.recorder.redacted_text("it is sk-grue-0123456789") == "it is [redacted:GRUE_API_KEY]"
