"""What an endpoint's refusal teaches: each lesson once, and never without end."""

import re
from typing import Any

import msgspec
import pytest
from case_tables import each_case
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.profile import SAMPLING, WireProfile
from grue.protocol.chat_wire.profiles import (
    ANTHROPIC,
    GENERIC,
    GENERIC_MESSAGES,
    OPENAI,
    OPENAI_CHAT,
    OPENROUTER,
    PROFILES,
    adapt_profile,
    profile_for,
)

O3 = profile_for("https://api.openai.com/v1/chat/completions", "o3")

NAME_COMPLAINTS = [
    "Invalid 'tools[0].function.name': string does not match pattern. Expected a string that matches the "
    "pattern '^[a-zA-Z0-9_-]+$'.",
    "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'",
    "* GenerateContentRequest.tools[0].function_declarations[0].name: Invalid function name.",
    "Function name was s.t but must be a-z, A-Z, 0-9, or contain underscores and dashes.",
    "'s.t' does not match '^[a-zA-Z0-9_-]{1,64}$' - 'messages.2.tool_calls.0.function.name'",
]
TOOL_COMPLAINTS = [
    "Requests which include `tool_use` or `tool_result` blocks must define tools.",
    "litellm.UnsupportedParamsError: Anthropic expects the `tools=` param to be passed in.",
    "The toolConfig field must be defined when using toolUse and toolResult content blocks.",
]
CALL_ID_COMPLAINTS = [
    "Tool call id was call_0fypS1hVX but must be a-z, A-Z, 0-9, with a length of 9.",
    "Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum length 40, but"
    " got a string with length 43 instead.",
    "Invalid 'input[24].call_id': string too long. Expected a string with maximum length 64, but got a string"
    " with length 210 instead.",
    "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
    "messages.2.content.0.tool_result.tool_use_id: String should match pattern '^[a-zA-Z0-9_-]+$'",
]
LESSONS: list[tuple[WireProfile, str, dict[str, Any]]] = [
    *((GENERIC, words, {"names": "encoded"}) for words in NAME_COMPLAINTS),
    *((OPENROUTER, words, {"call_ids": "[a-zA-Z0-9]{9}"}) for words in CALL_ID_COMPLAINTS),
    (
        ANTHROPIC,
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. When"
        " `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the"
        " lastmost set of `tool_use` and `tool_result` blocks). We recommend you include thinking blocks from"
        " previous turns. To avoid this requirement, disable `thinking`.",
        {"reasoning": "none"},
    ),
    *(
        (GENERIC, words, {"signs_calls": True})
        for words in (
            "Function call is missing a thought_signature in functionCall parts.",
            "Unable to submit request because function call `f` in the 3. content block is missing a"
            " `thought_signature`.",
        )
    ),
    *((OPENROUTER, words, {"tools_with_forced": True}) for words in TOOL_COMPLAINTS),
    (
        OPENAI_CHAT,
        "Invalid 'tools[21].function.description': string too long. Expected a string with maximum length "
        "1024, but got a string with length 2780 instead.",
        {"max_description_chars": 1024},
    ),
    (
        GENERIC,
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' "
        "instead.",
        {"max_tokens_field": "max_completion_tokens"},
    ),
    (
        GENERIC,
        "max_tokens is too large: 20000. This model supports at most 16384 completion tokens, whereas you "
        "provided 20000.",
        {"max_output_tokens": 16384},
    ),
    (
        ANTHROPIC,
        "max_tokens: 99999 > 64000, which is the maximum allowed number of output tokens for claude-x",
        {"max_output_tokens": 64000},
    ),
    (
        GENERIC,
        "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens`",
        {"max_output_tokens": 8192},
    ),
    *(
        (GENERIC, words, {"max_output_tokens": 8192})
        for words in (
            "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
            "Range of max_tokens should be [1, 8192]",
            "max_completion_tokens value must be between 1 and 8192",
            "The maximum tokens you requested exceeds the model limit of 8192.",
            "maxOutputTokens value of 99999 but the range is from 1 (inclusive) to 8193 (exclusive).",
        )
    ),
    (OPENAI_CHAT, "Developer instruction is not enabled for models/x", {"system_role": "user"}),
    (GENERIC, "System role not supported", {"system_role": "user"}),
    (GENERIC, "response_format.type: Input should be 'text'", {"response_format": "json_object"}),
    (GENERIC, "json mode cannot be combined with tool calling", {"response_format": "json_object"}),
    (
        OPENROUTER,
        "messages.0.content.0.cache_control: Extra inputs are not permitted",
        {"cache_markers": 0, "given_cache_markers": 0},
    ),
    (
        OPENAI_CHAT,
        "Unsupported value: 'temperature' does not support 0.7 with this model. Only the default (1) value "
        "is supported.",
        {"sampling": OPENAI_CHAT.sampling - {"temperature"}},
    ),
    (GENERIC, "Unrecognized request argument supplied: min_p", {"sampling": SAMPLING - {"min_p"}}),
    (GENERIC, "property 'top_k' is unsupported", {"sampling": SAMPLING - {"top_k"}}),
    (OPENAI_CHAT, "Unsupported parameter: 'stop'", {"sampling": OPENAI_CHAT.sampling - {"stop"}}),
    (
        GENERIC_MESSAGES,
        "stop_sequences: Extra inputs are not permitted",
        {"sampling": GENERIC_MESSAGES.sampling - {"stop"}},
    ),
    (
        GENERIC_MESSAGES,
        "`temperature` and `top_p` cannot both be specified for this model. Please use only one.",
        {"sampling": GENERIC_MESSAGES.sampling - {"top_p"}},
    ),
    (
        O3,
        "Unsupported value: 'messages[0].role' does not support 'developer' with this model.",
        {"system_role": "system"},
    ),
    (
        GENERIC,
        "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
        {"system_role": "user"},
    ),
    (
        GENERIC,
        "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
        {"response_format": "json_object"},
    ),
    (
        msgspec.structs.replace(GENERIC, response_format="json_object"),
        "This response_format type is unavailable now",
        {"response_format": "none"},
    ),
    (ANTHROPIC, "output_config.format: Extra inputs are not permitted", {"response_format": "none"}),
    (
        ANTHROPIC,
        "thinking.type.enabled is not supported for this model. Use thinking.type.adaptive and "
        "output_config.effort to control thinking behavior.",
        {"reasoning": "adaptive"},
    ),
    (GENERIC, "Unrecognized request argument supplied: reasoning_effort", {"reasoning": "none"}),
    (OPENAI, "Encrypted content is not supported with this model.", {"reasoning": "none"}),
    (
        GENERIC,
        "Unexpected role 'user' after role 'tool'",
        {"assistant_after_results": True},
    ),
    (GENERIC, "Streaming is not supported for this model.", {"streams": False}),
    (
        GENERIC,
        "This model only support stream mode, please enable the parameter",
        {"must_stream": True},
    ),
    (GENERIC, "enable_thinking must be set to false for non-streaming calls", {"must_stream": True}),
    (GENERIC, "Streaming is required for operations that may take long", {"must_stream": True}),
    (GENERIC, "stream must be set to true", {"must_stream": True}),
    (OPENROUTER, "Unsupported parameter: 'stream_options'", {"streams": False}),
]


@each_case("profile, words, changes", LESSONS)
def test_what_a_refusal_teaches_and_teaches_once(
    profile: WireProfile, words: str, changes: dict[str, Any]
) -> None:
    for status in (400, 422):
        learned = adapt_profile(profile, status, words)
        assert learned == msgspec.structs.replace(profile, **changes)
    again = adapt_profile(learned, 400, words)
    assert again is None or not changes.keys() & differences(learned, again).keys() - {
        "response_format",
        "sampling",
        "system_role",
    }


def differences(one: WireProfile, other: WireProfile) -> dict[str, object]:
    names = one.__struct_fields__
    return {name: getattr(other, name) for name in names if getattr(one, name) != getattr(other, name)}


@pytest.mark.parametrize(
    "words",
    [
        "This model is only supported in v1/responses and not in v1/chat/completions.",
        "Function tools with reasoning_effort are not supported for gpt-5.4 in /v1/chat/completions. "
        "Please use /v1/responses instead.",
    ],
)
@pytest.mark.parametrize("status", [400, 404])
def test_a_model_that_lives_elsewhere_is_asked_there(words: str, status: int) -> None:
    learned = adapt_profile(O3, status, words)
    assert learned is not None
    assert (learned.wire, learned.names, learned.reasoning) == ("responses", "encoded", "reasoning")
    assert learned.sampling == {"max_tokens"}
    assert learned.key_variable == O3.key_variable
    assert adapt_profile(learned, 404, words) is None


def test_names_are_learned_only_where_they_are_not_known() -> None:
    canonical = msgspec.structs.replace(GENERIC, names="canonical")
    assert adapt_profile(canonical, 400, NAME_COMPLAINTS[0]) is None


@pytest.mark.parametrize(
    "words",
    [
        "The model `gpt-9` does not exist or you do not have access to it.",
        "This model's maximum context length is 8192 tokens.",
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        "Provider returned error",
        "max_tokens: Input should be greater than or equal to 1",
        "max_tokens must be at most 0",
        "",
    ],
)
def test_other_refusals_teach_nothing(words: str) -> None:
    assert adapt_profile(GENERIC, 400, words) is None


@pytest.mark.parametrize("status", [None, 200, 401, 404, 429, 500])
def test_only_a_refusal_of_the_request_teaches(status: int | None) -> None:
    assert adapt_profile(GENERIC, status, NAME_COMPLAINTS[0]) is None


WORDS = st.lists(
    st.sampled_from([words for _, words, _ in LESSONS])
    | st.sampled_from(re.findall(r"[\w./]+", " ".join(words for _, words, _ in LESSONS)))
    | st.text(max_size=5),
    max_size=12,
).map(" ".join)
ROWS = [*(each.profile for each in FORMATS.values()), *(row for rows in PROFILES.values() for row in rows)]
MOST = 20


@settings(max_examples=examples(300))
@given(
    refusals=st.lists(WORDS, min_size=1, max_size=4), status=st.sampled_from([400, 404, 422]), at=st.data()
)
@pytest.mark.slow
def test_an_endpoint_has_a_bounded_number_of_lessons_to_teach(
    refusals: list[str], status: int, at: st.DataObject
) -> None:
    profile, count, idle = at.draw(st.sampled_from(ROWS)), 0, 0
    # The endpoint complains of this and of that, in turns.
    for number in range(MOST * len(refusals) + len(refusals)):
        learned = adapt_profile(profile, status, refusals[number % len(refusals)])
        idle = idle + 1 if learned is None else 0
        assert learned != profile
        profile, count = learned or profile, count + (learned is not None)
    assert idle >= len(refusals)
    assert count <= MOST
