"""A backend that takes nothing is told of once, and only this exporter's log is held back."""

import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from promises import GUARD_S

from grue.tracing.observers.outbox import host_of, patient, session_of_exporter

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


@pytest.mark.parametrize(
    ("status", "result", "says"), [("200 OK", "SUCCESS", ""), ("308 Moved", "FAILURE", "308, a redirect")]
)
def test_a_redirect_is_a_failure_and_no_body_is_waited_for(status: str, result: str, says: str) -> None:
    otlp = pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.http.trace_exporter", reason="pip install 'grue[otel]'"
    )
    warnings: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1/traces"
        exporter = otlp.OTLPSpanExporter(url, session=session_of_exporter())
        patiently = patient(exporter, backend="x", warn=warnings.append)
        with ThreadPoolExecutor(1) as thread:
            sent = thread.submit(patiently.export, [])
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(f"HTTP/1.1 {status}\r\nLocation: /\r\nContent-Length: 9\r\n\r\n".encode())
                assert sent.result(GUARD_S).name == result
    assert says in "".join(warnings)


def test_exports_that_are_answered_without_a_body_share_one_connection() -> None:
    otlp = pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.http.trace_exporter", reason="pip install 'grue[otel]'"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(GUARD_S)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1/traces"
        exporter = otlp.OTLPSpanExporter(url, session=session_of_exporter())
        with ThreadPoolExecutor(1) as thread:
            sent = [thread.submit(exporter.export, []) for _ in range(2)]
            connection, _ = server.accept()
            connection.settimeout(GUARD_S)
            with connection:
                for each in sent:
                    assert connection.recv(65_536).startswith(b"POST")
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    assert each.result(GUARD_S).name == "SUCCESS"


def test_the_exporter_inside_is_ended_and_flushed() -> None:
    inner = Scripted()
    exporter = patient(inner, backend="x", warn=lambda text: None)
    assert exporter.force_flush(5)
    exporter.shutdown()
    assert (inner.flushed, inner.shut_down) == ([5], 1)
