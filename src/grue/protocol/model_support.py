"""Whether a model can call tools, judged by its name (R4.5, R12, P13).

A name is a heuristic: the configuration's word comes first, the endpoint's own word second, this table third.
The last segment of the model's path is matched, in lower case, so that a vendor's name never decides.
Rows are tried from top to bottom: every denial stands before every family that is known to call tools.

The denials are the models that R12.2's own list names, whole families where it names a prefix. No vendor is
excepted. Some models of those families do take tools, such as Grok's and Ministral's reasoning variants: an
endpoint whose model list says so outranks the name, and `mcp_force_tool_support` outranks both.
A name that no row knows passes: a wrong guess then fails at the first request, with the provider's reason.
"""

import re
from typing import Protocol

from msgspec import Struct

from grue.messages import ToolSupportChecked


class ToolSupportPolicy(Protocol):
    """The one setting that matters here; `GameConfiguration` has it."""

    mcp_force_tool_support: bool


class NameRule(Struct, frozen=True):
    """One row: the models whose name matches `pattern` do, or do not, call tools, for this `reason`."""

    pattern: re.Pattern[str]
    supported: bool
    reason: str


def _denied(pattern: str, reason: str) -> NameRule:
    return NameRule(re.compile(pattern), supported=False, reason=reason)


def _known(pattern: str, reason: str) -> NameRule:
    return NameRule(re.compile(pattern), supported=True, reason=reason)


# A part of a name stands alone: "o1" is in "o1-mini" and "marco-o1", and not in "gpt-4o1".
_START, _END = r"(?<![a-z0-9])", r"(?![a-z0-9])"

NAME_RULES: tuple[NameRule, ...] = (
    _denied(
        rf"{_START}o[13]{_END}",
        "OpenAI's o1 and o3 are reasoning models; o1-mini and o1-preview refuse tools",
    ),
    _denied(rf"{_START}gpt-5-chat", "gpt-5-chat is the chat product's model and takes no tools"),
    _denied(r"qwq", "QwQ is a reasoning model; most servers of it return tool calls as prose"),
    _denied(r"deepseek-r1", "DeepSeek R1 is a reasoning model; most of its endpoints refuse tools"),
    _denied(r"deepseek-reasoner", "deepseek-reasoner is DeepSeek's reasoning endpoint"),
    _denied(rf"{_START}r1{_END}", "R1 and what was distilled from it are reasoning models"),
    _denied(
        # "non-reasoning" says the opposite.
        r"(?<!\bnon)-reasoning",
        "a name with '-reasoning' is that of a reasoning model",
    ),
    _known(rf"{_START}gpt-(?:3\.5|[4-9]|oss)", "OpenAI; gpt-5.4 and later need what the wire profile adds"),
    _known(rf"{_START}o4-mini", "OpenAI's o4-mini takes tools on chat completions"),
    _known(r"claude-(?:[3-9]|sonnet|opus|haiku|fable)", "Anthropic, since Claude 3"),
    _known(r"gemini", "Google"),
    _known(r"(?:mi|mini|magi|dev|code)stral|mixtral", "Mistral"),
    _known(r"llama-?(?:3\.[1-9]|4)", "Meta, since Llama 3.1"),
    _known(r"command-(?:r|a)", "Cohere"),
    _known(r"qwen-?(?:2\.5|[3-9])", "Qwen, since 2.5"),
    _known(r"deepseek-(?:chat|v[3-9])", "DeepSeek's chat models, since V3"),
    _known(r"grok-[3-9]", "xAI, unless the name says that it reasons"),
    _known(r"glm-(?:4\.[5-9]|[5-9])|kimi-k|minimax-m", "Z.ai, Moonshot and MiniMax agent models"),
)


def rule_for(model: str) -> NameRule | None:
    """Return the row that decides for `model` (R12.1-3), or `None` where no row knows the name."""
    name = model.strip().lower().rstrip("/").rpartition("/")[2]
    return next((rule for rule in NAME_RULES if rule.pattern.search(name)), None)


def supports_tool_calling(
    model: str, config: ToolSupportPolicy | None = None, endpoint_says: bool | None = None
) -> bool:
    """Say whether `model` may be offered tools: forced, then the endpoint's word, then its name (R12, P13).

    Args:
        model: Name as the endpoint takes it, with or without a vendor's path ("openai/gpt-4o").
        config: Whose `mcp_force_tool_support` bypasses every check (R12.4); default: not forced.
        endpoint_says: What the endpoint's own model list says; `None` (the default) where it says nothing.
    """
    if config is not None and config.mcp_force_tool_support:
        return True
    if endpoint_says is not None:
        return endpoint_says
    rule = rule_for(model)
    return rule is None or rule.supported


def checked_support(
    model: str, endpoint: str, *, forced: bool = False, endpoint_says: bool | None = None
) -> ToolSupportChecked:
    """Return whether `model` may be offered tools, and by whose word (R12, D8).

    Args:
        model: Name as the endpoint takes it.
        endpoint: Its base URL without credentials.
        forced: The configuration bypasses every check (R12.4).
        endpoint_says: What the endpoint's own model list says; `None` where it says nothing.
    """
    if forced:
        return ToolSupportChecked(model=model, endpoint=endpoint, supported=True, by="forced")
    if endpoint_says is not None:
        reason = "" if endpoint_says else "the endpoint's model list names no tools among its parameters"
        return ToolSupportChecked(
            model=model, endpoint=endpoint, supported=endpoint_says, by="endpoint", reason=reason
        )
    rule = rule_for(model)
    denied = rule is not None and not rule.supported
    return ToolSupportChecked(
        model=model,
        endpoint=endpoint,
        supported=not denied,
        by="name",
        reason=rule.reason if rule is not None and denied else "",
    )
