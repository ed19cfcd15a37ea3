"""Decide whether a model can call tools.

To add a model family, add a row to the table. There are three sources, in this order: the setting
`mcp_force_tool_support`, the model list of the endpoint, and the table of names below, which is only a
heuristic.

The table is matched against the last segment of the model's path in lower case, so that the vendor's name
does not matter. Rows are tried from top to bottom; the rows for models without tools come before those for
models with tools.

The rows for models without tools cover the models of the required list, and whole families where the list has
a prefix, whatever the vendor. Some models of those families do call tools, such as the reasoning variants of
Grok and Ministral. For these the endpoint's model list or the setting overrides the table. A model that no
row matches is taken to call tools: if it does not, the first request fails with the provider's reason.

The model list of an endpoint is the reply to `GET {base_url}/models`.

Source: R4.5, R12, P13
"""

import functools
import re
from typing import Protocol

from msgspec import Struct

from grue import messages as m
from grue.protocol.chat_wire.reply import as_object, listed
from grue.protocol.json_text import from_json


class ListedModel(Struct, frozen=True):
    """An entry of an endpoint's model list.

    Attributes:
        name: The model's name.
        parameters: The request parameters that the model accepts, in OpenRouter's terms; `None` if not
            listed.
        inputs: Its kinds of input besides text (`image`, `audio`, `file`); `None` if not listed.
    """

    name: str
    parameters: frozenset[str] | None = None
    inputs: frozenset[str] | None = None

    @property
    def takes_tools(self) -> bool | None:
        """Whether the model can call tools; `None` if the list does not say."""
        return None if self.parameters is None else "tools" in self.parameters


def read_models(body: bytes) -> dict[str, ListedModel] | None:
    """Return the models of a list by name, or `None` if the body is not a list of models."""
    try:
        answer = as_object(from_json(body))
    except (ValueError, MemoryError):
        return None
    if not isinstance(answer.get("data"), list):
        return None
    models: dict[str, ListedModel] = {}
    for entry in map(as_object, listed(answer["data"])):
        name, given = entry.get("id"), entry.get("supported_parameters")
        inputs = as_object(entry.get("architecture")).get("input_modalities")
        if isinstance(name, str):
            models[name] = ListedModel(name, _names(given), _names(inputs))
    return models


def _names(given: object) -> frozenset[str] | None:
    return frozenset(map(str, given)) if isinstance(given, list) else None


def find_model(models: dict[str, ListedModel], model: str) -> ListedModel | None:
    """Return the entry for a model; a variant (`vendor/name:nitro`) uses the entry without the suffix."""
    return models.get(model) or models.get(model.rpartition(":")[0])


class ToolSupportPolicy(Protocol):
    """The setting that is read here; `GameConfiguration` has it."""

    mcp_force_tool_support: bool


class NameRule(Struct, frozen=True):
    """A row of the table: models whose name matches `pattern` can or cannot call tools, for this `reason`."""

    pattern: re.Pattern[str]
    supported: bool
    reason: str


def _denied(pattern: str, reason: str) -> NameRule:
    return NameRule(re.compile(pattern), supported=False, reason=reason)


def _known(pattern: str, reason: str) -> NameRule:
    return NameRule(re.compile(pattern), supported=True, reason=reason)


# Match only whole parts of a name: "o1" matches "o1-mini" and "marco-o1", but not "gpt-4o1".
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
        # "non-reasoning" means the opposite.
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


@functools.lru_cache(maxsize=64)
def rule_for(model: str) -> NameRule | None:
    """Return the first row that matches `model`, or `None` if none does.

    Source: R12.1-3
    """
    name = model.strip().lower().rstrip("/").rpartition("/")[2]
    return next((rule for rule in NAME_RULES if rule.pattern.search(name)), None)


def supports_tool_calling(
    model: str, config: ToolSupportPolicy | None = None, endpoint_says: bool | None = None
) -> bool:
    """Return whether `model` may be offered tools.

    Args:
        model: The name as the endpoint takes it, with or without a vendor's path ("openai/gpt-4o").
        config: If its `mcp_force_tool_support` is set, the answer is yes without a check; default: not set.
        endpoint_says: What the endpoint's model list says; `None` (the default) if it says nothing. It takes
            precedence over the name.

    Source: R12, P13
    """
    if config is not None and config.mcp_force_tool_support:
        return True
    if endpoint_says is not None:
        return endpoint_says
    rule = rule_for(model)
    return rule is None or rule.supported


def checked_support(
    model: str, endpoint: str, *, forced: bool = False, endpoint_says: bool | None = None
) -> m.ToolSupportChecked:
    """Return whether `model` may be offered tools, and which source decided that.

    Args:
        model: The name as the endpoint takes it.
        endpoint: The base URL without credentials.
        forced: Whether the configuration skips every check.
        endpoint_says: What the endpoint's model list says; `None` if it says nothing.

    Source: R12, D8
    """
    if forced:
        return m.ToolSupportChecked(model=model, endpoint=endpoint, supported=True, by="forced")
    if endpoint_says is not None:
        reason = "" if endpoint_says else "the endpoint's model list names no tools among its parameters"
        return m.ToolSupportChecked(
            model=model, endpoint=endpoint, supported=endpoint_says, by="endpoint", reason=reason
        )
    rule = rule_for(model)
    denied = rule is not None and not rule.supported
    return m.ToolSupportChecked(
        model=model,
        endpoint=endpoint,
        supported=not denied,
        by="name",
        reason=rule.reason if rule is not None and denied else "",
    )
