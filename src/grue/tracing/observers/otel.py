"""OpenTelemetry: an episode as spans with the names of the GenAI and MCP conventions (docs/guides/spans.md).

If the tracer is of OpenTelemetry's SDK, a call of an MCP tool tells the server the ids of the OpenTelemetry
trace and of the call's span (`traceparent` and `tracestate` in `_meta`, written by the MCP SDK), so that the
server's own spans are in the same tree. The call's span is created only later, in another thread, so `_Ids`
chooses both ids beforehand.
"""

import contextlib
import copy
import hashlib
import os
from collections.abc import Iterator
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from grue.errors import MissingDependencyError
from grue.runtime.trace.recorder import Recorder
from grue.tracing.observers.otel_attributes import Conventions, present
from grue.tracing.observers.outbox import BOUND, Outbox, Warn, host_of, warn_once
from grue.tracing.observers.span_sink import Capture, SpanSink, nanoseconds
from grue.tracing.observers.spans import Generation, SpanClosed, SpanFeed, SpanNoted, SpanOpened, ToolUse

INSTALL = (
    "OpenTelemetry is not installed: pip install 'opentelemetry-sdk>=1.45,<2'"
    " 'opentelemetry-exporter-otlp-proto-http>=1.45,<2'"
)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_SESSIONS = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
)
_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def require_otel() -> None:
    """Raise `MissingDependencyError`, with the install command, unless OpenTelemetry is installed."""
    if not _installed():
        raise MissingDependencyError(INSTALL)


def _installed() -> bool:
    try:
        return all(find_spec(package) is not None for package in _PACKAGES)
    except ModuleNotFoundError:  # `find_spec` did not find a parent package
        return False


class OtelObserver(Outbox):
    """An observer that exports an episode as OpenTelemetry spans, from its own thread.

    The first problem with the backend gives a warning. No problem makes a turn fail, wait or behave
    differently.

    Args:
        tracer_provider: The caller's provider, which is flushed but never shut down. `None`: the global
            provider if one is set, otherwise a new one that sends over HTTP to the address in
            `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT`.
        capture_content: `True`: prompts, arguments, outputs and error texts are sent. `"reference"`: they are
            sent, too, but the span of a completion has only the new messages, and the number of the request
            in grue's trace. `False`: they are not sent. Descriptions of tools, and the episode's labels, are
            sent in any case. The episode's title is left out only with `False`, and only if it quotes the
            task, as in the skill agent.
        session_id: The conversation's id, if neither the turn nor the host gives one. If this is `None` too,
            no id is sent.
        agent_name: The agent's name: the span of each of its turns is called `invoke_agent NAME`.
        agent_description: What the agent does, in a sentence.
        agent_version: The agent's version, to tell the spans of two versions apart.
        warn: Called with the warning, from any thread; `None`: the warning goes to the logger `grue`.
        bound: How many envelopes the queue holds; further ones are dropped and counted.

    Attributes:
        tracer_provider: The provider in use; `None` if no provider could be created. Nothing is sent then.
    """

    def __init__(
        self,
        tracer_provider: Any = None,
        *,
        capture_content: Capture = False,
        session_id: str | None = None,
        agent_name: str = "agent",
        agent_description: str = "",
        agent_version: str = "",
        warn: Warn | None = None,
        bound: int = BOUND,
    ) -> None:
        trouble = warn_once(warn)
        own = False
        if tracer_provider is None:
            tracer_provider, own = _provider_from_environment(trouble)
        self.tracer_provider = tracer_provider
        conventions = Conventions(
            capture_content, name=agent_name, description=agent_description, version=agent_version
        )
        sink = _OtelSink(SpanFeed(session_id or ""), tracer_provider, own, conventions)
        super().__init__(sink, name="opentelemetry", bound=bound, warn=trouble)
        self._sink = sink
        if tracer_provider is None:
            self.close()

    def added_to(self, recorder: Recorder) -> None:
        """Have tool calls run in the context of their spans (`around_call`), if span ids can be chosen."""
        if self._sink.ids is not None:
            recorder.around_call = self._around_call

    @contextlib.contextmanager
    def _around_call(self, message: int) -> Iterator[None]:
        from opentelemetry import context, trace

        if self.closed or self._process != os.getpid():
            yield
            return
        span = trace.NonRecordingSpan(self._sink.context_of(message))
        token = context.attach(trace.set_span_in_context(span))
        try:
            yield
        finally:
            context.detach(token)


def _provider_from_environment(warn: Warn) -> tuple[Any, bool]:
    """Return a tracer provider (`None` after a warning), and whether the observer has to shut it down."""
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
    try:
        return _own_provider(endpoint, warn), True
    except Exception as error:  # noqa: BLE001 - a variable has a bad value, or a credential provider raises
        warn(f"Nothing is sent to OpenTelemetry: no exporter could be created: {error}")
        return None, False


def _own_provider(endpoint: str, warn: Warn) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from grue.tracing.observers.outbox import patient, session_of_exporter

    resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "grue"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    backend = f"The OpenTelemetry collector at {host_of(endpoint)}"
    named = next((os.environ[name] for name in _SESSIONS if os.environ.get(name)), None)
    # If a credential provider is named but not installed, `session` stays `None`: the exporter then looks
    # for the credential provider itself, and raises an error with its name.
    session = session_of_exporter() if named is None else None
    for credentials in entry_points(group="opentelemetry_otlp_credential_provider", name=named or ""):
        session = session_of_exporter(credentials.load()())
    exporter = OTLPSpanExporter(session=session)
    provider.add_span_processor(BatchSpanProcessor(patient(exporter, backend=backend, warn=warn)))
    return provider


class _OtelSink(SpanSink):
    def __init__(self, feed: SpanFeed, provider: Any, own: bool, conventions: Conventions) -> None:
        super().__init__(feed)
        self._provider = provider
        self._own = own
        self._say = conventions
        self._tracer: Any = None if provider is None else provider.get_tracer("grue")
        self.ids: _Ids | None = None
        others = getattr(self._tracer, "id_generator", None)
        if others is not None:  # the tracer is of OpenTelemetry's SDK
            self._tracer = copy.copy(self._tracer)  # the provider gives the same tracer to all observers
            self._tracer.id_generator = self.ids = _Ids(others)
        self._root: Any = None

    def context_of(self, message: int) -> Any:
        """Return the `SpanContext` of the tool call whose `ToolCalled` has number `message`. Thread-safe."""
        from opentelemetry.trace import SpanContext, TraceFlags

        assert self.ids is not None, "asked for only if there are ids"
        root, span = self._root, self.ids.span_of(message)
        if root is None:  # the root span is not open yet; assume that it will be sampled
            return SpanContext(self.ids.trace, span, False, TraceFlags(TraceFlags.SAMPLED))
        return SpanContext(root.trace_id, span, False, root.trace_flags, root.trace_state)

    def open(self, event: SpanOpened, inside: Any) -> Any:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, set_span_in_context

        assert self._tracer is not None, "without a provider there is no thread"
        name, attributes = self._say.beginning(event)
        remote = isinstance(event.subject, Generation)
        if isinstance(event.subject, ToolUse):
            remote = bool(event.subject.protocol_version)
            if self.ids is not None:
                self.ids.next_span = self.ids.span_of(event.subject.message)
        span = self._tracer.start_span(
            name,
            # If no context were passed, the span would get the thread's current span as its parent.
            context=Context() if inside is None else set_span_in_context(inside, Context()),
            kind=SpanKind.CLIENT if remote else SpanKind.INTERNAL,
            attributes=present(attributes),
            start_time=nanoseconds(event.at),
        )
        if inside is None:
            self._root = span.get_span_context()
        return span

    def note(self, event: SpanNoted, span: Any) -> None:
        if span is not None:
            span.add_event(event.name, present(self._say.note(event)), timestamp=nanoseconds(event.at))

    def close(self, event: SpanClosed, span: Any) -> None:
        from opentelemetry.trace import Status, StatusCode

        attributes = present(self._say.ending(event))
        span.set_attributes(attributes)
        named_late = attributes.get("gen_ai.request.model")
        if isinstance(event.subject, Generation) and named_late and not event.subject.asks.model:
            span.update_name(f"chat {named_late}")
        if event.verdict.level == "error":
            span.set_status(Status(StatusCode.ERROR, self._say.words(event.verdict)))
        span.end(end_time=nanoseconds(event.at))

    def flush(self) -> None:
        if self._own:
            self._provider.shutdown()
        elif hasattr(self._provider, "force_flush"):
            self._provider.force_flush()


class _Ids:
    """Generates the ids of spans and of their trace. `span_of` returns the id that a call's span gets."""

    def __init__(self, others: Any) -> None:
        self._others = others
        self.trace: int = others.generate_trace_id()
        self.next_span: int | None = None

    def span_of(self, message: int) -> int:
        digest = hashlib.blake2b(f"{self.trace:032x}{message}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) or 1

    def generate_span_id(self) -> int:
        told, self.next_span = self.next_span, None
        return int(self._others.generate_span_id()) if told is None else told

    def generate_trace_id(self) -> int:
        return self.trace

    def is_trace_id_random(self) -> bool:
        return bool(getattr(self._others, "is_trace_id_random", lambda: False)())
