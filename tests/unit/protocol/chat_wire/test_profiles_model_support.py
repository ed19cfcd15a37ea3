"""P13: tool support by name, with what outranks the name."""

from types import SimpleNamespace

import pytest
from case_tables import each_case
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from grue.messages import ToolSupportChecked
from grue.protocol.chat_wire.profiles import NAME_RULES, checked_support, rule_for, supports_tool_calling

# The requirements' own patterns, and the names they were written for.
SEEDS_DENY = (
    "o1-mini",
    "o1-preview",
    "o3-mini",
    "qwq-32b-preview",
    "deepseek-r1",
    "deepseek-reasoner",
    "phi-4-reasoning",
    "r1-1776",
)
DENIED = (
    *SEEDS_DENY,
    "o1",
    "o3",
    "openai/o1-pro",
    "openai/o3-2025-04-16",
    "marco-o1",
    "openai/gpt-5-chat",
    "qwq:32b",
    "deepseek/deepseek-r1:free",
    "tngtech/deepseek-r1t2-chimera",
    "deepseek-r1-distill-llama-70b",
    "meta/llama-3-r1-distill",
    "us.deepseek.r1-v1:0",
    "microsoft/mai-ds-r1:free",
    "phi-4-mini-reasoning",
    "perplexity/sonar-reasoning-pro",
    "x-ai/grok-4-fast-reasoning",
    "x-ai/grok-4-1-fast-reasoning",
    "mistralai/ministral-14b-reasoning-2512",
    "ministral-3-8b-reasoning",
    "acme/canon-reasoning",
    "accounts/fireworks/models/deepseek-r1",
    " DeepSeek-AI/DeepSeek-R1/ ",
)
KNOWN = (
    "gpt-4",
    "gpt-3.5-turbo",
    "openai/gpt-4o-mini",
    "openai/gpt-5",
    "openai/gpt-5.1-chat",
    "openai/gpt-6-sol",
    "openai/gpt-oss-120b",
    "openai/o4-mini",
    "anthropic/claude-3.5-sonnet",
    "anthropic/claude-haiku-5.5",
    "claude-opus-4-5",
    "google/gemini-3.5-flash",
    "mistralai/mixtral-8x22b",
    "meta-llama/llama-3.1-70b-instruct",
    "llama3.2:3b",
    "meta-llama/llama-4-maverick",
    "cohere/command-r-plus",
    "qwen/qwen3-30b-a3b",
    "deepseek/deepseek-v3.2-exp",
    "x-ai/grok-4-fast",
    "mistralai/ministral-14b-2512",
    "x-ai/grok-4.1-fast-non-reasoning",
    "z-ai/glm-4.6",
    "moonshotai/kimi-k2",
)
# Nothing in these names decides, though parts of them look like a denied one.
UNKNOWN = (
    "some-model",
    "",
    "vendor/gpt4o1-tuned",
    "acme/er1-large",
    "deepseek-r1/acme-7b",
    "super-reasoning/acme-7b",
    "acme-non-reasoning",
    "reasonable-7b",
    "foo1-bar",
)

vendors = st.sampled_from(
    ["", "openai/", "openrouter/x/", "accounts/a/models/", "r1-labs/", "the-reasoning/"]
)
variants = st.sampled_from(["", ":free", ":nitro", "-2026-11-01", "@eu", "/"])


@each_case("model", DENIED)
def test_p13_a_model_without_tools_is_known_by_its_name(model: str) -> None:
    rule = rule_for(model)
    assert rule is not None
    assert not rule.supported
    assert not supports_tool_calling(model)


@each_case("model", KNOWN)
def test_p13_a_family_with_tools_is_known_by_its_name(model: str) -> None:
    rule = rule_for(model)
    assert rule is not None
    assert rule.supported
    assert supports_tool_calling(model)


@pytest.mark.parametrize("model", UNKNOWN)
def test_p13_a_name_that_no_row_knows_passes(model: str) -> None:
    assert rule_for(model) is None
    assert supports_tool_calling(model)


@given(
    st.sampled_from(KNOWN + UNKNOWN), st.sampled_from(["-reasoning", "-reasoning-2512", "-fast-reasoning"])
)
def test_r12_2_the_reasoning_variant_of_any_model_is_denied_whoever_makes_it(model: str, suffix: str) -> None:
    assert not supports_tool_calling(model + suffix)
    assert supports_tool_calling(model + suffix, endpoint_says=True), "the endpoint knows better"


@settings(max_examples=examples(300))
@given(vendors, st.sampled_from(DENIED + KNOWN), variants, st.booleans())
def test_p13_vendor_variant_and_case_decide_nothing(
    vendor: str, model: str, variant: str, upper: bool
) -> None:
    name = vendor + model.strip().rstrip("/") + variant
    assert supports_tool_calling(name.upper() if upper else name) == supports_tool_calling(model)


def test_p13_forcing_and_the_endpoint_decide_against_the_name() -> None:
    denied = DENIED[0]
    assert supports_tool_calling(denied, SimpleNamespace(mcp_force_tool_support=True), False)
    assert supports_tool_calling(denied, SimpleNamespace(mcp_force_tool_support=False), True)
    assert not supports_tool_calling(KNOWN[0], None, False)


@settings(max_examples=examples(200))
@given(
    st.text(max_size=30) | st.sampled_from(DENIED + KNOWN + UNKNOWN),
    st.none() | st.booleans(),
    st.none() | st.booleans(),
)
def test_p13_forced_outranks_the_endpoint_and_the_endpoint_the_name(
    model: str, forced: bool | None, endpoint_says: bool | None
) -> None:
    config = None if forced is None else SimpleNamespace(mcp_force_tool_support=forced)
    verdict = supports_tool_calling(model, config, endpoint_says)
    checked = checked_support(model, "http://h/v1", forced=bool(forced), endpoint_says=endpoint_says)
    rule = rule_for(model)
    if forced:
        expected, by = True, "forced"
    elif endpoint_says is not None:
        expected, by = endpoint_says, "endpoint"
    else:
        expected, by = rule is None or rule.supported, "name"
    assert verdict is expected
    assert (checked.supported, checked.by) == (expected, by)


def test_p13_every_denial_precedes_every_known_family_and_gives_its_reason() -> None:
    verdicts = [rule.supported for rule in NAME_RULES]
    assert verdicts == sorted(verdicts)
    assert all(rule.reason for rule in NAME_RULES)


@each_case("row", range(len(NAME_RULES)))
def test_p13_no_row_is_idle(row: int) -> None:
    assert any(rule_for(model) is NAME_RULES[row] for model in DENIED + KNOWN)


@pytest.mark.parametrize(
    ("model", "forced", "endpoint_says", "supported", "by", "reason"),
    [
        ("deepseek-r1", True, False, True, "forced", ""),
        ("deepseek-r1", False, True, True, "endpoint", ""),
        ("gpt-4o", False, False, False, "endpoint", "names no tools"),
        ("gpt-4o", False, None, True, "name", ""),
        ("some-model", False, None, True, "name", ""),
        ("deepseek-r1", False, None, False, "name", "reasoning model"),
    ],
)
def test_p13_whose_word_it_is(
    model: str, forced: bool, endpoint_says: bool | None, supported: bool, by: str, reason: str
) -> None:
    checked = checked_support(model, "http://h/v1", forced=forced, endpoint_says=endpoint_says)
    assert checked == ToolSupportChecked(
        model=model,
        endpoint="http://h/v1",
        supported=supported,
        by=by,  # type: ignore[arg-type]  # one of them
        reason=checked.reason,
    )
    assert reason in checked.reason
    assert bool(checked.reason) is not supported
