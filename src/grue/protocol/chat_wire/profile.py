"""A model's settings and an endpoint's capabilities, as data, and how the endpoint's address is shown."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue.policies import MediaKind

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much the model is to think before it answers."""

TextToolCalls = Literal["ask", "run", "keep"]  # see `ModelSettings.text_tool_calls`
SAMPLING = frozenset({"temperature", "top_p", "top_k", "min_p", "max_tokens", "stop"})

_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|0\.0\.0\.0|::1?")


class ModelSettings(Struct, frozen=True, kw_only=True):
    """The model and its sampling; the endpoint chooses the value of a setting that is `None` or empty.

    Attributes:
        model: The name that the endpoint uses.
        max_tokens: Longest reply in tokens, thinking included; `None`: `WireProfile.default_max_tokens`.
        reasoning_tokens: The most tokens for thinking, for endpoints that accept such a limit.
        extra_body: Further fields of each request; they may also replace most of the fields that grue sets.
        text_tool_calls: What happens if the model writes a tool call as text. `ask`: the model is asked, once
            a turn, to make a real call. `run`: the call is made if it is complete and exactly in a known
            form, else as `ask`. `keep`: the call stays in the text.
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
    extra_body: dict[str, object] = msgspec.field(default_factory=dict)
    text_tool_calls: TextToolCalls = "ask"


class WireProfile(Struct, frozen=True, kw_only=True):
    """The capabilities and formats of one kind of endpoint.

    Attributes:
        name: A name to show to people.
        wire: The name of the wire format, one of `WireName`.
        key_variable: The environment variable that usually holds the API key.
        cache_markers: The most `cache_control` markers of its own that grue puts into a request; 0 for none.
        given_cache_markers: The most markers of the host that are sent, each in place of one of grue's own; 0
            if the endpoint is known to refuse `cache_control`. The format `responses` has no markers.
        names: How tool names are sent. `canonical`: `server.tool`; `encoded`: only letters, digits, `_` and
            `-`; `learn`: `server.tool` until the endpoint refuses a name, and then encoded.
        sampling: The sampling fields that the endpoint accepts; others are left out.
        max_tokens_field: The field that limits the reply's tokens, in formats with several such fields.
        default_max_tokens: The limit on the reply's tokens if the settings have none; `reasoning_tokens` are
            added. `None`: no limit.
        max_output_tokens: The largest limit that the endpoint accepts; `None` if that is not known.
        system_role: The role of instructions, in formats that know several roles for them.
        reasoning: How to request thinking: the field `reasoning_effort`, the object `reasoning`, Anthropic's
            `thinking`, or its newer models' `adaptive` thinking without a budget; `none` sends nothing.
        response_format: How to request an answer of a given schema. With another value than `json_schema`,
            the schema is sent to the model as text.
        ignores_schema: The endpoint has accepted and ignored a schema, so it is also sent as text.
        tools_with_forced: The endpoint refuses a history with tool calls in a request without `tools`. So a
            request with such a history always lists tools, if need be with `tool_choice: "none"`.
        assistant_after_results: An assistant's message must stand between tool results and a user message.
        max_description_chars: Longest description of a tool; `None` for no limit.
        call_ids: A pattern that the ids of tool calls must match; others are replaced, except in replies with
            an `echo` of this model. Empty: any id will do.
        signs_calls: The endpoint refuses a tool call without its signature. If a reply has no `echo` of this
            model, its first call gets a text that Google accepts instead. Only in chat completions.
        streams: Whether the endpoint can stream a reply. With `must_stream`, it cannot reply otherwise.
        lists_parameters: Whether the endpoint's model list names each model's parameters and kinds of input.
        reports_cost: Whether replies state their cost; `unknown`: the first reply will show it.
        images: Whether the endpoint accepts images. `True` for an unknown endpoint, until it refuses one.
        audio: Whether the endpoint accepts WAV and MP3. Only chat completions can send them.
        files: Whether the endpoint accepts PDF files.

    Source: R5.8
    """

    name: str
    wire: str = "chat_completions"
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
    ignores_schema: bool = False
    tools_with_forced: bool = False
    assistant_after_results: bool = False
    max_description_chars: int | None = None
    call_ids: str = ""
    signs_calls: bool = False
    streams: bool = True
    must_stream: bool = False
    lists_parameters: bool = False
    reports_cost: Literal["always", "never", "unknown"] = "unknown"
    images: bool = True
    audio: bool = False
    files: bool = False

    @property
    def inputs(self) -> frozenset[MediaKind]:
        """The kinds of input besides text that the endpoint accepts."""
        kinds: dict[MediaKind, bool] = {"image": self.images, "audio": self.audio, "file": self.files}
        return frozenset(kind for kind, accepted in kinds.items() if accepted)

    @property
    def states_schema(self) -> bool:
        """`True`: all requests state the answer's schema as text. `False`: only requests with tools do."""
        return self.ignores_schema or self.response_format != "json_schema"

    @property
    def name_style(self) -> Literal["canonical", "encoded"]:
        """How requests write tool names."""
        return "encoded" if self.names == "encoded" else "canonical"

    def limit(self, settings: ModelSettings) -> int | None:
        """Return the limit on the reply's tokens that a request sends; `None`: it sends no limit."""
        if "max_tokens" not in self.sampling:
            return None
        wanted = settings.max_tokens
        if not wanted and self.default_max_tokens is not None:
            # The limit includes the tokens for thinking.
            wanted = self.default_max_tokens + (settings.reasoning_tokens or 0)
        return wanted if wanted is None else min(wanted, self.max_output_tokens or wanted)

    def sampled(self, settings: ModelSettings) -> dict[str, object]:
        """Return the sampling fields that have a value and that the endpoint accepts, by name."""
        fields: dict[str, object] = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "top_k": settings.top_k,
            "min_p": settings.min_p,
            "max_tokens": self.limit(settings),
            "stop": list(settings.stop) or None,
        }
        return {name: value for name, value in fields.items() if value is not None and name in self.sampling}


def left_out(profile: WireProfile, settings: ModelSettings) -> frozenset[str]:
    """Return the names of the sampling settings that are set, but not accepted by the endpoint."""
    return frozenset(
        name for name in SAMPLING - profile.sampling if getattr(settings, name) not in (None, ())
    )


def with_inputs(profile: WireProfile, inputs: Collection[str]) -> WireProfile:
    """Return the profile for an endpoint that accepts only these inputs besides text."""
    return replace(profile, images="image" in inputs, audio="audio" in inputs, files="file" in inputs)


def changed_fields(before: WireProfile, now: WireProfile) -> dict[str, Any]:
    """Return the fields of `now` that differ from those of `before`, as JSON."""
    known = msgspec.to_builtins(now, order="deterministic")
    return {name: known[name] for name in known if getattr(now, name) != getattr(before, name)}


def with_fields(profile: WireProfile, fields: Mapping[str, Any]) -> WireProfile:
    """Return the profile with the values of `fields` (JSON); unchanged if one of them is not valid."""
    if not fields:
        return profile
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.convert({**msgspec.to_builtins(profile), **fields}, WireProfile)
    return profile


def shown_endpoint(base_url: str) -> str:
    """Return a base URL without user, password and query, for people; a remark if it cannot be read."""
    try:
        url = urlsplit(base_url.strip())
    except ValueError:
        return "(unreadable base URL)"
    host = url.netloc.rpartition("@")[2]
    return f"{url.scheme}://{host}{url.path.rstrip('/')}"


def is_loopback(base_url: str) -> bool:
    """Return whether a URL's host is `localhost`, or an address such as 127.0.0.1 for this machine."""
    return _LOOPBACK.fullmatch(urlsplit(base_url).hostname or "") is not None
