"""OpenTelemetry: an episode as spans with the names of the GenAI and MCP semantic conventions.

| in the trace          | span                                            | kind     |
|-----------------------|-------------------------------------------------|----------|
| episode               | `invoke_workflow {game}`                        | internal |
| turn                  | `invoke_agent {agent}`                          | internal |
| tool-calling session  | `agent-tool-calling-session`                    | internal |
| completion            | `chat {model}`                                  | client   |
| call sent to a server | `execute_tool {tool}`, `mcp.method.name` with it | client   |
| any other event       | an event of the span that it happens in         |          |

The attribute names follow `opentelemetry-semantic-conventions` 0.66, where all of `gen_ai` is still in
development. Attributes without a standard name are called `grue.*`. Times and parents come from the trace,
never from the thread that writes the spans.
"""

import os
import uuid
from importlib.util import find_spec
from typing import Any, TypeAlias, assert_never
from urllib.parse import urlsplit

from grue.errors import MissingDependencyError
from grue.facts import EpisodeEnded
from grue.messages import (
    CompletionFailed,
    CompletionReceived,
    ConversationItem,
    JsonObject,
    RunTurn,
    SystemText,
    ToolCallRecord,
    ToolMessage,
    TurnCompleted,
    TurnFailed,
    Usage,
    UserText,
)
from grue.observers.outbox import BOUND, Outbox, Warn, warn_once
from grue.observers.span_feed import SpanFeed
from grue.observers.span_sink import (
    DETAIL_LIMIT,
    SpanSink,
    chat_messages,
    clipped,
    clipped_text,
    json_text,
    nanoseconds,
)
from grue.observers.spans import (
    Episode,
    Generation,
    Outcome,
    SessionSummary,
    SpanClosed,
    SpanId,
    SpanNoted,
    SpanOpened,
    Subject,
    ToolSession,
    ToolUse,
    Verdict,
)

INSTALL = "OpenTelemetry is not installed: pip install 'grue[otel]'"

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")

Attributes: TypeAlias = dict[str, Any]
"""Attributes of a span; those that are `None` are left out."""


def require_otel() -> None:
    """Raise `MissingDependencyError`, with the install command, unless OpenTelemetry is installed."""
    if not _installed():
        raise MissingDependencyError(INSTALL)


def _installed() -> bool:
    try:
        return all(find_spec(package) is not None for package in _PACKAGES)
    except ModuleNotFoundError:  # of a parent package
        return False


class OtelObserver(Outbox):
    """An observer that exports an episode as OpenTelemetry spans, from its own thread.

    A problem with the backend gives one warning. It never makes a turn fail, wait or behave differently.

    Args:
        tracer_provider: The caller's provider, which is flushed but never shut down. `None`: the global
            provider if one is set, otherwise a new one that sends to `OTEL_EXPORTER_OTLP_ENDPOINT` over HTTP
            until `close`.
        capture_content: Send prompts, arguments, outputs and error texts; off by default, as the
            conventions recommend.
        session_id: The conversation's id, unless `EpisodeStarted` has another one; `None`: a new id.
        agent_name: The agent's name in the spans of turns.
        warn: Called with the warning, from any thread; `None`: the logger `grue`.
        bound: How many envelopes the queue holds; further ones are dropped and counted.

    Attributes:
        tracer_provider: The provider in use; `None` if none could be created. Nothing is sent then.
    """

    def __init__(
        self,
        tracer_provider: Any = None,
        *,
        capture_content: bool = False,
        session_id: str | None = None,
        agent_name: str = "agent",
        warn: Warn | None = None,
        bound: int = BOUND,
    ) -> None:
        trouble = warn_once(warn)
        own = False
        if tracer_provider is None:
            tracer_provider, own = _provider_from_environment(trouble)
        self.tracer_provider = tracer_provider
        feed = SpanFeed(session_id or uuid.uuid4().hex)
        sink = _OtelSink(feed, tracer_provider, own, _Conventions(agent_name, capture_content))
        super().__init__(sink, name="opentelemetry", bound=bound, warn=trouble)
        if tracer_provider is None:
            self.close()


def _provider_from_environment(warn: Warn) -> tuple[Any, bool]:
    """Return a tracer provider, or `None` after a warning, and whether it is this observer's own."""
    if not _installed():
        warn(f"{INSTALL}. The episode continues without it.")
        return None, False
    from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider

    configured = get_tracer_provider()
    if not isinstance(configured, ProxyTracerProvider):
        return configured, False
    endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)
    if endpoint is None:
        warn("Nothing is sent to OpenTelemetry: OTEL_EXPORTER_OTLP_ENDPOINT is not set.")
        return None, False
    return _own_provider(endpoint, warn), True


def _own_provider(endpoint: str, warn: Warn) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from grue.observers.otlp import patient

    resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "grue"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    where = urlsplit(endpoint)
    backend = f"The OpenTelemetry collector at {where.hostname}:{where.port or 4318}"
    provider.add_span_processor(BatchSpanProcessor(patient(OTLPSpanExporter(), backend=backend, warn=warn)))
    return provider


class _OtelSink(SpanSink):
    def __init__(self, feed: SpanFeed, provider: Any, own: bool, conventions: "_Conventions") -> None:
        super().__init__(feed)
        self._provider = provider
        self._own = own
        self._say = conventions
        self._tracer = None if provider is None else provider.get_tracer("grue")
        self._spans: dict[SpanId, Any] = {}

    def open(self, event: SpanOpened) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, set_span_in_context

        assert self._tracer is not None, "without a provider there is no thread"
        name, attributes = self._say.beginning(event.subject)
        inside = None if event.parent is None else self._spans.get(event.parent)
        client = isinstance(event.subject, Generation | ToolUse)
        self._spans[event.span] = self._tracer.start_span(
            name,
            # The context is explicit, and empty for an episode, so that the thread's own context never
            # becomes a parent.
            context=Context() if inside is None else set_span_in_context(inside, Context()),
            kind=SpanKind.CLIENT if client else SpanKind.INTERNAL,
            attributes=_present(attributes),
            start_time=nanoseconds(event.at),
        )

    def note(self, event: SpanNoted) -> None:
        span = self._spans.get(event.span)
        if span is not None:
            facts = {f"grue.{name}": value for name, value in event.facts.items()}
            attributes = _present({**facts, **self._say.verdict(event.verdict)})
            span.add_event(event.name, attributes, timestamp=nanoseconds(event.at))

    def close(self, event: SpanClosed) -> None:
        from opentelemetry.trace import Status, StatusCode

        span = self._spans.pop(event.span, None)
        if span is None:
            return
        span.set_attributes(_present({**self._say.ending(event.outcome), **self._say.verdict(event.verdict)}))
        match event.subject, event.outcome:
            case Generation(model=""), CompletionReceived(model=model) if model:
                # Only the reply names the model; no earlier message did.
                span.set_attribute("gen_ai.request.model", model)
                span.update_name(f"chat {model}")
        if event.verdict.level == "error":
            span.set_status(Status(StatusCode.ERROR, self._say.words(event.verdict)))
        span.end(end_time=nanoseconds(event.at))

    def flush(self) -> None:
        if self._own:
            self._provider.shutdown()
        elif hasattr(self._provider, "force_flush"):
            self._provider.force_flush()


class _Conventions:
    """Maps spans to the names and attributes of the conventions."""

    def __init__(self, agent_name: str, capture_content: bool) -> None:
        self._agent_name = agent_name
        self._capture = capture_content
        self._conversation = ""

    def beginning(self, subject: Subject) -> tuple[str, Attributes]:
        """Return a span's name, and the attributes that are known when it begins."""
        name, attributes = self._begun(subject)
        return name, {"gen_ai.conversation.id": self._conversation, **attributes}

    def _begun(self, subject: Subject) -> tuple[str, Attributes]:
        match subject:
            case Episode():
                return self._episode(subject)
            case RunTurn():
                return f"invoke_agent {self._agent_name}", {
                    "gen_ai.operation.name": "invoke_agent",
                    "gen_ai.agent.name": self._agent_name,
                    "grue.turn": subject.turn,
                    **self._said((SystemText(subject.system), UserText(subject.user))),
                }
            case ToolSession(servers=servers, max_iterations=most):
                return "agent-tool-calling-session", {
                    "grue.servers": list(servers),
                    "grue.max_iterations": most,
                }
            case Generation(request=request, model=model):
                return f"chat {model}".strip(), {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.request.model": model or None,
                    "grue.request": request.request,
                    **_address(subject.endpoint),
                    **self._said(request.new),
                }
            case ToolUse():
                return self._tool_use(subject)
            case never:
                assert_never(never)

    def _episode(self, episode: Episode) -> tuple[str, Attributes]:
        self._conversation = episode.episode_id
        started = episode.started
        if started is None:
            return "invoke_workflow", {"gen_ai.operation.name": "invoke_workflow"}
        return f"invoke_workflow {started.title}", {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": started.title,
            "gen_ai.request.model": started.model,
            **{f"grue.{name}": value for name, value in started.labels().items() if name != "model"},
        }

    def _tool_use(self, use: ToolUse) -> tuple[str, Attributes]:
        attributes: Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": use.name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": use.call_id,
            "grue.server": use.server,
            "grue.timeout_s": use.timeout_s,
            "grue.iteration": use.iteration,
        }
        if use.protocol_version:
            attributes["mcp.method.name"] = "tools/call"
            attributes["mcp.protocol.version"] = use.protocol_version
        if self._capture:
            attributes["gen_ai.tool.call.arguments"] = _text(use.arguments)
        return f"execute_tool {use.name}", attributes

    def ending(self, outcome: Outcome | None) -> Attributes:
        """Return the attributes that are known when a span ends."""
        match outcome:
            case None:
                return {}
            case EpisodeEnded() as ended:
                return {f"grue.{name}": value for name, value in ended.labels().items()}
            case TurnCompleted(kind=kind, answer=answer, usage=usage):
                spoken = {"gen_ai.output.messages": self._reply([_text_part(_text(answer))], None)}
                return {"grue.kind": kind, **_used(usage), **(spoken if self._capture else {})}
            case TurnFailed(usage=usage):
                return {"grue.kind": "failed", **_used(usage)}
            case SessionSummary(iterations_used=iterations, tools_called=called, final_action=action):
                counts = {"grue.iterations_used": iterations, "grue.tools_called": called}
                shown = self._capture and action is not None
                return {**counts, "grue.final_action": _text(action) if shown else None}
            case CompletionReceived():
                return self._completion(outcome)
            case CompletionFailed(failure=failure):
                return {
                    "gen_ai.request.model": failure.model,
                    "http.response.status_code": failure.status,
                    **_address(failure.endpoint),
                }
            case ToolCallRecord(result=result, settlement=settlement, duration_s=duration_s):
                content = _text(result.to_dict()) if self._capture else None
                return {
                    "grue.settlement": settlement,
                    "grue.duration_s": duration_s,
                    "gen_ai.tool.call.result": content,
                }
            case never:
                assert_never(never)

    def _completion(self, reply: CompletionReceived) -> Attributes:
        attributes: Attributes = {
            "gen_ai.response.model": reply.model or None,
            "gen_ai.response.finish_reasons": [reply.finish_reason] if reply.finish_reason else None,
            **_used(reply.usage),
        }
        if self._capture:
            parts = [_text_part(clipped_text(reply.content))] if reply.content else []
            calls: list[JsonObject] = [
                {
                    "type": "tool_call",
                    "id": call.call_id,
                    "name": call.name,
                    "arguments": clipped_text(call.arguments),
                }
                for call in reply.tool_calls
            ]
            attributes["gen_ai.output.messages"] = self._reply([*parts, *calls], reply.finish_reason)
        return attributes

    def verdict(self, verdict: Verdict) -> Attributes:
        """Return the attributes of a failure, with its text if content may be sent."""
        detail = verdict.detail if self._capture and verdict.level != "default" else ""
        return {
            "error.type": verdict.error_type or None,
            "grue.detail": clipped_text(detail, DETAIL_LIMIT) or None,
        }

    def words(self, verdict: Verdict) -> str:
        """Return the description of a failure's status."""
        detail = clipped_text(verdict.detail, DETAIL_LIMIT) if self._capture else ""
        return detail or verdict.error_type

    def _said(self, items: tuple[ConversationItem, ...]) -> Attributes:
        if not self._capture:
            return {"grue.input_chars": len(json_text(chat_messages(items)))}
        instructions = [_text_part(clipped_text(item.text)) for item in items if isinstance(item, SystemText)]
        rest = [_message(item) for item in items if not isinstance(item, SystemText)]
        return {
            "gen_ai.system_instructions": json_text(instructions) if instructions else None,
            "gen_ai.input.messages": json_text(rest),
        }

    def _reply(self, parts: list[JsonObject], finish_reason: str | None) -> str:
        return json_text([{"role": "assistant", "parts": parts, "finish_reason": finish_reason or "stop"}])


def _message(item: ConversationItem) -> JsonObject:
    if isinstance(item, ToolMessage):
        answer = {
            "type": "tool_call_response",
            "id": item.call_id,
            "response": clipped_text(item.content),
        }
        return {"role": "tool", "parts": [answer]}
    role = "user" if isinstance(item, UserText) else "assistant"
    return {"role": role, "parts": [_text_part(clipped_text(item.text))]}


def _text_part(text: str) -> JsonObject:
    return {"type": "text", "content": text}


def _text(value: object) -> str:
    value = clipped(value)
    return value if isinstance(value, str) else json_text(value)


def _used(usage: Usage) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens or None,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens or None,
        "grue.usage.cost_usd": usage.cost_usd,
    }


def _address(endpoint: str) -> Attributes:
    try:
        where = urlsplit(endpoint)
        return {"server.address": where.hostname, "server.port": where.port}
    except ValueError:
        return {}


def _present(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}
