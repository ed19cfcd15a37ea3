"""Spans over OTLP to a backend that may be dead: said once, not with every batch."""

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from grue.observers.outbox import Warn

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

_LOGGER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_CAUSE_LIMIT = 200

_exporting = threading.local()


def patient(exporter: "SpanExporter", *, backend: str, warn: Warn) -> "SpanExporter":
    """Return an exporter that warns of the first failure of `exporter`, and keeps the log of it silent.

    OpenTelemetry's own logs two retries and a failure with each batch, for as long as an episode lasts.

    Args:
        exporter: Sends the spans over HTTP.
        backend: Who does not answer, in the warning.
        warn: Takes it.
    """
    logging.getLogger(_LOGGER).addFilter(_hold_back)
    # A `SpanExporter` in all but its base class, which is not to be imported before it is wanted.
    return cast("SpanExporter", _PatientExporter(exporter, backend, warn))


class _PatientExporter:
    def __init__(self, exporter: "SpanExporter", backend: str, warn: Warn) -> None:
        self._exporter = exporter
        self._backend = backend
        self._warn = warn

    def export(self, spans: "Sequence[ReadableSpan]") -> "SpanExportResult":
        """Send a batch, with the retries of the exporter inside."""
        said: list[str] = []
        _exporting.said = said
        try:
            result = self._exporter.export(spans)
        finally:
            del _exporting.said
        if result.name != "SUCCESS":
            cause = said[0] if said else "no reason is given"
            self._warn(f"{self._backend} does not take what it is sent ({cause[:_CAUSE_LIMIT]}).")
        return result

    def shutdown(self) -> None:
        """Close the exporter inside."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what the exporter inside holds back."""
        return self._exporter.force_flush(timeout_millis)


def _hold_back(record: logging.LogRecord) -> bool:
    """Keep what is logged in this thread's export, and let everybody else's pass."""
    said: list[str] | None = getattr(_exporting, "said", None)
    if said is None:
        return True
    said.append(record.getMessage())
    return False
