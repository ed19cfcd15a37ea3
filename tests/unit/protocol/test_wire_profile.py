"""Profiles: recognised by the base URL, taught by refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.protocol.chat_wire.profile import GENERIC, OPENAI, OPENROUTER, WireProfile, lesson, profile_for


@pytest.mark.parametrize(
    ("base_url", "profile"),
    [
        ("https://openrouter.ai/api/v1", OPENROUTER),
        ("https://OpenRouter.ai:443/api/v1/", OPENROUTER),
        ("https://api.openai.com/v1", OPENAI),
        ("https://eu.api.openai.com/v1", OPENAI),
        ("https://notopenrouter.ai/api/v1", GENERIC),
        ("https://api.openai.com.example.net/v1", GENERIC),
        ("http://127.0.0.1:8000/v1", GENERIC),
        ("http://localhost:11434/v1", GENERIC),
        ("", GENERIC),
    ],
)
def test_a_profile_is_recognised_by_its_host(base_url: str, profile: WireProfile) -> None:
    assert profile_for(base_url) is profile


NAME_COMPLAINTS = [
    "Invalid 'tools[0].function.name': string does not match pattern. Expected a string that matches the "
    "pattern '^[a-zA-Z0-9_-]+$'.",
    "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'",
    "* GenerateContentRequest.tools[0].function_declarations[0].name: Invalid function name.",
    "Function name was s.t but must be a-z, A-Z, 0-9, or contain underscores and dashes.",
    "'s.t' does not match '^[a-zA-Z0-9_-]{1,64}$' - 'messages.2.tool_calls.0.function.name'",
]


@pytest.mark.parametrize("words", NAME_COMPLAINTS)
def test_a_complaint_about_a_name_teaches_encoding_once(words: str) -> None:
    learned = lesson(GENERIC, 400, words)
    assert learned is not None
    assert (learned.names, learned.name_style) == ("encoded", "encoded")
    assert lesson(learned, 400, words) is None
    assert GENERIC.name_style == "canonical"


@pytest.mark.parametrize(
    "words",
    [
        "Requests which include `tool_use` or `tool_result` blocks must define tools.",
        "litellm.UnsupportedParamsError: Anthropic expects the `tools=` param to be passed in.",
        "The toolConfig field must be defined when using toolUse and toolResult content blocks.",
    ],
)
def test_a_complaint_about_missing_tools_teaches_to_send_them_along(words: str) -> None:
    learned = lesson(OPENROUTER, 400, words)
    assert learned is not None
    assert learned.tools_with_forced
    assert lesson(learned, 400, words) is None


def test_a_complaint_about_a_long_description_teaches_its_limit() -> None:
    words = (
        "Invalid 'tools[21].function.description': string too long. Expected a string with maximum length "
        "1024, but got a string with length 2780 instead."
    )
    learned = lesson(OPENAI, 400, words)
    assert learned is not None
    assert learned.max_description_chars == 1024
    assert lesson(learned, 400, words) is None


@pytest.mark.parametrize(
    "words",
    [
        "The model `gpt-9` does not exist or you do not have access to it.",
        "This model's maximum context length is 8192 tokens.",
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        "Provider returned error",
        "",
    ],
)
def test_other_refusals_teach_nothing(words: str) -> None:
    assert lesson(GENERIC, 400, words) is None


@pytest.mark.parametrize("status", [None, 200, 401, 429, 500])
def test_only_a_refusal_of_the_request_teaches(status: int | None) -> None:
    assert lesson(GENERIC, status, NAME_COMPLAINTS[0]) is None


@given(words=st.lists(st.sampled_from(NAME_COMPLAINTS) | st.text(), max_size=3).map(" ".join))
def test_an_endpoint_has_at_most_three_lessons_to_teach(words: str) -> None:
    profile, count = GENERIC, 0
    while (learned := lesson(profile, 400, words)) is not None:
        profile, count = learned, count + 1
    assert count <= 3
