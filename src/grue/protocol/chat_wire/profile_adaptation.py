"""Adapt the profile of an endpoint after it refused a request.

To handle another kind of refusal, add an adaptation. Each adaptation recognises one in the provider's text
and removes what was refused from the profile. A profile can only lose features, so a request is repeated a
bounded number of times. The adapted profile is kept for the run.
"""

import re
from collections.abc import Callable
from typing import TypeAlias

from msgspec.structs import replace

from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.profile import WireProfile

Adaptation: TypeAlias = Callable[[WireProfile, str], WireProfile | None]
"""Returns the adapted profile, or `None` if the text gives no reason to change it."""

_BLAMES_CONTENT = frozenset({400, 413, 415, 422})
_SPEAKS_OF_FORM = frozenset({400, 404, 415, 422, 500})

_LENGTH = re.compile(
    r"description\W[^\n]{0,80}too long[^\n]{0,80}maximum length ([1-9]\d{1,5})", re.IGNORECASE
)
_TOOLS = re.compile(
    r"must define tools|expects the `?tools=?`?|toolConfig[^\n]{0,40}must be defined"
    r"|tools[^\n]{0,40}(required|must be (provided|included|defined))",
    re.IGNORECASE,
)
_NAME = re.compile(
    r"(tool|function)(s|_use|_call)?\b[^\n]{0,80}name[^\n]{0,80}(pattern|invalid|must|match|character|allowed)"
    r"|(pattern|invalid|must|match)[^\n]{0,80}(tool|function)s?\b[^\n]{0,40}name",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"unsupported|(?:not|n.t) support|unknown|unrecognized|unexpected|unavailable"
    r"|not (be )?(permitted|allowed)|deprecated|cannot|can't|does not|no longer|invalid|extra|must|only",
    re.IGNORECASE,
)
_UNKNOWN = re.compile(
    r"unsupported|not support|unknown|unrecognized|unexpected|not (be )?(permitted|allowed)|deprecated"
    r"|cannot|can't|no longer|extra",
    re.IGNORECASE,
)
"""Words that refuse a field itself. A field whose value is out of range stays: the user has to correct it."""

_RENAMED = re.compile(r"max_tokens\W[^\n]{0,120}max_completion_tokens", re.IGNORECASE)
_TOO_MANY = re.compile(
    r"max(?:imum)?_?(?:completion_|output_)?tokens\b[^\n]{0,120}?"
    r"(?:>|at most|less than or equal to|<=|maximum(?: of)?)\D{0,40}([1-9]\d{1,6})",
    re.IGNORECASE,
)
_FORMAT = re.compile(
    r"response_?format|json_schema|json_object|output_config(?!\.effort)|output[_ ]format"
    r"|structured output|text\.format",
    re.IGNORECASE,
)
_ROLE = re.compile(r"\brole\b|'(developer|system)'", re.IGNORECASE)
_ORDER = re.compile(r"unexpected role 'user' after role 'tool'", re.IGNORECASE)
_ELSEWHERE = re.compile(r"v1/responses", re.IGNORECASE)
_REASONING = {
    "reasoning_effort": re.compile(r"reasoning[_ ]?effort", re.IGNORECASE),
    "reasoning": re.compile(r"reasoning|encrypted content", re.IGNORECASE),
    "thinking": re.compile(r"thinking|output_config\.effort|effort", re.IGNORECASE),
    "adaptive": re.compile(r"thinking|effort", re.IGNORECASE),
}
_ADAPTIVE = re.compile(r"thinking\.type\.enabled|use\b[^\n]{0,20}adaptive", re.IGNORECASE)


def _refused(noun: str) -> re.Pattern[str]:
    """Return a pattern for words that refuse a field altogether, and not only this value."""
    taken = rf"\b(?:{noun})s?\b(?!/|[ _-]?(?:format|type|size|media|mime|dimension))"
    return re.compile(
        rf"(?:\bnot|n't|cannot) (?:\w+ )?(?:support|accept|allow)\w*[^\n.]{{0,30}}?{taken}"
        rf"|{taken}[^\n.]{{0,20}} (?:is|are) (?:not|only) (?:currently )?(?:supported|enabled|allowed)"
        rf"|no endpoints found that support {taken}"
        rf"|unknown (?:variant|type|part)\W{{0,4}}{taken}"
        rf"|at most 0 {taken}"
        rf"|(?:invalid|unsupported) (?:value|content type|part type)\W{{0,4}}{taken}",
        re.IGNORECASE,
    )


_NO_IMAGES = _refused("image|image_url|input_image|image input|vision")
_NO_AUDIO = _refused("audio|input_audio|audio input")
_NO_FILES = _refused("file|input_file|document|pdf")
_TEXT_ONLY = re.compile(
    r"not a multi-?modal model|not support multi-?modal|text[ -]only"
    r"|content\b[^\n]{0,40}(?:must be a string|expected a string)(?! that| with)",
    re.IGNORECASE,
)
_STREAM_ONLY = re.compile(
    r"only supports? (?:the )?stream|stream(?:ing)?(?: mode)? (?:only|is (?:required|mandatory)|required)"
    r"|stream\W{1,3}(?:must|has to|should) be (?:set to )?(?:true|enabled)|requires? (?:\S+ )?stream"
    r"|(?:enable|set|use) (?:the )?`?stream(?:ing)?\b|non-stream\w*[^\n]{0,30}not support"
    r"|not support[^\n]{0,30}non-stream|for non-streaming",
    re.IGNORECASE,
)
"""A refusal that is mended by streaming, where other words about streams are mended without it."""

_STOP = re.compile(r"\bstop(_sequences)?\b", re.IGNORECASE)


def adapt_profile(profile: WireProfile, status: int | None, words: str) -> WireProfile | None:
    """Return the profile adapted to a refusal, or `None` if the refusal gives no reason to change it.

    Args:
        profile: What the refused request followed.
        status: Its HTTP status. 400 and 422 mean the request's form, 404 the address or the model, 415 and
            llama.cpp's 500 the images.
        words: The provider's message.
    """
    if status not in _SPEAKS_OF_FORM:
        return None
    adaptations = _OF_STATUS.get(status, _ADAPTATIONS) if status is not None else _ADAPTATIONS
    adapted = (adapt(profile, words) for adapt in adaptations)
    return next((new for new in adapted if new is not None and new != profile), None)


def may_blame_attachments(status: int | None) -> bool:
    """Return whether a refusal with no known cause may be due to images or files in the request."""
    return status in _BLAMES_CONTENT


def _other_wire(profile: WireProfile, words: str) -> WireProfile | None:
    if profile.wire != "chat_completions" or not _ELSEWHERE.search(words):
        return None
    sampling = profile.sampling & {"temperature", "top_p", "max_tokens"}
    return replace(profile, wire="responses", names="encoded", reasoning="reasoning", sampling=sampling)


def _description(profile: WireProfile, words: str) -> WireProfile | None:
    length = _LENGTH.search(words)
    if length is None or profile.max_description_chars is not None:
        return None
    return replace(profile, max_description_chars=int(length[1]))


def _tools_with_forced(profile: WireProfile, words: str) -> WireProfile | None:
    return replace(profile, tools_with_forced=True) if _TOOLS.search(words) else None


def _names(profile: WireProfile, words: str) -> WireProfile | None:
    return replace(profile, names="encoded") if profile.names == "learn" and _NAME.search(words) else None


def _max_tokens(profile: WireProfile, words: str) -> WireProfile | None:
    if _RENAMED.search(words):
        return replace(profile, max_tokens_field="max_completion_tokens")
    most = _TOO_MANY.search(words)
    if most is None or profile.max_output_tokens is not None:
        return None
    return replace(profile, max_output_tokens=int(most[1]))


def _cache_markers(profile: WireProfile, words: str) -> WireProfile | None:
    if "cache_control" not in words:
        return None
    return replace(profile, cache_markers=0, given_cache_markers=0)


def _answer_format(profile: WireProfile, words: str) -> WireProfile | None:
    if not _FORMAT.search(words) or not _REFUSAL.search(words):
        return None
    plainer = profile.response_format == "json_schema" and FORMATS[profile.wire].json_objects
    return replace(profile, response_format="json_object" if plainer else "none")


def _system_role(profile: WireProfile, words: str) -> WireProfile | None:
    if not _ROLE.search(words) or not _REFUSAL.search(words) or profile.system_role not in words:
        return None
    return replace(profile, system_role="system" if profile.system_role == "developer" else "user")


def _order(profile: WireProfile, words: str) -> WireProfile | None:
    return replace(profile, assistant_after_results=True) if _ORDER.search(words) else None


def _stream(profile: WireProfile, words: str) -> WireProfile | None:
    if _STREAM_ONLY.search(words):
        return replace(profile, must_stream=True)
    told = re.search(r"\bstream(ing|s|_options)?\b", words, re.IGNORECASE) and _REFUSAL.search(words)
    return replace(profile, streams=False) if told else None


def _sampling(profile: WireProfile, words: str) -> WireProfile | None:
    if not _UNKNOWN.search(words):
        return None
    named = [name for name in sorted(profile.sampling - {"stop"}) if re.search(rf"\b{name}\b", words)]
    named += ["stop"] if "stop" in profile.sampling and _STOP.search(words) else []
    # "temperature and top_p cannot both be specified": the last of those named is let go.
    return replace(profile, sampling=profile.sampling - {named[-1]}) if named else None


def _reasoning(profile: WireProfile, words: str) -> WireProfile | None:
    if profile.reasoning == "none" or not _UNKNOWN.search(words):
        return None
    if profile.reasoning in ("thinking", "adaptive") and _ADAPTIVE.search(words):
        return replace(profile, reasoning="adaptive")
    return replace(profile, reasoning="none") if _REASONING[profile.reasoning].search(words) else None


def _media(profile: WireProfile, words: str) -> WireProfile | None:
    if _TEXT_ONLY.search(words):
        return replace(profile, images=False, audio=False, files=False)
    return replace(
        profile,
        images=profile.images and not _NO_IMAGES.search(words),
        audio=profile.audio and not _NO_AUDIO.search(words),
        files=profile.files and not _NO_FILES.search(words),
    )


_ADAPTATIONS: tuple[Adaptation, ...] = (
    _other_wire,
    _description,
    _tools_with_forced,
    _names,
    _max_tokens,
    _cache_markers,
    _order,
    _system_role,
    _answer_format,
    _sampling,
    _reasoning,
    _stream,
    _media,
)
"""The adaptations in the order in which they are tried, the most specific first."""

_OF_STATUS: dict[int, tuple[Adaptation, ...]] = {
    404: (_other_wire, _media),
    415: (_media,),
    500: (_media,),
}
"""The adaptations to try with these statuses; with any other status, all of them."""
