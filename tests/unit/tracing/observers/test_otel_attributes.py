"""Spans held to OpenTelemetry's conventions: no required or recommended attribute is missing."""

import json
from typing import Any

import pytest
from genai_conventions import AGENT, MCP_TOOL, MODEL, TOOL, differences
from msgspec.structs import replace
from whole_turn import ASKS, record_turn

from golden import check_golden
from grue.hosts.skill_agent.facts import RunStarted
from grue.messages import (
    RequestCompletion,
    RequireAnswer,
    Resumption,
    RunTurn,
    ToolCall,
    ToolCallResult,
    ToolDefinition,
    TurnCompleted,
    TurnParked,
    Usage,
)
from grue.protocol.tools.calls import record
from grue.tracing.message_words import Verdict
from grue.tracing.observers.otel import OtelObserver
from grue.tracing.observers.otel_attributes import Conventions, tool_definitions
from grue.tracing.observers.spans import AsSent, Episode, Generation, SpanClosed, SpanOpened, ToolUse

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry is not installed: pip install 'grue[otel]'")

DEADLINE_S = 30.0


def recorded(capture: Any = True, **given: Any) -> list[Any]:
    """Record the turn through OpenTelemetry's own SDK; return the spans in the order of their beginnings."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    described = {"agent_description": "Explores the cave.", "agent_version": "2.1"}
    observer = OtelObserver(provider, capture_content=capture, **described)
    record_turn(observer, **given)
    assert observer.close(DEADLINE_S)
    provider.shutdown()
    assert observer.statistics().failed == 0
    return sorted(
        exporter.get_finished_spans(),
        key=lambda span: (span.start_time, -span.end_time, span.parent is not None),
    )


def test_agent_model_and_tool_spans_have_no_difference_to_the_conventions() -> None:
    _, agent, _, first, tool, second = recorded()
    assert differences(AGENT, agent.attributes, absent=["error.type", "gen_ai.tool.definitions"]) == []
    assert differences(MODEL, first.attributes, absent=["error.type", "gen_ai.output.type"]) == []
    unasked = ["error.type", "gen_ai.tool.definitions"]
    assert differences(MODEL, second.attributes, absent=unasked) == []
    assert differences(MCP_TOOL, tool.attributes, absent=["error.type", "rpc.response.status_code"]) == []
    assert (agent.kind.name, first.kind.name, tool.kind.name) == ("INTERNAL", "CLIENT", "CLIENT")
    assert (agent.name, first.name, tool.name) == (
        "invoke_agent agent",
        "chat gpt-large",
        "execute_tool thoughtbox.think",
    )


def test_a_server_over_pipes_has_no_address() -> None:
    tool = recorded(address="")[4]
    http = ["server.address", "server.port", "network.protocol.name", "network.protocol.version"]
    assert differences(MCP_TOOL, tool.attributes, ["error.type", "rpc.response.status_code", *http]) == []
    assert tool.attributes["network.transport"] == "pipe"


def test_the_model_that_was_asked_and_the_one_that_answered_are_two_attributes() -> None:
    chat = recorded()[3].attributes
    assert (chat["gen_ai.request.model"], chat["gen_ai.response.model"]) == (
        "gpt-large",
        "gpt-large-2026-11-01",
    )
    assert (chat["server.address"], chat["server.port"]) == ("api.openai.com", 443)
    assert chat["gen_ai.conversation.id"] == "talk-1"


def test_a_completion_has_the_whole_conversation_as_it_was_sent() -> None:
    second = recorded()[5].attributes
    parts = [(message["role"], message["parts"]) for message in json.loads(second["gen_ai.input.messages"])]
    call = {
        "type": "tool_call",
        "id": "call_1",
        "name": "thoughtbox.think",
        "arguments": {"thought": "A lamp."},
    }
    result = {"type": "tool_call_response", "id": "call_1", "response": '{"content": "noted"}'}
    assert parts == [
        ("user", [{"type": "text", "content": "A house."}]),
        ("assistant", [{"type": "text", "content": "Let me think."}, call]),
        ("tool", [result]),
    ]
    assert json.loads(second["gen_ai.system_instructions"]) == [{"type": "text", "content": "You play."}]


def test_a_history_by_reference_is_what_is_new_and_the_number_of_its_message() -> None:
    second = recorded("reference")[5].attributes
    assert [message["role"] for message in json.loads(second["gen_ai.input.messages"])] == ["tool"]
    assert (second["grue.history.left_out"], second["grue.message"]) == (3, 10)


@pytest.mark.parametrize("capture", [False, True])
def test_a_title_that_quotes_the_task_is_sent_with_content_only(capture: bool) -> None:
    begun = Episode(episode_id="e", started=RunStarted(episode_id="e", task="Pay Ada."))
    opened = SpanOpened(span=1, parent=None, at=0.0, turn=0, subject=begun)
    assert ("Pay Ada." in str(Conventions(capture).beginning(opened))) is capture


def test_a_clean_turn_has_a_clean_root_with_input_and_output() -> None:
    root = recorded()[0]
    assert (root.name, root.status.status_code.name) == ("invoke_workflow", "UNSET")
    assert not {"error.type", "grue.warning", "grue.detail"} & set(root.attributes)
    (asked,) = json.loads(root.attributes["gen_ai.input.messages"])
    (said,) = json.loads(root.attributes["gen_ai.output.messages"])
    assert asked["parts"] == [{"type": "text", "content": "A house."}]
    assert said["parts"] == [{"type": "text", "content": '{"action":"take lamp"}'}]


@pytest.mark.parametrize("capture", [True, False])
def test_the_spans_are_those_of_the_golden_file(capture: bool) -> None:
    spans = recorded(capture)
    names = {span.context.span_id: span.name for span in spans}
    shown = [
        {
            "name": span.name,
            "kind": span.kind.name,
            "parent": names.get(span.parent.span_id) if span.parent else None,
            "status": span.status.status_code.name,
            "attributes": dict(sorted((name, _plain(value)) for name, value in span.attributes.items())),
        }
        for span in spans
    ]
    check_golden(f"spans_opentelemetry{'' if capture else '_without_content'}.json", shown)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def closed(subject: Any, outcome: Any, verdict: Verdict) -> dict[str, Any]:
    conventions = Conventions(capture_content=True)
    event = SpanClosed(span=1, at=0.0, subject=subject, outcome=outcome, verdict=verdict)
    return {name: value for name, value in conventions.ending(event).items() if value is not None}


def test_a_json_rpc_error_is_the_type_of_the_error() -> None:
    use = ToolUse(
        call_id="c1", name="a.t", server="a", tool="t", arguments={}, request_id="4", error_code=-32602
    )
    result = ToolCallResult(None, is_error=True, error_message="no such tool")
    outcome = record(ToolCall(call_id="c1", name="a.t", arguments=""), 1, "returned", result, 0.1)
    ended = closed(use, outcome, Verdict("error", "tool_error", "no such tool"))
    assert (ended["error.type"], ended["rpc.response.status_code"], ended["jsonrpc.request.id"]) == (
        "-32602",
        "-32602",
        "4",
    )


def test_a_function_of_the_hosts_is_no_mcp_request() -> None:
    use = ToolUse(call_id="c1", name="own.roll", server="own", tool="roll", arguments={}, description="Roll.")
    event = SpanOpened(span=1, parent=None, at=0.0, turn=1, subject=use)
    _, begun = Conventions(capture_content=True).beginning(event)
    span = {name: value for name, value in begun.items() if value is not None}
    assert differences(TOOL, span, absent=["error.type", "gen_ai.tool.call.result"]) == []


def test_only_openai_has_attributes_of_openai() -> None:
    asks = replace(ASKS, provider="anthropic", wire="messages")
    request = RequestCompletion(conversation="t", request=1, new=(), mode=RequireAnswer())
    subject = Generation(request=request, asks=asks, sent=AsSent(said=(), fresh=0))
    event = SpanOpened(span=1, parent=None, at=0.0, turn=1, subject=subject)
    _, begun = Conventions(capture_content=False).beginning(event)
    assert [name for name, value in begun.items() if name.startswith("openai.") and value is not None] == []
    assert begun["gen_ai.provider.name"] == "anthropic"


def test_tools_that_are_too_long_are_named() -> None:
    schema = {"type": "object", "description": "x" * 30_000}
    tool = ToolDefinition(server="a", tool="t", input_schema=schema)
    assert json.loads(tool_definitions([tool]) or "") == [{"type": "function", "name": "a.t"}]


def test_a_resumed_turn_has_the_usage_since_it_was_resumed() -> None:
    before = Usage(input_tokens=100, output_tokens=10, cost_usd=0.5)
    whole = Usage(input_tokens=250, output_tokens=30, cost_usd=0.75)
    run = RunTurn(turn=3, system="", user="go")
    parked = replace(run, resumed=Resumption(parked=TurnParked(turn=3, usage=before)))
    end = TurnCompleted(turn=3, kind="answered", usage=whole)
    conventions = Conventions(True)
    for subject, tokens, cost in ((run, 250, 0.75), (parked, 150, 0.25)):
        ended = conventions.ending(
            SpanClosed(span=1, at=1.0, subject=subject, outcome=end, verdict=Verdict())  # type: ignore[arg-type]
        )
        assert (ended["gen_ai.usage.input_tokens"], ended["grue.usage.cost_usd"]) == (tokens, cost)
