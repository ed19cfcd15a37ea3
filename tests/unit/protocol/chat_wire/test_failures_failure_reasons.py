"""Why an endpoint refused; `test_failures_failure_reasons_of_providers.py` has what providers write."""

from typing import get_args

import pytest
from case_tables import each_case
from hypothesis import given
from hypothesis import strategies as st

from grue.messages import LlmFailure
from grue.policies import FailureKind, FailureReason
from grue.protocol.chat_wire.failures import (
    REASONS,
    Fault,
    describe,
    kind_of,
    reason_of,
)
from grue.protocol.chat_wire.profiles import GENERIC


@each_case("status", [408, 424, 429, 498, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529, 530])
def test_these_statuses_are_tried_again(status: int) -> None:
    assert kind_of(reason_of(status, "overloaded")) == "unavailable"


@pytest.mark.parametrize("status", [301, 400, 401, 402, 403, 404, 405, 413, 422, 501])
def test_these_statuses_are_final(status: int) -> None:
    assert kind_of(reason_of(status, "please try again")) == "refused"


@pytest.mark.parametrize(
    "words",
    [
        "You exceeded your current quota, please check your plan and billing details.",
        "insufficient_quota",
        "Key has reached its spending limit",
        "monthly spend limit reached",
        "Insufficient credits",
        "Your team is out of credits",
        "Budget has been exceeded! Current cost: 10.1, Max budget: 10.0",
        "This request would exceed your credit limit",
    ],
)
def test_a_429_about_money_is_final(words: str) -> None:
    assert kind_of(reason_of(429, words)) == "refused"
    assert reason_of(429, words) == "credit"


@pytest.mark.parametrize(
    "words",
    [
        "Rate limit reached for requests per minute. Upgrade at https://console.groq.com/settings/billing",
        "Please try again in 20s. Add a payment method at https://platform.openai.com/account/billing.",
        "You exceeded your current quota, please check your plan and billing details. Please retry in 34s.",
    ],
)
def test_a_429_about_time_is_tried_again_whatever_it_says_of_billing(words: str) -> None:
    assert kind_of(reason_of(429, words)) == "unavailable"
    assert reason_of(429, words) == "rate"


def test_every_reason_has_a_kind_and_a_remedy_of_its_own() -> None:
    remedies = set()
    for reason in get_args(FailureReason):
        fault = Fault(kind=kind_of(reason), message="no", reason=reason)
        failure = describe(fault, base_url="http://llm.test/v1", model="m", profile=GENERIC)
        assert failure.reason == reason
        remedies.add(failure.remedy)
    assert len(remedies) == len(get_args(FailureReason))


@pytest.mark.parametrize("kind", get_args(FailureKind))
def test_a_failure_without_a_reply_has_a_reason_too(kind: FailureKind) -> None:
    assert REASONS[kind] in get_args(FailureReason)


@given(st.integers(300, 599), st.text(), st.text())
def test_every_refusal_has_a_reason(status: int, words: str, codes: str) -> None:
    assert reason_of(status, words, codes) in get_args(FailureReason)


def test_the_reason_is_unknown_in_the_traces_of_earlier_versions() -> None:
    assert LlmFailure(kind="refused", endpoint="e", model="m", message="x").reason is None


@pytest.mark.parametrize(
    ("status", "words", "reason"),
    [
        (500, "tool_use_failed", "reply"),
        (500, "Insufficient credits", "credit"),
        (402, "no", "credit"),
        (403, "no", "permission"),
        (401, "no", "key"),
        (405, "no", "address"),
        (451, "no", "region"),
        (418, "no", "request"),
    ],
)
def test_the_words_of_a_failing_server_can_say_more_than_its_status(
    status: int, words: str, reason: str
) -> None:
    assert reason_of(status, words) == reason
