"""What an endpoint takes, as data: a new provider is a new row (`profiles.py`), not a new branch."""

from collections.abc import Collection
from typing import Literal

import msgspec
from msgspec import Struct

from grue.messages import JsonObject
from grue.protocol.tool_names import NameStyle

WireName = Literal["chat_completions", "responses", "messages"]
"""The wire formats: OpenAI's chat completions, which most endpoints speak, its responses, and Anthropic's."""

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model is to think before it answers."""

SAMPLING = frozenset({"temperature", "top_p", "top_k", "min_p", "max_tokens", "stop"})


class ModelSettings(Struct, frozen=True, kw_only=True):
    """Which model, and how it samples; a setting that is `None` or empty is left to the endpoint.

    Attributes:
        model: As the endpoint names it.
        max_tokens: Longest reply, thinking included.
        reasoning_effort: How much to think.
        reasoning_tokens: Tokens to think with, for endpoints that count them.
        extra_body: Further fields of each request, as they are.
    """

    model: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    reasoning_effort: Effort | None = None
    reasoning_tokens: int | None = None
    extra_body: JsonObject = msgspec.field(default_factory=dict)


class WireProfile(Struct, frozen=True, kw_only=True):
    """How to talk to a kind of endpoint.

    Attributes:
        name: For people.
        wire: The format it speaks.
        key_variable: The environment variable that its users keep the key in.
        cache_markers: How many `cache_control` markers a request is given; 0: none.
        given_cache_markers: How many are passed on that a caller has set itself, in place of those; 0: it is
            known to refuse the field. The format `responses` has no place for them.
        names: Tool names go out `canonical` or `encoded`; `learn`: canonical until the endpoint complains.
        sampling: Which sampling fields it takes; others are left out.
        max_tokens_field: What it calls the limit on a reply's length, where the format leaves a choice.
        default_max_tokens: The limit that is sent where none is set; `None`: none.
        max_output_tokens: The largest limit that it takes; `None`: not known.
        system_role: Who instructions come from, where the format leaves a choice.
        reasoning: How it is told to think: a field `reasoning_effort`, an object `reasoning`, Anthropic's
            `thinking`, of which newer models take `adaptive` only, without a budget; `none`: it is not.
        response_format: How the shape of an answer is asked for. Where its schema is not, the schema is put
            into words for the model.
        tools_with_forced: It refuses history with tool calls in a request without `tools`: there they go
            along with `tool_choice: "none"`. The one exception to R5.8.
        assistant_after_results: It refuses a user's message right after the results of tools: a word of the
            assistant's goes in between.
        max_description_chars: Longest description of a tool; `None`: no limit.
        streams: It can send a reply as events.
        lists_parameters: Its model list says of each model which parameters it takes, `tools` among them, and
            which of the following.
        images: It takes images. So does an endpoint that nothing is known of, until it refuses one.
        audio: It takes WAV and MP3. Only chat completions have a place for them.
        files: It takes PDF files.
    """

    name: str
    wire: WireName = "chat_completions"
    key_variable: str = "GRUE_API_KEY"
    cache_markers: int = 0
    given_cache_markers: int = 4
    names: Literal["canonical", "encoded", "learn"] = "learn"
    sampling: frozenset[str] = SAMPLING
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    default_max_tokens: int | None = None
    max_output_tokens: int | None = None
    system_role: Literal["system", "developer", "user"] = "system"
    reasoning: Literal["reasoning_effort", "reasoning", "thinking", "adaptive", "none"] = "reasoning_effort"
    response_format: Literal["json_schema", "json_object", "none"] = "json_schema"
    tools_with_forced: bool = False
    assistant_after_results: bool = False
    max_description_chars: int | None = None
    streams: bool = True
    lists_parameters: bool = False
    images: bool = True
    audio: bool = False
    files: bool = False

    @property
    def name_style(self) -> NameStyle:
        """How names go out now."""
        return "encoded" if self.names == "encoded" else "canonical"

    def limit(self, settings: ModelSettings) -> int | None:
        """Return the limit on a reply's length that a request carries; `None`: none."""
        wanted = settings.max_tokens
        if not wanted and self.default_max_tokens is not None:
            # A limit counts the thoughts too.
            wanted = self.default_max_tokens + (settings.reasoning_tokens or 0)
        if "max_tokens" not in self.sampling:
            return None
        if wanted is None or self.max_output_tokens is None:
            return wanted
        return min(wanted, self.max_output_tokens)

    def sampled(self, settings: ModelSettings) -> JsonObject:
        """Return the sampling fields that the endpoint takes and the settings set, by our names."""
        fields: JsonObject = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "top_k": settings.top_k,
            "min_p": settings.min_p,
            "max_tokens": self.limit(settings),
            "stop": list(settings.stop) or None,
        }
        return {name: value for name, value in fields.items() if value is not None and name in self.sampling}


def with_inputs(profile: WireProfile, inputs: Collection[str]) -> WireProfile:
    """Return the profile for a model of which its endpoint lists what it takes beside text."""
    return msgspec.structs.replace(
        profile, images="image" in inputs, audio="audio" in inputs, files="file" in inputs
    )
