"""Function tools in whole turns: descriptions on the wire, progress in the trace, unlisted tools."""

from pathlib import Path
from typing import Any, Literal

import pytest

from grue import FunctionTools, LlmSettings, Runner, ToolClient, ToolContext, TurnRequest, tool
from grue.messages import ServerNoted
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.recorder import Recorder
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tracing.reading import read_episode


@tool
def dig(metres: int, context: ToolContext) -> str:
    """Dig a hole.

    Args:
        metres: How deep.
    """
    context.progress(metres, metres, "done")
    return f"{metres} m deep"


def invoke(name: str, arguments: dict[str, object]) -> object:
    return f"{name} {arguments}"


def script(request: LlmRequest) -> LlmReply:
    if any(message["role"] == "tool" for message in request.messages):
        return text_reply("done")
    (digs,) = request.tool_names
    return tool_calls_reply((digs, {"metres": 2}), ("f.sing", {"loud": True}), ("g.sing", {}))


@pytest.mark.parametrize("lifetime", ["nothing", "loop"])
def test_a_turn_uses_what_is_listed_and_what_is_not(
    lifetime: Literal["nothing", "loop"], tmp_path: Path
) -> None:
    recorder, path = Recorder(), tmp_path / "trace.jsonl"
    writer = TraceWriter(path, episode="e")
    recorder.add(writer)
    tools = FunctionTools([dig], catch_all=invoke)
    with ScriptedLlmServer(script) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m", api_key="sk-made-up")
        with Runner(llm=settings, servers={"f": tools}, recorder=recorder, keep=lifetime) as runner:
            outcome = runner.run_turn(TurnRequest(system="s", user="u"))
        offered: Any = llm.requests[0].body["tools"]
    writer.close()
    assert outcome.response == "done"
    function = offered[0]["function"]
    assert function["description"] == "Dig a hole."
    assert function["parameters"]["properties"] == {"metres": {"type": "integer", "description": "How deep."}}
    contents = [record.result.content for record in outcome.tool_calls]
    assert contents == ["2 m deep", "sing {'loud': True}", None]
    assert [record.settlement for record in outcome.tool_calls] == ["returned", "returned", "rejected"]
    notes = [each.body for each in read_episode(path).envelopes if isinstance(each.body, ServerNoted)]
    assert [(note.server, note.kind, note.text) for note in notes] == [("f", "progress", "2/2 done")]


def test_a_tool_client_calls_what_is_not_listed_too() -> None:
    with ToolClient({"f": FunctionTools([dig], catch_all=invoke), "g": FunctionTools([dig])}) as client:
        assert client.call("f.sing", {}).content == "sing {}"
        assert client.call("f.dig", {"metres": 1}).content == "1 m deep"
        assert client.call("g.sing", {}).is_error
