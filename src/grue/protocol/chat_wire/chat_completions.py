"""The wire format of OpenAI-style chat completions, `POST {base_url}/chat/completions`."""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import assert_never

from grue import messages as m
from grue.protocol.chat_wire.chat_stream import ChatAssembler
from grue.protocol.chat_wire.failures import Fault, error_words, fault_of_error
from grue.protocol.chat_wire.media import (
    SHOWN_NEXT,
    Shown,
    WireItem,
    data_url,
    label,
    result_text,
    sent,
    user_text,
)
from grue.protocol.chat_wire.profile import WireProfile
from grue.protocol.chat_wire.reply import (
    LENGTH,
    MAX_CALLS,
    CallIds,
    Reply,
    as_object,
    as_text,
    cost,
    facts_of,
    listed,
    no_completion,
    read_call,
    read_object,
    text_of,
    tokens,
    unless_cut,
)
from grue.protocol.chat_wire.strict_schema import strict_format
from grue.protocol.chat_wire.wire_format import (
    Assembler,
    Choice,
    Said,
    WireFormat,
    WireRequest,
    encode_head,
    encode_tail,
    join_body,
    marked_pieces,
    non_blank,
    shortened,
)
from grue.protocol.json_text import strict_object, to_json
from grue.protocol.tools.names import WireNames
from grue.protocol.tools.schemas import openai_tool

_ECHOED = ("reasoning_details", "reasoning_content")
_OF_CALLS = "tool_calls"
"""Key in a reply's echo: the fields of its calls other than name and arguments, by call id."""


class ChatCompletions(WireFormat):
    """The format that most endpoints use, with allowance for their deviations."""

    name = "chat_completions"
    path = "/chat/completions"
    profile = WireProfile(name="generic")
    provider = "openai"
    inputs = frozenset({"image", "audio", "file"})
    own_fields = frozenset({"model", "messages", "tools", "tool_choice", "stream"})
    json_objects = True
    echoes_text = False
    results_carry_media = False
    marks_results = False

    def headers(self, key: str) -> dict[str, str]:
        """Return the header with the key as a bearer token; none for an empty key."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def encode_items(self, items: Sequence[WireItem], marked: Collection[int], profile: WireProfile) -> Said:
        """Encode each item as a separate message."""
        encoded = (_message(item, position in marked, profile) for position, item in enumerate(items))
        return Said(messages=tuple(map(to_json, encoded)))

    def encode_reply(self, reply: Reply, names: WireNames) -> tuple[bytes, ...]:
        """Encode the assistant's message.

        Arguments that are not a JSON object are sent as `{}`, because gateways that parse them would fail.
        """
        text = reply.content if reply.content and not reply.content.isspace() else None
        if not reply.tool_calls:
            if text is None:
                return ()
            echo = {key: reply.echo[key] for key in _ECHOED[:1] if key in reply.echo}
            return (to_json({"role": "assistant", "content": text, **echo}),)
        echo = {key: reply.echo[key] for key in _ECHOED if key in reply.echo}
        beside = as_object(reply.echo.get(_OF_CALLS))
        calls = [_called(call, names) | as_object(beside.get(call.call_id)) for call in reply.tool_calls]
        return (to_json({"role": "assistant", "content": text, "tool_calls": calls, **echo}),)

    def encode_tools(
        self, tools: Iterable[m.ToolDefinition], profile: WireProfile, names: WireNames
    ) -> bytes:
        """Encode a list of tools; an empty list gives empty bytes, because no request may contain it.

        Source: R4.1, P10
        """
        encoded = [
            openai_tool(shortened(tool, profile.max_description_chars), name=names.to_wire(tool.name))
            for tool in tools
        ]
        return to_json(encoded) if encoded else b""

    def body(self, request: WireRequest) -> bytes:
        """Return the body of a request."""
        head = encode_head(_head(request), request.extra, "messages")
        tail: m.JsonObject = {**_answer(request.answer, request.profile), **request.extra}
        if request.stream:
            tail |= {"stream": True, "stream_options": {"include_usage": True}}
        choice = to_json(_choice(request.choice))
        return join_body(head, request.messages, encode_tail(request.tools, choice, tail))

    def decode(
        self, body: bytes, names: WireNames, *, request: int, used_ids: Collection[str] = ()
    ) -> Reply | Fault:
        """Read the body of a reply with HTTP status 200.

        Tool calls are recognised by their presence and not by `finish_reason`, because some endpoints send
        `stop` with tool calls.

        Source: R4.2, P11
        """
        answer = read_object(body)
        if isinstance(answer, Fault):
            return answer
        match answer.get("choices"):
            case [{"error": error}, *_] if error:
                return fault_of_error(error)
            case [{"message": {"tool_calls": list(calls)}}, *_] if len(calls) > MAX_CALLS:
                return no_completion(f"more than {MAX_CALLS} tool calls")
            case [{"message": dict() as message} as choice, *_]:
                return _read(answer, as_object(choice), message, CallIds(request, used_ids), names)
            case _ if answer.get("error"):
                return fault_of_error(answer["error"])
            case _ if error_words(answer.get("base_resp")):
                return fault_of_error(answer["base_resp"])  # MiniMax
            case _:
                return no_completion("no choices")

    def assembler(self) -> Assembler:
        """Return an assembler for a streamed reply."""
        return ChatAssembler()


# --- Requests ---


def _head(request: WireRequest) -> m.JsonObject:
    settings, profile = request.settings, request.profile
    fields: m.JsonObject = {"model": settings.model}
    for name, value in profile.sampled(settings).items():
        fields[profile.max_tokens_field if name == "max_tokens" else name] = value
    effort, budget = settings.reasoning_effort, settings.reasoning_tokens
    if profile.reasoning == "reasoning_effort":
        fields["reasoning_effort"] = effort
    elif profile.reasoning == "reasoning" and (effort or budget):
        # A request may have only one of the two. The number of tokens is more exact, so it is used.
        fields["reasoning"] = {"max_tokens": budget} if budget else {"effort": effort}
    return fields


def _message(item: WireItem, marked: bool, profile: WireProfile) -> m.JsonObject:
    match item:
        case m.SystemText():
            return {"role": profile.system_role, "content": _content(item, marked)}
        case m.UserText():
            images = [_part(each) for each in sent(item, profile)]
            return {"role": "user", "content": _content(user_text(item, profile), marked, images)}
        case m.AssistantText(text=text):
            return {"role": "assistant", "content": non_blank(text)}
        case m.ToolMessage(call_id=call_id):
            text = result_text(item, profile, shown=SHOWN_NEXT)
            return {"role": "tool", "tool_call_id": call_id, "content": non_blank(text)}
        case Shown(results=results):
            return {"role": "user", "content": [part for each in results for part in _parts(each, profile)]}
        case _:
            assert_never(item)


def _content(item: m.SystemText | m.UserText, marked: bool, images: Sequence[m.JsonObject] = ()) -> object:
    pieces = marked_pieces(item, marked)
    if not images and not any(control for _, control in pieces):
        return non_blank(item.text)
    texts = [
        {"type": "text", "text": text, **({"cache_control": control} if control else {})}
        for text, control in pieces
    ]
    return [*images, *texts]


def _parts(result: m.ToolMessage, profile: WireProfile) -> list[m.JsonObject]:
    return [{"type": "text", "text": label(result)}, *map(_part, sent(result, profile))]


def _part(attachment: m.Attachment) -> m.JsonObject:
    match attachment.kind:
        case "image":
            return {"type": "image_url", "image_url": {"url": data_url(attachment)}}
        case "audio":
            format_ = "wav" if attachment.mime == "audio/wav" else "mp3"
            return {"type": "input_audio", "input_audio": {"data": attachment.data, "format": format_}}
        case "file":
            file = {"filename": attachment.name, "file_data": data_url(attachment)}
            return {"type": "file", "file": file}
        case _:
            assert_never(attachment.kind)


def _called(call: m.ToolCall, names: WireNames) -> m.JsonObject:
    arguments = call.arguments if strict_object(call.arguments) is not None else "{}"
    function = {"name": names.to_wire(call.name), "arguments": arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _choice(choice: Choice) -> object:
    if choice.mode == "named":
        return {"type": "function", "function": {"name": choice.name}}
    return choice.mode


def _answer(answer: m.AnswerSchema | None, profile: WireProfile) -> m.JsonObject:
    if answer is None or profile.response_format == "none":
        return {}
    if profile.response_format == "json_object":
        return {"response_format": {"type": "json_object"}}
    return {"response_format": {"type": "json_schema", "json_schema": strict_format(answer)}}


# --- Replies ---


def _read(
    answer: m.JsonObject, choice: m.JsonObject, message: m.JsonObject, ids: CallIds, names: WireNames
) -> Reply:
    raw_calls = [call for call in listed(message.get("tool_calls")) if isinstance(call, dict)]
    calls = tuple(_call(call, ids, names) for call in raw_calls)
    finish = as_text(choice.get("finish_reason"))
    finish = "length" if finish and finish.lower() in LENGTH else finish
    if finish == "length" and raw_calls:
        calls = unless_cut(calls, _function(raw_calls[-1]).get("arguments"))
    beside = {
        call.call_id: {"extra_content": raw["extra_content"]}
        for call, raw in zip(calls, raw_calls, strict=True)
        if raw.get("extra_content")
    }
    echo = {key: message[key] for key in _ECHOED if message.get(key)}
    return Reply(
        content=text_of(message.get("content")) or None,
        tool_calls=calls,
        refusal=text_of(message.get("refusal")) or _refusal_part(message.get("content")),
        reasoning=_reasoning(message),
        finish_reason=finish,
        cut=finish == "length",
        model=as_text(answer.get("model")) or "",
        facts=facts_of(answer),
        usage=_usage(as_object(answer.get("usage"))),
        echo=echo | ({_OF_CALLS: beside} if beside else {}),
        tokens=_tokens(choice),
    )


def _call(call: m.JsonObject, ids: CallIds, names: WireNames) -> m.ToolCall:
    function = _function(call)
    return read_call(call.get("id"), function.get("name"), function.get("arguments"), ids, names)


def _function(call: m.JsonObject) -> m.JsonObject:
    # Some local servers leave out the inner object `function`.
    return as_object(call.get("function")) or call


def _refusal_part(content: object) -> str | None:
    refusals = (as_text(as_object(part).get("refusal")) for part in listed(content))
    return "".join(text for text in refusals if text) or None


def _reasoning(message: m.JsonObject) -> str | None:
    said = text_of(message.get("reasoning_content")) or text_of(message.get("reasoning"))
    return said or None


def _tokens(choice: m.JsonObject) -> m.ReplyTokens | None:
    """Read the tokens of a reply, as vLLM and llama.cpp report them; `None` if not all of them can be read.

    The ids are those that the model wrote. The text does not give them: other tokens can spell the same.
    """
    content = [as_object(entry) for entry in listed(as_object(choice.get("logprobs")).get("content"))]
    ids: list[object] = listed(choice.get("token_ids"))  # vLLM, by `return_token_ids`
    ids = ids or [_token_id(entry) for entry in content]
    values = [entry.get("logprob") for entry in content]
    known = tuple(each for each in ids if type(each) is int and 0 <= each < 2**53)
    logprobs = tuple(float(each) for each in values if isinstance(each, int | float) and math.isfinite(each))
    read = m.ReplyTokens(
        ids=known if len(known) == len(ids) else (),
        # Of a stop word, or of a cut stream, there may be more of the one than of the other.
        logprobs=logprobs if len(logprobs) == len(values) and len(known) in (0, len(values)) else (),
    )
    return read if read.ids or read.logprobs else None


def _token_id(entry: m.JsonObject) -> object:
    token = entry.get("token")
    if isinstance(token, str) and token.startswith("token_id:"):  # vLLM, by `return_tokens_as_token_ids`
        digits = token.removeprefix("token_id:")
        return int(digits) if digits.isdecimal() and len(digits) < 16 else None
    return entry.get("id")  # llama.cpp


def _usage(usage: m.JsonObject) -> m.Usage:
    prompt = as_object(usage.get("prompt_tokens_details"))
    cached = prompt.get("cached_tokens", usage.get("prompt_cache_hit_tokens"))
    reasoning = as_object(usage.get("completion_tokens_details")).get("reasoning_tokens")
    return m.Usage(
        input_tokens=tokens(usage.get("prompt_tokens")),
        output_tokens=tokens(usage.get("completion_tokens")),
        cached_tokens=tokens(cached),
        cache_write_tokens=tokens(prompt.get("cache_write_tokens")),
        reasoning_tokens=tokens(reasoning),
        cost_usd=cost(usage.get("cost")),
    )
