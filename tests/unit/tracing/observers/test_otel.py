"""OpenTelemetry spans by the names of its conventions."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from eventful_episode import NOTES, record_episode
from otlp_receiver import OtlpReceiver
from recorded_turns import STARTED_AT, Called, Play, Tape

from grue.errors import MissingDependencyError
from grue.messages import (
    CompletionFailed,
    LlmFailure,
    RequestCompletion,
    RequireAnswer,
    RunTurn,
    TurnFailed,
)
from grue.testing.leftovers import assert_nothing_left
from grue.tracing.observers import otel, otel_attributes
from grue.tracing.observers.otel import OtelObserver, require_otel

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry is not installed: pip install 'grue[otel]'")

DEADLINE_S = 60.0
RUN = RunTurn(turn=3, system="You play.", user="A house.", servers=("thoughtbox",), fallback="look")


@pytest.fixture
def provider() -> Iterator[Any]:
    from opentelemetry.sdk.trace import TracerProvider

    made = TracerProvider(shutdown_on_exit=False)
    yield made
    made.shutdown()


@pytest.fixture
def spans(provider: Any) -> Any:
    """Finished spans, read from an exporter in memory."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return lambda: {span.name: span for span in exporter.get_finished_spans()}


def play(provider: Any, *replies: Any, **given: Any) -> None:
    observer = OtelObserver(provider, session_id="s1", **given)
    Play(Tape(observer), RUN, list(replies))
    assert observer.close(DEADLINE_S)
    assert observer.statistics().failed == 0


def test_names_parents_and_times_are_those_of_the_trace(provider: Any, spans: Any) -> None:
    play(provider, [Called("thoughtbox.think", took_s=0.2)], "take lamp", agent_name="zork")
    by_name = spans()
    names = {span.context.span_id: span.name for span in by_name.values()}
    # Of the two completions the last one counts here: they have the same name.
    parents = {name: span.parent and names[span.parent.span_id] for name, span in by_name.items()}
    assert parents == {
        "invoke_workflow": None,
        "invoke_agent zork": "invoke_workflow",
        "agent-tool-calling-session": "invoke_agent zork",
        "chat": "agent-tool-calling-session",
        "execute_tool thoughtbox.think": "agent-tool-calling-session",
    }
    tool = by_name["execute_tool thoughtbox.think"]
    assert tool.start_time == int(STARTED_AT * 1e9)
    assert tool.end_time == tool.start_time + 200_000_000


def test_what_is_current_in_the_thread_is_nobodys_parent(provider: Any, spans: Any) -> None:
    """A thread may inherit the context of the one that started it."""
    observer = OtelObserver(provider)
    consumer = observer._consumer
    with provider.get_tracer("theirs").start_as_current_span("theirs"):
        Play(Tape(lambda envelope, _line: consumer.consume(envelope)), RUN, ["take lamp"])
        consumer.finish()
    by_name = spans()
    assert by_name["invoke_workflow"].parent is None
    agent = by_name["invoke_agent agent"]
    assert agent.parent.span_id == by_name["invoke_workflow"].context.span_id


def test_without_content_attributes_are_names_counts_and_sizes(provider: Any, spans: Any) -> None:
    play(provider, [Called("thoughtbox.think", '{"thought": "plugh"}', content="xyzzy")], "take lamp")
    everything = repr([dict(span.attributes) for span in spans().values()])
    for content in ("plugh", "xyzzy", "take lamp", "A house", "You play"):
        assert content not in everything
    chat = spans()["chat"].attributes
    assert chat["gen_ai.operation.name"] == "chat"
    assert (chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) == (10, 2)
    assert chat["gen_ai.response.finish_reasons"] == ("stop",)
    assert chat["gen_ai.conversation.id"] == "s1"
    assert chat["grue.input_chars"] > 0


def test_content_that_is_wanted_has_the_conventions_shapes(provider: Any, spans: Any) -> None:
    called = Called("thoughtbox.think", '{"thought": "plugh"}', content="xyzzy")
    play(provider, [called], "take lamp", capture_content=True)
    by_name = spans()
    tool = by_name["execute_tool thoughtbox.think"].attributes
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"thought": "plugh"}
    assert json.loads(tool["gen_ai.tool.call.result"]) == {"content": "xyzzy"}
    agent = by_name["invoke_agent agent"].attributes
    assert json.loads(agent["gen_ai.system_instructions"]) == [{"type": "text", "content": "You play."}]
    assert json.loads(agent["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "A house."}]}
    ]
    chat = by_name["chat"].attributes  # the second one
    (told,) = json.loads(chat["gen_ai.input.messages"])
    assert (told["role"], told["parts"][0]["type"], told["parts"][0]["id"]) == (
        "tool",
        "tool_call_response",
        "call_1",
    )
    (said,) = json.loads(chat["gen_ai.output.messages"])
    assert said["parts"] == [{"type": "text", "content": "take lamp"}]
    assert said["finish_reason"] == "stop"


def test_a_failure_has_a_type_and_words_only_where_they_are_wanted(provider: Any, spans: Any) -> None:
    called = Called("thoughtbox.think", outcome="error", content="xyzzy")
    play(provider, [called], "take lamp")
    tool = spans()["execute_tool thoughtbox.think"]
    assert tool.status.status_code.name == "ERROR"
    assert (tool.attributes["error.type"], tool.status.description) == ("tool_error", "tool_error")
    play(provider, [called], "take lamp", capture_content=True)
    assert spans()["execute_tool thoughtbox.think"].status.description == "no such thought"


def test_a_turn_without_a_completion_says_which_endpoint_failed(provider: Any, spans: Any) -> None:
    failure = LlmFailure(
        kind="unavailable", endpoint="http://llm.example:8080/v1", model="m-1", message="busy", status=503
    )
    observer = OtelObserver(provider)
    tape = Tape(observer)
    tape.say(RUN, turn=3, sender="host", receiver="agent")
    tape.say(RequestCompletion(conversation="t", request=1, new=(), mode=RequireAnswer()), turn=3)
    tape.say(CompletionFailed(request=1, failure=failure), TurnFailed(turn=3, failure=failure), turn=3)
    assert observer.close(DEADLINE_S)
    chat = spans()["chat m-1"].attributes
    assert (chat["server.address"], chat["server.port"]) == ("llm.example", 8080)
    assert (chat["error.type"], chat["http.response.status_code"]) == ("unavailable", 503)
    assert chat["gen_ai.request.model"] == "m-1"


def test_an_integer_that_no_exporter_can_send_is_sent_as_text() -> None:
    assert otel_attributes.present({"a": 2**64 - 1, "b": -1, "c": True}) == {
        "a": str(2**64 - 1),
        "b": -1,
        "c": True,
    }


def test_a_callers_provider_is_not_shut_down(provider: Any, spans: Any) -> None:
    play(provider, "take lamp")
    with provider.get_tracer("theirs").start_as_current_span("theirs"):
        pass
    assert "theirs" in spans()


def test_without_the_package_there_is_one_warning_and_a_normal_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel, "find_spec", lambda name: None)
    warnings: list[str] = []
    observer = OtelObserver(warn=warnings.append)
    assert Play(Tape(observer), RUN, ["take lamp"]).end.answer == {"action": "take lamp"}
    assert warnings == [
        "OpenTelemetry is not installed: pip install 'opentelemetry-sdk>=1.45,<2'"
        " 'opentelemetry-exporter-otlp-proto-http>=1.45,<2'. The episode continues without it."
    ]
    with pytest.raises(MissingDependencyError, match="pip install 'opentelemetry-sdk"):
        require_otel()


def test_the_names_are_those_of_the_conventions() -> None:
    conventions = pytest.importorskip(
        "opentelemetry.semconv._incubating.attributes.gen_ai_attributes",
        reason="OpenTelemetry: pip install 'grue[otel]'",
    )
    mcp = pytest.importorskip(
        "opentelemetry.semconv._incubating.attributes.mcp_attributes",
        reason="OpenTelemetry: pip install 'grue[otel]'",
    )
    known = {value for value in vars(conventions).values() if isinstance(value, str)}
    known |= {value for value in vars(mcp).values() if isinstance(value, str)}
    source = Path(otel_attributes.__file__).read_text()
    used = {word for word in source.split('"') if word.startswith(("gen_ai.", "mcp."))}
    assert used
    assert used <= known


@pytest.mark.parametrize("capture_content", [True, False])
def test_everything_that_can_happen_has_its_span_or_event(
    provider: Any, spans: Any, capture_content: bool
) -> None:
    observer = OtelObserver(provider, capture_content=capture_content)
    record_episode(Tape(observer))
    assert observer.close(DEADLINE_S)
    assert observer.statistics().failed == 0
    by_name = spans()
    assert set(by_name) == {
        "invoke_workflow The House",
        "invoke_agent agent",
        "agent-tool-calling-session",
        "chat m-2",
        "execute_tool a.t",
    }
    events = [event for span in by_name.values() for event in span.events]
    kept = {"completion_retried", "reply_cut"}  # of the first of two completions with the same name
    assert {event.name for event in events} | kept == set(NOTES)
    (skipped,) = [event for event in events if event.name == "tool_skipped"]
    assert skipped.attributes["grue.tool_name"] == "a.t"
    assert ("grue.detail" in skipped.attributes) is capture_content
    turn = by_name["invoke_agent agent"]
    words = "out of time after 5s, asking the model" if capture_content else "timeout"
    assert (turn.status.status_code.name, turn.status.description) == ("ERROR", words)
    assert (turn.attributes["error.type"], turn.attributes["grue.kind"]) == ("timeout", "failed")
    assert by_name["chat m-2"].attributes["server.port"] == 8080
    assert by_name["invoke_workflow The House"].attributes["gen_ai.workflow.name"] == "The House"


def test_a_global_provider_is_used_where_there_is_one(
    provider: Any, spans: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry import trace

    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    play(None, "take lamp")
    assert "chat" in spans()


@pytest.mark.parametrize("where", ["127.0.0.1:9", "127.0.0.1:43x8", "[::1"])
def test_an_endpoint_in_the_environment_makes_a_provider_that_ends_with_the_observer(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{where}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    warnings: list[str] = []
    with assert_nothing_left():
        observer = OtelObserver(warn=warnings.append)
        Play(Tape(observer), RunTurn(turn=1, system="You play.", user="A house."), ["take lamp"])
        assert observer.close(DEADLINE_S)
    assert observer.tracer_provider is not None
    (warning,) = warnings
    assert warning.startswith(f"The OpenTelemetry collector at {where} does not take what it is sent")


def test_a_setting_of_opentelemetry_that_makes_no_exporter_is_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "0")
    warnings: list[str] = []
    assert OtelObserver(warn=warnings.append).tracer_provider is None
    (warning,) = warnings
    assert warning.startswith("Nothing is sent to OpenTelemetry: no exporter could be created: max_queue")


@pytest.mark.parametrize(
    ("named", "says"),
    [("mine", "status 307, a redirect: give the address it leads to"), ("no-such", "'no-such' not found")],
)
def test_with_a_credential_provider_a_failure_is_one_warning_too(
    named: str, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "credentials-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: credentials\nVersion: 1\n")
    group = "opentelemetry_otlp_credential_provider"
    (folder / "entry_points.txt").write_text(f"[{group}]\nmine = requests:Session\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER", named)
    warnings: list[str] = []
    with OtlpReceiver(status=307) as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        observer = OtelObserver(warn=warnings.append)
        Play(Tape(observer), RunTurn(turn=1, system="You play.", user="A house."), ["take lamp"])
        assert observer.close(DEADLINE_S)
    (warning,) = warnings
    assert says in warning


def test_nothing_configured_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    warnings: list[str] = []
    assert OtelObserver(warn=warnings.append).tracer_provider is None
    assert warnings == ["Nothing is sent to OpenTelemetry: OTEL_EXPORTER_OTLP_ENDPOINT is not set."]


@pytest.mark.parametrize("endpoint", ["http://[half/v1", "http://x:port/v1"])
def test_an_endpoint_that_is_no_url_is_left_out(endpoint: str) -> None:
    assert otel_attributes._address(endpoint) == {}
