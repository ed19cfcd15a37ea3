"""Report an episode to Langfuse 5: turns, tool sessions, completions and tool calls (docs/guides/spans.md).

Source: R7.4-5
"""

import os
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib.util import find_spec
from typing import Any, assert_never

from grue import messages as m
from grue.errors import MissingDependencyError
from grue.tracing.facts import EpisodeStarted, said_by
from grue.tracing.message_words import Verdict
from grue.tracing.observers import span_sink, spans
from grue.tracing.observers.outbox import BOUND, Outbox, Warn, warn_once

INSTALL = "Langfuse is not installed: pip install 'langfuse>=5,<6'"
_KEYS = ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")
_CLOUD = "https://cloud.langfuse.com"
_EXPORT_TIMEOUT_S = 5.0
_LONGEST_ATTRIBUTE = 200  # the most characters of a name or a session id; Langfuse drops longer ones


def require_langfuse() -> None:
    """Raise `MissingDependencyError`, with the install command, unless langfuse is installed."""
    if find_spec("langfuse") is None:
        raise MissingDependencyError(INSTALL)


class LangfuseObserver(Outbox):
    """An observer that reports an episode to Langfuse, from its own thread.

    The first problem with Langfuse gives a warning. No problem makes a turn fail, wait or behave differently.

    Args:
        client: The caller's client, which is flushed but never shut down. `None`: the observer creates one
            from the environment (`LANGFUSE_PUBLIC_KEY`, `LANGFUSE_SECRET_KEY` and, for another address than
            Langfuse's cloud, `LANGFUSE_BASE_URL`). This client does not touch the global tracer provider, and
            lives until the process ends.
        session_id: The Langfuse session's id, until a fact of the host gives another; `None`: a new id.
        capture_content: `True`: prompts, arguments, outputs and error texts are sent. `"reference"`: they
            are sent, too, but a generation has only its new messages, and the number of its request in
            grue's trace. `False`: only data such as names, ids, sizes and usage are sent, and the
            episode's labels and its title, unless the title quotes the task, as in the skill agent.
        warn: Called with the warning, from any thread; `None`: the warning goes to the logger `grue`.
        bound: How many envelopes the queue holds; further ones are dropped and counted.

    Attributes:
        client: The client in use; `None` if no client could be created. Nothing is sent then.

    Source: R7.4-5, P31-32
    """

    def __init__(
        self,
        client: Any = None,
        *,
        session_id: str | None = None,
        capture_content: span_sink.Capture = True,
        warn: Warn | None = None,
        bound: int = BOUND,
    ) -> None:
        trouble = warn_once(warn)
        self.client = _client_from_environment(trouble) if client is None else client
        feed = spans.SpanFeed(session_id or uuid.uuid4().hex)
        sink = _LangfuseSink(feed, self.client, capture_content)
        super().__init__(sink, name="langfuse", bound=bound, warn=trouble)
        if self.client is None:
            self.close()


def _client_from_environment(warn: Warn) -> Any:
    missing = [name for name in _KEYS if not os.environ.get(name)]
    if find_spec("langfuse") is None:
        warn(f"{INSTALL}. The episode continues without it.")
    elif missing:
        warn(f"Nothing is sent to Langfuse: {' and '.join(missing)} not set.")
    else:
        try:
            return _new_client(warn)
        except (ImportError, ValueError) as error:
            warn(f"Nothing is sent to Langfuse: no client could be created: {error}")
    return None


def _new_client(warn: Warn) -> Any:
    from base64 import b64encode

    from langfuse import Langfuse
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider

    from grue.tracing.observers.outbox import host_of, patient, session_of_exporter

    public, secret = (os.environ[name] for name in _KEYS)
    base_url = os.environ.get("LANGFUSE_BASE_URL") or os.environ.get("LANGFUSE_HOST") or _CLOUD
    exporter = OTLPSpanExporter(
        endpoint=f"{base_url.rstrip('/')}/api/public/otel/v1/traces",
        headers={
            "Authorization": f"Basic {b64encode(f'{public}:{secret}'.encode()).decode()}",
            "x-langfuse-public-key": public,
            # Without this header, observations appear in Langfuse only minutes later.
            "x-langfuse-ingestion-version": "4",
        },
        timeout=_EXPORT_TIMEOUT_S,
        compression=Compression.Gzip,
        session=session_of_exporter(),
    )
    return Langfuse(
        base_url=base_url,
        tracer_provider=TracerProvider(shutdown_on_exit=False),
        span_exporter=patient(exporter, backend=f"Langfuse at {host_of(base_url)}", warn=warn),
    )


class _LangfuseSink(span_sink.SpanSink):
    def __init__(self, feed: spans.SpanFeed, client: Any, capture_content: span_sink.Capture) -> None:
        super().__init__(feed)
        self._client = client
        self._capture = bool(capture_content)
        self._whole = capture_content != "reference"
        self._trace: dict[str, str] = {}
        self._for_the_whole_trace: Callable[[], AbstractContextManager[Any]] = nullcontext

    def open(self, event: spans.SpanOpened, inside: Any) -> Any:
        if isinstance(event.subject, spans.Episode):
            seed, started = event.subject.episode_id, event.subject.started
            self._trace = {"trace_id": self._client.create_trace_id(seed=seed)}
            name = "grue"
            if started is not None and (self._capture or not started.title_is_content):
                name = said_by(started, EpisodeStarted.title)
            self._for_the_whole_trace = _propagation(seed, name)
        return self._start(inside, event.at, self._beginning(event.subject))

    def note(self, event: spans.SpanNoted, span: Any) -> None:
        beginning = {
            "name": event.name,
            "as_type": "span",
            "metadata": event.facts,
            **self._judged(event.verdict),
        }
        self._start(span, event.at, beginning).end(end_time=span_sink.nanoseconds(event.at))

    def close(self, event: spans.SpanClosed, span: Any) -> None:
        span.update(**self._ending(event.outcome), **self._judged(event.verdict))
        span.end(end_time=span_sink.nanoseconds(event.at))

    def flush(self) -> None:
        if self._client is not None:
            self._client.flush()

    def _start(self, inside: Any, at: float, beginning: m.JsonObject) -> Any:
        """Create an observation as a child of `inside`, or as a root of the trace if `inside` is `None`."""
        with self._for_the_whole_trace():
            if inside is None:
                observation = self._client.start_observation(trace_context=self._trace, **beginning)
            else:
                observation = inside.start_observation(**beginning)
        span = getattr(observation, "_otel_span", None)
        # Langfuse 5 offers no other way to set the start. A span that is not sampled, or of a client that is
        # disabled or faked, has no `_start_time`.
        if isinstance(getattr(span, "_start_time", None), int):
            span._start_time = span_sink.nanoseconds(at)  # type: ignore[union-attr]  # noqa: SLF001
        return observation

    def _beginning(self, subject: spans.Subject) -> m.JsonObject:
        match subject:
            case spans.Episode(started=started):
                metadata = {} if started is None else {**started.labels(), "servers": list(started.servers)}
                return {"name": "episode", "as_type": "span", "metadata": metadata}
            case m.RunTurn(turn=turn, servers=servers):
                asked = span_sink.chat_messages((m.SystemText(subject.system), m.UserText(subject.user)))
                metadata = {"turn": turn, "servers": list(servers)}
                return {"name": f"turn {turn}", "as_type": "span", **self._content("input", asked, metadata)}
            case spans.ToolSession(max_iterations=most):
                metadata = {"mcp_enabled": True, "max_iterations": most}
                return {"name": "agent-tool-calling-session", "as_type": "span", "metadata": metadata}
            case spans.Generation():
                return self._generation(subject)
            case spans.ToolUse(name=name, server=server, timeout_s=timeout_s):
                metadata = {
                    "tool_name": name,
                    "server_name": server,
                    "timeout_seconds": timeout_s,
                    "iteration": subject.iteration,
                }
                content = self._content("input", span_sink.clipped(subject.arguments), metadata)
                return {"name": f"mcp-tool-{name}", "as_type": "tool", **content}
            case never:
                assert_never(never)

    def _generation(self, generation: spans.Generation) -> m.JsonObject:
        asks, sent = generation.asks, generation.sent
        shown, left_out = span_sink.shown_history(sent, whole=self._whole)
        metadata = {
            "request": generation.request.request,
            "tools_offered": isinstance(generation.request.mode, m.OfferTools),
            "message": sent.message,
            "left_out": left_out + sent.missing,
            "requested_model": asks.model,
            "provider": asks.provider,
            "endpoint": asks.address,
        }
        return {
            "name": "Agent" if generation.asked_by == "agent" else "Sampling",
            "as_type": "generation",
            "model": asks.model or None,
            # A list, such as `stop`, is sent as one text.
            "model_parameters": {
                name: ", ".join(value) if isinstance(value, list) else value
                for name, value in asks.sampling.items()
            }
            or None,
            **self._content("input", span_sink.chat_messages(shown), metadata),
        }

    def _ending(self, outcome: spans.Outcome | None) -> m.JsonObject:
        match outcome:
            case None | m.CompletionFailed():
                return {}
            case spans.EpisodeSummary():
                return self._episode_ended(outcome)
            case m.TurnCompleted(answer=answer, kind=kind):
                return self._content(
                    "output", span_sink.clipped(answer), {"kind": kind, **_turn_facts(outcome)}
                )
            case m.TurnFailed():
                return {"metadata": {"kind": "failed", **_turn_facts(outcome)}}
            case spans.SessionSummary(iterations_used=iterations, tools_called=called, final_action=action):
                summary: m.JsonObject = {"iterations_used": iterations, "tools_called": called}
                if self._capture:
                    summary["final_action"] = span_sink.clipped(action)
                return {"metadata": summary}
            case m.CompletionReceived(model=model, usage=usage):
                facts: m.JsonObject = {
                    "finish_reason": outcome.finish_reason,
                    "elapsed_s": outcome.elapsed_s,
                    "response_id": outcome.facts.id or None,
                    "first_chunk_s": outcome.facts.first_chunk_s,
                }
                return {
                    **self._content("output", span_sink.chat_reply(outcome), facts),
                    "model": model or None,
                    "usage_details": usage_details(usage),
                    "cost_details": None if usage.cost_usd is None else {"total": usage.cost_usd},
                }
            case m.ToolCallRecord(result=result, duration_s=duration_s):
                took = None if duration_s is None else round(duration_s * 1000, 3)
                facts = {"is_error": result.is_error, "duration_ms": took}
                return self._content("output", span_sink.clipped(result.to_dict()), facts)
            case never:
                assert_never(never)

    def _episode_ended(self, summary: spans.EpisodeSummary) -> m.JsonObject:
        labels = {} if summary.ended is None else summary.ended.labels()
        ending: m.JsonObject = {"metadata": labels} if labels else {}
        if self._capture and summary.asked is not None:
            ending["input"] = span_sink.clipped(summary.asked.user)
        if self._capture and summary.answered is not None:
            ending["output"] = span_sink.clipped(summary.answered.answer)
        return ending

    def _content(self, part: str, content: object, metadata: m.JsonObject) -> m.JsonObject:
        """Return `content` as `part`, and `metadata`. Without capture, the content's length replaces it."""
        if self._capture:
            return {part: content, "metadata": metadata}
        return {"metadata": {**metadata, f"{part}_chars": len(span_sink.json_text(content))}}

    def _judged(self, verdict: Verdict) -> m.JsonObject:
        if verdict.level == "default":
            return {}
        detail = span_sink.clipped_text(verdict.detail, span_sink.DETAIL_LIMIT) if self._capture else ""
        return {"level": verdict.level.upper(), "status_message": detail or verdict.error_type or None}


def _propagation(session_id: str, trace_name: str) -> Callable[[], AbstractContextManager[Any]]:
    """Return a factory of context managers in which observations get `session_id` and `trace_name`."""
    if find_spec("langfuse") is None:  # the client is not Langfuse's own, for example in a test
        return nullcontext
    from langfuse import propagate_attributes

    return partial(
        propagate_attributes,
        session_id=session_id[:_LONGEST_ATTRIBUTE],
        trace_name=trace_name[:_LONGEST_ATTRIBUTE],
    )


def usage_details(usage: m.Usage) -> dict[str, int]:
    """Return tokens by Langfuse's usage types, such as `input_cached_tokens`; each token counts once."""
    details = {
        "input": max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens),
        "output": max(0, usage.output_tokens - usage.reasoning_tokens),
        "input_cached_tokens": usage.cached_tokens,
        "input_cache_creation": usage.cache_write_tokens,
        "output_reasoning_tokens": usage.reasoning_tokens,
    }
    return {name: tokens for name, tokens in details.items() if tokens or name in ("input", "output")}


def _turn_facts(end: m.TurnCompleted | m.TurnFailed) -> m.JsonObject:
    return {
        "iterations": end.iterations,
        "requests": end.requests,
        "tool_calls": len(end.tool_calls),
        "input_tokens": end.usage.input_tokens,
        "output_tokens": end.usage.output_tokens,
        "cost_usd": end.usage.cost_usd,
    }
