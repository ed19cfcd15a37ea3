"""How providers say that a request is too long, and words that only sound like it."""

import pytest
from case_tables import each_case

from grue.policies import ContextOverflow
from grue.protocol.chat_wire.failures import Fault, describe, is_too_long, overflow_of
from grue.protocol.chat_wire.profiles import GENERIC

SAID: dict[str, tuple[str, int | None, int | None]] = {
    "OpenAI": (
        "This model's maximum context length is 128000 tokens. However, your messages resulted in "
        "130117 tokens. Please reduce the length of the messages.",
        128000,
        130117,
    ),
    "OpenAI, Responses": (
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        None,
        None,
    ),
    "Anthropic": ("prompt is too long: 215034 tokens > 200000 maximum", 200000, 215034),
    "Anthropic, with the reply": (
        "input length and `max_tokens` exceed context limit: 190121 + 21333 > 200000, decrease input length "
        "or "
        "`max_tokens` and try again",
        200000,
        190121,
    ),
    "Bedrock": ("Input is too long for requested model.", None, None),
    "Gemini": (
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
        1048575,
        1196265,
    ),
    "Mistral": (
        "Prompt contains 40012 tokens and 0 draft tokens, too large for model with 32768 maximum context "
        "length",
        32768,
        40012,
    ),
    "DeepSeek": (
        "This model's maximum context length is 65536 tokens. However, you requested 70093 tokens (65997 in "
        "the "
        "messages, 4096 in the completion). Please reduce the length of the messages or completion.",
        65536,
        65997,
    ),
    "OpenRouter": (
        "This endpoint's maximum context length is 32768 tokens. However, you requested about 40123 tokens "
        "(36027 "
        "of text input, 4096 in the output). Please reduce the length of either one.",
        32768,
        36027,
    ),
    "xAI": (
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        131072,
        537812,
    ),
    "Groq": (
        "Please reduce the length of the messages or completion.",
        None,
        None,
    ),
    "Cerebras": (
        "Please reduce the length of the messages or completion. Current length is 9034 while limit is 8192",
        8192,
        9034,
    ),
    "vLLM": (
        "The decoder prompt (length 9031) is longer than the maximum model length of 8192.",
        8192,
        9031,
    ),
    "vLLM, with the reply": (
        "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is "
        "8192 "
        "tokens and your request has 5012 input tokens (4096 > 8192 - 5012).",
        8192,
        5012,
    ),
    "llama.cpp": (
        "request (9012 tokens) exceeds the available context size (4096 tokens), try increasing it",
        4096,
        9012,
    ),
    "Ollama": ("prompt too long; exceeded max context length by 37 tokens", None, None),
    "LM Studio": (
        "Trying to keep the first 5019 tokens when context the overflows. However, the model is loaded with "
        "context length of only 4096 tokens, which is not enough.",
        4096,
        None,
    ),
    "LiteLLM": ("litellm.ContextWindowExceededError: AnthropicException", None, None),
    "Fireworks": ("The prompt is too long: 40,010, model maximum context length: 32,768", 32768, 40010),
    "Kimi": ("Your request exceeded model token limit: 262144 (requested: 270123)", 262144, 270123),
    "TGI": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 4000 and 1000",
        4097,
        None,
    ),
    "Cohere": (
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5020.",
        4081,
        5020,
    ),
    "Copilot": ("prompt token count of 70012 exceeds the limit of 64000", 64000, 70012),
}


@each_case("provider", SAID)
def test_every_providers_words_are_known_with_their_sizes(provider: str) -> None:
    words, window, prompt = SAID[provider]
    assert is_too_long(words)
    assert overflow_of(words) == ContextOverflow(window_tokens=window, prompt_tokens=prompt)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "Rate limit reached: Limit 30000 tokens per minute (TPM), requested 40000. Please reduce the length "
        "of the "
        "messages.",
        "Too many tokens, please wait before trying again.",
        "max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens",
        "The image is too large: at most 5 MB",
        "tools.0.function.description is too long: maximum length 1024",
        "messages: text content blocks must be non-empty",
    ],
)
def test_other_refusals_are_no_overflow(words: str) -> None:
    assert not is_too_long(words)


def test_the_failure_tells_the_sizes_and_what_to_do() -> None:
    words, window, prompt = SAID["Anthropic"]
    fault = Fault(kind="refused", status=400, message=words)
    failure = describe(fault, base_url="http://llm.test/v1", model="m", profile=GENERIC)
    assert failure.overflow == ContextOverflow(window_tokens=window, prompt_tokens=prompt)
    assert failure.remedy.startswith("Set a ContextPolicy, send less")
