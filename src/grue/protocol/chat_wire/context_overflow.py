"""Recognise an endpoint's refusal of a request that is longer than the model's context window.

To add a provider's words, add a pattern here. There is no common status or code for this: some providers
send a code, most only a text. The sizes in the text, where there are any, say how much has to go.
"""

import re

from grue.policies import ContextOverflow

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
    r"|total number of tokens\b[^\n]{0,40}cannot exceed|size limit exceeded by \d+ tokens"  # Cohere
    r"|range of input length should be"  # DashScope
    r"|longer than the model'?s? context length"  # SGLang
    r"|must be less than(?: or equal to)? max_seq_len"  # SiliconFlow
    r"|exceeded this model context window"  # Workers AI
    r"|maximum supported sequence length"  # SambaNova
    r"|exceeds? max(?:imum)? (?:input )?length|prompt ?超长"  # Zhipu
    r"|tokens_limit_reached|body too large for \S+ model"  # GitHub's models
    r"|tokens exceed the configured limit|exceed context window"  # OpenAI, llama-cpp-python
    r"|token count is \d+ but model only supports|input context is too long"  # Vertex
    r"|too many input tokens"  # Bedrock
    r"|request too large for [^\n]{0,200}requested",  # OpenAI, Groq: more than the limit of a minute
    re.IGNORECASE,
)
_MORE_THAN_A_MINUTE = re.compile(r"request too large for", re.IGNORECASE)
"""A request that is longer than the limit of tokens in a minute: waiting is useless, it has to be shorter."""

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
    rf"|cannot exceed {_SIZE}"
    rf"|range of input length should be \[\d+, ?{_SIZE}"
    rf"|context length \({_SIZE}|context length is only {_SIZE}"
    rf"|max_seq_len \({_SIZE}"
    rf"|window limit \({_SIZE}|context window of {_SIZE}"
    rf"|sequence length is just {_SIZE}"
    rf"|max size: {_SIZE}"
    rf"|configured limit of {_SIZE}|only supports up to {_SIZE}|max input tokens: {_SIZE}"
    rf"|limit:? {_SIZE}",
    re.IGNORECASE,
)
_MESSAGES = re.compile(
    rf"\b{_SIZE} (?:in the messages|of text input|in the prompt|tokens from the input messages)",
    re.IGNORECASE,
)
"""The prompt's part of a size that includes the reply; it comes after that."""

_PROMPT = re.compile(
    rf"resulted in {_SIZE}"
    rf"|too long:? {_SIZE}"
    rf"|context limit: ?{_SIZE}"
    rf"|token count (?:of )?\(?{_SIZE}"
    rf"|contains (?:about |at least )?{_SIZE}(?: input)? tokens|passed {_SIZE} input tokens"
    rf"|has {_SIZE} input tokens"
    rf"|request \({_SIZE} tokens"
    rf"|\(length {_SIZE}\)"
    rf"|current length is {_SIZE}"
    rf"|input \({_SIZE} tokens|prompt_tokens \({_SIZE}|max_total_tokens \({_SIZE}"
    rf"|output tokens \({_SIZE}|requested tokens \({_SIZE}|prompt is {_SIZE} tokens"
    rf"|token count(?: is|:) {_SIZE}|given: {_SIZE} `?inputs|received {_SIZE}"
    rf"|requested:? (?:about |~)?{_SIZE}\b(?! output)",
    re.IGNORECASE,
)
_MOST_READ = 4000


def overflow_in(words: str, status: int | None = None) -> ContextOverflow | None:
    """Return the overflow that an endpoint's refusal reports; `None`: the refusal is about something else.

    Args:
        words: The endpoint's text.
        status: Its HTTP status. 413 says by itself that the request is too long, also where a proxy says it.
    """
    words = words[:_MOST_READ]
    told = _TOO_LONG.search(words) and (_MORE_THAN_A_MINUTE.search(words) or not _RATE.search(words))
    if not told and status != 413:
        return None
    prompt = _first(_MESSAGES, words) or _first(_PROMPT, words)
    return ContextOverflow(window_tokens=_first(_WINDOW, words), prompt_tokens=prompt)


def _first(pattern: re.Pattern[str], words: str) -> int | None:
    found = pattern.search(words)
    if found is None:
        return None
    return int(next(group for group in found.groups() if group).replace(",", ""))
