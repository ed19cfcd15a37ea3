"""What an endpoint accepts, and whether its model can call tools: tables, and what is learned from refusals.

To add a provider, add a row to `PROFILES`, its name in OpenTelemetry's conventions for GenAI to `_BY_HOST`,
and the name of its key's environment variable to `OWN_KEYS` in `tool_sessions/server_specs.py`.

To handle another kind of refusal, add an adaptation: a function of the profile and the refusal's text that
returns the profile without the refused feature, or with the form that the endpoint asks for. No adaptation
may reverse another one, or a request could be repeated for ever. (The change to `/responses`, which happens
once, requests reasoning again.)

Whether a model can call tools is known from the setting `mcp_force_tool_support`, the endpoint's model list,
or, as a heuristic, its name. The rows of `NAME_RULES` for models without tools come first. A model that no
row matches is offered tools: if it takes none, the first request fails with the provider's reason.

Source: R4.5, R12.1-3, R12.5, D8, P13
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Protocol, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.errors import MCPError
from grue.protocol.chat_wire.failures import says
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.profile import WireProfile
from grue.protocol.chat_wire.wire_format import as_object, objects
from grue.protocol.json_text import from_json

_BY_HOST = {
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "amazonaws.com": "aws.bedrock",
    "api.anthropic.com": "anthropic",
    "api.cohere.ai": "cohere",
    "api.cohere.com": "cohere",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.moonshot.ai": "moonshot_ai",
    "api.moonshot.cn": "moonshot_ai",
    "api.openai.com": "openai",
    "api.perplexity.ai": "perplexity",
    "api.x.ai": "x_ai",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "ml.cloud.ibm.com": "ibm.watsonx.ai",
    "openai.azure.com": "azure.ai.openai",
    "openrouter.ai": "openrouter",
    "services.ai.azure.com": "azure.ai.inference",
}


@functools.lru_cache(maxsize=64)
def provider_name(base_url: str, wire: str) -> str:
    """Return the provider's OpenTelemetry name; for an unknown host, the name of the wire format's maker."""
    host = (urlsplit(base_url.strip()).hostname or "").rstrip(".")
    # Vertex AI puts the region and a dash before its host: europe-west4-aiplatform.googleapis.com.
    known = (name for end, name in _BY_HOST.items() if host == end or host.endswith((f".{end}", f"-{end}")))
    return next(known, FORMATS[wire].provider)


_OPENAI_SAMPLING = frozenset({"temperature", "top_p", "max_tokens", "stop"})

# The profiles of an endpoint that is not known, such as a local one or a gateway.
GENERIC, GENERIC_RESPONSES, GENERIC_MESSAGES = (
    FORMATS[wire].profile for wire in ("chat_completions", "responses", "messages")
)

# OpenRouter passes tool names on to the provider that it picks, so names have to suit the strictest provider.
OPENROUTER = WireProfile(
    name="openrouter",
    key_variable="OPENROUTER_API_KEY",
    cache_markers=4,
    names="encoded",
    reasoning="reasoning",
    lists_parameters=True,
    reports_cost="always",
    files=True,
)

_like_openai = functools.partial(
    WireProfile, reports_cost="never", names="encoded", sampling=_OPENAI_SAMPLING
)

OPENAI_CHAT = _like_openai(
    name="openai chat completions",
    key_variable="OPENAI_API_KEY",
    max_tokens_field="max_completion_tokens",
    files=True,
    given_cache_markers=0,
    call_ids=r".{1,40}",
)

# The first choice for OpenAI: some of its models accept tools only on /responses.
OPENAI = replace(
    GENERIC_RESPONSES,
    name="openai",
    key_variable="OPENAI_API_KEY",
    reports_cost="never",
    files=True,
    call_ids=r".{1,64}",
)

# Anthropic's newer models refuse sampling settings such as `temperature`.
ANTHROPIC = replace(
    GENERIC_MESSAGES,
    name="anthropic",
    reports_cost="never",
    key_variable="ANTHROPIC_API_KEY",
    sampling=frozenset({"max_tokens", "stop"}),
    files=True,
)

# Anthropic's compatibility endpoint ignores or refuses fields that it does not know.
ANTHROPIC_CHAT = _like_openai(
    name="anthropic chat completions",
    key_variable="ANTHROPIC_API_KEY",
    reasoning="none",
    response_format="none",
    tools_with_forced=True,
)

DEEPSEEK = _like_openai(
    name="deepseek",
    key_variable="DEEPSEEK_API_KEY",
    reasoning="none",
    response_format="json_object",
    images=False,
)

GROQ = _like_openai(
    name="groq", key_variable="GROQ_API_KEY", max_tokens_field="max_completion_tokens", given_cache_markers=0
)

GEMINI = _like_openai(name="gemini", key_variable="GEMINI_API_KEY", audio=True, given_cache_markers=0)

SHORT_CALL_IDS = r"[a-zA-Z0-9]{9}"

MISTRAL = _like_openai(
    name="mistral",
    key_variable="MISTRAL_API_KEY",
    reasoning="none",
    assistant_after_results=True,
    given_cache_markers=0,
    call_ids=SHORT_CALL_IDS,
)

XAI = WireProfile(name="xai", key_variable="XAI_API_KEY", names="encoded", sampling=_OPENAI_SAMPLING)

PROFILES: dict[str, tuple[WireProfile, ...]] = {
    "openrouter.ai": (OPENROUTER,),
    "api.openai.com": (OPENAI, OPENAI_CHAT),
    "api.anthropic.com": (ANTHROPIC, ANTHROPIC_CHAT),
    "api.deepseek.com": (DEEPSEEK,),
    "api.groq.com": (GROQ,),
    "generativelanguage.googleapis.com": (GEMINI,),
    "api.mistral.ai": (MISTRAL,),
    "api.x.ai": (XAI,),
}
"""Profiles by host; subdomains match too. The first is used unless the settings or the URL name a format."""

# OpenAI's reasoning models accept no sampling setting but `max_tokens`, and instructions only as `developer`.
_REASONING = re.compile(r"(?:^|/)(?:o[1-9]|gpt-(?:[5-9]|[1-9]\d))(?![^/]*chat)")
# The first reasoning models accept neither the role system nor developer.
_NO_INSTRUCTIONS = re.compile(r"(?:^|/)o1-(?:mini|preview)")
# OpenAI's models that do not reason. They refuse request fields about reasoning.
_UNREASONING = re.compile(r"(?:^|/)(?:gpt-(?:3\.5|4)|chatgpt-4)")
# Since Opus 4.7 Anthropic's models refuse a token budget for thinking.
_STEADY = re.compile(r"claude-(?:opus-4-[7-9]|[a-z]+-(?:[5-9]|[1-9]\d)(?!\d))")


def wire_of(base_url: str) -> str | None:
    """Return the wire format that a base URL's end, such as `/messages`, names; `None`: it names none."""
    path = urlsplit(base_url.strip()).path.rstrip("/")
    return next((each.name for each in FORMATS.values() if each.ending(path)), None)


def known_profiles(base_url: str) -> tuple[WireProfile, ...]:
    """Return the row of `PROFILES` for the host of a base URL; empty if the host is not known."""
    host = (urlsplit(base_url.strip()).hostname or "").rstrip(".")
    same = (rows for known, rows in PROFILES.items() if host == known or host.endswith(f".{known}"))
    return next(same, ())


def profile_for(base_url: str, model: str = "", wire: str | None = None) -> WireProfile:
    """Return the profile for an endpoint and a model; `wire=None`: the format that the base URL suggests."""
    wire = wire or wire_of(base_url)
    rows = known_profiles(base_url)
    profile = next((row for row in rows if wire in (None, row.wire)), None)
    if profile is None:
        profile = FORMATS[wire or "chat_completions"].profile
        if rows:
            profile = replace(profile, key_variable=rows[0].key_variable)
    return _for_model(profile, model.lower())


def _for_model(profile: WireProfile, model: str) -> WireProfile:
    if profile == ANTHROPIC and _STEADY.search(model):
        return replace(profile, reasoning="adaptive")
    if profile in (OPENAI, OPENAI_CHAT) and _REASONING.search(model):
        profile = replace(profile, system_role="developer", sampling=frozenset({"max_tokens"}))
    if _NO_INSTRUCTIONS.search(model):
        return replace(profile, system_role="user")  # at every endpoint: gateways serve o1-mini too
    if profile == OPENAI and _UNREASONING.search(model):
        return replace(profile, reasoning="none")
    return profile


Adaptation: TypeAlias = Callable[[WireProfile, str], WireProfile | None]
"""Adapts a profile to a refusal's text; `None` or an unchanged profile: there is no reason to adapt."""

MAY_BLAME_ATTACHMENTS = frozenset({400, 413, 415, 422})
"""Statuses of refusals that an attachment in the request may have caused, if nothing shows another cause."""

_SPEAKS_OF_FORM = frozenset({400, 404, 415, 422, 500})
_LENGTH = r"description\W[^\n]{0,80}too long[^\n]{0,80}maximum length ([1-9]\d{1,5})"
_TOOLS = (
    r"must define tools|expects the `?tools=?`?|toolConfig[^\n]{0,40}must be defined"
    r"|tools[^\n]{0,40}(required|must be (provided|included|defined))"
)
_NAME = (
    r"(tool|function)(s|_use|_call)?\b[^\n]{0,80}name[^\n]{0,80}(pattern|invalid|must|match|character|allowed)"
    r"|(pattern|invalid|must|match)[^\n]{0,80}(tool|function)s?\b[^\n]{0,40}name"
)
_CALL_ID = (
    r"tool.?call.?id was|(?:tool_calls\[\d+\]\.|call_|tool_use[._])id\b[^\n]{0,80}(?:too long|pattern|length)"
)
_UNSIGNED = r"missing an? \W?thought_?signature"
_REFUSAL = (
    r"unsupported|(?:not|n.t) support|unknown|unrecognized|unexpected|unavailable"
    r"|not (be )?(permitted|allowed)|deprecated|cannot|can't|does not|no longer|invalid|extra|must|only"
    r"|input should be"
)
_UNKNOWN = (  # refuse a field itself. If only its value is refused, the user has to correct the value
    r"unsupported|not support|unknown|unrecognized|unexpected|not (be )?(permitted|allowed)|deprecated"
    r"|cannot|can't|no longer|extra"
)
_RENAMED = r"max_tokens\W[^\n]{0,120}max_completion_tokens"
_TOO_MANY = (
    r"max(?:imum)?[_ ]?(?:new_|completion_|output_?)?tokens\b[^\n]{0,120}?"
    r"(?:>|at most|less than or equal to|<=|maximum(?: of)?|limit of|\[\d, ?|between \d and|\(inclusive\) to)"
    r"\D{0,40}([1-9]\d{1,6})( \(exclusive)?"
)
_FORMAT = (
    r"response_?format|json_schema|json_object|output_config(?!\.effort)|output[_ ]format"
    r"|structured output|text\.format|json mode|response mime type"
)
_ROLE = r"\brole\b|'(developer|system)'"
_OF_REASONING = {
    "reasoning_effort": r"reasoning[_ ]?effort",
    "reasoning": r"reasoning|encrypted content",
    "thinking": r"thinking|output_config\.effort|effort",
    "adaptive": r"thinking|effort",
}
_UNTHOUGHT = r"must start with a thinking block"  # Anthropic's, if another model has called tools in the turn
_ADAPTIVE = r"thinking\.type\.enabled|use\b[^\n]{0,20}adaptive"


def _refused(noun: str) -> str:
    """Return a pattern for refusals of the input kind `noun` itself, and not only of one format or size."""
    taken = rf"\b(?:{noun})s?\b(?!/|[ _-]?(?:format|type|size|media|mime|dimension))"
    return (
        rf"(?:\bnot|n't|cannot) (?:\w+ )?(?:support|accept|allow)\w*[^\n.]{{0,30}}?{taken}"
        rf"|{taken}[^\n.]{{0,20}} (?:is|are) (?:not|only) (?:currently )?(?:supported|enabled|allowed)"
        rf"|no endpoints found that support {taken}"
        rf"|unknown (?:variant|type|part)\W{{0,4}}{taken}"
        rf"|at most 0 {taken}"
        rf"|(?:invalid|unsupported) (?:value|content type|part type)\W{{0,4}}{taken}"
    )


_OF_MEDIA = {  # by the profile's field
    "images": _refused("image|image_url|input_image|image input|vision"),
    "audio": _refused("audio|input_audio|audio input"),
    "files": _refused("file|input_file|document|pdf"),
}
_TEXT_ONLY = (
    r"not a multi-?modal model|not support multi-?modal|text[ -]only"
    r"|content\b[^\n]{0,40}(?:must be a string|expected a string)(?! that| with)"
)
_STREAM_ONLY = (  # from endpoints that can only stream; any other refusal about streams: it cannot stream
    r"only supports? (?:the )?stream|stream(?:ing)?(?: mode)? (?:only|is (?:required|mandatory)|required)"
    r"|stream\W{1,3}(?:must|has to|should) be (?:set to )?(?:true|enabled)|requires? (?:\S+ )?stream"
    r"|(?:enable|set|use) (?:the )?`?stream(?:ing)?\b|non-stream\w*[^\n]{0,30}not support"
    r"|not support[^\n]{0,30}non-stream|for non-streaming"
)
_STOP = r"\bstop(_sequences)?\b"


def adapt_profile(profile: WireProfile, status: int | None, words: str) -> WireProfile | None:
    """Return the profile adapted to a refusal, or `None` if the refusal gives no reason to change it."""
    if status is None or status not in _SPEAKS_OF_FORM:
        return None
    adapted = (adapt(profile, words) for adapt in _OF_STATUS.get(status, _ADAPTATIONS))
    return next((new for new in adapted if new is not None and new != profile), None)


def _other_wire(profile: WireProfile, words: str) -> WireProfile | None:
    if profile.wire != "chat_completions" or not says(r"v1/responses", words):
        return None
    sampling = profile.sampling & {"temperature", "top_p", "max_tokens"}
    return replace(profile, wire="responses", names="encoded", reasoning="reasoning", sampling=sampling)


def _description(profile: WireProfile, words: str) -> WireProfile | None:
    length = says(_LENGTH, words)
    if length is None or profile.max_description_chars is not None:
        return None
    return replace(profile, max_description_chars=int(length[1]))


def _if_told(
    pattern: str, only: Callable[[WireProfile], bool] = lambda _: True, **change: object
) -> Adaptation:
    def adapt(profile: WireProfile, words: str) -> WireProfile | None:
        return replace(profile, **change) if only(profile) and says(pattern, words) else None

    return adapt


def _max_tokens(profile: WireProfile, words: str) -> WireProfile | None:
    if says(_RENAMED, words):
        return replace(profile, max_tokens_field="max_completion_tokens")
    most = says(_TOO_MANY, words)
    if most is None or profile.max_output_tokens is not None:
        return None
    return replace(profile, max_output_tokens=int(most[1]) - (1 if most[2] else 0))


def _answer_format(profile: WireProfile, words: str) -> WireProfile | None:
    if not says(_FORMAT, words) or not says(_REFUSAL, words):
        return None
    plainer = profile.response_format == "json_schema" and FORMATS[profile.wire].json_objects
    return replace(profile, response_format="json_object" if plainer else "none")


def _system_role(profile: WireProfile, words: str) -> WireProfile | None:
    if not says(_ROLE, words) or not says(_REFUSAL, words) or profile.system_role not in words.lower():
        return None
    return replace(profile, system_role="system" if profile.system_role == "developer" else "user")


def _stream(profile: WireProfile, words: str) -> WireProfile | None:
    if says(_STREAM_ONLY, words):
        return replace(profile, must_stream=True)
    told = says(r"\bstream(ing|s|_options)?\b", words) and says(_REFUSAL, words)
    return replace(profile, streams=False) if told else None


def _sampling(profile: WireProfile, words: str) -> WireProfile | None:
    if not says(_UNKNOWN, words):
        return None
    named = [name for name in sorted(profile.sampling - {"stop"}) if re.search(rf"\b{name}\b", words)]
    named += ["stop"] if "stop" in profile.sampling and says(_STOP, words) else []
    # If the refusal names several fields ("temperature and top_p cannot both be specified"), drop only one.
    return replace(profile, sampling=profile.sampling - {named[-1]}) if named else None


def _reasoning(profile: WireProfile, words: str) -> WireProfile | None:
    if profile.reasoning == "none" or not says(f"{_UNKNOWN}|{_UNTHOUGHT}", words):
        return None
    if profile.reasoning in ("thinking", "adaptive") and says(_ADAPTIVE, words):
        return replace(profile, reasoning="adaptive")
    return replace(profile, reasoning="none") if says(_OF_REASONING[profile.reasoning], words) else None


def _media(profile: WireProfile, words: str) -> WireProfile | None:
    text_only = says(_TEXT_ONLY, words)
    refused = [field for field, pattern in _OF_MEDIA.items() if text_only or says(pattern, words)]
    return replace(profile, **dict.fromkeys(refused, False))


_ADAPTATIONS: tuple[Adaptation, ...] = (  # the most specific adaptations are tried first
    _other_wire,
    _description,
    _if_told(_TOOLS, tools_with_forced=True),
    _if_told(_NAME, lambda profile: profile.names == "learn", names="encoded"),
    _if_told(_CALL_ID, call_ids=SHORT_CALL_IDS),  # 9 letters and digits suit every endpoint
    _if_told(_UNSIGNED, lambda profile: profile.wire == "chat_completions", signs_calls=True),
    _max_tokens,
    _if_told("cache_control", cache_markers=0, given_cache_markers=0),
    _if_told(r"unexpected role 'user' after role 'tool'", assistant_after_results=True),
    _if_told(r"(?:developer|system) instruction is not enabled", system_role="user"),
    _system_role,
    _answer_format,
    _sampling,
    _reasoning,
    _stream,
    _media,
)
_OF_STATUS: dict[int, tuple[Adaptation, ...]] = {404: (_other_wire, _media), 415: (_media,), 500: (_media,)}
"""The adaptations to try after a status; 400 and 422: all. llama.cpp refuses images with a 500."""


class ListedModel(Struct, frozen=True):
    """An entry of an endpoint's model list; `parameters` and `inputs` are `None` if not listed."""

    name: str
    parameters: frozenset[str] | None = None
    inputs: frozenset[str] | None = None

    @property
    def takes_tools(self) -> bool | None:
        """`True` if the model can call tools; `None` if the list does not say."""
        return None if self.parameters is None else "tools" in self.parameters


def read_models(body: bytes) -> dict[str, ListedModel] | None:
    """Return the models of an endpoint's model list, by name; `None`: `body` is no such list."""
    try:
        answer = as_object(from_json(body))
    except (ValueError, MemoryError):
        return None
    # Google's own API and Ollama's have a list `models`, whose entries have a `name`.
    listed = next((each for key in ("data", "models") if isinstance(each := answer.get(key), list)), None)
    if listed is None:
        return None
    models: dict[str, ListedModel] = {}
    for entry in objects(listed):
        inputs = as_object(entry.get("architecture")).get("input_modalities")
        given = (entry.get("supported_parameters"), inputs)
        names = (frozenset(map(str, each)) if isinstance(each, list) else None for each in given)
        if isinstance(name := entry.get("id", entry.get("name")), str):
            models[name] = ListedModel(name, *names)
    return models


def find_model(models: dict[str, ListedModel], model: str) -> ListedModel | None:
    """Return a model's entry; for an unlisted variant (`name:nitro`), that of `name`; `None`: no entry.

    Google lists its models with `models/` before their names.
    """
    names = (model, f"models/{model}", model.rpartition(":")[0])
    return next((models[name] for name in names if name in models), None)


class ToolSupportPolicy(Protocol):
    """An object with the setting `mcp_force_tool_support`, such as `GameConfiguration`."""

    mcp_force_tool_support: bool


class NameRule(Struct, frozen=True):
    """A row of `NAME_RULES`: whether models whose names match `pattern` can call tools, and why."""

    pattern: re.Pattern[str]
    supported: bool
    reason: str


# Match only whole parts of a name: "o1" matches "o1-mini" and "marco-o1", but not "gpt-4o1".
_START, _END = r"(?<![a-z0-9])", r"(?![a-z0-9])"

_DENIED = {
    rf"{_START}o[13]{_END}": "OpenAI's o1 and o3 are reasoning models; o1-mini and o1-preview refuse tools",
    rf"{_START}gpt-5-chat": "gpt-5-chat is the chat product's model and takes no tools",
    r"qwq": "QwQ is a reasoning model; most servers of it return tool calls as prose",
    r"deepseek-r1": "DeepSeek R1 is a reasoning model; most of its endpoints refuse tools",
    r"deepseek-reasoner": "deepseek-reasoner is DeepSeek's reasoning endpoint",
    rf"{_START}r1{_END}": "R1 and what was distilled from it are reasoning models",
    r"(?<!\bnon)-reasoning": "a name with '-reasoning' is that of a reasoning model",
}
_KNOWN = {
    rf"{_START}gpt-(?:3\.5|[4-9]|oss)": "OpenAI; gpt-5.4 and later need what the wire profile adds",
    rf"{_START}o4-mini": "OpenAI's o4-mini takes tools on chat completions",
    r"claude-(?:[3-9]|sonnet|opus|haiku|fable)": "Anthropic, since Claude 3",
    r"gemini": "Google",
    r"(?:mi|mini|magi|dev|code)stral|mixtral": "Mistral",
    r"llama-?(?:3\.[1-9]|4)": "Meta, since Llama 3.1",
    r"command-(?:r|a)": "Cohere",
    r"qwen-?(?:2\.5|[3-9])": "Qwen, since 2.5",
    r"deepseek-(?:chat|v[3-9])": "DeepSeek's chat models, since V3",
    r"grok-[3-9]": "xAI, unless the name says that it reasons",
    r"glm-(?:4\.[5-9]|[5-9])|kimi-k|minimax-m": "Z.ai, Moonshot and MiniMax agent models",
}
NAME_RULES = tuple(
    NameRule(re.compile(pattern), supported, reason)
    for supported, rules in ((False, _DENIED), (True, _KNOWN))
    for pattern, reason in rules.items()
)


@functools.lru_cache(maxsize=64)
def rule_for(model: str) -> NameRule | None:
    """Return the first row of `NAME_RULES` that matches `model`; `None`: no row does."""
    name = model.strip().lower().rstrip("/").rpartition("/")[2]
    return next((rule for rule in NAME_RULES if rule.pattern.search(name)), None)


def supports_tool_calling(
    model: str, config: ToolSupportPolicy | None = None, endpoint_says: bool | None = None
) -> bool:
    """Return whether `model` may be offered tools: by `config`, else `endpoint_says`, else its name."""
    forced = config is not None and config.mcp_force_tool_support
    return checked_support(model, "", forced=forced, endpoint_says=endpoint_says).supported


def checked_support(
    model: str, endpoint: str, *, forced: bool = False, endpoint_says: bool | None = None
) -> m.ToolSupportChecked:
    """Return whether `model` may be offered tools, and how that is known (`ToolSupportChecked.by`)."""
    checked = functools.partial(m.ToolSupportChecked, model=model, endpoint=endpoint)
    if forced:
        return checked(supported=True, by="forced")
    if endpoint_says is not None:
        reason = "" if endpoint_says else "the endpoint's model list names no tools among its parameters"
        return checked(supported=endpoint_says, by="endpoint", reason=reason)
    rule = rule_for(model)
    denied = rule is not None and not rule.supported
    return checked(supported=not denied, by="name", reason=rule.reason if rule and denied else "")


def tool_support_error(model: str, reason: str = "") -> MCPError:
    """Return the error for a turn that has tools, but a model that cannot call them."""
    why = f"\nWhy: {reason}." if reason else ""
    return MCPError(
        f"Model '{model}' does not support tool calling.\n"
        "Please either:\n"
        "  1. Set mcp.enabled = false in pyproject.toml, or\n"
        f"  2. Use a compatible model (gpt-4, claude-3, etc.){why}"
    )
