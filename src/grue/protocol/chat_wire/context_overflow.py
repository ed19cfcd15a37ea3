"""Recognise an endpoint's refusal of a request that is longer than the model's context window.

Come here to add a provider's words. There is no common status or code for this: some providers send a code,
most only a text. The sizes in the text, where there are any, say how much has to go.
"""

import re

from grue.messages import ContextOverflow

_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|context ?window ?exceeded"  # OpenAI, llama.cpp, LiteLLM
    r"|maximum (?:context|prompt|model) length"  # OpenAI, DeepSeek, OpenRouter, vLLM, xAI, Fireworks
    r"|maximum context length"
    r"|prompt (?:is )?too long|input is too long"  # Anthropic, Ollama; Bedrock
    r"|exceeds? (?:the )?(?:\w+ ){0,2}context (?:window|length|size|limit)"  # Responses, llama.cpp, Ollama
    r"|context (?:window|length|size|limit)\b[^\n]{0,20}\bexceed"
    r"|exceed context limit"  # Anthropic, with max_tokens
    r"|context the overflows|greater than the context length"  # LM Studio
    r"|token count\b[^\n]{0,20} exceeds"  # Gemini, Copilot
    r"|exceeded (?:the )?(?:model|max)\w* (?:token|context)"  # Kimi, Ollama
    r"|maximum context length|max_new_tokens\W{0,2} must be <="  # TGI
    r"|reduce the length of the (?:messages|input|prompt)"  # Groq, Cerebras
    r"|number of tokens in the prompt cannot exceed",  # Cohere
    re.IGNORECASE,
)
_RATE = re.compile(r"per (?:minute|hour|day)|\bTPM\b|\bTPD\b|rate.?limit|please wait", re.IGNORECASE)
"""Limits of tokens in a time, which the same words are used for; waiting helps there."""

_SIZE = r"([1-9][\d,]{1,9})"
_WINDOW = re.compile(
    rf"maximum (?:context|prompt|model) length(?: is|:| of)? ?{_SIZE}"
    rf"|> ?{_SIZE} maximum"
    rf"|context limit: ?\d+ ?\+ ?\d+ ?> ?{_SIZE}"
    rf"|tokens allowed \(?{_SIZE}"
    rf"|with {_SIZE} maximum context"
    rf"|context size \({_SIZE}"
    rf"|context length of only {_SIZE}"
    rf"|token limit: ?{_SIZE}"
    rf"|limit (?:is|of) {_SIZE}"
    rf"|must be <= {_SIZE}"
    rf"|cannot exceed {_SIZE}",
    re.IGNORECASE,
)
_MESSAGES = re.compile(rf"\({_SIZE} (?:in the messages|of text input|in the prompt)", re.IGNORECASE)
"""The prompt's part of a size that includes the reply; it comes after that."""

_PROMPT = re.compile(
    rf"resulted in {_SIZE}"
    rf"|too long:? {_SIZE}"
    rf"|context limit: ?{_SIZE}"
    rf"|token count (?:of )?\(?{_SIZE}"
    rf"|contains (?:about )?{_SIZE}(?: input)? tokens"
    rf"|has {_SIZE} input tokens"
    rf"|request \({_SIZE} tokens"
    rf"|\(length {_SIZE}\)"
    rf"|current length is {_SIZE}"
    rf"|requested:? (?:about )?{_SIZE}",
    re.IGNORECASE,
)
_MOST_READ = 4000


def overflow_in(words: str) -> ContextOverflow | None:
    """Return the overflow that an endpoint's error text reports; `None`: the text is about something else."""
    words = words[:_MOST_READ]
    if not _TOO_LONG.search(words) or _RATE.search(words):
        return None
    prompt = _first(_MESSAGES, words) or _first(_PROMPT, words)
    return ContextOverflow(window_tokens=_first(_WINDOW, words), prompt_tokens=prompt)


def _first(pattern: re.Pattern[str], words: str) -> int | None:
    found = pattern.search(words)
    if found is None:
        return None
    return int(next(group for group in found.groups() if group).replace(",", ""))
