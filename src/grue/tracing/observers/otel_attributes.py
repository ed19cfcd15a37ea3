"""The names and attributes of spans, by OpenTelemetry's semantic conventions for GenAI and MCP.

Attributes that a sampler of spans reads, such as the model, are set when a span begins, unless the trace
names them only later. `tests/support/genai_conventions.py` has the conventions' tables of attributes.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias, assert_never
from urllib.parse import urlsplit

import msgspec

from grue import messages as m
from grue.protocol.turn.prices import Spent
from grue.tracing.facts import EpisodeStarted, said_by
from grue.tracing.message_words import Verdict
from grue.tracing.observers import spans
from grue.tracing.observers.span_sink import (
    CONTENT_LIMIT,
    DETAIL_LIMIT,
    Capture,
    chat_messages,
    clipped_text,
    json_text,
    shown_history,
)


def said(items: tuple[m.ConversationItem | m.AssistantReply, ...], *, capture: bool) -> dict[str, Any]:
    """Return the span attributes for `items`; without `capture`, only the length of their JSON."""
    if not capture:
        return {"grue.input_chars": len(json_text(chat_messages(items)))}
    instructions = [_text(item.text) for item in items if isinstance(item, m.SystemText)]
    rest = [_message(item) for item in items if not isinstance(item, m.SystemText)]
    return {
        "gen_ai.system_instructions": json_text(instructions) if instructions else None,
        "gen_ai.input.messages": json_text(rest),
    }


def replied(reply: m.CompletionReceived) -> str:
    """Return a reply of the model as JSON for `gen_ai.output.messages`: a list of one message."""
    parts: list[m.JsonObject] = []
    if reply.reasoning:
        parts.append({"type": "reasoning", "content": clipped_text(reply.reasoning)})
    if text := reply.content or reply.refusal:
        parts.append(_text(text))
    parts += map(_call, reply.tool_calls)
    return _output(parts, reply.finish_reason or "stop")


def answered(text: str) -> str:
    """Return the answer of a turn or an episode as JSON for `gen_ai.output.messages`: one message."""
    return _output([_text(text)], "stop")


def tool_definitions(tools: Sequence[m.ToolDefinition]) -> str | None:
    """Return the offered tools as JSON, only their names if the JSON gets too long; `None` without tools."""
    named = [{"type": "function", "name": tool.name} for tool in tools]
    full = [
        {**name, "description": tool.description, "parameters": tool.input_schema}
        for name, tool in zip(named, tools, strict=True)
    ]
    text = json_text(full)
    if len(text) > CONTENT_LIMIT:
        text = json_text(named)
    return text if named else None


def _output(parts: list[m.JsonObject], finish_reason: str) -> str:
    return json_text([{"role": "assistant", "parts": parts, "finish_reason": finish_reason}])


def _message(item: m.ConversationItem | m.AssistantReply) -> m.JsonObject:
    match item:
        case m.ToolMessage(call_id=call_id, content=content, attachments=media):
            answer = {"type": "tool_call_response", "id": call_id, "response": clipped_text(content)}
            return {"role": "tool", "parts": [answer, *map(_medium, media)]}
        case m.AssistantReply(content=content, tool_calls=calls):
            texts = [_text(content)] if content else []
            return {"role": "assistant", "parts": [*texts, *map(_call, calls)]}
        case m.UserText(text=text, attachments=media):
            return {"role": "user", "parts": [_text(text), *map(_medium, media)]}
        case _:
            return {"role": "assistant", "parts": [_text(item.text)]}


def _text(text: str) -> m.JsonObject:
    return {"type": "text", "content": clipped_text(text)}


def _call(call: m.ToolCall) -> m.JsonObject:
    arguments: object = clipped_text(call.arguments)
    if len(call.arguments) <= CONTENT_LIMIT:
        with suppress(msgspec.DecodeError, RecursionError):
            arguments = msgspec.json.decode(call.arguments)
    return {"type": "tool_call", "id": call.call_id, "name": call.name, "arguments": arguments}


def _medium(medium: m.Attachment) -> m.JsonObject:
    """Return an image, a recording or a file without its data, which may be megabytes."""
    return {"type": "grue_medium", "modality": medium.kind, "mime_type": medium.mime, "bytes": medium.bytes}


Attributes: TypeAlias = dict[str, Any]  # values by name; `present` drops `None` and empty texts

UNKNOWN_PROVIDER = "_OTHER"  # the conventions require a name, also for a host's own model actor
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HTTP_VERSION = "1.1"  # for requests to MCP servers: their client does not use HTTP/2


class Conventions:
    """Maps spans to names and attributes. `name`, `description` and `version` are the agent's."""

    def __init__(
        self, capture_content: Capture, *, name: str = "agent", description: str = "", version: str = ""
    ) -> None:
        self._agent_name = name
        self._described = {
            "gen_ai.agent.name": name,
            "gen_ai.agent.description": description,
            "gen_ai.agent.version": version,
        }
        self._capture = bool(capture_content)
        self._whole = capture_content != "reference"

    def beginning(self, event: spans.SpanOpened) -> tuple[str, Attributes]:
        """Return a span's name, and the attributes that are known when it begins."""
        match event.subject:
            case spans.Episode() as episode:
                name, attributes = _episode(episode, capture=self._capture)
            case m.RunTurn() as run:
                name, attributes = f"invoke_agent {self._agent_name}", self._agent(run, event.asks)
            case spans.ToolSession(servers=servers, max_iterations=most):
                name = "agent-tool-calling-session"
                attributes = {"grue.servers": list(servers), "grue.max_iterations": most}
            case spans.Generation() as generation:
                name, attributes = f"chat {generation.asks.model}".strip(), self._generation(generation)
            case spans.ToolUse() as use:
                name, attributes = f"execute_tool {use.name}", self._tool_use(use)
            case never:
                assert_never(never)
        return name, {"gen_ai.conversation.id": event.conversation or None, **attributes}

    def note(self, event: spans.SpanNoted) -> Attributes:
        """Return the attributes of an event in a span."""
        facts = {f"grue.{name}": value for name, value in event.facts.items()}
        return {**facts, "error.type": event.verdict.error_type or None, **self._detail(event.verdict)}

    def ending(self, event: spans.SpanClosed) -> Attributes:
        """Return the attributes that are known when a span ends."""
        return {**self._ended(event), **self._about_subject(event), **self._judged(event)}

    def words(self, verdict: Verdict) -> str:
        """Return the description for the error status of a failed span."""
        detail = clipped_text(verdict.detail, DETAIL_LIMIT) if self._capture else ""
        return detail or verdict.error_type

    def _agent(self, run: m.RunTurn, asks: m.ModelAsked | None) -> Attributes:
        asked = (m.SystemText(run.system), m.UserText(run.user, attachments=run.images))
        return {
            "gen_ai.operation.name": "invoke_agent",
            **self._described,
            "gen_ai.output.type": None if run.answer is None else "json",
            "grue.turn": run.turn,
            **_request(asks or m.ModelAsked(model="")),
            **said(asked, capture=self._capture),
        }

    def _generation(self, generation: spans.Generation) -> Attributes:
        asks, sent, request = generation.asks, generation.sent, generation.request
        shown, left_out = shown_history(sent, whole=self._whole)
        return {
            "gen_ai.operation.name": "chat",
            "gen_ai.output.type": None if sent.answer is None else "json",
            "gen_ai.request.stream": True if request.stream and asks.streams else None,
            "grue.request": request.request,
            "grue.message": sent.message,
            "grue.history.left_out": left_out + sent.missing or None,
            **_request(asks),
            **_sampling_of_model(asks),
            **_address(asks.address),
            "openai.api.type": asks.wire if _is_openai(asks) and asks.wire in _OPENAI_APIS else None,
            **said(shown, capture=self._capture),
            "gen_ai.tool.definitions": tool_definitions(sent.tools) if self._capture else None,
        }

    def _tool_use(self, use: spans.ToolUse) -> Attributes:
        return {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": use.name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.description": clipped_text(use.description, DETAIL_LIMIT) or None,
            "gen_ai.tool.call.id": use.call_id,
            "gen_ai.tool.call.arguments": clipped_text(use.arguments) if self._capture else None,
            "grue.server": use.server,
            "grue.timeout_s": use.timeout_s,
            "grue.iteration": use.iteration,
            **_mcp(use),
        }

    def _ended(self, event: spans.SpanClosed) -> Attributes:
        outcome: spans.Outcome | None = event.outcome
        match outcome:
            case None:
                return {}
            case spans.EpisodeSummary():
                return self._episode_ended(outcome)
            case m.TurnCompleted(kind=kind, answer=answer, usage=usage):
                spoken = answered(clipped_text(answer)) if self._capture else None
                return {
                    "grue.kind": kind,
                    "gen_ai.output.messages": spoken,
                    **_finished(event.finish_reason),
                    **_used(_of_this_part(usage, event.subject)),
                }
            case m.TurnFailed(usage=usage):
                used = _used(_of_this_part(usage, event.subject))
                return {"grue.kind": "failed", **_finished(event.finish_reason), **used}
            case spans.SessionSummary(iterations_used=iterations, tools_called=called, final_action=action):
                shown = self._capture and action is not None
                return {
                    "grue.iterations_used": iterations,
                    "grue.tools_called": called,
                    "grue.final_action": clipped_text(action) if shown else None,
                }
            case m.CompletionReceived():
                return self._completion(outcome, event.subject)
            case m.CompletionFailed(failure=failure):
                status = {"http.response.status_code": failure.status, "gen_ai.request.model": failure.model}
                return {**status, **_address(failure.endpoint)}
            case m.ToolCallRecord(result=result, settlement=settlement, duration_s=duration_s):
                return {
                    "grue.settlement": settlement,
                    "grue.duration_s": duration_s,
                    "gen_ai.tool.call.result": clipped_text(result.to_dict()) if self._capture else None,
                }
            case never:
                assert_never(never)

    def _episode_ended(self, summary: spans.EpisodeSummary) -> Attributes:
        ended, asked, answer = summary.ended, summary.asked, summary.answered
        attributes: Attributes = {}
        if ended is not None:
            attributes |= {f"grue.{name}": value for name, value in ended.labels().items()}
        if self._capture and asked is not None:
            attributes |= said((m.UserText(asked.user),), capture=True)
        if self._capture and answer is not None:
            attributes["gen_ai.output.messages"] = answered(clipped_text(answer.answer))
        return attributes

    def _completion(self, reply: m.CompletionReceived, subject: object) -> Attributes:
        facts = reply.facts
        asks = subject.asks if isinstance(subject, spans.Generation) else m.ModelAsked(model="")
        return {
            # A host with its own model actor does not say which model it asks: name the one that replied.
            "gen_ai.request.model": None if asks.model else reply.model or None,
            "gen_ai.response.model": reply.model or None,
            "gen_ai.response.id": facts.id or None,
            "gen_ai.response.time_to_first_chunk": facts.first_chunk_s,
            "openai.response.service_tier": facts.service_tier if _is_openai(asks) else None,
            "openai.response.system_fingerprint": facts.system_fingerprint if _is_openai(asks) else None,
            "gen_ai.output.messages": replied(reply) if self._capture else None,
            "gen_ai.usage.reasoning.output_tokens": reply.usage.reasoning_tokens or None,
            "llm.cost.total": reply.usage.cost_usd,  # OpenInference's name for the cost
            **_finished(reply.finish_reason),
            **_used(reply.usage),
        }

    def _about_subject(self, event: spans.SpanClosed) -> Attributes:
        match event.subject:
            case spans.Generation(asks=asks):
                return {**_sampling(asks), **_sampling_of_model(asks)}
            case spans.ToolUse(request_id=request_id, error_code=code):
                status = None if code is None else str(code)
                return {"jsonrpc.request.id": request_id or None, "rpc.response.status_code": status}
            case _:
                return {}

    def _judged(self, event: spans.SpanClosed) -> Attributes:
        verdict = event.verdict
        if verdict.level != "error":
            return {"grue.warning": verdict.error_type or None, **self._detail(verdict)}
        code = event.subject.error_code if isinstance(event.subject, spans.ToolUse) else None
        return {"error.type": verdict.error_type if code is None else str(code), **self._detail(verdict)}

    def _detail(self, verdict: Verdict) -> Attributes:
        detail = verdict.detail if self._capture and verdict.level != "default" else ""
        return {"grue.detail": clipped_text(detail, DETAIL_LIMIT) or None}


def _episode(episode: spans.Episode, *, capture: bool) -> tuple[str, Attributes]:
    started = episode.started
    if started is None:
        return "invoke_workflow", {"gen_ai.operation.name": "invoke_workflow"}
    title = said_by(started, EpisodeStarted.title) if capture or not started.title_is_content else ""
    return f"invoke_workflow {title}".strip(), {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": title or None,
        "gen_ai.request.model": started.model,
        **{f"grue.{name}": value for name, value in started.labels().items() if name != "model"},
    }


def _mcp(use: spans.ToolUse) -> Attributes:
    if not use.protocol_version:
        return {}
    by_http = bool(use.address)
    return {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": use.protocol_version,
        "network.transport": "tcp" if by_http else "pipe",
        "network.protocol.name": "http" if by_http else None,
        "network.protocol.version": _HTTP_VERSION if by_http else None,
        **_address(use.address),
    }


def _request(asks: m.ModelAsked) -> Attributes:
    return {
        "gen_ai.provider.name": asks.provider or UNKNOWN_PROVIDER,
        "gen_ai.request.model": asks.model or None,
        **_sampling(asks),
    }


def _sampling(asks: m.ModelAsked) -> Attributes:
    sampling: m.JsonObject = asks.sampling
    choices = sampling.get("n")
    return {
        "gen_ai.request.temperature": _number(sampling.get("temperature")),
        "gen_ai.request.top_p": _number(sampling.get("top_p")),
        "gen_ai.request.max_tokens": sampling.get("max_tokens"),
        "gen_ai.request.stop_sequences": sampling.get("stop"),
        "gen_ai.request.frequency_penalty": _number(sampling.get("frequency_penalty")),
        "gen_ai.request.presence_penalty": _number(sampling.get("presence_penalty")),
        "gen_ai.request.seed": sampling.get("seed"),
        "gen_ai.request.choice.count": choices if choices != 1 else None,
    }


def _sampling_of_model(asks: m.ModelAsked) -> Attributes:
    """Return the sampling attributes that OpenTelemetry defines for completion spans only."""
    tier = asks.sampling.get("service_tier")
    return {
        "gen_ai.request.top_k": _number(asks.sampling.get("top_k")),
        "openai.request.service_tier": tier if _is_openai(asks) and tier != "auto" else None,
    }


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


_OPENAI_APIS = ("chat_completions", "responses")


def _is_openai(asks: m.ModelAsked) -> bool:
    return asks.provider == "openai"


def _finished(reason: str | None) -> Attributes:
    return {"gen_ai.response.finish_reasons": [reason] if reason else None}


def _of_this_part(usage: m.Usage, subject: object) -> m.Usage:
    """Return what a resumed turn used after it was resumed; for any other turn, the whole usage."""
    # The earlier usage is in spans of the parked part. A backend that adds up (MLflow) would count it twice.
    if not isinstance(subject, m.RunTurn) or subject.resumed is None:
        return usage
    return Spent(usage=usage).less(Spent(usage=subject.resumed.parked.usage)).usage


def _used(usage: m.Usage) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens or None,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens or None,
        "grue.usage.cost_usd": usage.cost_usd,
    }


def _address(url: str) -> Attributes:
    try:
        where = urlsplit(url)
        port = where.port or _DEFAULT_PORTS.get(where.scheme)
    except ValueError:
        return {}
    return {"server.address": where.hostname, "server.port": port if where.hostname else None}


def present(attributes: Attributes) -> Attributes:
    """Return the attributes that are neither `None` nor an empty text; an integer over 63 bits as text."""
    return {
        name: str(value) if isinstance(value, int) and abs(value) >= 2**63 else value
        for name, value in attributes.items()
        if value not in (None, "")
    }
