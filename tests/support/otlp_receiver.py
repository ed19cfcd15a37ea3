"""A local backend for OpenTelemetry spans: it receives OTLP over HTTP, and decodes the spans."""

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self


class Received(NamedTuple):
    """A span as the backend has received it."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    status: str
    status_message: str
    events: list[tuple[str, dict[str, Any]]]
    scope: str

    @property
    def kind(self) -> Any:
        return self.attributes.get("langfuse.observation.type")

    @property
    def duration_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    def json(self, name: str) -> Any:
        """Return the parsed value of an attribute that contains JSON text."""
        return json.loads(self.attributes[name])

    @property
    def metadata(self) -> dict[str, Any]:
        prefix = "langfuse.observation.metadata."
        found = {name: value for name, value in self.attributes.items() if name.startswith(prefix)}
        return {name.removeprefix(prefix): json.loads(value) for name, value in found.items()}


class OtlpReceiver:
    """The backend's server; a context manager.

    Args:
        hang: Whether requests get no answer until the server is closed.
        status: The HTTP status of each answer.

    Attributes:
        requests: Path and headers (lower case) of each request.
        spans: The received spans, in order of arrival.
    """

    def __init__(self, *, hang: bool = False, status: int = 200) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.spans: list[Received] = []
        self.reached = threading.Event()
        self._hang = hang
        self._status = status
        self._closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def named(self, name: str) -> list[Received]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Received:
        (span,) = self.named(name)
        return span

    def children(self, parent: Received) -> list[Received]:
        """Return the child spans of a span, in order of their start."""
        inside = [span for span in self.spans if span.parent_id == parent.span_id]
        return sorted(inside, key=lambda span: span.start_ns)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                receiver.reached.set()
                if receiver._hang:
                    receiver._closing.wait()
                    return
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver._take(self.path, headers, body)
                self.send_response(receiver._status)
                self.send_header("content-length", "0")
                self.send_header("connection", "close")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
                pass

        return Handler

    def _take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        self.requests.append((path, headers))
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += [_received(span, scope.scope.name) for span in scope.spans]


def _received(span: Any, scope: str) -> Received:
    return Received(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        status={0: "UNSET", 1: "OK", 2: "ERROR"}[span.status.code],
        status_message=span.status.message,
        events=[(event.name, _attributes(event.attributes)) for event in span.events],
        scope=scope,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    which = value.WhichOneof("value")
    if which == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, which) if which else None
