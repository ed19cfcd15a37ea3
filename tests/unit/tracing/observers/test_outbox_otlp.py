"""A backend that takes nothing is told of once, and only this exporter's log is held back."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from grue.tracing.observers.outbox import host_of, patient

LOG = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")


class Scripted:
    """An exporter that logs as the real one does, and says what it is told to say."""

    def __init__(self, *results: str) -> None:
        self.results = list(results)
        self.batches: list[Any] = []
        self.shut_down = 0
        self.flushed: list[int] = []

    def export(self, spans: Any) -> Any:
        self.batches.append(spans)
        result = self.results.pop(0)
        if result == "raises":
            raise LookupError("a bug")
        if result != "SUCCESS":
            LOG.warning("Transient error %s, retrying", "Connection refused")
            LOG.error("Failed to export")
        return SimpleNamespace(name=result)

    def shutdown(self) -> None:
        self.shut_down += 1

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        self.flushed.append(timeout_millis)
        return True


def test_a_failure_is_told_with_its_first_cause_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    warnings: list[str] = []
    inner = Scripted("SUCCESS", "FAILURE")
    exporter = patient(inner, backend="The collector at x", warn=warnings.append)
    assert exporter.export(["a"]).name == "SUCCESS"
    assert warnings == []
    assert exporter.export(["b"]).name == "FAILURE"
    assert warnings == [
        "The collector at x does not take what it is sent (Transient error Connection refused, retrying)."
    ]
    assert (inner.batches, caplog.records) == ([["a"], ["b"]], [])


@pytest.mark.parametrize("result", ["FAILURE", "raises"])
def test_what_others_log_passes(result: str, caplog: pytest.LogCaptureFixture) -> None:
    exporter = patient(Scripted(result), backend="x", warn=lambda text: None)
    try:
        exporter.export([])
    except LookupError:
        assert result == "raises"
    LOG.error("an exporter of the host's own")
    assert [record.message for record in caplog.records] == ["an exporter of the host's own"]


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://me:pass/w@rd@h:4318/v1", "h:4318"),
        ("https://api.example.com", "api.example.com"),
        ("localhost:4318", "localhost:4318"),
        ("http://[::1", "[::1"),
    ],
)
def test_a_backend_is_named_without_user_and_password(url: str, host: str) -> None:
    assert host_of(url) == host


def test_the_exporter_inside_is_ended_and_flushed() -> None:
    inner = Scripted()
    exporter = patient(inner, backend="x", warn=lambda text: None)
    assert exporter.force_flush(5)
    exporter.shutdown()
    assert (inner.flushed, inner.shut_down) == ([5], 1)
