"""What a refusal says, and how it is told."""

import json

import pytest
from case_tables import each_case
from growth import assert_linear
from hypothesis import given
from hypothesis import strategies as st

from grue.messages import LlmFailure
from grue.protocol.chat_wire.failures import (
    MAX_WORDS,
    Fault,
    describe,
    error_in,
    fault_of_error,
    fault_of_status,
)
from grue.protocol.chat_wire.profile import is_loopback, shown_endpoint
from grue.protocol.chat_wire.profiles import GENERIC, OPENROUTER

KEY = "sk-or-v1-0123456789abcdef"


def redacted(text: str) -> str:
    return text.replace(KEY, "[redacted]")


def told(fault: Fault, base_url: str = "https://openrouter.ai/api/v1") -> LlmFailure:
    return describe(fault, base_url=base_url, model="m", profile=OPENROUTER, redacted=redacted)


@each_case(
    "body, words",
    [
        ({"error": {"message": "No such model", "code": 404}}, "No such model"),
        (
            {
                "error": {
                    "message": "Provider returned error",
                    "metadata": {"raw": '{"error":"too hot"}', "provider_name": "Acme"},
                }
            },
            'Provider returned error (Acme: {"error":"too hot"})',
        ),
        ({"error": {"message": "x", "metadata": {"raw": {"a": 1}}}}, 'x (provider: {"a":1})'),
        ({"error": {"message": "x", "metadata": {"provider_name": "Acme"}}}, "x (Acme)"),
        ({"error": {"message": "x", "metadata": "y"}}, "x"),
        ({"error": "plain words"}, "plain words"),
        ([{"error": {"message": "in a list"}}], "in a list"),
        ({"detail": [{"msg": "bad"}]}, '[{"msg":"bad"}]'),
        ({"error": {"code": "model_not_found"}}, "model_not_found"),
        ({"error": None, "message": "beside"}, "beside"),
        ({}, ""),
        (7, ""),
    ],
)
def test_the_words_of_an_error_body(body: object, words: str) -> None:
    fault = fault_of_status(404, json.dumps(body).encode())
    assert (fault.kind, fault.status, fault.message) == ("refused", 404, words)


def test_a_400_that_blames_the_models_own_words_is_no_refusal() -> None:
    for code, kind in (("tool_use_failed", "invalid_reply"), ("context_length_exceeded", "refused")):
        body = json.dumps({"error": {"message": "x", "code": code}}).encode()
        fault = fault_of_status(400, body)
        assert (fault.kind, fault.status, fault.message) == (kind, 400, "x")


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        ({"message": "x", "type": "overloaded_error"}, "unavailable", 529),
        ({"message": "x", "type": "error", "code": "rate_limit_exceeded"}, "unavailable", 429),
        ({"message": "x", "type": "authentication_error"}, "refused", 401),
        ({"message": "x", "code": "503"}, "unavailable", 503),
        ({"message": "x", "code": 403}, "refused", 403),
        ({"message": "x", "code": 7, "type": ["odd"]}, "unavailable", 200),
        ({"message": "insufficient_quota"}, "refused", 200),
        ("x", "unavailable", 200),
    ],
)
def test_an_error_within_a_200_has_the_status_that_it_names(error: object, kind: str, status: int) -> None:
    fault = fault_of_error(error)
    assert (fault.kind, fault.status) == (kind, status)


def test_the_words_of_a_web_page_and_of_plain_text() -> None:
    page = b"<html><head><title>502 Bad Gateway</title></head><body><h1>...</h1></body></html>"
    assert fault_of_status(502, page) == Fault(
        kind="unavailable", status=502, message="502 Bad Gateway", reason="overloaded"
    )
    assert told(fault_of_status(500, b"<p>Out of <b>memory</b></p>")).message == "Out of memory"
    assert told(fault_of_status(503, b"")).message == ""


@pytest.mark.parametrize("tag", ["<", "<title"])
def test_a_web_page_of_tags_that_do_not_end_is_read_in_linear_time(tag: str) -> None:
    assert_linear(lambda page: fault_of_status(500, page), 16_000, lambda size: (tag * size)[:size].encode())


def test_a_redirect_says_where_to() -> None:
    fault = fault_of_status(301, b"{}", "https://elsewhere/v1")
    assert (fault.kind, fault.message) == ("refused", "redirects to https://elsewhere/v1")
    assert "redirects" in told(fault).remedy
    assert fault_of_status(302, b"").message == "redirects to nowhere"
    secret = "https://me:sesame@elsewhere/login?token=sesame&next=a@b#sesame"
    assert fault_of_status(302, b"", secret).message == "redirects to https://elsewhere/login"


def test_a_429_about_money_is_final_and_says_so() -> None:
    fault = fault_of_status(429, b'{"error":{"message":"You exceeded your current quota","type":"x"}}')
    assert fault.kind == "refused"
    assert "credit" in told(fault).remedy
    assert "credit" in told(fault_of_error("insufficient_quota")).remedy


@each_case(
    "fault, base_url, remedy",
    [
        (Fault(kind="refused", status=401, message=""), "https://x/v1", "Set OPENROUTER_API_KEY"),
        (Fault(kind="refused", status=402, message=""), "https://x/v1", "Add credit"),
        (Fault(kind="refused", status=404, message="no such"), "https://x/v1", "Check the model name 'm'"),
        (
            Fault(kind="refused", status=404, message="No endpoints found that support tool use"),
            "https://x/v1",
            "Choose a model that can call tools instead of 'm'",
        ),
        (Fault(kind="refused", status=400, message=""), "https://x/v1", "Check the model and its settings"),
        (
            Fault(kind="refused", status=400, message="API key not valid. Please pass a valid API key."),
            "https://x/v1",
            "Set OPENROUTER_API_KEY",
        ),
        (
            Fault(kind="refused", status=400, message="x/y is not a valid model ID"),
            "https://x/v1",
            "Check the model name 'm'",
        ),
        (
            Fault(kind="refused", status=400, message="Your credit balance is too low"),
            "https://x/v1",
            "Add credit",
        ),
        (Fault(kind="refused", status=403, message="no"), "https://x/v1", "Allow the key's account what"),
        (
            Fault(kind="refused", status=413, message="Too Large"),
            "https://x/v1",
            "raise the limit of the proxy",
        ),
        (
            Fault(
                kind="refused", status=413, message="Request too large for x on TPM: Limit 9, Requested 12"
            ),
            "https://x/v1",
            "ask the provider for more tokens a minute",
        ),
        (
            Fault(kind="refused", status=400, message="auto tool choice requires --enable-auto-tool-choice"),
            "https://x/v1",
            "Start the server with the options",
        ),
        (
            Fault(kind="refused", status=403, message="Your input was flagged"),
            "https://x/v1",
            "The provider's moderation refused what was sent",
        ),
        (
            Fault(kind="invalid_reply", status=400, message="Failed to call a function"),
            "https://x/v1",
            "Choose a model that is better at calling tools",
        ),
        (Fault(kind="unreachable", message=""), "http://127.0.0.1:1/v1", "Is the server running?"),
        (Fault(kind="unreachable", message=""), "http://[::1]:1/v1", "Is the server running?"),
        (Fault(kind="unreachable", message=""), "https://x/v1", "Check the base URL, the network"),
        (fault_of_status(407, b"Who are you?"), "http://x/v1", "and the proxy settings"),
        (
            Fault(kind="unreachable", message="[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"),
            "https://localhost/v1",
            "set SSL_CERT_FILE",
        ),
        (
            Fault(kind="unreachable", message="[SSL: WRONG_VERSION_NUMBER]"),
            "https://localhost/v1",
            "Check the base URL, the network",
        ),
        (Fault(kind="timed_out", message=""), "https://x/v1", "Raise timeout_seconds"),
        (Fault(kind="invalid_reply", status=200, message=""), "https://x/v1", "usually ends in /v1"),
        (Fault(kind="damaged", status=200, message=""), "https://x/v1", "the proxies and gateways"),
        (Fault(kind="unavailable", status=503, message=""), "https://x/v1", "Try again later"),
        (Fault(kind="unavailable", status=503, message="", retry_after_s=0), "https://x/v1", "again later"),
    ],
)
def test_every_failure_says_what_to_do(fault: Fault, base_url: str, remedy: str) -> None:
    assert remedy in told(fault, base_url).remedy


def test_what_is_told_shows_no_secret_and_no_control_character() -> None:
    fault = Fault(kind="refused", status=401, message=f"bad key {KEY}\n\x1b[31mnone\u202e" + "x" * 5000)
    failure = told(fault, f"https://user:{KEY}@host:8443/v1/?key={KEY}")
    assert failure.endpoint == "https://host:8443/v1"
    assert failure.message.startswith("bad key [redacted] \\u001b[31mnone\\u202e")
    assert len(failure.message) == MAX_WORDS
    assert KEY not in repr(failure)


def test_a_secret_at_the_cut_does_not_show_its_beginning() -> None:
    for padding in range(MAX_WORDS - 40, MAX_WORDS + 5):
        message = told(Fault(kind="refused", message="x" * padding + KEY)).message
        assert "sk-or" not in message


@pytest.mark.parametrize("url", ["http://[::1", "//", ""])
def test_an_unreadable_url_is_shown_all_the_same(url: str) -> None:
    assert isinstance(shown_endpoint(url), str)


def test_loopback() -> None:
    # Model servers print the address 0.0.0.0 when they start, so users copy it.
    for host in ("localhost:1", "0.0.0.0:8000", "[::]:8000", "[::1]"):
        assert is_loopback(f"http://{host}/v1")
    assert not is_loopback("http://localhost.example.com/v1")


@given(st.integers(300, 599), st.binary())
def test_no_refusal_raises(status: int, body: bytes) -> None:
    failure = describe(fault_of_status(status, body), base_url="http://h", model="m", profile=GENERIC)
    assert failure.message.isprintable()
    assert failure.remedy


def test_a_status_code_of_0_in_a_reply_is_no_error() -> None:
    assert error_in({"choices": [], "base_resp": {"status_code": 0, "status_msg": "success"}}) is None
