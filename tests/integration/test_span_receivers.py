"""Phoenix and MLflow themselves, with the spans of turns: what they make of a turn's tokens and its cost.

Each is started where an environment variable names its program, `GRUE_PHOENIX` or `GRUE_MLFLOW`, and is asked
through its own API. `docs/guides/spans.md` says how to install them.
"""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from grue import FunctionTools, LlmSettings, Runner, ToolPolicy, ToolRule, TurnRequest, parked_turns
from grue.errors import ApprovalPending
from grue.runtime.trace.recorder import Recorder
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, completion
from grue.tracing.observers.otel import OtelObserver

exporters = pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    reason="opentelemetry is not installed: pip install 'grue[otel]'",
)
pytestmark = pytest.mark.slow

PATIENCE_S = 240.0
COST = 0.25
USAGE = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100, "cost": COST}
DELETE = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "box.delete", "arguments": '{"name": "old.txt"}'},
}


def model(request: LlmRequest) -> LlmReply:
    """Delete a file, then say so; two replies of 1,100 tokens and 0.25 USD each."""
    if any(message["role"] == "tool" for message in request.messages):
        return completion({"role": "assistant", "content": "Deleted."}, usage=USAGE)
    calls = {"role": "assistant", "content": None, "tool_calls": [DELETE]}
    return completion(calls, finish_reason="tool_calls", usage=USAGE)


def delete(name: str) -> str:
    """Delete a file."""
    return f"{name} is gone"


def one_turn(folder: Path, export: Callable[[], Any]) -> None:
    """Run a turn that is parked before its call, and resume it in another runner, as in another process."""
    with ScriptedLlmServer(model) as llm:
        with exporting(llm, export(), folder / "trace.jsonl") as runner, pytest.raises(ApprovalPending):
            runner.run_turn(TurnRequest(user="Tidy up."))
        with exporting(llm, export()) as runner:
            decisions = [each.approve() for turn in parked_turns(folder) for each in turn.questions]
            assert runner.resume(folder, decisions).response == "Deleted."


@contextmanager
def exporting(llm: ScriptedLlmServer, exporter: Any, trace: Path | None = None) -> Iterator[Runner]:
    """Yield a runner; afterwards all its spans have been sent."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    observer = OtelObserver(provider)
    recorder = Recorder()
    recorder.add(observer)
    settings = LlmSettings(base_url=llm.base_url, model="gpt-4o-mini")
    servers = {"box": FunctionTools({"delete": delete})}
    policy = ToolPolicy(rules=(ToolRule(tools=("box.*",), verdict="ask"),), parking=True)
    with Runner(llm=settings, servers=servers, recorder=recorder, trace=trace, tool_policy=policy) as runner:
        yield runner
    assert observer.close(60.0)
    provider.shutdown()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def serving(
    variable: str, arguments: list[str], health: str, port: int, folder: Path, env: dict[str, str]
) -> Iterator[str]:
    """Start a program that serves on a port, yield its URL, and end it with all that it started."""
    program = os.environ.get(variable)
    if not program:
        pytest.skip(f"no such receiver: set {variable} to its program, in an environment of its own")
    url = f"http://127.0.0.1:{port}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, *arguments],
            cwd=folder,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            until(
                lambda: process.poll() is not None or httpx.get(f"{url}/{health}", trust_env=False).is_success
            )
            assert process.poll() is None, (folder / "log").read_text(errors="replace")[-2000:]
            yield url
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def until(holds: Callable[[], Any]) -> Any:
    """Ask until an answer is true, and return it."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if found := holds():
                return found
        except (httpx.HTTPError, KeyError):
            pass
        time.sleep(0.2)
    pytest.fail(f"it did not come about within {PATIENCE_S:g} s")


@pytest.fixture
def phoenix(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    env = {
        "PHOENIX_WORKING_DIR": str(tmp_path / "phoenix"),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    yield from serving("GRUE_PHOENIX", ["serve"], "healthz", port, tmp_path, env)


@pytest.fixture
def mlflow(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    store = f"sqlite:///{tmp_path}/mlflow.db"
    arguments = ["server", "--backend-store-uri", store, "--host", "127.0.0.1", "--port", str(port)]
    yield from serving(
        "GRUE_MLFLOW",
        [*arguments, "--workers", "1"],
        "health",
        port,
        tmp_path,
        {"MLFLOW_DISABLE_TELEMETRY": "true"},
    )


def test_phoenix_counts_a_turn_that_was_parked_once_and_has_its_cost(phoenix: str, tmp_path: Path) -> None:
    one_turn(tmp_path, lambda: exporters.OTLPSpanExporter(endpoint=f"{phoenix}/v1/traces"))
    asked = {"query": "{projects{edges{node{traceCount tokenCountTotal}}}}"}

    def counted() -> Any:
        told = httpx.post(f"{phoenix}/graphql", json=asked, trust_env=False).json()
        (project,) = [edge["node"] for edge in told["data"]["projects"]["edges"]]
        return project if project["tokenCountTotal"] == 2 * USAGE["total_tokens"] else None

    assert until(counted)["traceCount"] == 2
    spans = httpx.get(f"{phoenix}/v1/projects/default/spans", trust_env=False).json()["data"]
    costs = [span["attributes"].get("llm.cost.total") for span in spans if span["span_kind"] == "LLM"]
    assert costs == [COST, COST]


def test_mlflow_counts_a_turn_that_was_parked_once(mlflow: str, tmp_path: Path) -> None:
    headers = {"x-mlflow-experiment-id": "0"}
    one_turn(tmp_path, lambda: exporters.OTLPSpanExporter(endpoint=f"{mlflow}/v1/traces", headers=headers))
    where = [{"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "0"}}]

    def counted() -> Any:
        asked = {"locations": where, "max_results": 10}
        url = f"{mlflow}/api/3.0/mlflow/traces/search"
        traces = httpx.post(url, json=asked, trust_env=False).json()["traces"]
        return traces if len(traces) == 2 else None

    usages = [json.loads(trace["trace_metadata"]["mlflow.trace.tokenUsage"]) for trace in until(counted)]
    assert [usage["total_tokens"] for usage in usages] == [USAGE["total_tokens"]] * 2
