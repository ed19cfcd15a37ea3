"""Wrap an OTLP span exporter, so that a backend that is down gives one warning instead of one per batch."""

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from grue.tracing.observers.outbox import Warn

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

_LOGGER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_CAUSE_LIMIT = 200

_exporting = threading.local()


def patient(exporter: "SpanExporter", *, backend: str, warn: Warn) -> "SpanExporter":
    """Return an exporter that warns about the first failure of `exporter` and suppresses its log records.

    OpenTelemetry's exporter logs two retries and a failure for each batch, for as long as an episode lasts.

    Args:
        exporter: Sends the spans over HTTP.
        backend: The backend's name in the warning.
        warn: Called with the warning.
    """
    logging.getLogger(_LOGGER).addFilter(_hold_back)
    # This has the interface of `SpanExporter`, but does not derive from it, so that the import can wait.
    return cast("SpanExporter", _PatientExporter(exporter, backend, warn))


class _PatientExporter:
    def __init__(self, exporter: "SpanExporter", backend: str, warn: Warn) -> None:
        self._exporter = exporter
        self._backend = backend
        self._warn = warn

    def export(self, spans: "Sequence[ReadableSpan]") -> "SpanExportResult":
        """Send a batch; the wrapped exporter retries."""
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
        """Close the wrapped exporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the wrapped exporter."""
        return self._exporter.force_flush(timeout_millis)


def _hold_back(record: logging.LogRecord) -> bool:
    """Hold back records that this thread logs during an export; let all others pass."""
    said: list[str] | None = getattr(_exporting, "said", None)
    if said is None:
        return True
    said.append(record.getMessage())
    return False
