"""OpenTelemetry's own exporter, sending real turns over HTTP to a collector on loopback."""

import os
import subprocess
import sys
from typing import Any

import pytest
from genai_conventions import AGENT, MCP_TOOL, differences
from genai_conventions import MODEL as MODEL_SPAN
from observed_turns import MODEL, Watched, answer, echoes
from otlp_receiver import OtlpReceiver, Received

from grue.engine.outside_turns.tool_client import ToolClient
from grue.engine.runner import Runner, TurnRequest
from grue.runtime.trace.recorder import Recorder
from grue.testing import faulty_server
from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tool_sessions.server_specs import StdioServer
from grue.tracing.facts import EpisodeStarted
from grue.tracing.observers.otel import OtelObserver
from grue.transports.llm.endpoint import LlmSettings

exporters = pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    reason="opentelemetry is not installed: pip install 'grue[otel]'",
)

DEADLINE_S = 60.0


def collected(**given: Any) -> tuple[OtlpReceiver, Watched]:
    """Watch a real turn through OpenTelemetry's own exporter, over HTTP."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    with OtlpReceiver() as receiver:
        provider = TracerProvider(shutdown_on_exit=False)
        exporter = exporters.OTLPSpanExporter(endpoint=f"{receiver.url}/v1/traces")
        provider.add_span_processor(BatchSpanProcessor(exporter))
        observer = OtelObserver(provider)
        watched = Watched(given.pop("replies"), observer, **given)
        assert observer.close(DEADLINE_S)
        provider.shutdown()
    return receiver, watched


@pytest.mark.slow
def test_a_real_turn_arrives_at_a_collector() -> None:
    receiver, watched = collected(replies=[echoes("one", "two"), answer("take lamp")])
    assert watched.outcome.response == "take lamp"
    episode = receiver.one("invoke_workflow The House")
    (turn,) = receiver.children(episode)
    (session,) = receiver.children(turn)
    inside = receiver.children(session)
    assert [span.name for span in (turn, session, *inside)] == [
        "invoke_agent agent",
        "agent-tool-calling-session",
        f"chat {MODEL}",
        "execute_tool faulty.echo",
        "execute_tool faulty.echo",
        f"chat {MODEL}",
    ]
    assert {span.trace_id for span in receiver.spans} == {episode.trace_id}
    assert {span.status for span in receiver.spans} == {"UNSET"}
    chat, tool = inside[0].attributes, inside[1].attributes
    assert chat["gen_ai.request.model"] == chat["gen_ai.response.model"] == MODEL
    assert chat["gen_ai.usage.input_tokens"] == 100
    assert chat["gen_ai.usage.cache_read.input_tokens"] == 60
    assert chat["gen_ai.usage.reasoning.output_tokens"] == 30
    assert chat["grue.usage.cost_usd"] == 0.0025
    assert chat["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert (tool["gen_ai.tool.name"], tool["mcp.method.name"]) == ("faulty.echo", "tools/call")
    assert tool["gen_ai.tool.call.id"].startswith("call_scripted_")
    assert tool["gen_ai.conversation.id"] == "episode-1"
    assert [path for path, _ in receiver.requests] == ["/v1/traces"]


UNSAID = ("error.type", "gen_ai.output.type", "gen_ai.conversation.id")
UNSET = (
    "gen_ai.request.choice.count",
    "gen_ai.request.seed",
    "gen_ai.request.max_tokens",
    "gen_ai.request.top_p",
    "gen_ai.request.stop_sequences",
    "gen_ai.request.frequency_penalty",
    "gen_ai.request.presence_penalty",
    "gen_ai.usage.cache_creation.input_tokens",
)
UNASKED = (
    "gen_ai.request.top_k",
    "gen_ai.request.stream",
    "gen_ai.response.time_to_first_chunk",
    "openai.request.service_tier",
    "openai.response.service_tier",
    "openai.response.system_fingerprint",
)
PIPES = (
    "server.address",
    "server.port",
    "network.protocol.name",
    "network.protocol.version",
    "rpc.response.status_code",
    "error.type",
)


@pytest.mark.slow
def test_a_runners_turn_has_a_clean_root_and_no_difference_to_the_conventions() -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    command, *args = faulty_server.argv()
    recorder = Recorder()
    replies = [echoes("one"), answer("take lamp")]
    with OtlpReceiver() as receiver, ScriptedLlmServer(replies) as llm:
        provider = TracerProvider(shutdown_on_exit=False)
        exporter = exporters.OTLPSpanExporter(endpoint=f"{receiver.url}/v1/traces")
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        described = {"agent_description": "Uses one tool.", "agent_version": "2.1"}
        observer = OtelObserver(provider, capture_content=True, **described)
        recorder.add(observer)
        runner = Runner(
            llm=LlmSettings(base_url=llm.base_url, model=MODEL, temperature=0.5),
            servers={"faulty": StdioServer(name="faulty", command=command, args=tuple(args))},
            recorder=recorder,
        )
        runner.run_turn(TurnRequest(system="Use the tool.", user="Go on."))
        assert observer.close(DEADLINE_S)
        provider.shutdown()
    root, agent = receiver.one("invoke_workflow"), receiver.one("invoke_agent agent")
    assert {span.status for span in receiver.spans} == {"UNSET"}
    assert not {"error.type", "grue.warning"} & set(root.attributes)
    assert {"gen_ai.input.messages", "gen_ai.output.messages"} <= set(root.attributes)
    absent = [*UNSAID, *UNSET]
    assert differences(AGENT, agent.attributes, [*absent, "gen_ai.tool.definitions"]) == []
    last = receiver.named(f"chat {MODEL}")[-1]
    assert differences(MODEL_SPAN, last.attributes, [*absent, *UNASKED]) == []
    assert differences(MCP_TOOL, receiver.one("execute_tool faulty.echo").attributes, PIPES) == []


@pytest.mark.slow
def test_a_timeout_and_what_it_skips_arrive_too() -> None:
    receiver, _ = collected(
        replies=[echoes("one", "two", "three"), answer()], flags=("--silent-at", "call"), call_s=0.2
    )
    tool = receiver.one("execute_tool faulty.echo")
    assert (tool.status, tool.attributes["error.type"]) == ("ERROR", "timeout")
    assert tool.duration_s >= 0.2
    session = receiver.one("agent-tool-calling-session")
    assert [name for name, _ in session.events] == ["tool_skipped", "tool_skipped"]
    assert session.events[0][1]["grue.tool_name"] == "faulty.echo"


@pytest.mark.slow
def test_a_server_that_dies_arrives_too() -> None:
    receiver, _ = collected(replies=[echoes("one"), answer("look")], flags=("--kill-at", "call"))
    tool: Received = receiver.one("execute_tool faulty.echo")
    assert (tool.status, tool.attributes["error.type"]) == ("ERROR", "server_died")
    assert receiver.one("invoke_agent agent").attributes["grue.kind"] == "forced"


FROM_THE_ENVIRONMENT = """
from opentelemetry import trace
from recorded_turns import Play, Tape
from grue.messages import RunTurn
from grue.tracing.observers.otel import OtelObserver

observer = OtelObserver()
Play(Tape(observer), RunTurn(turn=1, system="You play.", user="A house."), ["take lamp"])
assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
"""


def run_from_the_environment(**environment: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    path = os.pathsep.join(each for each in sys.path if each)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", FROM_THE_ENVIRONMENT],
        env={**kept, **environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@pytest.mark.slow
def test_a_provider_of_the_environment_sends_by_the_end_of_the_program() -> None:
    with OtlpReceiver() as receiver:
        done = run_from_the_environment(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert {span.name for span in receiver.spans} == {"invoke_workflow", "invoke_agent agent", "chat"}


@pytest.mark.slow
def test_a_dead_collector_is_one_warning() -> None:
    with OtlpReceiver() as receiver:
        url = receiver.url
    done = run_from_the_environment(OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_EXPORTER_OTLP_TIMEOUT="1")
    assert done.returncode == 0
    (warning,) = done.stderr.splitlines()
    assert warning.startswith("The OpenTelemetry collector at 127.0.0.1:")


@pytest.mark.slow
def test_without_an_endpoint_there_is_one_warning() -> None:
    done = run_from_the_environment()
    assert done.returncode == 0
    assert done.stderr == "Nothing is sent to OpenTelemetry: OTEL_EXPORTER_OTLP_ENDPOINT is not set.\n"


TELLS_META = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    match asked.get("method"):
        case "initialize":
            said = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                    "serverInfo": {"name": "s", "version": "1"}}
        case "tools/list":
            said = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            said = {"content": [{"type": "text", "text": json.dumps(asked["params"].get("_meta", {}))}]}
        case _:
            continue
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": said}), flush=True)
"""


@pytest.mark.parametrize("keep", ["nothing", "sessions"])
@pytest.mark.parametrize("sampled", [True, False])
def test_a_server_is_told_the_span_of_its_call(keep: Any, *, sampled: bool) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

    spans = InMemorySpanExporter()
    provider = TracerProvider(sampler=ALWAYS_ON if sampled else ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    observers = [OtelObserver(provider) for _ in range(2)]
    told: list[str] = []
    for observer in observers:
        recorder = Recorder()
        recorder.add(observer)
        server = StdioServer(name="s", command=sys.executable, args=("-c", TELLS_META))
        replies = [tool_calls_reply(("s.echo", {}), ("s.echo", {})), text_reply("done")]
        with ScriptedLlmServer(replies) as llm:
            settings = LlmSettings(base_url=llm.base_url, model="m")
            with Runner(llm=settings, servers={"s": server}, recorder=recorder, keep=keep) as runner:
                if not sampled:  # the root's decision is known once it is begun
                    recorder.record(EpisodeStarted(episode_id="e"), sender="host")
                    assert observer.wait_idle(DEADLINE_S)
                outcome = runner.run_turn(TurnRequest(system="s", user="u"))
        assert observer.close(DEADLINE_S)
        contents: list[Any] = [call.result.content for call in outcome.tool_calls]
        told += [content["traceparent"] for content in contents]
    provider.shutdown()
    assert len({*told}) == 4
    if not sampled:
        assert all(int(each[-2:], 16) % 2 == 0 for each in told)
        return
    calls = [span for span in spans.get_finished_spans() if span.name == "execute_tool s.echo"]
    ids = [f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}" for span in calls]
    assert [each[:-3] for each in told] == ids
    assert all(int(each[-2:], 16) % 2 == 1 for each in told)
    assert len({span.context.trace_id for span in calls}) == 2, "each observer writes a trace of its own"


def test_a_server_is_told_nothing_without_an_observer() -> None:
    server = StdioServer(name="s", command=sys.executable, args=("-c", TELLS_META))
    with ToolClient({"s": server}) as client:
        assert "traceparent" not in str(client.call("s.echo", {}))
